"""Signals to `ranonce run`: they reach the whole group, end it in bounded time, and leave a verdict."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import EFFECT, HELD_EFFECT, TODAY, lives, wait_until

STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]


def may_make_namespaces() -> bool:
    return shutil.which("unshare") is not None and subprocess.run(["unshare", "-pf", "true"]).returncode == 0


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_stop_signal_reaches_the_command_and_is_its_verdict(world, number):
    heard = f"trap 'echo {number.name} >> \"$PIDS/heard\"; exit 0' {number.name[3:]}; {HELD_EFFECT}"
    invocation, child = world.hold(sh=heard)
    invocation.signal(number)
    ran = invocation.ends()
    assert ran.said() == (-number, "stopped", "signal")  # although the command exits 0
    assert ran.receipt["exit"] == 128 + number
    assert (world.pids / "heard").read_text() == f"{number.name}\n"
    assert not lives(child)
    assert world.state() == ("stopped", 1)
    world.let_go()
    assert world.run().said() == (0, "done", None)
    assert world.state() == ("done", 2)


def test_a_command_that_does_not_listen_is_killed_after_the_grace_with_its_whole_group(world):
    deaf = f"trap '' TERM; (trap '' TERM; exec sleep 60) & {HELD_EFFECT}"
    invocation, child = world.hold("--grace-kill", "0.3s", sh=deaf)
    began = time.monotonic()
    invocation.signal(signal.SIGTERM)
    ran = invocation.ends()
    assert 0.3 <= time.monotonic() - began < 5
    assert ran.said() == (-signal.SIGTERM, "stopped", "signal")
    assert not lives(child)
    assert world.no_process_is_left()
    world.let_go()
    assert world.run().said() == (0, "done", None)


def test_a_stop_by_signal_costs_no_attempt(world):
    for _ in range(3):
        invocation, _ = world.hold("--max-attempts", "1", "--grace-kill", "0.2s")
        invocation.signal(signal.SIGTERM)
        assert invocation.ends().said() == (-signal.SIGTERM, "stopped", "signal")
    world.let_go()
    assert world.run("--max-attempts", "1").said() == (0, "done", None)
    assert (world.run_of().failures, world.run_of().attempt) == (0, 4)


def test_a_service_manager_that_signals_everything_at_once_gets_the_same_verdict(world):
    invocation, child = world.hold(sh=f'{EFFECT}; echo $$ > "$PIDS/child"; exec sleep 60')
    os.killpg(child, signal.SIGTERM)
    invocation.signal(signal.SIGTERM)
    ran = invocation.ends()
    # Whoever is heard first: the command was ended by TERM, and so are we.
    assert ran.exit == -signal.SIGTERM
    assert ran.receipt["event"] in ("stopped", "failed")
    assert ran.receipt["reason"] == "signal"
    assert world.run(sh=EFFECT).said() == (0, "done", None)


def test_user_signals_are_passed_on_and_stop_nothing(world):
    script = f"""trap 'echo one >> "$PIDS/heard"' USR1; trap 'echo two >> "$PIDS/heard"' USR2; {HELD_EFFECT}"""
    invocation, _ = world.hold(sh=script)
    heard = world.pids / "heard"
    for number, text in ((signal.SIGUSR1, "one\n"), (signal.SIGUSR2, "one\ntwo\n")):
        invocation.signal(number)
        wait_until(lambda text=text: heard.exists() and heard.read_text() == text)
    world.let_go()
    assert invocation.ends().said() == (0, "done", None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE], ids=lambda number: number.name)
def test_the_death_of_a_command_by_a_signal_is_passed_on(world, number):
    ran = world.run(sh=f"kill -{number.value} $$")
    assert ran.said() == (-number, "failed", "signal")
    assert ran.receipt["exit"] == 128 + number
    assert "child_exit" not in ran.receipt
    assert world.state() == ("failed", 1)


def test_a_signal_that_the_caller_ignores_stops_neither_us_nor_the_command(world):
    hangs_up = "kill -HUP $PPID; kill -HUP $$"
    ran = world.shell(f"trap '' HUP; $RANONCE run job --every day -- /bin/sh -c '{hangs_up}'")
    assert ran.said() == (0, "done", None)


@pytest.mark.every_store(cases=1)
@pytest.mark.skipif(not may_make_namespaces(), reason="PID namespaces are not permitted here")
@pytest.mark.parametrize("how", ["exit 7", "kill -9 $$"])
def test_as_pid_1_orphans_are_reaped_and_the_exit_status_is_the_commands(world, how):
    orphans = 'for n in 1 2 3 4 5; do (sh -c "exit 3" &) ; done; sleep 0.1'
    words = world.words("--leftovers", "leave", sh=f"{orphans}; {how}")
    ran = subprocess.run(
        ["unshare", "-pf", "--mount-proc", sys.executable, "-m", "ranonce", *words],
        env=world.env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ran.returncode == (7 if how == "exit 7" else 137), ran.stderr
    assert world.state() == ("failed", 1)


@pytest.mark.skipif(not may_make_namespaces(), reason="PID namespaces are not permitted here")
def test_pid_1_ends_with_128_and_the_number_of_the_signal(world):
    words = world.words(sh=HELD_EFFECT)
    (world.pids / "hold").touch()
    process = subprocess.Popen(
        ["unshare", "-pf", "--mount-proc", sys.executable, "-m", "ranonce", *words],
        env=world.env,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: world.effects() == [f"job {TODAY} 1"])
    inside = [pid for pid in world.processes() if pid != process.pid]
    os.kill(min(inside), signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert world.state() == ("stopped", 1)
