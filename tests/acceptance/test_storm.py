"""Wrappers killed at random moments, many at once: whatever is hit, no window is worked on twice at the same time."""

from __future__ import annotations

import random
import shutil
import signal
import time

import pytest

from tests.conftest import wait_until

#: Work that notices company: the lock of the window is free unless another attempt works on it.
ALONE = (
    'exec 9> "$PIDS/$RANONCE_WINDOW"; flock -n 9 || echo "$RANONCE_WINDOW $RANONCE_ATTEMPT" >> "$PIDS/company";'
    ' sleep 0.05; echo "$RANONCE_WINDOW $RANONCE_ATTEMPT" >> "$EFFECTS"; test -e "$PIDS/enough"'
)
DAYS = ["2026-11-07", "2026-11-08", "2026-11-09"]
ROUNDS = 12


@pytest.mark.every_store(cases=1)
@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
@pytest.mark.parametrize("seed", [1, 2])
def test_in_a_storm_of_kills_attempts_follow_each_other_and_never_meet(world, seed):
    chance = random.Random(seed)

    def words(day):
        window = ("--window", day, "--overlap", "allow", "--max-attempts", "1000", "--leftovers", "wait")
        return world.words(*window, sh=ALONE)

    for _ in range(ROUNDS):
        started = [world.start(*words(chance.choice(DAYS))) for _ in range(3)]
        for invocation in started:
            time.sleep(chance.uniform(0.03, 0.12))
            if chance.random() < 0.7:
                invocation.signal(signal.SIGKILL)
        for invocation in started:
            assert "Traceback" not in invocation.ends().err
    (world.pids / "enough").touch()
    for day in DAYS:
        wait_until(lambda day=day: world.ranonce(*words(day)).exit == 0)
        assert world.state(window=day)[0] == "done"
        starts = [attempt for event, _, attempt in world.events(window=day) if event == "start"]
        assert starts == list(range(1, len(starts) + 1))
        assert [event for event, _, _ in world.events(window=day)].count("done") == 1
    assert not (world.pids / "company").exists()
    assert len(world.effects()) > len(DAYS)
    assert world.leases() == []
    assert world.ranonce("doctor", "--deep", "--quiet").out == b""
