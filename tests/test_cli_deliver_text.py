"""What `ranonce deliver` says of messages that need somebody, of what waits, and on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from ranonce.cli import delivertext
from ranonce.cli.delivertext import Problems, problem, why_waiting
from ranonce.messages import DEAD, SENDING, UNSURE, Message, Queue
from ranonce.windows import Schedule
from tests.conftest import World
from tests.delivery.outboxes import fill, receiver
from tests.planted import at, message_of

NOW = float(at("2026-11-09T12:30:00Z"))


def message(seq: int = 1, **fields: object) -> Message:
    window = Schedule("hour", "UTC", "debian").window("2026-11-09T11")
    return message_of(window, f"k{seq}").replace(seq=seq, **fields)


def queue(**fields: object) -> Queue:
    return Queue("slack", 1, None, None, 0.0, (), (), None, "boot", 1000.0, NOW).replace(**fields)


def test_a_sentence_of_a_destination_that_ends_is_not_ended_twice():
    said = problem(message(state=DEAD, error="it was not sent: `to`: 'nope' is no mail address."))
    assert ".." not in said
    assert said.endswith("Mend the job, and drop it: ranonce outbox resolve 1 --as dropped --reason TEXT")


def test_what_is_alike_is_counted_and_what_is_too_much_is_too():
    lines: list[str] = []
    problems = Problems(lines.append)
    for seq in range(1, 31):
        problems.tell(message(seq, state=UNSURE, error=f"reset {seq}" if seq > 10 else "reset"))
    problems.sum_up()
    assert len(lines) == delivertext.DIFFERENT + 2
    assert lines[-2].startswith("9 more messages to slack are unsure, like message 1. What to do: ranonce outbox list ")
    assert lines[-1].startswith("11 more messages to slack are unsure. What to do: ")


def test_one_that_watches_gathers_before_it_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(delivertext, "boot_clock", lambda: now[0])
    lines: list[str] = []
    problems = Problems(lines.append)
    for seq in (1, 2, 3):
        problems.tell(message(seq, state=DEAD, error="no"))
    problems.sum_up(at_once=False)
    assert len(lines) == 1
    now[0] += delivertext.GATHER_SECONDS
    problems.sum_up(at_once=False)
    problems.sum_up(at_once=False)
    assert len(lines) == 2


def test_a_back_off_is_said_with_its_end():
    assert why_waiting(queue(next_due=NOW + 60.0)) == "slack: back-off until 12:31:00Z"


def test_a_rate_is_said_with_the_next_turn():
    assert why_waiting(queue(next_at=NOW + 60.0)) == "slack: its rate lets the next one go at 12:31:00Z"


def test_leases_that_hold_and_those_that_are_over_are_told_apart():
    lease = {"state": SENDING, "lease_domain": "boot", "lease_seconds": 60.0, "taken_at": NOW - 30.0}
    held, gone = message(1, lease_until=1030.0, **lease), message(2, lease_until=990.0, **lease)
    assert why_waiting(queue(sending=(held, gone))) == (
        "slack: 1 being sent by a deliverer (lease until 12:30:30Z); "
        "1 whose deliverer vanished: the next ranonce deliver decides"
    )


def test_of_what_simply_waits_nothing_is_said():
    assert why_waiting(queue()) is None


def test_on_a_terminal_nothing_is_said_of_how_far_it_has_come_before_it_has(world: World):
    receiver(world)
    with world.opened() as store:
        fill(store, ["a"])
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "ranonce", "deliver"]
    assert subprocess.run(words, env=world.env, stderr=theirs, timeout=60.0, check=False).returncode == 0
    os.close(theirs)
    assert os.read(ours, 4096) == b"sent=1 waiting=0 unsure=0 dead=0\r\n"
    os.close(ours)
