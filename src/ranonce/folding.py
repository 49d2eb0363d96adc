"""Fold the events of a run into the state they tell of, and compare that with its row. Pure: no clock, no I/O.

`runs` holds the newest state of each run, written in the same transaction as its event. So the events alone must lead
to the same state; where they do not, a row or an event was changed, lost or damaged. The fold goes event by event in
order of their numbers, and keeps no more than the state, however long the story is.
"""

from __future__ import annotations

from ranonce.lifecycle import DONE, FAILED, HELD, RUNNING, STATES, STOPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.lifecycle import Event, Run

#: Events that settle an attempt.
OUTCOMES = frozenset({DONE, FAILED, STOPPED, HELD})
#: Events without which there can be no row; all others may also speak of a window that never ran.
TELL_OF_A_RUN = OUTCOMES | {"start", "expired", "rerun", "released"}
#: Row and event round the same instant to the millisecond, each in its own way.
ROUNDING_SECONDS = 0.002


class Story:
    """The state of one run as its events tell it. `fault` is the first thing in them that cannot have happened."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.generation = 1
        self.attempt = 0
        self.owner = ""
        self.failures = 0
        self.trigger = ""
        self.version: str | None = None
        self.started_at: float | None = None
        self.finished_at: float | None = None
        self.resume_at: float | None = None
        self.reason: str | None = None
        self.exit: int | None = None
        self.late = False
        self.granted = False
        self.fault: str | None = None
        self._crashed = False  # an `expired` whose consequence is yet to come
        self._again = False  # a `rerun` whose start is yet to come

    def take(self, event: Event) -> None:
        """Go on by one event, which must be the next one of this run."""
        kind = event.event
        if kind == "start":
            self._start(event)
        elif kind in OUTCOMES:
            self._outcome(event)
        elif kind == "expired":
            if self.status != RUNNING:
                self._cannot(event, "crashed while nothing of it ran")
            self._crashed = True
        elif kind == "rerun":
            self._again = True
        elif kind == "released":
            self._release(event)

    def _start(self, event: Event) -> None:
        if self.status == RUNNING and not self._crashed:
            self._cannot(event, f"began before attempt {self.attempt} had ended")
        # A host's journal tells only of the attempts that it saw: in what was put back from one, some are left out.
        parts = "imported" in event.data
        if event.attempt != self.attempt + 1 and not (parts and event.attempt > self.attempt):
            self._cannot(event, f"follows attempt {self.attempt}")
        generation = self.generation + 1 if self._again else self.generation
        if event.generation != generation and not (parts and event.generation > self.generation):
            self._cannot(event, f"is of generation {event.generation}, not {generation}")
        if self._again:
            self.failures = 0
        elif self._crashed:
            self.failures += 1
        self.status, self.generation, self.attempt = RUNNING, event.generation, event.attempt
        self.owner, self.trigger, self.version = event.owner, event.trigger, event.version
        self.started_at, self.finished_at, self.resume_at = event.at, None, None
        self.reason, self.exit, self.late, self.granted = None, None, False, False
        self._crashed = self._again = False

    def _outcome(self, event: Event) -> None:
        kind = event.event
        # Put back from a journal, a run that a person released is first held: what it was then may not be known.
        put_back = kind == HELD and "imported" in event.data
        if self.status != RUNNING and self.status != HELD and not put_back:
            self._cannot(event, f"was settled ({kind}) while it was {self.status or 'not begun'}")
        if event.attempt != self.attempt or event.owner != self.owner:
            self._cannot(event, f"was settled ({kind}), and attempt {self.attempt} had the run")
        # A failure after a look into a crash is that crash, which was counted when the look began.
        looked = event.reason == "crashed" and not self._crashed
        if self._crashed or (kind == FAILED and self.status == RUNNING and not looked):
            self.failures += 1
        self.status, self.finished_at = kind, event.at
        self.reason, self.exit = event.reason, event.data.get("exit")
        self.resume_at = event.data.get("resume_at")
        self.late = bool(event.data.get("late"))
        self._crashed = False

    def _release(self, event: Event) -> None:
        if self.status not in (FAILED, HELD) and not (self.status == RUNNING and self._crashed):
            self._cannot(event, f"was released while it was {self.status or 'not begun'}")
        as_ = event.data.get("as")
        self.status = DONE if as_ == "done" else FAILED
        self.granted = as_ == "not-done"
        self.reason, self.finished_at = f"released as {as_}: {event.reason}", event.at
        self._crashed = False

    def _cannot(self, event: Event, why: str) -> None:
        """Note the first thing that cannot have happened."""
        if self.fault is None:
            self.fault = f"attempt {event.attempt} {why} (event {event.seq})"


#: What row and story must have in common, to the letter.
SAME = ("status", "generation", "attempt", "owner", "failures", "trigger", "version", "reason", "exit")
SAME_FLAGS = ("late", "granted")
SAME_INSTANTS = ("started_at", "finished_at", "resume_at")


def disagreements(run: Run | None, story: Story | None) -> Iterator[str]:
    """Say where a run's row and its events tell different things; nothing where they agree.

    A story that is impossible in itself is the first of them. `run` None: there is no row; `story` None: no events.
    """
    if story is None or story.status is None:
        if run is not None:
            yield f"its row says {run.status} at attempt {run.attempt}, and no event tells of it"
        return
    if run is None:
        yield f"its events tell of a run ({story.status} at attempt {story.attempt}), and it has no row"
        return
    if story.fault is not None:
        yield f"its events cannot all be there: {story.fault}"
    for field in SAME:
        written, told = getattr(run, field), getattr(story, field)
        if written != told:
            yield f"its row has {field} {written!r}, its events say {told!r}"
    for field in SAME_FLAGS:
        written, told = getattr(run, field), getattr(story, field)
        if written != told:
            yield f"its row says it is {'' if written else 'not '}{field}, its events the opposite"
    for field in SAME_INSTANTS:
        if not _same_instant(getattr(run, field), getattr(story, field)):
            yield f"its row has another {field} than its events"


def _same_instant(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= ROUNDING_SECONDS


assert OUTCOMES | {RUNNING} == STATES
