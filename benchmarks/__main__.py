"""Measure, and print one line a figure: ours, its limit, the ratio, the budget, and whether it is kept."""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median

from benchmarks import (
    claims,
    commands,
    contention,
    delivery,
    importing,
    passthrough,
    questions,
    server_questions,
    servers,
)
from benchmarks.measure import FULL, QUICK, Benchmark, Figure, Line, Sizes
from ranonce.filesystem import file_system_of

BENCHMARKS: dict[str, Benchmark] = {
    "claim": claims.claim_and_finish,
    "duplicate": claims.duplicate_check,
    "heartbeat": claims.heartbeat,
    "contention": contention.many_at_once,
    "process": commands.whole_process,
    "crowd": commands.many_on_one_key,
    "ledger-size": questions.ledger_size,
    "probe": questions.probe,
    "output": passthrough.output,
    "import": importing.hand_made,
    "postgres": servers.postgres,
    "valkey": servers.valkey,
    "server-process": servers.processes,
    "server-probe": server_questions.probe,
    "deliver-http": delivery.http,
    "deliver-nats": delivery.nats,
}


def main(arguments: list[str]) -> int:
    """Run the benchmarks that are named, or all; return 1 when a budget is missed, unless only a report is wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; all without")
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a minute instead of four")
    parser.add_argument("--report", action="store_true", help="exit 0 whatever is missed")
    parser.add_argument("--folder", help="where the databases are written; the disk of the temporary folder without")
    told = parser.parse_args(arguments)
    unknown = [name for name in told.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="ranonce-bench-", dir=told.folder) as folder:
        say(about(folder))
        say(f"\n{'':<66} {'ours':>18} {'limit':>18} {'ratio':>8}  budget")
        for line in measured(told.names or list(BENCHMARKS), QUICK if told.quick else FULL, folder):
            say(str(line))
            missed += isinstance(line, Figure) and not line.met
    say(f"\n{missed} missed" if missed else "\nall kept")
    return 1 if missed and not told.report else 0


def measured(names: list[str], sizes: Sizes, folder: str) -> Iterator[Line]:
    """Run benchmarks one after the other, each in a folder of its own that is gone after it."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as own:
            yield from BENCHMARKS[name](own, sizes)


def about(folder: str) -> str:
    """Return what the durations depend on: processors, versions, the disk and its mood."""
    place = file_system_of(folder)
    lines = [
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; Python {sys.version.split()[0]}, "
        f"SQLite {sqlite3.sqlite_version}; {place.kind}, fdatasync {_fdatasync(folder) * 1e6:,.0f} µs"
    ]
    if place.problem is not None:
        lines.append(f"{folder} is no place for a ledger ({place.problem}): name another disk with --folder.")
    return "\n".join(lines)


def _fdatasync(folder: str) -> float:
    """Return the median seconds of a sync after 4096 bytes were appended."""
    path = os.path.join(folder, "sync")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    found = []
    for _ in range(50):
        os.write(fd, bytes(4096))
        began = time.perf_counter()
        os.fdatasync(fd)
        found.append(time.perf_counter() - began)
    os.close(fd)
    os.unlink(path)
    return median(found)


def say(text: str) -> None:
    """Print a line now, also into a pipe: the next one may take a minute."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
