"""The lines for a crontab. Source: crontab(5) of Debian's cron and of cronie.

A cron daemon counts in its host's zone, whatever the job says. cronie takes `CRON_TZ=`, Debian's cron does not; lines
in the host's own time work in both.
"""

from __future__ import annotations

import os

from ranonce.errors import ConfigError
from ranonce.schedulers import Printed, cron_rule, writable
from ranonce.schedulers.cronlines import lines, shifts
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.schedulers import Wanted
    from ranonce.zones import Zone


def printed(wanted: Wanted, *, host: str | None = None) -> Printed:
    """Return the crontab lines that run a job whenever a window of it begins. `host` is the zone cron counts in."""
    schedule = wanted.schedule
    host = host_zone() if host is None else host
    command = cron_command(wanted.here, wanted.state_home)
    where = "Paste this into the crontab (crontab -e):"
    own = cron_rule(schedule).text if schedule.is_cron else _plain(wanted)
    if host == schedule.tz:
        return Printed((("", f"{own} {command}\n"),), where)
    cronie = f"CRON_TZ={schedule.tz} on a line of its own and then: {own} {command}"
    counts = f"cron on this host counts in {host}, this job in {schedule.tz}"
    try:
        clock = _zone(host)
    except ConfigError:  # a zone of this host's own making
        return Printed((("", f"{own} {command}\n"),), where, notes=(f"{counts}. Where cron is cronie, write {cronie}",))
    differences = shifts(_zone(schedule.tz), clock, wanted.now)
    times = lines(cron_rule(schedule), differences)
    if differences == [0]:
        times = [own]
    text = "".join(f"{each} {command}\n" for each in times)
    if times == [own]:
        return Printed((("", text),), where)
    note = (
        f"{counts}. {_counted(len(times))} every time of day that this can be in {host} over the year;"
        f" a trigger too many finds its window done. Where cron is cronie you can write {cronie}"
    )
    if not schedule.is_cron and schedule.every != "hour":
        note += f" (If a {schedule.every} in {host} is meant, declare the job with --tz {host}.)"
    return Printed((("", text),), where, notes=(note,))


def cron_command(words: tuple[str, ...], state_home: str | None) -> str:
    """Return what follows the five fields: the words for cron's shell, behind cron's own reading of `%` and `\\`.

    ConfigError for a word that no crontab line can hold.
    """
    writable((*words, state_home or ""), "a crontab")
    for word in (*words, state_home or ""):
        if "\n" in word or "\0" in word:
            raise ConfigError(
                f"{shown(word)} holds a line break, and a crontab line ends there.", "Rename it, or use --for systemd."
            )
    command = " ".join(quoted(word) for word in words)
    return command if state_home is None else f"XDG_STATE_HOME={quoted(state_home)} {command}"


def quoted(word: str) -> str:
    """Return a word quoted for the shell that cron starts.

    cron makes a newline of an unescaped `%`, in quotes too. Some take the backslash before it away and others do not,
    and some make one of two; so `%` stands outside quotes, where the shell takes it away, and no two meet.
    """
    import shlex

    pieces = [shlex.quote(piece).replace("\\\\", "\\''\\").replace("\\\\", "\\''\\") for piece in word.split("%")]
    if len(pieces) == 1:
        return pieces[0]
    return "\\%".join("" if piece == "''" else piece for piece in pieces)


def host_zone() -> str:
    """Return the name of the zone this host's cron counts in; UTC where nothing says otherwise."""
    name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2].removeprefix("posix/")
    return "UTC" if name in ("", "UTC", "Etc/UTC", "Etc/UCT", "Etc/Zulu", "Zulu", "Universal") else name


def _plain(wanted: Wanted) -> str:
    from ranonce.calendars import CALENDARS

    return CALENDARS[wanted.schedule.every].cron


def _counted(count: int) -> str:
    return "The line below names" if count == 1 else f"The {count} lines below name"


def _zone(name: str) -> Zone | None:
    from ranonce.zones import load_zone

    return None if name == "UTC" else load_zone(name)
