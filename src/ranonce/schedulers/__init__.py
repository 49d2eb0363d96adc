"""What each scheduler is told about a job: crontab lines, systemd units, a Kubernetes manifest, a GitHub workflow.

Each module takes one `Wanted` and returns text that is complete for its scheduler and survives its quoting. Nothing
here is needed to run a job; `ranonce add` loads the one module it is asked for.
"""

from __future__ import annotations

from ranonce.errors import ConfigError
from ranonce.record import Record
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.cron import CronRule
    from ranonce.jobspec import JobSpec
    from ranonce.windows import Schedule

#: At the top of every file, so that a file of somebody else's is never written over.
WRITTEN_BY = "# Written by `ranonce add`: change the job there, not here."


class Wanted(Record):
    """One job for one scheduler.

    `here` are the words that run it on this host, configuration included; `alone` are the words after `ranonce` that
    run it where there is no configuration. `state_home` is the XDG_STATE_HOME to hand on, where this host's state is
    not in its usual place. `sqlite` is the path of this host's ledger if it is a file, `server` its address without a
    password if it is on a server. `now` is unix seconds.
    """

    spec: JobSpec
    schedule: Schedule
    now: float
    here: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    state_home: str | None = None
    user: str = "root"
    is_root: bool = True
    sqlite: str | None = None
    server: str | None = None
    cwd: str | None = None
    image: str | None = None
    runs_on: str = "ubuntu-latest"

    @property
    def extra(self) -> str:
        """What is installed besides `ranonce` itself, as pip is told: the driver of the ledger's server."""
        return "[postgres]" if self.server is not None and self.server.startswith("postgresql:") else ""

    def unreachable(self, whence: str) -> tuple[str, ...]:
        """Return what is to be said where the ledger's server is this host's own."""
        from ranonce.serverurl import is_local

        if self.server is None or not is_local(self.server):
            return ()
        return (f"The ledger is at {self.server}, which is this host only: {whence} needs an address it can reach.",)


class Printed(Record):
    """What to paste: files by name (a crontab's lines have none), where they belong, what to do then, what to know.

    `folder` is where the files must lie, if there is one such place.
    """

    files: tuple[tuple[str, str], ...]
    where: str
    then: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    folder: str | None = None


def cron_rule(schedule: Schedule) -> CronRule:
    """Return the cron rule that fires as each window begins."""
    from ranonce.calendars import CALENDARS
    from ranonce.cron import parse_cron

    calendar = CALENDARS.get(schedule.every)
    return parse_cron(calendar.cron if calendar else schedule.every)


def writable(words: tuple[str, ...], place: str) -> tuple[str, ...]:
    """Return words that can stand in a text file; ConfigError for bytes that are not UTF-8, and for NUL."""
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigError(
                f"{shown(word)} is not valid UTF-8, so it cannot stand in {place}.",
                "Put it into a script, and name that as the command.",
            ) from None
    return words
