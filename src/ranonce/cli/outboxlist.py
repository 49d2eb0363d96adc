"""`ranonce outbox list`: a line for each message, and below what is to be done, once for all that are alike."""

from __future__ import annotations

from ranonce.cli.messagetext import last_words, own_key, since, standing_of
from ranonce.cli.report import instant, table
from ranonce.messages import DEAD, PENDING, SENDING, UNSURE, lease_over
from ranonce.names import plain
from ranonce.timefmt import format_instant
from ranonce.undelivered import is_payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ranonce.messages import Message, No, Standing
    from ranonce.stores.base import Clock
    from ranonce.undelivered import Destinations

HEAD = ("MESSAGE", "STATE", "DESTINATION", "JOB AND WINDOW", "KEY", "TAKEN", "FAILED", "SINCE", "NEXT", "LAST WORDS")

#: So many messages that stay as they are, are named.
NAMED = 10


def rows(
    messages: Sequence[Message],
    destinations: Destinations,
    clock: Clock,
    closed: Mapping[str, float],
    late: Callable[[Message], bool],
) -> list[str]:
    """Return the table. `closed` are the destinations that are closed, and until when."""
    return table(
        HEAD,
        [
            (
                str(message.seq),
                message.state + (" (late)" if late(message) else ""),
                message.destination,
                f"{message.run.job} {message.run.window}",
                own_key(message) or "-",
                str(message.tries),
                _failed(message, destinations),
                instant(since(message)),
                standing_of(message, clock, closed.get(message.destination)) or "-",
                last_words(message),
            )
            for message in messages
        ],
    )


def _failed(message: Message, destinations: Destinations) -> str:
    route = destinations.route(message.destination)
    return f"{message.failures}/{route.max_attempts}" if route is not None else str(message.failures)


def steps(
    messages: Sequence[Message],
    waiting: Sequence[Standing],
    destinations: Destinations,
    clock: Clock,
    environ: Mapping[str, str],
) -> Iterator[str]:
    """Say what is to be done about the messages that are listed, a line for all of a kind."""
    mine = {each.destination: [one for one in messages if one.destination == each.destination] for each in waiting}
    for state in (UNSURE, DEAD):
        for standing in waiting:
            words = [one.error or "" for one in mine[standing.destination] if one.state == state]
            if words:
                count = sum(tally.count for tally in standing.tallies if tally.state == state)
                name = standing.destination
                yield f"{name}: {count or len(words):,} {state} -> {_in_bulk(name, state, words)}"
    for standing in waiting:
        name = standing.destination
        if not mine[name]:
            continue
        wrong = list(_of_destination(name, destinations, environ))
        yield from wrong
        still = [one for one in mine[name] if one.state in (PENDING, SENDING)]
        yield from _of_waiting(name, still, standing, clock, sendable=not wrong)


def _in_bulk(name: str, state: str, words: Sequence[str]) -> str:
    if state == UNSURE:
        how = f"ranonce outbox resolve --destination {name} --state unsure --as sent|not-sent --reason TEXT"
        return f"see what arrived, then for all of them: {how}"
    drop = f"ranonce outbox resolve --destination {name} --state dead --as dropped --reason TEXT"
    if all(map(is_payload, words)):
        return f"a payload stays as it is: {drop}; then mend the job"
    return f"mend what they say, then for all of them: ranonce outbox retry --destination {name}, or: {drop}"


def _of_waiting(
    name: str, mine: Sequence[Message], standing: Standing, clock: Clock, *, sendable: bool
) -> Iterator[str]:
    gone = sum(each.state == SENDING and lease_over(each, clock.domain, clock.now, clock.wall) for each in mine)
    if gone:
        yield f"{name}: {_have(gone)} no deliverer any more -> the next ranonce deliver decides what becomes of them"
    if standing.closed_until is not None and mine:
        why = f": {standing.closed_why}" if standing.closed_why else ""
        until = format_instant(standing.closed_until)
        yield plain(f"{name} is closed until {until}{why} -> ranonce outbox retry --destination {name}")
    elif sendable and any(each.state == PENDING and each.due_at <= clock.wall for each in mine):
        yield f"{name}: what is due now goes out with -> ranonce deliver"


def _have(count: int) -> str:
    return f"{count:,} that is being sent has" if count == 1 else f"{count:,} that are being sent have"


def _of_destination(name: str, destinations: Destinations, environ: Mapping[str, str]) -> Iterator[str]:
    if not destinations.declared(name):
        yield f"{name} is not declared here -> declare it: [destinations.{name}], or deliver where it is"
    elif (wrong := destinations.unusable(name, environ)) is not None:
        here = " from here" if wrong.elsewhere else ""
        yield plain(f"{name} cannot be sent to{here}: {wrong.sentence.rstrip('.')} -> {wrong.next_step}")


# --- what stays as it is --------------------------------------------------------------------------------------------


def left_as_they_are(left: Sequence[tuple[Message, No]], event: str, clock: Clock) -> Iterator[str]:
    """Say which messages stay as they are and what to do, once for all that are alike."""
    alike: dict[tuple[str, str], list[tuple[Message, No]]] = {}
    for message, answer in left:
        alike.setdefault((message.destination, message.state), []).append((message, answer))
    for (name, state), each in alike.items():
        message, answer = each[0]
        if state == SENDING:
            until = standing_of(message, clock, None)
            which = f"message {message.seq} is" if len(each) == 1 else f"{len(each):,} messages to {name} are"
            yield f"  {which} being sent at this moment ({until}). Wait for what becomes of {_it(each)}."
        elif len(each) == 1:
            yield f"  {f'{answer.sentence} {answer.next_step}'.strip()}"
        elif event == "retried" and state in (UNSURE, DEAD):
            how = f"ranonce outbox resolve --destination {name} --state {state} --as sent|not-sent --reason TEXT"
            which = f"{len(each):,} messages to {name} may have been received already, and could be received twice"
            yield f"  {which} -> look, then for all of them: {how}"
        else:
            numbers = ", ".join(str(one.seq) for one, _ in each[:NAMED]) + (" …" if len(each) > NAMED else "")
            yield f"  {len(each):,} messages to {name} are {state} and stay as they are: {numbers}"


def _it(each: Sequence[object]) -> str:
    return "it" if len(each) == 1 else "them"
