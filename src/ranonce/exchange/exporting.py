"""Write a ledger as JSON Lines: one consistent view, one line at a time, and at the end what must have come through.

Window after window, a run and then its events, so that each window's story is together and a reader needs to hold no
more than one. A line at the end counts the others: an export that was cut off is noticed by whoever reads it.
"""

from __future__ import annotations

import os
from collections import Counter

from ranonce import jsontext as json
from ranonce.errors import StoreUnavailable
from ranonce.exchange import effects, form
from ranonce.record import Record
from ranonce.stores.base import FIRST
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ranonce.lifecycle import Event, Run
    from ranonce.stores.base import Store

EARLIEST = FIRST.window_start


class Wanted(Record):
    """What of the ledger goes into an export: these jobs (None: all), windows that start in [since, until)."""

    jobs: frozenset[str] | None = None
    since: int = EARLIEST
    until: int = -EARLIEST

    @property
    def whole(self) -> bool:
        """Whether that is all of it."""
        return self == Wanted()

    def job(self, name: str) -> bool:
        """Whether a job is wanted."""
        return self.jobs is None or name in self.jobs

    def window(self, job: str, start: int) -> bool:
        """Whether a window is wanted."""
        return self.since <= start < self.until and self.job(job)


def export(store: Store, wanted: Wanted, write: Callable[[str], object], *, now: float) -> dict[str, int]:
    """Write an export line by line; return how many records of each kind it holds."""
    counts: Counter[str] = Counter()
    upkeep = store.upkeep()
    with upkeep.view():
        write(json.dumps(_header(store, wanted, now)) + "\n")
        for told in _records(store, wanted):
            counts[str(told["kind"])] += 1
            write(json.dumps(told) + "\n")
    write(json.dumps({"kind": "end", "counts": dict(counts)}) + "\n")
    return dict(counts)


def _header(store: Store, wanted: Wanted, now: float) -> dict[str, Any]:
    identity = store.identity()
    return {
        "ranonce": "export",
        "format": form.FORMAT,
        "ledger": identity.ledger,
        "epoch": identity.epoch,
        "created_at": format_instant(identity.created_at, precision="ms"),
        "exported_at": format_instant(now, precision="ms"),
        "pruned_seq": store.upkeep().pruned_seq(),
        "whole": wanted.whole,
    }


def _records(store: Store, wanted: Wanted) -> Iterator[dict[str, Any]]:
    jobs = [job for job in store.jobs() if wanted.job(job.name)]
    for job in jobs:
        yield form.job_form(job)
        yield from (form.schedule_form(job.name, version) for version in store.schedules(job.name))
    yield from (form.gate_form(gate) for gate in store.gates())
    for job in jobs:
        stones = store.tombstones(job.name, wanted.since, wanted.until)
        yield from (form.tombstone_form(stone) for stone in stones)
    upkeep = store.upkeep()
    yield from _stories(upkeep.all_runs(), upkeep.events_by_window(output=True), wanted)
    for step in upkeep.all_steps():
        if wanted.window(step.run.job, step.window_start):
            yield effects.step_form(step)
    for message in upkeep.all_messages():
        if wanted.window(message.run.job, message.window_start):
            yield effects.message_form(message)


def _stories(runs: Iterator[Run], events: Iterator[Event], wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Merge runs and events, both in the order of job and window: what happened follows the run it happened to."""
    runs = (run for run in runs if wanted.window(run.key.job, run.window_start))
    run = next(runs, None)
    for event in (event for event in events if wanted.window(event.key.job, event.window_start)):
        while run is not None and (run.key.job, run.window_start) <= (event.key.job, event.window_start):
            yield form.run_form(run)
            run = next(runs, None)
        yield form.event_form(event)
    if run is not None:
        yield from map(form.run_form, (run, *runs))


def to_file(path: str, lines: Callable[[Callable[[str], object]], dict[str, int]]) -> dict[str, int]:
    """Write to a private file, which gets its name once it is whole and on the disk. Raises StoreUnavailable.

    What is no file (a pipe, /dev/null) is written into and stays what it is; a link stays one, too.
    """
    path = os.path.realpath(path)
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "w", encoding="ascii") as file:
                return lines(file.write)
        return _to_new_file(path, lines)
    except OSError as error:
        raise StoreUnavailable(f"{path!r} could not be written: {error.strerror}.", "Nothing was exported.") from error


def _to_new_file(path: str, lines: Callable[[Callable[[str], object]], dict[str, int]]) -> dict[str, int]:
    # A name of chance: one that was killed in a container has left its own, and its number comes back there.
    building = f"{path}.{os.urandom(4).hex()}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(building, flags, 0o600), "w", encoding="ascii") as file:
        try:
            counts = lines(file.write)
            file.flush()
            os.fsync(file.fileno())
            os.rename(building, path)
        except BaseException:
            os.unlink(building)
            raise
    return counts
