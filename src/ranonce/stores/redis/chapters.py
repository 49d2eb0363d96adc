"""Go through all of a ledger in Redis, window after window, while jobs go on.

Redis keeps no older state for whoever reads long. What one can have of one state is what one script reads: here whole
windows, as many at once as keep nobody waiting. Runs and events that are gone through together share what was read, so
a window's run and its events fit each other. What is more than a window (a schedule, what was pruned, an import) is
counted in the ledger's edition; a view that was begun under another one ends with StoreUnavailable.
"""

from __future__ import annotations

from ranonce.errors import StoreUnavailable
from ranonce.record import Record
from ranonce.stores.redis.keys import event_of, number_of, run_of
from ranonce.stores.redis.rows import named
from ranonce.stores.values import damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ranonce.lifecycle import Event, Run
    from ranonce.stores.redis.rows import Rows

#: Windows that are read at once; each event may bring 64 KiB of output.
WINDOWS = 200
WINDOWS_WITH_OUTPUT = 50
EARLIEST, LATEST = "-inf", "+inf"
_OF_A_JOB = ("order", "runs", "work", "besides")


class Chapter(Record):
    """Some windows of a job, whole: their runs, and their events in the order of window and number."""

    job: str
    runs: list[Run]
    events: list[Event]
    work: set[int]  # numbers in the index of starts and ends
    notable: list[bytes]  # what stands in the indexes of runs, if that was wanted
    waiting: list[bytes]


class Wanted(Record):
    """What is read of each window. `edition`: the ledger's edition that all of it must be of, or nothing."""

    runs: bool = True
    events: bool = True
    output: bool = False
    indexes: bool = False
    edition: str = ""


def chapters(rows: Rows, job: str, wanted: Wanted, since: str = EARLIEST, until: str = LATEST) -> Iterator[Chapter]:
    """Yield a job's windows that start in a span. Raises StoreUnavailable where the ledger has another edition."""
    keys = [rows.keys("ledger"), *(rows.keys(what, job) for what in _OF_A_JOB)]
    keys += [rows.keys("events"), rows.keys("output"), *(rows.keys(what, job) for what in ("notable", "waiting"))]
    flags = (int(wanted.runs), int(wanted.events), int(wanted.output), int(wanted.indexes))
    limit = WINDOWS_WITH_OUTPUT if wanted.output else WINDOWS
    while True:
        told = (rows.ledger, wanted.edition, since, until, limit, *flags)
        answer = rows.checked(rows.connection.ask_script(named("chapter"), keys, *told))
        if answer[0] == b"changed":
            raise changed(rows)
        yield _chapter(job, answer)
        if not answer[1]:
            return
        since = f"({answer[1].decode()}"


def changed(rows: Rows) -> StoreUnavailable:
    """Return the error for what is not of the edition that a view was begun under."""
    return StoreUnavailable(
        f"the ledger at {rows.connection.shown} was pruned, imported into or given another schedule meanwhile.",
        "What was read is not of one piece: do it again.",
    )


def _chapter(job: str, answer: list[Any]) -> Chapter:
    _, _, places, values, work, besides, told, outputs, notable, waiting = answer
    runs = [run_of(job, place, value) for place, value in zip(places, values, strict=True)]
    events = []
    for number, (seq, value) in enumerate(zip([*work, *besides], told, strict=True)):
        if value is None:
            raise damaged(seq)
        events.append(event_of(number_of(seq), value, outputs[number] if outputs else None))
    events.sort(key=lambda event: (event.window_start, event.seq or 0))
    return Chapter(job, runs, events, set(map(number_of, work)), notable, waiting)


class Pass:
    """One pass through all windows, which several may go through together: each sees the same chapters.

    A chapter is kept until the last of them has come by.
    """

    def __init__(self, read: Callable[[Wanted], Iterator[Chapter]], edition: str) -> None:
        self._read = read
        self._edition = edition
        self._wanted = Wanted(runs=False, events=False)
        self._begun: Iterator[Chapter] | None = None
        self._kept: list[Chapter] = []
        self._first = 0  # the number of the first chapter that is kept
        self._places: list[int] = []  # how far each has come

    @property
    def begun(self) -> bool:
        """Whether anything of it was read: nobody joins it any more."""
        return self._begun is not None

    def join(self, *, runs: bool = False, events: bool = False, output: bool = False) -> Iterator[Chapter]:
        """Return the chapters of it, with at least what is wanted in them."""
        known = self._wanted
        self._wanted = Wanted(known.runs or runs, known.events or events, known.output or output, edition=self._edition)
        self._places.append(0)
        return self._chapters(len(self._places) - 1)

    def _chapters(self, who: int) -> Iterator[Chapter]:
        if self._begun is None:
            self._begun = self._read(self._wanted)
        while (chapter := self._next(self._begun, who)) is not None:
            yield chapter

    def _next(self, source: Iterator[Chapter], who: int) -> Chapter | None:
        place = self._places[who]
        if place == self._first + len(self._kept):
            read = next(source, None)
            if read is None:
                return None
            self._kept.append(read)
        chapter = self._kept[place - self._first]
        self._places[who] += 1
        passed = min(self._places) - self._first
        del self._kept[:passed]
        self._first += passed
        return chapter


def through(rows: Rows, jobs: Sequence[str]) -> Callable[[Wanted], Iterator[Chapter]]:
    """Return what reads all windows of these jobs."""
    return lambda wanted: (chapter for job in jobs for chapter in chapters(rows, job, wanted))
