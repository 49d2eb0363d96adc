"""The outbox of a ledger in Redis: what deliverers and people ask about messages, and what they write."""

from __future__ import annotations

import math

from ranonce import jsontext as json
from ranonce.messages import PENDING, SENDING, UNDELIVERED, Queue, Tally, Waiting
from ranonce.stores.base import Exchanged, LostReply
from ranonce.stores.redis.keys import DOMAIN, number_of, read, text_of
from ranonce.stores.redis.plan import Plan
from ranonce.stores.redis.posting import message_of, told, touch
from ranonce.stores.redis.rows import named
from ranonce.stores.values import MOST, damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ranonce.messages import Closing, Message, Move, Take
    from ranonce.stores.base import Wanted
    from ranonce.stores.redis.store import RedisStore

#: The indexes of a destination.
OF_A_DESTINATION = ("pending", "sending", "aside")
#: Messages that are read at once, and how many where few are wanted.
PIECE = 1000
LEAST = 50
#: Messages that the server counts at once: a few hundredths of a second.
COUNTED = 5000


class RedisOutbox:
    """The messages of one open ledger."""

    def __init__(self, store: RedisStore) -> None:
        self._connection = store.connection
        self._keys = store.keys
        self._rows = store.rows
        self._store = store

    # --- deliverers ---

    def queue(self, destination: str, most: int, *, sending: bool = True) -> Queue:
        keys = self._keys
        touched = [keys("ledger"), keys("destinations"), *(keys(what, destination) for what in OF_A_DESTINATION[:2])]
        touched += [keys("messages"), keys("bodies")]
        asked = self._connection.ask_script(named("queue"), touched, self._rows.ledger, destination, most, int(sending))
        _, line, due, values, bodies, sent, of_sent, later, seconds, micros = self._rows.checked(asked)
        if None in bodies:
            raise damaged(due[bodies.index(None)])  # what waits to be sent has its body
        now = (int(seconds) * 1_000_000 + int(micros)) / 1_000_000
        return Queue(
            destination,
            *_line_of(line),
            tuple(map(message_of, due, values, bodies)),
            tuple(sorted(map(message_of, sent, of_sent), key=_number)),
            None if later is None else _score(later),
            DOMAIN,
            now,
            now,
        )

    def exchange(
        self, destination: str, moves: Sequence[Move] = (), *, closing: Closing | None = None, take: Take | None = None
    ) -> Exchanged:
        plan = Plan(self._keys)
        touch(plan)
        plan.check("line", destination)
        for place, move in enumerate(moves, 1):
            plan.write("settle", place, *told(plan, move))
        if closing is not None:
            until = "null" if closing.until is None else repr(float(closing.until))
            plan.write("close", until, json.compact(closing.why))
        if take is not None:
            plan.write("take", take.after, repr(float(take.next_at)), len(take.moves))
            for move in take.moves:
                plan.write(*told(plan, move))
        if plan.empty:
            return Exchanged(frozenset(), taken=False)
        answer = self._store.tell(plan)
        places = set() if answer is None else set(map(int, answer[3]))
        if answer is None or not places <= set(range(len(moves) + 1)):
            shown = self._connection.shown
            raise LostReply(f"the answer of {shown} is not about what was asked.", "Try again later.")
        return Exchanged(frozenset(moves[place - 1].was.key for place in places if place), taken=0 in places)

    # --- people ---

    def known(self, keys: Sequence[str]) -> dict[str, Message]:
        if not keys:
            return {}
        touched = [self._keys(what) for what in ("ledger", "message_keys", "messages")]
        found: dict[str, Message] = {}
        for first in range(0, len(keys), PIECE):
            part = keys[first : first + PIECE]
            answer = self._rows.checked(self._connection.ask_script(named("known"), touched, self._rows.ledger, *part))
            for key, number, value in zip(part, *answer[1:], strict=True):
                if number is not None:
                    found[key] = message_of(number, value)
        return found

    def message(self, name: int | str) -> Message | None:
        number = b"%d" % name if isinstance(name, int) else self._number(name)
        if number is None:
            return None
        value, body = self._connection.ask(*(("HGET", self._keys(what), number) for what in ("messages", "bodies")))
        return None if value is None else message_of(number, value, body)

    def _number(self, key: str) -> bytes | None:
        found: bytes | None = self._connection.ask(("HGET", self._keys("message_keys"), key))[0]
        return found

    def messages(self, wanted: Wanted, *, after: int = 0, limit: int = 100) -> list[Message]:
        found: list[Message] = []
        for numbers in self._pieces(wanted, after, min(max(limit, LEAST), PIECE)):
            found += [message for message in self.read(numbers) if wanted.includes(message)]
            if len(found) >= limit:
                break
        return found[:limit]

    def _pieces(self, wanted: Wanted, after: int, size: int) -> Iterator[list[bytes]]:
        """Yield the numbers of messages among which are all that are wanted, in order, through the smallest index."""
        waits = wanted.states is not None and wanted.states <= UNDELIVERED
        if wanted.job is not None:
            since, until = (
                ("-inf", "+inf") if wanted.window_start is None else (wanted.window_start, wanted.window_start + 1)
            )
            found = self._rows.members("undelivered" if waits else "emitted", wanted.job, since, until)
        elif waits:
            found = self._undelivered([wanted.destination] if wanted.destination else self.every_destination())
        else:
            yield from self.numbers(after, size)
            return
        numbers = sorted(number for number in _numbers(found) if number > after)
        for first in range(0, len(numbers), size):
            yield [b"%d" % number for number in numbers[first : first + size]]

    def numbers(self, after: int, limit: int = PIECE) -> Iterator[list[bytes]]:
        """Yield the numbers of all messages after one, in order, in pieces."""
        while True:
            since = f"({after}" if after else "-inf"
            words = ("ZRANGEBYSCORE", self._keys("numbers"), since, "+inf", "LIMIT", 0, limit)
            found: list[bytes] = self._connection.ask(words)[0]
            if not found:
                return
            if sorted(map(number_of, found)) != list(map(number_of, found)) or number_of(found[0]) <= after:
                raise damaged(found[0])  # it stands where another belongs
            yield found
            after = number_of(found[-1])

    def read(self, numbers: Sequence[bytes]) -> list[Message]:
        """Return the messages of numbers, without those that were pruned since the numbers were read."""
        found = self._rows.values(self._keys("messages"), numbers)
        for number in [number for number, value in zip(numbers, found, strict=True) if value is None]:
            if self._connection.ask(("ZSCORE", self._keys("numbers"), number))[0] is not None:
                raise damaged(number)
        return [message_of(number, value) for number, value in zip(numbers, found, strict=True) if value is not None]

    # --- what is not delivered ---

    def every_destination(self) -> list[str]:
        """Return all destinations that were ever written to."""
        return sorted(map(text_of, self._connection.ask(("HKEYS", self._keys("destinations")))[0]))

    def _undelivered(self, destinations: Iterable[str]) -> list[bytes]:
        """Return the numbers of what was not delivered at one moment."""
        touched = [self._keys(what, destination) for destination in destinations for what in OF_A_DESTINATION]
        asked = self._connection.ask_script(named("undelivered"), [self._keys("ledger"), *touched], self._rows.ledger)
        found: list[bytes] = self._rows.checked(asked)[1]
        return found

    def _waits(self, numbers: Sequence[bytes]) -> Iterator[Message]:
        """Yield those of messages that are still not delivered."""
        for first in range(0, len(numbers), PIECE):
            for message in self.read(numbers[first : first + PIECE]):
                if message.state in UNDELIVERED:
                    yield message

    def destinations(self) -> list[str]:
        found = self.every_destination()
        if not found:
            return []
        counts = self._connection.ask(
            *(("EXISTS", *(self._keys(what, each) for what in OF_A_DESTINATION)) for each in found)
        )
        return [destination for destination, count in zip(found, counts, strict=True) if count]

    def tally(self, destination: str, late_before: float) -> list[Tally]:
        kinds: dict[tuple[str, str, bool], tuple[int, float]] = {}
        for state, late, job, count, oldest in self._kinds(self._undelivered([destination]), late_before):
            if state in UNDELIVERED:
                kind = (job, state, late and state in (PENDING, SENDING))
                known, first = kinds.get(kind, (0, oldest))
                kinds[kind] = (known + count, min(first, oldest))
        return [
            Tally(job, destination, state, late, count, oldest)
            for (job, state, late), (count, oldest) in sorted(kinds.items())
        ]

    def _kinds(self, numbers: Sequence[bytes], before: float) -> Iterator[tuple[str, bool, str, int, float]]:
        """Yield how many messages there are of a kind, as the server counts them, and those that it cannot count."""
        keys = [self._keys("ledger"), self._keys("messages")]
        for first in range(0, len(numbers), COUNTED):
            part = numbers[first : first + COUNTED]
            asked = self._connection.ask_script(named("tally"), keys, self._rows.ledger, repr(float(before)), *part)
            _, counted, others = self._rows.checked(asked)
            for state, late, job, count, oldest in counted:
                yield text_of(state), bool(late), text_of(job), int(count), _score(oldest)
            for each in self.read(others):
                yield each.state, each.created_at < before, each.run.job, 1, each.created_at

    def waiting(self, job: str, since: int, until: int) -> list[Waiting]:
        kinds: dict[tuple[int, str, str], int] = {}
        for message in self._waits(self._rows.members("undelivered", job, since, until)):
            kind = (message.window_start, message.run.window, message.state)
            kinds[kind] = kinds.get(kind, 0) + 1
        return [Waiting(window, start, state, count) for (start, window, state), count in sorted(kinds.items())]


# --- what comes back ------------------------------------------------------------------------------------------------


def _line_of(value: bytes | None) -> tuple[int, float | None, str | None, float]:
    """Return what is known of a destination, in the order of a queue: version, until when it is closed and why, and
    when its rate lets the next one go."""
    if value is None:
        return 0, None, None, 0.0
    try:
        version, next_at, until, why = read(value)
    except ValueError as error:
        raise damaged(value) from error
    sound = type(version) is int and _is_instant(next_at) and (until is None or _is_instant(until))
    if not sound or not (why is None or isinstance(why, str)):
        raise damaged(value)
    return version, until, why, next_at


def _is_instant(told: object) -> bool:
    return type(told) in (int, float) and -MOST <= told <= MOST  # type: ignore[operator]


def _score(told: bytes) -> float:
    """Return the instant that a score is."""
    try:
        score = float(told)
    except ValueError as error:
        raise damaged(told) from error
    if not math.isfinite(score):
        raise damaged(told)
    return score


def _numbers(found: Sequence[bytes]) -> set[int]:
    try:
        return set(map(int, found))
    except ValueError:
        return set(map(number_of, found))  # which says what it is


def _number(message: Message) -> int:
    return message.seq or 0
