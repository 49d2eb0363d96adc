"""Write the generated parts of the documentation: commands, exit statuses, configuration keys, events, reasons; the
settings of destinations; and the rules of a message.

What the code knows comes from the code. What only people need (what a key is for) stands here and in `message_tables`,
and a key, event or reason without its sentence stops this script, so that nothing new stays undocumented.
"""

from __future__ import annotations

import re
import sys

from ranonce.checks import CHECK_KEYS, Check
from ranonce.cli import COMMANDS, module
from ranonce.cli.joboptions import DECLARE_OPTIONS, RUN_OPTIONS, SCHEDULE_OPTIONS
from ranonce.cli.options import Command, help_text
from ranonce.configread import JOB_KEYS, LEDGER_KEYS, TOP_KEYS
from ranonce.delivery import spec
from ranonce.errors import EXIT_STATUSES
from ranonce.jobspec import CHOICES, DURATIONS, JobSpec
from ranonce.storeurl import STORE_WAIT
from ranonce.timefmt import format_duration
from ranonce.wrap import REFUSED
from tools.message_tables import dedupe_times, destination_keys, kind_keys, message_states, message_table
from tools.regions import ROOT, write_or_check
from tools.tables import same, table

#: Statuses that are not a constant of `ranonce.errors`.
OTHER_STATUSES = {
    "1": "the command failed with a status that is in this table; the receipt has the real one (`child_exit`)",
    "any other": "the command's own: it failed",
    "128+n": "the command died by signal n; where it can, `ranonce` dies by the same signal",
}

#: What a setting is for, where no option of the same name says it.
JOB_KEY_HELP = {
    "command": "The program and its arguments, as a list. No shell reads it; `{window}` becomes the window's key.",
    "checks": "What must hold before exit status 0 is called done: a list of tables, see below.",
    "keep_output": "Keep the first 4 KiB and the last 60 KiB of the command's output with the verdict.",
    "stop_exit_codes": "Exit codes of the command that mean stopped, not failed.",
    "reconcile": "A command that looks whether a crashed attempt did its work: exit 0 yes, 1 no, else unknown.",
    "cwd": "The folder the command runs in. A relative one is relative to this file.",
    "version": 'Version of the job for the record: text, or `{ file = "PATH" }` for the hash of a file.',
    "receipt": "Where receipts go: `all`, `problems`, `none`, or a path with a slash.",
}
JOB_KEY_DEFAULTS = {
    "every": "must be given",
    "command": "none",
    "cwd": "the folder of this file",
    "since": "when the job was declared",
}
LEDGER_KEY_HELP = {
    "store": (
        "Where the ledger is kept: `sqlite:////PATH`, `postgresql://USER@HOST/DATABASE`, `redis://HOST:PORT/NUMBER`.",
        "the user's state folder, `ledger.db`",
    ),
    "id": ("The id the ledger must have. `ranonce init` writes it.", "what this host last saw at that store"),
    "store_wait": ("How long the store may be away before a run is given up.", format_duration(STORE_WAIT)),
}
CHECK_KEY_HELP = {
    "file": "A file that must be there. Relative to the job's folder; `{window}` is replaced.",
    "command": "A command that must exit 0: a list of arguments, or text for `/bin/sh`. It stands alone.",
    "min_bytes": "At least so many bytes. 0 allows an empty file.",
    "max_age": "Written no longer ago than this.",
    "fresh": "Written since this attempt began.",
    "json": "It is one JSON text.",
    "jsonl": "Each line is a JSON text.",
    "equals": "Fields and the values they must have: a table of JSON Pointers. `{window}` is replaced in texts.",
}
EVENTS = {
    "start": "an attempt won its claim; its command starts after this is durable",
    "done": "the command exited 0 and every check held, or a look after a crash found the work done",
    "failed": "the command failed, ran out of time, or its product did not hold",
    "stopped": "given up on purpose: a signal, `ranonce stop`, a declared exit code",
    "held": "a person must say what became of it",
    "skipped": "a trigger was refused, and nothing was started",
    "lost": "the verdict of an attempt that no longer held the run: a second start is seen here",
    "unavailable": "the store could not be used: nothing was started (in receipts only)",
    "expired": "an attempt is found crashed: its lease is over or its process is dead",
    "rerun": "the run is done again on purpose, as its next generation: who asked for it, and why",
    "released": "a person said what became of it",
    "noted": "something worth knowing, without a change: by `ranonce`, by a job, or by a person",
}
SKIP_REASONS = {
    "done": "the window is done already",
    "pruned": "the window is older than what the ledger keeps",
    "busy": "this window is running; `holder` and `until` say who and how long its lease still lives",
    "overlap": "another window of the job is running",
    "waiting": "failed or stopped, and its time has not come; see `until`",
    "early": "the window has not begun",
    "gate": "a gate the job uses is closed; see `until`",
    "exhausted": "its attempts are used up",
    "held": "it waits for `ranonce release`",
    "conflict": "it is done with another input",
    "late": "later than `max_late` allows",
    "superseded": "it overlaps a window of another version of the schedule",
    "unknown": "there is no such run",
}


def commands() -> str:
    """Return the help of every command."""
    parts = []
    for name in COMMANDS:
        command: Command = module(name).COMMAND
        parts.append(f"### ranonce {name}\n\n```text\n{help_text(command).rstrip()}\n```")
    return "\n\n".join(parts)


def exit_statuses() -> str:
    """Return the table of exit statuses."""
    rows = [(str(status), meaning) for status, meaning in EXIT_STATUSES.items()]
    rows[1:1] = [("1", OTHER_STATUSES["1"]), ("any other", OTHER_STATUSES["any other"])]
    rows.append(("128+n", OTHER_STATUSES["128+n"]))
    return table(("exit", "meaning"), rows)


def ledger_keys() -> str:
    """Return the table of the keys of [ledger]."""
    same("keys of [ledger]", LEDGER_KEYS, LEDGER_KEY_HELP)
    rows = [(f"`{key}`", help_, default) for key, (help_, default) in LEDGER_KEY_HELP.items()]
    return table(("key", "what for", "default"), rows)


def job_keys() -> str:
    """Return the table of the keys of [jobs.NAME], defaults from the settings themselves."""
    helps = {o.field: o.help for o in (*SCHEDULE_OPTIONS, *RUN_OPTIONS, *DECLARE_OPTIONS) if o.field}
    helps |= JOB_KEY_HELP
    same("keys of a job", JOB_KEYS, helps)
    usual = JobSpec("job").as_dict()
    rows = [
        (f"`{key}`", helps[key], _choices(key), JOB_KEY_DEFAULTS.get(key) or _shown(key, usual[key]))
        for key in JOB_KEYS
    ]
    return table(("key", "what for", "values", "default"), rows)


def check_keys() -> str:
    """Return the table of the keys of one check."""
    same("keys of a check", CHECK_KEYS, CHECK_KEY_HELP)
    usual = Check(file="x").as_dict()
    rows = [
        (f"`{key}`", CHECK_KEY_HELP[key], "none" if key in ("file", "command") else _shown(key, usual[key]))
        for key in CHECK_KEYS
    ]
    return table(("key", "what for", "default"), rows)


def events() -> str:
    """Return the table of events."""
    schema = (ROOT / "src" / "ranonce" / "stores" / "sqlite" / "schema.sql").read_text(encoding="utf-8")
    listed = re.search(r"CHECK \(event = (.*?)\)", schema, re.DOTALL)
    assert listed, "the schema names the events"
    same("events", re.findall(r"'(\w+)'", listed[1]), EVENTS)
    return table(("event", "meaning"), [(f"`{event}`", meaning) for event, meaning in EVENTS.items()])


def skip_reasons() -> str:
    """Return the table of the reasons of refused claims, with the exit status of each."""
    same("reasons", REFUSED, SKIP_REASONS)
    rows = [(f"`{reason}`", meaning, str(REFUSED[reason])) for reason, meaning in SKIP_REASONS.items()]
    return table(("reason", "meaning", "exit"), rows)


def _choices(key: str) -> str:
    if key in CHOICES:
        return " ".join(f"`{choice}`" for choice in CHOICES[key])
    return "a time, like `30s`, `5m`, `2h`" if key in DURATIONS else ""


def _shown(key: str, value: object) -> str:
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if key in DURATIONS and isinstance(value, float):
        return format_duration(value)
    return f"`{value}`" if isinstance(value, str) else str(value)


def pages() -> dict[str, dict[str, str]]:
    """Return the regions of each page."""
    kinds = {f"{kind}-keys": kind_keys(kind) for kind in spec.TYPES}
    return {
        "reference.md": {
            "commands": commands(),
            "exit-statuses": exit_statuses(),
            "ledger-keys": ledger_keys(),
            "job-keys": job_keys(),
            "check-keys": check_keys(),
            "destination-keys": destination_keys(),
            "events": events(),
            "skip-reasons": skip_reasons(),
        },
        "how-to/destinations.md": {"dedupe-times": dedupe_times(), **kinds},
        "how-to/messages.md": {"message-states": message_states()},
        "delivery.md": {
            "message-moves": message_table("asked"),
            "message-answers": message_table("answer"),
        },
    }


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` say whether they are up to date; return the exit status."""
    assert set(TOP_KEYS) == {"ledger", "jobs", "destinations"}, "docs/reference.md has a section for each table"
    check = arguments == ["--check"]
    return max(write_or_check(ROOT / "docs" / page, regions, check=check) for page, regions in pages().items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
