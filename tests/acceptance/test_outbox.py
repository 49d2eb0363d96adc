"""`ranonce outbox`: what is not delivered, the story of one message, and what a person says of them."""

from __future__ import annotations

import json
import re

import pytest

from ranonce.lifecycle import Retention
from ranonce.messages import DEAD, DROPPED, PENDING, SENDING, SENT, UNSURE, Closing
from tests.conftest import World
from tests.planted import Planted

WINDOW = "2026-11-09T11"
OLDER = "2026-11-09T03"


@pytest.fixture
def planted(world: World) -> Planted:
    """An hourly job that has done two windows."""
    planted = Planted("hour", store=world.kept_open())
    planted.run(OLDER)
    planted.run(WINDOW)
    return planted


def taken(planted: Planted, *, good_for: float) -> dict[str, object]:
    """The fields of a message that a deliverer has, under a lease that is good for so many seconds."""
    clock = planted.store.clock()
    lease = {"lease_domain": clock.domain, "lease_until": clock.now + good_for, "lease_seconds": 60.0}
    return {"state": SENDING, "tries": 1, "sender": "5" * 32, "taken_at": clock.wall - 60.0, **lease}


def listed(world: World, *options: str) -> list[tuple[str, str]]:
    """State and destination of each message, as listed."""
    told = json.loads(world.ranonce("outbox", "list", "--json", *options).out)
    return [(each["state"], each["destination"]) for each in told["messages"]]


def state(planted: Planted, key: str) -> str:
    message = planted.store.outbox().message(key)
    assert message is not None
    return message.state


def notes(planted: Planted) -> list[tuple[str, object]]:
    """What was noted, and of which messages."""
    return [(event.reason, event.data["outbox"]) for event in planted.store.newest_events(20) if event.event == "noted"]


# --- list -----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_the_list_is_of_what_is_not_delivered_the_worst_first(world, planted):
    for own, at_state in (("a", PENDING), ("b", SENT), ("c", DEAD), ("d", DROPPED), ("e", UNSURE)):
        planted.message(WINDOW, own, state=at_state)
    assert [each for each, _ in listed(world)] == [UNSURE, DEAD, PENDING]
    assert [each for each, _ in listed(world, "--all")] == [UNSURE, DEAD, PENDING, SENT, DROPPED]


@pytest.mark.every_store
def test_a_line_of_the_list_says_who_since_when_and_what_was_said_last(world, planted):
    message = planted.message(WINDOW, tries=3, error="503 Service Unavailable")
    lines = world.ranonce("outbox", "list").out.decode().splitlines()
    assert re.split("  +", lines[0])[:4] == ["MESSAGE", "STATE", "DESTINATION", "JOB AND WINDOW"]
    told = (str(message.seq), "pending (late)", "slack", f"j {WINDOW}", "3", "2026-11-09T11:00:05Z")
    assert re.split("  +", lines[1]) == [*told, "503 Service Unavailable"]


def test_the_list_is_narrowed_by_job_destination_and_state(world, planted):
    planted.message(WINDOW)
    planted.message(WINDOW, destination="mail", state=DEAD)
    assert listed(world, "--destination", "mail") == [(DEAD, "mail")]
    assert listed(world, "--state", "pending") == [(PENDING, "slack")]
    assert listed(world, "--job", "other") == []


def test_a_list_that_is_cut_says_so_and_how_many_there_are(world, planted):
    for own in "abc":
        planted.message(WINDOW, own)
    said = world.ranonce("outbox", "list", "--limit", "2").out.decode()
    assert said.splitlines()[-1] == "There are more (--limit N). Not delivered: 3 pending."
    assert json.loads(world.ranonce("outbox", "list", "--limit", "2", "--json").out)["more"] is True


def test_where_nothing_waits_the_list_says_so(world, planted):
    assert world.ranonce("outbox", "list").out.decode() == "All is delivered.\n"


def test_a_destination_that_is_closed_is_said_below_the_list(world, planted):
    planted.message(WINDOW)
    planted.store.outbox().exchange("slack", closing=Closing(planted.store.clock().wall + 3600, "429"))
    last = world.ranonce("outbox", "list").out.decode().splitlines()[-1]
    assert last.startswith("slack is closed until ")
    assert last.endswith(": 429")


# --- show -----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_message_is_shown_by_its_number_and_by_its_key(world, planted):
    message = planted.message(WINDOW, "invoice 7", state=UNSURE, error="no answer in 30 s")
    by_number = world.ranonce("outbox", "show", str(message.seq)).out.decode()
    assert world.ranonce("outbox", "show", message.key).out.decode() == by_number
    assert by_number.startswith(f"message {message.seq} to slack: unsure.\n  key       j:{WINDOW}/slack/invoice%207\n")
    assert "  error     no answer in 30 s\n" in by_number
    assert "body (14 bytes):\nbody invoice 7\n" in by_number
    assert f"ranonce outbox resolve {message.seq} --as sent|not-sent --reason TEXT" in by_number


def test_what_is_not_known_of_a_message_has_no_line(world, planted):
    message = planted.message(WINDOW, state=SENT, receipt="")
    said = world.ranonce("outbox", "show", str(message.seq)).out.decode()
    names = [line.split()[0] for line in said.splitlines()[1:] if line.startswith("  ")]
    assert names == ["key", "from", "emitted", "tries", "type", "digest", "the"]


def test_a_body_moves_no_cursor(world, planted):
    message = planted.message(WINDOW, body=b"a\x1b[2J\nb\x00\xff", error="evil\x1b[2J")
    said = world.ranonce("outbox", "show", str(message.seq)).out
    assert b"\x1b" not in said
    assert said.endswith(b"a\\x1b[2J\nb\\x00\\xff\n")


def test_a_long_body_is_shown_in_part(world, planted):
    message = planted.message(WINDOW, body=b"x" * 5000)
    said = world.ranonce("outbox", "show", str(message.seq)).out.decode()
    assert said.endswith(f"(904 bytes more: ranonce outbox show {message.seq} --body)\n")


def test_a_body_is_written_byte_for_byte(world, planted):
    body = bytes(range(256)) * 20
    message = planted.message(WINDOW, body=body)
    assert world.ranonce("outbox", "show", str(message.seq), "--body").out == body


def test_a_body_that_was_pruned_is_said_to_be(world, planted):
    message = planted.message(WINDOW, state=SENT, body=None)
    assert world.ranonce("outbox", "show", str(message.seq)).out.decode().endswith("Its body was pruned.\n")
    said = world.ranonce("outbox", "show", str(message.seq), "--body")
    assert (said.exit, said.out) == (64, b"")
    assert "was pruned" in said.sentence


def test_a_message_that_is_not_there_is_a_sentence(world, planted):
    said = world.ranonce("outbox", "show", "99")
    assert said.exit == 64
    assert said.sentence.startswith("ranonce: there is no message '99'.")


# --- resolve --------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
@pytest.mark.parametrize(("as_", "becomes"), [("sent", SENT), ("not-sent", PENDING), ("dropped", DROPPED)])
def test_a_person_says_what_became_of_a_message_in_doubt(world, planted, as_, becomes):
    message = planted.message(WINDOW, state=UNSURE)
    said = world.ranonce("outbox", "resolve", str(message.seq), "--as", as_, "--reason", "asked them")
    assert (said.exit, said.out.decode()) == (0, f"1 message resolved as {as_}.\n")
    assert state(planted, message.key) == becomes
    assert notes(planted) == [(f"message {message.seq} to slack resolved as {as_}: asked them", [message.seq])]
    shown = world.ranonce("outbox", "show", str(message.seq)).out.decode()
    assert f"resolved  {as_}, says " in shown
    assert f"message {message.seq} to slack resolved as {as_}: asked them; by " in shown


@pytest.mark.every_store
def test_a_message_whose_run_was_pruned_is_resolved_all_the_same(world, planted):
    message = planted.message(OLDER, state=UNSURE)
    later = float(planted.schedules[-1].window(WINDOW).start)
    assert planted.store.upkeep().prune("j", Retention(later, later)).runs == 1
    said = world.ranonce("outbox", "resolve", str(message.seq), "--as", "sent", "--reason", "asked them")
    assert said.exit == 0, said.err
    assert state(planted, message.key) == SENT
    assert len(notes(planted)) == 1


def test_a_message_of_a_removed_job_is_resolved_all_the_same(world, planted):
    message = planted.message(WINDOW, state=UNSURE)
    assert world.ranonce("remove", "j").exit == 0
    said = world.ranonce("outbox", "resolve", str(message.seq), "--as", "dropped", "--reason", "the job is gone")
    assert said.exit == 0, said.err
    assert state(planted, message.key) == DROPPED


@pytest.mark.every_store
def test_all_messages_in_doubt_to_one_destination_are_resolved_at_once(world, planted):
    for window, own in ((OLDER, "a"), (OLDER, "b"), (WINDOW, "c")):
        planted.message(window, own, state=UNSURE)
    other = planted.message(WINDOW, destination="mail", state=UNSURE)
    words = ("--destination", "slack", "--state", "unsure", "--as", "not-sent", "--reason", "the receiver was down")
    said = world.ranonce("outbox", "resolve", *words)
    assert (said.exit, said.out.decode()) == (0, "3 messages resolved as not-sent.\n")
    assert state(planted, other.key) == UNSURE
    assert sorted(len(numbers) for _, numbers in notes(planted)) == [1, 2]  # one for each run


def test_a_message_that_is_being_sent_is_left_to_its_deliverer(world, planted):
    message = planted.message(WINDOW, **taken(planted, good_for=30.0))
    said = world.ranonce("outbox", "resolve", str(message.seq), "--as", "sent", "--reason", "x")
    assert said.exit == 75
    assert said.out.decode().splitlines()[1] == (
        f"  message {message.seq} is being sent at this moment. Wait for what becomes of it."
    )
    assert state(planted, message.key) == SENDING
    assert notes(planted) == []


@pytest.mark.every_store
def test_a_message_whose_deliverer_is_dead_is_resolved(world, planted):
    message = planted.message(WINDOW, **taken(planted, good_for=-1.0))
    said = world.ranonce("outbox", "resolve", str(message.seq), "--as", "sent", "--reason", "it is there")
    assert said.exit == 0, said.err
    assert state(planted, message.key) == SENT


def test_what_was_sent_is_not_resolved_again(world, planted):
    message = planted.message(WINDOW, state=SENT)
    said = world.ranonce("outbox", "resolve", str(message.seq), "--as", "not-sent", "--reason", "x")
    assert (said.exit, state(planted, message.key)) == (64, SENT)
    assert f"message {message.seq} is sent already." in said.out.decode()


@pytest.mark.parametrize(
    "words",
    [
        ("1", "--as", "sent"),
        ("1", "--reason", "x"),
        ("--as", "sent", "--reason", "x"),
        ("--destination", "slack", "--as", "sent", "--reason", "x"),
        ("1", "--destination", "slack", "--state", "unsure", "--as", "sent", "--reason", "x"),
        ("1", "--as", "sent", "--reason", "x", "--all"),
    ],
)
def test_a_resolution_that_is_not_clear_is_refused(world, planted, words):
    planted.message(WINDOW, state=UNSURE)
    said = world.ranonce("outbox", "resolve", *words)
    assert said.exit == 64
    assert said.sentence


# --- retry ----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_dead_message_is_tried_again_now(world, planted):
    message = planted.message(WINDOW, state=DEAD, failures=12)
    said = world.ranonce("outbox", "retry", str(message.seq))
    assert (said.exit, said.out.decode()) == (0, "1 message to be tried now.\n")
    now = planted.store.outbox().message(message.key)
    assert (now.state, now.failures) == (PENDING, 0)
    assert now.due_at <= planted.store.clock().wall
    assert notes(planted) == [(f"message {message.seq} to slack to be tried now", [message.seq])]


@pytest.mark.every_store
def test_a_retry_opens_its_destination(world, planted):
    message = planted.message(WINDOW)
    planted.store.outbox().exchange("slack", closing=Closing(planted.store.clock().wall + 3600, "429"))
    said = world.ranonce("outbox", "retry", str(message.seq)).out.decode()
    assert said == "slack is open.\n1 message to be tried now.\n"
    assert planted.store.outbox().queue("slack", 0).closed_until is None


@pytest.mark.every_store
def test_what_may_have_been_received_is_not_tried_again_before_a_person_says(world, planted):
    message = planted.message(WINDOW, state=UNSURE)
    said = world.ranonce("outbox", "retry", str(message.seq))
    assert (said.exit, state(planted, message.key)) == (80, UNSURE)
    assert f"ranonce outbox resolve {message.seq} --as sent|not-sent --reason TEXT" in said.out.decode()


def test_all_messages_to_one_destination_are_tried_now_but_those_in_doubt(world, planted):
    messages = [planted.message(WINDOW, own, state=at) for own, at in (("a", PENDING), ("b", DEAD), ("c", UNSURE))]
    said = world.ranonce("outbox", "retry", "--destination", "slack", "--json")
    told = json.loads(said.out)
    assert (said.exit, told["changed"]) == (0, 2)
    assert [each["message"] for each in told["left"]] == [messages[2].seq]
    assert [state(planted, each.key) for each in messages] == [PENDING, PENDING, UNSURE]


def test_a_destination_that_is_misspelt_is_refused_with_the_nearest(world, planted):
    planted.message(WINDOW)
    said = world.ranonce("outbox", "retry", "--destination", "slak")
    assert said.exit == 64
    assert "there is no destination 'slak', and no message to it." in said.sentence
    assert "slack" in said.sentence.partition("to it.")[2]


@pytest.mark.parametrize("words", [(), ("1", "--destination", "slack"), ("1", "--reason", "x")])
def test_a_retry_of_nobody_knows_what_is_refused(world, planted, words):
    planted.message(WINDOW)
    assert world.ranonce("outbox", "retry", *words).exit == 64


def test_a_word_that_is_no_part_of_the_outbox_is_refused_with_the_nearest(world):
    said = world.ranonce("outbox", "lst")
    assert said.exit == 64
    assert "list" in said.sentence
