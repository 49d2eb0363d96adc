"""Read the ledger that a script kept: one JSON object a line, `event` (start, done or fail), `window` and `ts`.

What such a ledger can tell: that an attempt began, that it ended well or failed. It knows no attempts by number, so
they are numbered here, in the order of the file; a start without a verdict is a crash, or still at work, and nobody
can know: the run is held until a person says. Two completions are two, so that a probe names the double.

The state of every window is one small number, whose meaning stands in `Automaton`: a million lines are told of
without holding what they said.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from ranonce.exchange.handmade_lines import SAYS, Part, in_parts, plain_columns, rows
from ranonce.exchange.lines import Bad, Block
from ranonce.exchange.lookup import Place
from ranonce.lifecycle import DONE, FAILED, HELD, Event, Run, RunKey
from ranonce.merging import Told, folded, state_of
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ranonce.exchange.lookup import Find

#: So many windows without a verdict are kept in mind while a file is read; then the oldest count as crashed.
MOST_OPEN = 20_000
OWNER = "imported"
TRIGGER = "import"
SOURCE: dict[str, Any] = {"imported": "lines"}  # of every event


class State(Record):
    """How far a window has come: attempts so far, completions, and whether the last attempt has a verdict."""

    attempts: int = 0
    dones: int = 0
    last: str = ""  # start, done, failed: what was said last

    @property
    def open(self) -> bool:
        """Whether an attempt is without its verdict."""
        return self.last == "start"

    def after(self, said: str) -> State:
        """Return the state after a line: a verdict without a start had a start that nobody wrote."""
        attempts = self.attempts + (1 if said == "start" or not self.open else 0)
        return State(attempts, self.dones + (said == DONE), said)


class Automaton:
    """States as small numbers, and where each line leads: `after[said][number]` is the number of the next."""

    def __init__(self) -> None:
        self.states = [State()]
        self._numbers = {State(): 0}
        self.after: dict[str, list[int]] = {said: [-1] for said in SAYS}

    def next(self, number: int, said: str) -> int:
        """Return the number of the state after a line."""
        row = self.after[said]
        if row[number] < 0:
            row[number] = self._number(self.states[number].after(SAYS[said]))
        return row[number]

    def _number(self, state: State) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self.states)
            self.states.append(state)
            for row in self.after.values():
                row.append(-1)
        return number


class Tally:
    """What a hand-made ledger says of how many windows: all that a rehearsal of its import needs."""

    def __init__(self, find: Find, now: float) -> None:
        self.find = find
        self.now = now
        self.automaton = Automaton()
        self.windows: dict[tuple[str, int] | int, int] = {}  # by their place: the number of their state
        self._newest = -(1 << 62)  # of the starts in it, where all are of one job

    def counts(self) -> dict[str, int]:
        """Return how many windows ended in which way."""
        found = {"windows": len(self.windows), "done": 0, "failed": 0, "unfinished": 0, "dupes": 0}
        for number, count in Counter(self.windows.values()).items():
            state = self.automaton.states[number]
            how = "done" if state.dones else "unfinished" if state.open else "failed"
            found[how] += count
            found["dupes"] += count if state.dones > 1 else 0
        return found

    def take(self, block: Block) -> Iterator[Bad]:
        """Count a block; yield what could not be read of it."""
        columns = plain_columns(block, self.now) if self.find.job is not None else None
        parts = in_parts(columns, self.find) if columns is not None else None
        if parts is not None:
            for part in parts:
                self._take_part(part)
            return
        for row in rows(block, self.find, self.now):
            if isinstance(row, Bad):
                yield row
            else:
                where = row.place.window.start if row.job is None else (row.job, row.place.window.start)
                self._newest = max(self._newest, row.place.window.start)
                self.windows[where] = self.automaton.next(self.windows.get(where, 0), row.said)

    def _take_part(self, part: Part) -> None:
        said, starts = part.said, part.starts
        if not part.in_pairs:
            self._one_by_one(said, starts)
        elif self._are_new(starts):
            begun = self.automaton.next(0, "start")
            ends = {each: self.automaton.next(begun, each) for each in SAYS}
            if said.count("done") == len(starts):
                self.windows.update(dict.fromkeys(starts, ends["done"]))
            else:
                self.windows.update(zip(starts, map(ends.__getitem__, said[1::2]), strict=True))
            self._newest = max(self._newest, starts[-1] if isinstance(starts, range) else max(starts))
        else:
            self._one_by_one(said, [start for start in starts for _ in range(2)])

    def _are_new(self, starts: Sequence[int]) -> bool:
        if isinstance(starts, range) and starts[0] > self._newest:
            return True
        new = set(starts)
        return len(new) == len(starts) and self.windows.keys().isdisjoint(new)

    def _one_by_one(self, said: list[str], starts: Sequence[int]) -> None:
        self._newest = max(self._newest, *starts)
        windows, following = self.windows, self.automaton.next
        known = windows.get
        for each, after, start in zip(said, map(self.automaton.after.__getitem__, said), starts, strict=True):
            number = known(start, 0)
            state = after[number]
            windows[start] = state if state >= 0 else following(number, each)


# --- as stories -----------------------------------------------------------------------------------------------------


class Stories:
    """The stories of a hand-made ledger, given out as soon as they have a verdict."""

    def __init__(self, find: Find, now: float, *, unfinished: str = HELD) -> None:
        self.find = find
        self.now = now
        self.unfinished = unfinished
        self.automaton = Automaton()
        self._numbers: dict[tuple[str, int] | int, int] = {}
        self._stories: dict[tuple[str, int] | int, _Story] = {}

    def take(self, block: Block) -> Iterator[Told | Bad]:
        """Read a block; yield what could not be read, and the stories that have come to a verdict by its end."""
        columns = plain_columns(block, self.now) if self.find.job is not None else None
        starts = self.find.lookup(self.find.job).all_starts(columns.windows) if columns and self.find.job else None
        if columns is None or starts is None:
            for row in rows(block, self.find, self.now):
                if isinstance(row, Bad):
                    yield row
                else:
                    self._take(row.said, row.job, row.place.window.start, row.place, row.at, row.fields)
        else:
            together = zip(columns.said, columns.windows, starts, columns.times, strict=True)
            for said, window, start, time in together:
                self._take(said, None, start, window, datetime.fromisoformat(time).timestamp(), {})
        yield from self._ended()

    def _take(
        self, said: str, job: str | None, start: int, window: Place | str, at: float, fields: dict[str, Any]
    ) -> None:
        """Go on by one line; `window` is the window's place, or its key where that is known to name one."""
        where = start if job is None else (job, start)
        number = self._numbers.get(where, 0)
        before = self.automaton.states[number]
        number = self._numbers[where] = self.automaton.next(number, said)
        after = self.automaton.states[number]
        story = self._stories.get(where)
        if story is None:
            place = window if isinstance(window, Place) else self._place(window)
            story = self._stories[where] = _Story(RunKey(job or self.find.job or "", place.window.key), place)
        story.state = after
        data = {**SOURCE, "fields": fields} if fields else SOURCE
        said = SAYS[said]
        if said == "start" or not before.open:
            if before.open:
                story.add("expired", at, before.attempts, "no verdict", SOURCE)
            reason = "imported" if said == "start" else "imported: no start"
            story.add("start", at, after.attempts, reason, data if said == "start" else SOURCE)
        if said != "start":
            story.add(said, at, after.attempts, None, data)
        if said == FAILED and after.dones:
            story.done_before(at, after.attempts)

    def _place(self, window: str) -> Place:
        assert self.find.job is not None
        place = self.find.lookup(self.find.job)(window)
        assert isinstance(place, Place)
        return place

    def _ended(self) -> Iterator[Told]:
        """Give out the stories with a verdict; the others wait for theirs, but not too many of them."""
        opened = [where for where, story in self._stories.items() if story.state.open]
        for where in opened[: max(0, len(opened) - MOST_OPEN)]:
            self._stories[where].crash(self.unfinished)
        waiting = {where: self._stories.pop(where) for where in opened[max(0, len(opened) - MOST_OPEN) :]}
        ended, self._stories = self._stories, waiting
        yield from (story.told() for story in ended.values())

    def rest(self) -> Iterator[Told]:
        """Give out what never came to a verdict, at the end of the file."""
        for story in self._stories.values():
            story.crash(self.unfinished)
            yield story.told()
        self._stories = {}


class _Story:
    """What a ledger has told of one window since its story was last given out."""

    __slots__ = ("at", "events", "key", "place", "state")

    def __init__(self, key: RunKey, place: Place) -> None:
        self.key = key
        self.place = place
        self.state = State()
        self.events: list[Event] = []
        self.at = 0.0

    def add(self, event: str, at: float, attempt: int, reason: str | None, data: dict[str, Any]) -> None:
        start = self.place.window.start
        self.at = at
        self.events.append(Event(at, self.key, start, event, attempt, 1, reason, OWNER, TRIGGER, data=data))

    def done_before(self, at: float, attempt: int) -> None:
        """The window was done: what came after it does not make it undone."""
        self.add("released", at, attempt, "it was done before", {**SOURCE, "as": "done", "by": "import"})

    def crash(self, unfinished: str) -> None:
        """The last attempt has no verdict, and none will come."""
        attempts, at = self.state.attempts, self.at
        self.add("expired", at, attempts, "no verdict", SOURCE)
        if self.state.dones:
            self.done_before(at, attempts)
        else:
            self.add(unfinished, at, attempts, "crashed", SOURCE)

    def told(self) -> Told:
        window = self.place.window
        events = tuple(self.events)
        bare = Run(self.key, window.start, window.end, "", 1, 1, OWNER, 0, self.place.schedule, TRIGGER, 0.0)
        return Told(state_of(folded(events), bare), events)
