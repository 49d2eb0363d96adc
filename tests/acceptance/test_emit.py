"""`ranonce emit`: what the commands of a job emit goes out with its outcome, once, or not at all."""

from __future__ import annotations

import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import HELD_EFFECT, NOON, TODAY, wait_until
from tests.outboxes import bodies, declare, messages

TOMORROW = "2026-11-10T12:00:00Z"


@pytest.mark.every_store
def test_what_a_job_emits_goes_out_when_it_is_done(world):
    ran = world.run(
        sh='echo hi | $RANONCE emit slack; printf "\\377" | $RANONCE emit files --key a;'
        """ echo '{"a": 1}' | $RANONCE emit api --json --key b;"""
        " echo '<p>' | $RANONCE emit web --content-type text/html"
    )
    assert ran.said() == (0, "done", None), ran.err
    assert ran.receipt["messages"] == 4
    assert {message.key: (message.body, message.content_type) for message in messages(world)} == {
        f"job:{TODAY}/slack/-": (b"hi\n", "text/plain; charset=utf-8"),
        f"job:{TODAY}/files/a": (b"\xff", "application/octet-stream"),
        f"job:{TODAY}/api/b": (b'{"a": 1}\n', "application/json"),
        f"job:{TODAY}/web/-": (b"<p>\n", "text/html"),
    }
    assert world.attempt_files() == []


@pytest.mark.every_store
def test_a_job_that_fails_sends_nothing_and_says_how_much(world):
    ran = world.run(sh="echo hi | $RANONCE emit slack; exit 3")
    assert (ran.exit, messages(world)) == (3, [])
    assert ran.receipt["not_sent"] == 1
    assert "messages" not in ran.receipt
    assert world.facts()[-1].data["not_sent"] == 1


def test_two_payloads_under_one_key_are_one_message_that_is_not_sent(world):
    ran = world.run(sh="echo a | $RANONCE emit slack --key k; echo b | $RANONCE emit slack --key k; exit 3")
    assert ran.receipt["not_sent"] == 1
    assert world.facts()[-1].data["not_sent"] == 1


def test_a_job_that_stops_sends_nothing(world):
    ran = world.run(sh="echo hi | $RANONCE emit slack; $RANONCE stop --reason 429; exit 1")
    assert (ran.said()[1], ran.receipt["not_sent"], messages(world)) == ("stopped", 1, [])


def test_a_job_whose_product_is_missing_sends_nothing(world):
    ran = world.run("--check", "command=false", sh="echo hi | $RANONCE emit slack")
    assert (ran.exit, ran.receipt["not_sent"], messages(world)) == (65, 1, [])


def test_a_job_that_emits_nothing_has_no_word_of_it_in_its_receipt(world):
    receipt = world.run().receipt
    assert not {"messages", "not_sent"} & set(receipt)
    assert world.attempt_files() == []


def said(world, script, name="said"):
    """Run a job whose script says what `emit` said into a file; return that and the receipt."""
    ran = world.run(sh=f'({script}) 2> "$PIDS/{name}"; echo $? >> "$PIDS/{name}"')
    told = (world.pids / name).read_text().splitlines()
    assert not any("Traceback" in line for line in told), told
    return told, ran.receipt


def test_the_same_key_with_another_payload_is_said_at_once_and_noted(world):
    told, receipt = said(
        world, "echo a | $RANONCE emit slack; echo a | $RANONCE emit slack; echo b | $RANONCE emit slack"
    )
    assert told[-1] == "80"
    assert "stands for another payload already" in told[0]
    assert bodies(world) == {f"job:{TODAY}/slack/-": b"a\n"}
    assert (receipt["event"], receipt["messages"], len(receipt["warnings"])) == ("done", 1, 1)
    assert world.events()[-1][0] == "noted"


def test_a_key_of_an_earlier_window_is_a_conflict_that_is_noted(world):
    emit = "echo $RANONCE_WINDOW | $RANONCE emit slack --scope job --key a"
    world.run(sh=emit)
    ran = world.run(sh=emit, now=TOMORROW)
    assert (ran.exit, ran.receipt["messages"]) == (0, 0)
    assert "stands for another body" in ran.receipt["warnings"][0]
    assert bodies(world) == {"job/slack/a": b"2026-11-09\n"}


@pytest.mark.parametrize(
    ("emit", "status", "words"),
    [
        ("true | $RANONCE emit slack", 64, "the payload is empty"),
        ("echo x | $RANONCE emit", 64, "DEST is missing"),
        ("echo x | $RANONCE emit 'a b'", 64, "is not a name for a destination"),
        ("echo '{' | $RANONCE emit slack --json", 64, "the payload is not JSON"),
        ("echo x | $RANONCE emit slack --content-type nonsense", 64, "is no content type"),
        ("echo x | $RANONCE emit slack --scope world", 64, "is not a choice"),
        ("head -c 262145 /dev/zero | $RANONCE emit slack", 64, "more than 262144 bytes"),
        ("echo x | env -u RANONCE_MESSAGES $RANONCE emit slack", 64, "RANONCE_MESSAGES is not set"),
        ("echo x | $RANONCE emit slack < /dev/null", 64, "the payload is empty"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_nothing_is_emitted(world, emit, status, words):
    told, receipt = said(world, emit)
    assert (told[-1], len(told)) == (str(status), 2)
    assert words in told[0]
    assert receipt["event"] == "done"
    assert messages(world) == []


def test_a_payload_of_256_kib_is_sent(world):
    world.run(sh="head -c 262144 /dev/zero | $RANONCE emit slack")
    assert len(messages(world)[0].body) == 262144


def test_outside_of_a_job_nothing_is_emitted(world):
    ran = world.shell("echo x | $RANONCE emit slack")
    assert (ran.exit, "not inside a job" in ran.sentence) == (64, True)


def test_a_payload_from_a_terminal_is_not_waited_for(world):
    terminal, end = pty.openpty()
    try:
        inside = {"RANONCE_OWNER": "a" * 32, "RANONCE_MESSAGES": str(world.root / "messages")}
        ran = world.ranonce("emit", "slack", env=inside, stdin=end, seconds=10)
    finally:
        os.close(terminal)
        os.close(end)
    assert (ran.exit, "standard input" in ran.sentence) == (64, True)


def test_a_destination_that_is_not_declared_is_refused_with_the_nearest_name(world):
    declare(world, "[destinations.slack]", 'type = "http"', 'url = "https://example.org/"')
    told, _ = said(world, "echo x | $RANONCE emit slakc")
    assert (told[-1], "Did you mean slack?" in told[0]) == ("78", True)


def test_mail_becomes_one_message_for_each_recipient(world):
    declare(world, "[destinations.post]", 'type = "smtp"')
    world.run(sh="""echo '{"to": ["a@x.org", "b@x.org"], "text": "hi"}' | $RANONCE emit post --json""")
    assert bodies(world) == {
        f"job:{TODAY}/post/a@x.org": b'{"to":"a@x.org","text":"hi"}',
        f"job:{TODAY}/post/b@x.org": b'{"to":"b@x.org","text":"hi"}',
    }


@pytest.mark.parametrize("harm", ["printf x >>", "head -c 30 /dev/zero | tee", "rm -f"])
def test_work_whose_messages_cannot_be_read_is_not_done(world, harm):
    ran = world.run(sh=f'echo hi | $RANONCE emit slack; {harm} "$RANONCE_MESSAGES"')
    assert ran.exit == 65
    assert ran.receipt["event"] == "failed"
    assert ran.receipt["reason"].startswith("messages: the messages in ")
    assert messages(world) == []
    assert world.attempt_files() == []


def test_a_body_that_was_changed_is_never_sent(world):
    ran = world.run(sh='echo hello | $RANONCE emit slack; sed -i s/hello/hallo/ "$RANONCE_MESSAGES"')
    assert (ran.exit, ran.receipt["event"], messages(world)) == (65, "failed", [])


def test_nothing_is_added_behind_half_a_message(world):
    told, receipt = said(world, 'printf "12 " >> "$RANONCE_MESSAGES"; echo hi | $RANONCE emit slack')
    assert told[-1] == "74"
    assert "does not begin a whole message" in told[0]
    assert receipt["event"] == "failed"


def test_a_thousand_messages_wait_for_an_outcome_and_no_more(world):
    many = (
        "import os; from ranonce.emission import Emission; from ranonce.messagefile import add;"
        "add(os.environ['RANONCE_MESSAGES'], [Emission('slack', b'x', key=str(n)) for n in range(1000)])"
    )
    told, receipt = said(world, f'{sys.executable} -c "{many}"; echo x | $RANONCE emit slack --key more')
    assert (told[-1], "more than 1000 messages" in told[0]) == ("64", True)
    assert receipt["messages"] == 1000
    assert len(messages(world)) == 1000


def test_many_commands_emit_at_the_same_time(world):
    ran = world.run(sh="for i in 1 2 3 4 5 6 7 8; do echo $i | $RANONCE emit slack --key $i & done; wait")
    assert ran.receipt["messages"] == 8
    assert sorted(bodies(world).values()) == [b"%d\n" % number for number in range(1, 9)]


def test_what_is_emitted_after_the_job_has_ended_is_refused(world):
    late = (
        '(echo $$ > /dev/null; while test -e "$PIDS/hold"; do sleep 0.02; done;'
        ' echo hi | $RANONCE emit slack 2> "$PIDS/late"; echo $? > "$PIDS/status") &'
    )
    (world.pids / "hold").touch()
    ran = world.run("--leftovers", "leave", sh=late)
    assert ran.said() == (0, "done", None)
    world.let_go()
    wait_until(lambda: (world.pids / "status").exists() and (world.pids / "status").read_text())
    assert (world.pids / "status").read_text() == "76\n"
    assert "has ended" in (world.pids / "late").read_text()
    assert messages(world) == []


def test_without_a_state_folder_the_file_is_a_temporary_one_and_goes(world):
    temporary = world.root / "temporary"
    temporary.mkdir()
    world.folder.parent.chmod(0o500)
    nowhere = {
        "XDG_STATE_HOME": "/proc/nowhere",
        "TMPDIR": str(temporary),
        "RANONCE_LEDGER": world.ledger,
        "RANONCE_STORE": world.url,
    }
    ran = world.run(sh='echo "$RANONCE_MESSAGES"; echo hi | $RANONCE emit slack', env=nowhere)
    world.folder.parent.chmod(0o700)
    assert ran.said()[:2] == (0, "done"), ran.err
    assert Path(ran.out.decode().strip()).parent == temporary
    assert list(temporary.iterdir()) == []
    assert bodies(world) == {f"job:{TODAY}/slack/-": b"hi\n"}


def test_a_killed_wrapper_leaves_no_file_of_messages_for_ever_and_sends_nothing_of_it(world):
    killed, child = world.hold(sh='echo hi | $RANONCE emit slack; echo $$ > "$PIDS/child"; sleep 60')
    killed.signal(signal.SIGKILL)
    killed.ends()
    os.killpg(child, signal.SIGKILL)
    wait_until(world.no_process_is_left)
    assert [path.suffix for path in world.attempt_files()] == ["", ".messages"]
    assert world.run(sh="true").said() == (0, "done", None)
    assert world.attempt_files() == []
    assert messages(world) == []


@pytest.mark.every_store
def test_an_outcome_that_waits_on_this_host_carries_its_messages_and_they_go_out_once(world):
    ran = world.run(sh="echo hi | $RANONCE emit slack", env={"RANONCE_FAILPOINT": "finish:outcome-kept"})
    assert ran.exit == -signal.SIGKILL
    assert messages(world) == []
    for _ in range(2):
        world.run(now=TOMORROW, sh="true")
    assert bodies(world) == {f"job:{TODAY}/slack/-": b"hi\n"}
    assert world.state() == ("done", 1)
    assert world.attempt_files() == []


def test_an_attempt_that_was_paused_past_its_lease_emits_nothing(world):
    script = 'echo "by $RANONCE_ATTEMPT" | $RANONCE emit slack; ' + HELD_EFFECT
    stale, child = world.hold("--lease", "2s", sh=script)
    os.killpg(child, signal.SIGSTOP)
    stale.signal(signal.SIGSTOP)
    elsewhere, other = world.another_host(), 'echo "by other" | $RANONCE emit slack'
    again = ("--lease", "2s", "--max-attempts", "20")
    ran = wait_until(lambda: (found := world.run(*again, sh=other, env=elsewhere)).exit == 0 and found)
    assert ran.receipt["messages"] == 1
    world.let_go()
    stale.signal(signal.SIGCONT)
    os.killpg(child, signal.SIGCONT)
    ended = stale.ends()
    assert ended.exit == 76
    assert ended.receipt["not_sent"] == 1
    assert bodies(world) == {f"job:{TODAY}/slack/-": b"by other\n"}


def test_messages_of_another_run_around_it_are_not_its_own(world):
    inner = f"$RANONCE run inner --every day --now {NOON} -- /bin/sh -c 'echo in | $RANONCE emit slack'"
    world.run(job="outer", sh=f"echo out | $RANONCE emit slack; {inner}; exit 3")
    assert bodies(world) == {f"inner:{TODAY}/slack/-": b"in\n"}


def test_windows_that_one_process_catches_up_have_their_own_messages_and_leave_no_handle_open(world):
    days = [f"2026-11-0{day}" for day in range(1, 5)]
    for day in days:
        world.run(now=f"{day}T12:00:00Z", sh="$RANONCE stop --reason later")
    script = 'ls /proc/$PPID/fd | wc -l >> "$PIDS/handles"; echo "$RANONCE_WINDOW" | $RANONCE emit slack'
    ran = world.run(now="2026-11-04T13:00:00Z", sh=script)
    assert [receipt["messages"] for receipt in ran.receipts] == [1] * 4, ran.err
    assert list(bodies(world).values()) == [f"{day}\n".encode() for day in days]
    assert len(set((world.pids / "handles").read_text().split())) == 1


def test_a_look_after_a_crash_may_emit_what_the_crashed_attempt_could_not(world):
    killed, child = world.hold(sh='echo hi | $RANONCE emit slack; echo $$ > "$PIDS/child"; sleep 60')
    killed.signal(signal.SIGKILL)
    os.killpg(child, signal.SIGKILL)
    killed.ends()
    wait_until(world.no_process_is_left)
    look = "sh -c 'echo looked | $RANONCE emit slack'"
    ran = world.run("--on-crash", "reconcile", "--reconcile", look)
    assert (ran.exit, ran.receipt["reason"], ran.receipt["messages"]) == (0, "reconciled", 1), ran.err
    assert bodies(world) == {f"job:{TODAY}/slack/-": b"looked\n"}


def test_a_command_that_cannot_be_started_leaves_no_file(world):
    ran = world.ranonce("run", "job", "--every", "day", "--now", NOON, "--", "no-such-command")
    assert ran.exit == 127
    assert world.attempt_files() == []
