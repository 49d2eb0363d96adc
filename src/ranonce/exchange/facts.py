"""Read facts that `ranonce` itself wrote: a host's journal, and receipts that were kept as JSON lines.

Both name attempts by number, so a story can be told in parts: what is known already is not added again. A journal
holds only what its host saw; where it says that a trigger was refused because the window was done, that is evidence,
too. Receipts know nothing of owners.
"""

from __future__ import annotations

from ranonce.errors import RanonceError, UsageError
from ranonce.exchange import form
from ranonce.exchange.effects import remembered
from ranonce.exchange.lines import Bad, Block
from ranonce.exchange.lookup import Place
from ranonce.folding import OUTCOMES
from ranonce.journal import EMITTED, SEEN_DONE, decode
from ranonce.lifecycle import DONE, HELD, Event, Run, RunKey
from ranonce.merging import NOBODY, Told, folded, identity, state_of
from ranonce.timefmt import DAY, INSTANTS_END, parse_instant, shown
from ranonce.windows import Schedule, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ranonce.exchange.lookup import Find
    from ranonce.messages import Message

#: So many windows without a verdict are kept in mind while a file is read; then the oldest count as crashed.
MOST_OPEN = 20_000
_LENGTHS = {4 + 1 + 2: 31 * DAY, 8: 7 * DAY, 10: DAY}  # of a month, a week, a day, by the length of its key


class Facts:
    """Stories from facts that name attempts by number, given out as soon as an attempt has its verdict."""

    def __init__(self, find: Find, *, source: str, unfinished: str = HELD, only: str | None = None) -> None:
        self.find = find
        self.source = source
        self.unfinished = unfinished
        self.only = only
        self._stories: dict[tuple[RunKey, int], list[Event]] = {}
        self._places: dict[tuple[RunKey, int], Place] = {}

    def add(self, event: Event, place: Place) -> None:
        """Go on by one fact. A verdict, or another start, on an attempt that nobody saw begin is given its start."""
        if self.only not in (None, event.key.job):
            return
        where = (event.key, place.window.start)
        story = self._stories.setdefault(where, [])
        self._places[where] = place
        if any(identity(one) == identity(event) for one in story):
            return  # told twice: a fact that was put back after a loss is noted once more, in its new epoch
        last = story[-1] if story else None
        begun = any(one.event == "start" and one.attempt == event.attempt for one in story)
        if event.event in OUTCOMES | {"expired"} and not begun and event.attempt:
            self._start(story, event)
        elif event.event == "start" and last is not None and last.event == "start":
            story.append(self._said(last, "expired", event.at, "no verdict"))
        story.append(event)

    def seen_done(self, event: Event, place: Place) -> None:
        """A trigger was refused since the window was done: by somebody, at some time before."""
        story = self._stories.get((event.key, place.window.start), [])
        if any(one.event in (DONE, "released") for one in story):
            return
        self.add(event.replace(event=DONE, reason=None, attempt=max(event.attempt, 1), owner=NOBODY), place)

    def _start(self, story: list[Event], event: Event) -> None:
        if story and story[-1].event == "start":
            story.append(self._said(story[-1], "expired", event.at, "no verdict"))
        began = event.data.get("started_at", event.at)
        story.append(self._said(event, "start", began, "imported: no start"))

    def _said(self, event: Event, says: str, at: float, reason: str) -> Event:
        return event.replace(event=says, at=at, reason=reason, data={"imported": self.source}, output=None)

    def ended(self) -> Iterator[Told]:
        """Give out the stories whose last attempt has a verdict; the others wait for theirs, but not too many."""
        waiting = [where for where, story in self._stories.items() if story[-1].event in ("start", "expired", "rerun")]
        keep = set(waiting[max(0, len(waiting) - MOST_OPEN) :])
        for where in [where for where in self._stories if where not in keep]:
            yield from self._told(where)

    def rest(self) -> Iterator[Told]:
        """Give out all that is left."""
        for where in list(self._stories):
            yield from self._told(where)

    def _told(self, where: tuple[RunKey, int]) -> Iterator[Told]:
        story, place = self._stories.pop(where), self._places.pop(where)
        last = story[-1]
        if last.event == "start":
            story.append(self._said(last, "expired", last.at, "no verdict"))
        if story[-1].event == "expired":
            story.append(self._said(story[-1], self.unfinished, last.at, "crashed"))
        events = tuple(event for event in story if event.event != "rerun" or event is not story[-1])
        told = folded(events)
        if told.status is None or told.started_at is None:
            return  # notes, and triggers that were refused: no run
        key, window = where[0], place.window
        bare = Run(key, window.start, window.end, "", 1, 1, NOBODY, 0, place.schedule, "", 0.0)
        yield Told(state_of(told, bare), events)


class JournalReader:
    """The journal of a host. Windows whose schedule nobody knows any more are placed by what the facts say."""

    def __init__(self, find: Find, *, unfinished: str = HELD, only: str | None = None) -> None:
        self.find = find
        self.facts = Facts(find, source="journal", unfinished=unfinished, only=only)
        self._generations: dict[tuple[str, str, str], int] = {}

    def take(self, block: Block) -> Iterator[Told | Bad | Message]:
        """Read a block."""
        offset = block.offset
        for number, line in enumerate(block.data.split(b"\n"), block.number):
            if line.strip():
                try:
                    fact = decode(line)
                    if fact is None:
                        raise UsageError("torn or changed: its length or its checksum is another")
                    if fact.get("event") == EMITTED:
                        yield from self._emitted(fact)
                    else:
                        self.fact(fact)
                except (RanonceError, ValueError, KeyError) as error:
                    why = error.sentence if isinstance(error, RanonceError) else f"it lacks {error}"
                    yield Bad(why.rstrip("."), number, offset)
            offset += len(line) + 1
        yield from self.facts.ended()

    def rest(self) -> Iterator[Told | Bad]:
        """Give out what is left at the end."""
        yield from self.facts.rest()

    def _emitted(self, fact: dict[str, Any]) -> list[Message]:
        """Return the messages whose keys are remembered, all of a line or none."""
        fields = form.Fields(fact)
        key = fields.key()
        if self.facts.only not in (None, key.job):
            return []
        return list(remembered(fields, self._place(key, fact).window.start))

    def fact(self, fact: dict[str, Any]) -> None:
        """Go on by one fact."""
        fields = form.Fields(fact)
        key, event = fields.key(), fields.text("event")
        if event not in form.EVENTS:
            raise UsageError(f"event is {shown(event)}")
        place = self._place(key, fact)
        told = Event(
            fields.instant("at"),
            key,
            place.window.start,
            event,
            fields.whole("attempt"),
            self._generation(key, event, fact),
            fields.text_or_none("reason"),
            fields.text("owner") or NOBODY,
            "import",
            data={"imported": "journal", **_messages(fields)},
        )
        if event == "skipped":
            if told.reason in SEEN_DONE:
                self.facts.seen_done(told, place)
        elif event == "released":
            self._released(told, fact, place)
        elif event not in ("noted", "lost"):
            self.facts.add(told, place)

    def _released(self, told: Event, fact: dict[str, Any], place: Place) -> None:
        """A person said what became of it. An old journal does not say what: then it is held until a person does."""
        as_ = fact.get("as")
        if as_ in ("done", "not-done"):
            self.facts.add(told.replace(event=HELD, reason="held until it was released"), place)
            self.facts.add(told.replace(data={**told.data, "as": as_}), place)
        else:
            self.facts.add(told.replace(event=HELD, reason=f"released: {told.reason}"), place)

    def _generation(self, key: RunKey, event: str, fact: dict[str, Any]) -> int:
        if "generation" in fact:
            return form.Fields(fact).whole("generation", 1)
        # An old journal: each rerun was one more.
        where = (key.job, key.window, key.input)
        if event == "rerun":
            self._generations[where] = self._generations.get(where, 1) + 1
        return self._generations.get(where, 1)

    def _place(self, key: RunKey, fact: dict[str, Any]) -> Place:
        start = int(parse_instant(fact["start"])) if "start" in fact else None
        if self.find.versions(key.job):
            place = self.find.lookup(key.job)(key.window)
            if isinstance(place, Place) and start in (None, place.window.start):
                return place
        window = placed(key.window, start)
        if window is None:
            raise UsageError(f"nobody knows any more when the window {shown(key.window)} of {key.job} began")
        return Place(window, 1)


def _messages(fields: form.Fields) -> dict[str, int]:
    """Return how many messages went out with an outcome, where a fact says so."""
    return {"messages": fields.whole("messages")} if "messages" in fields.told else {}


def placed(key: str, start: int | None) -> Window | None:
    """Return the window of a key whose schedule nobody knows, as far as the key tells; `start` where that is known."""
    for every in ("hour", "day", "week", "month"):
        try:
            window = Schedule(every).window(key)
        except UsageError:
            continue
        if start in (None, window.start):
            return window
    try:
        begins, length = int(parse_instant(key)), 60
    except UsageError:
        # In a named zone days and hours begin at another instant, which only the journal knows.
        if start is None:
            return None
        begins, length = start, _LENGTHS.get(len(key), 3600)
    if start not in (None, begins) or begins + length >= INSTANTS_END:
        return None
    return Window(key, begins, begins + length)


class ReceiptReader:
    """Receipts, as `ranonce run --receipt PATH` writes them."""

    def __init__(self, find: Find, now: float, *, unfinished: str = HELD) -> None:
        self.find = find
        self.now = now
        self.facts = Facts(find, source="receipts", unfinished=unfinished)

    def take(self, block: Block) -> Iterator[Told | Bad]:
        """Read a block."""
        for line in block.lines():
            if isinstance(line, Bad):
                yield line
                continue
            try:
                self._receipt(form.Fields(line.told))
            except UsageError as error:
                yield line.bad(error.sentence.rstrip("."))
        yield from self.facts.ended()

    def rest(self) -> Iterator[Told | Bad]:
        """Give out what is left at the end."""
        yield from self.facts.rest()

    def _receipt(self, fields: form.Fields) -> None:
        event = fields.text("event")
        if event in ("lost", "unavailable", "noted", "released"):
            return
        if event not in OUTCOMES | {"skipped"}:
            raise UsageError(f"event is {shown(event)}")
        if event == "skipped" and fields.told.get("reason") not in SEEN_DONE:
            return
        found = self.find(fields.text("window"), fields.text("job"))
        if isinstance(found, str):
            raise UsageError(found)
        job, place = found
        run = fields.text("run") if "run" in fields.told else ""
        _, _, digest = run.removeprefix(f"{job}:").partition(f"{place.window.key}:")
        key = RunKey(job, place.window.key, digest if len(digest) == 64 else "")
        told = Event(
            place.window.start,
            key,
            place.window.start,
            event,
            1,
            1,
            fields.text_or_none("reason") if event != "skipped" else None,
            NOBODY,
            "import",
            fields.text_or_none("version"),
            data={"imported": "receipts"},
        )
        if event == "skipped":
            self.facts.seen_done(told, place)
            return
        at = fields.instant("finished_at")
        if at > self.now:
            raise UsageError("its time is ahead of the clock")
        data: dict[str, Any] = {"imported": "receipts", "started_at": fields.instant("started_at")}
        if fields.told.get("child_exit") is not None:
            data["exit"] = fields.whole("child_exit")
        if event == "stopped" and fields.told.get("until") is not None:
            data["resume_at"] = fields.instant("until")
        # A verdict that could not be recorded was one all the same.
        reason = None if told.reason == "not-recorded" else told.reason
        numbers = {"attempt": fields.whole("attempt", 1), "generation": fields.whole("generation", 1)}
        self.facts.add(told.replace(at=at, reason=reason, data=data, **numbers), place)
