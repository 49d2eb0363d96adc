"""`ranonce` with one thing broken, so that a drill has something to find: `faulty.py FAULT MODULE ARGUMENTS…`."""

from __future__ import annotations

import os
import runpy
import sqlite3
import sys
import time

from ranonce import ledger, lifecycle, messages
from ranonce.lifecycle import BUSY, CLAIM, DONE, FAILED, FINISH, MINE, RENEW, TABLE, Sighting
from ranonce.stores.sqlite import effects
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


def messages_apart():
    """Messages are committed after the work that they come from."""
    commit = sqlite.SqliteStore.commit

    def apart(self, decision, key, after):
        written = commit(self, decision.replace(messages=()), key, after)
        with self.transaction():
            effects.put_effects(self._db, decision.messages if written is not None else (), ())
        return written

    sqlite.SqliteStore.commit = apart


def messages_first():
    """Messages are committed before the work that they come from."""
    commit = sqlite.SqliteStore.commit

    def apart(self, decision, key, after):
        with self.transaction():
            effects.put_effects(self._db, decision.messages, ())
        return commit(self, decision.replace(messages=()), key, after)

    sqlite.SqliteStore.commit = apart


def stale_messages_go_out():
    """The messages of an attempt that has lost its run are released with its verdict."""
    finish = ledger.OpenLedger.finish

    def released(self, held, verdict):
        refusal = finish(self, held, verdict)
        if refusal is not None:
            self.store.commit(lifecycle.Decision("stale", messages=verdict.messages, guarded=False), held.key, -1)
        return refusal

    ledger.OpenLedger.finish = released


def failed_messages_go_out():
    """The messages of a failed attempt are released, too."""
    lifecycle._emitted = lambda verdict, known: messages.emitted(verdict.messages, known)


def marks_without_a_claim():
    """Nobody asks whether an attempt that marks an item still has its run."""
    effects.is_fenced = lambda db, claim: True


def sends_before_it_takes():
    """A deliverer sends what is due, and takes it then."""
    from threading import local

    from ranonce.delivery import book, worker

    exchange, take_once = book.Book.exchange, worker.Worker._take
    here = local()  # a worker has a thread of its own

    def takes(self, *arguments, **named):
        here.worker = self
        return take_once(self, *arguments, **named)

    def sends(self, moves, take, sender):
        if take is not None:
            for _ in here.worker._sender.send([move.now for move in take.moves], lambda message: True):
                pass
        return exchange(self, moves, take, sender)

    worker.Worker._take, book.Book.exchange = takes, sends


def takes_what_others_have():
    """A deliverer takes what another has, and what is due, alike."""
    from ranonce.stores.sqlite import outbox

    effects.SQL["due"] = effects.SQL["due"].replace("state = 'pending'", "state IN ('pending', 'sending')")
    assert "'sending'" in effects.SQL["due"]
    outbox.SQL = effects.SQL


def dead_means_not_begun():
    """What a dead deliverer had is taken for not begun."""
    messages.lapsed = lambda message, route, wall, chance: messages._settled(
        message, messages.Answer(messages.NOT_BEGUN), route, wall, chance
    )


def dead_means_sent():
    """What a dead deliverer had is taken for sent."""
    messages.lapsed = lambda message, route, wall, chance: messages._settled(
        message, messages.Answer(messages.DELIVERED), route, wall, chance
    )


def key_of_the_try():
    """Each try has a key of its own."""
    from ranonce.delivery.base import Spec

    key = Spec.key
    Spec.key = lambda self, message: f"{key(self, message)}.{message.tries}"


def never_unsure():
    """What may have been received is sent again, wherever it goes."""
    messages._doubtful = lambda message, route, wall: False


def settles_any_state():
    """An answer counts whatever has become of its message since."""
    messages.settle = lambda current, taken, answer, route, wall, chance: messages._settled(
        current, answer, route, wall, chance
    )


def gives_up_after_one_try():
    """What may have been received is never tried again, though it would do no harm."""
    messages._doubtful = lambda message, route, wall: message.doubt_since is not None


def no_late_proof():
    """An answer that comes late is no proof."""
    settle = messages.settle
    messages.settle = lambda current, taken, *rest: settle(current, taken, *rest) if current.sender else None


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
