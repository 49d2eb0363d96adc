"""The rules of messages: the tables of `ranonce.messages` one row each, then random stories against the promises."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ranonce import messages as rules
from ranonce.emission import Emission, checked, digest_of, message_of
from ranonce.errors import UsageError
from ranonce.lifecycle import Claim, RunKey
from ranonce.messages import (
    DEAD,
    DELIVERED,
    DROPPED,
    JOB,
    LEDGER,
    LONGEST_BODY,
    LONGEST_CLOSING_SECONDS,
    LONGEST_WORDS,
    NOT_BEGUN,
    NOT_RECEIVED,
    PENDING,
    REFUSED,
    SCOPES,
    SENDING,
    SENT,
    STATES,
    THROTTLED,
    UNDELIVERED,
    UNKNOWN,
    UNSURE,
    WINDOW,
    Answer,
    Message,
    Move,
    No,
    Queue,
    Route,
    message_key,
)
from ranonce.windows import Window

NOW = 1_762_732_800.0  # 2025-11-10T00:00Z
RUN = RunKey("job", "2025-11-10")
CLAIM = Claim(RUN, Window("2025-11-10", int(NOW), int(NOW) + 86400), 2, 3, "o" * 32, "schedule", None, 300.0, NOW)
PLAIN = Route("web", max_attempts=3, timeout=30.0, first_delay=4.0, longest_delay=100.0)
DEDUPING = PLAIN.replace(dedupes=3600.0)


def message(state=PENDING, **fields):
    """Return a message as it stands in an outbox. One that is being sent was taken for the first time, just now."""
    made = message_of(Emission("web", b"payload"), CLAIM, NOW - 100).replace(state=state, seq=7)
    if state == SENDING:
        made = made.replace(
            tries=1, sender="me", lease_domain="boot", lease_until=60.0, lease_seconds=60.0, taken_at=NOW
        )
    return made.replace(**fields)


def queue(*due, **fields):
    told = Queue("web", 5, None, None, 0.0, due, (), None, "boot", 1000.0, NOW)
    return told.replace(**fields)


def settled(answer, route=PLAIN, chance=0.0, **fields):
    """Return what an answer makes of a message that is being sent."""
    now = message(SENDING, **fields)
    move = rules.settle(now, now, answer, route, NOW + 1, chance)
    assert move.was == now
    return move.now


def becomes(answer, route=PLAIN, **fields):
    return settled(answer, route, **fields).state


@pytest.mark.parametrize(
    ("fields", "due_now"),
    [
        ({"due_at": NOW + 86_400.0}, False),
        ({"due_at": NOW + 86_401.0}, True),
        ({"due_at": NOW + LONGEST_CLOSING_SECONDS, "tries": 1}, False),
        ({"due_at": NOW + LONGEST_CLOSING_SECONDS + 86_401.0, "tries": 1}, True),
        ({"due_at": NOW + 86_401.0, "state": UNSURE}, False),
    ],
)
def test_a_message_that_is_due_later_than_any_rule_would_have_it_is_due_now(fields, due_now):
    move = rules.brought_forward(message(**fields), PLAIN, NOW)
    assert (move is not None and move.now.due_at == NOW) is due_now


# --- the table of states --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(STATES))
def test_a_late_answer_counts_if_it_is_proof_and_the_message_still_waits_for_somebody(state):
    then = message(state, tries=2, sender="other" if state == SENDING else "")
    taken = message(SENDING)
    for kind in (DELIVERED, THROTTLED, NOT_RECEIVED, UNKNOWN, REFUSED, NOT_BEGUN):
        move = rules.settle(then, taken, Answer(kind, "words"), PLAIN, NOW, 0.0)
        if kind == DELIVERED and state in (PENDING, UNSURE, DEAD):
            assert (move.was, move.now.state, move.now.receipt, move.now.settled_at) == (then, SENT, "words", NOW)
        else:
            assert move is None


@pytest.mark.parametrize("later", [{"tries": 2}, {"tries": 2, "sender": "other"}, {"sender": "other"}])
@pytest.mark.parametrize("kind", [DELIVERED, THROTTLED, NOT_RECEIVED, UNKNOWN, REFUSED, NOT_BEGUN])
def test_an_answer_to_an_earlier_try_does_not_end_a_later_one(kind, later):
    assert rules.settle(message(SENDING, **later), message(SENDING), Answer(kind), PLAIN, NOW, 0.0) is None


@pytest.mark.parametrize(
    ("as_", "state", "then"),
    [
        *((as_, state, None) for as_ in ("sent", "not-sent", "dropped") for state in (SENDING, SENT, DROPPED)),
        *(("sent", state, SENT) for state in (PENDING, UNSURE, DEAD)),
        *(("dropped", state, DROPPED) for state in (PENDING, UNSURE, DEAD)),
        ("not-sent", PENDING, None),
        ("not-sent", UNSURE, PENDING),
        ("not-sent", DEAD, PENDING),
    ],
)
def test_what_a_person_may_say_of_a_message(as_, state, then):
    said = rules.resolve(message(state), as_, "ann: I looked", NOW)
    if then is None:
        assert isinstance(said, No)
        assert "message 7" in said.sentence
        return
    assert (said.now.state, said.now.resolution) == (then, "ann: I looked")


def test_a_message_that_a_person_says_was_not_sent_begins_anew():
    doubtful = message(UNSURE, tries=4, failures=3, doubt_since=NOW - 50, settled_at=NOW - 10)
    now = rules.resolve(doubtful, "not-sent", "ann", NOW).now
    assert (now.failures, now.doubt_since, now.due_at, now.settled_at) == (0, None, NOW, None)
    assert now.tries == 4


@pytest.mark.parametrize(
    ("state", "doubt_since", "route", "then"),
    [
        (PENDING, None, PLAIN, PENDING),
        (PENDING, NOW - 100, DEDUPING, PENDING),
        (DEAD, None, PLAIN, PENDING),
        (DEAD, NOW - 100, DEDUPING, PENDING),
        (DEAD, NOW - 3600, DEDUPING, None),
        (DEAD, NOW - 100, PLAIN, None),
        (DEAD, NOW - 100, None, None),
        (DEAD, None, None, PENDING),
        *((state, None, DEDUPING, None) for state in (SENDING, UNSURE, SENT, DROPPED)),
    ],
)
def test_what_a_person_may_have_tried_now(state, doubt_since, route, then):
    said = rules.retry(message(state, doubt_since=doubt_since, failures=2, due_at=NOW + 900), route, NOW)
    if then is None:
        assert isinstance(said, No)
        return
    assert (said.now.state, said.now.due_at, said.now.failures) == (then, NOW, 0)
    assert said.now.doubt_since == doubt_since


def test_what_may_have_been_received_is_not_retried_before_a_person_says_which():
    said = rules.retry(message(UNSURE), PLAIN, NOW)
    assert "could be received twice" in said.sentence
    assert "ranonce outbox resolve 7 --as sent|not-sent" in said.next_step


def test_only_what_waits_for_somebody_is_undelivered():
    assert {SENT, DROPPED} == STATES - UNDELIVERED


# --- the table of answers -------------------------------------------------------------------------------------------

EARLIER = {"doubt_since": NOW - 100}
LONG_AGO = {"doubt_since": NOW - 3600}
LAST = {"failures": 2}
ANSWERED = Answer(NOT_RECEIVED, "503", answered=True)


@pytest.mark.parametrize(
    ("answer", "before", "plain", "deduping"),
    [
        (Answer(DELIVERED), {}, SENT, SENT),
        (Answer(DELIVERED), LONG_AGO, SENT, SENT),
        (Answer(THROTTLED), {}, PENDING, PENDING),
        (Answer(THROTTLED), EARLIER, PENDING, PENDING),
        (Answer(THROTTLED), LAST, PENDING, PENDING),
        (Answer(NOT_RECEIVED), {}, PENDING, PENDING),
        (Answer(NOT_RECEIVED), LAST, DEAD, DEAD),
        (Answer(NOT_RECEIVED), EARLIER, UNSURE, PENDING),
        (Answer(NOT_RECEIVED), LONG_AGO, UNSURE, UNSURE),
        (Answer(NOT_RECEIVED), LAST | EARLIER, UNSURE, UNSURE),
        (ANSWERED, LAST | EARLIER, UNSURE, DEAD),
        (Answer(UNKNOWN), {}, UNSURE, PENDING),
        (Answer(UNKNOWN), EARLIER, UNSURE, PENDING),
        (Answer(UNKNOWN), LONG_AGO, UNSURE, UNSURE),
        (Answer(UNKNOWN), LAST, UNSURE, UNSURE),
        (Answer(UNKNOWN, "500", answered=True), LAST, UNSURE, DEAD),
        (Answer(REFUSED), {}, DEAD, DEAD),
        (Answer(REFUSED), EARLIER, DEAD, DEAD),
        (Answer(NOT_BEGUN), {}, PENDING, PENDING),
        (Answer(NOT_BEGUN), LAST, PENDING, PENDING),
    ],
)
def test_what_an_answer_makes_of_a_message(answer, before, plain, deduping):
    assert becomes(answer, PLAIN, **before) == plain
    assert becomes(answer, DEDUPING, **before) == deduping


@pytest.mark.parametrize(
    ("kind", "counted"),
    [(THROTTLED, 0), (NOT_BEGUN, 0), (NOT_RECEIVED, 1), (UNKNOWN, 1), (REFUSED, 1), (DELIVERED, 0)],
)
def test_which_answers_count_against_the_attempts(kind, counted):
    assert settled(Answer(kind)).failures == counted


@pytest.mark.parametrize("kind", [DELIVERED, THROTTLED, NOT_RECEIVED, UNKNOWN, REFUSED, NOT_BEGUN])
def test_what_was_settled_is_nobodys_and_its_tries_never_go_back(kind):
    now = settled(Answer(kind), tries=4)
    assert (now.sender, now.tries) == ("", 4)


def test_doubt_begins_with_the_first_try_that_may_have_been_received():
    assert settled(Answer(UNKNOWN), DEDUPING).doubt_since == NOW
    assert settled(Answer(UNKNOWN), DEDUPING, doubt_since=NOW - 7).doubt_since == NOW - 7
    for kind in (THROTTLED, NOT_RECEIVED, REFUSED, NOT_BEGUN):
        assert settled(Answer(kind), DEDUPING).doubt_since is None


def test_what_was_not_begun_goes_at_once_and_nothing_is_said_of_it():
    now = settled(Answer(NOT_BEGUN, "stopped"))
    assert (now.due_at, now.error, now.settled_at) == (NOW - 100, None, None)


def test_what_a_destination_said_is_kept_on_one_line_of_bounded_length():
    said = "line\n" + "x" * 1000
    assert settled(Answer(DELIVERED, said)).receipt == ("line\\n" + "x" * 1000)[:LONGEST_WORDS]
    assert settled(Answer(REFUSED, said)).error == ("line\\n" + "x" * 1000)[:LONGEST_WORDS]
    assert settled(Answer(NOT_RECEIVED)).error == NOT_RECEIVED


@pytest.mark.parametrize(
    ("failures", "chance", "delay"),
    [(0, 0.0, 2.0), (0, 0.999_999, 4.0), (1, 0.0, 4.0), (2, 0.5, 12.0), (4, 0.0, 32.0), (9, 0.999_999, 100.0)],
)
def test_each_next_try_waits_twice_as_long_between_half_of_it_and_all(failures, chance, delay):
    now = settled(Answer(NOT_RECEIVED), PLAIN.replace(max_attempts=12), chance, failures=failures)
    assert now.due_at - (NOW + 1) == pytest.approx(delay, abs=0.001)


def test_no_number_of_failures_overflows_the_delay():
    now = settled(Answer(NOT_RECEIVED), PLAIN.replace(max_attempts=10**9), failures=10**6)
    assert now.due_at == NOW + 1 + 50


@pytest.mark.parametrize(
    ("retry_after", "waits"),
    [(None, 4.0), (0.0, 4.0), (-5.0, 4.0), (90.0, 90.0), (1e12, LONGEST_CLOSING_SECONDS), (math.inf, 31 * 86400.0)],
)
def test_a_destination_is_left_alone_for_as_long_as_it_said_within_reason(retry_after, waits):
    answer = Answer(THROTTLED, "429", retry_after)
    assert settled(answer).due_at == NOW + 1 + waits
    assert rules.closing(answer, PLAIN, NOW) == rules.Closing(NOW + waits, "429")


def test_only_an_answer_that_asks_for_it_closes_a_destination():
    for kind in (DELIVERED, NOT_RECEIVED, UNKNOWN, REFUSED, NOT_BEGUN):
        assert rules.closing(Answer(kind), PLAIN, NOW) is None
    assert rules.closing(Answer(NOT_RECEIVED, "503", 120.0), PLAIN, NOW).until == NOW + 120


def test_a_try_that_comes_after_the_time_in_which_the_destination_dedupes_is_not_made():
    # The next try would come at +4 seconds at most and take 30: just in time, and a second too late.
    for since, then in ((NOW + 1 + 4 + 30 - 3600, PENDING), (NOW + 4 + 30 - 3600, UNSURE)):
        assert becomes(Answer(UNKNOWN), DEDUPING, doubt_since=since, failures=0) in (then, PENDING)
        assert settled(Answer(UNKNOWN), DEDUPING, 1.0, doubt_since=since).state == then


# --- taking ---------------------------------------------------------------------------------------------------------


def test_what_is_taken_is_the_senders_under_a_lease_of_the_stores_clock():
    taken = rules.take(queue(message(), message(key="b")), PLAIN, "host-1", 10)
    assert (taken.after, taken.next_at, len(taken.moves)) == (5, 0.0, 2)
    now = taken.moves[0].now
    assert (now.state, now.tries, now.sender, now.taken_at) == (SENDING, 1, "host-1", NOW)
    assert (now.lease_domain, now.lease_until, now.lease_seconds) == ("boot", 1060.0, 60.0)


@pytest.mark.parametrize(("most", "count"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_no_more_are_taken_than_are_wanted(most, count):
    taken = rules.take(queue(message(key="a"), message(key="b"), message(key="c")), PLAIN, "me", most)
    assert (len(taken.moves) if taken else 0) == count


def test_nothing_is_taken_from_an_empty_or_a_closed_destination():
    assert rules.take(queue(), PLAIN, "me", 5) is None
    assert rules.take(queue(message(), closed_until=NOW + 0.1), PLAIN, "me", 5) is None
    assert rules.take(queue(message(), closed_until=NOW), PLAIN, "me", 5) is not None


@pytest.mark.parametrize(
    ("doubt_since", "route", "then"),
    [
        (None, PLAIN, SENDING),
        (NOW - 1, PLAIN, UNSURE),
        (NOW - 3570, DEDUPING, SENDING),
        (NOW - 3571, DEDUPING, UNSURE),
        # A clock that was set back since tells nothing of how long it was.
        (NOW + 7200, PLAIN, UNSURE),
        (NOW + 7200, DEDUPING, UNSURE),
    ],
)
def test_what_could_be_received_twice_becomes_unsure_instead_of_being_taken(doubt_since, route, then):
    (move,) = rules.take(queue(message(doubt_since=doubt_since, error="500")), route, "me", 5).moves
    assert move.now.state == then
    assert (move.now.tries, move.now.error) == (1 if then == SENDING else 0, "500")


@pytest.mark.parametrize(
    ("lease_domain", "lease_until", "now", "wall", "over"),
    [
        ("boot", 1060.0, 1059.9, NOW, False),
        ("boot", 1060.0, 1060.0, NOW, True),
        ("boot", 1060.0, 1001.0, NOW + 10**6, False),  # the real clock does not matter
        ("other", 5.0, 1000.0, NOW + 59.9, False),
        ("other", 5.0, 1000.0, NOW + 60.0, True),
        ("other", 1e9, 1000.0, NOW + 60.0, True),
        ("other", 1e9, 1000.0, NOW - 0.1, True),  # the real clock was set back: taken in the future
        ("boot", 1e9, 1000.0, NOW + 59.9, False),  # a clock that began anew under the same name
        ("boot", 1e9, 1000.0, NOW + 60.0, True),
    ],
)
def test_when_a_lease_is_over(lease_domain, lease_until, now, wall, over):
    held = message(SENDING, lease_domain=lease_domain, lease_until=lease_until)
    assert rules.lease_over(held, "boot", now, wall) is over


def test_a_renewed_lease_is_as_long_as_the_first():
    held = message(SENDING)
    assert rules.renewed(held, "boot", 2000.0) == Move(held, held.replace(lease_until=2060.0))


@pytest.mark.parametrize(("route", "then"), [(PLAIN, UNSURE), (DEDUPING, PENDING)])
def test_what_a_vanished_deliverer_had_may_have_been_received(route, then):
    now = rules.lapsed(message(SENDING), route, NOW + 60, 0.0).now
    assert (now.state, now.doubt_since, now.failures, now.error) == (
        then,
        NOW,
        1,
        "its deliverer vanished while it was sent",
    )


def test_a_wish_about_one_message_closes_nothing():
    answer = Answer(UNKNOWN, "it is working on it", retry_after=60.0, answered=True)
    assert rules.closing(answer, PLAIN, NOW) is not None
    assert rules.closing(answer.replace(for_this=True), PLAIN, NOW) is None
    assert rules.wait(answer.replace(for_this=True), 1.0) == 60.0


@pytest.mark.parametrize(("timeout", "lease"), [(30.0, 60.0), (1.0, 10.0), (100.0, 200.0)])
def test_a_lease_outlasts_two_tries(timeout, lease):
    assert Route("web", timeout=timeout).lease_seconds == lease


def test_no_more_is_in_doubt_at_once_than_is_being_sent_where_doubt_stays():
    assert Route("web", concurrency=4).batch == 4
    assert Route("web", concurrency=4, dedupes=60.0).batch == 100


@settings(deadline=None)
@given(
    st.one_of(st.floats(0.01, 5000.0), st.integers(1, 50).map(float)),
    st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(1, 150)), min_size=2, max_size=30),
)
def test_over_any_stretch_of_time_no_more_is_taken_than_the_rate_allows(rate, asked):
    route, wall, next_at, taken = PLAIN.replace(rate=rate), NOW, 0.0, []
    waiting = tuple(message(key=str(number)) for number in range(100))
    for pause, most in asked:
        wall += pause
        took = rules.take(queue(*waiting, wall=wall, next_at=next_at), route, "me", most)
        if took is not None:
            next_at = took.next_at
            taken.append((wall, len(took.moves)))
    burst = max(int(rate), 1)
    for first, last in combinations(range(len(taken)), 2):
        count = sum(number for _, number in taken[first : last + 1])
        assert count <= burst + rate * (taken[last][0] - taken[first][0]) + 0.01


@settings(deadline=None)
@given(st.floats(0.01, 5000.0))
def test_where_the_rate_is_used_up_the_next_one_goes_when_it_says(rate):
    route = PLAIN.replace(rate=rate)
    waiting = tuple(message(key=str(number)) for number in range(100))
    took = rules.take(queue(*waiting), route, "me", 100)
    burst = min(100, max(int(rate), 1))
    assert burst - 1 <= len(took.moves) <= burst  # an instant in unix seconds is no finer than a quarter microsecond
    next_at = max(took.next_at, NOW)
    assert rules.take(queue(*waiting, wall=next_at + 0.001, next_at=took.next_at), route, "me", 100) is not None


@pytest.mark.parametrize("back", [3600.0, 400 * 86400.0])
def test_a_rate_counted_by_a_clock_that_was_set_back_holds_nothing_up(back):
    route = PLAIN.replace(rate=2.0)
    waiting = tuple(message(key=str(number)) for number in range(100))
    took = rules.take(queue(*waiting, wall=NOW, next_at=NOW + back), route, "me", 100)
    assert (len(took.moves), took.next_at) == (1, NOW + 0.5)
    assert rules.take(queue(*waiting, wall=NOW + 0.4, next_at=took.next_at), route, "me", 100) is None


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "own", "generation", "key"),
    [
        (WINDOW, "", 0, "job:2025-11-10/web/-"),
        (WINDOW, "invoice-7", 0, "job:2025-11-10/web/invoice-7"),
        (WINDOW, "invoice-7", 2, "job:2025-11-10/web/invoice-7#2"),
        (WINDOW, "invoice#2", 0, "job:2025-11-10/web/invoice%232"),
        (JOB, "a b", 0, "job/web/a%20b"),
        (LEDGER, "ü", 0, "-/web/%C3%BC"),
        (LEDGER, "", 0, "-/web/-"),
        (JOB, "-", 0, "job/web/%2D"),
    ],
)
def test_a_key_is_scope_destination_and_own_key(scope, own, generation, key):
    assert message_key(scope, RUN, "web", own, generation=generation) == key
    assert rules.scope_of(key) == scope


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
WINDOWS = st.from_regex(r"[0-9A-Za-z][0-9A-Za-z:+.TZ-]{0,12}", fullmatch=True)
OWN = st.text(st.sampled_from("ab-#/:%2D ü\U0001f600."), max_size=6)
PARTS = st.tuples(st.sampled_from(SCOPES), NAMES, WINDOWS, NAMES, OWN, st.integers(0, 3))


@given(PARTS, PARTS)
def test_no_two_messages_share_a_key_by_accident(one, other):
    keys = [
        message_key(scope, RunKey(job, window), destination, own, generation=generation)
        for scope, job, window, destination, own, generation in (one, other)
    ]
    meant = [
        (scope, job * (scope != LEDGER), window * (scope == WINDOW), *rest)
        for scope, job, window, *rest in (one, other)
    ]
    assert (keys[0] == keys[1]) == (meant[0] == meant[1])
    assert [rules.scope_of(key) for key in keys] == [one[0], other[0]]
    assert all(key.isascii() and key.isprintable() and " " not in key for key in keys)


def test_the_input_is_no_part_of_a_key():
    assert message_key(WINDOW, RUN, "web", "a") == message_key(WINDOW, RUN.replace(input="f" * 64), "web", "a")


# --- what is emitted ------------------------------------------------------------------------------------------------


def emission(**fields):
    return Emission("web", b"payload").replace(**fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"destination": "we b"}, "not a name for a destination"),
        ({"destination": ""}, "not a name for a destination"),
        ({"body": b""}, "the payload is empty"),
        ({"body": b"x" * (LONGEST_BODY + 1)}, "has 262145 bytes; a message holds 262144"),
        ({"scope": "run"}, "no scope of a key"),
        ({"key": "x" * 201}, "has 201 bytes"),
        ({"key": "ü" * 101}, "has 202 bytes"),
        ({"key": "a\nb"}, "cannot be seen"),
        ({"key": " a"}, "cannot be seen"),
        ({"key": "a\u200bb"}, "cannot be seen"),
        ({"key": "\udcff"}, "is no text"),
        ({"content_type": ""}, "no content type"),
        ({"content_type": "json"}, "no content type"),
        ({"content_type": "text/"}, "no content type"),
        ({"content_type": "/json"}, "no content type"),
        ({"content_type": "text/plain\r\nX-Other: 1"}, "no content type"),
        ({"content_type": "text/pläin"}, "no content type"),
        ({"content_type": "text/" + "x" * 200}, "no content type"),
    ],
)
def test_what_cannot_be_sent_is_refused_when_it_is_emitted(fields, why):
    with pytest.raises(UsageError, match=why):
        checked(emission(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"body": b"\x00"},
        {"body": b"x" * LONGEST_BODY},
        {"key": "x" * 200},
        {"key": "ü/ключ #2"},
        {"key": "-"},
        {"content_type": "text/plain; charset=utf-8"},
        *({"scope": scope} for scope in SCOPES),
    ],
)
def test_what_can_be_sent_is_emitted_as_it_is(fields):
    assert checked(emission(**fields)) == emission(**fields)


@given(st.tuples(*[st.sampled_from(["a/b", "a/bc", "text/x"]), st.binary(max_size=3)] * 2))
def test_bodies_are_the_same_only_with_their_content_type(told):
    (one, body), (other, another) = told[:2], told[2:]
    assert (digest_of(one, body) == digest_of(other, another)) == ((one, body) == (other, another))


def test_a_message_is_made_for_the_attempt_it_comes_from():
    made = message_of(emission(key="k"), CLAIM, NOW, item="i")
    assert made == Message(
        key="job:2025-11-10/web/k",
        run=RUN,
        window_start=int(NOW),
        destination="web",
        content_type="application/octet-stream",
        digest=digest_of("application/octet-stream", b"payload"),
        body=b"payload",
        generation=3,
        attempt=2,
        item="i",
        created_at=NOW,
        due_at=NOW,
    )


def test_only_a_rerun_that_is_to_send_again_makes_another_key():
    assert message_of(emission(), CLAIM, NOW).key == "job:2025-11-10/web/-"
    assert message_of(emission(), CLAIM, NOW, resend=True).key == "job:2025-11-10/web/-#3"


def test_of_messages_with_one_key_the_first_is_new_and_others_are_there_already_or_contradict_it():
    a, same, other = (message(key="a", digest=digest) for digest in ("x", "x", "y"))
    b, known = message(key="b", digest="x"), message(key="b", digest="z", state=SENT)
    new, conflicts = rules.emitted([a, same, other, b], {"b": known})
    assert new == [a]
    assert conflicts == [rules.Conflict(other, a), rules.Conflict(b, known)]
    assert rules.emitted([], {"b": known}) == ([], [])


# --- stories --------------------------------------------------------------------------------------------------------


class Deliveries(RuleBasedStateMachine):
    """One message, deliverers that die and answers that come late, and a destination that knows what it received.

    `received` are the instants at which bytes of it arrived there; a destination that dedupes ignores what comes within
    its time after one that it did not ignore. The clock is the store's; tries end within the route's timeout.
    """

    @initialize(dedupes=st.sampled_from([0.0, 60.0, 3600.0]), attempts=st.integers(1, 5))
    def begin(self, dedupes, attempts):
        self.route = Route("web", dedupes=dedupes, max_attempts=attempts, timeout=20.0, first_delay=5.0)
        self.boot, self.wall = 1000.0, NOW
        self.message = message(due_at=NOW)
        self.version = 0
        self.received: list[float] = []
        self.on_their_way: list[tuple[Message, float]] = []  # as somebody took it, and is still to send it; and when
        self.proof: list[Message] = []  # received, and the answer is on its way back

    def write(self, move):
        if move is not None:
            was = move.was
            assert (self.message.state, self.message.tries, self.message.sender) == (was.state, was.tries, was.sender)
            self.message = move.now

    @rule(seconds=st.sampled_from([1.0, 10.0, 20.0, 45.0, 4000.0]))
    def time_passes(self, seconds):
        self.boot += seconds
        self.wall += seconds

    @precondition(lambda self: not self.route.dedupes)
    @rule(seconds=st.sampled_from([1.0, 60.0, 86400.0]))
    def the_real_clock_is_set_back(self, seconds):
        """Where it dedupes, nobody could tell any more how long ago a try was."""
        self.wall -= seconds

    @rule(sender=st.sampled_from("ab"))
    def is_taken(self, sender):
        due = (self.message,) if self.message.state == PENDING and self.message.due_at <= self.wall else ()
        told = queue(*due, now=self.boot, wall=self.wall, version=self.version)
        took = rules.take(told, self.route, sender, 5)
        if took is not None:
            self.version += 1
            self.write(took.moves[0])
            if self.message.state == SENDING:
                self.on_their_way.append((self.message, self.boot))

    @precondition(lambda self: self.on_their_way)
    @rule(
        after=st.sampled_from([0.0, 0.5, 1.0]),
        kind=st.sampled_from([DELIVERED, THROTTLED, NOT_RECEIVED, UNKNOWN, REFUSED, "dies"]),
    )
    def is_sent(self, after, kind):
        """Its bytes arrive within the timeout, or do not; then the answer comes, at once or late, or never."""
        taken, taken_at = self.on_their_way.pop(0)
        if self.boot > taken_at + self.route.timeout:
            return  # a deliverer does not begin that late
        arrived = max(self.boot, taken_at + after * self.route.timeout)
        self.wall += arrived - self.boot
        self.boot = arrived
        if kind in (DELIVERED, UNKNOWN, "dies"):
            self.received.append(arrived)
        if kind == DELIVERED:
            self.proof.append(taken)
        elif kind != "dies":
            self.write(rules.settle(self.message, taken, Answer(kind), self.route, self.wall, 0.5))

    @precondition(lambda self: self.proof)
    @rule()
    def proof_comes(self):
        self.write(rules.settle(self.message, self.proof.pop(), Answer(DELIVERED), self.route, self.wall, 0.5))

    @rule()
    def lease_is_looked_at(self):
        now = self.message
        if now.state == SENDING and rules.lease_over(now, "boot", self.boot, self.wall):
            self.write(rules.lapsed(now, self.route, self.wall, 0.5))

    @rule()
    def somebody_has_it_tried_now(self):
        said = rules.retry(self.message, self.route, self.wall)
        self.write(None if isinstance(said, No) else said)

    @rule(as_=st.sampled_from(["sent", "not-sent", "dropped"]))
    def somebody_looked(self, as_):
        """A person who says what is true."""
        true = {"sent": bool(self.received), "not-sent": not self.received and not self.on_their_way, "dropped": True}
        said = rules.resolve(self.message, as_, "ann", self.wall)
        if true[as_] and not isinstance(said, No):
            self.write(said)

    @invariant()
    def it_is_taken_for_new_once(self):
        accepted: list[float] = []
        for at in sorted(getattr(self, "received", [])):
            if not accepted or at > accepted[-1] + self.route.dedupes:
                accepted.append(at)
        assert len(accepted) <= 1, self.received

    @invariant()
    def what_is_said_to_be_sent_was_received(self):
        now = getattr(self, "message", None)
        assert now is None or now.state != SENT or self.received

    @invariant()
    def nothing_waits_that_was_given_up_or_begun_and_forgotten(self):
        now = getattr(self, "message", None)
        if now is not None and now.state != SENDING:
            assert now.sender == ""

    @invariant()
    def what_stays_dead_or_unsure_says_why(self):
        now = getattr(self, "message", None)
        assert now is None or now.state not in (DEAD, UNSURE) or now.error


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_tables_name_every_state_and_every_answer():
    kinds = {DELIVERED, THROTTLED, NOT_RECEIVED, UNKNOWN, REFUSED, NOT_BEGUN}
    for kind, route in product(kinds, (PLAIN, DEDUPING)):
        assert becomes(Answer(kind), route) in STATES
