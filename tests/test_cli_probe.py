"""`probe`, `status` and `show` on a real ledger: what they print, and how they exit."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ranonce.cli import probe, show, status
from ranonce.cli.options import parse
from ranonce.cli.report import write
from ranonce.errors import NotThisLedger, RanonceError, UsageError
from ranonce.ledger import outcome_text
from ranonce.lifecycle import Claim, RunKey, Verdict
from ranonce.liveness import AttemptFile, clock_domain, this_host
from ranonce.stores.base import Job
from ranonce.stores.sqlite.store import SqliteStore
from ranonce.windows import Window
from tests.conftest import World, wait_until
from tests.losses import gone
from tests.planted import NOW, Planted, at

COMMANDS = {"probe": probe, "status": status, "show": show}
HOSTILE = "bad\n2026 missing=0\x1b[2J\u2028\u202etxt"
FIRST_LINE = (
    "missing={missing} zombies={zombies} dupes=0 failed={failed} exhausted=0 held=0 stopped=0 late=0 running=0 stuck=0"
    " overlapping=0 unexpected=0 repeated={repeated} unsent={unsent} overdue={overdue} unsure={unsure} dead={dead}"
)


@dataclass
class Said:
    """What a command printed, and its exit status."""

    exit: int
    out: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Say = Callable[..., Said]


@pytest.fixture
def say(world: World, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command in the world, in this process, as if it were NOW."""

    def said(command: str, *words: str, now: str | None = NOW) -> Said:
        module = COMMANDS[command]
        clock = ("--now", now) if now else ()
        capsys.readouterr()
        status = module.run(parse(module.COMMAND, [*words, *clock]), world.env)
        return Said(status, capsys.readouterr().out)

    return said


@pytest.fixture
def hourly(world: World) -> Planted:
    """An hourly job `j` in the world's ledger, declared long ago."""
    store = world.kept_open()
    if isinstance(store, SqliteStore):
        store._db.execute("PRAGMA synchronous = OFF")  # planting is not what is tested
    return Planted("hour", store=store)


def first_line(**counts: int) -> str:
    names = ("missing", "zombies", "failed", "repeated", "unsent", "overdue", "unsure", "dead")
    return FIRST_LINE.format(**{**dict.fromkeys(names, 0), **counts})


def configure(world: World, job: str = "nightly", every: str = "day") -> None:
    with world.config.open("a") as file:
        file.write(f'\n[jobs.{job}]\nevery = "{every}"\ncommand = ["true"]\n')


# --- probe ----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_clean_ledger_is_one_line_and_exit_zero(say, hourly):
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T12:00:00Z")
    said = say("probe")
    assert (said.exit, said.lines) == (0, [first_line()])


@pytest.mark.every_store
def test_findings_are_a_line_each_and_exit_one(say, hourly):
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T12:00:00Z", but=("2026-11-09T03",))
    hourly.run("2026-11-09T12", "failed", exit=3)
    said = say("probe")
    assert said.exit == 1
    assert said.lines == [
        first_line(missing=1, failed=1),
        "missing j 2026-11-09T03: missing since 2026-11-09T05:00:00Z, and no trigger arrived"
        " -> ranonce run j --window 2026-11-09T03 -- COMMAND",
        "failed j 2026-11-09T12: attempt 1 failed (exit 3), 2 more attempts allowed"
        " -> ranonce run j --window 2026-11-09T12 -- COMMAND",
    ]


def test_what_only_a_person_can_settle_names_the_command(say, hourly):
    hourly.run("2026-11-09T11", "held", reason="crashed")
    hourly.run("2026-11-09T12", "failed", exit=3, failures=3)
    lines = [line for line in say("probe", "--since", "2h").lines if line.startswith(("held", "exhausted"))]
    assert sorted(line.partition(" -> ")[2] for line in lines) == [
        "ranonce release j 2026-11-09T11 --as done|not-done --reason TEXT",
        "ranonce release j 2026-11-09T12 --as done|not-done --reason TEXT",
    ]


@pytest.mark.every_store
def test_notes_are_marked_and_exit_zero(say, hourly):
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T12:00:00Z")
    hourly.skip("2026-11-09T11", "done")
    said = say("probe")
    assert said.exit == 0
    assert said.lines == [first_line(repeated=1), "note: repeated j 2026-11-09T11: 1 run, 2 triggers (1 done)"]


def test_quiet_says_nothing_while_there_is_nothing_to_do(say, hourly):
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T12:00:00Z")
    hourly.skip("2026-11-09T11", "done")
    assert say("probe", "--quiet") == Said(0, "")
    hourly.run("2026-11-09T12", "failed", exit=3)
    loud = say("probe", "-q")
    assert (loud.exit, len(loud.lines)) == (1, 2)


def test_json_has_counts_findings_and_notes(say, hourly):
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T03:00:00Z")
    hourly.run("2026-11-09T12", "running", lease=1e9)
    hourly.skip("2026-11-09T02", "done")
    told = say("probe", "--since", "24h", "--json").json
    assert (told["since"], told["until"]) == ("2026-11-08T12:30:00Z", "2026-11-09T12:30:00Z")
    assert told["counts"]["missing"] == 8
    assert {bucket for bucket, count in told["counts"].items() if count} == {"missing", "zombies", "repeated"}
    (missing, zombie) = told["findings"]
    assert (missing["bucket"], missing["window"], missing["last"]) == ("missing", "2026-11-09T03", "2026-11-09T10")
    assert (missing["windows"], missing["start"]) == (8, "2026-11-09T03:00:00Z")
    assert (zombie["bucket"], zombie["job"], zombie["attempt"]) == ("zombies", "j", 1)
    assert zombie["started_at"] == "2026-11-09T12:00:05.000Z"
    assert [note["bucket"] for note in told["notes"]] == ["repeated"]


def test_a_lease_of_this_boot_is_judged_by_this_boots_clock(say, hourly):
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T11:00:00Z")
    hourly.run("2026-11-09T11", "running", lease=1e9, domain=clock_domain(this_host()))
    running = say("probe")
    hourly.run("2026-11-09T11", "running", lease=-1e9, domain=clock_domain(this_host()))
    zombie = say("probe")
    assert (running.exit, running.lines[1].split(":")[0]) == (0, "note")
    assert (zombie.exit, zombie.lines[1].split(":")[0]) == (1, "zombie j 2026-11-09T11")


@pytest.mark.every_store
def test_a_job_that_was_declared_and_never_fired_is_missing(say, world):
    configure(world)
    said = say("probe", "--since", "2026-11-07T00:00:00Z")
    assert said.exit == 1
    assert [line.split(":")[0] for line in said.lines[1:]] == [
        "missing nightly 2026-11-07",
        "missing nightly 2026-11-08",
    ]


def test_only_the_named_jobs_are_judged(say, hourly, world):
    configure(world)
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T12:00:00Z")
    assert say("probe", "j").exit == 0
    assert say("probe", "j", "nightly").exit == 1


def test_an_unknown_job_is_wrong_usage(say, hourly):
    with pytest.raises(UsageError, match="neither the ledger nor the configuration has a job 'k'"):
        say("probe", "k")
    with pytest.raises(UsageError, match="neither the ledger nor the configuration has a job 'k'"):
        say("probe", "k", "--since", "2026-11-09")


@pytest.mark.parametrize("since", ["yesterday", "2026-11-09T10:00:00", "48", "2027-01-01T00:00:00Z"])
def test_a_since_that_means_nothing_is_wrong_usage(say, hourly, since):
    with pytest.raises(UsageError, match="--since"):
        say("probe", "--since", since)


def test_since_is_a_time_back_from_until(say, hourly):
    told = say("probe", "--since", "2h", "--until", "2026-11-09T10:00:00Z", "--json").json
    assert told["counts"]["missing"] == 2
    assert told["since"] == "2026-11-09T08:00:00Z"


@pytest.mark.every_store
def test_without_the_ledger_every_expected_window_is_missing(say, world, capsys):
    configure(world)
    gone(world)
    with pytest.raises(NotThisLedger) as raised:
        say("probe", "--since", "2026-11-07T00:00:00Z")
    assert raised.value.exit_status == 78
    assert capsys.readouterr().out.startswith("missing=2 ")


def test_without_the_ledger_json_says_so(say, world, capsys):
    configure(world)
    world.store.unlink()
    with pytest.raises(NotThisLedger):
        say("probe", "--since", "2026-11-07T00:00:00Z", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["counts"]["missing"] == 2
    assert "there is no ledger at" in told["error"]


def test_a_schedule_that_cannot_be_used_here_hides_no_other_job(say, hourly, world):
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T12:00:00Z", but=("2026-11-09T03",))
    hourly.store.record_schedule(
        Job("a", 0, 0.0, 3600.0, 3), hourly.store.schedules("j")[0].replace(tz="Mars/Base"), -1
    )
    said = say("probe")
    assert said.exit == 1
    assert said.lines[1].startswith("unexpected a: its windows cannot be worked out: The time zone 'Mars/Base'")
    assert said.lines[2].startswith("missing j 2026-11-09T03: ")


@pytest.mark.every_store
def test_text_from_the_ledger_can_forge_no_line(say, hourly):
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T12:00:00Z")
    hourly.run("2026-11-09T12", "failed", reason=HOSTILE, version=HOSTILE)
    said = say("probe")
    assert len(said.lines) == 2
    assert r"bad\n2026 missing=0\x1b[2J\u2028\u202etxt" in said.lines[1]
    for command in (("show", "j", "2026-11-09T12"), ("show", "j"), ("status",), ("status", "j")):
        out = say(*command).out
        assert not {"\x1b", "\u2028", "\u202e"} & set(out)
        assert not any(line.startswith("2026 missing=0") for line in out.splitlines())


def test_a_terminal_that_knows_only_ascii_gets_escapes(monkeypatch):
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    write(["2026-11-09T03 … 2026-11-09T10 (8 windows)"])
    ascii_only.flush()
    assert ascii_only.buffer.getvalue() == b"2026-11-09T03 \\u2026 2026-11-09T10 (8 windows)\n"


@pytest.mark.every_store
def test_nothing_that_reads_changes_the_ledger(say, hourly, world):
    hourly.run("2026-11-09T11", "running", lease=-60)
    before = world.everything()
    for command in (("probe",), ("status",), ("status", "j"), ("show", "j"), ("show", "j", "2026-11-09T11")):
        say(*command)
    assert world.everything() == before


# --- status ---------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_the_board_has_a_line_for_each_job_and_names_closed_gates(say, hourly, world):
    configure(world)
    hourly.hours("2026-11-09T10:00:00Z", "2026-11-09T12:30:00Z")
    hourly.gate("model-api", "2999-01-01T00:00:00Z")
    said = say("status")
    assert said.exit == 0
    assert said.lines[0].split("  ")[0] == "JOB"
    assert said.lines[1].split()[:4] == ["j", "2026-11-09T12", "done", "2026-11-09T12:01:05Z"]
    assert said.lines[2].split()[:2] == ["nightly", "2026-11-08"]
    assert said.lines[3] == "gate model-api is closed until 2999-01-01T00:00:00Z: 429 (by j)"


def test_the_board_as_json(say, hourly):
    hourly.run("2026-11-09T12")
    told = say("status", "--json").json
    (job,) = told["jobs"]
    assert (job["job"], job["window"], job["state"], job["done_window"]) == (
        "j",
        "2026-11-09T12",
        "done",
        "2026-11-09T12",
    )
    assert (job["since"], job["next_window"]) == ("2026-11-09T12:01:05.000Z", "2026-11-09T13")
    assert job["next_due"] == "2026-11-09T15:00:00.000Z"


def test_an_empty_board_says_what_to_do(say):
    assert say("status").lines == ["No job is declared. Declare one: ranonce add JOB --every day -- COMMAND"]


@pytest.mark.every_store
def test_the_windows_of_a_job_as_json(say, hourly):
    hourly.run("2026-11-09T11")
    told = say("status", "j", "--since", "2026-11-09T10:00:00Z", "--until", "2026-11-09T14:00:00Z", "--json").json
    assert told["job"] == "j"
    assert told["windows"] == [
        {
            "window": f"2026-11-09T{h}",
            "start": f"2026-11-09T{h}:00:00Z",
            "end": f"2026-11-09T{h + 1}:00:00Z",
            "state": s,
            "undelivered": {},
        }
        for h, s in ((10, "missing"), (11, "done"), (12, "expected"), (13, "expected"))
    ]


def test_the_windows_of_a_job_are_a_table_of_the_last_ten_and_the_next_two(say, hourly):
    hourly.hours("2026-11-09T10:00:00Z", "2026-11-09T12:30:00Z")
    lines = say("status", "j").lines
    assert lines[3].split() == ["WINDOW", "START", "END", "STATE"]
    rows = [line.split() for line in lines[4:]]
    assert [row[0] for row in rows] == [f"2026-11-09T{hour:02}" for hour in range(3, 15)]
    assert [row[3] for row in rows] == ["missing"] * 7 + ["done"] * 3 + ["expected"] * 2


def test_a_span_without_a_job_is_wrong_usage(say):
    with pytest.raises(UsageError, match="windows of one job"):
        say("status", "--since", "2h")


# --- show -----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_window_that_ran_exits_zero_and_tells_everything(say, hourly):
    hourly.run("2026-11-09T11", version="c0ffee")
    hourly.skip("2026-11-09T11", "done")
    said = say("show", "j", "2026-11-09T11")
    assert said.exit == 0
    assert said.lines[:4] == [
        "j 2026-11-09T11: it ran (done).",
        "  window  2026-11-09T11:00:00Z until 2026-11-09T12:00:00Z",
        "  why     done at attempt 1, 2026-11-09T11:00:05Z for 1m",
        "  next    a trigger for this window would be refused (done): j:2026-11-09T11 is done (attempt 1)",
    ]
    events = [line.split(maxsplit=3) for line in said.lines[6:]]
    assert [event[:3] for event in events] == [
        ["2026-11-09T11:00:05.000Z", "1", "start"],
        ["2026-11-09T11:01:05.000Z", "1", "done"],
        ["2026-11-09T11:00:05.000Z", "0", "skipped"],
    ]
    assert events[1][3].endswith("after 1m; version c0ffee")


@pytest.mark.every_store(cases=4)
@pytest.mark.parametrize(
    ("planted", "exit_status", "answer"),
    [
        (("2026-11-09T11", "failed"), 1, "no"),
        (("2026-11-09T11", "held"), 1, "no"),
        (("2026-11-09T11", "stopped"), 1, "no"),
        (("2026-11-09T10", "done"), 2, "unknown"),  # T11 itself: no run, and not due before 13:00
    ],
)
def test_the_exit_status_answers_whether_it_ran(say, hourly, planted, exit_status, answer):
    hourly.run(*planted)
    said = say("show", "j", "2026-11-09T11", "--json")
    assert (said.exit, said.json["ran"]) == (exit_status, answer)


@pytest.mark.every_store
def test_a_missing_window_exits_one(say, hourly):
    said = say("show", "j", "2026-11-09T09", "--json")
    assert (said.exit, said.json["state"], said.json["ran"]) == (1, "missing", "no")


def test_a_story_as_json_has_its_events(say, hourly):
    hourly.run("2026-11-09T11", "failed", exit=3)
    told = say("show", "j", "2026-11-09T11", "--json").json
    assert (told["job"], told["window"], told["start"]) == ("j", "2026-11-09T11", "2026-11-09T11:00:00Z")
    assert (told["attempt"], told["state"]) == (1, "failed")
    assert [(event["event"], event["at"]) for event in told["events"]] == [
        ("start", "2026-11-09T11:00:05.000Z"),
        ("failed", "2026-11-09T11:01:05.000Z"),
    ]
    assert told["events"][1]["data"] == {"exit": 3, "seconds": 60}


@pytest.mark.every_store
def test_a_date_finds_the_windows_that_begin_on_that_day(say, hourly):
    hourly.hours("2026-11-08T00:00:00Z", "2026-11-09T00:00:00Z", but=("2026-11-08T07",))
    said = say("show", "j", "2026-11-08", "--json")
    assert said.exit == 1
    assert [each["ran"] for each in said.json["stories"]] == ["yes"] * 7 + ["no"] + ["yes"] * 16


@pytest.mark.every_store
def test_a_date_is_a_day_of_the_jobs_own_zone(say, world):
    planted = Planted("30 0 * * *", tz="Europe/Berlin", store=world.kept_open())
    planted.run("2026-11-06T23:30Z")
    said = say("show", "j", "2026-11-07", "--json")
    assert (said.exit, said.json["window"]) == (0, "2026-11-06T23:30Z")


@pytest.mark.every_store
def test_a_date_finds_the_week_that_holds_it(say, world):
    planted = Planted("week", store=world.kept_open())
    planted.run("2026-W45")
    assert say("show", "j", "2026-11-05", "--json").json["window"] == "2026-W45"


def test_a_day_on_which_no_window_begins_is_unknown(say, world):
    Planted("0 3 1 * *", store=world.kept_open())
    said = say("show", "j", "2026-11-05")
    assert (said.exit, said.lines) == (2, ["j has no window there."])


def test_without_a_window_the_newest_are_told_in_brief_and_the_newest_in_full(say, hourly):
    hourly.hours("2026-11-09T04:00:00Z", "2026-11-09T12:30:00Z")
    said = say("show", "j")
    assert said.exit == 0
    assert [line.split()[0] for line in said.lines[1:11]] == [f"2026-11-09T{hour:02}" for hour in range(3, 13)]
    assert "j 2026-11-09T12: it ran (done)." in said.lines


def test_an_odd_window_that_is_recorded_can_be_shown(say, hourly):
    hourly.misnamed("2026-11-09T10:17", "2026-11-09T10:17:00Z", "2026-11-09T11:17:00Z")
    assert say("show", "j", "2026-11-09T10:17", "--json").json["ran"] == "yes"


@pytest.mark.parametrize("window", ["T99", "2026-11-09T25", "2026-13-01", "'; DROP TABLE runs", "2026-11-09T10:30Z"])
def test_text_that_is_no_window_is_wrong_usage(say, hourly, window):
    with pytest.raises(UsageError):
        say("show", "j", window)


@pytest.mark.every_store
def test_kept_output_is_printed_on_request_with_its_controls_escaped(say, hourly):
    key = hourly.run("2026-11-09T11", "running", lease=60)
    hourly.event("done", hourly.recorded(key), at=at("2026-11-09T11:01:00Z"), output=b"one\ttwo\n\x1b[31mred\xff\n")
    assert "two" not in say("show", "j", "2026-11-09T11").out
    lines = say("show", "j", "2026-11-09T11", "--output").lines
    assert lines[-3:] == ["output of attempt 1:", "one    two", r"\x1b[31mred\xff"]
    told = say("show", "j", "2026-11-09T11", "--output", "--json").json
    assert told["events"][1]["output"] == "one\ttwo\n\x1b[31mred\\xff\n"


def test_an_outcome_that_waits_on_this_host_is_told(say, hourly, world):
    hourly.run("2026-11-09T11", "running", lease=-60, owner="ab" * 16)
    os.makedirs(world.folder, mode=0o700, exist_ok=True)
    file = AttemptFile.create(str(world.folder), "ab" * 16, this_host())
    window = Window("2026-11-09T11", at("2026-11-09T11:00:00Z"), at(NOW))
    claim = Claim(RunKey("j", window.key), window, 1, 1, "ab" * 16, "schedule", None, 300.0, float(at(NOW)))
    file.write_outcome(outcome_text(claim, Verdict("done", float(at(NOW)))), sync=False)
    file.release()
    said = say("probe", "--since", "2026-11-09T11:00:00Z")
    assert "ended: its outcome (done) waits on this host to be recorded: ranonce run" in said.lines[1]


def test_every_error_is_a_sentence(say, world):
    for words in (("probe", "-x"), ("show",), ("show", "no such"), ("status", "a", "b"), ("show", "nobody")):
        with pytest.raises(RanonceError):
            say(*words)


def test_one_bad_job_in_the_file_hides_no_other(world):
    world.ranonce("add", "good", "--every", "day", "--now", "2026-11-08T12:00:00Z", "--", "true")
    world.ranonce("run", "good", "--now", "2026-11-08T12:00:00Z")
    with world.config.open("a") as file:
        file.write('\n[jobs.bad]\nevery = "dayly"\ncommand = ["true"]\n')
    span = ("--since", "2026-11-08T00:00:00Z", "--until", "2026-11-10T00:00:00Z", "--now", "2026-11-10T12:00:00Z")
    probe = world.ranonce("probe", *span)
    assert probe.exit == 1
    assert b"unexpected bad: its settings cannot be read" in probe.out
    assert b"missing good 2026-11-09" in probe.out
    status = world.ranonce("status", "--now", "2026-11-10T12:00:00Z")
    assert status.exit == 0
    assert b"bad: its settings cannot be read" in status.out
    assert b"2026-11-09" in status.out


def test_the_days_of_one_job_may_be_named_by_date_in_its_zone(say, hourly):
    told = say("status", "j", "--since", "2026-11-08", "--until", "2026-11-08T02", "--json").json
    assert [each["window"] for each in told["windows"]] == ["2026-11-08T00", "2026-11-08T01"]
    probed = say("probe", "j", "--since", "2026-11-08", "--until", "2026-11-09", "--json").json
    assert (probed["since"], probed["until"]) == ("2026-11-08T00:00:00Z", "2026-11-09T00:00:00Z")


def test_a_date_for_several_jobs_is_no_instant(say, hourly):
    with pytest.raises(UsageError, match="--since: '2026-11-08' names no offset") as refused:
        say("probe", "--since", "2026-11-08")
    assert refused.value.next_step.endswith("Only with one job may it be a date.")


# --- the next step is one that works ---


def step(world, job, *span):
    said = world.ranonce("probe", job, "--since", "2026-11-09T00:00:00Z", *span)
    (line,) = [line for line in said.out.decode().splitlines()[1:] if not line.startswith("note: ")]
    return line.partition(" -> ")[2]


def test_a_declared_command_is_run_again_by_its_name(world):
    world.ranonce("add", "j", "--every", "day", "--", "false")
    world.ranonce("run", "j", "--window", "2026-11-09")
    assert step(world, "j", "--until", "2026-11-10T00:00:00Z") == "ranonce run j --window 2026-11-09"


def test_a_crash_that_holds_its_run_is_released(world):
    world.ranonce("add", "j", "--every", "day", "--on-crash", "hold", "--", "sleep", "60")
    working = world.start("run", "j", "--window", "2026-11-09")
    wait_until(world.all_runs)
    working.signal(signal.SIGKILL)
    working.ends()
    release = "ranonce release j 2026-11-09 --as done|not-done --reason TEXT"
    wait_until(lambda: step(world, "j", "--until", "2026-11-10T00:00:00Z") == release)
    assert world.ranonce("release", "j", "2026-11-09", "--as", "not-done", "--reason", "looked").exit == 0


def test_many_missing_windows_are_caught_up_together(world):
    world.ranonce("add", "j", "--every", "day", "--now", "2026-11-09T00:00:00Z", "--", "true")
    span = ("--until", "2026-11-14T00:00:00Z", "--now", "2026-11-20T00:00:00Z")
    assert step(world, "j", *span) == "ranonce backfill j --since 2026-11-09"
    assert world.ranonce("backfill", "j", "--since", "2026-11-09", "--now", "2026-11-20T00:00:00Z").exit == 0


def test_without_the_ledger_nothing_is_said_to_be_run(world):
    world.ranonce("add", "j", "--every", "day", "--now", "2026-11-09T00:00:00Z", "--", "true")
    world.store.unlink()
    said = world.ranonce("probe", "--since", "2026-11-09T00:00:00Z", "--until", "2026-11-10T00:00:00Z")
    assert said.exit == 78
    (_, line) = said.out.decode().splitlines()
    assert line == "missing j 2026-11-09: the ledger cannot be read, so nothing proves that it ran"
