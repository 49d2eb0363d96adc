"""What dies, and what the next trigger makes of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib

import pytest

from ranonce.ledger import OpenLedger, outcome_text
from ranonce.lifecycle import Claim, Verdict
from ranonce.liveness import group_members
from tests.conftest import EFFECT, HELD_EFFECT, TODAY, lives, wait_until
from tests.contract.acting import ask

DEAF = f"trap '' TERM; {HELD_EFFECT}"  # a command that TERM (and so the death of its parent) does not end
TOMORROW = "2026-11-10T12:00:00Z"


def killed(world, *options, sh=HELD_EFFECT, **how):
    """Run a command, and kill it and its wrapper outright while it works; return what was killed."""
    invocation, child = world.hold(*options, sh=sh, **how)
    invocation.signal(signal.SIGSTOP)  # so that the wrapper cannot see the command's end
    os.killpg(child, signal.SIGKILL)
    invocation.signal(signal.SIGKILL)
    assert invocation.ends().exit == -signal.SIGKILL
    world.let_go()
    wait_until(lambda: not group_members(child))
    return invocation, child


@pytest.mark.every_store
def test_a_command_that_outlives_its_killed_wrapper_blocks_a_second_start(world):
    invocation, child = world.hold("--lease", world.lease, sh=DEAF)
    invocation.signal(signal.SIGKILL)
    assert invocation.ends().exit == -signal.SIGKILL
    wait_until(lambda: world.left_of_the_lease() < -0.2)  # not even after the lease is over
    for now in (None, TOMORROW):
        refused = world.run(*(("--window", TODAY) if now is None else ()), now=now)
        assert refused.exit == 75
        assert refused.receipt["reason"] == ("busy" if now is None else "overlap")
        assert f"process {child} (sh) still works" in refused.receipt["sentence"]
    assert lives(child)
    world.let_go()
    wait_until(lambda: not group_members(child))
    assert world.run().said() == (0, "done", None)
    assert world.effects() == [f"job {TODAY} 1", f"job {TODAY} 2"]
    assert [event for event in world.events() if event[0] != "skipped"] == [
        ("start", "start", 1),
        ("expired", "its process is dead", 1),
        ("start", "take-over", 2),
        ("done", None, 2),
    ]


def test_a_probe_names_at_once_what_outlives_its_killed_wrapper(world):
    working, child = world.hold(sh=DEAF)
    span = ("--since", "2026-11-09T00:00:00Z", "--until", "2026-11-10T00:00:00Z")
    assert b"zombies=0" in world.ranonce("probe", *span).out
    working.signal(signal.SIGKILL)
    working.ends()
    probe = wait_until(lambda: (said := world.ranonce("probe", *span)).exit == 1 and said)
    assert b"zombies=1" in probe.out
    assert f"process {child} (sh) works on, but its ranonce is dead".encode() in probe.out
    assert f"kill {child}".encode() in probe.out
    world.let_go()


def test_a_command_that_closed_the_lock_it_inherited_still_blocks_a_second_start(world):
    closing = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.closerange(3, 4096);"
        'open(os.environ["PIDS"] + "/child", "w").write(str(os.getpid())); time.sleep(60)'
    )
    invocation, child = world.hold("--lease", world.lease, sh=f"exec {sys.executable} -c '{closing}'")
    invocation.signal(signal.SIGKILL)
    invocation.ends()
    refused = world.run("--lease", world.lease)
    assert refused.said() == (75, "skipped", "busy")
    assert f"process {child} " in refused.receipt["sentence"]
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not lives(child))
    assert world.run("--lease", world.lease).said() == (0, "done", None)


def test_a_command_dies_with_its_killed_wrapper(world):
    invocation, child = world.hold(sh=f'{EFFECT}; echo $$ > "$PIDS/child"; exec sleep 60')
    invocation.signal(signal.SIGKILL)
    invocation.ends()
    wait_until(lambda: not lives(child))


@pytest.mark.every_store
def test_a_killed_attempt_is_taken_over_at_once_on_its_host(world):
    killed(world)  # the lease is 5 minutes
    again = world.run()
    assert again.said() == (0, "done", None)
    assert again.receipt["attempt"] == 2
    assert world.state() == ("done", 2)
    assert world.events() == [
        ("start", "start", 1),
        ("expired", "its process is dead", 1),
        ("start", "take-over", 2),
        ("done", None, 2),
    ]
    assert world.attempt_files() == []


def test_a_killed_attempt_blocks_no_other_window(world):
    killed(world)
    assert world.run(now=TOMORROW).said() == (0, "done", None)
    assert world.state() == ("running", 1)  # nobody asked for this window yet: a zombie that a probe names


@pytest.mark.every_store
def test_another_host_waits_for_the_lease_of_a_killed_attempt(world):
    killed(world, "--lease", world.lease)
    elsewhere = world.another_host()
    refused = world.run("--lease", world.lease, env=elsewhere)
    if refused.exit != 0:  # on a slow machine the lease may be over already
        assert refused.said() == (75, "skipped", "busy")
        wait_until(lambda: world.run("--lease", world.lease, env=elsewhere).exit == 0)
    assert world.state() == ("done", 2)
    assert ("expired", "its lease is over", 1) in world.events()


@pytest.mark.every_store
def test_attempts_that_crash_are_counted_and_end(world):
    for _ in range(2):
        killed(world, "--max-attempts", "2")
    refused = world.run("--max-attempts", "2")
    assert refused.said() == (80, "skipped", "exhausted")
    assert world.state() == ("failed", 2)
    assert world.run("--max-attempts", "2").said() == (80, "skipped", "exhausted")
    assert len(world.effects()) == 2


def test_a_daemon_that_holds_the_lock_of_a_killed_attempt_blocks_until_the_lease_ends(world):
    daemon_file = world.pids / "daemon"
    daemon = "setsid sh -c 'echo $$ > \"$PIDS/daemon\"; exec sleep 60' > /dev/null 2>&1 &"
    killed(world, "--lease", "2s", sh=f'{daemon} while ! test -s "$PIDS/daemon"; do sleep 0.01; done; {HELD_EFFECT}')
    first = world.run("--lease", "2s")
    wait_until(lambda: world.run("--lease", "2s").exit == 0)
    daemon = int(daemon_file.read_text())
    assert lives(daemon)
    os.kill(daemon, signal.SIGKILL)
    assert first.said() in [(75, "skipped", "busy"), (0, "done", None)]
    assert world.state() == ("done", 2)


# --- the policies ---------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_crash_whose_effects_may_have_happened_is_held_for_a_person(world):
    killed(world, "--on-crash", "hold")
    for _ in range(2):
        held = world.run("--on-crash", "hold")
        assert held.said() == (80, "skipped", "held")
    assert world.state() == ("held", 1)
    assert world.run("--on-crash", "hold", now=TOMORROW).said() == (0, "done", None)
    assert world.effects() == [f"job {TODAY} 1", "job 2026-11-10 1"]


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("as_", ["done", "not-done"])
def test_a_person_says_what_became_of_a_held_run(world, as_):
    killed(world, "--on-crash", "hold")
    assert world.run("--on-crash", "hold").exit == 80
    released = world.ranonce("release", "job", TODAY, "--as", as_, "--reason", "looked into the mailbox")
    assert released.exit == 0, released.err
    again = world.run("--on-crash", "hold")
    assert again.said() == ((0, "skipped", "done") if as_ == "done" else (0, "done", None))
    assert len(world.effects()) == (1 if as_ == "done" else 2)
    assert ("released", "looked into the mailbox", 1) in world.events()


def test_a_release_does_not_touch_what_works_or_is_done(world):
    working, _ = world.hold()
    words = ("release", "job", TODAY, "--as", "not-done", "--reason", "impatience")
    assert world.ranonce(*words).exit == 75
    world.let_go()
    working.ends()
    assert world.ranonce(*words).exit == 80
    assert json.loads(world.ranonce(*words, "--json").out) == {
        "event": "refused",
        "job": "job",
        "window": TODAY,
        "reason": "not-held",
        "sentence": f"job:{TODAY} is done, so nothing holds it back",
    }
    assert world.state() == ("done", 1)


def test_a_release_frees_a_crashed_window_before_its_lease_ends(world):
    killed(world)
    assert world.ranonce("release", "job", TODAY, "--as", "done", "--reason", "it was sent").exit == 0
    assert world.state() == ("done", 1)
    assert world.run().said() == (0, "skipped", "done")


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    ("look", "exit", "event", "reason", "effects"),
    [
        ("exit 0", 0, "done", "reconciled", 1),
        ("exit 1", 0, "done", None, 2),
        ("exit 2", 80, "held", "reconcile: exit 2", 1),
        ("/not/there", 80, "held", "reconcile: exit 127", 1),
    ],
)
def test_a_look_decides_whether_crashed_work_was_done(world, look, exit, event, reason, effects):
    policy = ("--on-crash", "reconcile", "--reconcile", look)
    killed(world, *policy)
    ran = world.run(*policy)
    assert ran.said() == (exit, event, reason)
    assert len(world.effects()) == effects
    assert world.state() == (event, 2)


def test_a_look_that_was_stopped_by_a_signal_is_taken_again(world):
    look = 'echo >> "$PIDS/looks"; test -e "$PIDS/answer" || exec sleep 60'
    policy = ("--on-crash", "reconcile", "--reconcile", look, "--grace-kill", "0.2s")
    killed(world, *policy)
    looking = world.start(*world.words(*policy))
    wait_until((world.pids / "looks").exists)
    looking.signal(signal.SIGTERM)
    assert looking.ends().said() == (-signal.SIGTERM, "stopped", "signal")
    (world.pids / "answer").touch()
    assert world.run(*policy).said() == (0, "done", "reconciled")
    assert len(world.effects()) == 1


def test_a_look_that_crashed_itself_is_taken_again(world):
    look = 'echo $$ > "$PIDS/child"; test -e "$PIDS/answer" || exec sleep 60'
    policy = ("--on-crash", "reconcile", "--reconcile", look)
    killed(world, *policy)
    (world.pids / "child").unlink()
    looking = world.start(*world.words(*policy))
    child = int(wait_until(lambda: (world.pids / "child").exists() and (world.pids / "child").read_text()))
    looking.signal(signal.SIGKILL)
    looking.ends()
    wait_until(lambda: not lives(child))
    (world.pids / "answer").touch()
    assert world.run(*policy).said() == (0, "done", "reconciled")
    assert len(world.effects()) == 1


# --- an attempt that comes back -------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_paused_attempt_that_was_taken_over_changes_nothing(world):
    first, child = world.hold("--lease", world.lease, "--grace-kill", "0.2s")
    first.signal(signal.SIGSTOP)
    os.killpg(child, signal.SIGSTOP)
    elsewhere = world.another_host()
    assert world.run("--lease", world.lease).said()[0] == 75  # on its own host it is seen to live
    second = wait_until(lambda: (ran := world.run("--lease", world.lease, env=elsewhere)).exit == 0 and ran)
    assert second.said() == (0, "done", None)
    first.signal(signal.SIGCONT)
    lost = first.ends()
    assert lost.said() == (76, "lost", "lost")
    assert not lives(child)
    assert world.state() == ("done", 2)
    assert world.run().said() == (0, "skipped", "done")


def test_a_paused_attempt_that_nobody_took_over_goes_on(world):
    first, child = world.hold("--lease", world.lease)
    first.signal(signal.SIGSTOP)
    wait_until(lambda: world.left_of_the_lease() < -1.2)
    first.signal(signal.SIGCONT)
    wait_until(lambda: ("noted", "renewed after the lease was over", 1) in world.events())
    assert lives(child)
    world.let_go()
    assert first.ends().said() == (0, "done", None)
    assert world.state() == ("done", 1)


@pytest.mark.every_store
def test_a_late_failure_does_not_undo_what_another_has_done(world):
    first, child = world.hold("--lease", world.lease, sh=f"{HELD_EFFECT}; exit 9")
    first.signal(signal.SIGSTOP)
    wait_until(lambda: world.run("--lease", world.lease, env=world.another_host()).exit == 0)
    world.let_go()
    wait_until(lambda: not lives(child))  # it fails before its wrapper hears of the take-over
    first.signal(signal.SIGCONT)
    assert first.ends().said() == (76, "lost", "lost")
    assert world.state() == ("done", 2)
    assert [event for event in world.events() if event[0] == "lost"] == [("lost", "failed", 1)]


def test_a_second_attempt_beside_a_paused_one_keeps_its_claim(world):
    first, child = world.hold("--lease", world.lease, "--grace-kill", "0.2s")
    first.signal(signal.SIGSTOP)
    os.killpg(child, signal.SIGSTOP)
    elsewhere = world.another_host()
    words = world.words("--lease", world.lease, sh=f'{EFFECT}; while ! test -e "$PIDS/go"; do sleep 0.02; done')
    second = wait_until(lambda: (started := world.start(*words, env=elsewhere)) and second_works(world, started))
    first.signal(signal.SIGCONT)
    assert first.ends().exit == 76
    assert world.state() == ("running", 2)
    (world.pids / "go").touch()
    assert second.ends().said() == (0, "done", None)
    assert world.effects() == [f"job {TODAY} 1", f"job {TODAY} 2"]


def second_works(world, started):
    """Wait until the invocation works or is refused; return it if it works."""
    wait_until(lambda: len(world.effects()) == 2 or started.process.poll() is not None)
    if started.process.poll() is None:
        return started
    started.ends()
    return None


@pytest.mark.every_store
def test_an_outcome_left_behind_at_the_moment_of_a_take_over_is_not_done_again(world):
    invocation, child = world.hold(now="2025-11-10T12:00:00Z")  # the window of `ask`
    invocation.signal(signal.SIGSTOP)
    ledger = OpenLedger.open(world.url, world.ledger, state_folder=str(world.folder.parent))
    assert ledger.settle_unrecorded() == []  # we look before the outcome is there
    taking = ask()
    leave_an_outcome(world.attempt_files()[0], taking)
    os.killpg(child, signal.SIGKILL)
    invocation.signal(signal.SIGKILL)
    invocation.ends()
    wait_until(lambda: not group_members(child))
    answer = ledger.claim(taking)
    ledger.close()
    assert answer.reason == "done"
    assert world.state(window=taking.window.key) == ("done", 1)
    assert world.attempt_files() == []


def leave_an_outcome(file, asked):
    """Write into an attempt's file what its wrapper writes when the command has ended well."""
    claim = Claim(asked.key, asked.window, 1, 1, file.name, "schedule", None, 300.0, time.time())
    body = json.dumps({"outcome": outcome_text(claim, Verdict("done", time.time(), exit=0))}).encode()
    written = file.read_bytes().rstrip(b"\0")
    with file.open("r+b") as there:
        there.seek(len(written))
        there.write(b"%d %08x %s\n" % (len(body), zlib.crc32(body), body))
