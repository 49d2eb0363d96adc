"""`ranonce export`: write the ledger as JSON Lines."""

from __future__ import annotations

import os
import sys
import time

from ranonce.cli.joboptions import LEDGER_OPTIONS
from ranonce.cli.opening import open_ledger
from ranonce.cli.options import Command, Option
from ranonce.cli.probe import unknown_job
from ranonce.cli.span import moment, span_of
from ranonce.exchange.exporting import EARLIEST, Wanted, export, to_file
from ranonce.names import check_job_name, plain
from ranonce.receipts import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ranonce.cli.options import Parsed
    from ranonce.ledger import OpenLedger

COMMAND = Command(
    "export",
    ("[JOB…]",),
    "Write the ledger as JSON lines.",
    (
        Option(
            "output", "The file to write; it is private, and replaced when all is written.", "FILE", "path", short="o"
        ),
        Option("since", "Windows that start at this instant or later; for one job also a date.", "WHEN"),
        Option("until", "Windows that start before this instant.", "WHEN"),
        *LEDGER_OPTIONS,
    ),
    description="""Jobs with their schedules, gates, what was pruned, every run and every event with the output that was
    kept, the steps that are done and the messages with their bodies, as they are at one moment, while jobs go on. The
    last line counts the others, so that an export that was cut off is noticed. It holds no credentials; what commands
    printed or emitted may. `ranonce import` reads it.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Write the export to a file or to standard output."""
    names = list(dict.fromkeys(check_job_name(name) for name in parsed.arguments))
    _, ledger = open_ledger(parsed, environ, reading=True)
    for warning in ledger.warnings:
        say(f"ranonce: {plain(warning)}")
    known = [job.name for job in ledger.store.jobs()]
    for name in names:
        if name not in known:
            raise unknown_job(name, known)
    now = time.time()
    wanted = _wanted(parsed, ledger, names, now)

    def lines(write: Callable[[str], object]) -> dict[str, int]:
        return export(ledger.store, wanted, write, now=now)

    path = parsed.get("output")
    if path is None:
        lines(sys.stdout.write)
        return 0
    counts = to_file(os.path.abspath(path), lines)
    told = ", ".join(_count(counts, kind) for kind in ("run", "event", "step", "message"))
    say(f"ranonce: {plain(path)} is written: {told} of {_count(counts, 'job')}.")
    return 0


def _count(counts: Mapping[str, int], kind: str) -> str:
    return f"{counts.get(kind, 0):,} {kind}{'' if counts.get(kind, 0) == 1 else 's'}"


def _wanted(parsed: Parsed, ledger: OpenLedger, names: list[str], now: float) -> Wanted:
    declared = ledger.declared(names[0]) if len(names) == 1 else None
    versions = declared.versions if declared else ()
    since, until = parsed.get("since"), parsed.get("until")
    span = span_of(
        moment("since", since, versions, back_from=now) if since is not None else float(EARLIEST),
        moment("until", until, versions) if until is not None else float(-EARLIEST),
    )
    return Wanted(frozenset(names) if names else None, span.since, span.until)
