"""The rules of a message: one side effect on its way to a destination. Pure: no clock, no I/O, no randomness.

A message is committed with the work it comes from and waits in the outbox. Its dedupe key is fixed then, for ever. A
*deliverer* takes it under a lease, sends it, and settles it by what the destination answered:

    pending   waits, not before `due_at`
    sending   a deliverer has it: only one at a time, until its lease is over
    sent      the destination has taken it, and said so
    unsure    it may have been received, and nobody can know: a person says which
    dead      it will not be tried again: refused for good, or its attempts are spent
    dropped   a person said that it need not go out any more

    asked \\ state    pending    sending                            unsure     dead       sent, dropped
    take             sending    -                                  -          -          -
    settle           sent *     by the answer (below)              sent *     sent *     -
    lapse            -          pending, or unsure                 -          -          -
    resolve sent     sent       -                                  sent       sent       -
    resolve not-sent -          -                                  pending    pending    -
    resolve dropped  dropped    -                                  dropped    dropped    -
    retry            due now    -                                  - **       pending ** -

    * a late answer: proof that it was received counts whenever it comes
    ** not where it may have been received, and would be sent twice: a person says first which it is

What an answer means for a message that is being sent depends on whether the destination dedupes: within its time, one
more try under the same key is the same message there, so what may have been received is tried again. Elsewhere nothing
that may have been received is ever sent again by itself. A message that failed before the first byte left, or that the
destination turned away unread (429), is tried again anywhere.

    answer         destination dedupes, in time     otherwise
    delivered      sent                             sent
    throttled      pending, not before it said      the same
    not received   pending later, or dead           the same; unsure where an earlier try may have been received
    unknown        pending later, or unsure/dead    unsure
    refused        dead                             dead
    not begun      pending at once                  the same

Sources of the HTTP side of it: RFC 9110 (status codes, Retry-After), RFC 6585 (429).
"""

from __future__ import annotations

from ranonce.names import plain
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ranonce.lifecycle import RunKey

# States of a message, as stored.
PENDING, SENDING, SENT, UNSURE, DEAD, DROPPED = "pending", "sending", "sent", "unsure", "dead", "dropped"
STATES = frozenset({PENDING, SENDING, SENT, UNSURE, DEAD, DROPPED})
#: States in which a message still waits for somebody.
UNDELIVERED = frozenset({PENDING, SENDING, UNSURE, DEAD})

# What a destination may have answered.
DELIVERED, THROTTLED, NOT_RECEIVED, UNKNOWN, REFUSED, NOT_BEGUN = (
    "delivered",
    "throttled",
    "not-received",
    "unknown",
    "refused",
    "not-begun",
)

# What a message's key is one of: the run's window (all inputs of it), the job, or the whole ledger.
WINDOW, JOB, LEDGER = "window", "job", "ledger"
SCOPES = (WINDOW, JOB, LEDGER)

#: Stands for the ledger where a job or a window would stand in a key; no job has this name.
_WHOLE_LEDGER = "-"
#: Stands in a key for a message that has no key of its own: one for each scope and destination.
_NO_KEY = "-"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~:@/+=,-")
LONGEST_OWN_KEY = 200  # bytes of UTF-8
LONGEST_BODY = 256 * 1024  # bytes
#: What one attempt may leave to its outcome, outside of items: so many messages, of so many bytes in all.
MOST_MESSAGES = 1000
MOST_BYTES = 16 * 1024 * 1024
#: Messages that are taken in one write, where the destination dedupes.
BATCH = 100
#: No more of what a destination said is kept.
LONGEST_WORDS = 500  # characters
#: The first words of what is said where nothing was sent, since the payload is none for its destination.
UNFIT = "it was not sent: "
#: Instants are kept to the millisecond by some stores.
_STORED_SECONDS = 0.002
#: No destination is obeyed that wants to be left alone for longer.
LONGEST_CLOSING_SECONDS = 31 * 86400.0
#: A message that is due later than any rule would have it by more than this was told so by a clock that was ahead.
AHEAD_SECONDS = 86400.0


class Message(Record):
    """One side effect, and how far it has come. Instants are unix seconds, UTC.

    `body` is None where it was not read, or was pruned. `seq` is the number that people know it by, None until a store
    has written it. `tries` counts the takes and never goes back: it tells a late answer from the one that counts.
    `failures` are those that count against the attempts. `doubt_since` is when the first try began that may have been
    received: from then on a destination's dedupe time counts.
    """

    key: str
    run: RunKey
    window_start: int
    destination: str
    content_type: str
    digest: str  # SHA-256 of content type and body
    body: bytes | None
    generation: int
    attempt: int
    item: str
    created_at: float
    due_at: float
    state: str = PENDING
    tries: int = 0
    failures: int = 0
    sender: str = ""
    lease_domain: str = ""
    lease_until: float = 0.0  # on the store's lease clock, in that domain
    taken_at: float | None = None
    lease_seconds: float = 0.0
    doubt_since: float | None = None
    settled_at: float | None = None
    receipt: str | None = None  # what the destination said when it took it
    error: str | None = None  # what went wrong last
    resolution: str | None = None  # what a person said of it, who and why
    seq: int | None = None


class Move(Record):
    """A message's way from one state to the next. It is written only if the message is still as it `was`: its state,
    its number of tries and its sender."""

    was: Message
    now: Message


class Route(Record):
    """How messages to one destination are handled. Durations in seconds; `dedupes` 0 is a destination that does not.

    `concurrency` is how many are sent at the same time by one deliverer, `rate` how many a second by all of them.
    """

    destination: str
    dedupes: float = 0.0
    max_attempts: int = 12
    concurrency: int = 4
    rate: float | None = None
    timeout: float = 30.0
    first_delay: float = 5.0
    longest_delay: float = 3600.0
    late_after: float = 3600.0

    @property
    def lease_seconds(self) -> float:
        """How long a deliverer has a message without renewal."""
        return max(2 * self.timeout, 10.0)

    @property
    def batch(self) -> int:
        """How many messages are taken at a time. Where what was taken and not settled is in doubt for ever, no more
        than are sent at once."""
        return BATCH if self.dedupes else self.concurrency


class Answer(Record):
    """What became of one try: its kind (see above), what the destination said, and how long it wants to be left alone
    (seconds), if it said that; `for_this`: with this message only. `answered`: the destination itself said no, rather
    than nothing."""

    kind: str
    words: str = ""
    retry_after: float | None = None
    answered: bool = False
    for_this: bool = False


class Queue(Record):
    """What stands at one destination at one moment.

    `due` are pending messages that may go now, the longest due first, with their bodies, no more than were asked for;
    `sending` those that deliverers have (without bodies). `version` moves with each take. `next_at` is when the rate
    lets the next one go. `next_due` is when the first of the others is due.
    """

    destination: str
    version: int
    closed_until: float | None
    closed_why: str | None
    next_at: float
    due: tuple[Message, ...]
    sending: tuple[Message, ...]
    next_due: float | None
    domain: str
    now: float  # the store's lease clock
    wall: float  # its real clock, unix seconds


class Take(Record):
    """Messages to be taken for one sender, all of them or none: only if the queue's version is still `after`."""

    after: int
    next_at: float
    moves: tuple[Move, ...]


class Closing(Record):
    """A destination is left alone until an instant; None opens it. A later one wins over an earlier one."""

    until: float | None
    why: str


# --- keys -----------------------------------------------------------------------------------------------------------


def message_key(scope: str, run: RunKey, destination: str, own: str, *, generation: int = 0) -> str:
    """Return a message's dedupe key: scope, destination and the message's own key, percent-encoded ASCII.

    Names of jobs and destinations, and keys of windows, hold no `/`, so no two messages share a key by accident. A
    `generation` is added by a rerun that is to send again. The input's digest is no part of it: other input for the
    same window is the same effect.
    """
    of = _WHOLE_LEDGER if scope == LEDGER else _encoded({WINDOW: f"{run.job}:{run.window}", JOB: run.job}[scope])
    again = f"#{generation}" if generation else ""
    return f"{of}/{destination}/{_encoded(own) or _NO_KEY}{again}"


def _encoded(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    if text == _NO_KEY:
        return "%2D"
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)


def scope_of(key: str) -> str:
    """Return the scope that a key belongs to."""
    of = key.partition("/")[0]
    return LEDGER if of == _WHOLE_LEDGER else WINDOW if ":" in of else JOB


# --- what an attempt emits ------------------------------------------------------------------------------------------


class Conflict(Record):
    """A message that will not go out: its key has stood for another body since `first` was emitted."""

    refused: Message
    first: Message


def emitted(messages: Iterable[Message], known: Mapping[str, Message]) -> tuple[list[Message], list[Conflict]]:
    """Return which messages are new, in order, and which contradict one of the same key.

    `known` are those that stand in the outbox already. Same key and same body: it is there already.
    """
    new: dict[str, Message] = {}
    conflicts = []
    for message in messages:
        first = known.get(message.key) or new.get(message.key)
        if first is None:
            new[message.key] = message
        elif first.digest != message.digest:
            conflicts.append(Conflict(message, first))
    return list(new.values()), conflicts


# --- taking ---------------------------------------------------------------------------------------------------------


def take(queue: Queue, route: Route, sender: str, most: int) -> Take | None:
    """Return what a deliverer takes of the messages that are due, no more than `most`; None if nothing.

    None while the destination is closed, and no more than its rate allows over all deliverers. A message that may have
    been received, and would now come after the time in which the destination dedupes, becomes unsure instead.
    """
    if queue.closed_until is not None and queue.wall < queue.closed_until:
        return None
    begin, count = queue.next_at, min(most, len(queue.due))
    if route.rate is not None:
        burst = max(int(route.rate), 1)
        if begin > queue.wall + 1 / route.rate + _STORED_SECONDS:  # by a clock that was set back since, or another rate
            begin = queue.wall
        begin = max(begin, queue.wall - (burst - 1) / route.rate)
        count = min(count, int((queue.wall - begin) * route.rate + 1e-6) + 1 if begin <= queue.wall else 0)
    moves = []
    for message in queue.due[:count]:
        if _doubtful(message, route, queue.wall):
            why = message.error or "nobody knows what became of it"
            now = message.replace(state=UNSURE, error=why, settled_at=queue.wall)
        else:
            now = message.replace(
                state=SENDING,
                tries=message.tries + 1,
                sender=sender,
                lease_domain=queue.domain,
                lease_until=queue.now + route.lease_seconds,
                lease_seconds=route.lease_seconds,
                taken_at=queue.wall,
            )
        moves.append(Move(message, now))
    if not moves:
        return None
    next_at = begin + len(moves) / route.rate if route.rate is not None else queue.next_at
    return Take(queue.version, next_at, tuple(moves))


def brought_forward(message: Message, route: Route, wall: float) -> Move | None:
    """Return the move by which a message is due now whose time was told by a clock that was far ahead; None for others.

    One that was never tried is due when it is emitted, and no pause after a try is longer than what is waited for here.
    """
    longest = max(LONGEST_CLOSING_SECONDS, route.longest_delay, route.first_delay) if message.tries else 0.0
    if message.state != PENDING or message.due_at <= wall + longest + AHEAD_SECONDS:
        return None
    return Move(message, message.replace(due_at=wall))


def _doubtful(message: Message, route: Route, wall: float) -> bool:
    """Whether one more try could be received as a second message: an earlier one may have been received, and this one
    may come too late for the destination to know it. A clock that was set back since tells nothing of how late."""
    since = message.doubt_since
    return since is not None and not 0 <= wall - since <= route.dedupes - route.timeout


def renewed(message: Message, domain: str, now: float) -> Move:
    """Return the move by which a deliverer keeps a message for another lease."""
    return Move(message, message.replace(lease_domain=domain, lease_until=now + message.lease_seconds))


def lease_over(message: Message, domain: str, now: float, wall: float) -> bool:
    """Say whether the lease of a message that is being sent is over.

    Under another domain than this one (before a reboot, say) the lease says nothing, and the real clock decides: too
    early is no danger, since only a destination that dedupes is then sent the message again, and late proof counts.
    """
    if message.lease_domain == domain and message.lease_until <= now + message.lease_seconds:
        return now >= message.lease_until
    return wall >= (message.taken_at or 0.0) + message.lease_seconds or wall < (message.taken_at or 0.0)


# --- settling -------------------------------------------------------------------------------------------------------


def lapsed(message: Message, route: Route, wall: float, chance: float) -> Move:
    """Return what becomes of a message whose deliverer has vanished: nobody knows whether it was received."""
    return _settled(message, Answer(UNKNOWN, "its deliverer vanished while it was sent"), route, wall, chance)


def settle(current: Message, taken: Message, answer: Answer, route: Route, wall: float, chance: float) -> Move | None:
    """Return what an answer makes of a message; None if it changes nothing any more.

    `current` is the message as it stands, `taken` as the asker took it. `chance` in [0, 1) spreads the next tries.
    """
    if (current.state, current.tries, current.sender) == (SENDING, taken.tries, taken.sender):
        return _settled(current, answer, route, wall, chance)
    if answer.kind == DELIVERED and current.state in (PENDING, UNSURE, DEAD):
        return _delivered(current, answer, wall)
    return None


def _settled(message: Message, answer: Answer, route: Route, wall: float, chance: float) -> Move:
    words = plain(answer.words)[:LONGEST_WORDS]
    if answer.kind == DELIVERED:
        return _delivered(message, answer, wall)
    ended = message.replace(sender="", error=words or answer.kind, settled_at=wall)
    if answer.kind == NOT_BEGUN:
        return Move(message, message.replace(state=PENDING, sender=""))
    if answer.kind == THROTTLED:
        return Move(message, ended.replace(state=PENDING, due_at=wall + wait(answer, route.first_delay)))
    if answer.kind == REFUSED:
        return Move(message, ended.replace(state=DEAD, failures=message.failures + 1))
    ended = ended.replace(failures=message.failures + 1)
    if answer.kind == UNKNOWN and ended.doubt_since is None:
        ended = ended.replace(doubt_since=message.taken_at if message.taken_at is not None else wall)
    if ended.failures >= route.max_attempts:
        state = DEAD if ended.doubt_since is None or (answer.answered and route.dedupes) else UNSURE
        return Move(message, ended.replace(state=state))
    due_at = wall + wait(answer, _delay(ended.failures, route, chance))
    if _doubtful(ended, route, due_at):
        return Move(message, ended.replace(state=UNSURE))
    return Move(message, ended.replace(state=PENDING, due_at=due_at))


def _delivered(message: Message, answer: Answer, wall: float) -> Move:
    receipt = plain(answer.words)[:LONGEST_WORDS]
    return Move(message, message.replace(state=SENT, sender="", receipt=receipt, settled_at=wall))


def _delay(failures: int, route: Route, chance: float) -> float:
    """Return how long to wait before the next try: twice as long each time, between half of it and all."""
    longest = min(route.longest_delay, route.first_delay * 2.0 ** min(failures - 1, 40))
    return longest * (0.5 + chance / 2)


def wait(answer: Answer, otherwise: float) -> float:
    """Return for how long nothing is sent after an answer: as the destination said, within reason."""
    if answer.retry_after is None:
        return otherwise
    return max(otherwise, min(max(answer.retry_after, 0.0), LONGEST_CLOSING_SECONDS))


def closing(answer: Answer, route: Route, wall: float) -> Closing | None:
    """Return until when an answer closes its destination for all messages and deliverers, if it does."""
    if answer.for_this or (answer.retry_after is None and answer.kind != THROTTLED):
        return None
    return Closing(wall + wait(answer, route.first_delay), plain(answer.words)[:LONGEST_WORDS])


# --- what a person says ---------------------------------------------------------------------------------------------


class No(Record):
    """Why a message does not become what somebody wants it to be."""

    sentence: str
    next_step: str


def resolve(message: Message, as_: str, said: str, wall: float) -> Move | No:
    """Return what a person makes of a message: `as_` is sent, not-sent or dropped; `said` is who says it, and why."""
    name = f"message {message.seq}" if message.seq is not None else message.key
    if message.state == SENDING:
        return No(f"{name} is being sent at this moment.", "Wait for what becomes of it.")
    if message.state in (SENT, DROPPED):
        return No(f"{name} is {message.state} already.", "Nothing was changed.")
    if as_ == "not-sent" and message.state == PENDING:
        return No(f"{name} is pending: it will be sent.", "Nothing was changed.")
    ended = message.replace(resolution=said, settled_at=wall, sender="")
    if as_ == "not-sent":
        return Move(message, ended.replace(state=PENDING, failures=0, doubt_since=None, due_at=wall, settled_at=None))
    return Move(message, ended.replace(state=SENT if as_ == "sent" else DROPPED))


def retry(message: Message, route: Route | None, wall: float) -> Move | No:
    """Return the move by which a person has a message tried now; `route` None: its destination is not known here."""
    name = f"message {message.seq}" if message.seq is not None else message.key
    doubtful = _doubtful(message, route or Route(message.destination), wall)
    if message.state == UNSURE or (message.state == DEAD and doubtful):
        return No(
            f"{name} may have been received already, and could be received twice.",
            f"Look, then say which it is: ranonce outbox resolve {message.seq} --as sent|not-sent --reason TEXT",
        )
    if message.state not in (PENDING, DEAD):
        return No(f"{name} is {message.state}.", "Nothing was changed.")
    return Move(message, message.replace(state=PENDING, due_at=wall, failures=0, settled_at=None))


def stands(move: Move, message: Message | None) -> bool:
    """Say whether a message is as a person's move left it: whoever lost the reply to its commit looks so."""
    now = move.now
    return (
        message is not None
        and (message.state, message.tries, message.resolution) == (now.state, now.tries, now.resolution)
        and abs(message.due_at - now.due_at) < _STORED_SECONDS
    )


# --- counting -------------------------------------------------------------------------------------------------------


class Tally(Record):
    """How many messages of a job to a destination wait in one state. `late`: pending or being sent, for longer than
    they should. `oldest` is when the first of them was emitted (unix seconds)."""

    job: str
    destination: str
    state: str
    late: bool
    count: int
    oldest: float


class Waiting(Record):
    """How many messages of one window wait in one state."""

    window: str
    window_start: int
    state: str
    count: int


class Standing(Record):
    """What waits at one destination: counts by job and state, for how long a message may wait before it is late
    (seconds), until when the destination is closed and why (unix seconds, None: it is open), and what is wrong with its
    table, if that cannot be read."""

    destination: str
    tallies: tuple[Tally, ...]
    late_after: float
    closed_until: float | None = None
    closed_why: str | None = None
    mistake: str | None = None
