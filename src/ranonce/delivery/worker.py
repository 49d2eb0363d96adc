"""One destination's worker: look, take, send, settle, until nothing is left that could go now.

What it has taken is in its hold, what is answered in its book, until the store has it.
"""

from __future__ import annotations

import os
from random import random

from ranonce import messages as rules
from ranonce.delivery.book import AWAY, Book
from ranonce.delivery.hold import Hold
from ranonce.delivery.witness import Witness
from ranonce.failpoints import failpoint
from ranonce.liveness import boot_clock
from ranonce.messages import DEAD, NOT_BEGUN, NOT_RECEIVED, PENDING, SENDING, UNKNOWN, UNSURE, Answer, Move
from ranonce.record import Record
from ranonce.stores.base import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ranonce.delivery.base import Sender
    from ranonce.delivery.orders import Listener, Orders
    from ranonce.messages import Message, Queue, Route
    from ranonce.stores.base import Store

#: What vanished deliverers have left is looked for no more often, while messages are taken one lot after the other.
LEFT_SECONDS = 1.0
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
        self._book = Book(route, self._outbox, orders, listener, clock=clock, wall=self._wall, chance=chance)
        self._tried: set[str] = set()
        self._begun: list[str] = []
        self._granted = 0  # how many may be begun, of those that were reserved
        self._there_is_more = False
        self._look: _Look | None = None
        self._looked_at = 0.0  # when what others have left was looked for

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
            self._book.settle_all()
        except Exception:
            self._book.confess()
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
            progress, taken = self._book.enduring(lambda: self._take(reserved, brief=self._looked_just_now()))
            if taken:
                self._send(taken)
            return progress
        finally:
            self._orders.give_back(self._granted - len(self._begun))

    def _looked_just_now(self) -> bool:
        """Say whether the next look may be brief: what stands as being sent is mostly what was just answered here."""
        return bool(self._book.open_keys) and self._clock() < self._looked_at + LEFT_SECONDS

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
        if not (moves or take or self._book.open_keys):
            return False, ()
        if take is not None and self._sender is None:
            self._sender = self._open_sender()  # before anything is taken: it may not be possible here
        exchanged = self._book.exchange(moves, take, sender)
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
            if message.key in self._book.open_keys or self._hold.has(message):
                continue
            if self._book.is_lost(message):
                given_back = self._book.made_of(message, message, Answer(NOT_BEGUN))
                moves += [given_back] if given_back else []
            elif rules.lease_over(message, queue.domain, queue.now, queue.wall):
                moves.append(rules.lapsed(message, self._route, queue.wall, self._chance()))
        return moves

    def _fresh(self, queue: Queue) -> Queue:
        """Return the queue without what this worker knows the answer of; one that goes once tries each only once."""
        passed = self._book.open_keys | self._tried
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
                self._book.settle_meanwhile(now, idle=said is None)
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
        if add is None or not self._route.dedupes or self._hold.shut or self._book.rests(now):
            return
        if self._hold.is_overdue():
            return  # this comes to its end, or what is never answered would be held for ever
        granted = self._orders.reserve(self._route.batch - self._hold.count)
        taken: Sequence[Message] = ()
        try:
            _, taken = self._take(granted, brief=now < self._looked_at + LEFT_SECONDS)
        except AWAY as error:
            self._book.put_off(error)
        finally:
            self._orders.give_back(granted - len(taken))
            self._granted += len(taken)
        if taken:
            add(taken)

    def _hear_of_closing(self, now: float) -> None:
        """See whether another deliverer was told to leave the destination alone: what has not begun goes back then."""
        assert self._look is not None
        if self._hold.shut or now < self._look.told_at + HEAR_SECONDS or self._book.rests(now):
            return
        try:
            queue = self._outbox.queue(self._route.destination, 0, sending=False)
        except AWAY as error:
            self._book.put_off(error)
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
        if self._book.note(message, answer):
            self._hold.shut = True

    def _wall(self, now: float) -> float:
        """Return the store's real clock, carried on since the last look by our own clock."""
        assert self._look is not None
        return self._look.queue.wall + now - self._look.told_at

    # --- renew ---

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
            self._book.is_away(error)
            return self._hold.renew_every / 5
        self._book.is_back()
        self._hold.renewed([message for message in held if message.key in moved], asked_at)
        return self._hold.renew_every

    def _close_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def _is_shut(queue: Queue) -> bool:
    """Say whether a destination wants to be left alone now."""
    return queue.closed_until is not None and queue.wall < queue.closed_until
