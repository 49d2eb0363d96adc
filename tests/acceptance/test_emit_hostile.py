"""What jobs may do to their messages, by mistake or on purpose: nothing that was said to be kept is lost in silence."""

from __future__ import annotations

import signal

import pytest

from tests.acceptance.test_emit import said
from tests.conftest import TODAY, wait_until
from tests.outboxes import bodies, declare, messages

REPLACED = 'mv "$RANONCE_MESSAGES" "$PIDS/away"; cp "$PIDS/away" "$RANONCE_MESSAGES"'


@pytest.mark.parametrize("before", ["true", "echo a | $RANONCE emit slack --key a"], ids=["empty", "used"])
def test_work_whose_file_of_messages_was_exchanged_is_not_done(world, before):
    ran = world.run(sh=f"{before}; {REPLACED}; echo b | $RANONCE emit slack --key b")
    assert (ran.exit, ran.receipt["event"]) == (65, "failed")
    assert "another file is in its place" in ran.receipt["reason"]
    assert messages(world) == []


def test_a_file_of_messages_that_was_only_moved_away_has_what_was_emitted(world):
    ran = world.run(sh='echo a | $RANONCE emit slack; mv "$RANONCE_MESSAGES" "$PIDS/away"')
    assert ran.said() == (0, "done", None)
    assert bodies(world) == {f"job:{TODAY}/slack/-": b"a\n"}


@pytest.mark.parametrize("what", ["/dev/null", "/dev/zero", "$PIDS/fifo"])
def test_what_is_no_file_keeps_no_messages(world, what):
    told, _ = said(world, f'mkfifo "$PIDS/fifo"; echo a | RANONCE_MESSAGES="{what}" $RANONCE emit slack')
    assert (told[-1], "is no file" in told[0]) == ("69", True)


@pytest.mark.parametrize("payload", ["NaN", '{"a": [Infinity]}', '{"a": -Infinity}'])
def test_what_only_python_takes_for_json_is_none(world, payload):
    told, _ = said(world, f"echo '{payload}' | $RANONCE emit slack --json")
    assert (told[-1], "the payload is not JSON" in told[0]) == ("64", True)
    assert messages(world) == []


def test_text_that_names_what_is_no_number_is_json(world):
    world.run(sh="""echo '{"a": "NaN, -Infinity"}' | $RANONCE emit slack --json""")
    assert len(messages(world)) == 1


MAIL = ('[destinations.mail]\ntype = "smtp"\nhost = "localhost"\nfrom = "a@example.org"',)


def test_mail_of_a_step_with_a_long_name_has_one_message_for_each_recipient(world):
    declare(world, *MAIL)
    name = "n" * 200
    ran = world.run(
        sh=f"""$RANONCE step {name} -- sh -c 'echo "{{\\"to\\": [\\"b@example.org\\"]}}" | $RANONCE emit mail --json'"""
    )
    assert ran.exit == 0, ran.err
    assert list(bodies(world)) == [f"job:{TODAY}/mail/{name}/b@example.org"]


def test_two_of_one_step_at_the_same_time_are_one_and_the_other_says_what_is_not_sent(world):
    wait = 'touch "$PIDS/$0"; while ! test -e "$PIDS/a" -a -e "$PIDS/b"; do sleep 0.01; done'
    step = f"""$RANONCE step s -- sh -c '{wait}; echo $0 | $RANONCE emit slack --key $0' """
    ran = world.run(sh=f'({step} a 2> "$PIDS/said a") & {step} b 2> "$PIDS/said b"; wait')
    assert ran.exit == 0, ran.err
    assert len(messages(world)) == 1
    words = sorted((world.pids / f"said {each}").read_text() for each in "ab")
    assert words[0] == ""
    assert "'s' was done by somebody else meanwhile: messages not sent: 1" in words[1]


def test_a_list_of_no_messages_is_refused(world):
    for limit in ("0", "-1"):
        ran = world.ranonce("outbox", "list", "--limit", limit)
        assert (ran.exit, "--limit" in ran.sentence) == (64, True)


def test_a_message_of_the_whole_ledger_is_named_by_its_key(world):
    world.run(sh="echo hi | $RANONCE emit slack --scope ledger --key a")
    ran = world.ranonce("outbox", "show", "-/slack/a", "--body")
    assert (ran.exit, ran.out) == (0, b"hi\n"), ran.err


def test_a_run_that_a_person_released_before_its_outcome_came_says_that_its_messages_are_not_sent(world):
    killed = world.run(
        "--lease", "1s", sh="echo hi | $RANONCE emit slack", env={"RANONCE_FAILPOINT": "finish:outcome-kept"}
    )
    assert killed.exit == -signal.SIGKILL
    elsewhere = world.another_host()
    wait_until(lambda: world.run("--on-crash", "hold", env=elsewhere).exit == 80)
    assert world.ranonce("release", "job", TODAY, "--as", "done", "--reason", "seen", env=elsewhere).exit == 0
    warnings = world.run(job="other", sh="true").receipt["warnings"]
    assert any("messages not sent: 1" in warning for warning in warnings), warnings
    assert (world.state(), messages(world)) == (("done", 1), [])
    assert [fact.data["not_sent"] for fact in world.facts() if fact.event == "noted"] == [1]
    assert "not sent: 1" in world.ranonce("show", "job", TODAY).out.decode()


def test_a_job_that_empties_the_file_of_what_it_emitted_is_told_and_not_done(world):
    ran = world.run(sh='printf hello | $RANONCE emit web; : > "$RANONCE_MESSAGES"')
    assert "it was emptied" in ran.err
    assert ran.exit == 65
