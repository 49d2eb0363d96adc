"""What goes wrong with effects elsewhere, one case after the other: by real jobs, deliverers, and a real receiver."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

import pytest

from ranonce.messages import message_key
from tests.conftest import TODAY, wait_until
from tests.delivery.outboxes import declare, fill, let_leases_end, messages, states
from tests.planted import Planted
from tests.receivers import CLOSED, RESET, SILENT, Receiver, answer

#: Between what the receiver has answered and what the ledger is told of it.
BEFORE_THE_MARK = {"RANONCE_FAILPOINT": "deliver:sent"}
TEN = [f"k{number}" for number in range(10)]


@pytest.fixture
def web():
    """A web server that takes every message, and says so."""
    with Receiver() as receiver:
        yield receiver


def to(world, web, **settings):
    declare(world, type="http", url=web.url, **settings)


def put(world, *keys, day=0):
    """Let a run of a day have ended with these messages."""
    with world.opened() as store:
        fill(store, keys, day=day)


def emits(*keys, body="hello", more=""):
    """Return the shell script of a job that emits messages of these keys."""
    return "; ".join(f"echo {body} | $RANONCE emit web --key {key} {more}" for key in keys)


def standing(world):
    with world.opened() as store:
        return states(store)


def only_message(world):
    with world.opened() as store:
        (message,) = messages(store)
        return message


def time_passes(world):
    """Let every lease of a deliverer be over, and every message be due."""
    with world.opened() as store:
        let_leases_end(store)


class Once:
    """A receiver's answers, of which the effect of each key happens once, as behind `ranonce.inbox`."""

    def __init__(self):
        self.effects = []

    def __call__(self, request):
        if duplicate := request.key in self.effects:
            return answer(200, {"duplicate": duplicate})
        self.effects.append(request.key)
        return answer(200, {"duplicate": duplicate})


def first_breaks_off(how):
    """Return a receiver's answers: its first request has its effect, and its connection ends before the answer."""
    once, asked = Once(), []

    def act(request):
        asked.append(request)
        said = once(request)
        return how if len(asked) == 1 else said

    return once, act


# --- two deliverers -------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_of_two_deliverers_at_once_one_sends_each_message_time_after_time(world, web, store_kind):
    to(world, web)
    rounds = 20 if store_kind == "sqlite" else 6
    for day in range(rounds):
        put(world, *TEN, day=day)
        assert {ran.exit for ran in world.at_once(2, "deliver", "--quiet")} <= {0, 75}
        assert len(web.requests) == 10 * (day + 1)
    assert set(web.arrived.values()) == {1}
    assert standing(world) == {"sent": 10 * rounds}


@pytest.mark.every_store
def test_delivered_again_and_again_a_message_goes_out_once(world, web):
    to(world, web)
    world.run(sh=emits("a", "b", "c"))
    for _ in range(3):
        assert world.ranonce("deliver").exit == 0
    assert web.arrived == {f"job:{TODAY}/web/{key}": 1 for key in "abc"}


# --- a kill between the answer and the mark -------------------------------------------------------------------------


@pytest.mark.every_store
def test_killed_before_the_mark_a_message_is_in_doubt_and_goes_out_again_only_when_a_person_says_so(world, web):
    to(world, web)
    world.run(sh=emits("a"))
    assert world.ranonce("deliver", env=BEFORE_THE_MARK).exit == -signal.SIGKILL
    time_passes(world)
    assert [world.ranonce("deliver").exit for _ in range(3)] == [80] * 3
    assert (standing(world), len(web.requests)) == ({"unsure": 1}, 1)
    number = str(only_message(world).seq)
    assert world.ranonce("outbox", "resolve", number, "--as", "not-sent", "--reason", "it is not there").exit == 0
    assert world.ranonce("deliver").exit == 0
    assert web.arrived == {f"job:{TODAY}/web/a": 2}  # under the same key each time


@pytest.mark.every_store
def test_killed_before_the_mark_a_receiver_that_dedupes_gets_the_key_again_and_counts_one(world, web):
    web.act = once = Once()
    to(world, web, dedupes="1h")
    world.run(sh=emits("a"))
    assert world.ranonce("deliver", env=BEFORE_THE_MARK).exit == -signal.SIGKILL
    assert world.ranonce("deliver").exit == 75  # whoever was killed may still be alive, to all that is known
    time_passes(world)
    assert world.ranonce("deliver").exit == 75
    time_passes(world)
    assert world.ranonce("deliver").exit == 0
    assert (only_message(world).state, only_message(world).tries) == ("sent", 2)
    assert (len(web.requests), once.effects) == (2, [f"job:{TODAY}/web/a"])


@pytest.mark.parametrize("how", [CLOSED, RESET])
@pytest.mark.every_store(cases=1)
def test_an_answer_that_is_lost_makes_no_second_message_where_nobody_dedupes(world, web, how):
    _, web.act = first_breaks_off(how)
    to(world, web)
    world.run(sh=emits("a"))
    assert [world.ranonce("deliver").exit for _ in range(3)] == [80] * 3
    listed = json.loads(world.ranonce("outbox", "list", "--state", "unsure", "--json").out)["messages"]
    assert [each["key"] for each in listed] == [f"job:{TODAY}/web/a"]
    assert len(web.requests) == 1


@pytest.mark.every_store
def test_an_answer_that_is_lost_is_asked_for_again_under_the_same_key_where_the_receiver_dedupes(world, web):
    once, web.act = first_breaks_off(CLOSED)
    to(world, web, dedupes="1h")
    world.run(sh=emits("a"))
    assert world.ranonce("deliver").exit == 75
    time_passes(world)
    assert world.ranonce("deliver").exit == 0
    assert (len(web.requests), len(once.effects), standing(world)) == (2, 1, {"sent": 1})


@pytest.mark.every_store
def test_a_key_that_was_sent_goes_out_no_second_time_though_its_deliverer_died_and_others_emit_it_again(world, web):
    to(world, web)
    again = emits("reply-7", more="--scope ledger")
    world.run(sh=again)
    watcher = world.start("deliver", "--watch", "--poll", "0.1")
    wait_until(lambda: standing(world) == {"sent": 1})
    watcher.signal(signal.SIGKILL)
    five_times = "; ".join([again] * 5)
    started = [world.start(*world.words(job=f"job-{number}", sh=five_times)) for number in range(3)]
    assert [each.ends().said()[:2] for each in started] == [(0, "done")] * 3
    assert world.ranonce("deliver").exit == 0
    assert web.arrived == {"-/web/reply-7": 1}


# --- several jobs, one effect ---------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_of_two_jobs_that_answer_the_same_one_answers_and_the_other_learns_whose_answer_stands(world, web):
    to(world, web)
    scripts = {name: emits("issue-123/answer", body=name, more="--scope ledger") for name in ("first", "second")}
    started = [world.start(*world.words(job=name, sh=script)) for name, script in scripts.items()]
    receipts = [each.ends().receipt for each in started]
    assert [receipt["event"] for receipt in receipts] == ["done", "done"]
    winner, loser = sorted(receipts, key=lambda receipt: -receipt["messages"])
    assert (winner["messages"], loser["messages"]) == (1, 0)
    (warning,) = loser["warnings"]
    assert f"since {winner['job']}:{TODAY}; not sent" in warning
    assert world.ranonce("deliver").exit == 0
    assert [request.body.decode().strip() for request in web.requests] == [winner["job"]]


# --- retries are of the work, never of the message ------------------------------------------------------------------


@pytest.mark.every_store
def test_a_job_that_is_tried_again_and_run_again_sends_its_message_once(world, web):
    to(world, web)
    script = f'{emits("a")}; test "$RANONCE_ATTEMPT" -ge 3'
    said = [world.run("--retry-delay", "0s", sh=script).said()[1] for _ in range(4)]
    assert said == ["failed", "failed", "done", "skipped"]
    assert world.ranonce("rerun", "job", TODAY, "--reason", "once more", "--", "/bin/sh", "-c", script).exit == 0
    assert world.ranonce("deliver").exit == 0
    assert web.arrived == {f"job:{TODAY}/web/a": 1}


#: Where a run may be killed around the commit of its outcome; a server has no places inside of it.
AROUND_AN_OUTCOME = ["finish:outcome-kept", "commit:before-writes:2", "commit:after-commit:2", "finish:committed"]
IN_AN_OUTCOME = ["commit:after-run:2", "commit:after-messages", "commit:after-events:2", "commit:before-commit:2"]


@pytest.mark.every_store(cases=len(AROUND_AN_OUTCOME))
@pytest.mark.parametrize("point", AROUND_AN_OUTCOME + IN_AN_OUTCOME)
def test_a_message_is_there_exactly_when_its_window_is_done_wherever_the_run_was_killed(world, web, point):
    to(world, web)
    killed = world.run(sh=f"unset RANONCE_FAILPOINT; {emits('a')}", env={"RANONCE_FAILPOINT": point})
    assert killed.exit == -signal.SIGKILL, f"{point} was never passed"
    is_done = world.state()[0] == "done"
    assert standing(world) == ({"pending": 1} if is_done else {})
    assert world.ranonce("deliver").exit == 0
    assert len(web.requests) == is_done
    assert world.run(sh="exit 9").said() == (0, "skipped", "done")  # its outcome was kept on this host at the least
    assert world.ranonce("deliver").exit == 0
    assert web.arrived == {f"job:{TODAY}/web/a": 1}


NOTHING_TO_SEND = """
import sys
from ranonce import Ledger
with Ledger.open() as ledger, ledger.claim("job", every="day") as run:
    run.emit("web", eval(sys.argv[1]))
"""


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("payload", ["None", "''", "b''", "object()", r"'\udcff'"])
def test_work_that_has_nothing_to_send_where_it_should_is_not_done(world, web, payload):
    to(world, web)
    script = world.root / "work" / "nothing.py"
    script.write_text(NOTHING_TO_SEND)
    ran = subprocess.run([sys.executable, script, payload], env=world.env, capture_output=True, timeout=30, check=False)
    assert b"ranonce.errors.UsageError" in ran.stderr
    (run,) = world.all_runs()
    assert (run.status, standing(world)) == ("failed", {})


# --- poison ---------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_message_that_is_refused_is_parked_and_the_others_go_out(world, web):
    web.act = lambda request: answer(422, b"no such user") if request.key.endswith("/poison") else answer(200, b"ok")
    to(world, web)
    world.run(sh=emits("poison", "a", "b"))
    assert [world.ranonce("deliver").exit for _ in range(3)] == [80] * 3
    assert standing(world) == {"dead": 1, "sent": 2}
    assert set(web.arrived.values()) == {1}  # the refused one, too


@pytest.mark.every_store
def test_behind_a_hundred_that_always_fail_a_good_one_goes_out_at_once_and_they_end_after_their_attempts(world, web):
    web.act = lambda request: answer(200 if request.key.endswith("/good") else 503, b"")
    to(world, web, dedupes="1h", max_attempts=5)
    put(world, *(f"poison{number:03}" for number in range(100)))
    put(world, "good", day=1)
    assert world.ranonce("deliver").exit == 75
    assert standing(world) == {"pending": 100, "sent": 1}
    for _ in range(6):
        time_passes(world)
        last = world.ranonce("deliver")
    assert (last.exit, standing(world)) == (80, {"dead": 100, "sent": 1})
    assert Counter(web.arrived.values()) == {5: 100, 1: 1}


# --- what was pruned ------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_key_whose_message_was_pruned_is_not_sent_again(world, web):
    to(world, web)
    planted = Planted("day", store=world.kept_open(), declared_at="2026-07-01T00:00:00Z")
    first = planted.run("2026-07-01")
    for day in ("2026-07-02", "2026-07-03", TODAY):
        planted.run(day)
    planted.message("2026-07-01", destination="web", state="sent", key=message_key("job", first, "web", "invoice-1"))
    pruned = json.loads(world.ranonce("prune", "--older-than", "7d", "--json").out)
    assert pruned["jobs"][0]["runs"] == 3
    emit = emits("invoice-1", more="--scope job")
    assert world.run(job="j", now="2026-07-01T12:00:00Z", sh=emit).said() == (0, "skipped", "pruned")
    late = world.run(job="j", now="2026-11-10T12:00:00Z", sh=emit)
    assert (late.said()[1], late.receipt["messages"]) == ("done", 0)
    assert world.ranonce("deliver").exit == 0
    assert web.requests == []


# --- sent is what the receiver has said -----------------------------------------------------------------------------

PROOF = 'expect = { "/ok" = true }'


def expecting(world, web):
    """Declare a destination whose answer must say that it is ok."""
    to(world, web, timeout="1s")
    with world.config.open("a") as file:
        file.write(f"{PROOF}\n")


@pytest.mark.every_store(cases=3)
@pytest.mark.parametrize(
    "act",
    [
        answer(200, {"ok": False, "error": "no such channel"}),
        answer(500, b"down"),
        SILENT,
        answer(200, {"okay": True}),
        answer(200, b"<p>Sign in</p>"),
        answer(200, b""),
        answer(202, {"ok": "true"}),
        answer(204),
        answer(302, {"ok": True}, {"Location": "/elsewhere"}),
        answer(404, {"ok": True}),
        answer(200, {"ok": True})[:-3],
        CLOSED,
        RESET,
    ],
    ids=lambda act: act if isinstance(act, str) else act.decode().partition("\r\n")[0] + act[-16:].decode(),
)
def test_without_the_receivers_word_for_it_nothing_is_sent(world, web, act):
    web.act = lambda _: [act, CLOSED] if isinstance(act, bytes) else act
    expecting(world, web)
    put(world, "a")
    assert world.ranonce("deliver").exit in (75, 80)
    message = only_message(world)
    assert message.state in ("unsure", "dead")
    assert message.receipt is None


@pytest.mark.every_store
def test_nobody_who_listens_means_not_sent(world, web):
    to(world, web)
    put(world, "a")
    web.close()
    assert world.ranonce("deliver").exit == 75
    assert (only_message(world).state, only_message(world).receipt) == ("pending", None)


@pytest.mark.every_store
def test_what_the_receiver_said_is_kept(world, web):
    web.act = lambda _: answer(202, {"ok": True, "id": "evt_17"})
    expecting(world, web)
    put(world, "a")
    assert world.ranonce("deliver").exit == 0
    assert (only_message(world).state, only_message(world).receipt) == ("sent", "202 accepted; id=evt_17")
