"""`ranonce` with one thing broken, so that a drill has something to find: `faulty.py FAULT MODULE ARGUMENTS…`."""

from __future__ import annotations

import os
import runpy
import sqlite3
import sys
import time

from ranonce import ledger, lifecycle
from ranonce.lifecycle import BUSY, CLAIM, DONE, FAILED, FINISH, MINE, RENEW, TABLE, Sighting
from ranonce.stores.sqlite import store as sqlite
from ranonce.stores.sqlite.file import SQL

DAY_OF_THE_ACCIDENT = 1


def no_version_guard():
    """Two decisions on one snapshot are both written."""
    SQL["move_version"] = SQL["move_version"].replace("version = ?", "? IS NOT NULL")


def early():
    """No lease is respected."""
    lifecycle.lease_lives = lambda lease, snap, sighting: False


def never_over():
    """No lease ever ends."""
    lifecycle.lease_lives = lambda lease, snap, sighting: True


def stale():
    """Whoever has ever had a run may finish it."""
    lifecycle._owns = lambda run, held: True
    TABLE[BUSY][FINISH] = TABLE[MINE][FINISH]
    SQL["settle_run"] = SQL["settle_run"].replace("attempt = ? AND owner = ?", "? IS NOT NULL AND ? IS NOT NULL")


def revived():
    """Whoever had a claim may renew it when another has the run, and nobody hears of a late verdict."""
    TABLE[BUSY][RENEW] = TABLE[MINE][RENEW]


def forgotten_owner():
    """Nobody finds its own claim again."""
    situation = lifecycle.situation
    lifecycle.situation = lambda snap, owner, attempt, seen: situation(snap, owner if attempt else "?", attempt, seen)


def outcomes_not_settled():
    """An outcome that waits on this host is not looked for."""
    ledger.OpenLedger.settle_unrecorded = lambda self: []


def missing_file_is_death():
    """An attempt without a lock file is taken for dead."""
    ledger.OpenLedger._sightings = lambda self, snap, asker: {snap.run.owner: Sighting("dead")} if snap.run else {}


def any_ledger():
    """Every ledger is taken for the one that is meant."""
    identity = sqlite.SqliteStore.identity
    sqlite.SqliteStore.identity = lambda self: identity(self).replace(ledger=os.environ["RANONCE_LEDGER"])


def bare_error():
    """A locked database is a traceback."""
    real = sqlite.translated
    sqlite.translated = lambda error, path: error if isinstance(error, sqlite3.OperationalError) else real(error, path)


def wall_clock():
    """Leases follow the clock that anybody can set."""
    sqlite.boot_clock = lambda: time.time()  # noqa: PLW0108 - it may be set later


def done_is_not_final():
    """What is done is done again, and the events are not asked whether it was."""
    sqlite.SqliteStore.witnessed = lambda self, key, window_start, generation: False
    TABLE[DONE][CLAIM] = TABLE[FAILED][CLAIM]


def hold_is_forgotten():
    """What crashed is tried again, whatever its policy says."""
    lifecycle._crash_ends_it = lambda snap, ask, run, seen: None


def verdict_not_written():
    """A verdict is said to be committed, and was not."""
    commit = sqlite.SqliteStore.commit
    sqlite.SqliteStore.commit = lambda self, decision, key, after: (
        decision.events if decision.drop_lease else commit(self, decision, key, after)
    )


def lost_event():
    """A verdict is written without its event."""
    add = sqlite.SqliteStore._add
    sqlite.SqliteStore._add = lambda self, event: event if event.event == "done" else add(self, event)


def _on_that_day(do):
    from ranonce.drill import worker

    claim = worker._Worker._claim

    def accident(self, asked):
        if asked["day"] == DAY_OF_THE_ACCIDENT and asked.get("together"):
            do()
        return claim(self, asked)

    worker._Worker._claim = accident


def dies():
    """A worker dies of something that nobody foresaw."""

    def fall() -> None:
        raise RuntimeError("the disk fell off")

    _on_that_day(fall)


def hangs():
    """A worker gives no answer."""
    _on_that_day(lambda: time.sleep(3600))


def none():
    """All is well."""


if __name__ == "__main__":
    _, fault, *sys.argv[:] = sys.argv
    globals()[fault]()
    if sys.argv[0] == "ranonce.drill.worker":  # the module that was changed: runpy would make a second
        from ranonce.drill.worker import main

        main(int(sys.argv[1]))
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
