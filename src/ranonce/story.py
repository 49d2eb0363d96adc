"""The story of one window: did it run, why or why not, and what its next trigger would find. Pure: no clock, no I/O."""

from __future__ import annotations

from ranonce import lifecycle
from ranonce.lifecycle import DONE, FAILED, HELD, STOPPED, attempts_left
from ranonce.messages import DEAD, PENDING, SENDING, UNSURE
from ranonce.record import Record
from ranonce.standing import EXPECTED, MISSING, PRUNED, how_it_ended, since, state_of, stuck, worked
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.lifecycle import Decision, Event, Run
    from ranonce.probe import Claimed, Moment
    from ranonce.stores.base import Tombstone
    from ranonce.windows import Window

YES, NO, UNKNOWN = "yes", "no", "unknown"
#: States of messages that are not delivered, as they are told.
IN_ORDER = (PENDING, SENDING, UNSURE, DEAD)

#: What a trigger would do, by the move that the rules would make.
NEXT = {
    lifecycle.START: "a trigger for this window would start it",
    lifecycle.RETRY: "a trigger for this window would start another attempt",
    lifecycle.RESUME: "a trigger for this window would resume it",
    lifecycle.TAKE_OVER: "a trigger for this window would take it over under a new attempt",
}


class Story(Record):
    """One run (or a window that never ran), and everything that happened to it.

    `answer` says whether it ran: yes, no or unknown. `why` and `next` are sentences. Instants are unix seconds.
    `messages` counts what it emitted, by state; `steps` are the pieces of it that are done in this generation.
    """

    job: str
    window: Window
    state: str
    answer: str
    why: str
    next: str
    run: Run | None = None
    input: str = ""
    events: tuple[Event, ...] = ()
    messages: Mapping[str, int] = {}
    steps: int = 0

    def with_effects(self, messages: Mapping[str, int], steps: int) -> Story:
        """Return the story with what became of its messages, and with what is done of a run that is not done.

        Whether it ran is about the run: a message that is not delivered makes no run undone.
        """
        why = self.why
        if steps and self.state not in (DONE, PRUNED):
            why += f"; {steps:,} {'step' if steps == 1 else 'steps'} done"
        left = {state: messages[state] for state in IN_ORDER if messages.get(state)}
        if left:
            total = sum(left.values())
            told = ", ".join(f"{count:,} {state}" for state, count in left.items())
            why += f"; {total:,} of its messages {'is' if total == 1 else 'are'} not delivered: {told}"
        return self.replace(why=why, messages=messages, steps=steps)


def of_run(
    run: Run, window: Window, events: tuple[Event, ...], claimed: Claimed | None, moment: Moment, max_attempts: int
) -> Story:
    """Tell of a run that is recorded. `claimed` is what is known of its holder, where it is running."""
    held = claimed.holder(moment) if claimed else None
    state = state_of(run, held is not None and held.alive)
    ended = how_it_ended(run)
    answer = NO
    if state == DONE:
        answer, why = YES, f"done at attempt {run.attempt}, {worked(run)}"
        if run.reason and run.reason.startswith("released as done"):
            why = f"{run.reason}, at {format_instant(since(run))}; no attempt of it said so"
        if run.late:
            why += "; its verdict came after its lease was over"
        if run.generation > 1:
            why += f"; it is generation {run.generation}, run again by request"
    elif state == FAILED:
        left = attempts_left(run, max_attempts)
        why = f"attempt {run.attempt} failed ({ended}), {worked(run)}; {left or 'no'} more allowed"
    elif state == STOPPED:
        resumes = f"resumes after {format_instant(run.resume_at)}" if run.resume_at else "no time to resume was given"
        why = f"attempt {run.attempt} was stopped ({ended}), {worked(run)}; {resumes}"
    elif state == HELD:
        why = f"held since attempt {run.attempt} ({ended}): its effects may have happened, and a person must say"
    elif held is not None and held.alive:
        answer = UNKNOWN
        why = f"attempt {run.attempt} is at work {worked(run)}; {held.why}"
        if stuck(run, moment.now):
            why += "; that is longer than two of its windows"
    elif held is not None and claimed is not None and claimed.ended_as is not None:
        why = f"attempt {run.attempt} started at {format_instant(run.started_at)} and ended: {held.why}"
    else:
        lost = held.why if held else "nobody holds it"
        why = f"attempt {run.attempt} started at {format_instant(run.started_at)} and has no verdict: {lost};"
        why += " its effects may have happened"
    return Story(run.key.job, window, state, answer, why, "", run, run.key.input, events)


def of_window(
    job: str, window: Window, events: tuple[Event, ...], due_at: float, moment: Moment, expected: bool
) -> Story:
    """Tell of a window that has no run. `expected` is False where the job was not to run then."""
    refused = [event for event in events if event.event == "skipped"]
    tried = "no trigger arrived"
    if refused:
        reasons = ", ".join(sorted({event.reason or "no reason" for event in refused}))
        tried = f"{len(refused)} {'trigger was' if len(refused) == 1 else 'triggers were'} refused ({reasons})"
    if not expected:
        return Story(job, window, EXPECTED, UNKNOWN, "nothing was expected of the job then", "", events=events)
    if moment.now >= due_at:
        why = f"missing since {format_instant(due_at)}, and {tried}"
        return Story(job, window, MISSING, NO, why, "", events=events)
    told = f"; {tried}" if refused else ""
    why = f"it is not due before {format_instant(due_at)}{told}"
    return Story(job, window, EXPECTED, UNKNOWN, why, "", events=events)


def of_pruned(job: str, window: Window, events: tuple[Event, ...], stone: Tombstone) -> Story:
    """Tell of a window whose record was pruned: how it ended is all that is left of it."""
    ran, how = {"done": (YES, "it was done"), "failed": (NO, "it had failed for good")}.get(
        stone.ended, (UNKNOWN, "it was over (done, or failed for good)")
    )
    why = f"{how}, and its record was pruned at {format_instant(stone.pruned_at)}"
    return Story(job, window, PRUNED, ran, why, "", events=events)


def what_next(decision: Decision) -> str:
    """Say in a sentence what a trigger for the window would find now."""
    refusal = decision.refusal
    if refusal is None:
        return NEXT.get(decision.move, f"a trigger for this window would be accepted ({decision.move})")
    until = f" until {format_instant(refusal.until)}" if refusal.until is not None else ""
    return f"a trigger for this window would be refused ({refusal.reason}{until}): {refusal.sentence}"
