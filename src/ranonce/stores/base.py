"""What every store promises: read, commit, and a few questions for people. The rules themselves live in `lifecycle`.

True of every store, whatever it is built on (the contract suite in `tests/contract` is this page as code):

- A *snapshot* is one consistent view, and its clock is read last. The clock belongs to the store, not to the caller.
- A *commit* writes a whole decision or nothing, durably, before it returns. It returns the events as numbered, or
  None if the decision no longer stands: the job's version has moved on since the snapshot, a lease that the
  decision took to be over was renewed, a step or a message of it is there already, a message is not as it was, or its
  fence does not hold. Then nothing was written, and the caller reads and decides again.
- A commit whose fate is unknown raises `LostReply`; whoever asked looks the owner id up before it does anything else.
- Event numbers (`seq`) rise. Events are never changed, replaced or removed; SQL stores refuse it by triggers.
- Reading changes nothing. Opening never creates. A store that is not the ledger it should be raises `NotThisLedger`;
  one that cannot be reached in time raises `StoreUnavailable`.
"""

from __future__ import annotations

from ranonce.errors import StoreUnavailable
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Protocol, Self

    from ranonce.lifecycle import (
        Decision,
        Done,
        Event,
        Gate,
        Held,
        Lease,
        Retention,
        Run,
        RunKey,
        ScheduleVersion,
        Snapshot,
        Step,
    )
    from ranonce.merging import Told
    from ranonce.messages import Closing, Message, Move, Queue, Take, Tally, Waiting
else:
    Protocol = object


class LostReply(StoreUnavailable):
    """The connection broke while a commit was on its way: it may or may not have happened."""

    code = "lost-reply"


class Identity(Record):
    """Which ledger this is. `epoch` rises with each accepted loss; `volatile` says why loss was accepted at `init`."""

    ledger: str
    created_at: float  # unix seconds
    epoch: int = 1
    volatile: str | None = None


class Clock(Record):
    """The store's clocks, read at one moment: the lease clock in its domain, and the real clock (unix seconds)."""

    domain: str
    now: float
    wall: float


class Job(Record):
    """A job as the ledger knows it. `late_after` in seconds; `declared_at` is when it was first recorded."""

    name: str
    version: int
    declared_at: float
    late_after: float
    max_attempts: int


class Outline(Record):
    """The runs of a span, in outline: which of them need no closer look.

    `starts` are the starts of their windows, ascending, as a range where they are evenly spaced. `notable` are those
    of the runs that are more than done at the first attempt and in time. `in_turn`: no two of them worked at the same
    time, as far as their own records say (False: look closer). `latest` is the last instant at which one of them began
    or ended, `earliest` the first at which one began.
    """

    starts: Sequence[int]
    notable: list[int]
    in_turn: bool
    latest: float | None
    earliest: float | None


def joined(parts: list[Outline]) -> Outline:
    """Return the outline of spans that follow each other."""
    whole, *others = [part for part in parts if part.latest is not None] or [Outline(range(0), [], True, None, None)]
    for part in others:
        assert whole.latest is not None
        assert whole.earliest is not None
        assert part.latest is not None
        assert part.earliest is not None
        whole = Outline(
            _one_after_the_other(whole.starts, part.starts),
            whole.notable + part.notable,
            whole.in_turn and part.in_turn and whole.latest <= part.earliest,
            max(whole.latest, part.latest),
            min(whole.earliest, part.earliest),
        )
    return whole


def _one_after_the_other(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    """Return both in one: a range if both are, and evenly spaced throughout."""
    if isinstance(first, range) and isinstance(second, range):
        step = second[0] - first[-1]
        if {first.step if len(first) > 1 else step, second.step if len(second) > 1 else step} == {step}:
            return range(first[0], second[-1] + 1, step)
    return [*first, *second]


class Backlog(Record):
    """How many older runs wait in one way: failed, stopped or held. `first` and `last` are starts of windows.

    `spent`: failed, and no attempt is left. `waiting`: stopped, and the time to resume is yet to come.
    """

    status: str
    spent: bool
    waiting: bool
    count: int
    first: int
    last: int


class Glance(Record):
    """What a survey of a span begins with: its runs in outline, those that are notable, the notable events, and what is
    older, later or held. A store that can reads it as of one moment, and at one go."""

    outline: Outline
    notable: list[Run]
    events: list[Event]
    held: list[Held]
    backlog: list[Backlog]
    tombstones: list[Tombstone]
    later: list[Run]  # of windows that start at or after an instant in the future


class Scope(Record):
    """What a survey looks at: windows that start in [since, until), those that start from `future` on, and how many
    attempts a run has, as of `now` (unix seconds)."""

    since: int
    until: int
    future: int
    max_attempts: int
    now: float


class Tombstone(Record):
    """What stands where finished windows were pruned: all that start in [since, until), `runs` of them.

    Every window in the span has had its run (and is never claimable again), or still has its row. `failed` of the runs
    had failed; the others were done.
    """

    job: str
    since: int
    until: int
    runs: int
    failed: int
    pruned_at: float

    @property
    def ended(self) -> str:
        """How its runs ended: `done` or `failed`, or `over` where there were both."""
        return ended(self.runs, self.failed)

    def grown(self, others: Iterable[Tombstone]) -> tuple[Tombstone, list[Tombstone]]:
        """Return the tombstone that stands for this span, and those of the others that it stands for, too.

        It takes in those that overlap it (other inputs of the same windows), and those beside it that ended alike.
        """
        whole, taken = self, []
        for other in others:
            overlaps = other.since < whole.until and whole.since < other.until
            beside = other.since == whole.until or whole.since == other.until
            if overlaps or (beside and other.ended == self.ended):
                taken.append(other)
                whole = whole.replace(
                    since=min(whole.since, other.since),
                    until=max(whole.until, other.until),
                    runs=whole.runs + other.runs,
                    failed=whole.failed + other.failed,
                )
        return whole, taken


def buried(runs: Iterable[Run], pruned_at: float) -> list[Tombstone]:
    """Return the tombstones of runs that are pruned, which come in the order of their windows."""
    stones: list[Tombstone] = []
    for run in runs:
        new = Tombstone(run.key.job, run.window_start, run.window_end, 1, int(run.status == "failed"), pruned_at)
        whole, taken = new.grown(stones[-1:])
        stones[len(stones) - len(taken) :] = [whole]
    return stones


def ended(runs: int, failed: int) -> str:
    """Say how pruned runs ended, of which some had failed."""
    return "done" if failed == 0 else "failed" if failed == runs else "over"


class Place(Record):
    """Where a run stands in the order of a job's runs."""

    window_start: int
    window: str
    input: str


#: Before every run.
FIRST = Place(-(1 << 62), "", "")


class Pruned(Record):
    """What one batch of pruning removed, and the run it came to last; None where there are no more."""

    runs: int
    events: int
    upto: Place | None


class Epoch(Record):
    """One accepted loss: from when on, why, and who accepted it."""

    number: int
    began_at: float
    reason: str
    by: str


class Intake(Record):
    """One batch of what another ledger tells, written whole or not.

    `keep_numbers`: events keep the numbers they had, where nobody has them here. `loss` is the reason of a loss that is
    accepted with it, and who accepts it; the epoch it opens is later than `epoch`, the last that anybody remembers.
    `messages` and `steps` are taken in where there is none of their key, with the states they have.
    """

    told: Sequence[Told] = ()
    tombstones: Sequence[Tombstone] = ()
    gates: Sequence[Gate] = ()
    keep_numbers: bool = False
    pruned_seq: int = 0
    loss: tuple[str, str] | None = None
    epoch: int = 0
    messages: Sequence[Message] = ()
    steps: Sequence[Step] = ()


class TakenIn(Record):
    """What became of a batch: how many runs by outcome (see `merging`), and which were not taken, and why.

    `last` is the ledger's newest event, where any was written.
    """

    counts: Mapping[str, int]
    left: Sequence[tuple[RunKey, str]]
    events: int
    last: Event | None


class Wanted(Record):
    """Which messages somebody asks for; what is None is any."""

    job: str | None = None
    window_start: int | None = None
    destination: str | None = None
    states: frozenset[str] | None = None

    def includes(self, message: Message) -> bool:
        """Whether a message is one of them."""
        return (
            self.job in (None, message.run.job)
            and self.window_start in (None, message.window_start)
            and self.destination in (None, message.destination)
            and (self.states is None or message.state in self.states)
        )


class Exchanged(Record):
    """What became of an exchange with the outbox: the keys of the messages whose moves were written, and whether those
    that were to be taken were."""

    moved: frozenset[str]
    taken: bool


class Outbox(Protocol):
    """What deliverers and people ask about messages; the rules stand in `messages`. No plain run needs any of this.

    Messages come without their bodies, but where it is said. Instants that are written are as the moves have them.
    """

    def queue(self, destination: str, most: int, *, sending: bool = True) -> Queue:
        """Return what stands at a destination, of one moment: no more than `most` due messages, with their bodies.

        Whoever does not need those that are being sent says so, and spares the store telling them.
        """

    def exchange(
        self, destination: str, moves: Sequence[Move] = (), *, closing: Closing | None = None, take: Take | None = None
    ) -> Exchanged:
        """Write moves, each if its message is still as it was; close or open the destination; and take messages, all or
        none: if nobody has taken any since the queue was read, and they are as they were. In one transaction.

        One whose answer was lost may be repeated: what was written then is as it was no more.
        """

    def known(self, keys: Sequence[str]) -> dict[str, Message]:
        """Return the messages of these keys that there are."""

    def message(self, name: int | str) -> Message | None:
        """Return a message by its number or its key, with its body."""

    def messages(self, wanted: Wanted, *, after: int = 0, limit: int = 100) -> list[Message]:
        """Return messages in the order of their numbers, beginning after one."""

    def destinations(self) -> list[str]:
        """Return the destinations of messages that are not delivered, by name."""

    def tally(self, destination: str, late_before: float) -> list[Tally]:
        """Count the messages to a destination that are not delivered, by job and state; late are those of them that are
        pending or being sent and were emitted before an instant."""

    def waiting(self, job: str, since: int, until: int) -> list[Waiting]:
        """Count the messages that are not delivered of the job's windows that start in [since, until), by window."""


class Store(Protocol):
    """The port between the ledger and what keeps it."""

    @property
    def beside(self) -> str | None:
        """Return the folder of a local ledger: everybody who may claim in it sees the locks there. None for a server's,
        whose clients share no files."""

    def identity(self) -> Identity:
        """Return which ledger this is."""

    def clock(self) -> Clock:
        """Read the store's clocks now."""

    def read(self, key: RunKey, window_start: int) -> Snapshot:
        """Return all that a decision about this run depends on."""

    def done(self, key: RunKey, window_start: int) -> Done | None:
        """Return who did this run, or None if it is not done: all that a duplicate trigger needs to know."""

    def witnessed(self, key: RunKey, window_start: int, generation: int | None) -> bool:
        """Say whether the events tell that this run was done in a generation (None: that it has ever started).

        The run's row says the same, unless the store is damaged: a second look before work is started.
        """

    def commit(self, decision: Decision, key: RunKey, after: int) -> tuple[Event, ...] | None:
        """Write the decision about the run `key` if the job's version is still `after` (or it is not guarded)."""

    def record_schedule(self, job: Job, schedule: ScheduleVersion | None, after: int) -> bool:
        """Record the job's settings and, if given, one more version of its schedule. False: the job has moved on."""

    def job(self, name: str) -> Job | None:
        """Return the job, or None if the ledger has never heard of it."""

    def jobs(self) -> list[Job]:
        """Return all jobs, by name."""

    def schedules(self, job: str) -> tuple[ScheduleVersion, ...]:
        """Return the versions of the job's schedule, oldest first."""

    def gates(self) -> tuple[Gate, ...]:
        """Return all gates that were ever closed, by name."""

    def runs(self, job: str, since: int, until: int) -> list[Run]:
        """Return the job's runs whose window starts in [since, until), in order of the window."""

    def stopped(self, job: str, before: int) -> list[Run]:
        """Return the job's stopped runs whose window starts before an instant, oldest first."""

    def latest(self, job: str, limit: int) -> list[Run]:
        """Return the job's newest runs by window, newest first."""

    def last_done(self, job: str, before: int) -> Run | None:
        """Return the newest done run whose window starts before an instant."""

    def runs_named(self, job: str, window: str) -> list[Run]:
        """Return the job's runs with this key of a window, whatever schedule it comes from. May look at all of them."""

    def outline(self, job: str, since: int, until: int) -> Outline:
        """Return the runs whose window starts in [since, until), in outline."""

    def notable(self, job: str, since: int, until: int) -> list[Run]:
        """Return the runs of a span that are notable (see `Outline`), in order of the window."""

    def backlog(self, job: str, before: int, max_attempts: int, now: float) -> list[Backlog]:
        """Return how many failed, stopped and held runs there are whose window starts before an instant."""

    def unfinished(self, job: str, before: int, limit: int) -> list[Run]:
        """Return the newest of the runs that `backlog` counts, newest first."""

    def last_started_end(self, job: str, schedule: int, before: float) -> int | None:
        """Return the latest end of a window begun by `before` and started under this schedule version or later."""

    def events(self, job: str, since: int, until: int) -> Iterable[Event]:
        """Return the events of windows that start in [since, until), in order of their numbers, without output."""

    def notable_events(self, job: str, since: int, until: int) -> list[Event]:
        """Return the same without `start` and `done`."""

    def output(self, seq: int) -> bytes | None:
        """Return what was kept of the child's output with one event."""

    def newest_events(self, limit: int) -> list[Event]:
        """Return the last events of the ledger, newest first."""

    def event(self, seq: int) -> Event | None:
        """Return one event by its number."""

    def leases(self, job: str) -> list[Held]:
        """Return the claims that are held on the job's runs, over or not."""

    def glance(self, job: str, scope: Scope) -> Glance:
        """Return what a survey of the job's windows in a scope begins with."""

    def tombstones(self, job: str, since: int, until: int) -> list[Tombstone]:
        """Return the spans of pruned windows that reach into [since, until), in order of time."""

    def steps(self, key: RunKey, window_start: int, generation: int) -> list[str]:
        """Return the names of the steps of a run that are done in a generation, in the order of their names."""

    def step(self, key: RunKey, window_start: int, generation: int, name: str) -> Step | None:
        """Return a step that is done, with its result."""

    def outbox(self) -> Outbox:
        """Return what deliverers and people ask about messages."""

    def upkeep(self) -> Upkeep:
        """Return what its owner does with the whole store."""

    def reopen(self, wait_seconds: float) -> Self:
        """Return a store of the same ledger for another thread."""

    def close(self) -> None:
        """Let go of what the operating system gave."""


class Upkeep(Protocol):
    """What the owner of a ledger does with all of it, now and then; no plain run needs any of this."""

    def pruned_seq(self) -> int:
        """Return the number up to which events may have been pruned: one beyond that is missing for no good reason."""

    def prune(self, job: str, keep: Retention, *, after: Place = FIRST, limit: int = 500) -> Pruned:
        """Prune the next `limit` runs of a job, in one transaction: those that `lifecycle.prunable` lets go.

        Their rows and events go, a tombstone stays. The newest run of a job and its newest done one always stay, and
        so does the newest event with all of its window: no number is given twice. Old facts about windows without a run
        go, too; those windows stay what they are: never run.

        The steps of a run go with it. Of its messages, those that wait for somebody stay as they are. Of the others,
        those whose key is of the window go, since nobody can emit it again, and the rest lose their bodies only.
        """

    def problems(self, *, deep: bool) -> list[str]:
        """Return what the store's own check of its integrity finds, worst first, and no more than a screenful.

        `deep` also compares indexes with their tables, which reads all of it.
        """

    def all_runs(self) -> Iterator[Run]:
        """Go through every run in the order of its key, without holding them all in memory."""

    def all_events(self) -> Iterator[Event]:
        """Go through every event in the order of its number, with the output."""

    def events_by_window(self, *, output: bool = False) -> Iterator[Event]:
        """Go through every event, window after window as in `all_runs`; with the output only where it is asked for."""

    def all_messages(self) -> Iterator[Message]:
        """Go through every message in the order of its number, with its body."""

    def all_steps(self) -> Iterator[Step]:
        """Go through every step in the order of its run, with its result."""

    def set_gate(self, gate: Gate) -> None:
        """Write a gate as a person wants it, whatever it was: the one way in which it is opened before its time."""

    def epochs(self) -> list[Epoch]:
        """Return the losses that were accepted, oldest first."""

    def accept_loss(self, reason: str, by: str, *, after: int = 0) -> Epoch:
        """Open a new epoch, later than `after`: what any host's journal remembers of the time before counts no more
        against the store."""

    def view(self) -> AbstractContextManager[None]:
        """Within it, what is read fits together, whatever jobs write meanwhile.

        Of each window, its run and its events are of one state if they are gone through together (`all_runs` and
        `events_by_window`, both asked for before either is begun), and the schedules and tombstones that are read in it
        fit all windows. A store that keeps older states gives everything as it was when the view was begun; one that
        does not raises StoreUnavailable where something was pruned, imported or given another schedule meanwhile.
        """

    def take_in(self, intake: Intake, lives: Callable[[Run, Lease | None], bool]) -> TakenIn:
        """Take in a batch of what another ledger tells, run by run as `merging.merge` decides, in one transaction.

        `lives` says whether somebody works on a run that is running. The jobs must be known. A run's row comes with its
        events or not at all, and what is told twice changes nothing the second time.
        """


class Risk(Record):
    """Why what is kept at a site may be lost, or would not be locked well: `kind` in a word or two, and the reason."""

    kind: str
    problem: str


class Recovery(Protocol):
    """The building anew of a ledger that was lost, beside what is left of it. Used within a `with` block: nobody else
    does the same at that site meanwhile, and what did not come into its place by the end of the block, or of one that
    was killed, is removed. What was there before is moved aside, and never changed or removed."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def broken(self) -> str | None:
        """Say why what stands there cannot be opened as a ledger, though it was one; None if it may be.

        Raises NotThisLedger for what is not ours to replace: somebody else's, or of another version.
        """

    def halt(self) -> None:
        """From now on nobody writes into what stands there: whoever wants to waits, or is refused."""

    def remains(self, ledger: str) -> Store | None:
        """Open what can still be read of the ledger, there or where it was moved aside before; None if there is
        nothing. One that has lost its identity is taken for the one that is meant."""

    def begin(self, ledger: str, *, volatile: str | None, epoch: int) -> Store:
        """Create an empty ledger beside it, and open that. Not without `halt`."""

    def take_place(self) -> str | None:
        """Put the new ledger, which is closed, into its place; return the name that what stood there has now."""


class Site(Protocol):
    """Where a ledger is, or may be made. Used by `init`, `drill` and `doctor`, never by a run."""

    def stands(self) -> bool:
        """Say whether anything stands there already, a ledger or not. Raises StoreUnavailable, ConfigError."""

    def risk(self) -> Risk | None:
        """Say why a ledger there would not keep what it promises, if so: then it is made only if that is accepted.

        Raises StoreUnavailable, ConfigError.
        """

    def create(self, ledger: str, *, volatile: str | None = None, epoch: int = 1) -> None:
        """Create an empty ledger, whole or not at all. Raises NotThisLedger where anything stands already."""

    def upgrade(self, ledger: str | None) -> bool:
        """Bring an older ledger's tables up to date; say whether there was anything to do.

        Raises NotThisLedger for another ledger than the one that is meant.
        """

    def recovery(self) -> Recovery:
        """Return what builds a lost ledger anew there."""

    def scratch(self, name: str) -> str:
        """Return the URL of another site of the same kind, with the same promise, for a ledger that is thrown away.

        `name` makes it unlike any other: lower-case letters, digits and _.
        """

    def destroy(self) -> None:
        """Remove the ledger and everything that belongs to it. Only ever called for a site that was made as scratch."""


#: More notable runs than these are read at one go, with what lies between.
FEW = 4
FAR = 1 << 62


def glanced(store: Store, job: str, scope: Scope) -> Glance:
    """Return a glance from the answers to one question after the other: for a store that is near."""
    since, until = scope.since, scope.until
    outline = store.outline(job, since, until)
    starts = outline.notable
    if len(starts) > FEW:
        notable = store.notable(job, min(starts), max(starts) + 1)
    else:
        notable = [run for start in dict.fromkeys(starts) for run in store.runs(job, start, start + 1)]
    return Glance(
        outline,
        notable,
        store.notable_events(job, since, until),
        store.leases(job),
        store.backlog(job, since, scope.max_attempts, scope.now),
        store.tombstones(job, since, until),
        store.runs(job, scope.future, FAR),
    )


def spared(store: Store, job: str) -> set[int]:
    """Return the starts of the windows of a job that every pruning spares: its newest run, its newest done one, and the
    window of the ledger's newest event, whose number must not be given again."""
    newest, done = store.latest(job, 1), store.last_done(job, 1 << 62)
    last = [event.window_start for event in store.newest_events(1) if event.key.job == job]
    return {*last, *(run.window_start for run in (*newest, *([done] if done else [])))}
