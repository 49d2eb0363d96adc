"""What `probe`, `status` and `show` say of messages that are not delivered."""

from __future__ import annotations

import json

import pytest

from ranonce.lifecycle import Retention
from ranonce.messages import DEAD, PENDING, SENDING, SENT, UNSURE, Closing
from tests.planted import NOW, Planted, at
from tests.test_cli_probe import Say, hourly, say

__all__ = ["hourly", "say"]

pytestmark = pytest.mark.every_store
WINDOW = "2026-11-09T11"


@pytest.fixture
def ran(hourly: Planted) -> Planted:
    """An hourly job that has done everything, and nothing else to be said of it."""
    hourly.hours("2026-11-07T12:00:00Z", "2026-11-09T12:00:00Z")
    return hourly


def message_lines(lines: list[str]) -> list[str]:
    return [line for line in lines[1:] if "slack" in line]


def test_a_message_that_waits_in_time_is_a_note(say: Say, ran: Planted) -> None:
    ran.message(WINDOW, created_at=float(at("2026-11-09T12:00:00Z")))
    said = say("probe")
    assert said.exit == 0
    assert said.lines[0].endswith("repeated=0 unsent=1 overdue=0 unsure=0 dead=0")
    assert said.lines[1:] == [
        "note: unsent j: 1 message to slack waits to be sent; the oldest is of 2026-11-09T12:00:00Z"
    ]


def test_a_message_that_waits_for_too_long_is_a_finding_with_its_command(say: Say, ran: Planted) -> None:
    ran.message(WINDOW)
    ran.message(WINDOW, "b", state=SENDING)
    said = say("probe")
    assert said.exit == 1
    assert said.lines[0].endswith("unsent=0 overdue=2 unsure=0 dead=0")
    assert said.lines[1:] == [
        "overdue j: 2 messages to slack wait for longer than 1h (does anything deliver them?);"
        " the oldest is of 2026-11-09T11:00:05Z -> ranonce outbox list --destination slack"
    ]


def test_a_destination_that_can_never_be_sent_to_is_said_of_what_waits_for_it(say: Say, ran: Planted, world) -> None:
    with world.config.open("a") as file:
        file.write('\n[destinations.slack]\ntype = "sql"\nurl = "mysql://app@db.example/app"\n')
    ran.message(WINDOW, created_at=float(at("2026-11-09T12:00:00Z")))
    (line,) = say("probe").lines[1:]
    assert "1 message to slack waits to be sent; " in line
    assert "; nothing can be sent there: " in line
    assert line.endswith("'mysql://app@db.example/app': an inbox table lies in SQLite or PostgreSQL")


def test_how_long_is_too_long_is_the_destinations_own(say: Say, ran: Planted, world) -> None:
    with world.config.open("a") as file:
        file.write('\n[destinations.slack]\ntype = "command"\ncommand = ["true"]\nlate_after = "2h"\n')
    ran.message(WINDOW)
    said = say("probe")
    assert (said.exit, said.lines[0].partition("unsent=")[2]) == (0, "1 overdue=0 unsure=0 dead=0")


@pytest.mark.parametrize("state", [UNSURE, DEAD])
def test_what_needs_a_person_is_a_finding_however_young(say: Say, ran: Planted, state: str) -> None:
    ran.message(WINDOW, state=state, created_at=float(at(NOW)))
    said = say("probe")
    assert said.exit == 1
    (line,) = message_lines(said.lines)
    assert line.startswith(f"{state} j: 1 message to slack ")
    assert line.endswith(" -> ranonce outbox list --destination slack")


def test_what_was_sent_is_not_mentioned(say: Say, ran: Planted) -> None:
    ran.message(WINDOW, state=SENT)
    assert (say("probe").exit, len(say("probe").lines)) == (0, 1)


def test_a_closed_destination_is_named_with_its_reason(say: Say, ran: Planted) -> None:
    ran.message(WINDOW)
    until = at("2030-01-01T00:00:00Z")
    ran.store.outbox().exchange("slack", closing=Closing(float(until), "429 Too Many Requests"))
    (line,) = message_lines(say("probe").lines)
    assert "; the destination is closed until 2030-01-01T00:00:00Z (429 Too Many Requests) -> " in line


def test_a_probe_of_one_job_tells_of_its_messages_only(say: Say, ran: Planted) -> None:
    ran.message(WINDOW)
    with_it = say("probe", "j", "--json").json
    assert with_it["messages"]["overdue"] == 1
    (finding,) = with_it["findings"]
    assert finding["destination"] == "slack"
    assert finding["messages"] == 1
    assert finding["next_step"] == "ranonce outbox list --destination slack"
    assert "windows" not in finding


def test_the_board_has_a_line_about_messages(say: Say, ran: Planted) -> None:
    assert "messages" not in say("status").out
    ran.message(WINDOW)
    ran.message(WINDOW, "b", state=UNSURE)
    assert "messages that are not delivered: 1 overdue, 1 unsure -> ranonce outbox list" in say("status").lines
    told = say("status", "--json").json
    assert told["messages"] == {"unsent": 0, "overdue": 1, "unsure": 1, "dead": 0}
    assert told["jobs"][0]["undelivered"] == {PENDING: 1, UNSURE: 1}


def test_the_windows_of_a_job_carry_counts(say: Say, ran: Planted) -> None:
    ran.message(WINDOW)
    ran.message(WINDOW, "b", state=UNSURE)
    ran.message(WINDOW, "c", state=SENT)
    said = say("status", "j")
    (line,) = [line for line in said.lines if line.startswith(WINDOW) and "pending" in line]
    assert line.split("done")[1].strip() == "1 pending, 1 unsure"
    windows = {each["window"]: each["undelivered"] for each in say("status", "j", "--json").json["windows"]}
    assert windows[WINDOW] == {PENDING: 1, UNSURE: 1}
    assert windows["2026-11-09T10"] == {}


def test_a_window_that_is_done_says_what_of_it_is_not_delivered(say: Say, ran: Planted) -> None:
    for own, state in (("a", PENDING), ("b", PENDING), ("c", UNSURE), ("d", SENT)):
        ran.message(WINDOW, own, state=state)
    said = say("show", "j", WINDOW)
    assert said.exit == 0  # about the run
    assert "; 3 of its messages are not delivered: 2 pending, 1 unsure" in said.out
    assert "  emitted 1 sent, 2 pending, 1 unsure" in said.lines
    told = json.loads(say("show", "j", WINDOW, "--json").out)
    assert told["messages"] == {PENDING: 2, UNSURE: 1, SENT: 1}


def test_a_window_whose_messages_are_all_sent_says_how_many(say: Say, ran: Planted) -> None:
    ran.message(WINDOW, state=SENT)
    said = say("show", "j", WINDOW)
    assert "  emitted 1 sent" in said.lines
    assert "not delivered" not in said.out


def test_a_failed_run_says_how_many_of_its_steps_are_done(say: Say, hourly: Planted) -> None:
    hourly.run(WINDOW, "failed", exit=1)
    for name in ("a", "b"):
        hourly.step(WINDOW, name)
    hourly.step(WINDOW, "c", generation=2)
    said = say("show", "j", WINDOW)
    assert "; 2 steps done" in said.out
    assert json.loads(say("show", "j", WINDOW, "--json").out)["steps"] == 2


def test_a_probe_where_nothing_waits_asks_one_question_more(
    say: Say, ran: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(ran.store.outbox())
    asked = []
    for name in ("destinations", "tally", "queue", "waiting", "messages"):
        true = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *a, name=name, true=true, **k: asked.append(name) or true(*a, **k))
    say("probe")
    assert asked == ["destinations"]


def test_a_pruned_window_still_says_what_of_it_waits(say: Say, ran: Planted) -> None:
    old = "2026-11-07T13"
    ran.message(old, state=UNSURE)
    until = float(at("2026-11-08T00:00:00Z"))
    ran.store.upkeep().prune("j", Retention(until, until))
    said = say("show", "j", old)
    assert (said.exit, "(pruned)" in said.out) == (0, True)
    assert "; 1 of its messages is not delivered: 1 unsure" in said.out
