"""An export comes back whole: rows, events, numbers, attempts, generations. Cut off or edited, it is noticed."""

from __future__ import annotations

import base64
import json

import pytest

from ranonce.errors import UsageError
from ranonce.exchange.exporting import Wanted, export
from ranonce.exchange.importing import Import
from ranonce.exchange.reading import Source
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Retention
from ranonce.stores.memory import MemoryStore
from tests.contract import stores
from tests.contract.acting import claim, ledger_over, verdict
from tests.exchange.acting import BORN, NOW, brought, empty, everything, rehearsed, states
from tests.planted import Planted


@pytest.fixture
def planted():
    """A ledger in which much has happened, long before the one it comes into was born."""
    planted = Planted("hour", store=MemoryStore("a" * 32, wall=lambda: BORN - 86400))
    planted.run("2026-11-01T00")
    planted.run("2026-11-07T00")
    planted.run("2026-11-07T01", "failed", exit=3)
    planted.run("2026-11-07T02", "stopped", resume_at=float(NOW + 60))
    planted.run("2026-11-07T03", "held", reason="crashed")
    key = planted.run("2026-11-07T04", attempt=2, version="v1", fingerprint="f" * 64)
    planted.event("noted", planted.recorded(key), at=BORN - 50_000, data={"by": "anna@host", "text": "é\u2028\x00"})
    planted.skip("2026-11-07T05", "early")
    planted.event("failed", planted.recorded("2026-11-07T01"), at=BORN - 40_000, output=b"\x00\xffbye")
    planted.declare("day", valid_from="2026-11-08T00:00:00Z")
    planted.run("2026-11-08", generation=2, attempt=3)
    planted.gate("api", "2026-11-10T00:00:00Z")
    planted.store.upkeep().prune("j", Retention(float(BORN - 6 * 86400), float(BORN - 6 * 86400)))
    return planted


def exported(store, wanted=None):
    lines = []
    counts = export(store, wanted or Wanted(), lines.append, now=float(BORN - 3600))
    return lines, counts


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "export.jsonl"

    def write(lines):
        path.write_text("".join(lines))
        return path

    return write


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request, tmp_path):
    """A fresh ledger of each kind."""
    if request.param == "memory":
        return empty()
    return OpenLedger(stores.sqlite(tmp_path).open(), folder=None)


def bring(ledger, path, **how):
    """Import, without a look at rows and events: what is planted need not fit together."""
    return Import(ledger, Source(str(path), NOW, **how)).carry_out()


def test_all_of_it_comes_back(planted, file, ledger):
    lines, counts = exported(planted.store)
    report = bring(ledger, file(lines))
    assert (report.format, report.bad, report.left) == ("export", 0, ())
    assert report.events == counts["event"]
    assert everything(ledger) == everything(OpenLedger(planted.store, folder=None))
    assert exported(ledger.store)[0][1:] == lines[1:]
    assert ledger.store.upkeep().pruned_seq() == planted.store.upkeep().pruned_seq() > 0


def test_twice_is_once(planted, file, ledger):
    path = file(exported(planted.store)[0])
    bring(ledger, path)
    before = everything(ledger)
    report = bring(ledger, path)
    assert (set(report.runs), report.events) == ({"same"}, 0)
    assert everything(ledger) == before


def test_brought_in_by_halves_it_is_the_same(planted, file, ledger):
    lines, _ = exported(planted.store)
    for upto in range(1, len(lines)):
        bring(ledger, file(lines[:upto]))
    assert bring(ledger, file(lines)).bad == 0
    assert everything(ledger) == everything(OpenLedger(planted.store, folder=None))


def test_a_run_that_was_at_work_is_held_until_it_is_told_what_became_of_it(file, ledger):
    store = MemoryStore("a" * 32)
    other = ledger_over(store)
    held = claim(other)
    path = file(exported(store)[0])
    brought(ledger, path)
    assert [run.status for run in ledger.store.upkeep().all_runs()] == ["held"]
    other.finish(held, verdict(at=held.started_at + 1))
    brought(ledger, file(exported(store)[0]))
    assert [(run.status, run.attempt) for run in ledger.store.upkeep().all_runs()] == [("done", 1)]


def test_into_a_ledger_with_a_past_its_events_follow(planted, file, ledger):
    ledger_over(ledger.store, "other").finish(claim(ledger_over(ledger.store, "other"), job="other"), verdict())
    bring(ledger, file(exported(planted.store)[0]))
    events = list(ledger.store.upkeep().all_events())
    assert [event.key.job for event in events[:2]] == ["other", "other"]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    for run in planted.store.upkeep().all_runs():
        here = [(e.event, e.attempt, e.at) for e in events if e.key == run.key]
        assert here == [(e.event, e.attempt, e.at) for e in planted.store.upkeep().all_events() if e.key == run.key]


def test_an_export_that_was_cut_off_is_noticed(planted, file):
    lines, _ = exported(planted.store)
    for upto in range(1, len(lines)):
        report = bring(empty(), file(lines[:upto]))
        assert report.bad == 1
        assert "cut off" in report.first_bad[0].why
    text = "".join(lines)
    assert bring(empty(), file(text[: len(text) - 20])).bad >= 1


def test_a_line_that_is_missing_is_noticed_at_the_end(planted, file):
    lines, _ = exported(planted.store)
    del lines[len(lines) // 2]
    report = bring(empty(), file(lines))
    assert "the export says it holds" in report.first_bad[-1].why


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "finished"),
        ("attempt", 0),
        ("attempt", "1"),
        ("attempt", True),
        ("attempt", 1 << 70),
        ("window_start", "2026-11-07"),
        ("window_end", "2026-11-06T00:00:00Z"),
        ("job", "a/b"),
        ("window", "a\nb"),
        ("owner", ""),
        ("input", "abc"),
        ("started_at", None),
        ("kind", "wish"),
    ],
)
def test_a_run_that_was_edited_by_hand_is_refused_and_located(planted, file, name, value):
    lines, _ = exported(planted.store)
    at = next(number for number, line in enumerate(lines) if '"kind": "run"' in line)
    lines[at] = json.dumps({**json.loads(lines[at]), name: value}) + "\n"
    report = bring(empty(), file(lines))
    assert report.first_bad[0].line == at + 1
    assert report.bad == 2  # and the count at the end is another


def test_one_job_and_a_span_can_be_exported(planted, file, ledger):
    ledger_over(planted.store, "other").finish(claim(ledger_over(planted.store, "other"), job="other"), verdict())
    since = BORN - 2 * 86400
    lines, counts = exported(planted.store, Wanted(frozenset({"j"}), int(since), NOW))
    assert counts["job"] == 1
    told = [json.loads(line) for line in lines]
    assert {line["job"] for line in told if line.get("kind") in ("run", "event")} == {"j"}
    assert {line["window"] for line in told if line.get("kind") == "run"} == {"2026-11-08"}
    assert bring(ledger, file(lines)).bad == 0
    whole = exported(planted.store)[0]
    assert bring(empty(), file(whole), job="other").runs == {"added": 1}


def test_a_job_on_another_schedule_is_left_out_and_named(planted, file):
    other = Planted("week", store=MemoryStore("b" * 32))
    here = OpenLedger(other.store, folder=None)
    report = bring(here, file(exported(planted.store)[0]))
    assert states(here) == {}
    assert "the job j is on 'hour' in UTC, and on 'week' in UTC here" in str(report.first_bad[0])


def test_an_export_of_a_later_version_is_refused(planted, file):
    lines, _ = exported(planted.store)
    lines[0] = json.dumps({**json.loads(lines[0]), "format": 2}) + "\n"
    assert states(empty()) == {}
    report = bring(empty(), file(lines))
    assert "format 2" in report.first_bad[0].why


def test_a_rehearsal_writes_nothing_and_counts(planted, file):
    counted = rehearsed(empty(), file(exported(planted.store)[0])).windows
    assert counted == {"windows": 6, "done": 3, "failed": 1, "unfinished": 2}


def test_output_comes_through_as_bytes(planted, file):
    lines, _ = exported(planted.store)
    kept = [json.loads(line)["output"] for line in lines if '"output"' in line]
    assert [base64.b64decode(each) for each in kept] == [b"\x00\xffbye"]


def test_what_nobody_can_recognise_is_refused(file):
    with pytest.raises(UsageError, match="--as"):
        bring(empty(), file(["a,b,c\n", "1,2,3\n"]))
    with pytest.raises(UsageError, match="it is empty"):
        bring(empty(), file([]))
