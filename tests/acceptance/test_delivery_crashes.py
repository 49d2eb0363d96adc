"""Deliverers that are killed, at any moment and at each of their steps, lose no message and send none twice."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter

import pytest

from tests.delivery.outboxes import declare, fill, let_leases_end, messages, received, states
from tests.world import World, wait_until

DELIVERERS = 6
STEPS = (
    "deliver:taken",
    "deliver:before-send",
    "deliver:sent",
    "deliver:before-settle",
    "deliver:settled",
    "exchange:after-moves",
    "exchange:before-commit",
    "exchange:after-commit",
)
#: Takes its input, and appends its key to a file in one write, as a shell does.
APPEND = 'cat > /dev/null; echo "$RANONCE_MESSAGE_KEY" >> "$0"'


def append_to(world: World, name: str, **settings: object) -> None:
    file = str(world.root / name)
    declare(world, name, type="command", command=["/bin/sh", "-c", APPEND, file], **settings)


def is_settled(world: World) -> bool:
    with world.opened() as store:
        return all({"pending", "sending"}.isdisjoint(states(store, name)) for name in ("keyed", "plain"))


def deliver_and_kill(world: World, chance: random.Random) -> None:
    """Start deliverers, and kill each: half of them at one of their steps, and all of them some time later."""
    started = []
    for number in range(DELIVERERS):
        step = f"{chance.choice(STEPS)}:{chance.randint(1, 12)}"
        started.append(world.start("deliver", env={"RANONCE_FAILPOINT": step} if number % 2 else None))
    came = len(received(world.root / "keyed"))
    with contextlib.suppress(AssertionError):  # all may have died before they sent anything
        wait_until(lambda: len(received(world.root / "keyed")) > came, 2)
    time.sleep(chance.uniform(0.0, 0.3))
    for invocation in started:
        invocation.signal(signal.SIGKILL)
    assert all(b"Traceback" not in invocation.ends().error for invocation in started)
    with world.opened() as store:
        for name in ("keyed", "plain"):
            let_leases_end(store, name)


def deliver_to_the_end(world: World) -> None:
    for _ in range(20):
        for ran in world.at_once(2, "deliver"):
            assert "Traceback" not in ran.err, ran.err
        if is_settled(world):
            return
        with world.opened() as store:
            for name in ("keyed", "plain"):
                let_leases_end(store, name)
    pytest.fail("they do not come to an end")


def check(world: World, keys: set[str]) -> None:
    with world.opened() as store:
        told = {name: {message.key: message.state for message in messages(store, name)} for name in ("keyed", "plain")}
    came = {name: Counter(received(world.root / name)) for name in ("keyed", "plain")}
    # To a receiver that dedupes everything has come, and each key counts once.
    assert set(told["keyed"].values()) == {"sent"}
    assert came["keyed"].keys() == told["keyed"].keys()
    # To one that does not, nothing has come twice, and none has vanished: it was sent, or somebody must look.
    assert set(came["plain"].values()) == {1}
    assert set(told["plain"].values()) <= {"sent", "unsure"}
    sent = {key for key, state in told["plain"].items() if state == "sent"}
    assert sent <= came["plain"].keys()
    for name in ("keyed", "plain"):
        assert {key.rpartition("/")[2] for key in told[name]} == keys


def storm(world: World, count: int, rounds: int) -> None:
    """Let so many messages to each destination come, some in each round, and kill deliverers all the while."""
    append_to(world, "keyed", dedupes="1h", max_attempts=1000)
    append_to(world, "plain", max_attempts=1000)
    chance, keys = random.Random(20261130), set()
    for number in range(rounds):
        new = [f"k{number}-{each}" for each in range(count // rounds)]
        keys.update(new)
        with world.opened() as store:
            for day, name in enumerate(("keyed", "plain")):
                fill(store, new, destination=name, day=2 * number + day)
        deliver_and_kill(world, chance)
        wait_until(world.no_process_is_left)  # what a killed deliverer has started goes on to its end
    deliver_to_the_end(world)
    check(world, keys)


def test_six_deliverers_that_are_killed_again_and_again(world):
    storm(world, count=500, rounds=20)


@pytest.mark.every_store
def test_deliverers_that_are_killed_on_every_store(world):
    storm(world, count=60, rounds=4)


@pytest.mark.parametrize("step", STEPS)
def test_one_that_dies_at_a_step_leaves_no_message_behind_and_sends_none_twice(world, step):
    append_to(world, "keyed", dedupes="1h")
    append_to(world, "plain")
    keys = {f"k{number}" for number in range(6)}
    with world.opened() as store:
        for day, name in enumerate(("keyed", "plain")):
            fill(store, sorted(keys), destination=name, day=day)
    died = world.ranonce("deliver", env={"RANONCE_FAILPOINT": step})
    assert died.exit == -signal.SIGKILL
    wait_until(world.no_process_is_left)
    with world.opened() as store:
        for name in ("keyed", "plain"):
            let_leases_end(store, name)
    deliver_to_the_end(world)
    check(world, keys)
