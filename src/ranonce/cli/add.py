"""`ranonce add`: declare a job, and print the line for its scheduler."""

from __future__ import annotations

import os
import pwd
import sys
import time

from ranonce.cli.joboptions import (
    DECLARE_OPTIONS,
    JSON,
    LEDGER_OPTIONS,
    RUN_OPTIONS,
    SCHEDULE_OPTIONS,
    job_settings,
    with_settings,
)
from ranonce.cli.opening import open_ledger
from ranonce.cli.options import Command, Option
from ranonce.config import find_config, state_folder
from ranonce.crontab import crontab_line, host_zone
from ranonce.errors import ConfigError, UsageError
from ranonce.jobspec import JobSpec
from ranonce.names import check_job_name
from ranonce.stores.base import Job
from ranonce.timefmt import format_instant
from ranonce.windows import Schedule, due

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed
    from ranonce.ledger import Declared

COMMAND = Command(
    "add",
    ("JOB",),
    "Declare a job and print the line for its scheduler.",
    (
        *SCHEDULE_OPTIONS,
        Option("for", "Which scheduler the line is for.", "SCHEDULER", "choice", ("crontab",), default="crontab"),
        *RUN_OPTIONS,
        *DECLARE_OPTIONS,
        Option("now", "Declare it as if it were this instant.", "INSTANT", "instant"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Writes the job into the configuration and a version of its schedule into the ledger. Declaring it
    again changes it: a new schedule begins where the last started window of the old one ends.""",
    takes_command=True,
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Declare the job; print what to paste on standard output, and what to know on standard error."""
    from ranonce.configfile import write_job

    name = check_job_name(parsed.arguments[0])
    path = find_config(parsed.get("config"), environ)
    if path is None:
        raise ConfigError("there is no configuration to add the job to.", "Create the ledger first: ranonce init")
    config, ledger = open_ledger(parsed, environ, job=name)
    before = config.jobs.get(name, JobSpec(name, declared=True))
    settings = job_settings(COMMAND, parsed)
    if parsed.rest is not None:
        settings["command"] = _absolute(parsed.rest)
    elif not before.command:
        raise UsageError(f"the job {name!r} needs a command.", f"Write it after --: ranonce add {name} … -- COMMAND")
    spec = with_settings(before, settings)
    if spec.every is None:
        raise UsageError(f"the job {name!r} needs a schedule.", 'Say how often: --every day, or --every "0 2 * * *".')
    every = Schedule(spec.every, spec.tz, spec.dialect)
    now = parsed.get("now", time.time())
    write_job(path, name, _own_settings(spec, config.folder), environ)
    job = Job(name, 0, now, spec.late_after, spec.max_attempts)
    declared, changed = ledger.declare(job, every, spec.offset, now=now, change=True)
    line = _line(declared, name, path, environ)
    said = _said(spec, config.jobs.get(name), path)
    _tell(parsed, spec, declared, line, said=said, changed=changed, now=now)
    return 0


def _said(spec: JobSpec, before: JobSpec | None, path: str) -> str:
    """Say whether the job is new, changed (and what is kept as it was), or as it was."""
    if before is None:
        return f"Declared {spec.name} in {path}."
    usual = JobSpec(spec.name).as_dict()
    was, is_ = before.as_dict(), spec.as_dict()
    changed = [field for field in is_ if is_[field] != was[field]]
    if not changed:
        return f"{spec.name} is as it was in {path}."
    kept = [field for field in is_ if field not in changed and is_[field] != usual[field] and field not in _PLAIN]
    told = f"Changed {spec.name} in {path}: {', '.join(changed)}."
    return f"{told} Kept as it was: {', '.join(kept)}." if kept else told


#: Settings that every declared job has.
_PLAIN = frozenset({"name", "cwd", "declared"})


def _line(declared: Declared, job: str, path: str, environ: Mapping[str, str]) -> str:
    """Return the crontab line: it must find the same files in cron's environment.

    That has little besides HOME, which is the user's home folder whatever HOME is here. Source: crontab(5).
    """
    try:
        cron = {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    except KeyError:  # a container's user without a name has no crontab either
        cron = dict(environ)
    config = None if find_config(None, cron) == path else path
    same_state = _state(environ) == _state(cron)
    states = _state(environ)
    state_home = None if same_state or states is None else os.path.dirname(states)
    return crontab_line(declared.schedule, _ranonce(), job, config=config, state_home=state_home)


def _ranonce() -> list[str]:
    """Return the words that start this program from anywhere."""
    import shutil

    if os.path.basename(sys.argv[0]) == "ranonce":
        return [os.path.abspath(sys.argv[0])]
    found = shutil.which("ranonce")
    return [found] if found else [sys.executable, "-m", "ranonce"]


def _state(environ: Mapping[str, str]) -> str | None:
    try:
        return state_folder(environ)
    except ConfigError:
        return None


def _own_settings(spec: JobSpec, folder: str | None) -> dict[str, object]:
    """Return what is not as it would be anyway: that is what belongs into the file."""
    usual = JobSpec(spec.name, declared=True, cwd=folder).as_dict()
    return {field: value for field, value in spec.as_dict().items() if value != usual[field]}


def _absolute(command: list[str]) -> tuple[str, ...]:
    """Return the command with its program as an absolute path: a scheduler has another PATH and folder."""
    import shutil

    program = command[0]
    if "/" in program:
        return (os.path.abspath(program), *command[1:])
    found = shutil.which(program)
    return (os.path.abspath(found) if found else program, *command[1:])


def _tell(
    parsed: Parsed, spec: JobSpec, declared: Declared, line: str, *, said: str, changed: bool, now: float
) -> None:
    window = declared.schedule.window_at(now)
    following = declared.schedule.after(window)
    if parsed.flag("json"):
        import json

        told = {"job": spec.name, "schedule_version": declared.version.number, "changed": changed, "line": line}
        print(json.dumps({**told, "window": window.key, "next": format_instant(following.start)}))
        return
    notes = [f"{said} Its next window starts at {format_instant(following.start)}."]
    if changed:
        begin = format_instant(declared.version.valid_from or 0)
        notes.append(f"The schedule has changed: version {declared.version.number} is for windows from {begin} on.")
    if not os.access(spec.command[0], os.X_OK):
        notes.append(
            f"{spec.command[0]!r} is not there or not executable yet."
            " (No shell reads the command; where you want one, write -- sh -c '…'.)"
        )
    if not declared.schedule.is_cron:
        late = format_instant(due(declared.schedule, following, declared.version.offset, spec.late_after))
        notes.append(f"A window counts as missing when it is over and nothing ran: that one from {late} on.")
    zone = host_zone()
    if zone != declared.schedule.tz and spec.every != "hour":
        notes.append(
            f"cron on this host counts in {zone}, this job in {declared.schedule.tz}:"
            f" give the crontab its zone (cronie: CRON_TZ={declared.schedule.tz}), declare the job with --tz {zone}"
            " if you mean that, or let the line fire at each hour it can be: a trigger too many is refused as done."
        )
    for note in notes:
        print(note, file=sys.stderr)
    print("Paste this into the crontab (crontab -e):", file=sys.stderr)
    sys.stderr.flush()
    print(line)
