"""Several processes that write at once, beside one that has the ledger to itself and beside SQLite's own waiting."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.claims import LEDGER_ID, Work, verdict
from benchmarks.measure import A_SECOND, MILLISECONDS, TIMES, Line, Sizes, beside, in_turn, subfolder, within
from ranonce.errors import StoreUnavailable
from ranonce.lifecycle import Claim
from ranonce.stores.sqlite.create import create

ROUNDS = 2
ALONE = 0.4  # of the time that many get, for one process alone: it needs less to have a steady rate


@dataclass
class Tally:
    """What one process has done: runs, its seconds for them, its longest transaction, and how often no answer came."""

    runs: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    errors: int = 0

    def timed(self, transaction: Callable[..., Any], *values: object) -> Any:
        """Do one transaction and note how long it took, its wait included."""
        began = time.perf_counter()
        try:
            return transaction(*values)
        except (StoreUnavailable, sqlite3.OperationalError):
            self.errors += 1
            return None
        finally:
            self.longest = max(self.longest, time.perf_counter() - began)


def ledger_writer(folder: str, job: str, seconds: float, begin: Any, tally: Tally) -> None:
    """Claim and finish windows of an own job in the common ledger, each with a message."""
    work = Work(os.path.join(folder, "ledger", "ledger.db"), os.path.join(folder, "state"), job)
    begin.wait()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        claim = tally.timed(work.ledger.claim, work.ask())
        if isinstance(claim, Claim):
            tally.timed(work.ledger.finish, claim, verdict(claim, emits=True))
            tally.runs += 1
    tally.seconds = time.perf_counter() - began


def plain_writer(folder: str, job: str, seconds: float, begin: Any, tally: Tally) -> None:
    """Write two transactions a run as everybody does: BEGIN IMMEDIATE, one statement, COMMIT; SQLite's busy handler
    waits up to 30 s. WAL, synchronous=FULL."""
    db = sqlite3.connect(os.path.join(folder, "plain.db"), isolation_level=None, timeout=30)
    db.execute("PRAGMA synchronous = FULL")

    def write(statement: str, key: str) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute(statement, (key,))
        db.execute("COMMIT")

    begin.wait()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        key = f"{job}:{tally.runs}"
        tally.timed(write, "INSERT INTO runs VALUES (?, 'running')", key)
        tally.timed(write, "UPDATE runs SET status = 'done' WHERE key = ?", key)
        tally.runs += 1
    tally.seconds = time.perf_counter() - began


Writer = Callable[[str, str, float, Any, Tally], None]


def _one_writer(writer: Writer, folder: str, job: str, seconds: float, begin: Any, results: Any) -> None:
    tally = Tally()
    writer(folder, job, seconds, begin, tally)
    results.put(tally)


class Processes:
    """Starts writers in real processes that begin in the same moment, and keeps what they tell."""

    def __init__(self, writer: Writer, folder: str, processes: int, seconds: float) -> None:
        self.tallies: list[Tally] = []
        self._writer = writer
        self._folder = folder
        self._processes = processes
        self._seconds = seconds
        self._context = multiprocessing.get_context("spawn")

    def rate(self) -> float:
        """Let them work once, each under a name nobody had before; return runs a second, of all together."""
        begin, results = self._context.Barrier(self._processes), self._context.Queue()
        common = (self._seconds, begin, results)
        jobs = [os.urandom(8).hex() for _ in range(self._processes)]
        working = [
            self._context.Process(target=_one_writer, args=(self._writer, self._folder, job, *common), daemon=True)
            for job in jobs
        ]
        for process in working:
            process.start()
        tallies = [results.get(timeout=self._seconds + 120) for _ in working]
        for process in working:
            process.join()
        self.tallies += tallies
        return float(sum(tally.runs / tally.seconds for tally in tallies))

    @property
    def longest(self) -> float:
        """The longest transaction of any of them, in seconds."""
        return max(tally.longest for tally in self.tallies)


def many_at_once(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Eight processes, each with a job of its own, in one ledger."""
    create(os.path.join(subfolder(folder, "ledger"), "ledger.db"), LEDGER_ID)
    subfolder(folder, "state")
    plain_db = sqlite3.connect(os.path.join(folder, "plain.db"))
    plain_db.execute("PRAGMA journal_mode = WAL")
    plain_db.execute("CREATE TABLE runs (key TEXT PRIMARY KEY, status TEXT) WITHOUT ROWID")
    plain_db.close()

    seconds, many = sizes.seconds / ROUNDS, sizes.processes
    ours = Processes(ledger_writer, folder, many, seconds)
    alone = Processes(ledger_writer, folder, 1, seconds * ALONE)
    plain = Processes(plain_writer, folder, many, seconds)
    together, one, _ = in_turn(ROUNDS, ours.rate, alone.rate, plain.rate)
    yield beside(f"{many} processes at once, beside one alone", A_SECOND, together, one, at_least=0.7)
    yield beside(
        f"{many} processes: longest wait, beside SQLite's own waiting",
        MILLISECONDS,
        [ours.longest],
        [plain.longest],
        at_most=0.2,
    )
    errors = sum(tally.errors for tally in ours.tallies)
    yield within(f"{many} processes: locked, or no answer in time", TIMES, errors, 0)
