"""Destinations of type `command`: real programs, and what their ends mean."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ranonce.delivery.command import CommandCarrier
from ranonce.delivery.spec import read_spec
from ranonce.errors import ConfigError
from ranonce.lifecycle import RunKey
from ranonce.messages import DELIVERED, NOT_RECEIVED, REFUSED, UNKNOWN, Answer, Message
from tests.world import lives, wait_until

ENVIRON = {"PATH": os.environ["PATH"], "TOKEN": "secret", "RANONCE_OWNER": "somebody", "RANONCE_ATTEMPT": "7"}


def a_message(body: bytes | None = b"payload", **changes: object) -> Message:
    plain = Message(
        key="job:2025-11-10/web/k",
        run=RunKey("job", "2025-11-10"),
        window_start=0,
        destination="web",
        content_type="text/plain; charset=utf-8",
        digest="",
        body=body,
        generation=1,
        attempt=1,
        item="",
        created_at=0.0,
        due_at=0.0,
        tries=3,
        seq=1,
    )
    return plain.replace(**changes)


def carrier(folder: Path, *command: str, **settings: object) -> CommandCarrier:
    table = {"type": "command", "command": list(command), **settings}
    return CommandCarrier(read_spec("web", table, ".".join, str(folder)), ENVIRON)


def carried(folder: Path, script: str, message: Message | None = None, *words: str, **settings: object) -> Answer:
    return carrier(folder, "/bin/sh", "-c", script, "sh", *words, **settings).carry(message or a_message())


# --- what it is given ---


def test_the_payload_is_its_standard_input(tmp_path):
    body = os.urandom(256 * 1024)
    assert carried(tmp_path, "cat > got", a_message(body)).kind == DELIVERED
    assert (tmp_path / "got").read_bytes() == body


def test_it_learns_which_message_it_is_from_its_environment(tmp_path):
    answer = carried(
        tmp_path,
        'echo "$RANONCE_MESSAGE_KEY|$RANONCE_MESSAGE_CONTENT_TYPE|$RANONCE_MESSAGE_ATTEMPT|$RANONCE_JOB'
        '|$RANONCE_WINDOW|$TOKEN|$RANONCE_OWNER$RANONCE_ATTEMPT"',
        prefix="us",
    )
    assert answer.words == "us/job:2025-11-10/web/k|text/plain; charset=utf-8|3|job|2025-11-10|secret|"


def test_its_arguments_name_the_message(tmp_path):
    answer = carried(tmp_path, 'echo "$@"', None, "--key={key}", "{window}", "{job}", "{destination}", "{other}")
    assert answer.words == "--key=job:2025-11-10/web/k 2025-11-10 job web {other}"


@pytest.mark.parametrize("name", ["key", "window"])
def test_what_a_store_holds_is_never_executed(tmp_path, name):
    planted = "$(touch planted)"
    message = a_message(key=planted) if name == "key" else a_message(run=RunKey("job", planted))
    answer = carrier(tmp_path, "/bin/sh", "-c", f"echo {{{name}}}").carry(message)
    assert (answer.kind, os.listdir(tmp_path)) == (REFUSED, [])


def test_it_works_in_the_folder_of_the_configuration(tmp_path):
    assert carried(tmp_path, "pwd").words == str(tmp_path)


# --- what its end means ---


def test_the_last_line_that_it_prints_is_the_receipt(tmp_path):
    assert carried(tmp_path, "echo working; echo; echo id 4711; echo; echo noise >&2") == Answer(DELIVERED, "id 4711")


def test_a_receipt_is_cut(tmp_path):
    assert carried(tmp_path, "head -c 100000 /dev/zero | tr '\\0' x").words == "x" * 500


def test_one_that_does_not_read_its_input_has_sent_it_if_it_says_so(tmp_path):
    assert carried(tmp_path, "exec <&-; exit 0", a_message(b"x" * 256 * 1024)).kind == DELIVERED


@pytest.mark.parametrize(
    ("status", "kind"),
    [(75, NOT_RECEIVED), (64, REFUSED), (65, REFUSED), (78, REFUSED), (1, UNKNOWN), (126, UNKNOWN), (127, UNKNOWN)],
)
def test_an_exit_status_has_its_meaning(tmp_path, status, kind):
    answer = carried(tmp_path, f"echo printed; echo why >&2; exit {status}")
    assert (answer.kind, answer.words) == (kind, f"exit {status}: why")


def test_the_configuration_gives_exit_statuses_their_meaning(tmp_path):
    codes = {"retry_exit_codes": [1], "refuse_exit_codes": [2]}
    assert [carried(tmp_path, f"exit {status}", **codes).kind for status in (1, 2, 75)] == [
        NOT_RECEIVED,
        REFUSED,
        UNKNOWN,
    ]


def test_a_signal_says_nothing_about_what_was_received(tmp_path):
    assert carried(tmp_path, "kill -9 $$") == Answer(UNKNOWN, "it died by signal 9")


@pytest.mark.parametrize("command", [["/no/such/program"], ["no-such-program"], ["./text"]])
def test_what_could_not_be_started_was_received_by_nobody(tmp_path, command):
    (tmp_path / "text").write_text("no program")
    answer = carrier(tmp_path, *command).carry(a_message())
    assert (answer.kind, "could not be started" in answer.words) == (NOT_RECEIVED, True)


def test_a_folder_that_is_gone_is_no_start_either(tmp_path):
    answer = carrier(tmp_path / "gone", "/bin/true").carry(a_message())
    assert answer.kind == NOT_RECEIVED


# --- its time ---


def test_one_that_takes_too_long_is_ended_with_all_its_group(tmp_path):
    answer = carried(tmp_path, "sleep 100 & echo $! > child; wait", timeout=0.3)
    assert answer == Answer(UNKNOWN, "it was ended after 0.3 seconds")
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not lives(child))


def test_one_that_does_not_hear_it_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("ranonce.delivery.command.GRACE_SECONDS", 0.2)
    began = time.monotonic()
    answer = carried(tmp_path, "trap '' TERM; while :; do sleep 0.05; done", timeout=0.3)
    assert (answer.kind, time.monotonic() - began < 5) == (UNKNOWN, True)


def test_what_it_leaves_behind_with_its_output_open_is_not_waited_for(tmp_path):
    began = time.monotonic()
    answer = carried(tmp_path, "sleep 30 & echo $! > child; echo done")
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert (answer, time.monotonic() - began < 5) == (Answer(DELIVERED, "done"), True)


def test_a_program_that_talks_without_end_is_ended_in_time_and_takes_no_memory(tmp_path):
    answer = carrier(tmp_path, sys.executable, "-c", "while 1: print('x' * 9999)", timeout=0.5).carry(a_message())
    assert answer.kind == UNKNOWN
    assert len(answer.words) < 1000


# --- its settings ---


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, "it has no command"),
        ({"command": "echo x"}, "is one text, not a list of arguments"),
        ({"command": ["x"], "retry_exit_codes": [0]}, "0 is out of range"),
        ({"command": ["x"], "refuse_exit_codes": [256]}, "256 is out of range"),
        ({"command": ["x"], "url": "x"}, "this key is not known"),
    ],
)
def test_a_wrong_setting_is_refused(table, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_spec("web", {"type": "command", **table}, ".".join, None)


def test_a_program_does_not_dedupe_unless_its_owner_says_so():
    assert read_spec("web", {"type": "command", "command": ["x"]}, ".".join, None).route.dedupes == 0
    assert (
        read_spec("web", {"type": "command", "command": ["x"], "dedupes": "1h"}, ".".join, None).route.dedupes == 3600
    )
