"""Messages and steps come along with an export; what waits is in doubt, unless somebody says it is not."""

from __future__ import annotations

import json

import pytest

from ranonce.exchange.effects import MOVED
from ranonce.exchange.exporting import Wanted, export
from ranonce.ledger import OpenLedger
from ranonce.messages import DEAD, DROPPED, PENDING, SENDING, SENT, STATES, UNSURE
from ranonce.stores.memory.store import MemoryStore
from tests.exchange.acting import BORN, brought, empty, everything, rehearsed
from tests.planted import Planted

WINDOW = "2026-11-07T00"


@pytest.fixture
def planted() -> Planted:
    """A ledger with a run that is done, a message in each state, and two steps."""
    planted = Planted("hour", store=MemoryStore("a" * 32, wall=lambda: float(BORN - 86400)))
    planted.run(WINDOW)
    for state in sorted(STATES):
        sender = {"sender": "5" * 32, "taken_at": float(BORN - 90_000)} if state == SENDING else {}
        planted.message(WINDOW, state, state=state, tries=2, error=f"was {state}", **sender)
    planted.step(WINDOW, "one")
    planted.step(WINDOW, "two")
    return planted


def exported(planted: Planted, tmp_path, **change: object) -> str:
    """Write an export, with changes in its messages."""
    lines: list[str] = []
    export(planted.store, Wanted(), lines.append, now=float(BORN))
    told = [json.loads(line) for line in lines]
    told = [{**each, **change} if each.get("kind") == "message" else each for each in told]
    path = tmp_path / "export.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in told))
    return str(path)


def came(ledger: OpenLedger) -> dict[str, tuple[str, str | None]]:
    """State and last words of each message, by what it was."""
    return {
        message.key.rpartition("/")[2]: (message.state, message.error)
        for message in ledger.store.upkeep().all_messages()
    }


def test_what_waits_is_in_doubt_in_another_ledger_and_the_rest_is_as_it_was(planted, tmp_path):
    ledger = empty()
    report = brought(ledger, exported(planted, tmp_path))
    assert came(ledger) == {
        PENDING: (UNSURE, MOVED),
        SENDING: (UNSURE, MOVED),
        UNSURE: (UNSURE, "was unsure"),
        SENT: (SENT, "was sent"),
        DEAD: (DEAD, "was dead"),
        DROPPED: (DROPPED, "was dropped"),
    }
    assert (report.messages, report.steps, report.bad) == ({UNSURE: 3, SENT: 1, DEAD: 1, DROPPED: 1}, 2, 0)


def test_where_the_other_ledger_delivers_no_more_what_had_not_begun_goes_out_from_here(planted, tmp_path):
    ledger = empty()
    brought(ledger, exported(planted, tmp_path), delivers_here=True)
    assert came(ledger)[PENDING] == (PENDING, "was pending")
    assert came(ledger)[SENDING] == (UNSURE, MOVED)


def test_an_import_that_is_done_twice_changes_nothing(planted, tmp_path):
    ledger, path = empty(), exported(planted, tmp_path)
    brought(ledger, path)
    before = everything(ledger)
    report = brought(ledger, path, delivers_here=True)
    assert everything(ledger) == before
    assert report.messages == {}


def test_a_rehearsal_counts_messages_and_steps(planted, tmp_path):
    report = rehearsed(empty(), exported(planted, tmp_path))
    assert (report.messages, report.steps) == ({UNSURE: 3, SENT: 1, DEAD: 1, DROPPED: 1}, 2)


def test_steps_keep_their_results(planted, tmp_path):
    ledger = empty()
    brought(ledger, exported(planted, tmp_path))
    assert list(ledger.store.upkeep().all_steps()) == list(planted.store.upkeep().all_steps())


def test_a_ledger_without_messages_is_exported_as_before_there_were_any(tmp_path):
    planted = Planted("hour", store=MemoryStore("a" * 32, wall=lambda: float(BORN - 86400)))
    planted.run(WINDOW)
    path = exported(planted, tmp_path)
    with open(path) as file:
        assert {json.loads(line).get("kind") for line in file} == {None, "job", "schedule", "run", "event", "end"}
    report = brought(empty(), path)
    assert (report.runs, report.bad) == ({"added": 1}, 0)


def test_an_export_of_one_job_holds_its_own_messages_only(planted, tmp_path):
    lines: list[str] = []
    export(planted.store, Wanted(frozenset(("other",))), lines.append, now=float(BORN))
    assert '"message"' not in "".join(lines)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "lost"}, "state is 'lost'"),
        ({"key": "a\nb"}, "'a\\nb' is no key of a message"),
        ({"destination": "a b"}, "'a b' is not a name for a destination"),
        ({"body": "Ym9keQ=="}, "its body is not the one that its digest is of"),
        ({"body": "?"}, "body is no base64"),
        ({"body": None, "state": "pending"}, "its body is missing"),
    ],
)
def test_a_message_that_was_edited_is_refused_and_located(planted, tmp_path, change, why):
    ledger = empty()
    report = brought(ledger, exported(planted, tmp_path, **change))
    assert report.bad == 7  # the messages, and the last line, which counts them
    assert report.first_bad[0].why == why
    assert came(ledger) == {}
    assert report.steps == 2
