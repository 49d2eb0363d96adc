"""What tests of imports do: write a file, bring it into a ledger, look at what became of it."""

from __future__ import annotations

import json

from ranonce.exchange.importing import Import, Report, rehearse
from ranonce.exchange.reading import Source
from ranonce.folding import disagreements
from ranonce.ledger import OpenLedger
from ranonce.merging import folded
from ranonce.stores.memory.store import MemoryStore
from ranonce.timefmt import parse_instant

NOW = parse_instant("2026-11-09T12:00:00Z")
BORN = parse_instant("2026-11-09T11:00:00Z")


def empty(**clocks: object) -> OpenLedger:
    """A fresh ledger in memory."""
    wall = [BORN]
    store = MemoryStore("f" * 32, wall=lambda: wall[0], **clocks)
    wall[0] = NOW
    return OpenLedger(store, folder=None)


def brought(ledger: OpenLedger, path: object, **how: object) -> Report:
    """Import a file, and make sure that rows and events tell the same."""
    report = Import(ledger, Source(str(path), NOW, **how)).carry_out()
    whole(ledger)
    return report


def rehearsed(ledger: OpenLedger, path: object, **how: object) -> Report:
    """Rehearse an import; it must not write anything."""
    before = everything(ledger)
    report = rehearse(ledger, Source(str(path), NOW, **how))
    assert everything(ledger) == before
    return report


def whole(ledger: OpenLedger) -> None:
    upkeep = ledger.store.upkeep()
    events = list(upkeep.all_events())
    for run in upkeep.all_runs():
        assert list(disagreements(run, folded(each for each in events if each.key == run.key))) == [], run


def everything(ledger: OpenLedger) -> tuple[object, ...]:
    """All that is in a ledger, without the locks' counters."""
    store, upkeep = ledger.store, ledger.store.upkeep()
    jobs = [job.replace(version=0) for job in store.jobs()]
    schedules = [store.schedules(job.name) for job in jobs]
    stones = [store.tombstones(job.name, -(1 << 60), 1 << 60) for job in jobs]
    messages = [message.replace(seq=None) for message in upkeep.all_messages()]  # each ledger counts its own
    effects = (list(upkeep.all_steps()), messages)
    return (jobs, schedules, stones, store.gates(), list(upkeep.all_runs()), list(upkeep.all_events()), *effects)


def states(ledger: OpenLedger) -> dict[str, tuple[str, int]]:
    """Status and attempt of each window."""
    return {run.key.window: (run.status, run.attempt) for run in ledger.store.upkeep().all_runs()}


def story(ledger: OpenLedger, window: str) -> list[tuple[str, int]]:
    """Event and attempt, in order, of a window."""
    events = ledger.store.upkeep().all_events()
    return [(event.event, event.attempt) for event in events if event.key.window == window]


def said(event: str, window: str, ts: str | None = None, **more: object) -> str:
    """A line of a hand-made ledger."""
    told = {"event": event, "window": window, "ts": ts or f"{window[:10]}T05:00:00Z", **more}
    return json.dumps(told, separators=(",", ":"))
