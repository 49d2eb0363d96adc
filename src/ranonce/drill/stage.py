"""Where a drill plays: a scratch ledger beside the user's, hosts of its own in a temporary folder, and its processes.

All of it is removed at the end, however the drill ends. One that was killed outright leaves a folder in the temporary
directory that names its scratch ledgers; the next drill on the same store removes both. A lock on a file in the folder
says that its drill is alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time

from ranonce.drill.asking import declare, new_owner
from ranonce.drill.crew import Crew, Deadline, Member, settled
from ranonce.drill.invoking import Host, Triggered
from ranonce.drill.processes import Processes, program, uninterrupted
from ranonce.errors import RanonceError
from ranonce.ledger import OpenLedger
from ranonce.record import Record
from ranonce.stores import open_store, site_of
from ranonce.storeurl import masked, public

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

PREFIX = "ranonce-drill-"
#: A folder of a drill that was killed is left alone for so long: until then, what it had started has ended as well.
SETTLED_SECONDS = 60.0
#: How long one claim or look waits for the store.
WAIT_SECONDS = 20.0
#: Why a scratch ledger may be made where the user's own might get lost.
VOLATILE = "the scratch ledger of a drill"


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
    tell: Callable[[str, int, int], None] = lambda name, done, of: None


class Stage:
    """A context manager: the scratch ledger stands within it, and nothing is left after it.

    `left` are sentences about what could not be removed.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.rounds = asked.rounds
        self.deadline = Deadline(asked.deadline, *([asked.patience] if asked.patience else []))
        self.ledger_id = new_owner()
        self.folder = ""
        self.left: list[str] = []
        self._scratch: list[str] = []
        self._opened: list[OpenLedger] = []
        self._alive: int | None = None

    # --- making and removing ---

    def __enter__(self) -> Self:
        _sweep(self.asked.url)
        try:
            with uninterrupted():
                self.folder = tempfile.mkdtemp(prefix=PREFIX)
                self.processes = Processes(self.folder, self.asked.words or program())
            self._alive = os.open(os.path.join(self.folder, "alive"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._alive, fcntl.LOCK_EX)
            self.url = self.scratch()
            site_of(self.url, wait_seconds=WAIT_SECONDS).create(self.ledger_id, volatile=VOLATILE)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End and remove everything; a second time does nothing."""
        if not self.folder:
            return
        self.clear()
        while self._scratch:
            if (problem := _removed(self._scratch.pop())) is not None:
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
        with open(os.path.join(self.folder, "scratch"), "a", encoding="utf-8") as file:
            file.write(f"{name} {public(self.asked.url)}\n")
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

    def host(self, name: str, *, wait: float = WAIT_SECONDS) -> Host:
        """Return a host: an environment with a state folder of its own, whose runs wait so long for the store."""
        return Host(self.folder, name, wait, self.asked.environ, self.url, self.ledger_id)

    def trigger(self, host: Host, *words: str, failpoint: str | None = None) -> Triggered:
        """Start `ranonce WORDS…` on a host."""
        env = host.env | ({"RANONCE_FAILPOINT": failpoint} if failpoint else {})
        null = subprocess.DEVNULL
        started = self.processes.start("ranonce", *words, env=env, stdin=null, stdout=null)
        return Triggered(started, self.deadline)

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


def _removed(url: str) -> str | None:
    """Remove a scratch ledger; return the sentence about why that was not possible, or None."""
    try:
        site_of(url, wait_seconds=WAIT_SECONDS).destroy()
    except FileNotFoundError:
        return None
    except (RanonceError, OSError) as error:
        return f"the scratch ledger {masked(url)} could not be removed: {error}"
    return None


def _sweep(url: str) -> None:
    """Remove what drills on the same store have left that were killed."""
    above = tempfile.gettempdir()
    for name in os.listdir(above):
        folder = os.path.join(above, name)
        if name.startswith(PREFIX) and _is_dead(folder):
            names = _scratch_of(folder, url)
            site = site_of(url, wait_seconds=WAIT_SECONDS)
            if names and all(_removed(site.scratch(scratch)) is None for scratch in names):
                shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: str) -> bool:
    """Say whether a folder is one of this user's drills that was killed some time ago."""
    try:
        seen = os.lstat(folder)
        if seen.st_uid != os.geteuid() or seen.st_mode & 0o077 or seen.st_mtime > time.time() - SETTLED_SECONDS:
            return False
        alive = os.open(os.path.join(folder, "alive"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(alive)
    return True


def _scratch_of(folder: str, url: str) -> list[str]:
    """Return the names of the scratch ledgers of a drill, if all of them were made beside this store."""
    try:
        with open(os.path.join(folder, "scratch"), encoding="utf-8") as file:
            told = [line.rstrip("\n").partition(" ") for line in file]
    except (OSError, ValueError):
        return []
    ours = [name for name, _, beside in told if beside == public(url) and _is_scratch(name)]
    return ours if len(ours) == len(told) else []


def _is_scratch(name: str) -> bool:
    return name.startswith("drill_") and name.replace("_", "a").isalnum() and name.isascii()
