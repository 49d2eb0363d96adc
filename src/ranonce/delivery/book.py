"""The book of one worker: what is answered and not written yet, and how the store is asked while it may be away.

What a destination has answered is kept here until it is written: a store that is away meanwhile, or whose reply is
lost, makes no message go out again. Settling is compare-and-write, so it may be repeated; a take whose reply was lost
is recognised by its sender, which is by chance and used once, and given back, since nothing of it was begun.
"""

from __future__ import annotations

from time import sleep

from ranonce import messages as rules
from ranonce.errors import NotThisLedger, StoreUnavailable
from ranonce.failpoints import failpoint
from ranonce.record import Record
from ranonce.stores.base import LostReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, KeysView, Sequence
    from typing import Any

    from ranonce.delivery.orders import Listener, Orders
    from ranonce.errors import RanonceError
    from ranonce.messages import Answer, Closing, Message, Move, Route, Take
    from ranonce.stores.base import Exchanged, Outbox

#: A store that was moved away, or another one in its place, may come back like one that is out of reach.
AWAY = (StoreUnavailable, NotThisLedger)
#: No answer waits longer than this to be written while others are still on their way.
SETTLE_SECONDS = 0.25
#: Pauses between two attempts at a store that is away, each spread by chance.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0


class _Outcome(Record):
    """An answer that is not written yet: of the message as it was taken, and the move it makes."""

    taken: Message
    answer: Answer
    move: Move


class Book:
    """Keeps answers until they are written. `wall` returns the store's real clock at a moment of ours."""

    def __init__(
        self,
        route: Route,
        outbox: Outbox,
        orders: Orders,
        listener: Listener,
        *,
        clock: Callable[[], float],
        wall: Callable[[float], float],
        chance: Callable[[], float],
    ) -> None:
        self._route = route
        self._outbox = outbox
        self._orders = orders
        self._listener = listener
        self._clock = clock
        self._wall = wall
        self._chance = chance
        self._unsettled: dict[str, _Outcome] = {}
        self._unsettled_since = 0.0
        self._closing: Closing | None = None
        self._lost: set[str] = set()  # senders of takes whose fate is not known
        self._away_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._ask_again_at = 0.0

    @property
    def open_keys(self) -> KeysView[str]:
        """The keys of messages whose answer is not written yet."""
        return self._unsettled.keys()

    def is_lost(self, message: Message) -> bool:
        """Say whether a message is of a take of ours whose reply was lost."""
        return message.sender in self._lost

    def rests(self, now: float) -> bool:
        """Say whether the store, which is away, is not to be asked yet."""
        return now < self._ask_again_at

    def note(self, message: Message, answer: Answer) -> bool:
        """Keep the answer to a message until it is written; say whether it closes the destination."""
        now = self._clock()
        wall = self._wall(now)
        move = rules.settle(message, message, answer, self._route, wall, self._chance())
        assert move is not None
        if not self._unsettled:
            self._unsettled_since = now
        self._unsettled[message.key] = _Outcome(message, answer, move)
        closing = rules.closing(answer, self._route, wall)
        if closing is None:
            return False
        if self._closing is None or closing.until is None or closing.until > (self._closing.until or 0.0):
            self._closing = closing
        return True

    def made_of(self, current: Message, taken: Message, answer: Answer) -> Move | None:
        """Return the move that an answer makes now."""
        return rules.settle(current, taken, answer, self._route, self._wall(self._clock()), self._chance())

    def settle_meanwhile(self, now: float, *, idle: bool) -> None:
        """Write what is answered while others are on their way; what the store does not take now is kept."""
        waited = now - self._unsettled_since
        if not self._unsettled or now < self._ask_again_at or not (idle or self._closing or waited > SETTLE_SECONDS):
            return
        try:
            self.exchange([], None, "")
        except AWAY as error:
            self.put_off(error)

    def settle_all(self) -> None:
        """Write everything that is answered."""
        while self._unsettled:
            self.enduring(lambda: self.exchange([], None, ""))

    def exchange(self, moves: Sequence[Move], take: Take | None, sender: str) -> Exchanged:
        """Write moves and what is answered, and take."""
        outcomes = list(self._unsettled.values())
        if outcomes:
            failpoint("deliver:before-settle")
        all_moves = [*(outcome.move for outcome in outcomes), *moves]
        try:
            exchanged = self._outbox.exchange(self._route.destination, all_moves, closing=self._closing, take=take)
        except LostReply:
            if take is not None:
                self._lost.add(sender)
            raise
        self._closing = None
        self.is_back()
        for outcome in outcomes:
            if outcome.taken.key in exchanged.moved:
                self._is_settled(outcome, outcome.move.now)
        self._settle_late([outcome for outcome in outcomes if outcome.taken.key in self._unsettled])
        if outcomes:
            failpoint("deliver:settled")
        return exchanged

    def _settle_late(self, outcomes: Sequence[_Outcome]) -> None:
        """See what has become of messages that are not as they were taken: what is told of them now is written with
        the next exchange, if it still says anything."""
        if not outcomes:
            return
        try:
            known = self._outbox.known([outcome.taken.key for outcome in outcomes])
        except AWAY as error:
            self.is_away(error)  # they are kept, and the next exchange comes here again
            return
        for outcome in outcomes:
            current = known.get(outcome.taken.key)
            move = self.made_of(current, outcome.taken, outcome.answer) if current else None
            if move is None:
                self._is_settled(outcome, current or outcome.taken)
            else:
                self._unsettled[outcome.taken.key] = outcome.replace(move=move)

    def _is_settled(self, outcome: _Outcome, now: Message) -> None:
        del self._unsettled[outcome.taken.key]
        self._listener.settled(now, outcome.answer)

    # --- a store that is away ---

    def enduring(self, ask: Callable[[], Any]) -> Any:
        """Ask the store until it answers, as long as that is worth something. Raises what `AWAY` holds."""
        while True:
            try:
                answer = ask()
            except AWAY as error:
                self.is_away(error)
                if not self._goes_on_waiting(error):
                    raise
                pause = self._next_pause()
                if self._orders.stopped:
                    sleep(min(pause, 0.5))
                else:
                    self._orders.sleep(pause)
            else:
                self.is_back()
                return answer

    def _goes_on_waiting(self, error: RanonceError) -> bool:
        assert self._away_since is not None
        away = self._clock() - self._away_since
        if self._orders.stopped:
            return bool(self._unsettled) and away < self._orders.leaving
        if self._orders.watch and isinstance(error, StoreUnavailable):
            return True
        return bool(self._unsettled or self._lost) and away < self._orders.outage

    def _next_pause(self) -> float:
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        return self._pause * (0.5 + self._chance() / 2)

    def put_off(self, error: RanonceError) -> None:
        """Note that the store is away, and ask it again after a pause."""
        self.is_away(error)
        self._ask_again_at = self._clock() + self._next_pause()

    def is_away(self, error: RanonceError) -> None:
        """Note that the store is away, and say so once."""
        if self._away_since is None:
            self._away_since = self._clock()
            waiting = f" Answers that wait here to be written: {len(self._unsettled)}." if self._unsettled else ""
            self._listener.trouble(self._route.destination, error.sentence, f"It is asked again.{waiting}")

    def is_back(self) -> None:
        """Note that the store has answered."""
        self._pause, self._away_since = FIRST_PAUSE_SECONDS, None

    def confess(self) -> None:
        """Say of each message what was answered and could not be written."""
        for outcome in self._unsettled.values():
            message, answer = outcome.taken, outcome.answer
            self._listener.trouble(
                message.destination,
                f"message {message.seq} ({message.key}) was answered as {answer.kind}, and that could not be written.",
                "It will be sent again under the same key."
                if self._route.dedupes
                else f"It will be unsure. Then say: ranonce outbox resolve {message.seq} --as sent|not-sent "
                "--reason TEXT",
            )
