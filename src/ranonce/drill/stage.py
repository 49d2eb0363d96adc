"""Where a drill plays: a scratch ledger beside the user's, hosts of its own in a temporary folder, and its processes.

All of it is removed at the end, however the drill ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time

from ranonce.drill.asking import declare, new_owner
from ranonce.drill.crew import Crew, Deadline, Member, settled
from ranonce.drill.invoking import Host, Triggered
from ranonce.drill.leftovers import PREFIX, TIDY_SECONDS, keep_alive, remember, removed, sweep
from ranonce.drill.processes import Processes, program, uninterrupted
from ranonce.errors import ConfigError, RanonceError
from ranonce.ledger import OpenLedger
from ranonce.record import Record
from ranonce.stores import open_store, site_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

#: How long one claim or look waits for the store.
WAIT_SECONDS = 20.0
#: Why a scratch ledger may be made where the user's own might get lost.
VOLATILE = "the scratch ledger of a drill"


def untold(name: str, done: int, of: int) -> None:
    """Tell nobody how far a scenario is."""


class Asked(Record):
    """What is asked of a drill: the store whose kind and place are rehearsed, how often, and how long it may take.

    `words` start a module of this package; `patience` is how long one answer may take, in seconds.
    """

    url: str
    environ: Mapping[str, str]
    rounds: int = 20
    deadline: float = 300.0
    words: tuple[str, ...] | None = None
    patience: float | None = None
    tell: Callable[[str, int, int], None] = untold


class Stage:
    """A context manager: the scratch ledger stands within it, and nothing is left after it.

    `left` are sentences about what could not be removed, `notes` about what a person should know besides.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.rounds = asked.rounds
        self.deadline = Deadline(asked.deadline, *([asked.patience] if asked.patience else []))
        self.ledger_id = new_owner()
        self.folder = ""
        self.left: list[str] = []
        self.notes: list[str] = []
        self._scratch: list[str] = []
        self._opened: list[OpenLedger] = []
        self._alive: int | None = None

    # --- making and removing ---

    def __enter__(self) -> Self:
        sweep(self.asked.url)
        try:
            with uninterrupted():
                self.folder = tempfile.mkdtemp(prefix=PREFIX)
                self.processes = Processes(self.folder, self.asked.words or program())
            self._alive = keep_alive(self.folder)
            self._create()
        except BaseException as error:
            self.close(wait_seconds=TIDY_SECONDS)
            if isinstance(error, RanonceError):  # nothing was made: it is made whole or not at all
                self.left.clear()
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def _create(self) -> None:
        """Make the scratch ledger."""
        wait = min(WAIT_SECONDS, self.asked.deadline)
        beside = site_of(self.asked.url, wait_seconds=wait)
        if (risk := beside.risk()) is not None:
            self.notes.append(f"the store is on {risk.kind}: {risk.problem}. A drill does not show what that costs.")
        self.url = self.scratch()
        site = site_of(self.url, wait_seconds=wait)
        try:
            site.create(self.ledger_id, volatile=VOLATILE)
        except ConfigError as error:
            raise ConfigError(
                error.sentence,
                "A drill makes a scratch ledger under a name of its own beside yours: let it ask as somebody who may.",
            ) from error

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """End and remove everything; a second time does nothing."""
        if not self.folder:
            return
        self.clear()
        while self._scratch:
            if (problem := removed(self._scratch.pop(), wait_seconds)) is not None:
                self.left.append(problem)
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None
        if not self.left:  # else the folder keeps the name, and the next drill tries again
            shutil.rmtree(self.folder, ignore_errors=True)

    def scratch(self) -> str:
        """Return the address of one more scratch ledger, which is yet to be made; it is removed with the others."""
        stamp = time.strftime("%Y%m%dt%H%M%S", time.gmtime())
        name = f"drill_{stamp}_{os.urandom(4).hex()}"
        remember(self.folder, name, self.asked.url)
        url = site_of(self.asked.url, wait_seconds=WAIT_SECONDS).scratch(name)
        self._scratch.append(url)
        return url

    def clear(self) -> None:
        """End what a scenario has started, and close what it has opened."""
        self.processes.end()
        while self._opened:
            with contextlib.suppress(RanonceError):
                self._opened.pop().close()

    # --- what a scenario works with ---

    def ledger(self) -> OpenLedger:
        """Return the scratch ledger, opened by the drill itself: it looks on, and knows nothing of any host."""
        self._opened.append(OpenLedger(open_store(self.url, wait_seconds=WAIT_SECONDS), folder=None))
        return self._opened[-1]

    def declared(self, job: str) -> OpenLedger:
        """Return the scratch ledger with one more job."""
        ledger = self.ledger()
        declare(ledger, job)
        return ledger

    def host(self, name: str, *, wait: float = WAIT_SECONDS, destinations: str = "") -> Host:
        """Return a host: an environment with a state folder of its own, whose runs wait so long for the store.
        `destinations` are those of its configuration, as it is written."""
        return Host(self.folder, name, wait, self.asked.environ, self.url, self.ledger_id, destinations)

    def trigger(self, host: Host, *words: str, failpoint: str | None = None) -> Triggered:
        """Start `ranonce WORDS…` on a host."""
        env = host.env | ({"RANONCE_FAILPOINT": failpoint} if failpoint else {})
        null = subprocess.DEVNULL
        started = self.processes.start("ranonce", *words, env=env, stdin=null, stdout=null)
        return Triggered(started, self.deadline, words[0])

    def member(self, host: Host, *, failpoint: str | None = None) -> Member:
        """Start a worker and let it open the scratch ledger."""
        return self.members(1, host, failpoint=failpoint)[0]

    def members(self, count: int, host: Host, *, failpoint: str | None = None, gate: int = -1) -> list[Member]:
        """Start workers and let them open the scratch ledger, each as from a host that saw nothing: no state folder."""
        members = self.unopened(count, host, failpoint=failpoint, gate=gate)
        for member in members:
            member.send("open", url=self.url, ledger=self.ledger_id, wait=WAIT_SECONDS)
        for member in members:
            settled(member, member.answer())
        return members

    def unopened(self, count: int, host: Host, *, failpoint: str | None = None, gate: int = -1) -> list[Member]:
        """Start workers that have yet to open anything."""
        env = host.env | ({"RANONCE_FAILPOINT": failpoint} if failpoint else {})
        pipe, inherit = subprocess.PIPE, (gate,) if gate >= 0 else ()
        members = []
        for number in range(1, count + 1):
            words = ("ranonce.drill.worker", str(gate))
            started = self.processes.start(*words, env=env, stdin=pipe, stdout=pipe, inherit=inherit)
            members.append(Member(number, started, self.deadline))
        return members

    @contextlib.contextmanager
    def crew(self, count: int, host: Host) -> Iterator[Crew]:
        """Start workers that wait at one gate."""
        gate, opener = os.pipe()
        try:
            yield Crew(self.members(count, host, gate=gate), opener)
        finally:
            os.close(gate)
            os.close(opener)
