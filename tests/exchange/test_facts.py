"""What ranonce wrote itself: receipts and journals tell of their windows again."""

from __future__ import annotations

import json

import pytest

from ranonce.journal import encode
from tests.exchange.acting import brought, empty, everything, rehearsed, states, story

DAY = {"every": "day"}
A, B = "2026-11-07", "2026-11-08"


@pytest.fixture
def ledger():
    return empty()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "told.jsonl"

    def write(*lines):
        path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines))
        return path

    return write


def receipt(event, window=A, attempt=1, **more):
    told = {"event": event, "job": "job", "exit": 0, "window": window, "run": f"job:{window}", "ledger": "0" * 32}
    if event != "skipped":
        told |= {"attempt": attempt, "generation": 1}
        told |= {"started_at": f"{window}T05:00:00.000Z", "finished_at": f"{window}T05:0{attempt}:00.000Z"}
    return json.dumps({**told, **more})


def test_receipts_tell_what_became_of_windows(ledger, file):
    path = file(
        receipt("failed", child_exit=3),
        receipt("done", attempt=2),
        receipt("stopped", B, reason="429", until="2026-11-12T00:00:00Z"),
        receipt("skipped", A, reason="done"),
    )
    report = brought(ledger, path, **DAY)
    assert (report.format, report.bad) == ("receipts", 0)
    assert states(ledger) == {A: ("done", 2), B: ("stopped", 1)}
    assert story(ledger, A) == [("start", 1), ("failed", 1), ("start", 2), ("done", 2)]
    stopped = next(run for run in ledger.store.upkeep().all_runs() if run.key.window == B)
    assert (stopped.reason, stopped.resume_at) == ("429", 1794441600)
    before = everything(ledger)
    assert brought(ledger, path, **DAY).events == 0
    assert everything(ledger) == before


def test_a_refused_trigger_tells_that_somebody_did_it(ledger, file):
    brought(ledger, file(receipt("skipped", A, reason="done"), receipt("skipped", B, reason="busy")), **DAY)
    assert states(ledger) == {A: ("done", 1)}


def test_a_verdict_that_could_not_be_recorded_was_one(ledger, file):
    brought(ledger, file(receipt("done", exit=74, reason="not-recorded")), **DAY)
    assert states(ledger) == {A: ("done", 1)}


def test_later_attempts_alone_are_enough(ledger, file):
    brought(ledger, file(receipt("done", attempt=3)), **DAY)
    assert states(ledger) == {A: ("done", 3)}


@pytest.mark.parametrize(
    "more",
    [
        {"finished_at": "2026-11-07T05:00:00"},
        {"finished_at": "2030-01-01T00:00:00Z"},
        {"attempt": 0},
        {"attempt": "1"},
        {"window": "2026-11-07T02"},
        {"window": "2026-12-01"},
        {"job": "a b"},
        {"event": "finished"},
    ],
)
def test_a_receipt_that_cannot_be_is_located(ledger, file, more):
    report = brought(ledger, file(receipt("done", B), json.dumps({**json.loads(receipt("done")), **more})), **DAY)
    assert [bad.line for bad in report.first_bad] == [2]
    assert states(ledger) == {B: ("done", 1)}


# --- journals -------------------------------------------------------------------------------------------------------


def facts(*told, window=A, owner="0" * 32, **more):
    lines = []
    for seq, (event, attempt) in enumerate(told, 1):
        fact = {"seq": seq, "event": event, "job": "job", "window": window, "input": "", "attempt": attempt}
        fact |= {"owner": owner, "reason": None, "generation": 1, "start": f"{window}T00:00:00Z", "epoch": 1}
        fact |= {"at": f"{window}T05:0{seq}:00.000Z", "clock": "boot", "boot": 1.0}
        lines.append(encode({**fact, **more}))
    return lines


def test_a_journal_tells_what_its_host_saw(ledger, file):
    lines = facts(("start", 1), ("failed", 1), ("start", 2), ("done", 2))
    report = brought(ledger, file(*lines, *facts(("start", 1), window=B)), job="job", every="day")
    assert (report.format, report.bad) == ("journal", 0)
    assert states(ledger) == {A: ("done", 2), B: ("held", 1)}


def test_a_journal_of_a_job_that_nobody_declared_is_enough(ledger, file):
    brought(ledger, file(*facts(("start", 1), ("done", 1))))
    (run,) = ledger.store.upkeep().all_runs()
    assert (run.key.window, run.window_end - run.window_start) == (A, 86400)


def test_an_old_journal_says_less_and_is_enough(ledger, file):
    lines = []
    for line in facts(("start", 1), ("done", 1), ("rerun", 2), ("start", 2), ("done", 2)):
        fact = json.loads(line)["fact"]
        del fact["start"], fact["generation"]
        lines.append(encode(fact))
    brought(ledger, file(*lines))
    (run,) = ledger.store.upkeep().all_runs()
    assert (run.status, run.generation, run.attempt) == ("done", 2, 2)


def test_a_changed_line_of_a_journal_counts_for_nothing(ledger, file):
    start, done = facts(("start", 1), ("done", 1))
    report = brought(ledger, file(start, done.replace(b"done", b"dune"), done[:-9] + b"\n"), job="job", every="day")
    assert (states(ledger), report.bad) == ({A: ("held", 1)}, 2)
    assert "checksum" in report.first_bad[0].why


def test_refused_triggers_notes_and_lost_verdicts_are_no_runs(ledger, file):
    brought(ledger, file(*facts(("skipped", 0), ("noted", 0), ("lost", 1), reason="busy")))
    assert states(ledger) == {}


def test_a_crash_that_was_seen_and_taken_over_is_told_so(ledger, file):
    lines = facts(("start", 1), ("expired", 1), ("start", 2), ("done", 2))
    brought(ledger, file(*lines))
    (run,) = ledger.store.upkeep().all_runs()
    assert (run.status, run.attempt, run.failures) == ("done", 2, 1)


def test_what_the_ledger_knows_already_is_left_as_it_is(ledger, file):
    path = file(*facts(("start", 1), ("failed", 1), ("start", 2), ("done", 2)))
    brought(ledger, path)
    before = everything(ledger)
    assert brought(ledger, path).runs == {"same": 1}
    assert everything(ledger) == before
    assert rehearsed(ledger, path).windows == {"windows": 1, "done": 1}
