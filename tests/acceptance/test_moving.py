"""Moving a ledger, as its owner does it: export, import, killed in the middle, beside running jobs."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess

import pytest

from tests.conftest import TODAY, World
from tests.exchange.acting import said

NIGHT = "2026-11-09T12:00:00Z"
#: Where an import is killed; the last is a place that only some stores pass.
KILLED_AT = ["import:before-commit", "import:after-commit", "import:after-runs"]


def written(world, *lines):
    path = world.root / "runs.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def days(count):
    found = [f"2026-{month:02}-{day:02}" for month in range(1, 11) for day in range(1, 29)][:count]
    return [said(event, day, f"{day}T05:00:00Z") for day in found for event in ("start", "done")]


def brought(world, path, *words):
    return world.ranonce("import", path, "--job", "job", "--every", "day", "--now", NIGHT, *words)


@pytest.mark.every_store
def test_a_window_that_a_script_had_finished_does_not_run_again(world):
    path = written(world, said("start", "2026-11-09"), said("done", "2026-11-09"), said("start", "2026-11-08"))
    ran = brought(world, path)
    assert ran.exit == 0
    assert ran.out.decode().splitlines() == [
        "It is a script's start, done and fail lines.",
        "Windows: 2 added. Events added: 5.",
        "Held, since nothing tells how they ended: 1. ranonce probe names them;"
        " ranonce release JOB WINDOW --as done|not-done --reason TEXT settles each.",
    ]
    assert world.run().said() == (0, "skipped", "done")
    assert world.run(now="2026-11-08T12:00:00Z").said() == (80, "skipped", "held")
    assert world.effects() == []
    assert world.ranonce("show", "job", TODAY).exit == 0
    assert brought(world, path).out.decode().splitlines()[1:] == ["Windows: 2 already here. Events added: 0."]


def test_bad_lines_are_counted_and_named_and_the_rest_comes_in(world):
    path = written(world, said("done", "2026-11-09"), *["torn"] * 12, said("done", "2026-11-08T02"))
    ran = brought(world, path)
    assert ran.exit == 1
    told = ran.out.decode().splitlines()
    assert told[2] == "Could not be read: 13."
    assert told[3].startswith("  line 2 (byte 67): it is not JSON")
    assert told[-1] == "  and 3 more"
    assert world.state() == ("done", 1)
    told = json.loads(brought(world, path, "--json").out)
    assert (told["event"], told["bad"], told["first_bad"][0]["line"]) == ("imported", 13, 2)


def test_a_rehearsal_says_what_it_would_find_and_writes_nothing(world):
    path = written(world, *days(3), said("done", "2026-01-01", "2026-01-01T06:00:00Z"), said("start", "2026-11-07"))
    before = world.store.read_bytes()
    ran = brought(world, path, "--dry-run")
    assert ran.exit == 0
    assert ran.out.decode().splitlines()[1:] == [
        "windows=4 done=3 failed=0 unfinished=1 dupes=1",
        "Nothing was written.",
    ]
    assert world.sql("SELECT count(*) FROM jobs") == [(0,)]
    assert world.store.read_bytes() == before


@pytest.mark.every_store
def test_what_runs_now_is_left_alone(world):
    working, _ = world.hold()
    path = written(world, said("start", TODAY), said("done", TODAY), said("done", "2026-11-08"))
    ran = brought(world, path)
    assert ran.exit == 75
    assert f"job:{TODAY}: it runs now" in ran.out.decode()
    world.let_go()
    assert working.ends().said() == (0, "done", None)
    assert world.state() == ("done", 1)
    assert world.state(window="2026-11-08") == ("done", 1)


@pytest.mark.every_store(cases=2)
@pytest.mark.parametrize("point", [*KILLED_AT, "import:after-runs:2"])
def test_killed_anywhere_an_import_is_completed_by_the_next(world, point):
    path = written(world, *days(280 if point.endswith(":2") else 5))
    batch = {"PYTHONPATH": os.pathsep.join([str(world.root), os.environ.get("PYTHONPATH", "")])}
    (world.root / "sitecustomize.py").write_text("import ranonce.exchange.importing as i; i.BATCH = 100\n")
    killed = world.ranonce("import", path, "--job", "job", "--every", "day", env={"RANONCE_FAILPOINT": point, **batch})
    assert killed.exit == -signal.SIGKILL
    done = len(world.all_runs())
    assert done == (100 if point.endswith(":2") else 5 if point == "import:after-commit" else 0)
    assert brought(world, path).exit == 0
    windows = 280 if point.endswith(":2") else 5
    assert [run.status for run in world.all_runs()] == ["done"] * windows
    assert world.count_of_events() == 2 * windows


def test_a_ledger_that_goes_back_behind_an_import_is_noticed(world):
    from tests.acceptance.test_stores import copied, put_back

    world.run(now="2026-11-08T12:00:00Z")
    backup = copied(world, "yesterday")
    brought(world, written(world, *days(5)))
    put_back(world, backup)
    assert "gone back in time" in world.run().sentence


def test_a_whole_ledger_moves_with_attempts_and_generations(world, tmp_path_factory):
    from tests.conftest import World

    world.run(sh="exit 3")
    world.run(sh="echo hello; exit 0")
    world.ranonce("rerun", "job", TODAY, "--reason", "wrong data", "--", "true")
    world.run(now="2026-11-10T12:00:00Z", job="other", every="hour")
    exported = world.root / "ledger.jsonl"
    ran = world.ranonce("export", "-o", str(exported))
    assert ran.exit == 0
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    other = World(tmp_path_factory.mktemp("other"))
    other.init()
    assert other.ranonce("import", str(exported)).exit == 0
    for table in ("runs", "events", "schedules"):
        assert other.sql(f"SELECT * FROM {table}") == world.sql(f"SELECT * FROM {table}")
    assert other.state() == ("done", 3)
    assert other.run().said() == (0, "skipped", "done")
    assert other.ranonce("doctor", "--deep").exit == 0
    again = other.ranonce("export").out.splitlines()[1:-1]
    before = exported.read_bytes().splitlines()[1:-1]
    assert [line for line in again if b'"skipped"' not in line] == before
    other.end()


def test_an_export_that_cannot_be_written_leaves_nothing(world):
    world.run()
    ran = world.ranonce("export", "-o", str(world.root / "no" / "where.jsonl"))
    assert ran.exit == 69
    assert "could not be written" in ran.sentence
    assert list((world.root / "work").iterdir()) == []


def test_an_export_into_a_pipe_or_through_a_link_leaves_them_what_they_are(world):
    world.run()
    os.mkfifo(world.root / "pipe")
    with open(os.open(world.root / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
        assert world.ranonce("export", "-o", str(world.root / "pipe")).exit == 0
        assert json.loads(pipe.read().splitlines()[-1])["kind"] == "end"
    assert stat.S_ISFIFO(os.lstat(world.root / "pipe").st_mode)
    (world.root / "link").symlink_to("target")
    assert world.ranonce("export", "-o", str(world.root / "link")).exit == 0
    assert (world.root / "link").is_symlink()
    assert oct((world.root / "target").stat().st_mode) == "0o100600"
    ran = world.ranonce("export", "-o", str(world.root / "work"))
    assert (ran.exit, "Is a directory" in ran.sentence) == (69, True)


def test_what_a_killed_one_left_is_in_nobodys_way(world):
    world.run()
    left = ("$0.db.$$.new", "$0.bak.$$.part", "$0.x.$$.part")
    for at, words in enumerate(
        ("init --accept-volatile --config $0.toml --store sqlite:///$0.db", "backup $0.bak", "export -o $0.x")
    ):
        script = f'touch "{left[at]}"; exec {world.env["RANONCE"]} {words}'
        started = subprocess.run(
            ["/bin/sh", "-c", script, str(world.root / "work" / "new")], env=world.env, capture_output=True, check=False
        )
        assert (started.returncode, b"exist" in started.stderr) == (0, False), started.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("import", "/no/where.jsonl"), "cannot be read"),
        (("import", "/"), "is no regular file"),
        (("import", "/dev/null"), "is no regular file"),
        (("import", "FILE", "--tz", "Europe/Berlin"), "--every"),
        (("import", "FILE", "--job", "a b"), "not a name"),
        (("import", "FILE", "--job", "job"), "does not know the job"),
        (("import", "FILE", "--job", "job", "--every", "sometimes"), "not a schedule"),
        (("import", "FILE", "--as", "receipts", "--every", "day"), None),
        (("export", "nobody"), "nobody"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(world, words, part):
    path = written(world, said("done", TODAY))
    ran = world.ranonce(*(path if word == "FILE" else word for word in words))
    assert ran.exit != 0
    assert "Traceback" not in ran.err
    if part is not None:
        assert part in ran.sentence
    assert world.all_runs() == []


def test_packed_and_foreign_files_are_named(world):
    for begin, word in (
        (b"\x1f\x8b\x08", "gunzip"),
        (b"\xff\xfe{\0", "iconv"),
        (b"SQLite format 3\0" + b"\0" * 99, ""),
    ):
        path = world.root / "file"
        path.write_bytes(begin + b"x" * 100)
        ran = world.ranonce("import", str(path), "--every", "day")
        assert ran.exit == 64
        assert word in ran.sentence


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("words", "becomes", "said_of_it"),
    [
        ((), "unsure", "Messages: 1 unsure."),
        (("--deliver-here",), "pending", "Messages: 1 pending."),
    ],
)
def test_a_message_that_waits_comes_along(world, tmp_path_factory, words, becomes, said_of_it):
    assert world.run(sh="printf hello | $RANONCE emit slack").exit == 0
    path = str(world.root / "export.jsonl")
    assert world.ranonce("export", "-o", path).exit == 0
    other = World(tmp_path_factory.mktemp("other"))
    other.init()
    try:
        ran = other.ranonce("import", path, *words)
        assert ran.exit == 0, ran.err
        assert said_of_it in ran.out.decode().splitlines()
        (message,) = json.loads(other.ranonce("outbox", "list", "--json").out)["messages"]
        assert (message["state"], message["destination"], message["job"]) == (becomes, "slack", "job")
        assert other.ranonce("outbox", "show", message["key"], "--body").out == b"hello"
    finally:
        other.end()


def test_a_second_import_says_what_became_of_messages_that_were_here(world, tmp_path_factory):
    assert world.run(sh="printf hello | $RANONCE emit slack").exit == 0
    path = str(world.root / "export.jsonl")
    exported = world.ranonce("export", "-o", path)
    assert exported.sentence.endswith("1 run, 2 events, 0 steps, 1 message of 1 job.")
    other = World(tmp_path_factory.mktemp("other"))
    other.init()
    try:
        assert other.ranonce("import", path).exit == 0
        again = other.ranonce("import", path, "--deliver-here").out.decode().splitlines()
        assert (
            "Messages that were here already stay as they are here: 1 unsure."
            " What is unsure or dead, a person settles: ranonce outbox list."
        ) in again
        assert listed(other)[0]["state"] == "unsure"
    finally:
        other.end()


def moved(world, path, *words):
    ran = world.ranonce("import", path, "--deliver-here", *words)
    assert ran.exit == 0, ran.err
    return [(message["state"], message["key"]) for message in listed(world)]


def listed(world):
    return json.loads(world.ranonce("outbox", "list", "--all", "--json").out)["messages"]


@pytest.mark.every_store
def test_a_message_that_was_sent_and_pruned_since_does_not_wait_again_after_a_second_import(world, tmp_path_factory):
    other = World(tmp_path_factory.mktemp("other"))
    other.init()
    try:
        assert other.run(sh="printf hello | $RANONCE emit slack").exit == 0
        path = str(other.root / "export.jsonl")
        assert other.ranonce("export", "-o", path).exit == 0
    finally:
        other.end()
    key = f"job:{TODAY}/slack/-"
    assert moved(world, path) == [("pending", key)]
    assert world.ranonce("outbox", "resolve", key, "--as", "sent", "--reason", "seen").exit == 0
    assert world.run(now="2026-11-10T12:00:00Z").exit == 0
    assert world.ranonce("prune", "--older-than", "0s").exit == 0
    assert listed(world) == []
    assert moved(world, path) == [("unsure", key)]
    assert "pruned here" in listed(world)[0]["error"]


def test_a_message_that_was_pruned_around_comes_along_and_waits(world, tmp_path_factory):
    for day in (9, 10):
        world.run(now=f"2026-11-{day:02}T12:00:00Z", sh="printf hello | $RANONCE emit slack")
    assert world.ranonce("prune", "--older-than", "0s").exit == 0
    path = str(world.root / "export.jsonl")
    assert world.ranonce("export", "-o", path).exit == 0
    other = World(tmp_path_factory.mktemp("other"))
    other.init()
    try:
        assert [state for state, _ in moved(other, path)] == ["pending", "pending"]
    finally:
        other.end()


def test_what_a_ledger_lost_of_its_own_does_not_wait_again_since_it_may_have_sent_it(world):
    assert world.run(sh="printf hello | $RANONCE emit slack").exit == 0
    path = str(world.root / "export.jsonl")
    assert world.ranonce("export", "-o", path).exit == 0
    for each in world.store.parent.glob("ledger.db*"):
        each.unlink()
    assert world.ranonce("accept-loss", "--reason", "the disk is gone").exit == 0
    assert [state for state, _ in moved(world, path)] == ["unsure"]
