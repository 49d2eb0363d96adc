"""A connection to Redis or Valkey in which nothing waits for ever, and nothing that writes is sent twice.

A question is asked again on a new connection, until the wait is over. A script that writes is sent once: when its
answer does not come, nobody knows whether it was carried out. What a server refuses was not carried out; where that may
pass (it is starting, or another takes over), it is waited for.
"""

from __future__ import annotations

import os
import time
from hashlib import sha1

from ranonce.errors import StoreUnavailable
from ranonce.record import Record
from ranonce.stores.base import LostReply
from ranonce.stores.redis.answers import Answer, Broken, Foreign, Untrusted, no_server, passes, translated
from ranonce.stores.redis.shapes import fits
from ranonce.stores.redis.wire import Wire, target_of
from ranonce.storeurl import Server, masked, server_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ranonce.stores.redis.wire import Command

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0
#: No single answer is waited for longer than a third of the whole wait: a connection that went silent leaves time for
#: another one. But never less than this.
LEAST_PATIENCE_SECONDS = 0.2


class Script(Record):
    """A script, the digest by which a server that has seen it knows it, and the words that its answers begin with."""

    text: str
    digest: str
    says: tuple[bytes, ...]

    def check(self, answer: list[Any]) -> None:
        """Make sure that an answer is one of this script. Raises Foreign."""
        if answer[0] not in self.says:
            raise Foreign(f"to a question it said {answer[0]!r}, which answers another one")


def script(text: str, *says: bytes) -> Script:
    """Return a script."""
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest(), says)


class _Waiting:
    """One wait for a server: when it ends, and the pauses in it."""

    def __init__(self, seconds: float) -> None:
        self._patience = max(seconds / 3, LEAST_PATIENCE_SECONDS)
        self._end = time.monotonic() + seconds
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def answer_by(self) -> float:
        """Until when the next answer may come."""
        return time.monotonic() + self._patience

    @property
    def over(self) -> bool:
        """Whether there is no time for another try."""
        return time.monotonic() + self._pause > self._end

    def pause(self) -> None:
        """Leave the server alone for a moment."""
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)


class Connection:
    """A connection that is made when it is needed, and made again when it has broken. For one thread."""

    def __init__(self, url: str, wait_seconds: float) -> None:
        server = server_of(url)
        assert server is not None
        self.server: Server = server
        self.shown = masked(url)
        self.wait_seconds = wait_seconds
        self._target = target_of(server.address, self.shown)
        self._wire: Wire | None = None
        self._process = 0  # whose wire it is

    # --- questions ---

    def ask(self, *commands: Command) -> list[Any]:
        """Return the answers to commands that may be carried out twice, sent in one go."""
        answers = self.look(*commands)
        for answer in answers:
            if isinstance(answer, Answer):
                raise translated(answer, self.shown) from answer
        return answers

    def look(self, *commands: Command) -> list[Any]:
        """Return the same, with an `Answer` in the place of what was refused for good."""
        waiting = _Waiting(self.wait_seconds)
        while True:
            wire = self._connected(waiting)
            try:
                answers = self._exchange(wire, commands, waiting)
            except Broken as error:
                if waiting.over:
                    raise self.unavailable(error) from error
            except Foreign as error:
                raise no_server(error, self.shown) from error
            else:
                passing = next((answer for answer in answers if isinstance(answer, Answer) and passes(answer)), None)
                if passing is None:
                    return answers
                self._wait_or_refuse(passing, waiting)
            waiting.pause()

    def ask_script(self, asked: Script, keys: Sequence[str], *values: str | bytes | int) -> Any:
        """Return the answer of a script that only reads."""
        (answer,) = self.look(("EVALSHA", asked.digest, len(keys), *keys, *values))
        if isinstance(answer, Answer) and answer.code == "NOSCRIPT":
            (answer,) = self.look(("EVAL", asked.text, len(keys), *keys, *values))
        if isinstance(answer, Answer):
            raise translated(answer, self.shown) from answer
        try:
            asked.check(answer)
        except Foreign as error:
            self.close()
            raise no_server(error, self.shown) from error
        return answer

    # --- what writes ---

    def tell_script(self, told: Script, keys: Sequence[str], *values: str | bytes | int) -> Any:
        """Carry out a script that writes; return its answer. Raises LostReply where nobody knows what became of it."""
        waiting = _Waiting(self.wait_seconds)
        command: Command = ("EVALSHA", told.digest, len(keys), *keys, *values)
        while True:
            wire = self._connected(waiting)
            try:
                (answer,) = self._exchange(wire, (command,), waiting)
                if not isinstance(answer, Answer):
                    told.check(answer)
            except (Broken, Foreign) as error:
                self.close()
                raise LostReply(
                    f"the connection to {self.shown} broke before the answer came: {error}.", "Try again later."
                ) from error
            if not isinstance(answer, Answer):
                return answer
            if answer.code == "NOSCRIPT" and command[0] == "EVALSHA":
                command = ("EVAL", told.text, *command[2:])
                continue
            self._wait_or_refuse(answer, waiting)
            waiting.pause()

    def _wait_or_refuse(self, answer: Answer, waiting: _Waiting) -> None:
        """Raise what an answer means, unless it may be another one in a moment."""
        if not passes(answer) or waiting.over:
            raise translated(answer, self.shown) from answer
        self.close()  # another server may take over under this name

    # --- the connection ---

    def _connected(self, waiting: _Waiting) -> Wire:
        """Return a wire that was usable when it was used last; after a fork the parent's is none."""
        if self._wire is not None and self._process == os.getpid():
            return self._wire
        self._wire = None
        while True:
            try:
                self._wire, self._process = Wire(self._target, waiting.answer_by), os.getpid()
                return self._wire
            except Broken as error:
                if waiting.over:
                    raise self.unavailable(error) from error
            except Answer as answer:
                self._wait_or_refuse(answer, waiting)
            except (Foreign, Untrusted) as error:
                raise no_server(error, self.shown) from error
            waiting.pause()

    def _exchange(self, wire: Wire, commands: Sequence[Command], waiting: _Waiting) -> list[Any]:
        try:
            answers = wire.exchange(commands, waiting.answer_by)
            for command, answer in zip(commands, answers, strict=True):
                if not isinstance(answer, Answer) and not fits(command, answer):
                    raise Foreign(f"it answered {command[0]!r} with something else")
        except BaseException:  # interrupted, too: nobody may take a late answer for that to the next question
            self.close()
            raise
        return answers

    def unavailable(self, why: Broken) -> StoreUnavailable:
        """Return the error for a server that gave no answer in time."""
        return StoreUnavailable(f"{self.shown} could not be reached in time: {why}.", "Nothing was started.")

    def close(self) -> None:
        """Let go of the connection; the next question makes another."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
