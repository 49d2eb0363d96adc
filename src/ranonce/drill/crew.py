"""The workers of a drill, seen from the drill: asked by pipes, each answer with a deadline.

A worker that dies is counted, and its last words are evidence; one that gives no answer is, too. Nothing here can wait
for ever.
"""

from __future__ import annotations

import json
import os
import subprocess
import time

from ranonce.drill.outcome import Broken, Untried
from ranonce.readable import readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ranonce.drill.processes import Started

    Answer = dict[str, Any]

#: Who gives no answer for so long hangs, however slow the store: a claim itself gives up before.
PATIENCE_SECONDS = 45.0
#: Cut short by the end of the drill's time, silence says something only after so long.
TELLING_SECONDS = 5.0


class Silent(Broken):
    """A worker died or hangs."""


class OutOfTime(Untried):
    """The drill's own time is over."""


class Deadline:
    """The end of the time a drill has, as a monotonic instant, and how long it waits for one answer."""

    def __init__(self, seconds: float, patience: float = PATIENCE_SECONDS) -> None:
        self.at = time.monotonic() + seconds
        self.patience = patience

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.at - time.monotonic()

    def check(self) -> None:
        """Go on only while there is time. Raises OutOfTime."""
        if self.left() <= 0:
            raise OutOfTime("the drill's time is over")

    def sleep(self, seconds: float) -> None:
        """Let time pass. Raises OutOfTime if it would be too much."""
        if seconds > self.left():
            raise OutOfTime("the drill's time would be over before a lease is")
        time.sleep(max(seconds, 0.0))

    def wait_until(self, fact: Callable[[], object], seconds: float) -> bool:
        """Wait until a fact is true; False if it does not become true in so many seconds. Raises OutOfTime."""
        give_up = time.monotonic() + seconds
        while not fact():
            self.check()
            if time.monotonic() > give_up:
                return False
            time.sleep(0.02)
        return True


class Member:
    """One worker."""

    def __init__(self, number: int, started: Started, deadline: Deadline) -> None:
        self.number = number
        self.started = started
        self._deadline = deadline
        self._unread = b""
        self._asked = "start"
        self._since = time.monotonic()

    def send(self, do: str, **asked: object) -> None:
        """Ask for something; `answer` must be called for it."""
        self._asked, self._since = do, time.monotonic()
        try:
            assert self.started.process.stdin is not None
            self.started.process.stdin.write(json.dumps({"do": do, **asked}).encode() + b"\n")
        except BrokenPipeError:
            pass  # it has ended: its answer will not come, and that is told

    @property
    def answers(self) -> int:
        """The descriptor on which its answers come."""
        assert self.started.process.stdout is not None
        return self.started.process.stdout.fileno()

    @property
    def give_up(self) -> float:
        """The monotonic instant after which its answer is waited for no longer."""
        return min(self._since + self._deadline.patience, self._deadline.at)

    def answer(self) -> Answer:
        """Return the answer to what was asked. Raises Silent where none comes."""
        fd = self.answers
        while b"\n" not in self._unread:
            left = self.give_up - time.monotonic()
            if not readable([fd], left):
                raise self._hangs()
            piece = os.read(fd, 65536)
            if not piece:
                raise self._died()
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: Answer = json.loads(line)
        return answer

    def ask(self, do: str, **asked: object) -> Answer:
        """Ask, and return the answer. Raises Silent."""
        self.send(do, **asked)
        return self.answer()

    def answer_or_death(self) -> Answer | None:
        """Return the answer, or None if it was killed at the place it was armed for. Raises Silent if it is neither."""
        try:
            return self.answer()
        except Silent:
            if self.started.process.returncode == -9:
                return None
            raise

    def _hangs(self) -> Exception:
        waited = time.monotonic() - self._since
        if waited < min(self._deadline.patience, TELLING_SECONDS):
            return OutOfTime("the drill's time is over")
        return Silent(f"process {self.number} gave no answer to `{self._asked}` in {waited:.0f} seconds: it hangs")

    def _died(self) -> Exception:
        try:
            self.started.process.wait(5)
        except subprocess.TimeoutExpired:
            self.started.kill()
        how, said = self.started.how, self.started.last_words
        return Silent(f"process {self.number} died ({how}) while it was to {self._asked}: {said}", dead=1)


class Crew:
    """Several workers that can be let go at one moment, and the gate they wait at."""

    def __init__(self, members: list[Member], gate: int) -> None:
        self.members = members
        self._gate = gate

    def race(self, owners: Iterable[str], **asked: object) -> list[Answer]:
        """Let all claim the same at once, each under an owner id of its own; return what each was told.

        Nobody begins before the last is ready. Raises Broken with all who died, hang or met an error.
        """
        faults: list[Broken] = []
        for member, owner in zip(self.members, owners, strict=True):
            member.send("claim", owner=owner, together=True, **asked)
        for member in self.members:
            _take(member, faults)
        if not faults:
            os.write(self._gate, b"." * len(self.members))
        answers = [] if faults else [answer for member in self.members if (answer := _take(member, faults))]
        if faults:
            raise Broken(*(piece for fault in faults for piece in fault.evidence), dead=sum(f.dead for f in faults))
        return answers


def _take(member: Member, faults: list[Broken]) -> Answer | None:
    try:
        return settled(member, member.answer())
    except Broken as fault:
        faults.append(fault)
        return None


def settled(member: Member, answer: Answer) -> Answer:
    """Return an answer that is none of an error. Raises Broken."""
    if "error" in answer:
        raise Broken(f"process {member.number} met an error ({answer['error']}): {answer['sentence']}")
    return answer


def most_in_flight(answers: list[Answer]) -> int:
    """Return how many claims were on their way at the same moment, at most."""
    edges = sorted([(a["began"], 1) for a in answers] + [(a["ended"], -1) for a in answers])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most
