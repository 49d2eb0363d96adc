"""What a doctor says of messages and destinations."""

from __future__ import annotations

import pytest

from ranonce.doctor import Patient, examine
from ranonce.doctor.finding import NOTE, OK, PROBLEM
from ranonce.messages import DEAD, PENDING, SENDING, SENT, UNSURE, Closing
from tests.conftest import World
from tests.planted import Planted

WINDOW = "2026-11-09T11"
SLACK = '[destinations.slack]\ntype = "command"\ncommand = ["/bin/true"]\n'


@pytest.fixture
def planted(world: World) -> Planted:
    """A job with a destination that is declared."""
    configure(world, SLACK)
    return Planted("hour", store=world.kept_open())


def configure(world: World, text: str) -> None:
    with world.config.open("a") as file:
        file.write(f"\n{text}")


def said(world: World, check: str, *names: str, deep: bool = False) -> list[tuple[str, str]]:
    """Level and what was seen of one check."""
    found = examine(Patient(list(names), None, None, world.env, deep))
    return [(each.level, each.seen) for each in found if each.check == check]


def young(planted: Planted) -> dict[str, float]:
    """The fields of a message that was emitted just now."""
    now = planted.store.clock().wall
    return {"created_at": now, "due_at": now}


@pytest.mark.every_store
def test_where_nothing_waits_all_is_well(world, planted):
    planted.message(WINDOW, state=SENT)
    assert said(world, "messages") == [(OK, "none")]


@pytest.mark.every_store
def test_what_waits_in_time_is_well(world, planted):
    planted.message(WINDOW, **young(planted))
    assert said(world, "messages") == [(OK, "1 message waits in time")]


@pytest.mark.every_store
def test_messages_for_a_destination_that_nobody_declares_are_named(world, planted):
    planted.message(WINDOW, destination="mail", **young(planted))
    assert said(world, "messages") == [(PROBLEM, f"1 message waits for mail, and {world.config} does not declare it")]


def test_a_destination_that_cannot_be_read_hides_no_other(world, planted):
    configure(world, '[destinations.broken]\ntype = "htp"\n')
    configure(world, '[destinations.typo]\ntype = "command"\ncomand = ["/bin/true"]\n')
    levels = [level for level, _ in said(world, "destinations")]
    assert levels == [PROBLEM, PROBLEM, OK]
    seen = [seen for _, seen in said(world, "destinations")]
    assert "'htp' is no type of destination." in seen[0]
    assert "typo" in seen[1]
    assert seen[2] == "1 destination can be read"


def test_a_credential_that_is_not_set_here_is_a_note(world, planted):
    configure(world, '[destinations.hook]\ntype = "http"\nurl = "https://example.org/${HOOK_SECRET_PATH}"\n')
    (note, _) = said(world, "destinations")
    assert note[0] == NOTE
    assert note[1].startswith("hook cannot be used from here: ")
    assert "HOOK_SECRET_PATH" in note[1]


def test_a_variable_of_a_destination_is_to_be_set_where_messages_are_delivered(world, planted):
    configure(world, '[destinations.hook]\ntype = "http"\nurl = "${NOPE}"\n')
    (todo,) = [
        each.todo for each in examine(Patient([], None, None, world.env)) if each.level == NOTE and "hook" in each.seen
    ]
    assert todo.endswith("Set NOPE where ranonce deliver is started.")
    assert "scheduler" not in todo


@pytest.mark.parametrize(
    ("table", "seen"),
    [
        (
            'type = "sql"\nurl = "mysql://app@db.example/app"',
            "'mysql://app@db.example/app': an inbox table lies in SQLite or PostgreSQL.",
        ),
        ('type = "sql"\nurl = "redis://localhost:6379/0"', "an inbox table lies in SQLite or PostgreSQL."),
        (
            'type = "sql"\nurl = "postgresql://app@db.example/app?schema=x"',
            "the schema of an inbox stands with its table",
        ),
        (
            'type = "command"\ncommand = ["/no/such"]',
            "wrong: its command /no/such is not there: No such file or directory",
        ),
        ('type = "http"\nurl = "https://x.example/hook"\nca = "no-such.pem"', "no-such.pem"),
    ],
)
def test_a_setting_that_can_never_work_is_a_problem(world, planted, table, seen):
    configure(world, f"[destinations.wrong]\n{table}\n")
    found = said(world, "destinations")
    assert [level for level, _ in found] == [PROBLEM, OK]
    assert seen in found[0][1]


def test_an_address_of_no_database_for_an_inbox_is_answered_with_those_that_are(world, planted):
    configure(world, '[destinations.wrong]\ntype = "sql"\nurl = "mysql://app@db.example/app"\n')
    (todo,) = [each.todo for each in examine(Patient([], None, None, world.env)) if "mysql" in each.seen]
    assert todo == "Write sqlite:////PATH or postgresql://USER@HOST/DATABASE."


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    ("state", "seen"),
    [
        (UNSURE, "1 message to slack may have been received, and nobody but a person can say"),
        (DEAD, "1 message to slack will not be tried again"),
    ],
)
def test_what_a_person_must_settle_is_a_problem(world, planted, state, seen):
    planted.message(WINDOW, state=state, **young(planted))
    assert said(world, "messages") == [(PROBLEM, seen)]


@pytest.mark.every_store
def test_messages_that_nobody_has_delivered_for_long_are_a_problem(world, planted):
    planted.message(WINDOW)
    assert said(world, "messages") == [
        (PROBLEM, "1 message waits to be sent to slack for longer than 1h, the oldest since 2026-11-09T11:00:05Z")
    ]


@pytest.mark.every_store
def test_a_message_whose_deliverer_is_long_gone_is_a_problem(world, planted):
    clock = planted.store.clock()
    lease = {"state": SENDING, "sender": "5" * 32, "tries": 1, "lease_domain": clock.domain, "lease_seconds": 60.0}
    planted.message(WINDOW, "a", lease_until=clock.now - 60.0, taken_at=clock.wall - 120.0, **lease, **young(planted))
    assert said(world, "messages") == [(OK, "1 message waits in time")]
    planted.message(WINDOW, "b", lease_until=clock.now - 700.0, taken_at=clock.wall - 760.0, **lease, **young(planted))
    assert said(world, "messages") == [
        (PROBLEM, "1 message to slack was taken by a deliverer that is gone"),
    ]


@pytest.mark.every_store
def test_a_closed_destination_is_a_note_with_its_reason(world, planted):
    planted.message(WINDOW, **young(planted))
    planted.store.outbox().exchange("slack", closing=Closing(1893456000.0, "429 Too Many Requests"))
    assert said(world, "messages") == [
        (NOTE, "slack is closed until 2030-01-01T00:00:00Z: 429 Too Many Requests"),
        (OK, "1 message waits in time"),
    ]


def test_a_message_that_waits_for_a_day_far_ahead_is_a_note(world, planted):
    planted.message(WINDOW, **{**young(planted), "due_at": 4102444800.0})
    assert said(world, "messages") == [(NOTE, "the next message to slack is due on 2100-01-01T00:00:00Z")]


def test_a_doctor_of_one_job_tells_of_its_messages_only(world, planted):
    planted.message(WINDOW, state=DEAD)
    assert said(world, "messages", "other") == [(OK, "none")]
    assert [level for level, _ in said(world, "messages", "j")] == [PROBLEM]


@pytest.mark.parametrize("trigger", ["messages_are_not_lost", "bodies_are_not_changed", "steps_are_not_changed"])
def test_a_trigger_of_messages_or_steps_that_was_dropped_is_named(world, planted, trigger):
    planted.store.close()
    world.sql(f"DROP TRIGGER {trigger}")
    assert said(world, "tables") == [(PROBLEM, f"the trigger {trigger} is missing")]


def test_a_body_that_was_changed_is_found_by_a_deep_look(world, planted):
    whole = planted.message(WINDOW, "a")
    wrong = planted.message(WINDOW, "b", body=b"something else")
    assert said(world, "bodies") == []
    (found,) = said(world, "bodies", deep=True)
    assert found[0] == PROBLEM
    assert found[1] == f"message {wrong.seq} ({wrong.key}): its body is not the one that was emitted"
    assert str(whole.seq) != str(wrong.seq)


@pytest.mark.every_store
def test_bodies_that_are_whole_are_said_to_be(world, planted):
    planted.message(WINDOW, state=PENDING)
    planted.message(WINDOW, "pruned", state=SENT, body=None)
    assert said(world, "bodies", deep=True) == [(OK, "2 messages are whole")]
