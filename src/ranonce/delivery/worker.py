"""One destination's worker: look, take, send, settle, until nothing is left that could go now.

What a destination has answered is kept here until it is written: a store that is away meanwhile, or whose reply is
lost, makes no message go out again. Settling is compare-and-write, so it may be repeated; a take whose reply was lost
is recognised by its sender, which is by chance and used once, and given back, since nothing of it was begun.
"""

from __future__ import annotations

import os
from random import random
from time import sleep

from ranonce import messages as rules
from ranonce.delivery.hold import Hold
from ranonce.delivery.witness import Witness
from ranonce.errors import NotThisLedger, StoreUnavailable
from ranonce.failpoints import failpoint
from ranonce.liveness import boot_clock
from ranonce.messages import DEAD, NOT_BEGUN, NOT_RECEIVED, PENDING, SENDING, UNKNOWN, UNSURE, Answer, Move
from ranonce.record import Record
from ranonce.stores.base import LostReply, Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ranonce.delivery.base import Sender
    from ranonce.delivery.orders import Listener, Orders
    from ranonce.errors import RanonceError
    from ranonce.messages import Closing, Message, Queue, Route, Take
    from ranonce.stores.base import Exchanged, Store

#: A store that was moved away, or another one in its place, may come back like one that is out of reach.
AWAY = (StoreUnavailable, NotThisLedger)
#: No answer waits longer than this to be written while others are still on their way.
SETTLE_SECONDS = 0.25
#: What vanished deliverers have left is looked for no more often, while messages are taken one lot after the other.
LEFT_SECONDS = 1.0
#: Pauses between two attempts at a store that is away, each spread by chance.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0
#: One that goes once waits for its turn, where the rate gives it one within this time.
TURN_SECONDS = 60.0
#: What is noted of messages where a ledger went back, and of how many at a time.
WENT_BACK = "the ledger went back behind what was taken from it"
DOUBTED_AT_ONCE = 500
#: While messages are being sent, another deliverer's word that they must wait is heard within this time.
HEAR_SECONDS = 1.0
#: One that watches keeps its connections for so long while nothing is due.
LINGER_SECONDS = 10.0
#: Two deliverers that wanted the same messages do not look again in the same moment.
RACE_SECONDS = 0.02


class _Outcome(Record):
    """An answer that is not written yet: of the message as it was taken, and the move it makes."""

    taken: Message
    answer: Answer
    move: Move


class _Look(Record):
    """What was seen of a queue last, and when that was by the boot clock: before it was asked for, and after."""

    queue: Queue
    asked_at: float
    told_at: float


class Worker:
    """Delivers to one destination, in one thread, with a store of its own. `name` says who it is, for people."""

    def __init__(
        self,
        route: Route,
        store: Store,
        open_sender: Callable[[], Sender],
        orders: Orders,
        listener: Listener,
        *,
        name: str = "",
        witness: Witness | None = None,
        clock: Callable[[], float] = boot_clock,
        chance: Callable[[], float] = random,
    ) -> None:
        self._route = route
        self._store = store
        self._outbox = store.outbox()
        self._open_sender = open_sender
        self._sender: Sender | None = None
        self._orders = orders
        self._listener = listener
        self._name = name
        self._witness = witness or Witness()
        self._forgetful = False  # nothing outlives this process, and that was said
        self._clock = clock
        self._chance = chance
        self._hold = Hold(route, clock, lambda: orders.stopped)
        self._unsettled: dict[str, _Outcome] = {}
        self._unsettled_since = 0.0
        self._closing: Closing | None = None
        self._lost: set[str] = set()  # senders of takes whose fate is not known
        self._tried: set[str] = set()
        self._begun: list[str] = []
        self._granted = 0  # how many may be begun, of those that were reserved
        self._there_is_more = False
        self._look: _Look | None = None
        self._looked_at = 0.0  # when what others have left was looked for
        self._away_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._ask_again_at = 0.0

    def run(self) -> None:
        """Deliver. Raises StoreUnavailable where the store was away for too long, NotThisLedger, or ConfigError."""
        idle_since = self._clock()
        try:
            while not self._orders.stopped:
                if self._go_once():
                    idle_since = self._clock()
                    continue
                rest = self._rest(self._clock() - idle_since)
                if rest is None:
                    break
                self._orders.sleep(rest)
            self._settle_all()
        except Exception:
            self._confess()
            raise
        finally:
            self._close_sender()

    # --- look, take, send ---

    def _go_once(self) -> bool:
        """Take what is due and send it; say whether there was anything to do."""
        reserved = self._granted = self._orders.reserve(self._route.batch)
        self._begun.clear()
        progress: bool
        try:
            progress, taken = self._enduring(lambda: self._take(reserved))
            if taken:
                self._send(taken)
            return progress
        finally:
            self._orders.give_back(self._granted - len(self._begun))

    def _rest(self, idle_for: float) -> float | None:
        """Return how long to sleep when nothing could go; None where it is over."""
        assert self._look is not None
        queue = self._fresh(self._look.queue)
        turn = queue.next_at - queue.wall if queue.due and not _is_shut(queue) else 0.0
        if self._orders.spent:
            return None
        if not self._orders.watch:
            return turn if 0.0 < turn <= TURN_SECONDS else None
        if idle_for > LINGER_SECONDS:
            return None
        return min(turn or self._orders.poll, self._orders.poll) * (0.5 + self._chance() / 2)

    def _take(self, most: int, *, brief: bool = False) -> tuple[bool, Sequence[Message]]:
        """Settle what is answered, and take what is due, in one exchange. Say whether anything was done, and return
        what was taken. One that is `brief` does not look for what others have left."""
        self._there_is_more = False
        asked_at = self._clock()
        remembered = self._witness.seen(self._route.destination)  # before the look: others here may take meanwhile
        queue = self._outbox.queue(self._route.destination, max(most, 1), sending=not brief)
        self._look = _Look(queue, asked_at, self._clock())
        if not brief:
            self._looked_at = asked_at
        if queue.version < remembered:
            self._doubt(queue)
            return True, ()
        self._remember(queue.version)
        moves = self._left_by_others(queue)
        sender = f"{self._name}:{os.urandom(8).hex()}"
        take = rules.take(self._fresh(queue), self._route, sender, most) if most and not self._orders.stopped else None
        if not (moves or take or self._unsettled):
            return False, ()
        if take is not None and self._sender is None:
            self._sender = self._open_sender()  # before anything is taken: it may not be possible here
        exchanged = self._exchange(moves, take, sender)
        for move in moves:
            if move.now.state in (UNSURE, DEAD) and move.now.key in exchanged.moved:
                self._listener.settled(move.now, None)
        if take is None:
            return True, ()
        if not exchanged.taken:
            self._orders.sleep(self._chance() * RACE_SECONDS)
            return True, ()
        self._remember(queue.version + 1)
        failpoint("deliver:taken")
        for move in take.moves:
            if move.now.state != SENDING:
                self._listener.settled(move.now, None)
        sending = [move.now for move in take.moves if move.now.state == SENDING]
        self._there_is_more = len(take.moves) == most
        self._hold.take(sending, asked_at)
        return True, sending

    def _doubt(self, queue: Queue) -> None:
        """Note of everything that waits that it may have been received: the ledger went back behind a take that was
        seen here, to an older copy that was restored, say. From then on its destination's dedupe time counts."""
        wanted = Wanted(destination=queue.destination, states=frozenset({PENDING, DEAD}))
        count, after = 0, 0
        while page := self._outbox.messages(wanted, after=after, limit=DOUBTED_AT_ONCE):
            moves = [
                Move(each, each.replace(doubt_since=each.created_at, error=WENT_BACK))
                for each in page
                if each.doubt_since is None
            ]
            count += len(self._outbox.exchange(queue.destination, moves).moved) if moves else 0
            after = page[-1].seq or 0
        self._witness.put(queue.destination, queue.version)
        self._listener.trouble(
            queue.destination,
            f"{WENT_BACK} (an older copy was restored). Messages that may have been sent already: {count}.",
            "They are sent again only where the destination dedupes.",
        )

    def _remember(self, version: int) -> None:
        """Let this host remember a take, before anything of it is sent."""
        problem = self._witness.note(self._route.destination, version)
        if problem and not self._forgetful:
            self._forgetful = True
            self._listener.trouble(
                self._route.destination,
                f"{problem}, so a restored ledger would not be noticed here.",
                "Make room for it, or mend the folder.",
            )

    def _left_by_others(self, queue: Queue) -> list[Move]:
        """Return what becomes of messages that a vanished deliverer has, or that a lost reply left under our name."""
        moves = []
        for message in queue.sending:
            if message.key in self._unsettled or self._hold.has(message):
                continue
            if message.sender in self._lost:
                given_back = self._made_of(message, message, Answer(NOT_BEGUN))
                moves += [given_back] if given_back else []
            elif rules.lease_over(message, queue.domain, queue.now, queue.wall):
                moves.append(rules.lapsed(message, self._route, queue.wall, self._chance()))
        return moves

    def _fresh(self, queue: Queue) -> Queue:
        """Return the queue without what this worker knows the answer of; one that goes once tries each only once."""
        passed = self._unsettled.keys() | self._tried
        return queue.replace(due=tuple(message for message in queue.due if message.key not in passed))

    def _send(self, taken: Sequence[Message]) -> None:
        """Send messages and note their answers, and meanwhile those that there is room for. Every one of them has an
        answer then."""
        renew_at = self._clock() + self._hold.renew_every
        problem = "it was not answered"
        assert self._sender is not None
        try:
            for said in self._sender.send(taken, self._may_begin):
                if said is not None:
                    self._answered(*said)
                now = self._clock()
                if now >= renew_at:
                    renew_at = now + self._renew()
                self._settle_meanwhile(now, idle=said is None)
                if self._there_is_more and self._hold.count <= self._route.batch // 2:
                    self._take_more(now)
                self._hear_of_closing(now)
                if said is None and self._hold.stuck():
                    problem = "no answer came, long after its time was over"
                    break
        except Exception as error:  # noqa: BLE001 - a mistake of ours in one kind of destination stops no other
            problem = f"sending went wrong here: {type(error).__name__}: {error}"
        for message in self._hold.held():
            # What was not begun counts as a try, too: a sender that forgets it would be asked for ever.
            self._answered(message, Answer(UNKNOWN if self._hold.has_begun(message) else NOT_RECEIVED, problem))
            self._close_sender()  # whatever it still does, it is not what we wait for

    def _take_more(self, now: float) -> None:
        """Take as many messages as were answered, while the others are still being sent: the connections are not idle
        while the store writes, and no more are held at a time than one take has."""
        add: Callable[[Sequence[Message]], None] | None = getattr(self._sender, "add", None)
        if add is None or not self._route.dedupes or self._hold.shut or now < self._ask_again_at:
            return
        if self._hold.is_overdue():
            return  # this comes to its end, or what is never answered would be held for ever
        granted = self._orders.reserve(self._route.batch - self._hold.count)
        taken: Sequence[Message] = ()
        try:
            _, taken = self._take(granted, brief=now < self._looked_at + LEFT_SECONDS)
        except AWAY as error:
            self._is_away(error)
            self._ask_again_at = self._clock() + self._next_pause()
        finally:
            self._orders.give_back(granted - len(taken))
            self._granted += len(taken)
        if taken:
            add(taken)

    def _hear_of_closing(self, now: float) -> None:
        """See whether another deliverer was told to leave the destination alone: what has not begun goes back then."""
        assert self._look is not None
        if self._hold.shut or now < self._look.told_at + HEAR_SECONDS or now < self._ask_again_at:
            return
        try:
            queue = self._outbox.queue(self._route.destination, 0, sending=False)
        except AWAY as error:
            self._is_away(error)
            self._ask_again_at = self._clock() + self._next_pause()
            return
        self._look = _Look(queue, now, self._clock())
        self._hold.shut = _is_shut(queue)

    def _may_begin(self, message: Message) -> bool:
        if not self._hold.may_begin(message):
            return False
        self._begun.append(message.key)
        return True

    def _answered(self, message: Message, answer: Answer) -> None:
        failpoint("deliver:sent")
        if self._hold.answered(message) and not self._orders.watch:
            self._tried.add(message.key)
        now = self._clock()
        wall = self._wall(now)
        move = rules.settle(message, message, answer, self._route, wall, self._chance())
        assert move is not None
        if not self._unsettled:
            self._unsettled_since = now
        self._unsettled[message.key] = _Outcome(message, answer, move)
        closing = rules.closing(answer, self._route, wall)
        if closing is not None:
            self._hold.shut = True
            if self._closing is None or closing.until is None or closing.until > (self._closing.until or 0.0):
                self._closing = closing

    def _made_of(self, current: Message, taken: Message, answer: Answer) -> Move | None:
        return rules.settle(current, taken, answer, self._route, self._wall(self._clock()), self._chance())

    def _wall(self, now: float) -> float:
        """Return the store's real clock, carried on since the last look by our own clock."""
        assert self._look is not None
        return self._look.queue.wall + now - self._look.told_at

    # --- renew and settle ---

    def _renew(self) -> float:
        """Keep what is held for another lease, as far as the store can be asked; return in how long to ask again."""
        held = self._hold.held()
        if not held:
            return self._hold.renew_every
        asked_at = self._clock()
        try:
            clock = self._store.clock()
            moves = [rules.renewed(message, clock.domain, clock.now) for message in held]
            moved = self._outbox.exchange(self._route.destination, moves).moved
        except AWAY as error:
            self._is_away(error)
            return self._hold.renew_every / 5
        self._is_back()
        self._hold.renewed([message for message in held if message.key in moved], asked_at)
        return self._hold.renew_every

    def _settle_meanwhile(self, now: float, *, idle: bool) -> None:
        """Write what is answered while others are on their way; what the store does not take now is kept."""
        waited = now - self._unsettled_since
        if not self._unsettled or now < self._ask_again_at or not (idle or self._closing or waited > SETTLE_SECONDS):
            return
        try:
            self._exchange([], None, "")
        except AWAY as error:
            self._is_away(error)
            self._ask_again_at = self._clock() + self._next_pause()

    def _settle_all(self) -> None:
        while self._unsettled:
            self._enduring(lambda: self._exchange([], None, ""))

    def _exchange(self, moves: Sequence[Move], take: Take | None, sender: str) -> Exchanged:
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
        self._is_back()
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
            self._is_away(error)  # they are kept, and the next exchange comes here again
            return
        for outcome in outcomes:
            current = known.get(outcome.taken.key)
            move = self._made_of(current, outcome.taken, outcome.answer) if current else None
            if move is None:
                self._is_settled(outcome, current or outcome.taken)
            else:
                self._unsettled[outcome.taken.key] = outcome.replace(move=move)

    def _is_settled(self, outcome: _Outcome, now: Message) -> None:
        del self._unsettled[outcome.taken.key]
        self._listener.settled(now, outcome.answer)

    # --- a store that is away ---

    def _enduring(self, ask: Callable[[], Any]) -> Any:
        """Ask the store until it answers, as long as that is worth something. Raises what `AWAY` holds."""
        while True:
            try:
                answer = ask()
            except AWAY as error:
                self._is_away(error)
                if not self._goes_on_waiting(error):
                    raise
                pause = self._next_pause()
                if self._orders.stopped:
                    sleep(min(pause, 0.5))
                else:
                    self._orders.sleep(pause)
            else:
                self._is_back()
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

    def _is_away(self, error: RanonceError) -> None:
        if self._away_since is None:
            self._away_since = self._clock()
            waiting = f" Answers that wait here to be written: {len(self._unsettled)}." if self._unsettled else ""
            self._listener.trouble(self._route.destination, error.sentence, f"It is asked again.{waiting}")

    def _is_back(self) -> None:
        self._pause, self._away_since = FIRST_PAUSE_SECONDS, None

    def _confess(self) -> None:
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

    def _close_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def _is_shut(queue: Queue) -> bool:
    """Say whether a destination wants to be left alone now."""
    return queue.closed_until is not None and queue.wall < queue.closed_until
