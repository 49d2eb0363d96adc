"""`ranonce outbox`: what is not delivered, the story of one message, and what a person says of them."""

from __future__ import annotations

import json
import re

import pytest

from ranonce.delivery.mail import Letterhead, address, mail_of
from ranonce.lifecycle import Retention
from ranonce.messages import DEAD, DROPPED, PENDING, SENDING, SENT, UNSURE, Closing
from ranonce.timefmt import format_instant
from tests.conftest import World
from tests.outboxes import declare
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
    told = (str(message.seq), "pending (late)", "slack", f"j {WINDOW}", "-", "3", "0", "2026-11-09T11:00:05Z", "now")
    assert re.split("  +", lines[1]) == [*told, "503 Service Unavailable"]


def test_messages_of_one_window_are_told_apart_by_their_own_keys(world, planted):
    planted.message(WINDOW, "issue-1")
    planted.message(WINDOW, "issue/2")
    rows = [re.split("  +", line) for line in world.ranonce("outbox", "list").out.decode().splitlines()[1:3]]
    assert [row[4] for row in rows] == ["issue-1", "issue/2"]


def test_a_line_of_the_list_says_how_many_tries_count_and_how_many_there_are(world, planted):
    declare(world, '[destinations.slack]\ntype = "http"\nurl = "http://x.example"\nmax_attempts = 5\n')
    planted.message(WINDOW, tries=7, failures=2)
    rows = [re.split("  +", line) for line in world.ranonce("outbox", "list").out.decode().splitlines()]
    assert rows[0][5:7] == ["TAKEN", "FAILED"]
    assert rows[1][5:7] == ["7", "2/5"]


def test_a_line_of_the_list_says_when_the_next_try_is(world, planted):
    due = planted.store.clock().wall + 86400 * 3
    planted.message(WINDOW, due_at=due)
    assert f"  next {format_instant(due)}  " in world.ranonce("outbox", "list").out.decode()


def test_a_message_of_a_closed_destination_comes_next_when_that_opens(world, planted):
    planted.message(WINDOW)
    until = planted.store.clock().wall + 86400 * 3
    planted.store.outbox().exchange("slack", closing=Closing(until, "429"))
    assert f"  next {format_instant(until)}  " in world.ranonce("outbox", "list").out.decode()


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("good_for", "words"), [(86400.0 * 3, "lease until 20"), (-60.0, "its deliverer vanished; lease over since ")]
)
def test_a_message_that_is_being_sent_shows_its_lease_in_the_list_and_in_its_story(world, planted, good_for, words):
    message = planted.message(WINDOW, **taken(planted, good_for=good_for) | {"lease_seconds": 86400.0 * 3})
    assert words in world.ranonce("outbox", "list").out.decode()
    assert (
        f"  lease     {words.removeprefix('lease ')}" in world.ranonce("outbox", "show", str(message.seq)).out.decode()
    )


def test_what_waits_for_a_dead_deliverer_is_said_to_be_the_next_ones(world, planted):
    planted.message(WINDOW, **taken(planted, good_for=-1.0))
    said = world.ranonce("outbox", "list").out.decode()
    assert "slack: 1 that is being sent has no deliverer any more -> the next ranonce deliver decides" in said


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (UNSURE, "ranonce outbox resolve --destination slack --state unsure --as sent|not-sent --reason TEXT"),
        (DEAD, "ranonce outbox retry --destination slack"),
    ],
)
def test_below_the_list_stands_what_to_do_about_all_of_a_kind(world, planted, state, words):
    for number in range(10):
        planted.message(WINDOW, f"k{number}", state=state, error="no")
    lines = world.ranonce("outbox", "list").out.decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"slack: 10 {state} -> ")]
    assert words in line


def test_a_payload_that_is_none_is_to_be_dropped_and_not_to_be_tried_again(world, planted):
    message = planted.message(WINDOW, state=DEAD, error="it was not sent: `to`: 'nope' is no mail address")
    said = world.ranonce("outbox", "list").out.decode().splitlines()[-2]
    assert "resolve --destination slack --state dead --as dropped --reason TEXT; then mend the job" in said
    assert "retry" not in said
    shown = world.ranonce("outbox", "show", str(message.seq)).out.decode()
    assert f"ranonce outbox resolve {message.seq} --as dropped --reason TEXT; then mend the job" in shown


def test_a_destination_that_cannot_be_sent_to_is_said_below_the_list(world, planted):
    declare(world, '[destinations.slack]\ntype = "http"\nurl = "https://${NOPE}"\n')
    declare(world, '[destinations.mail]\ntype = "smpt"\n')
    planted.message(WINDOW)
    planted.message(WINDOW, destination="mail")
    planted.message(WINDOW, destination="stranger")
    lines = world.ranonce("outbox", "list").out.decode().splitlines()
    assert any(line.startswith("slack cannot be sent to from here: ") and "NOPE" in line for line in lines)
    assert any(line.startswith("mail cannot be sent to: ") and "'smpt'" in line for line in lines)
    assert any(line.startswith("stranger is not declared here -> ") for line in lines)
    assert not any("goes out with" in line for line in lines)


def test_what_needs_somebody_comes_first_below_the_list(world, planted):
    planted.message(WINDOW, destination="a")
    planted.message(WINDOW, destination="b", state=DEAD)
    planted.message(WINDOW, destination="c", state=UNSURE)
    lines = world.ranonce("outbox", "list").out.decode().splitlines()
    assert [line.partition(" -> ")[0] for line in lines[5:7]] == ["c: 1 unsure", "b: 1 dead"]


@pytest.mark.parametrize("words", [("--destination", "slak"), ("--job", "jj")])
def test_a_list_of_what_nobody_knows_is_refused_with_the_nearest(world, planted, words):
    planted.message(WINDOW)
    said = world.ranonce("outbox", "list", *words)
    assert said.exit == 64
    assert {"slak": "slack", "jj": "mean j?"}[words[1]] in said.sentence


def test_a_list_of_what_is_known_and_has_no_messages_is_empty(world, planted):
    planted.message(WINDOW, state=SENT)
    assert world.ranonce("outbox", "list", "--destination", "slack").out.decode() == "There is no such message.\n"
    assert world.ranonce("outbox", "list", "--job", "j").exit == 0


def test_the_list_is_narrowed_by_job_destination_and_state(world, planted):
    planted.message(WINDOW)
    planted.message(WINDOW, destination="mail", state=DEAD)
    assert listed(world, "--destination", "mail") == [(DEAD, "mail")]
    assert listed(world, "--state", "pending") == [(PENDING, "slack")]
    assert listed(world, "--job", "j", "--destination", "mail") == [(DEAD, "mail")]


def test_a_list_that_is_cut_says_so_and_how_many_there_are(world, planted):
    for own in "abc":
        planted.message(WINDOW, own)
    said = world.ranonce("outbox", "list", "--limit", "2").out.decode()
    assert said.splitlines()[4] == "There are more (--limit N). Not delivered: 3 pending."
    assert json.loads(world.ranonce("outbox", "list", "--limit", "2", "--json").out)["more"] is True


def test_where_nothing_waits_the_list_says_so(world, planted):
    assert world.ranonce("outbox", "list").out.decode() == "All is delivered.\n"


def test_a_destination_that_is_closed_is_said_below_the_list(world, planted):
    planted.message(WINDOW)
    planted.store.outbox().exchange("slack", closing=Closing(planted.store.clock().wall + 3600, "429"))
    lines = world.ranonce("outbox", "list").out.decode().splitlines()
    (line,) = [line for line in lines if line.startswith("slack is closed until ")]
    assert line.endswith(": 429 -> ranonce outbox retry --destination slack")


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


@pytest.mark.parametrize(
    ("table", "known"),
    [
        ('type = "http"\nurl = "http://x.example"', {"Idempotency-Key": '"s/j:2026-11-09T11/slack/a"'}),
        ('type = "http"\nurl = "http://x.example"\nkey_header = "X-Key"', {"X-Key": "s/j:2026-11-09T11/slack/a"}),
        ('type = "http"\nurl = "http://x.example"\nsecret = "${S}"', {"webhook-id": "s/j:2026-11-09T11/slack/a"}),
        ('type = "command"\ncommand = ["/bin/true"]', {"RANONCE_MESSAGE_KEY": "s/j:2026-11-09T11/slack/a"}),
        ('type = "sql"\nurl = "sqlite:////srv/x.db"', {"key in ranonce_inbox": "s/j:2026-11-09T11/slack/a"}),
        ('type = "nats"\nurl = "nats://x"\nsubject = "j"', {"Nats-Msg-Id": "s/j:2026-11-09T11/slack/a"}),
        (
            'type = "github"\ntoken = "${T}"',
            {"marker in the comment": "<!-- ranonce-message s/j:2026%2D11%2D09T11/slack/a -->"},
        ),
        (
            'type = "smtp"\nhost = "x"\nfrom = "jobs@x.example"\nto = "Ann <ann@x.example>"',
            {"recipient": "ann@x.example", "X-Ranonce-Key": "s/j:2026-11-09T11/slack/a"},
        ),
    ],
)
def test_a_story_says_by_what_the_destination_knows_the_message(world, planted, table, known):
    declare(world, f'[destinations.slack]\nprefix = "s"\n{table}\n')
    message = planted.message(WINDOW, "a", state=UNSURE)
    told = json.loads(world.ranonce("outbox", "show", str(message.seq), "--json").out)["known_as"]
    assert known.items() <= told.items()
    shown = world.ranonce("outbox", "show", str(message.seq)).out.decode()
    assert all(f"  known as  {name}: {value}\n" in shown for name, value in known.items())


def test_a_mail_that_is_in_doubt_is_looked_for_by_the_message_id_that_it_was_sent_with(world, planted):
    declare(world, '[destinations.slack]\ntype = "smtp"\nhost = "x"\nfrom = "jobs@x.example"\nto = "ann@x.example"\n')
    message = planted.message(WINDOW, "a", state=UNSURE)
    head = Letterhead(address("jobs@x.example"), address("ann@x.example"), "x")
    (line,) = [line for line in mail_of(message, message.key, head).raw.splitlines() if line.startswith(b"Message-ID")]
    assert f"known as  {line.decode()}\n" in world.ranonce("outbox", "show", str(message.seq)).out.decode()


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
    told = said.out.decode().splitlines()[1]
    assert told.startswith(f"  message {message.seq} is being sent at this moment (lease until ")
    assert told.endswith("). Wait for what becomes of it.")
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
    assert (said.exit, told["changed"]) == (80, 2)
    assert [each["message"] for each in told["left"]] == [messages[2].seq]
    assert [state(planted, each.key) for each in messages] == [PENDING, PENDING, UNSURE]


def test_many_that_may_have_been_received_are_told_in_one_line_with_what_to_do(world, planted):
    for number in range(12):
        planted.message(WINDOW, f"k{number}", state=UNSURE)
    said = world.ranonce("outbox", "retry", "--destination", "slack")
    assert said.exit == 80
    lines = said.out.decode().splitlines()
    assert lines[0] == "0 messages to be tried now."
    assert len(lines) == 2
    assert lines[1].startswith("  12 messages to slack may have been received already, and could be received twice -> ")
    assert "ranonce outbox resolve --destination slack --state unsure --as sent|not-sent --reason TEXT" in lines[1]


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
