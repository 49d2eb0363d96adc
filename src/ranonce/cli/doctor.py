"""`ranonce doctor`: is this ledger, and this host, what the jobs rely on?"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.options import Command, Option
from ranonce.cli.report import write
from ranonce.doctor import Patient, examine
from ranonce.doctor.finding import LEVELS, PROBLEM, Finding
from ranonce.names import check_job_name, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from ranonce.cli.options import Parsed

EX_PROBLEMS = 1

COMMAND = Command(
    "doctor",
    ("[JOB…]",),
    "Find out whether the ledger, its disk, this host's clock and the schedules are what the jobs rely on.",
    (
        Option("deep", "Read all of it: every index, every event against the runs, every line of the journal."),
        Option("quiet", "Print problems only.", short="q"),
        Option("json", JSON.help.rstrip(".") + ", one object a line."),
        *LEDGER_OPTIONS,
    ),
    description="""Prints a line for each thing it looked at: how it is (ok, note, problem), what was tried, what was
    seen, and what to do. Exits 0 if there is no problem, else 1. It changes nothing, starts no job, and goes on where
    something is broken, so that everything is seen at once. With names it looks at the jobs named only, and at
    everything that is not about one job. Without --deep it takes seconds, however large the ledger is.

    Run it as the user who runs the jobs, and with their environment: it looks where they would.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Print what was found; 0 if nothing is wrong, else 1."""
    names = list(dict.fromkeys(check_job_name(name) for name in parsed.arguments))
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)  # what it made to try locks is removed on the way out
    patient = Patient(names, parsed.get("config"), parsed.get("store"), environ, parsed.flag("deep"))
    counted: Counter[str] = Counter()
    for finding in examine(patient):
        counted[finding.level] += 1
        if finding.level == PROBLEM or not parsed.flag("quiet"):
            _tell(finding, as_json=parsed.flag("json"))
    if not parsed.flag("json") and not parsed.flag("quiet"):
        write([" ".join(f"{_plural(level)}={counted[level]}" for level in reversed(LEVELS))])
    return EX_PROBLEMS if counted[PROBLEM] else 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _tell(finding: Finding, *, as_json: bool) -> None:
    """Print a finding at once: some checks take their time."""
    if as_json:
        sys.stdout.write(json.dumps({name: value for name, value in finding.as_dict().items() if value}) + "\n")
    else:
        write([plain(finding.line)])
    sys.stdout.flush()


def _plural(level: str) -> str:
    return level if level == "ok" else level + "s"
