"""A world: a home, a ledger, and the command line run in it as a scheduler would, by real processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranonce.stores import open_store
from ranonce.stores.base import Store
from ranonce.storeurl import masked, sqlite_path
from ranonce.timefmt import format_instant
from tests.ledgers import Asked

# Started by nohup or in the background, these are ignored, and so they would be in every command under test.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

RANONCE = (sys.executable, "-m", "ranonce")
ELSEWHERE = Path(__file__).parent / "elsewhere"  # what makes a command's host another one
NOON = "2026-11-09T12:00:00Z"  # of the window 2026-11-09, unless a test says otherwise

#: The effect that must happen once: one line in a file, saying which attempt of which window made it.
EFFECT = 'echo "$RANONCE_JOB $RANONCE_WINDOW $RANONCE_ATTEMPT" >> "$EFFECTS"'
#: The same, then work that goes on until the test takes the file `hold` away.
HELD_EFFECT = f'{EFFECT}; echo $$ > "$PIDS/child"; while test -e "$PIDS/hold"; do sleep 0.02; done'


def wait_until(fact: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Return the first true value of `fact`; fail when it does not come in time."""
    give_up = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < give_up, f"waited {seconds} seconds in vain"
        time.sleep(0.01)
    return found


def instant_in(seconds: float) -> str:
    """Return the instant so many seconds from now, as text."""
    return format_instant(int(time.time() + seconds))


def lives(pid: int) -> bool:
    """Tell whether a process does anything any more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


@dataclass
class Ran:
    """What an invocation said."""

    exit: int  # negative: died by that signal
    out: bytes
    error: bytes

    @property
    def err(self) -> str:
        return self.error.decode("utf-8", "backslashreplace")

    @property
    def receipts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]

    @property
    def receipt(self) -> dict[str, Any]:
        """The only receipt."""
        assert len(self.receipts) == 1, self.err
        return self.receipts[0]

    @property
    def sentence(self) -> str:
        """The only line for a person, which is no traceback."""
        assert "Traceback" not in self.err, self.err
        lines = [line for line in self.err.splitlines() if not line.startswith("{")]
        assert len(lines) == 1, self.err
        return lines[0]

    def said(self) -> tuple[int, str, str | None]:
        """Exit status, event and reason of the only receipt."""
        return self.exit, self.receipt["event"], self.receipt.get("reason")


class Invocation:
    """A `ranonce` that is at work."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def ends(self, seconds: float = 30.0, given: bytes | None = None) -> Ran:
        """Wait for its end; `given` is written to its standard input, if that is a pipe."""
        out, err = self.process.communicate(given, timeout=seconds)
        return Ran(self.process.returncode, out, err)


class World(Asked):
    """A home with a ledger of its own, and everything that was started there.

    The ledger is a file of this world unless `url` names another store.
    """

    def __init__(self, root: Path, url: str | None = None) -> None:
        self.root = root
        self.url = url or f"sqlite:///{root}/ledger/ledger.db"
        self.effects_file = root / "effects"
        self.pids = root / "pids"
        self.config = root / "config" / "ranonce" / "ranonce.toml"
        for folder in ("home", "config", "state", "pids", "work"):
            (root / folder).mkdir(mode=0o700)
        self.mark = f"RANONCE_TEST_WORLD={root}"
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RANONCE_", "XDG_"))},
            "HOME": str(root / "home"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_STATE_HOME": str(root / "state"),
            "EFFECTS": str(self.effects_file),
            "PIDS": str(self.pids),
            "RANONCE": " ".join(RANONCE),  # for shell scripts
            "RANONCE_TEST_WORLD": str(root),
        }
        #: A short lease, but one that a busy machine can keep: where a server grants it, who renews too late stops.
        self.lease = "1s" if sqlite_path(self.url) else "3s"
        self.ledger = ""
        self._started: list[Invocation] = []
        self._opened: list[Store] = []

    # --- the command line ---

    def init(self, *options: str) -> None:
        """Make the ledger, as `ranonce init` does, without the start of a process."""
        from ranonce.cli import init
        from ranonce.cli.options import parse

        words = ["--accept-volatile", "--json", *options]
        if masked(self.url) == self.url:
            words += ["--store", self.url]
        else:
            self.env["RANONCE_STORE"] = self.url  # a password comes from the environment only, now and later
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            assert init.run(parse(init.COMMAND, words), self.env) == 0
        self.ledger = json.loads(told.getvalue())["ledger"]

    def wait_for_the_store(self, seconds: float) -> None:
        """Let every command wait no longer for the store."""
        text = self.config.read_text().replace("[ledger]\n", f'[ledger]\nstore_wait = "{seconds}s"\n')
        self.config.write_text(text)

    def start(self, *words: str, env: dict[str, str] | None = None, **popen: Any) -> Invocation:
        """Start `ranonce WORDS…`; it is killed with all its descendants when the test ends."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {"cwd": self.root / "work", **streams, **popen}
        process = subprocess.Popen((*RANONCE, *words), env={**self.env, **(env or {})}, **options)
        self._started.append(Invocation(process))
        return self._started[-1]

    def ranonce(self, *words: str, env: dict[str, str] | None = None, seconds: float = 60.0, **popen: Any) -> Ran:
        """Run `ranonce WORDS…` to its end."""
        return self.start(*words, env=env, **popen).ends(seconds)

    def words(
        self, *options: str, job: str = "job", every: str | None = "day", now: str | None = NOON, sh: str = EFFECT
    ) -> tuple[str, ...]:
        """Return the words of a `ranonce run` of a shell command."""
        schedule = ("--every", every) if every else ()
        clock = ("--now", now) if now else ()
        return ("run", job, *schedule, *clock, *options, "--", "/bin/sh", "-c", sh)

    def run(
        self,
        *options: str,
        job: str = "job",
        every: str | None = "day",
        now: str | None = NOON,
        sh: str = EFFECT,
        **how: Any,
    ) -> Ran:
        """Run `ranonce run JOB` with a shell command to its end."""
        return self.ranonce(*self.words(*options, job=job, every=every, now=now, sh=sh), **how)

    def hold(self, *options: str, sh: str = HELD_EFFECT, **how: Any) -> tuple[Invocation, int]:
        """Start a run whose command works until `let_go`; return it and the command's pid once it works."""
        named = {name: how.pop(name) for name in ("job", "every", "now") if name in how}
        child = self.pids / "child"
        child.unlink(missing_ok=True)
        (self.pids / "hold").touch()
        invocation = self.start(*self.words(*options, sh=sh, **named), **how)
        return invocation, int(wait_until(lambda: child.exists() and child.read_text().strip()))

    def let_go(self) -> None:
        """Let the held commands end."""
        (self.pids / "hold").unlink(missing_ok=True)

    def shell(self, script: str, given: bytes = b"") -> Ran:
        """Run a shell script that calls `$RANONCE`, with `given` as its standard input."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            env=self.env,
            cwd=self.root / "work",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(Invocation(process))
        return self._started[-1].ends(given=given)

    def at_once(self, count: int, *words: str, seconds: float = 60.0) -> list[Ran]:
        """Run the same words in so many processes at the same time."""
        started = [self.start(*words) for _ in range(count)]
        return [invocation.ends(seconds) for invocation in started]

    # --- the ledger's file, where it is one ---

    @property
    def store(self) -> Path:
        """The ledger's file."""
        path = sqlite_path(self.url)
        assert path is not None, f"{masked(self.url)} is no file"
        return Path(path)

    @store.setter
    def store(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask or change the ledger's file directly."""
        with contextlib.closing(sqlite3.connect(self.store, timeout=20, isolation_level=None)) as db:
            return db.execute(statement, values).fetchall()

    # --- what became of it ---

    def effects(self) -> list[str]:
        """Return the effects that happened, oldest first."""
        return self.effects_file.read_text().splitlines() if self.effects_file.exists() else []

    @property
    def folder(self) -> Path:
        """The ledger's state folder on this host."""
        return self.root / "state" / "ranonce" / self.ledger

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    def attempt_files(self) -> list[Path]:
        return sorted((self.folder / "attempts").glob("*"))

    def another_host(self) -> dict[str, str]:
        """Return an environment that shares the store with this host, and nothing else: nobody is seen from there."""
        path = [str(ELSEWHERE), *filter(None, [self.env.get("PYTHONPATH")])]
        return {**self.another_state_folder(), "PYTHONPATH": os.pathsep.join(path)}

    def another_state_folder(self) -> dict[str, str]:
        """Return an environment with a state folder of its own, on this host."""
        state = self.root / "state of another host"
        (state / "ranonce" / self.ledger).mkdir(parents=True, exist_ok=True)
        return {"XDG_STATE_HOME": str(state)}

    # --- processes ---

    def processes(self) -> list[int]:
        """Return everything that descends from what this test started and still works."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdecimal() or int(entry) == os.getpid():
                continue
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if self.mark.encode() in environment.split(b"\0") and lives(int(entry)):
                found.append(int(entry))
        return found

    def no_process_is_left(self) -> bool:
        return not self.processes()

    def kept_open(self) -> Store:
        """Open the store until the test ends."""
        self._opened.append(open_store(self.url, wait_seconds=20))
        return self._opened[-1]

    def end(self) -> None:
        """Kill what still works, and fail the test for it."""
        self.let_go()
        for store in self._opened:
            store.close()
        left = []
        with contextlib.suppress(AssertionError):
            wait_until(self.no_process_is_left, 2)
        for _ in range(10):
            alive = self.processes()
            left += alive
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not alive:
                break
            time.sleep(0.02)
        for invocation in self._started:
            process = invocation.process
            process.wait(10)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        assert not left, f"the test left processes behind: {sorted(set(left))}"
