"""The workers of one deliverer: one for each destination at which something is due, each in a thread of its own."""

from __future__ import annotations

import sys
from collections import deque
from threading import Thread

from ranonce.delivery.book import FIRST_PAUSE_SECONDS
from ranonce.delivery.orders import spread
from ranonce.delivery.witness import Witness
from ranonce.delivery.worker import Worker
from ranonce.errors import ConfigError, NotThisLedger, StoreUnavailable
from ranonce.messages import AHEAD_SECONDS, PENDING, brought_forward, lease_over, take
from ranonce.record import Record
from ranonce.stores.base import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ranonce.delivery.base import Sender, Spec
    from ranonce.delivery.orders import Orders
    from ranonce.messages import Answer, Message, Queue
    from ranonce.stores.base import Store

#: Pauses of one that watches, while the store is away: they grow, and are spread so that many do not come back at once.
LONGEST_PAUSE_SECONDS = 60.0
#: So many messages that are due too late are looked at at a time.
FORWARD_AT_ONCE = 500


#: How long a thread that works on the store may keep the others waiting, which write and read on their lines. Python's
#: own 5 ms are longer than a destination takes to answer.
TURN_SECONDS = 0.0005


def share_the_interpreter() -> None:
    """Let the threads of this process, which delivers and does nothing else, take turns quickly."""
    sys.setswitchinterval(TURN_SECONDS)


class Settled(Record):
    """A message has come to another state, and by which answer; None where somebody else had given it up."""

    message: Message
    answer: Answer | None


class Trouble(Record):
    """Something about a destination that a person should know."""

    destination: str
    sentence: str
    next_step: str


class _News:
    """What the workers tell, in order, for the thread that speaks."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.told: deque[Settled | Trouble] = deque()
        self._wake = wake

    def settled(self, message: Message, answer: Answer | None) -> None:
        self.told.append(Settled(message, answer))
        self._wake()

    def trouble(self, destination: str, sentence: str, next_step: str) -> None:
        self.told.append(Trouble(destination, sentence, next_step))
        self._wake()


class Crew:
    """Starts workers and sees how they end. Used from one thread."""

    def __init__(
        self,
        store: Store,
        specs: Mapping[str, Spec],
        open_sender: Callable[[Spec], Sender],
        orders: Orders,
        *,
        name: str,
        wait_seconds: float,
        wake: Callable[[], None],
        witness: Witness | None = None,
    ) -> None:
        self._store = store
        self._specs = dict(specs)
        self._open_sender = open_sender
        self._orders = orders
        self._name = name
        self._wait_seconds = wait_seconds
        self._news = _News(wake)
        self._wake = wake
        self._threads: dict[str, Thread] = {}
        self._ends: deque[tuple[str, Exception | None]] = deque()
        self._pause = FIRST_PAUSE_SECONDS
        self._witness = witness or Witness()
        self._long_due: dict[str, float] = {}  # when the first is due that was looked at, by destination
        self.unavailable: StoreUnavailable | None = None
        self.fatal: Exception | None = None  # what ended a worker, and concerns all of them
        self.unusable: set[str] = set()

    def news(self) -> list[Settled | Trouble]:
        """Return what was told since the last call."""
        self._collect()
        told = []
        while self._news.told:
            told.append(self._news.told.popleft())
        return told

    @property
    def working(self) -> bool:
        """Whether a worker is at work."""
        return any(thread.is_alive() for thread in self._threads.values())

    def start_all(self) -> None:
        """Start a worker for each destination that has messages. Raises StoreUnavailable."""
        outbox = self._store.outbox()
        for name in outbox.destinations():
            if name in self._specs:
                self._bring_forward(outbox.queue(name, 0, sending=False))
                self._start(name)

    def look(self) -> float:
        """Start a worker wherever one has something to do; return in how many seconds to look again."""
        self._collect()
        try:
            waiting = set(self._store.outbox().destinations())
            for name in self._specs:
                thread = self._threads.get(name)
                if name in waiting and not (thread and thread.is_alive()) and self._has_something_to_do(name):
                    self._start(name)
        except StoreUnavailable as error:
            if self.unavailable is None:
                self._news.trouble("", error.sentence, "It is asked again.")
            self.unavailable = error
            self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
            return spread(max(self._pause, self._orders.poll))
        except NotThisLedger as error:
            self._orders.stop()
            self.fatal = error
            return 0.0
        if self.unavailable is not None:
            self._news.trouble("", "The store is back.", "")
        self.unavailable, self._pause = None, FIRST_PAUSE_SECONDS
        return spread(self._orders.poll)

    def _has_something_to_do(self, name: str) -> bool:
        queue = self._store.outbox().queue(name, 1)
        if self._bring_forward(queue):
            return True
        return take(queue, self._specs[name].route, "", 1) is not None or any(
            lease_over(message, queue.domain, queue.now, queue.wall) for message in queue.sending
        )

    def _bring_forward(self, queue: Queue) -> bool:
        """Let messages be due now that wait for a time which a clock far ahead had told; say whether there were any.

        What waits for long is looked at once, until another message is the first that is due.
        """
        name, first = queue.destination, queue.next_due
        if first is None or first <= queue.wall + AHEAD_SECONDS or self._long_due.get(name) == first:
            return False
        outbox, route, after, count = self._store.outbox(), self._specs[name].route, 0, 0
        wanted = Wanted(destination=name, states=frozenset({PENDING}))
        while page := outbox.messages(wanted, after=after, limit=FORWARD_AT_ONCE):
            moves = [move for each in page if (move := brought_forward(each, route, queue.wall)) is not None]
            count += len(outbox.exchange(name, moves).moved) if moves else 0
            after = page[-1].seq or 0
        self._long_due[name] = first
        if count:
            seen = f"messages that waited for a time which a clock far ahead had told: {count}. They are due now."
            self._news.trouble(name, seen, "See that the clocks of the hosts are right.")
        return count > 0

    def _start(self, name: str) -> None:
        thread = Thread(target=self._work, args=(self._specs[name],), name=f"ranonce deliver {name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(f"no thread could be started: {error}.", "Let it have more processes.") from None
        self._threads[name] = thread

    def _work(self, spec: Spec) -> None:
        problem: Exception | None = None
        try:
            store = self._store.reopen(self._wait_seconds)
            try:
                Worker(
                    spec.route,
                    store,
                    lambda: self._open_sender(spec),
                    self._orders,
                    self._news,
                    name=self._name,
                    witness=self._witness,
                ).run()
            finally:
                if store is not self._store:
                    store.close()
        except Exception as error:  # noqa: BLE001 - it is raised again where somebody hears it
            problem = error
        self._ends.append((spec.name, problem))
        self._wake()

    def _collect(self) -> None:
        """See how workers have ended."""
        while self._ends:
            name, problem = self._ends.popleft()
            if isinstance(problem, ConfigError):
                self.unusable.add(name)
                self._specs.pop(name, None)
                self._news.trouble(name, problem.sentence, problem.next_step)
            elif isinstance(problem, StoreUnavailable):
                if not self._orders.watch:
                    self.unavailable = problem
            elif problem is not None:
                self._orders.stop()
                self.fatal = problem
