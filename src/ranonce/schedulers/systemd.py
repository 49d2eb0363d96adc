"""The service and the timer of a systemd unit pair. Sources: systemd.time(7), systemd.service(5), systemd.timer(5).

A rule becomes OnCalendar lines in the job's own zone. Where systemd would leave out what the job's windows have, the
lines are in UTC instead, one for each offset of the zone: for rules that go by elapsed time, since a timer fires a
repeated local hour once; and in zones whose clock changes between full hours, where systemd 252 stops firing.
"""

from __future__ import annotations

from math import ceil

from ranonce.errors import ConfigError
from ranonce.schedulers import WRITTEN_BY, Printed, cron_rule, writable
from ranonce.schedulers.cronlines import AHEAD, day_parts, lines, runs, shifts
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.cron import CronRule
    from ranonce.schedulers import Wanted
    from ranonce.schedulers.cronlines import Days
    from ranonce.windows import Schedule
    from ranonce.zones import Zone

WEEKDAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
#: After TERM and the job's own grace: leftovers are waited for, the verdict is written to a store that may be busy.
AFTER_GRACE_SECONDS = 60
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@+=:,./-")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "%": "%%"}


def printed(wanted: Wanted) -> Printed:
    """Return the two units of a job, where they belong, and the commands that enable them."""
    unit = unit_name(wanted.spec.name)
    folder, control = ("/etc/systemd/system", "systemctl")
    then: list[str] = []
    if not wanted.is_root:
        folder, control = ("~/.config/systemd/user", "systemctl --user")
        then.append(f"loginctl enable-linger {wanted.user}   # timers go on while nobody is logged in")
    then += [f"{control} daemon-reload", f"{control} enable --now {unit}.timer"]
    return Printed(
        ((f"{unit}.service", service(wanted)), (f"{unit}.timer", timer(wanted))),
        f"Two files for {folder} (systemd-analyze verify checks them there):",
        tuple(then),
        folder=folder,
    )


def unit_name(job: str) -> str:
    """Return the name of a job's units without its ending: a job's name holds nothing that a unit's may not."""
    return f"ranonce-{job}"


def service(wanted: Wanted) -> str:
    """Return the service: one invocation of `ranonce run`."""
    spec = wanted.spec
    writable((*wanted.here, wanted.state_home or ""), "a unit")
    stop = ceil(spec.grace_kill) + AFTER_GRACE_SECONDS
    lines_ = [
        WRITTEN_BY,
        "[Unit]",
        f"Description=ranonce run {spec.name}",
        "",
        "[Service]",
        "Type=oneshot",
    ]
    if wanted.is_root:
        lines_ += [
            "# With User=, systemd sets HOME: configuration and state are found as on the command line.",
            "User=root",
        ]
    else:
        lines_ += [f"# This is a user's unit. In /etc/systemd/system it needs: User={wanted.user}"]
    if wanted.state_home is not None:
        lines_.append(f"Environment={quoted(f'XDG_STATE_HOME={wanted.state_home}')}")
    lines_ += [
        f"ExecStart={command_line(wanted.here)}",
        f"# ranonce passes TERM on, kills the command {spec.grace_kill:g} s later, and records the outcome.",
        f"TimeoutStopSec={stop}s",
    ]
    if spec.leftovers == "leave":
        lines_ += ["# leftovers = leave: what the command leaves behind lives on.", "KillMode=process"]
    else:
        lines_.append("KillMode=mixed")
    return "\n".join(lines_) + "\n"


def timer(wanted: Wanted) -> str:
    """Return the timer: it fires whenever a window of the job begins."""
    name = wanted.spec.name
    lines_ = [
        WRITTEN_BY,
        "[Unit]",
        f"Description=When ranonce runs {name}",
        "",
        "[Timer]",
        *(f"OnCalendar={each}" for each in on_calendar(wanted.schedule, wanted.now)),
        "# After a time without power the last trigger is made up for. That is safe: a window that is done is refused.",
        "Persistent=true",
        "AccuracySec=1s",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return "\n".join(lines_) + "\n"


def on_calendar(schedule: Schedule, now: float) -> list[str]:
    """Return calendar expressions that together fire whenever a window of the schedule begins."""
    rule = cron_rule(schedule)
    if schedule.tz == "UTC":
        return _expressions(rule, "UTC")
    from ranonce.cron import parse_cron
    from ranonce.zones import load_zone

    zone = load_zone(schedule.tz)
    differences = shifts(zone, None, now)
    if (rule.by_elapsed_time and len(differences) > 1) or _changes_between_hours(zone, now):
        return [each for line in lines(rule, differences) for each in _expressions(parse_cron(line), "UTC")]
    return _expressions(rule, schedule.tz)


def command_line(words: tuple[str, ...]) -> str:
    """Return words as ExecStart= reads them: no `%` is a specifier, no `$` a variable, no `;` a second command.

    ConfigError for a program that systemd cannot name. Source: systemd.service(5), "Command lines".
    """
    program, *arguments = words
    if not program.startswith("/"):
        raise ConfigError(
            f"systemd starts a program by its absolute path, not {shown(program)}.", "Install ranonce on this host."
        )
    if not program.isprintable() or any(each in program for each in "'\"\\"):
        raise ConfigError(f"systemd starts no program with quotes in its path: {shown(program)}.", "Move it elsewhere.")
    # Variables are not replaced in the path of the program, so `$$` is not made one `$` there.
    return " ".join((quoted(program), *(quoted(word).replace("$", "$$") for word in arguments)))


def quoted(word: str) -> str:
    """Return one word as the value of a setting: quoted where it must be, `%` doubled. Source: systemd.syntax(7)."""
    if word and _PLAIN.issuperset(word):
        return word
    return '"' + "".join(_ESCAPES.get(each) or _escaped(each) for each in word) + '"'


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8"))


def _changes_between_hours(zone: Zone, now: float) -> bool:
    since = int(now)
    return any((change + zone.offset(change - 1)) % 3600 for change in zone.changes(since, since + AHEAD))


def _expressions(rule: CronRule, tz: str) -> list[str]:
    hours = sorted({second // 3600 for second in rule.minutes})
    minutes = sorted({second % 3600 // 60 for second in rule.minutes})
    time = f"{_field(hours, 0, 23)}:{_field(minutes, 0, 59)}:00"
    # systemd can ask for a date and a weekday both.
    parts = day_parts(rule) if rule.either_day else [(rule.days, rule.months, rule.weekdays)]
    return [f"{_date(part)} {time} {tz}" for part in parts]


def _date(part: Days) -> str:
    days, months, weekdays = part
    date = f"*-{_field(sorted(months), 1, 12)}-{_field(sorted(days), 1, 31)}"
    if len(weekdays) == 7:
        return date
    # Monday first, as systemd counts: a range must not run over the end of its week.
    named = runs(sorted((weekday - 1) % 7 for weekday in weekdays))
    week = (*WEEKDAYS[1:], WEEKDAYS[0])
    spans = [week[a] if a == b else f"{week[a]}{',' if b == a + 1 else '..'}{week[b]}" for a, b in named]
    return f"{','.join(spans)} {date}"


def _field(ordered: list[int], low: int, high: int) -> str:
    if len(ordered) == high - low + 1:
        return "*"
    step = ordered[1] - ordered[0] if len(ordered) > 2 else 0
    if step > 1 and ordered == list(range(ordered[0], ordered[-1] + 1, step)):
        return f"{ordered[0]:02}..{ordered[-1]:02}/{step}"
    spans = [f"{a:02}" if a == b else f"{a:02}{',' if b == a + 1 else '..'}{b:02}" for a, b in runs(ordered)]
    return ",".join(spans)
