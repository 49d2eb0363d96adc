"""The crontab lines that `add` prints, read as a cron daemon and its shell read them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranonce.errors import ConfigError
from ranonce.jobspec import JobSpec
from ranonce.schedulers import Wanted
from ranonce.schedulers.crontab import cron_command, host_zone, printed
from ranonce.timefmt import parse_instant
from ranonce.windows import Schedule

NOW = parse_instant("2026-11-09T12:00:00Z")
#: From which characters cron takes the backslash. Source: do_command.c of Vixie's cron, Debian's and cronie, ISC's.
CRONS = {"vixie": "", "debian": "%", "isc": "%\\"}


def lines(every, *, tz="UTC", host="UTC", words=("/usr/bin/ranonce", "run", "job"), state_home=None):
    wanted = Wanted(JobSpec("job"), Schedule(every, tz), NOW, here=words, state_home=state_home)
    return printed(wanted, host=host).files[0][1].splitlines()


def read_by_cron(command, unescaped):
    """Return what cron hands to its shell: up to the first `%` that no backslash escapes."""
    handed, escaped = "", False
    for character in command:
        if escaped:
            handed = handed[:-1] + character if character in unescaped else handed + character
            escaped = False
            continue
        if character == "%":
            break
        escaped = character == "\\"
        handed += character
    return handed


@pytest.mark.parametrize(
    ("every", "when"),
    [
        ("hour", "0 * * * *"),
        ("day", "0 0 * * *"),
        ("week", "0 0 * * 1"),
        ("month", "0 0 1 * *"),
        ("30 2 * * mon-fri", "30 2 * * mon-fri"),
        ("@daily", "0 0 * * *"),
    ],
)
def test_it_fires_when_the_window_begins(every, when):
    assert lines(every) == [f"{when} /usr/bin/ranonce run job"]


def test_what_cron_would_not_find_by_itself_is_said():
    (line,) = lines(
        "day", words=("/opt/x y/ranonce", "run", "job", "--config", "/etc/50%.toml"), state_home="/srv/state"
    )
    assert line == "0 0 * * * XDG_STATE_HOME=/srv/state '/opt/x y/ranonce' run job --config /etc/50\\%.toml"


@pytest.mark.parametrize("cron", CRONS)
@pytest.mark.parametrize(
    "word",
    [
        "50%",
        "%",
        "%%",
        "a\\%b",
        "a\\\\%b",
        "\\",
        "\\\\\\",
        "it's",
        "a'%'b",
        '"',
        "$HOME",
        "`id`",
        "a b;c&d|e>f",
        "ü%*?#",
        "\\'%",
    ],
)
def test_the_shell_of_every_cron_gets_the_words(word, cron):
    show = (sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))")
    command = read_by_cron(cron_command((*show, word, "next"), None), CRONS[cron])
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == ascii([word, "next"]) + "\n"


@settings(max_examples=200)
@given(st.text("\\%'\"a $", max_size=12))
def test_no_percent_sign_and_no_backslash_is_read_as_crons_own(word):
    import shlex

    for unescaped in CRONS.values():
        assert shlex.split(read_by_cron(cron_command(("x", word), None), unescaped)) == ["x", word]


@pytest.mark.parametrize(("word", "why"), [("a\nb", "line break"), ("a\udcffb", "not valid UTF-8")])
def test_a_word_that_no_line_can_hold_is_refused(word, why):
    with pytest.raises(ConfigError, match=why):
        cron_command(("/usr/bin/ranonce", "run", "job", "--config", word), None)


def test_a_job_of_another_zone_is_fired_at_each_time_it_can_be_here():
    assert lines("30 2 * * *", tz="Europe/Berlin") == ["30 0,1 * * * /usr/bin/ranonce run job"]
    assert lines("30 2 * * *", host="Europe/Berlin") == ["30 3,4 * * * /usr/bin/ranonce run job"]
    assert lines("30 2 * * *", tz="Europe/Berlin", host="Europe/Berlin") == ["30 2 * * * /usr/bin/ranonce run job"]
    assert lines("week", tz="Europe/Berlin") == ["0 22,23 * * 0 /usr/bin/ranonce run job"]


def test_the_note_says_what_cronie_takes_instead():
    wanted = Wanted(
        JobSpec("job"), Schedule("30 2 * * *", "Europe/Berlin"), NOW, here=("/usr/bin/ranonce", "run", "job")
    )
    (note,) = printed(wanted, host="UTC").notes
    assert "counts in UTC, this job in Europe/Berlin" in note
    assert "CRON_TZ=Europe/Berlin" in note
    assert note.endswith("30 2 * * * /usr/bin/ranonce run job")


def test_zones_that_never_differ_need_no_note():
    wanted = Wanted(JobSpec("job"), Schedule("30 2 * * *", "Africa/Abidjan"), NOW, here=("/usr/bin/ranonce",))
    assert printed(wanted, host="UTC").notes == ()
    assert printed(wanted, host="UTC").files[0][1] == "30 2 * * * /usr/bin/ranonce\n"


def test_a_host_zone_that_nobody_knows_stops_nothing():
    wanted = Wanted(JobSpec("job"), Schedule("30 2 * * *", "Europe/Berlin"), NOW, here=("/usr/bin/ranonce",))
    made = printed(wanted, host="Middle/Earth")
    assert made.files[0][1] == "30 2 * * * /usr/bin/ranonce\n"
    assert "counts in Middle/Earth" in made.notes[0]


def test_this_host_has_a_zone():
    Schedule("day", host_zone())
