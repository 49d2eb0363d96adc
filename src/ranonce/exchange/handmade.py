"""Read the ledger that a script kept: one JSON object a line, `event` (start, done or fail), `window` and `ts`.

What such a ledger can tell: that an attempt began, that it ended well or failed. It knows no attempts by number, so
they are numbered here, in the order of the file; a start without a verdict is a crash, or still at work, and nobody
can know: the run is held until a person says. Two completions are two, so that a probe names the double.

The state of every window is one small number, whose meaning stands in `Automaton`: a million lines are told of
without holding what they said.
"""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime

from ranonce import jsontext as json
from ranonce.errors import UsageError
from ranonce.exchange.lines import Bad, Block, Line
from ranonce.exchange.lookup import Place
from ranonce.lifecycle import DONE, FAILED, HELD, Event, Run, RunKey
from ranonce.merging import Told, folded, state_of
from ranonce.record import Record
from ranonce.timefmt import format_instant, parse_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ranonce.exchange.lookup import Find

NAMES = ("event", "window", "ts")
#: What a line says, and how it is called here.
SAYS = {"start": "start", "done": DONE, "fail": FAILED, "failed": FAILED}
#: So many windows without a verdict are kept in mind while a file is read; then the oldest count as crashed.
MOST_OPEN = 20_000
#: The other fields of a line are kept as data, up to this length.
FIELDS_BYTES = 4096
OWNER = "imported"
TRIGGER = "import"


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
        columns = _columns(block, self.find, self.now)
        if columns is None:
            for row in _rows(block, self.find, self.now):
                if isinstance(row, Bad):
                    yield row
                else:
                    where = row.place.window.start if row.job is None else (row.job, row.place.window.start)
                    self.windows[where] = self.automaton.next(self.windows.get(where, 0), row.said)
            return
        windows, after, following = self.windows, self.automaton.after, self.automaton.next
        for said, place in zip(columns.said, columns.places, strict=True):
            start = place.window.start
            number = windows.get(start, 0)
            number_after = after[said][number]
            windows[start] = number_after if number_after >= 0 else following(number, said)


class Row(Record):
    """One line that says something. `job` is None where all lines are about the same one."""

    said: str
    job: str | None
    place: Place
    at: float
    fields: dict[str, Any]
    line: int


class _Columns(Record):
    """A block of lines that are built alike, and all of which say something."""

    said: list[str]
    places: list[Place]
    times: list[str]


def _columns(block: Block, find: Find, now: float) -> _Columns | None:
    """Return the columns of a block in which nothing is wrong; None where lines must be looked at one by one."""
    if find.job is None or (columns := block.columns(NAMES)) is None:
        return None
    said, windows, times = columns
    if not SAYS.keys() >= set(said) or not _plain_times(times) or max(times) > format_instant(now):
        return None
    places = [find.known(window) for window in windows]
    return _Columns(said, places, times) if None not in places else None  # type: ignore[arg-type]


def _plain_times(times: list[str]) -> bool:
    """Whether all are instants written `2026-11-07T02:30:00Z`."""
    text = "".join(times).encode()
    if text.translate(_DIGITS_TO_0) != b"0000-00-00T00:00:00Z" * len(times):
        return False
    pairs = [set(zip(text[at::20], text[at + 1 :: 20], strict=True)) for at in (11, 14, 17)]
    if not all(found <= allowed for found, allowed in zip(pairs, (_HOURS, _SIXTIETHS, _SIXTIETHS), strict=True)):
        return False
    try:
        return all(date.fromisoformat(day) for day in {time[:10] for time in times})
    except ValueError:
        return False


_DIGITS_TO_0 = bytes.maketrans(b"123456789", b"000000000")
_HOURS = {tuple(f"{hour:02}".encode()) for hour in range(24)}
_SIXTIETHS = {tuple(f"{part:02}".encode()) for part in range(60)}


def _rows(block: Block, find: Find, now: float) -> Iterator[Row | Bad]:
    """Look at a block line by line."""
    for line in block.lines():
        yield line if isinstance(line, Bad) else _row(line, find, now)


def _row(line: Line, find: Find, now: float) -> Row | Bad:
    said, window, time = (line.told.get(name) for name in NAMES)
    if not isinstance(said, str) or said not in SAYS:
        return line.bad(f"event is {shown(said)}, and start, done and fail are known")
    if not isinstance(window, str):
        return line.bad(f"window is {shown(window)}" if "window" in line.told else "it names no window")
    job = line.told.get("job")
    if job is not None and not isinstance(job, str):
        return line.bad(f"job is {shown(job)}")
    found = find(window, job)
    if isinstance(found, str):
        return line.bad(found)
    if not isinstance(time, str):
        return line.bad(f"ts is {shown(time)}" if "ts" in line.told else "it has no ts")
    try:
        at = parse_instant(time)
    except UsageError as error:
        return line.bad(error.sentence.rstrip("."))
    if at > now:
        return line.bad(f"its time {format_instant(at)} is ahead of the clock")
    name, place = found
    return Row(said, name if find.job is None else None, place, at, _others(line.told), line.number)


def _others(told: dict[str, Any]) -> dict[str, Any]:
    """Return the other fields of a line, as far as they are JSON and not too long."""
    others = {name: value for name, value in told.items() if name not in NAMES and name != "job"}
    if not others:
        return others
    try:
        text = json.dumps(others)
    except (ValueError, TypeError, RecursionError):
        return {"left out": "more than can be kept"}
    if len(text) > FIELDS_BYTES or "NaN" in text or "Infinity" in text:
        return {"left out": ", ".join(others)[:200]}
    return others


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
        columns = _columns(block, self.find, self.now)
        if columns is None:
            for row in _rows(block, self.find, self.now):
                if isinstance(row, Bad):
                    yield row
                else:
                    self._take(row.said, row.job, row.place, row.at, row.fields)
        else:
            for said, place, time in zip(columns.said, columns.places, columns.times, strict=True):
                self._take(said, None, place, datetime.fromisoformat(time).timestamp(), {})
        yield from self._ended()

    def _take(self, said: str, job: str | None, place: Place, at: float, fields: dict[str, Any]) -> None:
        where = place.window.start if job is None else (job, place.window.start)
        number = self._numbers.get(where, 0)
        before = self.automaton.states[number]
        number = self._numbers[where] = self.automaton.next(number, said)
        after = self.automaton.states[number]
        story = self._stories.get(where)
        if story is None:
            story = self._stories[where] = _Story(RunKey(job or self.find.job or "", place.window.key), place)
        story.state = after
        data = {"imported": "lines", **({"fields": fields} if fields else {})}
        said = SAYS[said]
        if said == "start" or not before.open:
            if before.open:
                story.add("expired", at, before.attempts, "no verdict", {"imported": "lines"})
            reason = "imported" if said == "start" else "imported: no start"
            story.add("start", at, after.attempts, reason, data if said == "start" else {"imported": "lines"})
        if said != "start":
            story.add(said, at, after.attempts, None, data)
        if said == FAILED and after.dones:
            story.done_before(at, after.attempts)

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
        self.add("released", at, attempt, "it was done before", {"imported": "lines", "as": "done", "by": "import"})

    def crash(self, unfinished: str) -> None:
        """The last attempt has no verdict, and none will come."""
        attempts, at = self.state.attempts, self.at
        self.add("expired", at, attempts, "no verdict", {"imported": "lines"})
        if self.state.dones:
            self.done_before(at, attempts)
        else:
            self.add(unfinished, at, attempts, "crashed", {"imported": "lines"})

    def told(self) -> Told:
        window = self.place.window
        events = tuple(self.events)
        bare = Run(self.key, window.start, window.end, "", 1, 1, OWNER, 0, self.place.schedule, TRIGGER, 0.0)
        return Told(state_of(folded(events), bare), events)
