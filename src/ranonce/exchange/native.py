"""Read an export of a ledger: its jobs, schedules, gates and pruned spans, and then window after window."""

from __future__ import annotations

from collections import Counter

from ranonce.errors import UsageError
from ranonce.exchange import effects, form
from ranonce.exchange.facts import placed
from ranonce.exchange.lines import Bad, Block
from ranonce.exchange.lookup import Lookup, Place
from ranonce.folding import disagreements
from ranonce.lifecycle import HELD, RUNNING, Event, Gate, Run, RunKey, ScheduleVersion
from ranonce.merging import Told, fitted, folded
from ranonce.record import Record
from ranonce.stores.base import Job, Tombstone
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    from ranonce.exchange.lines import Line
    from ranonce.lifecycle import Step
    from ranonce.messages import Message

    #: What a file tells, piece by piece.
    Item: TypeAlias = "Told | Bad | Tombstone | Gate | Declared | Head | Message | Step"


class Head(Record):
    """What an export says of itself: of which ledger it is, and when it was made (unix seconds)."""

    ledger: str
    exported_at: float
    pruned_seq: int
    whole: bool


class Declared(Record):
    """A job, and all versions of its schedule."""

    job: Job
    versions: tuple[ScheduleVersion, ...]


class Export:
    """An export while it is read. `counts` are its records so far, by kind."""

    def __init__(self, only: str | None = None) -> None:
        self.only = only
        self.counts: Counter[str] = Counter()
        self._head: Head | None = None
        self._job: Declared | None = None
        self._schedules: dict[str, tuple[ScheduleVersion, ...]] = {}
        self._runs: list[Run] = []
        self._events: list[Event] = []
        self._at: tuple[str, int] | None = None  # job and window that are being told of
        self._ended = False

    def take(self, block: Block) -> Iterator[Item]:
        """Read a block."""
        for line in block.lines():
            if isinstance(line, Bad):
                yield line
                continue
            try:
                yield from self._line(line)
            except UsageError as error:
                yield line.bad(error.sentence.rstrip("."))

    def _line(self, line: Line) -> Iterator[Item]:
        told, fields = line.told, form.Fields(line.told)
        kind = told.get("kind")
        if told.get("ranonce") == "export" and self._head is None:
            self._head = _head(fields)
            yield self._head
        elif self._head is None:
            raise UsageError("it comes before the first line of an export, which says what it is")
        elif kind in ("run", "event"):
            yield from self._declared()
            yield from self._window(kind, fields)
        else:
            yield from self._told()
            yield from self._apart(kind, line, fields)

    def _window(self, kind: str, fields: form.Fields) -> Iterator[Told | Bad]:
        one = form.run_of(fields) if kind == "run" else form.event_of(fields)
        if (one.key.job, one.window_start) != self._at:
            yield from self._told()
            self._at = (one.key.job, one.window_start)
        self.counts[kind] += 1
        if isinstance(one, Run):
            self._runs.append(one)
        else:
            self._events.append(one)

    def _apart(self, kind: object, line: Line, fields: form.Fields) -> Iterator[Item]:
        if kind == "job":
            yield from self._declared()
            self._job = Declared(form.job_of(fields), ())
        elif kind == "schedule":
            version = form.schedule_of(fields)
            if self._job is None or self._job.job.name != fields.told.get("job"):
                raise UsageError("it does not follow its job")
            self._job = self._job.replace(versions=(*self._job.versions, version))
        elif kind == "tombstone":
            yield from self._declared()
            stone = form.tombstone_of(fields)
            if self._wanted(stone.job):
                yield stone
        elif kind == "gate":
            yield from self._declared()
            yield form.gate_of(fields)
        elif kind in ("message", "step"):
            yield from self._declared()
            one = effects.message_of(fields) if kind == "message" else effects.step_of(fields)
            if self._wanted(one.run.job):
                yield one
        elif kind == "end":
            yield from self._declared()
            yield from self._end(line)
            return
        else:
            raise UsageError(f"kind is {shown(kind)}")
        self.counts[str(kind)] += 1

    def _end(self, line: Line) -> Iterator[Bad]:
        self._ended = True
        promised = line.told.get("counts")
        if promised != dict(self.counts):
            yield line.bad(f"the export says it holds {promised}, and {dict(self.counts)} could be read")

    def _declared(self) -> Iterator[Declared]:
        if self._job is not None and self._wanted(self._job.job.name):
            self._schedules[self._job.job.name] = self._job.versions
            yield self._job
        self._job = None

    def _told(self) -> Iterator[Told | Bad]:
        """Give out the window that was told of."""
        assert self._head is not None
        runs, events, self._runs, self._events = self._runs, self._events, [], []
        if self._at is None or not self._wanted(self._at[0]):
            return
        rows = {run.key: run for run in runs}
        for key in dict.fromkeys([*rows, *(event.key for event in events)]):
            own = tuple(event for event in events if event.key == key)
            yield from self._fitting(rows.get(key), own, self._head.exported_at)

    def _fitting(self, run: Run | None, events: tuple[Event, ...], exported_at: float) -> Iterator[Told | Bad]:
        """Give out a run, and say so where its row and its events contradict each other: a line of it was lost, or
        was edited. Nothing that contradicts itself comes into a ledger."""
        if not any(disagreements(run, folded(events))):
            yield settled(Told(run, events), exported_at)
            return
        key, start = (run.key, run.window_start) if run else (events[0].key, events[0].window_start)
        bare = run or self._bare(key, start)
        if bare is None:
            yield Bad("events tell of a run, its row is missing, and nobody knows when its window ends", place=str(key))
            return
        yield Bad("its row and its events tell different stories; what fits together came in", place=str(key))
        yield settled(fitted(run, events, bare, "export"), exported_at)

    def _bare(self, key: RunKey, start: int) -> Run | None:
        """Return a run without a state, whose row is missing; None where its window is not known."""
        place = Lookup(self._schedules[key.job], float("inf"))(key.window) if self._schedules.get(key.job) else None
        if isinstance(place, Place) and place.window.start == start:
            window, schedule = place.window, place.schedule
        elif (found := placed(key.window, start)) is not None:
            window, schedule = found, 1
        else:
            return None
        return Run(key, start, window.end, "", 1, 1, "", 0, schedule, "", 0.0)

    def _wanted(self, job: str) -> bool:
        return self.only in (None, job)

    def rest(self) -> Iterator[Told | Bad | Declared]:
        """Give out the last window, and say when the export has no end: then that window may lack some of its story."""
        if self._ended:
            yield from self._told()
        else:
            yield Bad("the export was cut off: its last line, which counts the others, is missing", place="the end")


def _head(fields: form.Fields) -> Head:
    version = fields.whole("format", 1)
    if version > form.FORMAT:
        raise UsageError(f"it is an export of format {version}, and this ranonce knows {form.FORMAT}")
    return Head(
        fields.text("ledger"), fields.instant("exported_at"), fields.whole("pruned_seq"), bool(fields.told.get("whole"))
    )


def settled(told: Told, exported_at: float) -> Told:
    """Hold a run that was at work when the export was made: what became of it, a person must say."""
    run = told.run
    if run is None or run.status != RUNNING:
        return told
    at = max(exported_at, run.started_at)
    fields: dict[str, Any] = {"attempt": run.attempt, "generation": run.generation, "owner": run.owner}
    fields |= {"trigger": run.trigger, "version": run.version, "data": {"imported": "export"}}
    expired = Event(at, run.key, run.window_start, "expired", reason="it was running when it was exported", **fields)
    held = expired.replace(event=HELD, reason="crashed")
    after = run.replace(status=HELD, failures=run.failures + 1, finished_at=at, reason="crashed", reconciling=False)
    return Told(after, (*told.events, expired, held))
