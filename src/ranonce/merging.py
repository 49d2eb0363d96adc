"""What an import may do to a run: add it, carry it further, or leave it as it is. Pure: no clock, no I/O.

Three rules, and all others follow from them. A finished window is never made claimable, nor is what is told of another
ledger ever more than evidence: so a run that is done here stays done, whatever is told. What is told twice changes
nothing the second time. And a run that somebody works on is left alone, unless it is the verdict on that very attempt.

The state that a run is carried to is folded from its events, those that are here and those that are told, so the two
never differ.
"""

from __future__ import annotations

from ranonce.folding import Story
from ranonce.lifecycle import DONE, RUNNING, Event, Run, RunKey
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

# What became of a run that was told.
ADDED, ADVANCED, SAME, KEPT, BUSY, PRUNED = "added", "advanced", "same", "kept", "busy", "pruned"

#: The owner of an attempt that nobody names.
NOBODY = "imported"
#: Events that change no state.
BESIDES = ("skipped", "lost", "noted")


class Told(Record):
    """What another ledger tells of one window: its run, if it had one, and the events of it that are to be kept.

    `run` is as it was after the last of them. Events of a part of a story are enough where the rest was told before.
    """

    run: Run | None
    events: tuple[Event, ...]

    @property
    def key(self) -> RunKey:
        """Which run this is about."""
        return self.run.key if self.run else self.events[0].key

    @property
    def window_start(self) -> int:
        """When its window starts."""
        return self.run.window_start if self.run else self.events[0].window_start


class Merged(Record):
    """What is to be written of a run that was told: its new row (None: as it is) and the events that come with it."""

    outcome: str
    run: Run | None = None
    events: tuple[Event, ...] = ()


def merge(told: Told, known: Run | None, known_events: Sequence[Event], *, live: bool, pruned: bool) -> Merged:
    """Decide on what is told of a window.

    `known` and `known_events` are what this ledger has of it; `live` says whether somebody works on it now, `pruned`
    whether it lies where finished windows were pruned.
    """
    run = told.run
    if run is None:
        return Merged(PRUNED) if pruned and known is None else _loose(told, known_events)
    if known is None:
        return Merged(PRUNED) if pruned else Merged(ADDED, run, told.events)
    if run == known or (known.status == DONE and _brought_before(told, known_events)):
        return _completed(told, known_events)
    if _did_it_too(told, known, known_events) and (twice := _continued(told, run, known, known_events)):
        return twice
    if not _further(run, known):
        return Merged(SAME if run.status == known.status == DONE else KEPT)
    if live and not _is_verdict(told, run, known):
        return Merged(BUSY)
    return _continued(told, run, known, known_events) or Merged(KEPT)


def _loose(told: Told, known_events: Sequence[Event]) -> Merged:
    """Facts about a window without a run: kept where they are new."""
    new = _new(told.events, known_events)
    return Merged(ADDED, events=new) if new else Merged(SAME)


def _completed(told: Told, known_events: Sequence[Event]) -> Merged:
    """The same state: only what happened besides, a note or a refused trigger, may be new."""
    new = tuple(event for event in _new(told.events, known_events) if event.event in BESIDES)
    return Merged(ADDED, events=new) if new else Merged(SAME)


def _further(run: Run, known: Run) -> bool:
    """Whether what is told has come further than what is known."""
    if known.status == DONE and run.status != DONE:
        return False
    return _rank(run) > _rank(known)


def _is_verdict(told: Told, run: Run, known: Run) -> bool:
    """Whether what is told is the verdict on the very attempt that is known to work. That it crashed is none: whoever
    wrote it down knew only that it had begun."""
    crashed = any(event.event == "expired" and event.attempt == known.attempt for event in told.events)
    return (run.owner, run.attempt) == (known.owner, known.attempt) and not crashed


def _rank(run: Run) -> tuple[int, bool, int, bool]:
    return run.generation, run.status == DONE, run.attempt, run.status != RUNNING


def _continued(told: Told, run: Run, known: Run, known_events: Sequence[Event]) -> Merged | None:
    """Carry the story on: by the rest of the same story, or else by one more attempt that did it."""
    broken = folded(known_events).fault  # a story that was damaged before can still be carried on
    for new in (_new(told.events, known_events), _as_next_attempt(told, known)):
        story = folded([*known_events, *new])
        if new and story.fault == broken and story.status == run.status:
            return Merged(ADVANCED, state_of(story, known), new)
    return None


def _new(events: Iterable[Event], known_events: Sequence[Event]) -> tuple[Event, ...]:
    known = {identity(event) for event in known_events}
    return tuple(event for event in events if identity(event) not in known)


def identity(event: Event) -> tuple[object, ...]:
    """Return what makes it the same fact wherever it is told: its number is each ledger's own."""
    return (event.key, round(event.at, 3), event.event, event.attempt, event.generation, event.owner, event.reason)


def _completion(told: Told) -> Event | None:
    """Return how the run that is told came to be done: a verdict, or a person's word where there was none."""
    if told.run is None or told.run.status != DONE:
        return None
    for event in reversed(told.events):
        if event.event == DONE:
            return event
    for event in reversed(told.events):
        if event.event == "released" and event.data.get("as") == "done":
            return event.replace(event=DONE, reason=f"released as done: {event.reason}")
    return None


def _as_next_attempt(told: Told, known: Run) -> tuple[Event, ...]:
    """Return the end of another story as the attempt after those that are known; nothing for one that was not done.

    The completion says which attempt it was there, so that it is known again when it is told again.
    """
    done = _completion(told)
    if done is None:
        return ()
    after = {"attempt": known.attempt + 1, "generation": known.generation, "seq": None}
    began = next((event for event in told.events if (event.event, event.attempt) == ("start", done.attempt)), done)
    start = began.replace(event="start", reason="imported", output=None, owner=done.owner, **after)
    crashed: tuple[Event, ...] = ()
    if known.status == RUNNING:
        crashed = (start.replace(event="expired", attempt=known.attempt, owner=known.owner),)
    return (*crashed, start, done.replace(data={**done.data, "told_as": _numbers(done)}, **after))


def _brought_before(told: Told, known_events: Sequence[Event]) -> bool:
    """Whether the completion that is told stands here already, under its own number or as an attempt after others."""
    done = _completion(told)
    return done is not None and any(
        event.event == DONE
        and (round(event.at, 3), event.owner) == (round(done.at, 3), done.owner)
        and _numbers(done) in (_numbers(event), event.data.get("told_as"))
        for event in known_events
    )


def _did_it_too(told: Told, known: Run, known_events: Sequence[Event]) -> bool:
    """Whether a host saw an attempt of its own complete what others have completed here: the window was done twice.

    Only a journal tells of that. An owner that nobody names may be the one who is known.
    """
    done = _completion(told)
    if known.status != DONE or done is None or done.event != DONE or done.data.get("imported") != "journal":
        return False
    owners = {event.owner for event in known_events if event.event == DONE and event.generation == known.generation}
    unlike = bool(owners) and not owners & {done.owner, NOBODY}
    return unlike and done.owner != NOBODY and done.generation == known.generation


def _numbers(event: Event) -> dict[str, int]:
    return {"attempt": event.attempt, "generation": event.generation}


def fitted(run: Run | None, events: Sequence[Event], bare: Run, source: str) -> Told:
    """Return a run whose row and events contradict each other as one story that can be.

    Done where one of them says so; else as its events tell it, unless the row has come further. Where the events cannot
    all be there, the state alone is told, as a start and a verdict. `bare` is the run without a state.
    """
    story = folded(events)
    told = _as_events_say(story, events, run or bare) if story.status is not None else None
    best = max((each for each in (told, run) if each is not None), key=lambda each: (each.status == DONE, _rank(each)))
    if best is told and story.fault is None and (run is None or run.attempt <= best.attempt):
        return Told(best, tuple(events))
    return _in_short(best.replace(attempt=max(best.attempt, run.attempt if run else 1)), events, source)


def _as_events_say(story: Story, events: Sequence[Event], run: Run) -> Run:
    """Return the run in the state that its events lead to, even where none of them tells how it began."""
    if story.started_at is not None:
        return state_of(story, run)
    verdict = next(event for event in reversed(events) if event.event not in BESIDES)
    story.started_at = run.started_at or verdict.at
    story.attempt, story.generation = max(verdict.attempt, 1), verdict.generation
    story.owner, story.trigger, story.version = (
        verdict.owner or run.owner or "imported",
        verdict.trigger,
        verdict.version,
    )
    return state_of(story, run)


def _in_short(run: Run, events: Sequence[Event], source: str) -> Told:
    """Tell a run's state with no more events than it takes, and what happened besides."""
    data: dict[str, Any] = {"imported": source}
    fields: dict[str, Any] = {"trigger": run.trigger, "version": run.version}
    numbers = (run.attempt, run.generation)
    start = Event(run.started_at, run.key, run.window_start, "start", *numbers, "imported", run.owner, data=data)
    start = start.replace(**fields)
    short = [event for event in events if event.event in BESIDES] + [start]
    if run.status != RUNNING:
        says = {"exit": run.exit, "resume_at": run.resume_at, "late": run.late or None}
        data = {**data, **{name: value for name, value in says.items() if value is not None}}
        at = run.started_at if run.finished_at is None else run.finished_at
        short.append(start.replace(at=at, event=run.status, reason=run.reason, data=data))
    return Told(state_of(folded(short), run), tuple(short))


def folded(events: Iterable[Event]) -> Story:
    """Return the state that events lead to."""
    story = Story()
    for event in events:
        story.take(event)
    return story


def state_of(story: Story, run: Run) -> Run:
    """Return the run in the state that its events tell of."""
    assert story.status is not None and story.started_at is not None
    return run.replace(
        status=story.status,
        generation=story.generation,
        attempt=story.attempt,
        owner=story.owner,
        failures=story.failures,
        trigger=story.trigger,
        version=story.version,
        started_at=story.started_at,
        finished_at=story.finished_at,
        resume_at=story.resume_at,
        reason=story.reason,
        exit=story.exit,
        late=story.late,
        granted=story.granted,
        reconciling=False,
    )
