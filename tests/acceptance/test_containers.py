"""Containers of one kernel on one ledger's volume: one host name, a process 1 and, mostly, a state folder for each."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.containers import ONE_TICK, TICKS, Container, first_process, never_two_at_once, spans

LEASE = ("--lease", "2s", "--grace-kill", "0.2s")


@pytest.fixture
def containers(world):
    """Make containers of one host name."""
    return lambda *names, **how: [Container(world, name, "box", **how) for name in names]


@contextlib.contextmanager
def locked(world):
    """Hold the ledger's write lock, as any program may that opens the file."""
    with contextlib.closing(sqlite3.connect(world.store, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def in_line(world) -> int:
    """Return how many writers stand in line for the ledger, the first of them included. Source: proc(5), locks."""
    inode = os.stat(f"{world.store}-line").st_ino
    return sum(f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_a_file_locked_for_longer_than_a_lease_lets_no_second_container_start(world, containers):
    one, two, three = containers("one", "two", "three")
    working = one.works(*LEASE)
    with locked(world):
        wait_until(lambda: world.left_of_the_lease() < -0.5)
        others = [place.start(*world.words(*LEASE)) for place in (two, three, two)]
        wait_until(lambda: in_line(world) >= 3)  # they wait for the file like the renewal, and may be before it
    for other in others:
        refused = other.ends()
        assert refused.said() == (75, "skipped", "busy")
        assert "box pid 1 still works" in refused.receipt["sentence"]
    before = len(world.effects())
    wait_until(lambda: len(world.effects()) > before)
    world.let_go()
    assert working.ends().said() == (0, "done", None)
    assert list(spans(world)) == [1]
    assert world.state() == ("done", 1)


def test_another_window_waits_for_the_container_as_well(world, containers):
    one, two = containers("one", "two")
    working = one.works(*LEASE)
    with locked(world):
        wait_until(lambda: world.left_of_the_lease() < -0.5)
        other = two.start(*world.words(*LEASE, now="2026-11-10T12:00:00Z"))
        wait_until(lambda: in_line(world))
    refused = other.ends()
    assert refused.said() == (75, "skipped", "overlap")
    assert "box pid 1 still works" in refused.receipt["sentence"]
    world.let_go()
    assert working.ends().exit == 0


def test_a_paused_container_keeps_its_claim_and_is_named(world, containers):
    one, two = containers("one", "two")
    working = one.works(*LEASE)
    os.kill(first_process(working), signal.SIGSTOP)
    wait_until(lambda: world.left_of_the_lease() < -0.5)
    refused = two.start(*world.words(*LEASE)).ends()
    assert refused.said() == (75, "skipped", "busy")
    assert "box pid 1 still works" in refused.receipt["sentence"]
    seen = two.start("show", "job", "2026-11-09").ends()
    assert b"box pid 1 works, and cannot renew its lease" in seen.out
    os.kill(first_process(working), signal.SIGCONT)
    world.let_go()
    assert working.ends().said() == (0, "done", None)
    assert list(spans(world)) == [1]


def test_a_killed_container_is_taken_over_when_its_lease_is_over_and_not_before(world, containers):
    one, two = containers("one", "two")
    working = one.works(*LEASE)
    os.kill(first_process(working), signal.SIGKILL)
    working.ends()
    left = world.left_of_the_lease()
    assert left > 0
    refused = two.start(*world.words(*LEASE)).ends()
    if refused.exit != 0:  # on a slow machine the lease may be over already
        assert refused.said() == (75, "skipped", "busy")
        assert "still works" not in refused.receipt["sentence"]
    world.let_go()
    wait_until(lambda: two.start(*world.words(*LEASE, sh=TICKS)).ends().exit == 0)
    assert world.state() == ("done", 2)
    assert ("expired", "its lease is over", 1) in world.events()
    assert never_two_at_once(world)


def test_a_locked_file_lets_no_second_container_start_where_the_state_folder_is_shared_either(world, containers):
    one, two = containers("shared", "shared")
    working = one.works(*LEASE)
    with locked(world):
        wait_until(lambda: world.left_of_the_lease() < -0.5)
        others = [two.start(*world.words(*LEASE)) for _ in range(3)]
        wait_until(lambda: in_line(world) >= 3)
    for other in others:
        assert other.ends().said() == (75, "skipped", "busy")
    world.let_go()
    assert working.ends().exit == 0


@pytest.mark.every_store
def test_containers_that_share_the_state_folder_prove_each_other_no_death(world, containers):
    """They see the same locked files, and the pids in them mean nothing to each other; nor does the name of both."""
    one, two = containers("shared", "shared")
    lease = ("--lease", "3s")
    working = one.works(*lease)
    first = first_process(working)
    with open(f"/proc/{first}/ns/pid"):  # else the next container may be given its number
        os.kill(first, signal.SIGKILL)
        working.ends()
        refused = two.start(*world.words(*lease, sh=ONE_TICK)).ends()
        assert refused.said() == (75, "skipped", "busy")
        assert "still works" not in refused.receipt["sentence"]
        wait_until(lambda: two.start(*world.words(*lease, sh=ONE_TICK)).ends().exit == 0)
    assert world.state() == ("done", 2)
    assert ("expired", "its lease is over", 1) in world.events()
    assert never_two_at_once(world)


def test_a_container_with_a_boot_clock_of_its_own_sees_that_the_other_works(world, containers):
    """Leases of another clock say nothing: whoever meets one waits for a full lease, while the file is locked, too."""
    (one,) = containers("one")
    (two,) = containers("two", options="--time --boottime 1000000")
    working = one.works(*LEASE)
    assert two.start(*world.words(*LEASE)).ends().said() == (75, "skipped", "busy")
    with locked(world):
        wait_until(lambda: world.left_of_the_lease() < -2.5)
        other = two.start(*world.words(*LEASE))
        wait_until(lambda: in_line(world))
    refused = other.ends()
    assert refused.said() == (75, "skipped", "busy")
    assert "box pid 1 still works" in refused.receipt["sentence"]
    world.let_go()
    assert working.ends().exit == 0


def test_with_two_state_folders_on_one_host_the_process_is_named(world):
    working, _ = world.hold(*LEASE, sh=f'echo $$ > "$PIDS/child"; {TICKS}')
    working.signal(signal.SIGSTOP)
    wait_until(lambda: world.left_of_the_lease() < -0.5)
    refused = world.run(*LEASE, env=world.another_state_folder())
    assert refused.said() == (75, "skipped", "busy")
    assert f"process {working.pid} (python" in refused.receipt["sentence"]
    working.signal(signal.SIGCONT)
    world.let_go()
    assert working.ends().exit == 0


@pytest.mark.every_store
def test_a_process_that_a_lease_names_is_seen_to_live_from_another_state_folder(world):
    """Also where the store is a server's: on the same host a paused attempt is not taken over."""
    working, _ = world.hold("--lease", world.lease, sh=f'echo $$ > "$PIDS/child"; {TICKS}')
    working.signal(signal.SIGSTOP)
    wait_until(lambda: world.left_of_the_lease() < -0.2)
    refused = world.run("--lease", world.lease, env=world.another_state_folder())
    assert refused.said() == (75, "skipped", "busy")
    assert f"process {working.pid} (python" in refused.receipt["sentence"]
    working.signal(signal.SIGKILL)
    working.ends()
    world.let_go()
    assert world.run("--lease", world.lease, env=world.another_state_folder()).said() == (0, "done", None)


def test_where_no_sign_can_be_shown_the_work_ends_before_its_lease_does(world, containers):
    """On a kernel without such locks: a command that hears of no TERM is killed in time, whatever its grace."""
    one, two = containers("one", "two")
    signless = {"PYTHONPATH": str(Path(__file__).parent.parent / "signless")}
    working = one.works("--lease", "2s", "--grace-kill", "60s", env=signless, sh=f"trap '' TERM; {TICKS}")
    with locked(world):
        wait_until(lambda: world.left_of_the_lease() < 0)
        ended = spans(world)[1][1]
        assert ended <= world.leases()[0].expires
        world.let_go()
        other = two.start(*world.words("--lease", "2s", sh=TICKS), env=signless)
        wait_until(lambda: in_line(world))
    assert working.ends().exit == 76
    if other.ends().exit != 0:  # what was fenced came first, and said so
        assert two.start(*world.words(sh=TICKS)).ends().exit == 0
    assert spans(world)[1][1] == ended
    assert never_two_at_once(world)
    assert world.state() == ("done", 2)
