"""An export comes back whole: rows, events, numbers, attempts, generations. Cut off or edited, it is noticed."""

from __future__ import annotations

import base64
import json

import pytest

from ranonce.errors import UsageError
from ranonce.exchange import importing
from ranonce.exchange.exporting import Wanted, export
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Event, Retention, Run, RunKey
from ranonce.merging import folded, state_of
from ranonce.stores.memory.store import MemoryStore
from tests.contract import stores
from tests.contract.acting import claim, ledger_over, verdict
from tests.exchange.acting import BORN, NOW, brought, empty, everything, rehearsed, states
from tests.planted import Planted


def lived(planted, key, *story, fingerprint=None, **data):
    """Plant a run that came to be as its events tell; `data` stands in the first verdict."""
    window = planted.schedules[-1].window(key)
    events, generation = [], 1
    for number, (event, attempt) in enumerate(story):
        generation += event == "rerun"
        at, told = window.start + 5.0 + 60 * number, data if number == 1 else {}
        owner, output = f"{attempt:032x}", b"\x00\xffbye" if event == "lost" else None
        named = RunKey("j", key)
        events.append(
            Event(
                at, named, window.start, event, attempt, generation, None, owner, "schedule", data=told, output=output
            )
        )
    bare = Run(named, window.start, window.end, "", 1, 1, "", 0, len(planted.schedules), "", 0.0, None, fingerprint)
    planted.commit(named, run=state_of(folded(events), bare), events=tuple(events))
    return named


@pytest.fixture
def planted():
    """A ledger in which much has happened, long before the one it comes into was born."""
    planted = Planted("hour", store=MemoryStore("a" * 32, wall=lambda: BORN - 86400))
    planted.run("2026-11-01T00")
    planted.run("2026-11-07T00")
    lived(planted, "2026-11-07T01", ("start", 1), ("failed", 1), ("lost", 1), exit=3)
    lived(planted, "2026-11-07T02", ("start", 1), ("stopped", 1), resume_at=float(NOW + 60))
    planted.run("2026-11-07T03", "held", reason="crashed")
    key = lived(planted, "2026-11-07T04", ("start", 1), ("failed", 1), ("start", 2), ("done", 2), fingerprint="f" * 64)
    planted.event("noted", planted.recorded(key), at=BORN - 50_000, data={"by": "anna@host", "text": "é\u2028\x00"})
    planted.skip("2026-11-07T05", "early")
    planted.declare("day", valid_from="2026-11-08T00:00:00Z")
    lived(
        planted,
        "2026-11-08",
        ("start", 1),
        ("done", 1),
        ("rerun", 2),
        ("start", 2),
        ("failed", 2),
        ("start", 3),
        ("done", 3),
    )
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


def test_all_of_it_comes_back(planted, file, ledger):
    lines, counts = exported(planted.store)
    report = brought(ledger, file(lines))
    assert (report.format, report.bad, report.left) == ("export", 0, ())
    assert report.events == counts["event"]
    assert everything(ledger) == everything(OpenLedger(planted.store, folder=None))
    assert exported(ledger.store)[0][1:] == lines[1:]
    assert ledger.store.upkeep().pruned_seq() == planted.store.upkeep().pruned_seq() > 0


def test_twice_is_once(planted, file, ledger):
    path = file(exported(planted.store)[0])
    brought(ledger, path)
    before = everything(ledger)
    report = brought(ledger, path)
    assert (set(report.runs), report.events) == ({"same"}, 0)
    assert everything(ledger) == before


def test_brought_in_by_halves_it_is_the_same(planted, file, ledger):
    lines, _ = exported(planted.store)
    for upto in range(1, len(lines)):
        brought(ledger, file(lines[:upto]))
    assert brought(ledger, file(lines)).bad == 0
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
    brought(ledger, file(exported(planted.store)[0]))
    events = list(ledger.store.upkeep().all_events())
    assert [event.key.job for event in events[:2]] == ["other", "other"]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    for run in planted.store.upkeep().all_runs():
        here = [(e.event, e.attempt, e.at) for e in events if e.key == run.key]
        assert here == [(e.event, e.attempt, e.at) for e in planted.store.upkeep().all_events() if e.key == run.key]


def test_an_export_that_was_cut_off_is_noticed(planted, file):
    lines, _ = exported(planted.store)
    for upto in range(1, len(lines)):
        report = brought(empty(), file(lines[:upto]))
        assert report.bad == 1
        assert "cut off" in report.first_bad[0].why
    text = "".join(lines)
    assert brought(empty(), file(text[: len(text) - 20])).bad >= 1


def test_a_line_that_is_missing_is_noticed_at_the_end(planted, file):
    lines, _ = exported(planted.store)
    del lines[len(lines) // 2]
    report = brought(empty(), file(lines))
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
    report = brought(empty(), file(lines))
    assert report.first_bad[0].line == at + 1
    assert report.bad == 3  # its window has events and no row now, and the count at the end is another


@pytest.mark.parametrize("line", range(1, 20))
def test_a_line_that_is_missing_leaves_no_story_that_contradicts_itself(planted, file, line):
    lines, _ = exported(planted.store)
    told = [number for number, each in enumerate(lines) if json.loads(each).get("kind") in ("run", "event")]
    gone = json.loads(lines.pop(told[line % len(told)]))
    ledger = empty()
    report = brought(ledger, file(lines))
    assert report.bad >= 1
    before = {run.key.window: run for run in planted.store.upkeep().all_runs()}
    for window, run in before.items():
        found = states(ledger)[window]
        if run.status == "done":
            assert found == ("done", run.attempt), gone
    assert brought(ledger, file(lines)).events == 0


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [
        ("attempt", 1, ("done", 3)),  # it went back: the events know better
        ("attempt", 7, ("done", 7)),
        ("generation", 1, ("done", 3)),
        ("generation", 9, ("done", 3)),
        ("status", "failed", ("done", 3)),
        ("status", "running", ("done", 3)),
        ("failures", 40, ("done", 3)),
        ("owner", "nobody", ("done", 3)),
        ("finished_at", None, ("done", 3)),
        ("exit", 7, ("done", 3)),
    ],
)
def test_a_row_that_its_events_contradict_comes_in_with_what_fits_and_is_named(
    planted, file, ledger, name, value, state
):
    lines, _ = exported(planted.store)
    at = next(n for n, line in enumerate(lines) if '"kind": "run"' in line and '"window": "2026-11-08"' in line)
    lines[at] = json.dumps({**json.loads(lines[at]), name: value}) + "\n"
    report = brought(ledger, file(lines))
    assert states(ledger)["2026-11-08"] == state
    assert [bad.place for bad in report.first_bad] == ["j:2026-11-08"]
    assert "its row and its events tell different stories" in report.first_bad[0].why
    assert brought(ledger, file(lines)).events == 0


def test_a_run_that_no_event_tells_of_comes_in_with_the_state_it_had(planted, file, ledger):
    lines, _ = exported(planted.store)
    lines = [line for line in lines if not ('"kind": "event"' in line and '"window": "2026-11-0' in line)]
    report = brought(ledger, file(lines))
    assert report.bad == 7  # each run, and the counts
    assert states(ledger) == {run.key.window: (run.status, run.attempt) for run in planted.store.upkeep().all_runs()}


@pytest.mark.parametrize(
    ("event", "name", "value"),
    [
        ("start", "owner", "\ud800"),
        ("noted", "data", {"text": float("nan")}),
        ("noted", "data", {"text": float("inf")}),
        ("done", "data", {"exit": "none"}),
        ("done", "data", {"exit": 1 << 80}),
        ("stopped", "data", {"resume_at": "soon"}),
        ("stopped", "data", {"resume_at": True}),
        ("stopped", "data", {"resume_at": 1e300}),
        ("released", "data", {"as": "perhaps"}),
    ],
)
def test_what_no_ledger_holds_is_refused_and_located(planted, file, event, name, value):
    lines, _ = exported(planted.store)
    lines[-2] = json.dumps({**json.loads(lines[-2]), "event": event, name: value}) + "\n"
    report = brought(empty(), file(lines))
    assert report.first_bad[0].line == len(lines) - 1
    assert name in report.first_bad[0].why


def test_numbers_that_an_export_only_claims_were_pruned_blind_nobody(planted, file, ledger):
    lines, _ = exported(planted.store)
    lines[0] = json.dumps({**json.loads(lines[0]), "pruned_seq": (1 << 53) - 1}) + "\n"
    brought(ledger, file(lines))
    assert ledger.store.upkeep().pruned_seq() == ledger.store.newest_events(1)[0].seq


def test_one_job_and_a_span_can_be_exported(planted, file, ledger):
    ledger_over(planted.store, "other").finish(claim(ledger_over(planted.store, "other"), job="other"), verdict())
    since = BORN - 2 * 86400
    lines, counts = exported(planted.store, Wanted(frozenset({"j"}), int(since), NOW))
    assert counts["job"] == 1
    told = [json.loads(line) for line in lines]
    assert {line["job"] for line in told if line.get("kind") in ("run", "event")} == {"j"}
    assert {line["window"] for line in told if line.get("kind") == "run"} == {"2026-11-08"}
    assert brought(ledger, file(lines)).bad == 0
    whole = exported(planted.store)[0]
    assert brought(empty(), file(whole), job="other").runs == {"added": 1}


def test_a_job_on_another_schedule_is_left_out_and_named(planted, file):
    other = Planted("week", store=MemoryStore("b" * 32))
    here = OpenLedger(other.store, folder=None)
    report = brought(here, file(exported(planted.store)[0]))
    assert states(here) == {}
    assert "the job j is on 'hour' in UTC, and on 'week' in UTC here" in str(report.first_bad[0])


def test_an_export_of_a_later_version_is_refused(planted, file):
    lines, _ = exported(planted.store)
    lines[0] = json.dumps({**json.loads(lines[0]), "format": 2}) + "\n"
    assert states(empty()) == {}
    report = brought(empty(), file(lines))
    assert "format 2" in report.first_bad[0].why


def test_a_rehearsal_writes_nothing_and_counts(planted, file):
    counted = rehearsed(empty(), file(exported(planted.store)[0])).windows
    assert counted == {"windows": 6, "done": 3, "failed": 1, "unfinished": 2}


def test_output_comes_through_as_bytes(planted, file):
    lines, _ = exported(planted.store)
    kept = [json.loads(line)["output"] for line in lines if '"output"' in line]
    assert [base64.b64decode(each) for each in kept] == [b"\x00\xffbye"]


def test_much_output_comes_in_by_several_transactions(file, monkeypatch):
    planted = Planted("hour", store=MemoryStore("a" * 32, wall=lambda: BORN - 86400))
    for hour in range(9):
        planted.event("lost", planted.recorded(planted.run(f"2026-11-07T0{hour}")), at=BORN - 50_000, output=b"x" * 300)
    monkeypatch.setattr(importing, "BATCH_BYTES", 1000)
    ledger = empty()
    sizes = []
    take_in = ledger.store.take_in
    monkeypatch.setattr(
        ledger.store, "take_in", lambda told, lives: (sizes.append(len(told.told)), take_in(told, lives))[1]
    )
    assert brought(ledger, file(exported(planted.store)[0])).runs == {"added": 9}
    assert sizes == [4, 4, 1]


def test_what_nobody_can_recognise_is_refused(file):
    with pytest.raises(UsageError, match="--as"):
        brought(empty(), file(["a,b,c\n", "1,2,3\n"]))
    with pytest.raises(UsageError, match="it is empty"):
        brought(empty(), file([]))
