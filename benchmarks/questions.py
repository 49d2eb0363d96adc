"""`ranonce status`, `show` and `probe` in ledgers of years: whole processes, from their start to their end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

from benchmarks.claims import HOUR, HOURLY, LEDGER_ID
from benchmarks.installation import Installation, finished
from benchmarks.measure import MEGABYTES, MILLISECONDS, SECONDS, Line, Sizes, beside, in_turn, subfolder, within
from benchmarks.planted import job_name, plant
from ranonce.timefmt import DAY, format_instant

JOBS = 20
MOST_MEMORY = 200_000_000

BARE_READ = """
import sqlite3, sys
path, since = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
starts = {}
for (job,) in db.execute("SELECT job FROM jobs").fetchall():
    query = "SELECT window_start FROM runs WHERE job = ? AND window_start >= ?"
    starts[job] = db.execute(query, (job, since)).fetchall()
"""


class Asked:
    """A planted ledger, and questions to it."""

    def __init__(self, installed: Installation, name: str, *, jobs: int, runs: int, events_from: int = 0) -> None:
        self.path = os.path.join(subfolder(installed.folder, name), "ledger.db")
        plant(self.path, jobs=jobs, runs=runs, events_from=events_from)
        self._installed = installed
        self._environment = installed.environment(
            RANONCE_STORE=f"sqlite:///{self.path}", RANONCE_LEDGER=LEDGER_ID, XDG_STATE_HOME=f"{self.path}-state"
        )

    def ask(self, *arguments: str) -> float:
        """Return the seconds a command takes. Exit 1 is an answer: the probe has something to tell."""
        return finished([self._installed.ranonce, *arguments], self._environment, 0, 1).seconds

    def answer(self, *arguments: str) -> str:
        """Return what the same command prints; it must not complain."""
        command = [self._installed.ranonce, *arguments]
        told = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert told.stdout and not told.stderr, told
        return told.stdout

    def memory(self, *arguments: str) -> int:
        """Return the peak memory of a command in bytes."""
        return self._installed.peak_memory([self._installed.ranonce, *arguments], self._environment)


def ledger_size(folder: str, sizes: Sizes) -> Iterator[Line]:
    """The same questions about the same last 48 hours of the same jobs, in a small ledger and in a large one."""
    installed = Installation(folder)
    few = Asked(installed, "few", jobs=JOBS, runs=sizes.few_runs)
    many = Asked(installed, "many", jobs=JOBS, runs=sizes.many_runs)
    window = HOURLY.key(int(time.time()) // HOUR * HOUR - 20 * HOUR)
    for question in (("status",), ("show", job_name(7), window), ("probe", "--since", "48h")):

        def asked(ledger: Asked, question: tuple[str, ...] = question) -> float:
            return ledger.ask(*question)

        for ledger in (few, many):
            ledger.answer(*question)
        seconds = in_turn(sizes.questions, lambda: asked(many), lambda: asked(few))
        name = f"{question[0]} in {_short(sizes.many_runs)} runs, beside {_short(sizes.few_runs)}"
        yield beside(name, MILLISECONDS, *seconds, at_most=1.3)


def probe(folder: str, sizes: Sizes) -> Iterator[Line]:
    """A probe over 30 days of 1,000 hourly jobs, beside the bare read: a SELECT of all window starts of each job in the
    same span, by the same index, fetched at once, nothing done with them. Both are whole processes."""
    installed = Installation(folder)
    now = int(time.time())
    since = now // HOUR * HOUR - sizes.probed_days * DAY
    ledger = Asked(installed, "ledger", jobs=sizes.probed_jobs, runs=sizes.probed_runs, events_from=since)
    bare = [installed.python, "-c", BARE_READ, ledger.path, str(since)]
    question = ("probe", "--since", format_instant(since))

    def read() -> float:
        return finished(bare, installed.environment()).seconds

    ledger.answer(*question)
    read()
    seconds = in_turn(sizes.probes, lambda: ledger.ask(*question), read)
    what = f"probe of {sizes.probed_jobs:,} jobs × {sizes.probed_days} days in {_short(sizes.probed_runs)} runs"
    yield beside(f"{what}, beside the bare read", SECONDS, *seconds, at_most=3)
    yield within(f"{what}, memory", MEGABYTES, ledger.memory(*question), MOST_MEMORY)


def _short(runs: int) -> str:
    return f"{runs // 1_000_000} M" if runs >= 1_000_000 else f"{runs:,}"
