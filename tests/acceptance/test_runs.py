"""One window, one run: second triggers, races, overlap, neighbours, and what a command gets."""

from __future__ import annotations

import os
import sys
from collections import Counter

import pytest

from tests.conftest import EFFECT, NOON, TODAY, lives, wait_until


@pytest.mark.every_store
def test_a_later_trigger_of_a_window_finds_it_done(world):
    days = [f"2026-11-{day:02}" for day in range(1, 6)]
    for _ in range(3):
        for day in days:
            ran = world.run(now=f"{day}T12:00:00Z")
            assert ran.exit == 0
    assert world.effects() == [f"job {day} 1" for day in days]
    assert world.states() == [(day, "done") for day in days]
    for day in days:
        assert world.events(window=day) == [
            ("start", "start", 1),
            ("done", None, 1),
            ("skipped", "done", 1),
            ("skipped", "done", 1),
        ]


def test_a_skip_says_that_the_window_is_done_and_by_which_attempt(world):
    first = world.run()
    second = world.run()
    assert first.said() == (0, "done", None)
    assert second.said() == (0, "skipped", "done")
    assert second.receipt["holder"] == world.run_of().owner
    assert second.receipt["sentence"] == f"job:{TODAY} is done (attempt 1)"


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("seconds", [0, 0.2, 1])
def test_of_forty_at_once_on_a_fresh_ledger_one_works(world, seconds):
    ran = world.at_once(40, *world.words(sh=f"{EFFECT}; sleep {seconds}"))
    assert len(world.effects()) == 1
    assert "Traceback" not in "".join(one.err for one in ran)
    said = Counter(one.said() for one in ran)
    assert said.pop((0, "done", None)) == 1
    assert set(said) <= {(75, "skipped", "busy"), (0, "skipped", "done")}
    assert Counter(event for event, _, _ in world.events()) == Counter(start=1, done=1, skipped=39)


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("before", ["failed", "crashed", "done"])
def test_of_eight_at_once_over_an_earlier_attempt_one_works_or_none(world, before):
    crash = {"RANONCE_FAILPOINT": "run:before-child"} if before == "crashed" else {}
    world.run(sh=EFFECT if before == "done" else "exit 3", env=crash)
    ran = world.at_once(8, *world.words(sh=f"{EFFECT}; sleep 0.2"))
    attempt = 1 if before == "done" else 2
    assert world.effects() == [f"job {TODAY} {attempt}"]
    assert "Traceback" not in "".join(one.err for one in ran)
    said = Counter(one.said() for one in ran)
    assert said.pop((0, "done", None), 0) == attempt - 1
    assert set(said) <= {(75, "skipped", "busy"), (0, "skipped", "done")}
    assert world.state() == ("done", attempt)


def test_eight_jobs_at_once_share_the_ledger_and_all_work(world):
    started = [world.start(*world.words(job=f"job-{number}")) for number in range(8)]
    assert [one.ends().said() for one in started] == [(0, "done", None)] * 8
    assert sorted(world.effects()) == [f"job-{number} {TODAY} 1" for number in range(8)]


@pytest.mark.every_store
def test_a_trigger_during_the_run_is_busy_and_is_recorded(world):
    first, _ = world.hold()
    second = world.run()
    world.let_go()
    done = first.ends()
    failed = world.run(job="other", sh="exit 3")
    assert second.said() == (75, "skipped", "busy")
    assert len({second.exit, done.exit, failed.exit}) == 3
    assert second.receipt["holder"] == world.run_of().owner
    assert second.receipt["until"] > done.receipt["started_at"]
    assert world.events() == [("start", "start", 1), ("skipped", "busy", 1), ("done", None, 1)]


def test_busy_can_be_given_the_status_a_scheduler_wants(world):
    first, _ = world.hold()
    assert world.run("--busy-exit", "0").said() == (0, "skipped", "busy")
    world.let_go()
    first.ends()


def test_a_command_that_itself_exits_75_has_failed(world):
    failed = world.run(sh="exit 75")
    assert failed.said() == (1, "failed", None)
    assert failed.receipt["child_exit"] == 75


@pytest.mark.every_store
def test_a_job_longer_than_its_lease_keeps_its_claim(world):
    first, child = world.hold("--lease", world.lease)
    (born,) = world.leases()
    wait_until(lambda: world.leases()[0].expires > born.expires + 1.5)
    assert world.run("--lease", world.lease, env=world.another_host()).said() == (75, "skipped", "busy")
    assert lives(child)
    world.let_go()
    assert first.ends().said() == (0, "done", None)
    assert world.effects() == [f"job {TODAY} 1"]


@pytest.mark.every_store
def test_another_window_of_a_working_job_waits(world):
    first, child = world.hold()
    second = world.run(now="2026-11-10T12:00:00Z")
    world.let_go()
    first.ends()
    assert second.said() == (75, "skipped", "overlap")
    assert f"process {child}" in second.receipt["sentence"]
    assert world.events(window="2026-11-10") == [("skipped", "overlap", 0)]
    assert world.run(now="2026-11-10T12:00:00Z").said() == (0, "done", None)


def test_windows_of_a_job_may_overlap_where_that_is_allowed(world):
    first, _ = world.hold("--overlap", "allow")
    assert world.run("--overlap", "allow", now="2026-11-10T12:00:00Z").said() == (0, "done", None)
    world.let_go()
    assert first.ends().said() == (0, "done", None)


@pytest.mark.every_store
def test_two_jobs_in_one_ledger_have_windows_of_their_own(world):
    working, _ = world.hold(job="one")
    assert world.run(job="two").said() == (0, "done", None)
    world.let_go()
    assert working.ends().said() == (0, "done", None)
    assert world.effects() == [f"one {TODAY} 1", f"two {TODAY} 1"]


@pytest.mark.every_store
def test_each_attempt_keeps_its_own_owner_start_and_end(world):
    for code in (3, 4, 0):
        world.run(sh=f"exit {code}")
    facts = world.facts()
    assert [(fact.attempt, fact.event) for fact in facts] == [
        (1, "start"),
        (1, "failed"),
        (2, "start"),
        (2, "failed"),
        (3, "start"),
        (3, "done"),
    ]
    owners = {fact.attempt: fact.owner for fact in facts}
    assert len(set(owners.values())) == 3
    assert all(fact.owner == owners[fact.attempt] for fact in facts)
    assert [fact.data["exit"] for fact in facts if fact.event != "start"] == [3, 4, 0]
    instants = [fact.at for fact in facts]
    assert instants == sorted(instants)


# --- what is left running -------------------------------------------------------------------------------------------


def test_a_background_process_of_the_group_is_work_and_is_waited_for(world):
    ran = world.run(sh=f"(sleep 0.3; {EFFECT}) & exit 0")
    assert ran.said() == (0, "done", None)
    assert world.effects() == [f"job {TODAY} 1"]
    assert "leftovers" not in ran.receipt


@pytest.mark.every_store
def test_a_left_background_process_is_named_and_blocks_no_window(world):
    work = 'sleep 60 & echo $! > "$PIDS/left"; until grep -q sleep /proc/$!/comm; do :; done'
    ran = world.run("--leftovers", "leave", sh=work)
    left = int((world.pids / "left").read_text())
    assert ran.said() == (0, "done", None)
    assert ran.receipt["leftovers"] == [f"{left} sleep"]
    assert world.run(now="2026-11-10T12:00:00Z").said() == (0, "done", None)
    os.kill(left, 9)


def test_a_background_process_can_be_ended_with_its_command(world):
    ran = world.run("--leftovers", "kill", "--grace-kill", "0.2s", sh="sleep 60 & exit 0")
    assert ran.said() == (0, "done", None)
    assert world.no_process_is_left()


def test_a_daemon_that_left_the_group_blocks_nothing(world):
    ran = world.run(sh="setsid sh -c 'echo $$ > \"$PIDS/daemon\"; exec sleep 60' > /dev/null 2>&1 & exit 0")
    daemon = int(wait_until(lambda: (world.pids / "daemon").exists() and (world.pids / "daemon").read_text().strip()))
    assert ran.said() == (0, "done", None)
    assert world.run().said() == (0, "skipped", "done")
    assert world.run(now="2026-11-10T12:00:00Z").said() == (0, "done", None)
    os.kill(daemon, 9)


def test_lock_files_that_were_left_behind_block_nothing(world):
    world.run()
    attempts = world.folder / "attempts"
    (attempts / ("0" * 32)).write_bytes(b"")
    (attempts / ("1" * 32)).write_bytes(b'12 deadbeef {"pid": 1}\n')
    (attempts / "lost+found").mkdir()
    world.store.with_name("ledger.db.lock").touch()
    assert world.run(now="2026-11-10T12:00:00Z").said() == (0, "done", None)


# --- what a command gets --------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_command_learns_which_run_it_is(world):
    ran = world.run("--version", "v7", "--trigger", "api", sh='env | grep ^RANONCE_ | sort > "$PIDS/env"')
    told = dict(line.split("=", 1) for line in (world.pids / "env").read_text().splitlines())
    told.pop("RANONCE_TEST_WORLD")
    owner = told.pop("RANONCE_OWNER")
    assert len(owner) == 32
    assert told == {
        "RANONCE_JOB": "job",
        "RANONCE_WINDOW": TODAY,
        "RANONCE_WINDOW_START": "2026-11-09T00:00:00Z",
        "RANONCE_WINDOW_END": "2026-11-10T00:00:00Z",
        "RANONCE_ATTEMPT": "1",
        "RANONCE_GENERATION": "1",
        "RANONCE_TRIGGER": "api",
        "RANONCE_VERSION": "v7",
        "RANONCE_LEDGER": world.ledger,
        "RANONCE_STORE": world.url,
        "RANONCE_CONFIG": str(world.config),
        "RANONCE_MESSAGES": f"{world.folder}/attempts/{owner}.messages",
    }
    assert ran.receipt["trigger"] == "api"


@pytest.mark.every_store
def test_a_command_inherits_no_handle_of_the_ledger_but_its_lock(world):
    world.run(sh='for fd in /proc/$$/fd/*; do readlink $fd; done > "$PIDS/handles"')
    handles = (world.pids / "handles").read_text().splitlines()
    assert [handle for handle in handles if handle.startswith("socket:")] == []
    ours = [handle for handle in handles if str(world.root) in handle and "/pids/" not in handle]
    assert len(ours) == 1
    assert "/attempts/" in ours[0]


def test_a_job_can_run_another_job_of_the_same_ledger(world):
    inner = f'$RANONCE run inner --every day --now {NOON} -- /bin/sh -c "$WORK"'
    ran = world.run(job="outer", sh=inner, env={"WORK": EFFECT})
    assert ran.exit == 0
    assert [receipt["job"] for receipt in ran.receipts] == ["inner", "outer"]
    assert world.effects() == [f"inner {TODAY} 1"]


def test_window_in_an_argument_is_replaced_everywhere(world):
    ran = world.ranonce("run", "job", "--every", "day", "--now", NOON, "--", "echo", "{window}", "out/{window}.json")
    assert ran.out == f"{TODAY} out/{TODAY}.json\n".encode()


def test_arguments_reach_the_command_byte_for_byte_and_no_shell_reads_them(world):
    arguments = [b"a b", b"$HOME", b"*", b"\xff\xfe", b"'\"", b"--", b"{WINDOW}", b""]
    show = "import os, sys; print([os.fsencode(word) for word in sys.argv[1:]])"
    ran = world.ranonce("run", "job", "--every", "day", "--now", NOON, "--", sys.executable, "-c", show, *arguments)
    assert ran.out == f"{arguments}\n".encode()


@pytest.mark.every_store
def test_a_command_cannot_eat_the_input_of_a_loop_around_it(world):
    days = b"2026-11-01\n2026-11-02\n2026-11-03\n"
    ran = world.shell("while read day; do $RANONCE run job --every day --window $day -- cat; done", given=days)
    assert ran.out == b""
    assert [receipt["window"] for receipt in ran.receipts] == days.decode().split()
    assert {receipt["event"] for receipt in ran.receipts} == {"done"}


def test_a_command_is_given_our_input_where_that_is_asked_for(world):
    ran = world.shell("$RANONCE run job --every day --stdin -- cat", given=b"to be read")
    assert ran.out == b"to be read"


def test_standard_output_passes_through_as_it_is(world):
    ran = world.run("--receipt", "none", sh=r"printf 'a\000\377b\r\n'; printf 'err\376' >&2")
    assert ran.out == b"a\x00\xffb\r\n"
    assert ran.error == b"err\xfe"
