"""Ledgers on servers, beside the least that the same driver can do on the same server.

The servers are the ones that the tests use, from wheels, on loopback and on the disk of the benchmark's folder:
PostgreSQL with all settings as they come (so `synchronous_commit` and `fsync` are on), Valkey with `appendonly yes` and
`appendfsync always`.
"""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers import PostgresServer, Server, ValkeyServer, private_folder

from benchmarks import peers
from benchmarks.claims import LEDGER_ID, NO_DBOS, Work, declare
from benchmarks.installation import Installation, finished
from benchmarks.measure import (
    A_SECOND,
    MEGABYTES,
    MILLISECONDS,
    Line,
    Sizes,
    Skipped,
    beside,
    in_turn,
    subfolder,
    within,
)
from ranonce.ledger import OpenLedger
from ranonce.stores import open_store, site_of

WAIT_SECONDS = 20.0
#: A claim and a finish as scripts: the key is free, or nothing is written; then it is the owner's, or nothing is.
BARE_CLAIM = (
    "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end "
    "redis.call('HSET', KEYS[1], 'status', 'running', 'owner', ARGV[1], 'at', redis.call('TIME')[1]) return 1"
)
BARE_FINISH = (
    "if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end "
    "redis.call('HSET', KEYS[1], 'status', 'done', 'ended', redis.call('TIME')[1]) return 1"
)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run a server as long as it is needed."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _postgres(folder: str) -> PostgresServer:
    return PostgresServer(_own(folder, "postgres"))


def _valkey(folder: str) -> ValkeyServer:
    return ValkeyServer(_own(folder, "valkey"))


def _own(folder: str, name: str) -> pathlib.Path:
    """Return a folder for a server, which does not run as root and must pass through those above."""
    for above in (folder, os.path.dirname(folder)):
        os.chmod(above, 0o711)  # noqa: S103 - to pass through, not to look in
    return private_folder(pathlib.Path(folder) / name)


def _work(url: str, state: str) -> Work:
    site_of(url, wait_seconds=WAIT_SECONDS).create(LEDGER_ID)
    return Work.over(OpenLedger(open_store(url, wait_seconds=WAIT_SECONDS), folder=state))


class RawPostgres:
    """The limit on PostgreSQL: one INSERT a transaction, of a row with two texts, and one SELECT by its key."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._db = psycopg.connect(url, autocommit=True)
        self._db.execute("CREATE TABLE raw (key text PRIMARY KEY, owner text, at timestamptz)")

    def insert(self, rows: int) -> float:
        """Return durable INSERTs a second."""
        named = [(os.urandom(16).hex(), os.urandom(16).hex()) for _ in range(rows)]
        began = time.perf_counter()
        for values in named:
            self._db.execute("INSERT INTO raw VALUES (%s, %s, now())", values)
        return rows / (time.perf_counter() - began)

    def select(self, times: int) -> float:
        """Return SELECTs a second of one column by the key."""
        key = os.urandom(16).hex()
        self._db.execute("INSERT INTO raw VALUES (%s, 'somebody', now())", (key,))
        began = time.perf_counter()
        for _ in range(times):
            row = self._db.execute("SELECT owner FROM raw WHERE key = %s", (key,)).fetchone()
        rate = times / (time.perf_counter() - began)
        assert row == ("somebody",)
        return rate

    def wal_bytes(self) -> int:
        """Return how much has ever been written to the server's log."""
        row = self._db.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def settle(self) -> None:
        """Do now what the server would do by itself at some time: it writes to the log, too."""
        self._db.execute("VACUUM")
        self._db.execute("CHECKPOINT")


class BareScripts:
    """The limit on Valkey: a script for a claim and one for a finish, of one hash."""

    def __init__(self, url: str) -> None:
        import redis

        db = redis.Redis.from_url(url)
        self._claim, self._finish = db.register_script(BARE_CLAIM), db.register_script(BARE_FINISH)

    def claim_and_finish(self, runs: int) -> float:
        """Return runs a second."""
        named = [(f"{{bare}}:{os.urandom(16).hex()}", os.urandom(16).hex()) for _ in range(runs)]
        began = time.perf_counter()
        for key, owner in named:
            assert self._claim(keys=[key], args=[owner]) == 1
            assert self._finish(keys=[key], args=[owner]) == 1
        return runs / (time.perf_counter() - began)


def postgres(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Claim and finish, and duplicate checks, in process, over one connection; both events and the journal written."""
    with running(_postgres(folder)) as server:
        assert isinstance(server, PostgresServer)
        ours, raw = _work(server.url("bench"), subfolder(folder, "state")), RawPostgres(_bare(server))
        ours.claim_and_finish(sizes.runs)
        rates = in_turn(sizes.rounds, lambda: ours.claim_and_finish(sizes.runs), lambda: raw.insert(sizes.runs))
        yield beside("PostgreSQL: claim + finish, beside one durable INSERT", A_SECOND, *rates, at_least=0.40)
        name = "PostgreSQL: claim + finish, beside DBOS"
        if not peers.has_dbos():
            yield Skipped(name, NO_DBOS)
        else:
            with peers.Dbos(_bare(server).replace("postgresql:", "postgresql+psycopg:")) as dbos:
                runs = sizes.peer_runs
                rates = in_turn(sizes.rounds, lambda: ours.claim_and_finish(runs), lambda: dbos.claim_and_finish(runs))
            yield beside(name, A_SECOND, *rates, at_least=2)
        checks = max(1, sizes.checks // 10)
        rates = in_turn(sizes.rounds, lambda: ours.check_again(checks), lambda: raw.select(checks))
        yield beside("PostgreSQL: duplicate check, no skip recorded", A_SECOND, *rates, at_least=0.4)
        yield _log_of_duplicates(ours, raw, checks)


def _log_of_duplicates(ours: Work, raw: RawPostgres, checks: int) -> Line:
    ask = ours.done_already()
    raw.settle()
    ours.ledger.claim(ask)  # whoever reads a row first notes that its writer has committed
    before = raw.wal_bytes()
    for _ in range(checks):
        ours.ledger.claim(ask)
    # Ten bytes a check would be a record each; what the server notes for itself meanwhile is a page at most.
    return within(f"PostgreSQL: written to the log by {checks:,} of them", MEGABYTES, raw.wal_bytes() - before, 8192.0)


def valkey(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Claim and finish in process, over one connection, every write synced."""
    with running(_valkey(folder)) as server:
        assert isinstance(server, ValkeyServer)
        ours, bare = _work(server.url("bench"), subfolder(folder, "state")), BareScripts(_bare(server))
        ours.claim_and_finish(sizes.runs)
        rates = in_turn(
            sizes.rounds, lambda: ours.claim_and_finish(sizes.runs), lambda: bare.claim_and_finish(sizes.runs)
        )
        yield beside("Valkey: claim + finish, beside two bare scripts", A_SECOND, *rates, at_least=0.60)


def processes(folder: str, sizes: Sizes) -> Iterator[Line]:
    """`ranonce run` from the start of its process to its end, beside the least wrapper with the same driver."""
    installed = Installation(folder, with_drivers=True)
    for name, server in (("PostgreSQL", _postgres(folder)), ("Valkey", _valkey(folder))):
        with running(server):
            if isinstance(server, PostgresServer):
                import psycopg

                with psycopg.connect(_bare(server), autocommit=True) as db:
                    db.execute("CREATE TABLE least (key text PRIMARY KEY, status text, started timestamptz,"
                               " finished timestamptz)")  # fmt: skip
            bench = _Processes(installed, server, 2 * sizes.starts + 2)
            bench.run()
            bench.least()
            ours, least, again = in_turn(sizes.starts, bench.run, bench.least, bench.run_again)
            yield beside(f"{name}: ranonce run j --every day -- true", MILLISECONDS, ours, least, at_most=1.25)
            yield beside(f"{name}: the same, already done", MILLISECONDS, again, least, at_most=1.25)


class _Processes:
    """Both programs on one server; each call works for another job, unless it is to be done already."""

    def __init__(self, installed: Installation, server: Server, jobs: int) -> None:
        url = server.url("processes")  # type: ignore[attr-defined]
        site_of(url, wait_seconds=WAIT_SECONDS).create(LEDGER_ID)
        ledger = OpenLedger(open_store(url, wait_seconds=WAIT_SECONDS), folder=None)
        self._jobs = [f"job-{number:04}" for number in range(jobs)]
        for job in self._jobs:
            declare(ledger, job)
        self._installed = installed
        self._bare = _bare(server)
        state = subfolder(str(server.folder), "state")  # each ledger's own: they have one id
        self._environment = installed.environment(RANONCE_STORE=url, RANONCE_LEDGER=LEDGER_ID, XDG_STATE_HOME=state)

    def run(self) -> float:
        self._command = [self._installed.ranonce, "run", self._jobs.pop(), "--every", "hour", "--", "true"]
        return self.run_again()

    def run_again(self) -> float:
        return finished(self._command, self._environment).seconds

    def least(self) -> float:
        command = [self._installed.least_server_wrapper, self._bare, os.urandom(16).hex(), "true"]
        return finished(command, self._environment).seconds


def _bare(server: Server) -> str:
    return str(server.url("bare")).partition("?")[0]  # type: ignore[attr-defined]
