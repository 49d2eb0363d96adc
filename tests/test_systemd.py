"""The units that `add` prints, read by systemd itself."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from ranonce.errors import ConfigError
from ranonce.jobspec import JobSpec
from ranonce.schedulers import Wanted
from ranonce.schedulers.systemd import command_line, on_calendar, printed, unit_name
from ranonce.timefmt import DAY, format_instant, parse_instant
from ranonce.windows import Schedule
from ranonce.zones import load_zone
from tests.test_cronlines import ZONES

ANALYZE = shutil.which("systemd-analyze")
NOW = parse_instant("2026-11-09T12:00:00Z")

if ANALYZE is None and os.environ.get("CI"):
    raise RuntimeError("systemd-analyze is missing: install systemd")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not on this machine")


def wanted(every="day", tz="UTC", *, here=("/usr/bin/env", "run", "job"), job="job", **about):
    spec = JobSpec(job, **{name: about.pop(name) for name in ("grace_kill", "leftovers") if name in about})
    return Wanted(spec, Schedule(every, tz, "systemd"), NOW, here=here, **about)


def elapses(expression, since, count):
    """Return when systemd fires an expression, from an instant on."""
    base = format_instant(since).replace("T", " ").replace("Z", " UTC")
    command = [ANALYZE, "calendar", f"--iterations={count}", f"--base-time={base}", expression]
    said = subprocess.run(command, capture_output=True, text=True, env={"TZ": "UTC", "LC_ALL": "C.UTF-8"}, check=True)
    found = re.findall(r"(?:Next elapse|Iter\. #\d+|\(in UTC\)): \w+ (\S+ \S+) UTC", said.stdout)
    return [int(datetime.strptime(each, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()) for each in found]


def verify(folder, units):
    """Let systemd read the units; return what it says of them."""
    for name, text in units:
        (folder / name).write_text(text)
    paths = [str(folder / name) for name, _ in units]
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", "--recursive-errors=one", *paths], capture_output=True, text=True
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("every", "tz", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", ["*-*-* 02:30:00 Europe/Berlin"]),
        ("day", "UTC", ["*-*-* 00:00:00 UTC"]),
        ("week", "Europe/Berlin", ["Mon *-*-* 00:00:00 Europe/Berlin"]),
        ("month", "UTC", ["*-*-01 00:00:00 UTC"]),
        ("*/15 9-17 * * mon-fri", "UTC", ["Mon..Fri *-*-* 09..17:00..45/15:00 UTC"]),
        ("0 2 13 * fri", "UTC", ["*-*-13 02:00:00 UTC", "Fri *-*-* 02:00:00 UTC"]),
        ("0 2 */2 * mon", "UTC", ["Mon *-*-01..31/2 02:00:00 UTC"]),
        ("0 2 * * 0,6,7", "UTC", ["Sat,Sun *-*-* 02:00:00 UTC"]),
        # systemd fires a repeated local hour once, and may stop for good on Chatham: in UTC it does neither.
        ("hour", "Europe/Berlin", ["*-*-* *:00:00 UTC"]),
        ("0 2 * * *", "Pacific/Chatham", ["*-*-* 12,13:15:00 UTC"]),
    ],
)
def test_calendar_expressions(every, tz, expected):
    assert on_calendar(Schedule(every, tz, "systemd"), NOW) == expected


def random_rule(chosen):
    def field(low, high):
        a, b = sorted((chosen.randint(low, high), chosen.randint(low, high)))
        return chosen.choice(("*", f"{a}", f"{a},{b}", f"{a}-{b}", f"{a}-{b}/{chosen.randint(1, 5)}", "*/7"))

    day = chosen.choice(("*", "*", "*", "1", "15,30", "1-7", "*/2"))
    month = chosen.choice(("*", "*", "*", "1", "2,12", "3-10"))
    weekday = chosen.choice(("*", "*", "1", "mon-fri", "6,7", "0", "fri,sun", "2-6"))
    return f"{field(0, 59)} {field(0, 23)} {day} {month} {weekday}"


@needs_systemd
@pytest.mark.parametrize("seed", range(40))
def test_systemd_fires_when_a_window_begins(seed):
    chosen = random.Random(seed)
    schedule = Schedule(random_rule(chosen), chosen.choice(ZONES), "systemd")
    # Now and then just before a clock change.
    changes = load_zone(schedule.tz).changes(int(NOW), int(NOW) + 366 * DAY) if schedule.tz != "UTC" else []
    since = int(chosen.choice([NOW + chosen.randint(0, 365) * DAY, *(change - DAY for change in changes)]))
    expressions = on_calendar(schedule, NOW)
    per_expression = [elapses(each, since, 60) for each in expressions]
    until = min([fires[-1] for fires in per_expression if len(fires) == 60], default=since + 366 * DAY)
    fired = sorted({fire for fires in per_expression for fire in fires if since < fire <= until})
    expected = [tick for tick in schedule.fires(since + 1, until + 1) if tick <= until]
    if expressions[0].endswith(" UTC") and schedule.tz != "UTC":
        # Written in UTC: also at the times that the zone's other offset would have. Each tick is among them, but for
        # one at the moment of a change, which is fired by the next.
        begun = set(schedule.starts(since + 1, until + 1)) - set(changes)
        assert begun <= set(fired)
    else:
        assert fired == expected


@needs_systemd
@pytest.mark.parametrize(
    "word",
    [
        "/a b/%h/$HOME",
        "/etc/50%.toml",
        "/${X}/'\"\\",
        ";",
        "/x;y",
        "-",
        "@x",
        "/ü/\u2028",
        "/tab\tand\nline",
        "/#x",
        "",
    ],
)
def test_systemd_reads_the_words_of_the_command(word, tmp_path):
    program = tmp_path / "a b $x %y ü" / "ranonce"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    units = printed(wanted(here=(str(program), "run", "job", "--config", word), state_home=f"/srv/{word}")).files
    assert verify(tmp_path, units) == (0, "")
    assert words_of(units[0][1]) == [str(program), "run", "job", "--config", word]


def words_of(service):
    """Return the words of ExecStart as systemd.service(5) says they are read; the program's path has no variables."""
    (line,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    words = []
    for bare, inside in re.findall(r'([^\s"]+)|"((?:[^"\\]|\\.)*)"', line):
        text = re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), (bare or inside).encode()).decode()
        text = re.sub(r"\\([ntr\\\"])", lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m[1], m[1]), text)
        words.append(text.replace("%%", "%").replace("$$", "$") if words else text.replace("%%", "%"))
    return words


@needs_systemd
@pytest.mark.parametrize("job", ["job", "Nightly.report_2-x", "a" * 100, "x.timer", "a--b"])
def test_units_of_every_job_are_sound(job, tmp_path):
    for about in ({"is_root": True}, {"is_root": False, "user": "you"}, {"leftovers": "leave", "grace_kill": 90.5}):
        assert verify(tmp_path, printed(wanted(job=job, tz="Europe/Berlin", every="0 2 13 * fri", **about)).files) == (
            0,
            "",
        )


def test_the_service_has_time_to_stop():
    assert "TimeoutStopSec=151s" in printed(wanted(grace_kill=90.5)).files[0][1]
    assert "KillMode=mixed" in printed(wanted()).files[0][1]
    assert "KillMode=process" in printed(wanted(leftovers="leave")).files[0][1]


def test_root_has_system_units_and_others_have_their_own():
    root, other = printed(wanted(is_root=True)), printed(wanted(is_root=False, user="you"))
    assert "\nUser=root\n" in root.files[0][1]
    assert root.then == ("systemctl daemon-reload", "systemctl enable --now ranonce-job.timer")
    assert "\nUser=" not in other.files[0][1]
    assert other.then[0].startswith("loginctl enable-linger you")
    assert other.then[-1] == "systemctl --user enable --now ranonce-job.timer"
    assert unit_name("job") == "ranonce-job"


def test_what_no_unit_can_hold_is_refused():
    with pytest.raises(ConfigError, match="absolute path"):
        command_line(("ranonce", "run"))
    with pytest.raises(ConfigError, match="quotes in its path"):
        command_line(("/opt/it's/ranonce", "run"))
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        printed(wanted(here=("/usr/bin/ranonce", "\udcff")))
