"""Do the events tell of the runs as they stand in the table? Goes through all of both, side by side, in little memory.

Jobs go on meanwhile. So what does not fit is looked at once more by itself before it is called a fault.
"""

from __future__ import annotations

from itertools import groupby

from ranonce.doctor.finding import RESTORE, Check, few
from ranonce.errors import RanonceError
from ranonce.folding import TELL_OF_A_RUN, Story, disagreements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.doctor.finding import Finding
    from ranonce.lifecycle import Event, Run, RunKey
    from ranonce.stores.base import Store

    Place = tuple[str, int]

#: So many faults of one kind are told one by one; the others are counted.
SHOWN = 10
#: A run that changes each time it is looked at is at work, not damaged.
LOOKS = 5
#: Numbers of events are noted in pieces of so many bytes.
PIECE_BYTES = 64
IMPORT = "if an export was damaged, and a whole one can be had, import that"


def records(store: Store, *, restore: str = RESTORE, gaps: str | None = None) -> Iterator[Finding]:
    """Compare every run with its events, and look for events that are gone. `restore` says how what was there before
    is had again, `gaps` why numbers may be missing."""
    check = Check("events", "folded all events and compared them with the runs")
    numbers = Numbers(store.upkeep().pruned_seq(), store.identity().created_at)
    runs = faults = 0
    try:
        for place, those, stories in _side_by_side(store, numbers):
            runs += len(those)
            if any(_differ(those, stories)):
                for sentence in _looked_at_again(store, place):
                    faults += 1
                    if faults <= SHOWN:
                        yield check.of(place[0]).problem(sentence, restore)
    except RanonceError as error:
        yield check.problem(f"could not go on after {few(runs, 'run')}: {error.sentence}", restore)
        return
    if faults > SHOWN:
        yield check.problem(f"{few(faults - SHOWN, 'more fault')} like these", restore)
    pruned = store.upkeep().pruned_seq()  # asked again: somebody may have pruned meanwhile
    gone = [(first, last) for first, last in numbers.gone() if last > pruned]
    if gone and gaps is not None:
        count = sum(last - first + 1 for first, last in gone)
        yield check.note(f"{few(count, 'number')} between {gone[0][0]} and {gone[-1][1]} belong to no event: {gaps}")
    for first, last in gone[:SHOWN] if gaps is None else ():
        which = f"event {first} is" if first == last else f"events {first} to {last} are"
        if numbers.never_came(last):
            yield check.note(f"{which} not there: they did not come in with what was imported", IMPORT)
        else:
            yield check.problem(f"{which} gone, and nothing was pruned there", restore)
    if not faults and (not gone or gaps is not None):
        yield check.ok(f"{few(runs, 'run')} and {few(numbers.count, 'event')} tell the same")


class Numbers:
    """Which numbers of events were seen, beyond those that may have been pruned: one bit for each, in pieces, since a
    number may be any in a file that was changed by hand."""

    def __init__(self, after: int, born: float = 0.0) -> None:
        self.after = after
        self.born = born  # what happened before was brought from another ledger, under the numbers it had there
        self.count = 0
        self._own = 1 << 63  # the first number of what happened in this ledger itself
        self._brought = 0  # the last number of what was brought
        self._pieces: dict[int, bytearray] = {}

    def see(self, seq: int, at: float = 0.0) -> None:
        """Note that an event with this number is there, of this instant."""
        self.count += 1
        if at >= self.born:
            self._own = min(self._own, seq)
        else:
            self._brought = max(self._brought, seq)
        place = seq - self.after - 1
        if place < 0:
            return
        number, bit = divmod(place, PIECE_BYTES * 8)
        piece = self._pieces.get(number)
        if piece is None:
            piece = self._pieces[number] = bytearray(PIECE_BYTES)
        piece[bit >> 3] |= 1 << (bit & 7)

    def never_came(self, last: int) -> bool:
        """Say whether numbers up to this one, which are missing, are of what was brought from another ledger."""
        return last < min(self._own, self._brought)

    def gone(self) -> Iterator[tuple[int, int]]:
        """Return (first, last) of the numbers that are missing among those that were seen."""
        due = self.after + 1
        for number in sorted(self._pieces):
            for at, bits in enumerate(self._pieces[number]):
                begins = self.after + 1 + (number * PIECE_BYTES + at) * 8
                if bits == 0xFF and begins == due:
                    due += 8
                    continue
                for seq in (begins + bit for bit in range(8) if bits >> bit & 1):
                    if seq > due:
                        yield due, seq - 1
                    due = seq + 1


def _side_by_side(store: Store, numbers: Numbers) -> Iterator[tuple[Place, dict[RunKey, Run], dict[RunKey, Story]]]:
    """Return for each start of a window of a job the runs that are recorded and the stories that the events tell."""
    upkeep = store.upkeep()
    runs = groupby(upkeep.all_runs(), key=lambda run: (run.key.job, run.window_start))
    events = groupby(upkeep.events_by_window(), key=lambda event: (event.key.job, event.window_start))
    # Both are begun before either ends, so that they see the ledger at one moment.
    run_group, event_group = next(runs, None), next(events, None)
    while run_group or event_group:
        place = min(group[0] for group in (run_group, event_group) if group)
        those: dict[RunKey, Run] = {}
        stories: dict[RunKey, Story] = {}
        if run_group and run_group[0] == place:
            those = {run.key: run for run in run_group[1]}
            run_group = next(runs, None)
        if event_group and event_group[0] == place:
            stories = _told(event_group[1], numbers)
            event_group = next(events, None)
        yield place, those, stories


def _told(events: Iterator[Event], numbers: Numbers | None = None) -> dict[RunKey, Story]:
    stories: dict[RunKey, Story] = {}
    for event in events:
        if numbers is not None and event.seq is not None:
            numbers.see(event.seq, event.at)
        if event.event in TELL_OF_A_RUN:
            story = stories.get(event.key)
            if story is None:
                story = stories[event.key] = Story()
            story.take(event)
    return stories


def _differ(runs: dict[RunKey, Run], stories: dict[RunKey, Story]) -> Iterator[str]:
    for key in dict.fromkeys((*runs, *stories)):
        for sentence in disagreements(runs.get(key), stories.get(key)):
            yield f"{key}: {sentence}"


def _looked_at_again(store: Store, place: Place) -> list[str]:
    """Return what is wrong with the runs of one window, unless that was only because they moved on meanwhile."""
    job, start = place
    found: list[str] = []
    for _ in range(LOOKS):
        before = store.job(job)
        runs = {run.key: run for run in store.runs(job, start, start + 1)}
        found = list(_differ(runs, _told(iter(store.events(job, start, start + 1)))))
        if not found or store.job(job) == before:
            break
    return found
