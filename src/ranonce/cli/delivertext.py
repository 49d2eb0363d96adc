"""What `ranonce deliver` says: of a message that needs somebody, once of many that are alike, and of what waits."""

from __future__ import annotations

from ranonce.cli.messagetext import standing_of, time_of
from ranonce.liveness import boot_clock
from ranonce.messages import DEAD, PENDING, SENDING, UNSURE, lease_over
from ranonce.names import plain
from ranonce.stores.base import Clock
from ranonce.timefmt import format_instant
from ranonce.undelivered import is_closed, is_payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ranonce.messages import Message, Queue, Tally

#: So many different words about messages of one destination are told; then only how many there are.
DIFFERENT = 10
#: Others that are alike are counted for so long, while one watches.
GATHER_SECONDS = 5.0


def problem(message: Message) -> str:
    """Say what has become of a message that needs somebody, and what to do."""
    number = message.seq
    if message.state == UNSURE:
        step = f"Look, then say what became of it: ranonce outbox resolve {number} --as sent|not-sent --reason TEXT"
    elif is_payload(message.error):
        step = f"Mend the job, and drop it: ranonce outbox resolve {number} --as dropped --reason TEXT"
    else:
        step = f"Once that is mended: ranonce outbox retry {number}"
    return f"message {number} ({message.key}) is {message.state}: {(message.error or '').rstrip('. ')}. {step}"


class Problems:
    """Tells the first of messages that are alike, and then how many more there were."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: dict[tuple[str, str], dict[str, Message]] = {}
        self._more: dict[tuple[str, str, str], int] = {}
        self._since = 0.0

    def tell(self, message: Message) -> None:
        """Tell of a message, unless one like it was told of."""
        words = message.error or ""
        told = self._told.setdefault((message.destination, message.state), {})
        if words not in told and len(told) < DIFFERENT:
            told[words] = message
            self._say(problem(message))
            return
        key = (message.destination, message.state, words if words in told else "")
        self._since = self._since if self._more else boot_clock()
        self._more[key] = self._more.get(key, 0) + 1

    def sum_up(self, *, at_once: bool = True) -> None:
        """Say how many more there were; if not `at_once`, then when some time has passed."""
        if not self._more or (not at_once and boot_clock() - self._since < GATHER_SECONDS):
            return
        for (name, state, words), count in self._more.items():
            like = f", like message {self._told[name, state][words].seq}" if words in self._told[name, state] else ""
            which = f"1 more message to {name} is" if count == 1 else f"{count:,} more messages to {name} are"
            self._say(f"{which} {state}{like}. What to do: ranonce outbox list --destination {name} --state {state}")
        self._more.clear()


def counts(found: Mapping[str, int]) -> str:
    """Return counts on one line."""
    return " ".join(f"{kind}={count}" for kind, count in found.items())


def undeclared(name: str, tallies: Iterable[Tally]) -> str:
    """Say which messages are for a destination that is not declared here, and how they stand."""
    states: dict[str, int] = {}
    for tally in tallies:
        kind = "waiting" if tally.state in (PENDING, SENDING) else tally.state
        states[kind] = states.get(kind, 0) + tally.count
    count = sum(states.values())
    told = ", ".join(f"{states[kind]:,} {kind}" for kind in (UNSURE, DEAD, "waiting") if kind in states)
    which = "1 message is" if count == 1 else f"{count:,} messages are"
    state = next(iter(kind for kind in (UNSURE, DEAD, PENDING) if kind in states or kind == PENDING))
    return (
        f"{which} for {plain(name)!r} ({told}), which this configuration does not declare. Declare it as "
        f"[destinations.{plain(name)}], or say what became of them: ranonce outbox resolve --destination {plain(name)} "
        f"--state {state} --as dropped --reason TEXT"
    )


def why_waiting(queue: Queue) -> str | None:
    """Say why messages to a destination wait; None where nothing is known but that they do."""
    clock = Clock(queue.domain, queue.now, queue.wall)
    parts = []
    gone = [each for each in queue.sending if lease_over(each, clock.domain, clock.now, clock.wall)]
    held = [each for each in queue.sending if each not in gone]
    if held:
        last = max(held, key=lambda each: each.lease_until)
        parts.append(f"{len(held):,} being sent by a deliverer ({standing_of(last, clock, None)})")
    if gone:
        parts.append(f"{len(gone):,} whose deliverer vanished: the next ranonce deliver decides")
    if is_closed(queue):
        why = f": {queue.closed_why}" if queue.closed_why else ""
        open_it = f"ranonce outbox retry --destination {queue.destination}"
        parts.append(f"closed until {format_instant(queue.closed_until or 0.0)}{why} -> {open_it}")
    elif queue.next_due is not None and queue.next_due > queue.wall:
        parts.append(f"back-off until {time_of(queue.next_due, queue.wall)}")
    elif queue.next_at > queue.wall:
        parts.append(f"its rate lets the next one go at {time_of(queue.next_at, queue.wall)}")
    return plain(f"{queue.destination}: {'; '.join(parts)}") if parts else None
