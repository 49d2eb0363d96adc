"""The line for a crontab. Source: crontab(5) of Debian's cron."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.windows import Schedule

#: When the scheduler fires for each calendar rule: as the window begins.
CALENDAR = {"hour": "0 * * * *", "day": "0 0 * * *", "week": "0 0 * * 1", "month": "0 0 1 * *"}


def crontab_line(
    schedule: Schedule, program: list[str], job: str, *, config: str | None, state_home: str | None = None
) -> str:
    """Return the crontab line that runs a job: `program` are the words that start ranonce. It mails only what matters.

    `state_home` is the XDG_STATE_HOME to hand on, where this host's journal is not in its usual place.
    """
    words = [*program, "run", job, "--receipt", "problems"]
    if config is not None:
        words += ["--config", config]
    command = " ".join(_quoted(word) for word in words)
    if state_home is not None:
        command = f"XDG_STATE_HOME={_quoted(state_home)} {command}"
    # cron takes an unescaped % for a newline, in quotes too.
    return f"{CALENDAR.get(schedule.every, schedule.every)} {command.replace('%', chr(92) + '%')}"


def host_zone() -> str:
    """Return the name of the zone this host's cron counts in; UTC where nothing says otherwise."""
    name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return "UTC" if name in ("", "UTC", "Etc/UTC", "Etc/UCT", "Etc/Zulu", "Zulu", "Universal") else name


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)
