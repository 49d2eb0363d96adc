"""Messages that are not delivered, for people: which there are, how many wait for whom, and what a person says of them.

The rules stand in `messages`. Here is what reads them from a store, worst first, and what writes a person's word: each
move is committed together with a note in the story of the window that the message comes from.
"""

from __future__ import annotations

from ranonce.delivery.spec import Unusable, read_spec, unusable
from ranonce.errors import ConfigError
from ranonce.messages import (
    DEAD,
    DROPPED,
    PENDING,
    SENDING,
    SENT,
    UNDELIVERED,
    UNFIT,
    UNSURE,
    Closing,
    Move,
    No,
    Route,
    Standing,
    lapsed,
    lease_over,
    resolve,
    retry,
)
from ranonce.stores.base import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ranonce.config import Config
    from ranonce.delivery.base import Spec
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import RunKey, Snapshot
    from ranonce.messages import Message, Queue
    from ranonce.stores.base import Outbox

    Answers = dict[str, Move | No]

#: Messages are read in pages of so many.
PAGE = 500
#: So many messages of one run are settled in one transaction.
AT_ONCE = 100
#: What a person makes of a message.
SENT_, NOT_SENT, DROPPED_ = "sent", "not-sent", "dropped"
RESOLUTIONS = (SENT_, NOT_SENT, DROPPED_)
#: States, the worst first; those that wait for somebody come first.
WORST_FIRST = ((UNSURE,), (DEAD,), (SENDING, PENDING), (SENT,), (DROPPED,))
VANISHED = "its deliverer vanished while it was sent"


# --- destinations ---------------------------------------------------------------------------------------------------


class Destinations:
    """The destinations of a configuration, each read when it is asked for. A mistake in one keeps no other from use."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._read: dict[str, Spec | ConfigError] = {}

    def declared(self, name: str) -> bool:
        """Say whether the configuration has a table of this name, readable or not."""
        return name in self.config.destinations

    def spec(self, name: str) -> Spec | ConfigError:
        """Return what a table says, or why it cannot be read. KeyError where there is none."""
        if name not in self._read:
            config = self.config

            def place(keys: tuple[str, ...]) -> object:
                return config.place(("destinations", name, *keys))

            try:
                self._read[name] = read_spec(name, config.destinations[name], place, config.folder)
            except ConfigError as error:
                self._read[name] = error
        return self._read[name]

    def route(self, name: str) -> Route | None:
        """Return how messages to a destination are handled; None where that is not known here."""
        spec = self.spec(name) if self.declared(name) else None
        return None if spec is None or isinstance(spec, ConfigError) else spec.route

    def unusable(self, name: str, environ: Mapping[str, str]) -> Unusable | None:
        """Say why nothing can be sent to a destination from here; None where it can, or nobody declares it."""
        if not self.declared(name):
            return None
        spec = self.spec(name)
        return Unusable.of(spec) if isinstance(spec, ConfigError) else unusable(spec, environ)

    def mistake(self, name: str) -> str | None:
        """Return what is wrong with a table, whoever reads it."""
        spec = self.spec(name) if self.declared(name) else None
        return spec.sentence if isinstance(spec, ConfigError) else None

    def late_after(self, name: str) -> float:
        """Return after how many seconds a message to a destination is late."""
        return (self.route(name) or Route(name)).late_after


# --- looking --------------------------------------------------------------------------------------------------------


def standings(outbox: Outbox, names: Sequence[str], destinations: Destinations, now: float) -> list[Standing]:
    """Return what waits at these destinations, as of `now` (unix seconds)."""
    return [_standing(outbox, name, destinations, now) for name in names]


def _standing(outbox: Outbox, name: str, destinations: Destinations, now: float) -> Standing:
    late_after = destinations.late_after(name)
    queue = outbox.queue(name, 0)
    shut = is_closed(queue)
    return Standing(
        name,
        tuple(outbox.tally(name, now - late_after)),
        late_after,
        queue.closed_until if shut else None,
        queue.closed_why if shut else None,
        destinations.mistake(name),
    )


def is_closed(queue: Queue) -> bool:
    """Say whether a destination is left alone now."""
    return queue.closed_until is not None and queue.closed_until > queue.wall


def counted(standings: Iterable[Standing], job: str | None = None) -> dict[str, int]:
    """Return how many messages wait, by state; of one job, if one is named."""
    counts: dict[str, int] = {}
    for standing in standings:
        for tally in standing.tallies:
            if job in (None, tally.job):
                counts[tally.state] = counts.get(tally.state, 0) + tally.count
    return counts


def worst_first(outbox: Outbox, wanted: Wanted, limit: int) -> list[Message]:
    """Return messages, the worst first, and of each kind the oldest first; no more than `limit`."""
    found: list[Message] = []
    for states in WORST_FIRST:
        asked = frozenset(states) if wanted.states is None else wanted.states & frozenset(states)
        if asked and len(found) < limit:
            found += outbox.messages(wanted.replace(states=asked), limit=limit - len(found))
    return found


def every(outbox: Outbox, wanted: Wanted) -> Iterator[Message]:
    """Go through all messages that are asked for, in the order of their numbers, without their bodies."""
    after = 0
    while page := outbox.messages(wanted, after=after, limit=PAGE):
        yield from page
        after = page[-1].seq or after


# --- what a person says ---------------------------------------------------------------------------------------------


def _as_seen(message: Message, snap: Snapshot) -> Message:
    """Return a message as a person may speak of it: one whose deliverer is dead is in doubt."""
    if message.state != SENDING or not lease_over(message, snap.domain, snap.now, snap.wall):
        return message
    return message.replace(state=UNSURE, sender="", error=VANISHED, doubt_since=message.doubt_since or message.taken_at)


def resolve_all(ledger: OpenLedger, messages: Sequence[Message], as_: str, reason: str, *, by: str) -> Answers:
    """Let a person say what became of messages (`RESOLUTIONS`); return what became of each, by its key.

    A message that is being sent is in doubt once its deliverer's lease is over; before that nobody can say.
    """
    said = f"{as_}, says {by}: {reason}"

    def decide(message: Message, snap: Snapshot) -> Move | No:
        answer = resolve(_as_seen(message, snap), as_, said, snap.wall)
        return answer if isinstance(answer, No) else Move(message, answer.now)

    return _settled(ledger, messages, decide, f"resolved as {as_}: {reason}", by)


def retry_all(ledger: OpenLedger, messages: Sequence[Message], destinations: Destinations, *, by: str) -> Answers:
    """Let messages be tried now; return what became of each, by its key.

    What may have been received is not: a person says first which it is. One whose deliverer is dead lapses first.
    """

    def decide(message: Message, snap: Snapshot) -> Move | No:
        route = destinations.route(message.destination)
        seen = message
        if message.state == SENDING and lease_over(message, snap.domain, snap.now, snap.wall):
            seen = lapsed(message, route or Route(message.destination), snap.wall, 0.0).now
        answer = retry(seen, route, snap.wall)
        return answer if isinstance(answer, No) else Move(message, answer.now)

    return _settled(ledger, messages, decide, "to be tried now", by)


def _settled(
    ledger: OpenLedger,
    messages: Sequence[Message],
    decide: Callable[[Message, Snapshot], Move | No],
    what: str,
    by: str,
) -> Answers:
    """Commit what is decided, run by run, each with a note in the story of the run's window."""
    places: dict[tuple[RunKey, int], list[str]] = {}
    for message in messages:
        places.setdefault((message.run, message.window_start), []).append(message.key)
    answers: Answers = {}
    for (key, start), keys in places.items():
        for at in range(0, len(keys), AT_ONCE):
            some = keys[at : at + AT_ONCE]
            answers |= ledger.settle_messages(key, start, some, decide, lambda moves: _told(moves, what), by=by)
    return answers


def _told(moves: Sequence[Move], what: str) -> str:
    """Return what stands in the story of a window."""
    numbers = [str(move.was.seq) for move in moves]
    which = f"message {numbers[0]}" if len(numbers) == 1 else f"messages {', '.join(numbers)}"
    return f"{which} to {', '.join(sorted({move.was.destination for move in moves}))} {what}"


def open_destination(outbox: Outbox, name: str, why: str) -> bool:
    """Open a destination that is closed; say whether it was."""
    if not is_closed(outbox.queue(name, 0)):
        return False
    outbox.exchange(name, closing=Closing(None, why))
    return True


def is_payload(words: str | None) -> bool:
    """Say whether a message was given up because nothing can be made of its payload: no retry mends that."""
    return (words or "").startswith(UNFIT)


def tally_of(answers: Mapping[str, Move | No]) -> int:
    """Return how many messages were changed."""
    return sum(isinstance(answer, Move) for answer in answers.values())


def undelivered(wanted: Wanted) -> Wanted:
    """Return the same question about what is not delivered only."""
    return wanted.replace(states=UNDELIVERED)
