"""`run.items` and `run.step`: what is done stays done, and its messages are there once, whatever ends the process."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.conftest import NOON, TODAY, wait_until
from tests.outboxes import bodies, messages
from tests.python.conftest import Programs

#: A batch that pays for each item, and dies where it is told to.
BATCH = """
@job("job", every="day", lease="2s", max_attempts=20)
def work(run):
    for item in run.items(range(int(os.environ.get("ITEMS", "100")))):
        with open(os.environ["EFFECTS"], "a") as file:
            file.write(f"paid for {item}\\n")
        run.emit("github", {"comment": item})
        if f"{run.attempt}:{item}" == os.environ.get("DIE"):
            os.kill(os.getpid(), signal.SIGKILL)

work.main()
"""
WORDS = ("--now", NOON)


@pytest.fixture
def programs(world):
    return Programs(world)


def paid(world):
    return Counter(world.effects())


def expected(count):
    return {f"job:{TODAY}/github/{item}": b'{"comment":%d}' % item for item in range(count)}


@pytest.mark.every_store
def test_killed_at_item_60_every_message_is_there_once_and_nothing_is_paid_for_again(world, programs):
    killed = programs.run(BATCH, *WORDS, env={"DIE": "1:60"})
    assert killed.exit == -signal.SIGKILL
    assert bodies(world) == expected(60)
    ran = programs.run(BATCH, *WORDS)
    assert ran.said() == (0, "done", None)
    assert bodies(world) == expected(100)
    assert paid(world) == {f"paid for {item}": 2 if item == 60 else 1 for item in range(100)}
    assert world.attempt_files() == []


#: The places of a commit that has steps and messages; the first commit of a run is its claim.
PLACES = [
    "commit:before-writes:3",
    "commit:after-steps:2",
    "commit:after-messages:2",
    "commit:after-events:2",
    "commit:before-commit:3",
    "commit:after-commit:3",
    "mark:committed:2",
]


@pytest.mark.parametrize("point", PLACES)
def test_killed_at_any_place_of_a_mark_no_item_is_done_without_its_message(world, programs, point):
    killed = programs.run(BATCH, *WORDS, env={"RANONCE_FAILPOINT": point, "ITEMS": "4"})
    assert killed.exit == -signal.SIGKILL, f"{point} was never passed"
    with world.opened() as store:
        run = store.runs("job", 0, 1 << 40)[0]
        done = store.steps(run.key, run.window_start, 1)
    assert [message.item for message in messages(world)] == done
    assert programs.run(BATCH, *WORDS, env={"ITEMS": "4"}).exit == 0
    assert bodies(world) == expected(4)
    assert all(count == 1 or f"paid for {len(done)}" == line for line, count in paid(world).items())


STALE = """
@job("job", every="day", lease="1s", max_attempts=20)
def work(run):
    for item in run.items(["a", "b"]):
        run.emit("github", f"{item} by {run.attempt}")
        if run.attempt == 1:
            mark("working")
            wait_for("go")

work.main()
"""


@pytest.mark.every_store
def test_an_attempt_that_was_paused_past_its_lease_emits_nothing(world, programs):
    stale = programs.start(STALE, *WORDS)
    wait_until(programs.marked("working"))
    stale.signal(signal.SIGSTOP)
    elsewhere = world.another_host()
    wait_until(lambda: programs.run(STALE, *WORDS, env=elsewhere).exit == 0)
    programs.mark("go")
    stale.signal(signal.SIGCONT)
    ended = stale.ends()
    assert ended.exit == 76
    attempt = world.run_of().attempt
    assert attempt > 1
    assert bodies(world) == {f"job:{TODAY}/github/{item}": f"{item} by {attempt}".encode() for item in ("a", "b")}


STEPS = """
@job("job", every="day", max_attempts=20)
def work(run):
    def pay(what):
        with open(os.environ["EFFECTS"], "a") as file:
            file.write(f"paid for {what}\\n")
        run.emit("slack", f"paid for {what}")
        return {"paid": (what, 1)}

    first = run.step("first", lambda: pay("first"))
    second = run.step("second", lambda: pay("second"))
    print(first, second)
    if run.attempt < 3:
        sys.exit(1)

work.main()
"""


@pytest.mark.every_store
def test_a_step_is_done_once_and_returns_the_same_to_every_attempt(world, programs):
    said = [programs.run(STEPS, *WORDS).out for _ in range(3)]
    assert said == [b"{'paid': ['first', 1]} {'paid': ['second', 1]}\n"] * 3
    assert world.effects() == ["paid for first", "paid for second"]
    assert list(bodies(world)) == [f"job:{TODAY}/slack/first", f"job:{TODAY}/slack/second"]
    assert world.state() == ("done", 3)


AWAY = """
@job("job", every="day")
def work(run):
    run.emit("slack", "hello")
    Path(os.environ["STORE"]).rename(os.environ["STORE"] + ".away")

work.main()
"""


def test_an_outcome_that_waits_on_this_host_carries_its_messages_and_they_go_out_once(world, programs):
    world.wait_for_the_store(0.2)
    ran = programs.run(AWAY, *WORDS, env={"STORE": str(world.store)})
    assert ran.exit == 74
    assert ran.receipt["messages"] == 1
    world.store.with_name("ledger.db.away").rename(world.store)
    assert messages(world) == []
    for _ in range(2):
        world.run(now="2026-11-10T12:00:00Z")
    assert bodies(world) == {f"job:{TODAY}/slack/-": b"hello"}
    assert world.state() == ("done", 1)
    assert world.attempt_files() == []
