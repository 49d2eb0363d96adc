"""Messages and steps come along with an export; what waits is in doubt, unless somebody says it is not."""

from __future__ import annotations

import base64
import json

import pytest

from ranonce.emission import digest_of
from ranonce.exchange.effects import MOVED
from ranonce.exchange.exporting import Wanted, export
from ranonce.ledger import OpenLedger
from ranonce.messages import DEAD, DROPPED, PENDING, SENDING, SENT, STATES, UNSURE
from ranonce.stores.base import Intake, Tombstone
from ranonce.stores.memory.store import MemoryStore
from tests.exchange.acting import BORN, brought, empty, everything, rehearsed
from tests.planted import Planted

WINDOW, JOB = "2026-11-07T00", "j"


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


def another_body(each):
    body = b"another"
    told = {"body": base64.b64encode(body).decode(), "digest": digest_of(each["content_type"], body)}
    return {**each, **told} if each["state"] == PENDING else each


@pytest.mark.parametrize("how", [brought, rehearsed])
def test_a_message_that_has_another_body_here_is_counted_and_named(planted, tmp_path, how):
    ledger, path = empty(), tmp_path / "other.jsonl"
    brought(ledger, exported(planted, tmp_path))
    with open(exported(planted, tmp_path)) as file:
        told = [json.loads(line) for line in file]
    told = [another_body(each) if each.get("kind") == "message" else each for each in told]
    path.write_text("".join(json.dumps(each) + "\n" for each in told))
    report = how(ledger, str(path))
    assert (report.conflicts, [key.rpartition("/")[2] for key in report.first_conflicts]) == (1, [PENDING])
    assert how(ledger, exported(planted, tmp_path)).conflicts == 0


@pytest.mark.parametrize("how", [rehearsed, brought])
def test_a_rehearsal_knows_too_what_this_very_ledger_may_have_sent(planted, tmp_path, how):
    ledger = OpenLedger(MemoryStore("a" * 32, wall=lambda: float(BORN)), folder=None)
    report = how(ledger, exported(planted, tmp_path), delivers_here=True)
    assert report.messages == {UNSURE: 3, SENT: 1, DEAD: 1, DROPPED: 1}


@pytest.mark.parametrize("how", [rehearsed, brought])
def test_a_rehearsal_knows_too_what_was_pruned_here(planted, tmp_path, how):
    ledger = empty()
    start = next(iter(planted.store.upkeep().all_messages())).window_start
    ledger.store.upkeep().take_in(
        Intake(tombstones=[Tombstone(JOB, start, start + 3600, 1, 0, float(BORN))]), lambda *_: False
    )
    report = how(ledger, exported(planted, tmp_path), delivers_here=True)
    assert report.messages == {UNSURE: 3, SENT: 1, DEAD: 1, DROPPED: 1}


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
