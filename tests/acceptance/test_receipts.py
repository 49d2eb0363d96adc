"""What an invocation says and keeps: a receipt for each window, after the state is durable, whatever the output is."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import EFFECT, HELD_EFFECT, NOON, RANONCE, TODAY, wait_until

FIELDS = {
    "event": "done",
    "job": "job",
    "window": TODAY,
    "run": f"job:{TODAY}",
    "attempt": 1,
    "generation": 1,
    "trigger": "schedule",
    "chosen_by": "clock",
    "exit": 0,
    "version": "v1",
}


@pytest.mark.every_store
def test_a_receipt_says_who_what_when_and_why(world):
    receipt = world.run("--version", "v1").receipt
    assert {name: receipt[name] for name in FIELDS} == FIELDS
    assert receipt["ledger"] == world.ledger
    instant = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(instant, receipt["started_at"])
    assert re.fullmatch(instant, receipt["finished_at"])
    assert receipt["seconds"] >= 0


def test_every_invocation_that_dealt_with_a_window_has_one_receipt(world):
    assert len(world.run().receipts) == 1  # done
    assert len(world.run().receipts) == 1  # skipped
    assert len(world.run(job="b", sh="exit 3").receipts) == 1  # failed
    assert len(world.run("--window", "2026-11-10", now=NOON).receipts) == 1  # early
    world.store.unlink()
    assert len(world.run().receipts) == 1  # unavailable


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--window", "2026-11-10"), (75, "skipped", "early")),
        (("--max-late", "1h", "--trigger", "schedule"), (80, "skipped", "late")),
    ],
)
def test_a_refused_window_is_recorded_with_its_reason(world, words, said):
    assert world.run(*words).said() == said
    assert [(fact.event, fact.reason, fact.attempt) for fact in world.facts()] == [(*said[1:], 0)]
    assert world.effects() == []


def test_wrong_usage_is_one_line_and_nothing_is_written(world):
    for words in (("run",), ("run", "job", "--evry", "day"), ("run", "a", "b"), ("walk",), ("run", "job", "--lease")):
        ran = world.ranonce(*words)
        assert ran.exit == 64
        assert ran.sentence
        assert ran.receipts == []
    assert world.count_of_events() == 0


def test_receipts_go_where_they_are_wanted(world):
    assert world.run("--receipt", "none").err == ""
    assert world.run("--receipt", "problems").err == ""  # a later trigger is no problem
    problem = world.run("--receipt", "problems", job="b", sh="exit 3")
    assert problem.receipt["event"] == "failed"
    path = world.root / "receipts.jsonl"
    for _ in range(2):
        assert world.run("--receipt", str(path)).err == ""
    assert path.read_text().count('"event": "skipped"') == 2
    assert path.stat().st_mode & 0o077 == 0


def test_a_receipt_that_cannot_be_written_is_said_and_changes_nothing(world):
    ran = world.run("--receipt", "/not/there/receipts")
    assert ran.exit == 0
    assert "/not/there/receipts" in ran.sentence
    assert world.state() == ("done", 1)


# --- trouble with the output ----------------------------------------------------------------------------------------

LOUD = f"{EFFECT}; echo out; echo err >&2; exit 0"


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    "streams", [">&-", "2>&-", ">&- 2>&-", "> /dev/full", "2> /dev/full", "> /dev/full 2>&1", "<&- >&- 2>&-", "| true"]
)
def test_trouble_with_our_own_output_changes_no_verdict(world, streams):
    script = f"$RANONCE run job --every day --now {NOON} -- /bin/sh -c '{LOUD}'"
    ran = world.shell(f'{{ {script}; echo $? > "$PIDS/status"; }} {streams}')
    assert "Traceback" not in ran.err
    wait_until((world.pids / "status").exists)
    assert (world.pids / "status").read_text() == "0\n"
    assert world.state() == ("done", 1)
    assert world.effects() == [f"job {TODAY} 1"]


def test_an_answer_that_cannot_be_printed_is_no_failure(world):
    """Not even where Python was told not to buffer, as it is in many containers."""
    world.run()
    ran = world.shell("for it in 'backup copy.db' prune 'gate g --close-for 1h --reason x'; do "
                      "PYTHONUNBUFFERED=1 $RANONCE $it --json > /dev/full || echo $it; done")  # fmt: skip
    assert (ran.out, ran.err) == (b"", "")


@pytest.mark.every_store
def test_endless_output_passes_through_in_bounded_memory_and_both_ends_are_kept(world):
    size = 40_000_000
    loud = f"echo begin; head -c {size} /dev/zero; echo; echo end; {HELD_EFFECT}; exit 3"
    with open(world.root / "out", "wb") as out:
        invocation, _ = world.hold(sh=loud, stdout=out)
        memory = Path(f"/proc/{invocation.pid}/status").read_text()
        world.let_go()
        assert invocation.ends().exit == 3
    assert int(re.search(r"VmHWM:\s+(\d+) kB", memory)[1]) < 60_000
    assert (world.root / "out").stat().st_size == len("begin\n\nend\n") + size
    (kept,) = world.outputs("failed")
    assert kept.startswith(b"begin\n\0\0")
    assert kept.endswith(b"\0\nend\n")
    assert b"bytes left out" in kept
    assert len(kept) < 66_000
    if world.url.startswith("sqlite"):
        assert sum(file.stat().st_size for file in world.store.parent.iterdir()) < 600_000


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("printed", [r"\000\001\377", "", r"no newline", r"\r\n\033[31m", r"{\"event\": \"done\"}\n"])
def test_whatever_is_printed_is_kept_as_it_is(world, printed):
    ran = world.run(sh=f"printf '{printed}'; exit 3")
    expected = subprocess.run(["/bin/sh", "-c", f"printf '{printed}'"], capture_output=True).stdout
    assert ran.out == expected
    assert world.outputs("failed") == [expected or None]


# --- before it is said, it is durable -------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_state_is_on_the_disk_before_the_command_starts_and_before_the_receipt(world):
    trace = world.root / "trace"
    calls = "trace=fsync,fdatasync,write,execve,pwrite64"
    ran = subprocess.run(
        ["strace", "-f", "-e", calls, "-s", "40", "-o", trace, *RANONCE, *world.words(sh="echo THE-WORK")],
        env=world.env,
        capture_output=True,
        timeout=60,
    )
    if b"ptrace" in ran.stderr and ran.returncode:
        pytest.skip("tracing is not permitted here")
    assert ran.returncode == 0, ran.stderr
    steps = []
    for line in trace.read_text().splitlines():
        if re.search(r"(fsync|fdatasync)(\(| resumed>)", line) and "unfinished" not in line:
            steps.append("sync")
        elif 'execve("/bin/sh"' in line:
            steps.append("child")
        elif 'write(2, "{\\"event\\"' in line:
            steps.append("receipt")
    assert "sync" in steps[: steps.index("child")]
    assert "sync" in steps[steps.index("child") : steps.index("receipt")]
    assert steps.count("receipt") == 1


# --- what is on the record, and what is not -------------------------------------------------------------------------


def test_the_version_is_on_every_record(world):
    model = world.root / "model.yaml"
    model.write_text("temperature: 0\n")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()[:12]
    added = world.ranonce("add", "job", "--every", "day", "--", "/bin/true")
    assert added.exit == 0, added.err
    text = world.config.read_text()
    world.config.write_text(text.replace('every = "day"\n', f'every = "day"\nversion = {{ file = "{model}" }}\n'))
    first = world.ranonce("run", "job", "--now", NOON)
    second = world.ranonce("run", "job", "--now", NOON)
    assert first.receipt["version"] == second.receipt["version"] == digest
    model.write_text("temperature: 1\n")
    assert world.ranonce("run", "job", "--now", NOON).receipt["version"] != digest
    versions = [(fact.event, fact.version) for fact in world.facts()]
    assert [event for event, _ in versions] == ["start", "done", "skipped", "skipped"]
    assert [version == digest for _, version in versions] == [True, True, True, False]
    model.unlink()
    missing = world.ranonce("run", "job", "--now", "2026-11-10T12:00:00Z")
    assert missing.exit == 78
    assert "model.yaml" in missing.sentence


def test_arguments_environment_and_input_are_never_stored(world):
    secret = world.root / "input"
    secret.write_text("SECRET-INPUT")
    words = world.words("--input", str(secret), sh=f"{EFFECT}; : SECRET-ARGUMENT; exit 3")
    env = {"TOKEN": "SECRET-ENVIRONMENT", "RANONCE_FAILPOINT": "finish:outcome-kept"}
    world.start(*words, env=env).ends()  # leaves the attempt's file behind
    for file in [*world.folder.rglob("*"), *world.store.parent.iterdir()]:
        assert not file.is_file() or b"SECRET" not in file.read_bytes(), file
    world.start(*words, env={"TOKEN": "SECRET-ENVIRONMENT"}).ends()
    for file in [*world.folder.rglob("*"), *world.store.parent.iterdir()]:
        assert not file.is_file() or b"SECRET" not in file.read_bytes(), file
    assert len(world.effects()) == 2


IN_A_LEDGER_AT = """
import sys
from ranonce.jobspec import JobSpec
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import RunKey
from ranonce.signals import Signals
from ranonce.stores.base import Job
from ranonce.stores.memory.store import MemoryStore
from ranonce.windows import Schedule
from ranonce.terms import Order, Terms
from ranonce.wrap import work

ledger, day = OpenLedger(MemoryStore(), folder=None), Schedule("day")
ledger.declare(Job("job", 0, 0.0, 3600.0, 3), day, 0, now=0, change=False)
order = Order(RunKey("job", "2026-11-09"), day.window("2026-11-09"), 1, 0, 2e9, "api", "window")
with Signals() as signals:
    work(Terms(ledger, JobSpec("job", command=("/usr/bin/env",)), signals, sys.argv[1]), order)
"""


def test_the_store_is_handed_on_whole_since_its_password_came_from_the_environment(world):
    def handed_on(url, **environ):
        env = {**world.env, **environ}
        words = [RANONCE[0], "-c", IN_A_LEDGER_AT, url]
        ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
        assert "RANONCE_JOB=job\n" in ran.stdout, ran.stderr
        return [line for line in ran.stdout.splitlines() if line.startswith("RANONCE_STORE=")]

    url = "postgresql://me:secret@db/ledger"
    assert handed_on(url, RANONCE_STORE=url) == [f"RANONCE_STORE={url}"]
    assert handed_on(url, DB_PASSWORD="secret") == [f"RANONCE_STORE={url}"]
    assert handed_on(url, RANONCE_STORE="sqlite:////of/another") == [f"RANONCE_STORE={url}"]


# --- input ----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_other_input_for_a_done_window_is_a_conflict_and_no_effect(world):
    given = world.root / "input"
    given.write_text("a\n")
    assert world.run("--input", str(given)).said() == (0, "done", None)
    assert world.run("--input", str(given)).said() == (0, "skipped", "done")
    given.write_text("a\nb\n")
    conflict = world.run("--input", str(given))
    assert conflict.said() == (80, "skipped", "conflict")
    assert len(world.effects()) == 1
    assert world.run().said() == (0, "skipped", "done")  # who names no input asks for the window


def test_a_window_not_yet_done_takes_the_new_input(world):
    given = world.root / "input"
    given.write_text("a")
    world.run("--input", str(given), sh="exit 3")
    given.write_text("b")
    assert world.run("--input", str(given)).said() == (0, "done", None)
    assert world.run_of().fingerprint == hashlib.sha256(b"b").hexdigest()


@pytest.mark.every_store
def test_other_input_can_be_other_work_and_the_whole_digest_counts(world):
    texts = (b"issue c5a33747e220da6c", b"issue a6a2e7ab897891cf")  # their first 64 bits are equal
    given = world.root / "input"
    for text in (*texts, *texts):
        given.write_bytes(text)
        assert world.run("--input", str(given), "--input-mode", "identity").exit == 0
    assert len(world.effects()) == 2
    digests = {run.key.input for run in world.all_runs()}
    assert digests == {hashlib.sha256(text).hexdigest() for text in texts}
    assert len({digest[:16] for digest in digests}) == 1


def test_work_on_one_input_is_not_caught_up_with_another(world):
    given = world.root / "input"
    options = ("--input", str(given), "--input-mode", "identity", "--stop-exit-code", "42")
    given.write_text("yesterday's")
    world.run(*options, now="2026-11-08T12:00:00Z", sh="exit 42")
    given.write_text("today's")
    assert [receipt["window"] for receipt in world.run(*options).receipts] == [TODAY]
    given.write_text("yesterday's")
    resumed = world.run(*options, now="2026-11-10T12:00:00Z")
    assert [receipt["window"] for receipt in resumed.receipts] == ["2026-11-08", "2026-11-10"]


def test_an_input_that_cannot_be_read_runs_nothing(world):
    for path in ("/not/there", "/"):
        ran = world.run("--input", path)
        assert ran.exit == 64
        assert path in ran.sentence
    assert world.effects() == []
