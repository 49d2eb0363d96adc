"""`ranonce deliver`, by real processes: what goes out, what is said, and what becomes of it in each trouble."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranonce.messages import UNSURE, Closing, Move
from tests.delivery.outboxes import declare, fill, let_leases_end, messages, received, receiver, shell, states
from tests.world import wait_until

HOLD = 'cat > /dev/null; echo "$RANONCE_MESSAGE_KEY" >> "$PIDS/begun"; while test -e "$PIDS/hold"; do sleep 0.02; done'


def put(world, *keys, destination="web", day=0):
    with world.opened() as store:
        fill(store, keys, destination=destination, day=day)


def standing(world, destination="web"):
    with world.opened() as store:
        return states(store, destination)


def begun(world):
    return received(world.pids / "begun")


# --- what goes out ---


@pytest.mark.every_store
def test_what_jobs_have_emitted_is_sent_once(world):
    file = receiver(world)
    put(world, "a", "b", "c")
    first, second = world.ranonce("deliver"), world.ranonce("deliver")
    assert (first.exit, first.sentence) == (0, "sent=3 waiting=0 unsure=0 dead=0")
    assert (second.exit, second.sentence) == (0, "sent=0 waiting=0 unsure=0 dead=0")
    assert sorted(received(file)) == [f"job:2025-11-10/web/{key}" for key in "abc"]


@pytest.mark.every_store
def test_six_deliverers_at_once_send_each_message_once(world):
    file = receiver(world)
    put(world, *(f"k{number}" for number in range(30)))
    ran = world.at_once(6, "deliver")
    assert not any("Traceback" in each.err for each in ran)
    assert {each.exit for each in ran} <= {0, 75}
    assert len(received(file)) == len(set(received(file))) == 30
    assert standing(world) == {"sent": 30}


def emitted_by_a_clock_ahead(world):
    """Let all that waits be emitted as by a host whose clock is far ahead."""
    with world.opened() as store:
        moves = [Move(each, each.replace(due_at=each.created_at + 400 * 86_400.0)) for each in messages(store)]
        store.outbox().exchange("web", moves)


@pytest.mark.every_store
def test_what_a_clock_far_ahead_has_emitted_does_not_wait_for_that_time(world):
    file = receiver(world)
    put(world, "a", "b")
    emitted_by_a_clock_ahead(world)
    said = world.ranonce("deliver")
    assert "messages that waited for a time which a clock far ahead had told: 2" in said.err
    assert (said.exit, len(received(file))) == (0, 2)


def test_one_that_watches_does_not_wait_for_it_either(world):
    file = receiver(world)
    put(world, "a")
    emitted_by_a_clock_ahead(world)
    watcher = world.start("deliver", "--watch", "--poll", "0.1")
    wait_until(lambda: received(file))
    watcher.signal(signal.SIGTERM)
    assert watcher.ends().exit == -signal.SIGTERM


def test_only_the_destinations_that_are_named_are_asked(world):
    file, other = receiver(world), receiver(world, "other")
    put(world, "a")
    put(world, "b", destination="other", day=1)
    assert world.ranonce("deliver", "other").exit == 0
    assert (len(received(file)), len(received(other))) == (0, 1)


def test_one_destination_holds_no_other_up(world):
    shell(world, HOLD, "slow", timeout="20s")
    file = receiver(world)
    (world.pids / "hold").touch()
    put(world, "a", destination="slow")
    put(world, "b", day=1)
    deliverer = world.start("deliver")
    wait_until(lambda: received(file))
    world.let_go()
    assert deliverer.ends().exit == 0


def test_poison_before_it_does_not_hold_a_message_up(world):
    shell(world, 'cat > /dev/null; case "$RANONCE_MESSAGE_KEY" in */good) exit 0;; *) exit 75;; esac')
    put(world, *(f"poison{number:03}" for number in range(100)))
    put(world, "good", day=1)
    assert world.ranonce("deliver").exit == 75
    assert standing(world) == {"pending": 100, "sent": 1}


def test_no_more_are_begun_than_the_limit(world):
    file = receiver(world)
    put(world, "a", "b", "c")
    assert world.ranonce("deliver", "--limit", "2").exit == 75
    assert len(received(file)) == 2


def test_without_any_message_there_is_nothing_to_do(world):
    receiver(world)
    assert world.ranonce("deliver").exit == 0


# --- what is said ---


def test_a_message_in_doubt_is_named_with_what_to_do(world):
    shell(world, "kill -9 $$")
    put(world, "a")
    ran = world.ranonce("deliver")
    assert ran.exit == 80
    assert "ranonce: message 1 (job:2025-11-10/web/a) is unsure: it died by signal 9. Look, then say" in ran.err
    assert "ranonce outbox resolve 1 --as sent|not-sent --reason TEXT" in ran.err
    assert world.ranonce("deliver").exit == 80  # until somebody has said it


def test_a_refused_message_is_dead_and_can_be_tried_again(world):
    shell(world, "cat > /dev/null; echo no such user >&2; exit 65")
    put(world, "a")
    ran = world.ranonce("deliver")
    assert ran.exit == 80
    assert "is dead: exit 65: no such user. Once that is mended: ranonce outbox retry 1" in ran.err


def test_messages_that_wait_for_their_next_try_are_no_failure(world):
    shell(world, "exit 75")
    put(world, "a")
    ran = world.ranonce("deliver")
    assert ran.exit == 75
    why, sums = ran.err.splitlines()
    assert why.startswith("web: back-off until ")
    assert sums == "sent=0 waiting=1 unsure=0 dead=0"


def test_a_destination_that_is_closed_is_why_its_messages_wait(world):
    receiver(world)
    put(world, "a")
    with world.opened() as store:
        store.outbox().exchange("web", closing=Closing(store.clock().wall + 86400.0, "it answered 429"))
    why = world.ranonce("deliver").err.splitlines()[0]
    assert why.startswith("web: closed until ")
    assert why.endswith("Z: it answered 429 -> ranonce outbox retry --destination web")


@pytest.mark.every_store
def test_what_another_deliverer_has_is_said_with_its_lease(world):
    shell(world, HOLD, "web", timeout="30s")
    (world.pids / "hold").touch()
    put(world, "a")
    deliverer = world.start("deliver")
    wait_until(lambda: begun(world))
    assert world.ranonce("deliver").err.splitlines()[0].startswith("web: 1 being sent by a deliverer (lease until ")
    world.let_go()
    assert deliverer.ends().exit == 0


def test_many_messages_that_are_alike_are_one_line_and_a_count(world):
    shell(world, "kill -9 $$", concurrency=1)
    put(world, *(f"k{number}" for number in range(10)))
    first, others, sums = world.ranonce("deliver").err.splitlines()
    assert "ranonce outbox resolve 1 --as sent|not-sent --reason TEXT" in first
    assert others == (
        "ranonce: 9 more messages to web are unsure, like message 1. "
        "What to do: ranonce outbox list --destination web --state unsure"
    )
    assert sums == "sent=0 waiting=0 unsure=10 dead=0"


def test_messages_with_different_words_are_told_one_by_one(world):
    shell(world, 'cat > /dev/null; echo "no $RANONCE_MESSAGE_KEY" >&2; exit 65')
    put(world, "a", "b", "c")
    assert len(world.ranonce("deliver").err.splitlines()) == 4


def test_a_payload_that_is_none_is_dropped_and_its_job_mended(world):
    declare(world, "web", type="smtp", host="127.0.0.1", port=9, **{"from": "jobs@x.example"})
    put(world, "a")
    said = world.ranonce("deliver").err.splitlines()[0]
    assert "json, text/plain or message/rfc822. Mend the job, and drop it:" in said
    assert "ranonce outbox resolve 1 --as dropped --reason TEXT" in said
    assert "retry" not in said


def test_messages_for_an_undeclared_destination_are_told_by_how_they_stand(world):
    put(world, "a", "b", destination="elsewhere")
    with world.opened() as store:
        found = messages(store, "elsewhere")
        moves = [Move(each, each.replace(state=UNSURE)) for each in found[:1]]
        store.outbox().exchange("elsewhere", moves)
    said = world.ranonce("deliver").err
    assert "2 messages are for 'elsewhere' (1 unsure, 1 waiting), which this configuration does not declare." in said


def test_several_destinations_are_summed_up_one_by_one(world):
    receiver(world)
    receiver(world, "other")
    put(world, "a")
    put(world, "b", destination="other", day=1)
    assert world.ranonce("deliver").err.splitlines() == [
        "other: sent=1 waiting=0 unsure=0 dead=0",
        "web: sent=1 waiting=0 unsure=0 dead=0",
        "sent=2 waiting=0 unsure=0 dead=0",
    ]


def test_json_tells_of_each_message_and_sums_up(world):
    receiver(world)
    put(world, "a")
    ran = world.ranonce("deliver", "--json")
    settled, summary = map(json.loads, ran.out.splitlines())
    assert (settled["message"], settled["key"], settled["state"]) == (1, "job:2025-11-10/web/a", "sent")
    assert settled["receipt"] == "received job:2025-11-10/web/a"
    assert (summary["sent"], summary["destinations"]["web"]["sent"]) == (1, 1)
    assert ran.err == ""


def test_quiet_says_nothing_while_all_is_well(world):
    receiver(world)
    put(world, "a")
    ran = world.ranonce("deliver", "--quiet")
    assert (ran.exit, ran.out, ran.err) == (0, b"", "")


def test_quiet_says_once_what_needs_somebody_and_its_status_goes_on_saying_it(world):
    shell(world, "kill -9 $$")
    put(world, "a")
    first, second = world.ranonce("deliver", "--quiet"), world.ranonce("deliver", "--quiet")
    assert (first.exit, "message 1" in first.sentence) == (80, True)
    assert (second.exit, second.out, second.err) == (80, b"", "")


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full", "2>&-", "2> /dev/full", "< /dev/null >&- 2>&-"])
def test_an_output_that_is_closed_or_full_changes_nothing(world, redirection):
    file = receiver(world)
    put(world, "a", "b")
    ran = world.shell(f"$RANONCE deliver --json {redirection}")
    assert ran.exit == 0
    assert len(received(file)) == 2
    assert standing(world) == {"sent": 2}


# --- configuration ---


def test_messages_to_a_destination_that_is_not_declared_wait_and_are_said_once(world):
    file = receiver(world)
    put(world, "a", "b", destination="elsewhere")
    put(world, "c", day=1)
    ran = world.ranonce("deliver")
    assert ran.exit == 78
    assert ran.err.count("2 messages are for 'elsewhere' (2 waiting), which this configuration does not declare.") == 1
    assert (len(received(file)), standing(world, "elsewhere")) == (1, {"pending": 2})


def test_a_destination_that_is_named_and_not_declared_is_a_mistake(world):
    receiver(world)
    ran = world.ranonce("deliver", "wep")
    assert (ran.exit, "Did you mean web?" in ran.sentence) == (78, True)


def test_a_mistake_in_one_destination_stops_no_other(world):
    file = receiver(world)
    declare(world, "broken", type="command", command="one text")
    put(world, "a")
    put(world, "b", destination="broken", day=1)
    ran = world.ranonce("deliver")
    assert (ran.exit, len(received(file)), standing(world, "broken")) == (78, 1, {"pending": 1})
    assert "destinations.broken.command: 'one text' is one text, not a list of arguments." in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("--limit", "0"),
        ("--limit", "many"),
        ("--poll", "1s"),
        ("--watch", "--poll", "0"),
        ("--watch", "--poll", "often"),
        ("--forever",),
    ],
)
def test_wrong_usage_is_refused(world, words):
    assert world.ranonce("deliver", *words).exit == 64


# --- signals ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_on_its_way_come_to_its_answer_and_gives_the_rest_back(world, number):
    shell(world, HOLD, dedupes="1h", concurrency=2)
    (world.pids / "hold").touch()
    put(world, *(f"k{count}" for count in range(10)))
    deliverer = world.start("deliver")
    wait_until(lambda: len(begun(world)) == 2)
    deliverer.signal(number)
    time.sleep(0.3)  # it must not end now, nor begin more
    assert deliverer.process.poll() is None
    world.let_go()
    assert deliverer.ends().exit == -number
    assert len(begun(world)) == 2
    assert standing(world) == {"sent": 2, "pending": 8}


def test_a_second_signal_ends_it_at_once_and_what_was_on_its_way_lapses(world):
    shell(world, HOLD, timeout="20s")
    (world.pids / "hold").touch()
    put(world, "a")
    deliverer = world.start("deliver")
    wait_until(lambda: begun(world))
    deliverer.signal(signal.SIGTERM)
    time.sleep(0.3)
    deliverer.signal(signal.SIGTERM)
    ran = deliverer.ends(10)
    assert (ran.exit, "lapses with its lease" in ran.err) == (-signal.SIGTERM, True)
    world.let_go()
    with world.opened() as store:
        let_leases_end(store)
    assert world.ranonce("deliver").exit == 80
    assert (standing(world), len(begun(world))) == ({"unsure": 1}, 1)


#: `ranonce`, whose boot clock is as far ahead as a file says: so it has slept for that long.
SLEEPER = """
import os, sys
from ranonce import liveness
boot_clock = liveness.boot_clock
liveness.boot_clock = lambda: boot_clock() + float(open(os.environ["SLEPT"]).read())
from ranonce.cli import entry
entry()
"""


def test_one_that_was_stopped_past_its_lease_begins_nothing_more(world):
    shell(world, HOLD, dedupes="1h", concurrency=1)
    (world.pids / "hold").touch()
    slept = world.pids / "slept"
    slept.write_text("0")
    put(world, "a", "b", "c")
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, "deliver"], env={**world.env, "SLEPT": str(slept)}, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: len(begun(world)) == 1)
        os.kill(process.pid, signal.SIGSTOP)
        world.let_go()
        for _ in range(2):  # what it has lapses, and is sent by another
            with world.opened() as store:
                let_leases_end(store)
            world.ranonce("deliver")
        with world.opened() as store:
            let_leases_end(store)
        world.ranonce("deliver")
        assert standing(world) == {"sent": 3}
        slept.write_text("3600")
        os.kill(process.pid, signal.SIGCONT)
        assert b"Traceback" not in process.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.wait()
    came = [key.rpartition("/")[2] for key in begun(world)]
    assert sorted(came) == ["a", "a", "b", "c"]  # `a` was on its way twice, with the same key
    assert standing(world) == {"sent": 3}


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace takes root")
def test_as_the_first_process_of_a_container_it_delivers_and_ends_by_a_signal(world):
    file = receiver(world)
    put(world, "a")
    arguments = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m", "ranonce"]
    process = subprocess.Popen(
        [*arguments, "deliver", "--watch", "--poll", "0.1s"],
        env=world.env,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        wait_until(lambda: received(file))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert standing(world) == {"sent": 1}


# --- watching ---


@pytest.mark.every_store
def test_one_that_watches_sends_what_comes_and_ends_by_a_signal(world):
    file = receiver(world)
    watcher = world.start("deliver", "--watch", "--poll", "0.1")
    for day in range(3):
        put(world, f"k{day}", day=day)
        wait_until(lambda day=day: len(received(file)) == day + 1)
    wait_until(lambda: standing(world) == {"sent": 3})
    watcher.signal(signal.SIGTERM)
    assert watcher.ends().exit == -signal.SIGTERM


def test_one_that_watches_outlives_a_store_that_is_away(world):
    file = receiver(world)
    world.wait_for_the_store(0.2)
    watcher = world.start("deliver", "--watch", "--poll", "0.1s")
    put(world, "a")
    wait_until(lambda: standing(world) == {"sent": 1})
    put(world, "b", day=1)
    with locked(world):
        time.sleep(1.0)
    wait_until(lambda: standing(world) == {"sent": 2})
    assert watcher.process.poll() is None
    watcher.signal(signal.SIGTERM)
    ran = watcher.ends()
    assert (ran.exit, "Traceback" in ran.err) == (-signal.SIGTERM, False)
    assert len(received(file)) == 2


def test_one_that_watches_waits_for_a_store_that_is_away_when_it_begins(world):
    file = receiver(world)
    world.wait_for_the_store(0.2)
    put(world, "a")
    with contextlib.closing(sqlite3.connect(world.store, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        watcher = world.start("deliver", "--watch", "--poll", "0.1s")
        time.sleep(1.5)
        assert watcher.process.poll() is None
    wait_until(lambda: received(file))
    watcher.signal(signal.SIGTERM)
    ran = watcher.ends()
    assert (ran.exit, "Traceback" in ran.err) == (-signal.SIGTERM, False)


# --- a store in trouble meanwhile ---


@contextlib.contextmanager
def locked(world):
    """Hold the lock for writing on the ledger's file."""
    with contextlib.closing(sqlite3.connect(world.store, timeout=20, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def test_a_store_that_is_locked_when_the_answer_comes_makes_no_message_go_out_twice(world):
    shell(world, HOLD)
    (world.pids / "hold").touch()
    world.wait_for_the_store(0.2)
    put(world, "a")
    deliverer = world.start("deliver")
    wait_until(lambda: begun(world))
    with locked(world):
        world.let_go()
        time.sleep(1.5)
        assert deliverer.process.poll() is None
    ran = deliverer.ends()
    assert (ran.exit, standing(world), len(begun(world))) == (0, {"sent": 1}, 1)


def test_a_store_that_is_moved_away_and_back_makes_no_message_go_out_twice(world):
    shell(world, HOLD)
    (world.pids / "hold").touch()
    world.wait_for_the_store(0.2)
    put(world, "a")
    deliverer = world.start("deliver")
    wait_until(lambda: begun(world))
    folder = world.store.parent
    aside = folder.with_name("aside")
    folder.rename(aside)
    world.let_go()
    time.sleep(1.0)
    aside.rename(folder)
    ran = deliverer.ends()
    assert (ran.exit, standing(world), len(begun(world))) == (0, {"sent": 1}, 1)
    assert "Answers that wait here to be written: 1." in ran.err


def test_a_store_that_stays_away_leaves_the_answers_said_with_their_keys(world):
    shell(world, HOLD)
    (world.pids / "hold").touch()
    world.wait_for_the_store(0.2)
    put(world, "a")
    deliverer = world.start("deliver", "--watch")
    wait_until(lambda: begun(world))
    with locked(world):
        world.let_go()
        time.sleep(1.0)
        deliverer.signal(signal.SIGTERM)
        ran = deliverer.ends()
    assert (ran.exit, "Traceback" in ran.err) == (-signal.SIGTERM, False)
    assert "message 1 (job:2025-11-10/web/a) was answered as delivered, and that could not be written." in ran.err
    with world.opened() as store:
        let_leases_end(store)
    assert world.ranonce("deliver").exit == 80
    assert (standing(world), len(begun(world))) == ({"unsure": 1}, 1)


def test_a_deliverer_that_cannot_reach_the_store_says_so(world):
    receiver(world)
    put(world, "a")
    world.wait_for_the_store(0.2)
    with locked(world):
        ran = world.ranonce("deliver")
    assert (ran.exit, "Traceback" in ran.err) == (69, False)
    assert standing(world) == {"pending": 1}
