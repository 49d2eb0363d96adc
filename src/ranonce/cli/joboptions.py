"""The options that several commands share: those that set how a job is run, and those that name the ledger."""

from __future__ import annotations

import os

from ranonce.cli.options import Option, Parsed
from ranonce.errors import UsageError
from ranonce.jobspec import CHOICES, JobSpec, check_job
from ranonce.settings import SHELL, argv, exit_codes, gates, text
from ranonce.timefmt import duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ranonce.checks import Check
    from ranonce.cli.options import Command


def _choice(name: str, help: str, default: str) -> Option:
    field = name.replace("-", "_")
    return Option(name, help, "CHOICE", "choice", CHOICES[field], default=default, field=field)


def _time(name: str, help: str, default: str = "") -> Option:
    return Option(name, help, "TIME", "duration", default=default, field=name.replace("-", "_"))


def _number(name: str, help: str, default: str) -> Option:
    return Option(name, help, "N", "number", default=default, field=name.replace("-", "_"))


CONFIG = Option("config", "The configuration file to use.", "PATH", "path")
STORE = Option("store", "The ledger's store, like sqlite:////var/lib/ranonce/ledger.db.", "URL")
JSON = Option("json", "Print JSON.")
LEDGER_OPTIONS = (STORE, CONFIG)

SCHEDULE_OPTIONS = (
    Option("every", "hour, day, week, month or a cron expression.", "RULE", field="every"),
    Option("tz", "The zone the schedule is written in.", "ZONE", default="UTC", field="tz"),
    _choice("dialect", "Which scheduler fires it.", "debian"),
    _number("offset", "Serve an earlier window: -1 is the one before.", "0"),
)
RUN_OPTIONS = (
    _time("timeout", "Stop the command after this time.", "none"),
    _time("lease", "How long a claim lives without a renewal.", "5m"),
    _time("grace-kill", "Time between TERM and KILL.", "10s"),
    _number("max-attempts", "Failed and crashed attempts before a person must act.", "3"),
    _time("retry-delay", "Time between a failure and the next attempt.", "0"),
    _time("early", "How far before its tick a trigger counts for it.", "5s"),
    _time("late-after", "How long after its due time a window is missing.", "1h"),
    _time("max-late", "Refuse a scheduled trigger that comes later than this.", "none"),
    _choice("overlap", "May two windows of the job run at once?", "forbid"),
    _choice("on-crash", "What happens with a window whose attempt died.", "retry"),
    Option("reconcile", "Shell command: did the crashed attempt do it? 0 yes, 1 no.", "CMD", field="reconcile"),
    _choice("catch-up", "Which earlier windows are run first.", "stopped"),
    _number("catch-up-limit", "At most so many earlier windows in one invocation.", "10"),
    _choice("input-mode", "Is other input a conflict, or other work?", "fingerprint"),
    Option("version", "Version of the job for the record, such as a commit.", "TEXT", field="version"),
    Option("uses", "A gate (a shared resource) the job uses.", "GATE", repeat=True, field="uses"),
    Option(
        "check",
        "Prove the product before done: file=PATH[,min_bytes=N,max_age=TIME,fresh,json,jsonl,equals=POINTER=TEXT], "
        "json=PATH, jsonl=PATH or command=CMD.",
        "CHECK",
        repeat=True,
        field="checks",
    ),
    Option(
        "stop-exit-code",
        "An exit code of the command that means stopped, not failed.",
        "N",
        "number",
        repeat=True,
        field="stop_exit_codes",
    ),
    _choice("leftovers", "What is done with background children.", "wait"),
    Option("receipt", "Where receipts go: all, problems, none or a path.", "WHICH", default="all", field="receipt"),
    _number("busy-exit", "Exit status for try later.", "75"),
    Option("no-output", "Keep nothing of what the command prints.", field="keep_output", value=False),
    Option("stdin", "Give the command this standard input instead of /dev/null.", field="stdin"),
)
DECLARE_OPTIONS = (
    Option("since", "Expect windows from this instant on.", "INSTANT", "instant", field="since"),
    Option("cwd", "The folder the command runs in.", "PATH", "path", field="cwd"),
)


def job_settings(command: Command, parsed: Parsed) -> dict[str, Any]:
    """Return the settings that stand in the options, by their names in `JobSpec` and in its types.

    Raises UsageError.
    """
    settings = parsed.settings(command)
    for option in command.options:
        if option.field in _READERS and option.field in settings:
            try:
                settings[option.field] = _READERS[option.field](settings[option.field])
            except UsageError as error:
                raise UsageError(f"--{option.name}: {error.sentence}", error.next_step) from None
    return settings


def with_settings(spec: JobSpec, settings: dict[str, Any]) -> JobSpec:
    """Return the job with settings of the command line put over its own. Raises UsageError if they do not fit."""
    return check_job(spec.replace(**settings)) if settings else spec


def run_options(spec: JobSpec) -> list[str]:
    """Return the options of `ranonce run` that say of a job what is not as it would be anyway, its schedule always.

    The reverse of `job_settings`. UsageError for a setting that only a configuration file can hold.
    """
    usual = JobSpec(spec.name).as_dict()
    words = ["--every", spec.every or ""]
    for option in (*SCHEDULE_OPTIONS, *RUN_OPTIONS):
        assert option.field is not None
        value = spec.as_dict()[option.field]
        if option.name == "every" or value == usual[option.field]:
            continue
        if option.metavar is None:
            words.append(f"--{option.name}")
            continue
        for each in value if option.repeat else (value,):
            written = _written(spec, option, each)
            words += [f"--{option.name}={written}"] if written.startswith("--") else [f"--{option.name}", written]
    return words


def _written(spec: JobSpec, option: Option, value: Any) -> str:
    """Return a setting as its option takes it."""
    if option.kind == "duration":
        return duration_text(value)
    if option.field == "checks":
        from ranonce.checks import check_as_option

        return check_as_option(value)
    if option.field == "reconcile":
        from shlex import join

        return text(value[2] if value[:2] == SHELL and len(value) == 3 else join(value))
    if option.field == "version" and not isinstance(value, str):
        raise UsageError(
            f"the version of {spec.name!r} comes from the file {value.file!r} of this host.",
            "Say it as text: --version TEXT.",
        )
    return str(value)


def _checks(written: list[str]) -> tuple[Check, ...]:
    from ranonce.checks import check_from_option

    return tuple(check_from_option(check) for check in written)


def _receipt(written: str) -> str:
    return os.path.abspath(text(written)) if "/" in written else text(written)


#: Settings that are more than one plain value of the option's kind.
_READERS: dict[str | None, Callable[[Any], object]] = {
    "every": text,
    "tz": text,
    "version": text,
    "reconcile": lambda command: argv([*SHELL, command]),
    "uses": gates,
    "checks": _checks,
    "stop_exit_codes": exit_codes,
    "receipt": _receipt,
    "cwd": os.path.abspath,
}
