"""`ranonce run` as a scheduler starts it, from the start of its process to its end, beside the least wrapper.

The least wrapper is `least_wrapper.py`: a durable claim, a child, a durable done, in the standard library. Both are
console scripts of the same virtual environment, run `true`, and find their ledger by the same means: an argument there,
RANONCE_STORE and RANONCE_LEDGER here. The journal is on.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator

from benchmarks.claims import LEDGER_ID
from benchmarks.installation import Finished, Installation, finished, start
from benchmarks.measure import MILLISECONDS, TIMES, Line, Sizes, beside, in_turn, subfolder, within
from ranonce.ledger import OpenLedger
from ranonce.stores.base import Job
from ranonce.stores.sqlite.create import create
from ranonce.stores.sqlite.store import SqliteStore
from ranonce.windows import Schedule

EX_BUSY = 75

CONFIGURATION = """\
[ledger]
store = "sqlite:///{path}"
id = "{ledger}"

[jobs.nightly-report]
every = "0 2 * * *"
command = ["/usr/local/bin/report.sh", "{{window}}"]
timeout = "2h"

[jobs.{job}]
every = "day"
command = ["true"]
timeout = "2h"
max_attempts = 5
grace_kill = "30s"
"""


class Bench:
    """Both programs over files of their own. Each call works for another job, unless it is to be done already.

    The jobs are declared and the ledger is closed beforehand: as under cron, nobody has it open when a process comes.
    """

    def __init__(self, folder: str, jobs: int) -> None:
        self.installed = Installation(folder)
        self.ledger = os.path.join(subfolder(folder, "ledger"), "ledger.db")
        self._jobs = [f"job-{number:04}" for number in range(jobs)]
        _declare_all(self.ledger, self._jobs)
        self._least = [self.installed.least_wrapper, os.path.join(subfolder(folder, "least"), "runs.db")]
        self._config = os.path.join(folder, "ranonce.toml")
        self.by_variables = self.installed.environment(
            RANONCE_STORE=f"sqlite:///{self.ledger}", RANONCE_LEDGER=LEDGER_ID
        )
        self.by_file = self.installed.environment(RANONCE_CONFIG=self._config)
        self._keys = itertools.count()

    def least(self) -> float:
        """Return the seconds of the least wrapper, for new work."""
        self._least_command = [*self._least, f"job:{next(self._keys)}", "true"]
        return self.least_again()

    def least_again(self) -> float:
        """Return the seconds of the least wrapper, for the work it did last."""
        return finished(self._least_command, self.by_variables).seconds

    def run(self) -> float:
        """Return the seconds of `ranonce run j --every day -- true`, for new work."""
        self._command = [self.installed.ranonce, "run", self._jobs.pop(), "--every", "day", "--", "true"]
        return self.run_again()

    def run_again(self) -> float:
        """Return the seconds of the same for the work it did last."""
        return finished(self._command, self.by_variables).seconds

    def run_declared(self) -> float:
        """Return the seconds of `ranonce run j`, a job of the configuration file, for new work."""
        job = self._jobs.pop()
        with open(self._config, "w", encoding="utf-8", opener=_private) as file:
            file.write(CONFIGURATION.format(path=self.ledger, ledger=LEDGER_ID, job=job))
        return finished([self.installed.ranonce, "run", job], self.by_file).seconds

    def crowd(self, processes: int) -> float:
        """Start so many `ranonce run` for one new window at once; return the seconds until the last has answered."""
        command = [self.installed.ranonce, "run", self._jobs.pop(), "--every", "day", "--", "true"]
        return _together(processes, lambda: start(command, self.by_variables), (0, EX_BUSY))

    def least_crowd(self, processes: int) -> float:
        """Do the same with the least wrapper."""
        command = [*self._least, f"job:{next(self._keys)}", "true"]
        return _together(processes, lambda: start(command, self.by_variables), (0,))


def _declare_all(path: str, jobs: list[str]) -> None:
    create(path, LEDGER_ID)
    ledger = OpenLedger(SqliteStore(path), folder=None)
    for name in jobs:
        ledger.declare(Job(name, 0, time.time(), 3600.0, 3), Schedule("day"), 0, now=time.time(), change=False)
    ledger.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _together(processes: int, one: Callable[[], int], exits: tuple[int, ...]) -> float:
    began = time.perf_counter()
    pids = [one() for _ in range(processes)]
    ended = [Finished(pid, began) for pid in pids]
    assert all(end.exit in exits for end in ended), [end.exit for end in ended]
    return max(end.seconds for end in ended)


def whole_process(folder: str, sizes: Sizes) -> Iterator[Line]:
    """One process at a time, for new work and for work that is done."""
    bench = Bench(folder, 2 * sizes.starts + 2)
    for warm_up in (bench.least, bench.run, bench.run_declared):
        warm_up()
    least, new, least_again, again, declared = in_turn(
        sizes.starts, bench.least, bench.run, bench.least_again, bench.run_again, bench.run_declared
    )
    yield beside("ranonce run j --every day -- true", MILLISECONDS, new, least, at_most=1.8)
    yield beside("the same, already done", MILLISECONDS, again, least_again, at_most=1.8)
    yield beside("ranonce run, with a configuration file", MILLISECONDS, declared, least, at_most=2.2)


def many_on_one_key(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Forty triggers for one window at once: one works, the others are told so. Nobody waits much longer than they
    would have to for the processor alone."""
    bench = Bench(folder, sizes.crowds + 1)
    bench.run()
    bench.least()  # alone: WAL cannot be switched on by several at once
    ours, least = in_turn(sizes.crowds, lambda: bench.crowd(sizes.crowd), lambda: bench.least_crowd(sizes.crowd))
    yield beside(f"{sizes.crowd} processes on one key, slowest answer", MILLISECONDS, ours, least, at_most=3)
    with sqlite3.connect(bench.ledger) as ledger:
        query = "SELECT count(*) FROM events WHERE event = 'start'"
        doubled = ledger.execute(query).fetchone()[0] - sizes.crowds - 1
    ledger.close()
    yield within(f"{sizes.crowd} processes on one key, started more than once", TIMES, doubled, 0)
