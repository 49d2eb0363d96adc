"""`ranonce step`: a piece of a job is done once, and its messages are there once, whatever ends the job."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter

import pytest

from tests.conftest import HELD_EFFECT, NOON, TODAY, wait_until
from tests.outboxes import bodies, messages

#: A loop over items, each of which is paid for, emits a comment, and prints a result.
LOOP = """
for i in $(seq "$ITEMS"); do
  $RANONCE step "item-$i" -- sh -c "
    echo paid for $i >> '$EFFECTS'
    echo comment $i | $RANONCE emit github
    test '$RANONCE_ATTEMPT:$i' != '$DIE' || kill -9 -$$
    echo result $i" || exit
done
"""


def expected(count):
    return {f"job:{TODAY}/github/item-{item}": b"comment %d\n" % item for item in range(1, count + 1)}


def loop(world, count, **env):
    return world.run("--max-attempts", "20", sh=LOOP, env={"ITEMS": str(count), "DIE": "", **env}, seconds=240)


def test_killed_at_item_12_every_comment_is_there_once_and_nothing_is_paid_for_again(world):
    killed = loop(world, 20, DIE="1:12")
    assert (killed.receipt["event"], killed.receipt["child_signal"]) == ("failed", 9)
    assert bodies(world) == expected(11)
    ran = loop(world, 20)
    assert ran.said() == (0, "done", None)
    assert bodies(world) == expected(20)
    assert Counter(world.effects()) == {f"paid for {item}": 2 if item == 12 else 1 for item in range(1, 21)}
    assert ran.out.decode().splitlines() == [f"result {item}" for item in range(1, 21)]
    assert world.attempt_files() == []


@pytest.mark.every_store
def test_a_step_that_is_done_is_not_run_again_and_prints_the_same(world):
    first = loop(world, 2, DIE="1:2")
    assert bodies(world) == expected(1)
    again = loop(world, 2)
    assert (first.out, again.out) == (b"result 1\n", b"result 1\nresult 2\n")
    assert bodies(world) == expected(2)


PLACES = [
    "commit:before-writes",
    "commit:after-steps",
    "commit:after-messages",
    "commit:after-events",
    "commit:before-commit",
    "commit:after-commit",
    "mark:committed",
    "step:command-ended",
    "step:marked",
]


@pytest.mark.parametrize("point", PLACES)
def test_killed_at_any_place_of_a_step_it_is_done_with_its_message_or_not_at_all(world, point):
    step = 'echo hi | RANONCE_FAILPOINT= $RANONCE emit slack; echo paid >> "$EFFECTS"'
    script = f"RANONCE_FAILPOINT=$POINT $RANONCE step pay -- sh -c '{step}'"
    killed = world.run(sh=script, env={"POINT": point})
    assert killed.receipt["child_exit"] == 137, f"{point} was never passed"
    with world.opened() as store:
        run = store.runs("job", 0, 1 << 40)[0]
        done = store.steps(run.key, run.window_start, 1)
    assert len(messages(world)) == len(done)
    assert world.run(sh=script, env={"POINT": ""}).said() == (0, "done", None)
    assert bodies(world) == {f"job:{TODAY}/slack/pay": b"hi\n"}
    assert len(world.effects()) == 2 - len(done)
    assert world.attempt_files() == []


@pytest.mark.every_store
def test_the_messages_of_a_step_go_out_though_the_job_fails(world):
    ran = world.run(
        sh="$RANONCE step pay -- sh -c 'echo hi | $RANONCE emit slack'; echo x | $RANONCE emit slack; exit 3"
    )
    assert (ran.exit, ran.receipt["not_sent"]) == (3, 1)
    found = messages(world)
    assert [(message.key, message.item, message.attempt) for message in found] == [(f"job:{TODAY}/slack/pay", "pay", 1)]


def test_a_step_that_fails_sends_nothing_is_not_done_and_passes_its_status_on(world):
    script = "$RANONCE step pay -- sh -c 'echo hi | $RANONCE emit slack; exit 7'; echo $?"
    for _ in range(2):
        ran = world.run(sh=f"{script}; exit 1")
        assert ran.out == b"7\n"
    assert messages(world) == []


def test_a_rerun_does_its_steps_again(world):
    script = '$RANONCE step pay -- sh -c "echo paid >> $EFFECTS; echo hi | $RANONCE emit slack"'
    world.run(sh=script)
    again = ("rerun", "job", TODAY, "--every", "day", "--reason", "again")
    assert world.ranonce(*again, "--", "/bin/sh", "-c", script).said() == (0, "done", None)
    assert world.effects() == ["paid", "paid"]
    assert len(messages(world)) == 1
    world.ranonce(*again, "--resend", "--", "/bin/sh", "-c", script)
    assert list(bodies(world)) == [f"job:{TODAY}/slack/pay", f"job:{TODAY}/slack/pay#3"]


def test_a_rerun_whose_step_says_something_else_is_a_conflict_that_is_said_and_noted(world):
    script = "$RANONCE step pay -- sh -c 'echo $RANONCE_GENERATION | $RANONCE emit slack'"
    world.run(sh=script)
    ran = world.ranonce("rerun", "job", TODAY, "--every", "day", "--reason", "again", "--", "/bin/sh", "-c", script)
    assert (ran.exit, "stands for another body" in ran.err) == (0, True)
    assert bodies(world) == {f"job:{TODAY}/slack/pay": b"1\n"}
    assert "noted" in [event for event, *_ in world.events()]


@pytest.mark.parametrize(
    ("step", "status", "words"),
    [
        ("$RANONCE step", 64, "NAME is missing"),
        ("$RANONCE step pay", 64, "a step has one command"),
        ("$RANONCE step '' -- true", 64, "NAME is empty"),
        ("$RANONCE step ' a' -- true", 64, "cannot be seen"),
        ("$RANONCE step pay -- no-such-command", 127, "was not found"),
        ("$RANONCE step pay -- /etc/passwd", 126, "cannot be executed"),
        ("$RANONCE step outer -- $RANONCE step inner -- true", 64, "inside the step 'outer' already"),
        ("RANONCE_ATTEMPT=7 $RANONCE step pay -- true", 76, "no longer holds"),
        ("$RANONCE step pay -- head -c 262145 /dev/zero > /dev/null", 64, "printed more than 262144 bytes"),
        ("$RANONCE step pay -- seq 100000 > /dev/full", 74, "could not be written: No space left"),
        ("env -u RANONCE_OWNER $RANONCE step pay -- true", 64, "not inside a job"),
    ],
)
def test_a_step_that_cannot_be_done_says_why(world, step, status, words):
    world.run(sh=f'{step} 2> "$PIDS/said"; echo $? > "$PIDS/status"')
    said = (world.pids / "said").read_text()
    assert (world.pids / "status").read_text() == f"{status}\n", said
    assert words in said
    assert "Traceback" not in said
    with world.opened() as store:
        run = store.runs("job", 0, 1 << 40)[0]
        assert store.steps(run.key, run.window_start, 1) == []


def test_a_command_may_stand_without_the_two_dashes(world):
    assert world.run(sh="$RANONCE step pay echo hello").out == b"hello\n"


def test_what_a_step_prints_is_passed_on_while_it_works(world):
    invocation, _ = world.hold(sh=f"$RANONCE step pay -- sh -c 'echo early; {HELD_EFFECT}'")
    assert os.read(invocation.process.stdout.fileno(), 100) == b"early\n"
    world.let_go()
    assert invocation.ends().said() == (0, "done", None)


def test_a_step_whose_reader_is_gone_goes_on_and_is_done(world):
    script = "$RANONCE step pay -- sh -c 'seq 20000; echo paid >> $EFFECTS' | head -1"
    assert world.run(sh=script).out == b"1\n"
    assert world.effects() == ["paid"]


def test_a_signal_to_a_step_is_passed_on_to_its_command(world):
    step = "$RANONCE step pay -- sh -c 'trap \"exit 9\" TERM; echo $PPID > $PIDS/child; while :; do sleep 0.02; done'"
    invocation, pid = world.hold(sh=f"{step}; echo $?")
    os.kill(pid, signal.SIGTERM)
    ran = invocation.ends()
    assert ran.out == b"9\n"


def test_whoever_stops_the_job_stops_its_step(world):
    step = "$RANONCE step pay -- sh -c 'echo $$ > $PIDS/child; exec sleep 60'"
    invocation, _ = world.hold(sh=step)
    invocation.signal(signal.SIGTERM)
    assert invocation.ends().receipt["event"] == "stopped"
    wait_until(world.no_process_is_left, 5)
    assert world.attempt_files() == []


def test_steps_at_the_same_time_keep_their_messages_apart(world):
    script = 'for i in 1 2 3 4; do $RANONCE step item-$i -- sh -c "echo comment $i | $RANONCE emit github" & done; wait'
    assert world.run(sh=script).said() == (0, "done", None)
    assert bodies(world) == expected(4)


def test_a_step_that_ran_and_could_not_be_recorded_says_so(world):
    world.wait_for_the_store(0.2)
    script = """$RANONCE step pay -- mv "$STORE" "$STORE.away"; echo $? > "$PIDS/status"; mv "$STORE.away" "$STORE" """
    ran = world.run(sh=script, env={"STORE": str(world.store)})
    assert (world.pids / "status").read_text() == "74\n", ran.err


def test_no_step_is_begun_while_the_ledger_is_away(world):
    world.wait_for_the_store(0.2)
    script = (
        'mv "$STORE" "$STORE.away"; $RANONCE step pay -- sh -c "echo paid >> $EFFECTS"; echo $? > "$PIDS/status";'
        ' mv "$STORE.away" "$STORE"'
    )
    world.run(sh=script, env={"STORE": str(world.store)})
    assert (world.pids / "status").read_text() in ("69\n", "78\n")
    assert world.effects() == []


def test_a_step_that_was_paused_past_the_lease_emits_nothing(world):
    step = f"$RANONCE step pay -- sh -c 'echo by 1 | $RANONCE emit slack; {HELD_EFFECT}'"
    stale, _ = world.hold("--lease", "2s", sh=step)
    stale.signal(signal.SIGSTOP)
    group = [pid for pid in world.processes() if pid != stale.pid]
    for pid in group:
        with contextlib.suppress(ProcessLookupError):  # the command waits by short sleeps
            os.kill(pid, signal.SIGSTOP)
    other = "$RANONCE step pay -- sh -c 'echo by 2 | $RANONCE emit slack'"
    elsewhere = world.another_host()
    again = ("--lease", "2s", "--max-attempts", "20")
    wait_until(lambda: world.run(*again, sh=other, env=elsewhere).exit == 0)
    world.let_go()
    for pid in group:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not set(group) & set(world.processes()))
    stale.signal(signal.SIGCONT)
    ended = stale.ends()
    assert "no longer holds" in ended.err or ended.exit == 76
    assert bodies(world) == {f"job:{TODAY}/slack/pay": b"by 2\n"}


def test_a_trigger_of_the_same_window_knows_nothing_of_steps(world):
    world.run(sh="$RANONCE step pay -- true", now=NOON)
    assert world.run(now=NOON).said() == (0, "skipped", "done")
