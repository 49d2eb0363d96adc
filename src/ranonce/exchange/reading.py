"""Read a ledger of any format that people have: which one it is, and what it tells, item by item.

The jobs it tells of have the schedule that the ledger knows, else the one that was given.
"""

from __future__ import annotations

import time

from ranonce.errors import ConfigError, UsageError
from ranonce.exchange.facts import JournalReader, ReceiptReader
from ranonce.exchange.handmade import Stories
from ranonce.exchange.lines import Bad, blocks
from ranonce.exchange.lookup import Find
from ranonce.exchange.native import Export
from ranonce.exchange.recognise import open_plain, recognise
from ranonce.exchange.tables import Tables
from ranonce.lifecycle import HELD, ScheduleVersion
from ranonce.record import Record
from ranonce.stores.base import Job
from ranonce.windows import Schedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Protocol

    from ranonce.exchange.lines import Block
    from ranonce.exchange.native import Item
    from ranonce.ledger import OpenLedger

    class Reader(Protocol):
        """Reads a file block by block."""

        def take(self, block: Block) -> Iterable[Item]:
            """Read a block."""

        def rest(self) -> Iterable[Item]:
            """Give out what is left at the end."""


LATE_AFTER, MAX_ATTEMPTS = 3600.0, 3  # of a job that nobody has declared


class Source(Record):
    """What is imported. `every` and `tz` are the schedule of its jobs, where the ledger does not know them.

    `format` None: it is recognised by its content. `now` is the instant after which nothing can have happened.
    `delivers_here`: the ledger that it is an export of delivers no more, and what waited there goes out from here.
    """

    path: str
    now: float
    job: str | None = None
    every: str | None = None
    tz: str = "UTC"
    format: str | None = None
    unfinished: str = HELD
    delivers_here: bool = False


class Jobs:
    """The schedules of the jobs that are told of: those the ledger has, else the one that was given.

    With `declare`, a job that the ledger does not know is declared when it is first met.
    """

    def __init__(self, ledger: OpenLedger, source: Source, *, declare: bool) -> None:
        self.ledger = ledger
        self.source = source
        self.declare = declare
        self._known: dict[str, tuple[ScheduleVersion, ...]] = {}

    def versions(self, job: str) -> tuple[ScheduleVersion, ...]:
        """Return the versions of a job's schedule. UsageError where nobody knows any."""
        found = self.known(job)
        if not found:
            raise UsageError(
                f"the ledger does not know the job {job!r}, so its windows are not known.",
                "Nothing was imported of it. Say its schedule: --every RULE [--tz ZONE].",
            )
        return found

    def known(self, job: str) -> tuple[ScheduleVersion, ...]:
        """Return the same, or nothing where nobody knows any."""
        if job not in self._known:
            self._known[job] = self._find(job)
        return self._known[job]

    def _find(self, job: str) -> tuple[ScheduleVersion, ...]:
        source, recorded = self.source, self.ledger.declared(job)
        if source.every is None:
            return recorded.versions if recorded else ()
        given = Schedule(source.every, source.tz, recorded.schedule.dialect if recorded else "debian")
        if recorded is not None and recorded.schedule != given:
            raise ConfigError(
                f"{job!r} is recorded as {recorded.schedule.every!r} in {recorded.schedule.tz}, not "
                f"{given.every!r} in {given.tz}.",
                "Nothing was imported. Leave --every away to import into the recorded schedule.",
            )
        if recorded is not None:
            return recorded.versions
        if self.declare:
            now = time.time()
            told = Job(job, 0, now, LATE_AFTER, MAX_ATTEMPTS)
            return self.ledger.declare(told, given, 0, now=now, change=False)[0].versions
        return (ScheduleVersion(1, given.every, given.tz, given.dialect, 0, None, source.now),)


class Reading:
    """A file that is being read. With `declare`, its jobs are declared where the ledger does not know them."""

    def __init__(self, ledger: OpenLedger, source: Source, *, declare: bool) -> None:
        self.source = source
        self.format = source.format or recognise(source.path)
        self.jobs = Jobs(ledger, source, declare=declare)
        self.tables = (
            Tables(source.path, self.find(), source.now, unfinished=source.unfinished)
            if self.format in ("runs", "receipts-table")
            else None
        )

    @property
    def unsent(self) -> int:
        """How many messages were never sent."""
        return self.tables.unsent if self.tables else 0

    def find(self) -> Find:
        """Return how the windows are found."""
        return Find(self.jobs.versions, self.source.now, job=self.source.job)

    def items(self) -> Iterator[Item]:
        """Yield what the file tells, and what could not be read of it."""
        if self.tables is not None:
            yield from self.tables.read("runs" if self.format == "runs" else "receipts")
            return
        reader = self._reader()
        for block in self.blocks():
            yield from (block,) if isinstance(block, Bad) else reader.take(block)
        yield from reader.rest()

    def blocks(self) -> Iterator[Block | Bad]:
        """Yield the file's lines, many at a time."""
        with open_plain(self.source.path) as file:
            yield from blocks(file)

    def _reader(self) -> Reader:
        source = self.source
        if self.format == "export":
            return Export(source.job)
        if self.format == "journal":
            find = Find(self.jobs.known, float("inf"))
            return JournalReader(find, unfinished=source.unfinished, only=source.job)
        if self.format == "receipts":
            return ReceiptReader(self.find(), source.now, unfinished=source.unfinished)
        return Stories(self.find(), source.now, unfinished=source.unfinished)
