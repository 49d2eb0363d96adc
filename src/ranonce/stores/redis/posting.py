"""Messages and steps as values in Redis, and how a plan writes them. Apart from the rest, since few runs have any.

A message's value is a list that begins with what a script compares: state, tries and sender; then when it is due and
when it was emitted, which may be the moment of the write. Its body stands apart. A step's value is a list; where it has
a result, a line feed and the result follow.
"""

from __future__ import annotations

import math

from ranonce import jsontext as json
from ranonce.lifecycle import Step
from ranonce.messages import DEAD, PENDING, SENDING, UNDELIVERED, UNSURE, WINDOW, scope_of
from ranonce.stores import values
from ranonce.stores.redis.keys import MOMENT, following, instant, key_of, number_of, place_of, read, start_of, text_of
from ranonce.stores.values import damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ranonce.lifecycle import Decision, Run, RunKey
    from ranonce.messages import Message, Move
    from ranonce.stores.redis.plan import Plan
    from ranonce.stores.redis.rows import Rows
    from ranonce.stores.redis.store import RedisStore

#: The index of its destination that a message stands in, by its state; in the others it stands in none.
INDEXES = {PENDING: "pending", SENDING: "sending", UNSURE: "aside", DEAD: "aside"}
#: Windows that are asked for in one round trip.
ASKED_AT_ONCE = 200
#: How many of a message's values come before its instants, in `values.message_values`.
_FIRST = 11


def leave(plan: Plan, decision: Decision) -> None:
    """Let a plan write the steps, messages and moves of a decision: none of it unless all is new, or as it was."""
    for step in decision.steps:
        write_step(plan, step)
    for message in decision.messages:
        post(plan, message)
    for move in decision.moves:
        touch(plan)
        plan.check("stands", move.was.key, _state(move.was))
        plan.write("shift", *told(plan, move))


# --- messages -------------------------------------------------------------------------------------------------------


def touch(plan: Plan, new: int = 0) -> None:
    """Let a plan know that it touches the outbox, and how many messages it adds."""
    plan.messages = (plan.messages or 0) + new


def post(plan: Plan, message: Message) -> None:
    """Let a plan add a message, and write nothing if there is one of its key."""
    touch(plan, 1)
    job, index = message.run.job, INDEXES.get(message.state)
    plan.check("lacks", plan.key("message_keys"), message.key)
    plan.write(
        "post",
        message.key,
        _state(message),
        _begun(message.due_at),
        _begun(message.created_at),
        _rest(message),
        b"" if message.body is None else b"=" + message.body,
        _index(plan, index, message.destination),
        _index(plan, "undelivered", job),
        _index(plan, "emitted", job),
        message.window_start,
        message.destination,
    )


def told(plan: Plan, move: Move) -> tuple[str | bytes | int, ...]:
    """Return a move as the script is told of it."""
    was, now = move.was, move.now
    left, entered = INDEXES.get(was.state), INDEXES.get(now.state)
    return (
        was.key,
        _state(was),
        f"{_state(now)}{_begun(now.due_at)},{_begun(now.created_at)}{_rest(now)}",
        _index(plan, left, was.destination),
        _index(plan, entered, was.destination),
        _begun(now.due_at),
        _index(plan, "undelivered", was.run.job),
        was.window_start,
    )


def _index(plan: Plan, what: str | None, of: str) -> int:
    """Return the number by which the script knows an index, 0 for none. That it is one is seen before anything is
    written."""
    if what is None:
        return 0
    known = len(plan.keys)
    number = plan.key(what, of)
    if number > known:
        plan.check("ranked", number)
    return number


def _state(message: Message) -> str:
    """Return what a message's value begins with: all that must be so for a move."""
    return f"{json.compact([message.state, message.tries, message.sender])[:-1]},"


def _begun(moment: float) -> str:
    """Return an instant as the millisecond it lies in: what is due now must not be due half a millisecond later."""
    return instant(moment if moment == MOMENT else math.floor(moment * 1000 + 0.001) / 1000)


def _rest(message: Message) -> str:
    rounded = message.replace(
        lease_until=round(message.lease_until, 6),
        taken_at=_rounded(message.taken_at),
        doubt_since=_rounded(message.doubt_since),
        settled_at=_rounded(message.settled_at),
    )
    first, (_, _, _, _, failures, _, *last) = _parted(values.message_values(rounded))
    return following(*first, failures, *last)


def _parted(listed: list[object]) -> tuple[list[object], list[object]]:
    return listed[:_FIRST], listed[_FIRST:]


def _rounded(moment: float | None) -> float | None:
    return None if moment is None else round(moment, 3)


def message_of(number: bytes, value: bytes | None, body: bytes | None = None) -> Message:
    """Return the message of a number."""
    listed = read(value)
    if len(listed) < 5 + _FIRST + 1:
        raise damaged(value)
    state, tries, sender, due_at, created_at, *rest = listed
    first, (failures, *last) = _parted(rest)
    told = [*first, created_at, due_at, state, tries, failures, sender, *last]
    return values.message_of(told, body, number_of(number))


# --- steps ----------------------------------------------------------------------------------------------------------


def write_step(plan: Plan, step: Step) -> None:
    """Let a plan write a step, and write nothing if there is one of its name."""
    job, place = step.run.job, step_place(step.run, step.window_start, step.generation, step.name)
    key, result = plan.key("results", job), b"" if step.result is None else b"\n" + step.result
    plan.check("lacks", key, place)
    plan.write("add", plan.key("steps", job), step.window_start, place)  # first: it may turn out to be no index
    plan.write("set", key, place, instant(step.at), following(step.attempt).encode() + result)


def step_place(key: RunKey, window_start: int, generation: int, name: str) -> str:
    """Return what names a step among those of its job."""
    return f"{place_of(key, window_start)}\0{generation}\0{name}"


def step_order(place: bytes) -> tuple[bytes, bytes, int, bytes]:
    """Return by what the steps of one window are in order: window, input, generation, name."""
    parts = place.split(b"\0", 4)
    if len(parts) != 5:
        raise damaged(place)
    return parts[1], parts[2], number_of(parts[3]), parts[4]


def _parts_of(job: str, place: bytes) -> tuple[RunKey, int, str]:
    """Return the run, the generation and the name of a step."""
    parts = place.split(b"\0", 4)
    if len(parts) != 5:
        raise damaged(place)
    return key_of(job, b"\0".join(parts[:3])), number_of(parts[3]), text_of(parts[4])


def step_of(job: str, place: bytes, value: bytes) -> Step:
    """Return the step at a place."""
    key, generation, name = _parts_of(job, place)
    head, line, result = value.partition(b"\n")
    try:
        at, attempt = read(head)
    except ValueError as error:
        raise damaged(head) from error
    told = [key.job, key.window, key.input, start_of(place), generation, name, attempt, at]
    return values.step_of(told, result if line else None)


def names_of(rows: Rows, key: RunKey, window_start: int, generation: int) -> list[str]:
    """Return the names of the steps of a run in a generation, in order."""
    start = step_place(key, window_start, generation, "").encode("utf-8", "surrogatepass")
    places = rows.members("steps", key.job, window_start, window_start + 1)
    return sorted(text_of(place[len(start) :]) for place in places if place.startswith(start))


def missing(rows: Rows, steps: Iterable[Step]) -> list[Step]:
    """Return those of steps that are not there, each once."""
    by_place: dict[tuple[str, str], Step] = {}
    for step in steps:
        place = step_place(step.run, step.window_start, step.generation, step.name)
        by_place.setdefault((step.run.job, place), step)
    found = []
    for job in dict.fromkeys(job for job, _ in by_place):
        places = [place for of, place in by_place if of == job]
        values = rows.values(rows.keys("results", job), places)
        found += [by_place[job, place] for place, value in zip(places, values, strict=True) if value is None]
    return found


# --- pruning --------------------------------------------------------------------------------------------------------


def prune_what_they_left(store: RedisStore, plan: Plan, job: str, runs: Sequence[Run]) -> None:
    """Let a plan remove the steps of runs that are pruned, and what nobody waits for of their messages.

    Those whose key is of the window go, since nobody can emit them again; the rest lose their bodies only.
    """
    going = {place_of(run.key, run.window_start).encode("utf-8", "surrogatepass") for run in runs}
    starts = sorted({run.window_start for run in runs})
    for place in _of_windows(store, "steps", job, starts):
        if b"\0".join(place.split(b"\0", 3)[:3]) in going:
            plan.write("del", plan.key("results", job), place)
            plan.write("rem", plan.key("steps", job), place)
    for message in store.outbox().read(_of_windows(store, "emitted", job, starts)):
        place = place_of(message.run, message.window_start).encode("utf-8", "surrogatepass")
        if place not in going or message.state in UNDELIVERED:
            continue
        number = str(message.seq)
        plan.write("del", plan.key("bodies"), number)
        if scope_of(message.key) == WINDOW:
            plan.write("del", plan.key("messages"), number)
            plan.write("del", plan.key("message_keys"), message.key)
            plan.write("rem", plan.key("numbers"), number)
            plan.write("rem", plan.key("emitted", job), number)


def _of_windows(store: RedisStore, what: str, job: str, starts: Sequence[int]) -> list[bytes]:
    """Return the members of an index of windows that begin at these starts."""
    key = store.keys(what, job)
    found: list[bytes] = []
    for first in range(0, len(starts), ASKED_AT_ONCE):
        part = starts[first : first + ASKED_AT_ONCE]
        for members in store.connection.ask(*(("ZRANGEBYSCORE", key, start, start) for start in part)):
            found += members
    return found
