"""Claims, finishes, duplicate checks and renewals through an open ledger, beside the least SQLite can do."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Self

from benchmarks import peers
from benchmarks.measure import A_SECOND, PERCENT_OF_A_CORE, Line, Sizes, Skipped, beside, in_turn, subfolder, within
from ranonce.emission import Emission, message_of
from ranonce.heartbeat import beat_interval
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import DONE, Ask, Claim, Policy, Refusal, RunKey, Verdict
from ranonce.stores.base import Job
from ranonce.stores.sqlite.create import create
from ranonce.stores.sqlite.store import SqliteStore
from ranonce.windows import Schedule, Window

LEDGER_ID = "c0ffee" + "0" * 26
HOURLY = Schedule("hour")
FIRST_START = 946_684_800  # 2000-01-01T00:00:00Z: room for a million windows
HOUR = 3600
LEASE_SECONDS = 300.0  # the default
LIVE_CLAIMS = 1_000
EMITTED = Emission("web", b"x" * 1024, "text/plain")
NO_DBOS = "the package dbos is not installed"


class Work:
    """One job after the other window by window, through a ledger of its own file, journal included."""

    def __init__(self, path: str, state: str, job: str = "job") -> None:
        if not os.path.exists(path):
            create(path, LEDGER_ID)
        self._begin(OpenLedger(SqliteStore(path), folder=state), job)

    @classmethod
    def over(cls, ledger: OpenLedger, job: str = "job") -> Self:
        """Return the same through a ledger that is open."""
        work = cls.__new__(cls)
        work._begin(ledger, job)
        return work

    def _begin(self, ledger: OpenLedger, job: str) -> None:
        self.ledger = ledger
        self.job = job
        self._next = FIRST_START
        declare(self.ledger, job)

    def claim_and_finish(self, runs: int, *, emits: bool = False) -> float:
        """Return runs a second. A run is two transactions: its state, lease and event, each time; with the second one
        comes the message that it `emits`, of 1 KiB."""
        asks = [self.ask() for _ in range(runs)]
        began = time.perf_counter()
        for ask in asks:
            self.one(ask, emits=emits)
        return runs / (time.perf_counter() - began)

    def one(self, ask: Ask, *, emits: bool = False) -> None:
        """Do one run, from claim to verdict."""
        claim = won(self.ledger.claim(ask))
        refused = self.ledger.finish(claim, verdict(claim, emits=emits))
        assert refused is None, refused

    def check_again(self, checks: int) -> float:
        """Return a second's answers to a trigger for a window that is done, when no skip is to be recorded."""
        ask, claim = self.done_already(), self.ledger.claim
        began = time.perf_counter()
        for _ in range(checks):
            answer = claim(ask)
        rate = checks / (time.perf_counter() - began)
        assert isinstance(answer, Refusal) and answer.reason == "done", answer
        return rate

    def done_already(self) -> Ask:
        """Return the request for a window that is done."""
        ask = self.ask().replace(record_skip=False)
        self.one(ask)
        return ask

    def ask(self) -> Ask:
        """Return the request for the next window."""
        window = Window(HOURLY.key(self._next), self._next, self._next + HOUR)
        self._next += HOUR
        return request(self.job, window)


def request(job: str, window: Window) -> Ask:
    """Return what a trigger asks for, with a new owner id."""
    return Ask(
        key=RunKey(job, window.key),
        window=window,
        schedule=1,
        owner=os.urandom(16).hex(),
        lease_seconds=LEASE_SECONDS,
        now=float(window.start),
        served_from=window.start,
        trigger="schedule",
        policy=Policy(),
        host="bench",
        data={"chosen_by": "clock"},
    )


def verdict(claim: Claim, *, emits: bool) -> Verdict:
    """Return what a job that did its work says, now."""
    now = time.time()
    messages = (message_of(EMITTED, claim, now),) if emits else ()
    return Verdict(DONE, now, exit=0, data={"verified": False}, messages=messages)


def declare(ledger: OpenLedger, job: str) -> None:
    """Record an hourly job."""
    ledger.declare(Job(job, 0, time.time(), 3600.0, 3), HOURLY, 0, now=FIRST_START, change=False)


def won(answer: Claim | Refusal) -> Claim:
    """Return the claim, which nobody else wanted."""
    assert isinstance(answer, Claim), answer
    return answer


class RawLoop:
    """The limit of a run: two transactions of one statement each, an INSERT and an UPDATE on a text key.

    WAL and synchronous=FULL; all else is as SQLite has it (pages of 4096 bytes, a checkpoint every 1,000 pages). The
    table is one b-tree. Autocommit: a statement is its own transaction, so there is no BEGIN and COMMIT to pay for.
    """

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(
            "CREATE TABLE runs (key TEXT PRIMARY KEY, status TEXT, owner TEXT, started REAL, finished REAL)"
            " WITHOUT ROWID"
        )
        self._next = FIRST_START

    def claim_and_finish(self, runs: int) -> float:
        """Return runs a second."""
        named = [(self._key(), os.urandom(16).hex()) for _ in range(runs)]
        execute = self._db.execute
        began = time.perf_counter()
        for key, owner in named:
            execute("INSERT INTO runs VALUES (?, 'running', ?, ?, NULL)", (key, owner, time.time()))
            execute("UPDATE runs SET status = 'done', finished = ? WHERE key = ?", (time.time(), key))
        return runs / (time.perf_counter() - began)

    def check_again(self, checks: int) -> float:
        """Return SELECTs a second of one column by the key."""
        key, execute = self._key(), self._db.execute
        execute("INSERT INTO runs VALUES (?, 'done', 'somebody', 0, 0)", (key,))
        began = time.perf_counter()
        for _ in range(checks):
            row = execute("SELECT status FROM runs WHERE key = ?", (key,)).fetchone()
        rate = checks / (time.perf_counter() - began)
        assert row == ("done",)
        return rate

    def _key(self) -> str:
        self._next += HOUR
        return f"job:{HOURLY.key(self._next)}"


def claim_and_finish(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Claim and finish in process, with both events and their lines in the journal."""
    ours, raw = _both(folder)
    emitting, plain, limit = in_turn(
        sizes.rounds,
        lambda: ours.claim_and_finish(sizes.runs, emits=True),
        lambda: ours.claim_and_finish(sizes.runs),
        lambda: raw.claim_and_finish(sizes.runs),
    )
    yield beside("claim + finish with events and a message", A_SECOND, emitting, limit, at_least=0.75)
    yield beside("claim + finish with events and no message", A_SECOND, plain, limit, at_least=0.75)
    name = "claim + finish, beside DBOS on SQLite"
    if not peers.has_dbos():
        yield Skipped(name, NO_DBOS)
        return
    with peers.Dbos(os.path.join(folder, "dbos.db")) as dbos:
        runs = sizes.peer_runs
        rates = in_turn(
            sizes.rounds,
            lambda: ours.claim_and_finish(runs, emits=True),
            lambda: dbos.claim_and_finish(runs),
        )
    yield beside(name, A_SECOND, *rates, at_least=5)


def duplicate_check(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Ask again for a window that is done, without recording the skip: one SELECT on either side."""
    ours, raw = _both(folder)
    rates = in_turn(sizes.rounds, lambda: ours.check_again(sizes.checks), lambda: raw.check_again(sizes.checks))
    yield beside("duplicate check, no skip recorded", A_SECOND, *rates, at_least=0.4)
    name = "duplicate check, beside DBOS on SQLite"
    if not peers.has_dbos():
        yield Skipped(name, NO_DBOS)
        return
    with peers.Dbos(os.path.join(folder, "dbos.db")) as dbos:
        checks = sizes.peer_runs
        rates = in_turn(sizes.rounds, lambda: ours.check_again(checks), lambda: dbos.check_again(checks))
    yield beside(name, A_SECOND, *rates, at_least=20)


def heartbeat(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Renew many live claims, one by one; from the processor time of a renewal follows what 1,000 of them take.

    Each claim is of a job of its own, and renewed at the default interval: every 30 s with a lease of 5 min.
    """
    path = os.path.join(subfolder(folder, "ledger"), "ledger.db")
    create(path, LEDGER_ID)
    ledger = OpenLedger(SqliteStore(path), folder=None)
    window = HOURLY.window_at(FIRST_START)
    claims = []
    for number in range(sizes.renewals):
        declare(ledger, f"job-{number}")
        claims.append(won(ledger.claim(request(f"job-{number}", window))))
    began = time.process_time()
    for claim in claims:
        refused = ledger.renew(claim, "forbid")
        assert refused is None, refused
    renewal = (time.process_time() - began) / len(claims)
    share = renewal * LIVE_CLAIMS / beat_interval(LEASE_SECONDS)
    yield within(f"heartbeat of {LIVE_CLAIMS:,} live claims", PERCENT_OF_A_CORE, share, 0.05)


def _both(folder: str) -> tuple[Work, RawLoop]:
    home, state = subfolder(folder, "ledger"), subfolder(folder, "state")
    return Work(os.path.join(home, "ledger.db"), state), RawLoop(os.path.join(folder, "raw.db"))
