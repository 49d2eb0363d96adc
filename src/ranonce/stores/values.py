"""Records as plain lists of values, in the order of their fields: for stores that keep instants as numbers.

A list holds what JSON holds. What nobody could have written is damage.
"""

from __future__ import annotations

from ranonce.errors import NotThisLedger
from ranonce.lifecycle import STATES, Event, Gate, Held, Lease, Run, RunKey, ScheduleVersion, Step
from ranonce.stores.base import Job, Tombstone
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    from ranonce.messages import Message
    from ranonce.record import Record

    Kind = TypeVar("Kind", bound=Record)

#: More than anybody makes; a larger number is damage.
MOST_ATTEMPTS = 1 << 53
LOST = (
    "Nothing was run. Put the ledger back (restore it from a backup), or if it is lost, go on with what this host"
    " remembers: ranonce accept-loss --reason TEXT"
)


#: No number in a ledger is further from 0: an instant, a window, a count.
MOST = 1 << 53
#: The types that a field may have, by the words of its annotation. The others are records, or are looked at apart.
_TYPES = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "None": (type(None),)}
_checks: dict[type[Record], list[tuple[str, tuple[type, ...]]]] = {}


def _whole(record: Kind) -> Kind:
    """Return a record whose fields are what they are said to be. Raises TypeError for another."""
    kind, state = type(record), record.__dict__
    if kind not in _checks:
        told = {name: kind.__annotations__[name].split(" | ") for name in kind._fields}
        _checks[kind] = [
            (name, tuple(each for word in words for each in _TYPES[word]))
            for name, words in told.items()
            if all(word in _TYPES for word in words)
        ]
    for name, types in _checks[kind]:
        value = state[name]
        of = type(value)
        if of not in types or (of is not str and value is not None and not -MOST <= value <= MOST):
            raise TypeError(name)
    return record


def damaged(cell: object) -> NotThisLedger:
    """Return the error for a cell that nobody could have written."""
    return NotThisLedger(f"the ledger is damaged: it has {shown(cell)} where that cannot be.", LOST)


def run_values(run: Run) -> list[Any]:
    """Return a run as values: job, window and input first, then the fields in their order."""
    key, *rest = run.as_dict().values()
    return [key.job, key.window, key.input, *rest]


def run_of(values: Sequence[Any]) -> Run:
    """Return the run that values stand for."""
    try:
        job, window, digest, *rest = values
        run = _whole(Run(_whole(RunKey(job, window, digest)), *rest))
        whole = run.status in STATES and 0 < run.attempt < MOST_ATTEMPTS
    except (TypeError, ValueError) as error:
        raise damaged(values) from error
    if not whole:
        raise damaged((run.status, run.attempt))
    return run


def event_values(event: Event) -> list[Any]:
    """Return an event as values, without its output and its number: instant, job, window, input, then the fields."""
    at, key, *rest = event.as_dict().values()
    return [at, key.job, key.window, key.input, *rest[:-2]]


def event_of(values: Sequence[Any], seq: int, output: bytes | None = None) -> Event:
    """Return the event that values and a number stand for."""
    try:
        at, job, window, digest, *rest = values
        event = _whole(Event(*[at, _whole(RunKey(job, window, digest)), *rest, output, seq]))
    except (TypeError, ValueError) as error:
        raise damaged(values) from error
    if not isinstance(event.data, dict):
        raise damaged(event.data)
    return event


def held_values(held: Held) -> list[Any]:
    """Return a claim as values: window, input and start of the window, then the lease's fields."""
    return [held.key.window, held.key.input, held.window_start, *held.lease.as_dict().values()]


def held_of(job: str, values: Sequence[Any]) -> Held:
    """Return the claim on a run of a job that values stand for."""
    try:
        window, digest, start, *lease = values
        return _whole(Held(_whole(RunKey(job, window, digest)), start, _whole(Lease(*lease))))
    except (TypeError, ValueError) as error:
        raise damaged(values) from error


def message_values(message: Message) -> list[Any]:
    """Return a message as values, without its body and its number: its key, job, window and input, then the fields."""
    told = message.as_dict()
    run = told.pop("run")
    key = told.pop("key")
    del told["body"], told["seq"]
    return [key, run.job, run.window, run.input, *told.values()]


def message_of(values: Sequence[Any], body: bytes | None, seq: int | None) -> Message:
    """Return the message that values, a body and a number stand for."""
    from ranonce import messages

    try:
        key, job, window, digest, start, destination, content_type, body_digest, *rest = values
        run = _whole(RunKey(job, window, digest))
        message = messages.Message(*[key, run, start, destination, content_type, body_digest, body, *rest, seq])
        sound = _whole(message).state in messages.STATES
    except (TypeError, ValueError) as error:
        raise damaged(values) from error
    if not sound:
        raise damaged(message.state)
    return message


def step_values(step: Step) -> list[Any]:
    """Return a step as values, without its result: job, window and input first, then the fields in their order."""
    run, *rest = step.as_dict().values()
    return [run.job, run.window, run.input, *rest[:-1]]


def step_of(values: Sequence[Any], result: bytes | None) -> Step:
    """Return the step that values and a result stand for."""
    try:
        job, window, digest, *rest = values
        return _whole(Step(_whole(RunKey(job, window, digest)), *[*rest, result]))
    except (TypeError, ValueError) as error:
        raise damaged(values) from error


def gate_of(values: Sequence[Any]) -> Gate:
    """Return the gate that values stand for."""
    try:
        return _whole(Gate(*values))
    except TypeError as error:
        raise damaged(values) from error


def schedule_of(values: Sequence[Any]) -> ScheduleVersion:
    """Return the schedule version that values stand for."""
    try:
        return _whole(ScheduleVersion(*values))
    except TypeError as error:
        raise damaged(values) from error


def job_of(values: Sequence[Any]) -> Job:
    """Return the job that values stand for."""
    try:
        return _whole(Job(*values))
    except TypeError as error:
        raise damaged(values) from error


def tombstone_of(values: Sequence[Any]) -> Tombstone:
    """Return the tombstone that values stand for."""
    try:
        return _whole(Tombstone(*values))
    except TypeError as error:
        raise damaged(values) from error
