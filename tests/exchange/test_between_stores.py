"""A ledger moves from one kind of store to another and back, and nothing of it is lost or added on the way."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec

import pytest

from ranonce.emission import TEXT, digest_of
from ranonce.exchange.exporting import Wanted, export
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Event, Gate, Retention, Run, RunKey, Step
from ranonce.merging import folded, state_of
from ranonce.messages import DEAD, DROPPED, PENDING, SENT, UNSURE
from ranonce.stores.base import Intake
from tests.contract import stores
from tests.exchange.acting import BORN, brought, everything
from tests.planted import Planted, message_of
from tests.servers import OtherServer, Server

DAY = 86400
#: Stories of a window, as pairs of event and attempt.
STORIES = (
    (("start", 1), ("done", 1)),
    (("start", 1), ("failed", 1), ("lost", 1), ("start", 2), ("done", 2)),
    (("start", 1), ("stopped", 1)),
    (("start", 1), ("held", 1)),
    (("start", 1), ("failed", 1)),
    (("start", 1), ("done", 1), ("rerun", 2), ("start", 2), ("failed", 2), ("start", 3), ("done", 3)),
    (("start", 1), ("expired", 1), ("start", 2), ("done", 2)),
)
#: What a person or a program may have written.
TEXTS = (None, "plain", "two\nlines", "naïve → 名 \U0001f600", "nul \0 and its mark \x1a0", '"quoted" \\u0000', "")


def planted_on(store, *, windows: int) -> None:
    """Plant a ledger in which everything has happened that can be told of one."""
    planted = Planted("hour", store=store, tz="Europe/Berlin")
    chance = random.Random(4)
    schedule = planted.schedules[-1]
    window = schedule.window_at(BORN - windows * 3600 - DAY)
    for _ in range(windows):
        digest = chance.choice(("", "", "", "a" * 64))
        lived(planted, RunKey("j", window.key, digest), window, chance)
        window = schedule.shift(window, chance.choice((1, 1, 1, 2)))
    planted.declare("day", valid_from="2026-11-09T00:00:00Z")
    for number, text in enumerate(TEXTS):
        gate = Gate(f"gate-{number}", BORN + 0.125, text or "", "j", float(BORN - number))
        planted.commit(RunKey("j", "gate"), gates=(gate,))
    store.upkeep().prune("j", Retention(float(BORN - windows * 1800), float(BORN - windows * 2400)))
    left_behind(planted, schedule.window_at(BORN - DAY), chance)


def left_behind(planted, window, chance) -> None:
    """Plant messages in every state that stays what it is, and steps of several generations."""
    messages, steps = [], []
    for number, text in enumerate(TEXTS):
        instants = dict.fromkeys(("taken_at", "doubt_since", "settled_at"), window.start + 0.125 * number)
        body = bytes(chance.randrange(256) for _ in range(1 + 40 * number))
        message = message_of(window, f"own key {number} é/%").replace(
            body=body, digest=digest_of(TEXT, body), item=text or "", error=text, receipt=text, resolution=text
        )
        state = (PENDING, UNSURE, DEAD, SENT, DROPPED)[number % 5]
        messages.append(message.replace(state=state, tries=number, failures=number // 2, **instants))
        steps.append(Step(message.run, window.start, 1 + number % 2, text or "-", 3, window.start + 0.5, body))
    messages.append(message_of(window, "pruned").replace(state=SENT, body=None))
    steps.append(Step(message.run, window.start, 1, "without a result", 3, window.start + 0.5))
    planted.store.upkeep().take_in(Intake(messages=messages, steps=steps), lambda run, lease: False)


def lived(planted, key, window, chance) -> None:
    """Plant one window with a story, and facts besides."""
    events, generation = [], 1
    for number, (event, attempt) in enumerate(chance.choice(STORIES)):
        generation += event == "rerun"
        at = window.start + 5.0 + 61.25 * number
        output = bytes(chance.randrange(256) for _ in range(40)) if event in ("done", "failed", "lost") else None
        data = {"exit": 3, "seconds": 0.125, "text": chance.choice(TEXTS)} if event in ("done", "failed") else {}
        told = Event(at, key, window.start, event, attempt, generation, None, f"{attempt:032x}", "schedule")
        reason = chance.choice(TEXTS) if event not in ("start", "rerun") else None
        events.append(told.replace(output=output, data=data, host="host", reason=reason))
    if chance.random() < 0.2:
        reason = chance.choice(TEXTS[1:])
        events.append(events[-1].replace(event="noted", reason=reason, output=None, data={"by": "ann"}))
    bare = Run(key, window.start, window.end, "", 1, 1, "", 0, 1, "", 0.0, None, chance.choice((None, "f" * 64)))
    planted.commit(key, run=state_of(folded(events), bare), events=tuple(events))


def moved(source, kind, tmp_path, name: str):
    """Return a store of a kind with what was exported from another."""
    path = tmp_path / f"{name}.jsonl"
    with path.open("w") as file:
        export(source, Wanted(), file.write, now=float(BORN))
    # The stores of these tests all have the same id; what a ledger exported itself, it does not send again.
    path.write_text(path.read_text().replace(stores.LEDGER, "f" * 32))
    ledger = OpenLedger(kind.open(), folder=None)
    report = brought(ledger, path, delivers_here=True)
    assert (report.bad, report.left) == (0, ()), report.first_bad
    return ledger.store, path


CHAINS = [
    chain
    for chain in (("sqlite", "postgres", "sqlite"), ("sqlite", "redis", "sqlite"), ("postgres", "redis", "postgres"))
    if all(find_spec(f"ranonce.stores.{name}") for name in chain)
]


@pytest.mark.parametrize("chain", CHAINS, ids=" to ".join)
def test_a_ledger_that_is_moved_and_moved_back_is_the_same(chain, tmp_path, request, monkeypatch):
    monkeypatch.setattr("ranonce.exchange.importing.BATCH", 30)  # so that stories and numbers come in several

    def kind(name: str, number: int):
        folder = tmp_path / str(number)
        folder.mkdir()
        if name == "sqlite":
            return stores.sqlite(folder)
        server: Server | OtherServer = request.getfixturevalue({"redis": "valkey"}.get(name, name))
        return getattr(stores, name)(server)

    kinds = [kind(name, number) for number, name in enumerate(chain)]
    first = kinds[0].open()
    planted_on(first, windows=150)
    before = everything(OpenLedger(first, folder=None))
    assert all(before)
    second, there = moved(first, kinds[1], tmp_path, "there")
    assert everything(OpenLedger(second, folder=None)) == before
    assert second.upkeep().pruned_seq() == first.upkeep().pruned_seq() > 0
    third, back = moved(second, kinds[2], tmp_path, "back")
    assert everything(OpenLedger(third, folder=None)) == before
    assert third.upkeep().pruned_seq() == first.upkeep().pruned_seq()
    lines = [list(map(json.loads, path.read_text().splitlines())) for path in (there, back)]
    assert lines[0][1:] == lines[1][1:]  # all but where it comes from
    newest = [store.newest_events(1)[0] for store in (first, second, third)]
    assert newest[0] == newest[1] == newest[2]
    for store in (first, second, third):
        store.close()
