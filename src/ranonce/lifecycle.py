"""The rules of a run: who may claim it, who may finish it, and what is written then. Pure: no clock, no I/O.

A *run* is one job's work for one window. It has no row before its first claim; afterwards it is `running`, `done`,
`failed`, `stopped` or `held`. Only an *attempt* (one claim, numbered 1, 2, 3 … and never starting over) moves it, and
only the highest attempt, under its random owner id, may write. What a run's state means for one who asks depends on
two more facts: whether the lease still lives, and whether the asker is its owner. Together they are the run's
*situation*:

    none      nothing is recorded
    mine      running, the lease lives, the asker owns it (it lost a reply, or renews)
    busy      running, the lease lives, another owns it; or that attempt was seen alive
    lapsed    running, the lease is over, nobody took it, the asker owns it
    zombie    running, the lease is over or its owner was proved dead, the asker does not own it
    failed stopped held done

Who keeps a claim stops its work before its lease is over, if it cannot renew it in time: then the lease alone decides
(a server's clients see no more of each other). Where everybody who may claim sees that an attempt lives (by its sign
beside a ledger that is a local file, by its process on the same host), the claim counts for as long as it is seen, and
nobody's work is stopped for a file that is locked or a disk that is full. Only a proof of death ends a claim before its
lease; without it, an attempt that is seen no more has its lease left.

The table below says for every situation and every thing one can ask which *move* follows. A move that starts work
(START, RETRY, RESUME, TAKE_OVER, REGENERATE) must also pass the gates in `obstacle`: overlap, early, late, closed
gates, an older schedule's window. What a move writes stands in the function that makes it, and nowhere else. The
diagram in the documentation is drawn from the table.
"""

from __future__ import annotations

from ranonce.names import plain
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ranonce.messages import Conflict, Message, Move
    from ranonce.windows import Window

# States of a run, as stored.
RUNNING, DONE, FAILED, STOPPED, HELD = "running", "done", "failed", "stopped", "held"
STATES = frozenset({RUNNING, DONE, FAILED, STOPPED, HELD})

# Situations: a state, seen by one who asks at one instant.
NONE, MINE, BUSY, LAPSED, ZOMBIE = "none", "mine", "busy", "lapsed", "zombie"

# What can be asked.
CLAIM, RENEW, FINISH, RERUN, RELEASE = "claim", "renew", "finish", "rerun", "release"

#: Clocks of several hosts differ by this much without anybody being wrong.
CLOCK_SLACK_SECONDS = 1.0
#: Clocks of several hosts differ by less than this; a record further ahead was made under a wrong clock.
FUTURE_SLACK_SECONDS = 60.0
#: A lease that was over for less than this when it was renewed is not worth an event.
LAPSE_SECONDS = 1.0

#: How the reason of a run begins whose end a person has told.
RELEASED_AS = "released as"

# Moves.
START, RETRY, RESUME, TAKE_OVER, REGENERATE = "start", "retry", "resume", "take-over", "regenerate"
KEEP, EXTEND, RECLAIM, SETTLE, SETTLE_LATE, FREE = "keep", "extend", "reclaim", "settle", "settle-late", "free"
NO_RUN, REFUSE_BUSY, REFUSE_HELD, REFUSE_DONE, REFUSE_LOST, REFUSE_NOT_HELD = (
    "no-run",
    "refuse-busy",
    "refuse-held",
    "refuse-done",
    "refuse-lost",
    "refuse-not-held",
)

TABLE: dict[str, dict[str, str]] = {
    # situation: {asked: move}
    NONE: {CLAIM: START, RENEW: REFUSE_LOST, FINISH: REFUSE_LOST, RERUN: NO_RUN, RELEASE: NO_RUN},
    MINE: {CLAIM: KEEP, RENEW: EXTEND, FINISH: SETTLE, RERUN: KEEP, RELEASE: REFUSE_BUSY},
    BUSY: {CLAIM: REFUSE_BUSY, RENEW: REFUSE_LOST, FINISH: REFUSE_LOST, RERUN: REFUSE_BUSY, RELEASE: REFUSE_BUSY},
    LAPSED: {CLAIM: RECLAIM, RENEW: RECLAIM, FINISH: SETTLE_LATE, RERUN: RECLAIM, RELEASE: REFUSE_NOT_HELD},
    ZOMBIE: {CLAIM: TAKE_OVER, RENEW: REFUSE_LOST, FINISH: REFUSE_LOST, RERUN: REGENERATE, RELEASE: FREE},
    FAILED: {CLAIM: RETRY, RENEW: REFUSE_LOST, FINISH: REFUSE_LOST, RERUN: REGENERATE, RELEASE: FREE},
    STOPPED: {CLAIM: RESUME, RENEW: REFUSE_LOST, FINISH: REFUSE_LOST, RERUN: REGENERATE, RELEASE: REFUSE_NOT_HELD},
    HELD: {CLAIM: REFUSE_HELD, RENEW: REFUSE_LOST, FINISH: SETTLE_LATE, RERUN: REGENERATE, RELEASE: FREE},
    DONE: {CLAIM: REFUSE_DONE, RENEW: REFUSE_LOST, FINISH: REFUSE_LOST, RERUN: REGENERATE, RELEASE: REFUSE_NOT_HELD},
}

#: Moves that start work: they must also pass `obstacle`.
STARTS = frozenset({START, RETRY, RESUME, TAKE_OVER, REGENERATE})
#: Moves after which the asker holds the claim.
WINS = STARTS | {KEEP, RECLAIM}


class RunKey(Record):
    """Names a run: job, window and, where other input is other work, the input's full SHA-256."""

    job: str
    window: str
    input: str = ""

    def __str__(self) -> str:
        return f"{self.job}:{self.window}:{self.input}" if self.input else f"{self.job}:{self.window}"


class Run(Record):
    """The newest state of a run. Instants are unix seconds, UTC."""

    key: RunKey
    window_start: int
    window_end: int
    status: str
    generation: int
    attempt: int  # the fencing token
    owner: str
    failures: int  # failed and crashed attempts of this generation
    schedule: int  # the schedule version that named the window
    trigger: str
    started_at: float
    version: str | None = None
    fingerprint: str | None = None
    finished_at: float | None = None
    resume_at: float | None = None  # stopped: not before this instant
    reason: str | None = None
    exit: int | None = None
    late: bool = False  # the verdict came after the lease
    reconciling: bool = False  # a crash is being looked into under this attempt
    granted: bool = False  # a person allowed one more attempt


class Lease(Record):
    """How long a claim lives without renewal, by the store's own clock.

    `expires` counts in `domain`, the name of the clock it was written under (a boot and time namespace for SQLite, one
    constant for a server). Seen from another domain it says nothing, so the first watcher notes when it saw it there
    (`seen_domain`, `seen_at`; `seen_wall` by the real clock, for watchers from yet another domain) and all wait one
    full `seconds`. A renewal forgets the sighting.
    """

    owner: str
    attempt: int
    domain: str
    expires: float
    seconds: float
    process: str = ""  # the holder, as `claimant` writes and reads it
    seen_domain: str = ""
    seen_at: float = 0.0
    seen_wall: float = 0.0


class Held(Record):
    """A claim somebody holds, as a rival or a refused trigger sees it."""

    key: RunKey
    window_start: int
    lease: Lease


class Gate(Record):
    """A shared resource that is closed until an instant, by a job, at another."""

    name: str
    until: float
    reason: str
    job: str
    closed_at: float


class ScheduleVersion(Record):
    """One version of a job's schedule; in force for windows that start in [valid_from, next version's valid_from)."""

    number: int
    every: str
    tz: str
    dialect: str
    offset: int
    valid_from: int | None  # None: the first version has no beginning
    recorded_at: float


class Event(Record):
    """An append-only fact about a run: who, what, when, why. `seq` is None until a store has written it."""

    at: float
    key: RunKey
    window_start: int
    event: str
    attempt: int
    generation: int
    reason: str | None = None
    owner: str = ""
    trigger: str = ""
    version: str | None = None
    host: str = ""
    data: Mapping[str, Any] = {}
    output: bytes | None = None
    seq: int | None = None


class Step(Record):
    """A named piece of a run that is done in one generation, with its result. An item of a batch is a step named by
    its key. A step is never written twice."""

    run: RunKey
    window_start: int
    generation: int
    name: str
    attempt: int
    at: float
    result: bytes | None = None


class Done(Record):
    """Who did a run that is done, and on which input."""

    attempt: int
    owner: str
    fingerprint: str | None


class Snapshot(Record):
    """What a store knows at one instant about one run and what it depends on. `now` is read last."""

    version: int  # of the job; a commit after it fails if it has moved on
    run: Run | None
    lease: Lease | None
    rivals: tuple[Held, ...]
    gates: tuple[Gate, ...]
    schedules: tuple[ScheduleVersion, ...]
    pruned: str | None  # how it ended (done, failed, over), if it was pruned
    domain: str
    now: float  # the store's lease clock
    wall: float  # the store's real clock, unix seconds


class Sighting(Record):
    """What can be proved of the attempt behind a claim. `state`: unknown, dead, alive or locked; an `orphan` lives on
    after the wrapper that would record its end. One that is seen alive by its sign alone has no `pid` here, but a
    `name` that says where it lives."""

    state: str = "unknown"
    pid: int | None = None
    name: str = ""
    orphan: bool = False


UNKNOWN = Sighting()


class Policy(Record):
    """The job's rules at a claim. Durations in seconds."""

    max_attempts: int = 3
    retry_delay: float = 0.0
    early: float = 5.0
    max_late: float | None = None
    overlap: str = "forbid"
    on_crash: str = "retry"
    uses: tuple[str, ...] = ()


class Ask(Record):
    """One request for a claim. `now` chooses (windows, delays); leases and event times use the store's clocks."""

    key: RunKey
    window: Window
    schedule: int
    owner: str
    lease_seconds: float
    now: float
    served_from: int  # the tick at which this window is meant to be worked on
    trigger: str
    policy: Policy = Policy()
    version: str | None = None
    fingerprint: str | None = None
    process: str = ""
    host: str = ""
    data: Mapping[str, Any] = {}
    rerun_reason: str | None = None
    rerun_data: Mapping[str, Any] = {}  # who asked for it, and how
    record_skip: bool = True


class Claim(Record):
    """The right to work on a run: what an attempt must show to write anything."""

    key: RunKey
    window: Window
    attempt: int
    generation: int
    owner: str
    trigger: str
    version: str | None
    lease_seconds: float
    started_at: float
    reconciling: bool = False


class Verdict(Record):
    """What became of an attempt. `outcome`: done, failed, stopped or held. Its messages go out only if it is done."""

    outcome: str
    at: float
    reason: str | None = None
    exit: int | None = None
    resume_at: float | None = None
    data: Mapping[str, Any] = {}
    output: bytes | None = None
    gates: tuple[Gate, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def emitted(self) -> int:
        """How many messages it comes to: those of the same key are one, whatever they say."""
        return len({message.key for message in self.messages})


class Refusal(Record):
    """Why not, by whom, until when."""

    reason: str
    sentence: str
    holder: str | None = None
    until: float | None = None
    pid: int | None = None


class Decision(Record):
    """What follows from one snapshot and one request: all that is to be written, or why not. Written whole, or not.

    `lease` replaces the run's lease row; `drop_lease` removes it; `sighted` are leases, of this run or a rival, with
    their first sighting. `unchanged` are leases that the decision took to be
    over: the commit must find them as they were read. `guarded` is False where only facts are added that stay true
    whatever else happened (a skip): such a commit needs no version. Instants in it that are `wall`, the snapshot's real
    clock, mean the moment of the write.

    `steps` and `messages` must be new: if one of them is there already, the decision no longer stands. Nor does it
    where a message of `moves` is not as it was, or where the claim in `fence` has the run no more.
    """

    move: str
    refusal: Refusal | None = None
    run: Run | None = None
    lease: Lease | None = None
    drop_lease: bool = False
    sighted: tuple[Held, ...] = ()
    events: tuple[Event, ...] = ()
    gates: tuple[Gate, ...] = ()
    unchanged: tuple[Held, ...] = ()
    guarded: bool = True
    wall: float | None = None
    steps: tuple[Step, ...] = ()
    messages: tuple[Message, ...] = ()
    moves: tuple[Move, ...] = ()
    fence: Claim | None = None

    @property
    def accepted(self) -> bool:
        """Whether the asker gets what it asked for."""
        return self.refusal is None

    @property
    def writes(self) -> bool:
        """Whether anything is to be committed."""
        return bool(
            self.run
            or self.lease
            or self.drop_lease
            or self.sighted
            or self.events
            or self.gates
            or self.steps
            or self.messages
            or self.moves
        )


# --- leases ---------------------------------------------------------------------------------------------------------


def lease_ends(lease: Lease, domain: str, now: float, wall: float) -> float:
    """Return the instant of the clock `domain` at which the lease is over, as far as can be known now.

    `now` is that clock, `wall` the real one. The real clock only serves those who see the lease from a third domain
    (each trigger in a sandbox with a clock of its own): without it nobody would ever have waited long enough.
    """
    if _readable(lease, domain, now):
        return lease.expires
    if lease.seen_domain == domain:
        return min(lease.seen_at, now) + lease.seconds
    if lease.seen_domain:
        waited = max(0.0, wall - lease.seen_wall)
        return now + max(0.0, lease.seconds - waited)
    return now + lease.seconds


def _readable(lease: Lease, domain: str, now: float) -> bool:
    """Whether the expiry means anything on this clock. One absurdly far ahead (a damaged row, a clock that began
    anew) does not: it blocks for one lease after it was first seen, not for years."""
    return lease.domain == domain and lease.expires <= now + lease.seconds


def lease_lives(lease: Lease | None, snap: Snapshot, sighting: Sighting) -> bool:
    """Say whether a claim must be respected: a living process counts always, a proof of death never waits."""
    if sighting.state == "alive":
        return True
    if lease is None or sighting.state == "dead":
        return False
    return snap.now < lease_ends(lease, snap.domain, snap.now, snap.wall)


def _is_in_time(lease: Lease | None, snap: Snapshot) -> bool:
    """Say whether the asker's own lease lives. Its own clock must say so: another's may have said to somebody else that
    the lease is over, so rivals are looked at again."""
    return lease is not None and _readable(lease, snap.domain, snap.now) and snap.now < lease.expires


def first_sight(lease: Lease, snap: Snapshot) -> Lease | None:
    """Return the lease with this sighting noted, if it cannot be read on this clock and nobody has seen it yet."""
    if lease.seen_domain or _readable(lease, snap.domain, snap.now):
        return None
    return lease.replace(seen_domain=snap.domain or "unnamed", seen_at=snap.now, seen_wall=snap.wall)


def situation(snap: Snapshot, owner: str, attempt: int | None, sightings: Mapping[str, Sighting]) -> str:
    """Name the run's situation as one asker sees it. `attempt` None: the asker knows only its owner id."""
    run = snap.run
    if run is None:
        return NONE
    if run.status != RUNNING:
        return run.status
    mine = run.owner == owner and attempt in (None, run.attempt)
    if mine:
        return MINE if _is_in_time(snap.lease, snap) else LAPSED
    return BUSY if lease_lives(snap.lease, snap, sightings.get(run.owner, UNKNOWN)) else ZOMBIE


# --- claim and rerun ------------------------------------------------------------------------------------------------


def claim(snap: Snapshot, ask: Ask, sightings: Mapping[str, Sighting] | None = None) -> Decision:
    """Decide a claim (or, with `ask.rerun_reason`, a rerun). The winner's run and lease stand in the decision."""
    seen = sightings or {}
    run = snap.run
    asked = RERUN if ask.rerun_reason is not None else CLAIM
    move = TABLE[situation(snap, ask.owner, None, seen)][asked]
    if move == KEEP:
        return Decision(KEEP)
    if move == RECLAIM:
        return _reclaim(snap, ask.owner, ask.lease_seconds, ask.policy.overlap, seen)
    if run is None:
        if snap.pruned:
            how = {DONE: "is done", FAILED: "failed"}.get(snap.pruned, "was over long ago")
            again = ": it cannot be run again here" if move == NO_RUN else ""
            return _skip(snap, ask, Refusal("pruned", f"{ask.key} {how}; its record was pruned{again}"))
        if move == NO_RUN:
            return _skip(snap, ask, Refusal("unknown", f"{ask.key} has never run, so there is nothing to run again"))
    elif move == REFUSE_BUSY:
        return _busy(snap, ask, run, seen)
    elif move == REFUSE_DONE:
        return _skip(snap, ask, already_done(Done(run.attempt, run.owner, run.fingerprint), ask))
    elif move == REFUSE_HELD:
        return _skip(snap, ask, Refusal("held", f"{ask.key} is held: {run.reason}; a person must release it"))
    elif refusal := _not_yet(snap, run, ask, move):
        return _skip(snap, ask, refusal)
    elif move == TAKE_OVER and (ended := _crash_ends_it(snap, ask, run, seen)):
        return ended
    if refusal := obstacle(snap, ask, seen):
        return _skip(snap, ask, refusal)
    return _start(snap, ask, move, seen)


def already_done(done: Done, ask: Ask) -> Refusal:
    """The answer to a claim on a run that is done: final for its generation, so one look at its row is enough."""
    if None not in (done.fingerprint, ask.fingerprint) and done.fingerprint != ask.fingerprint:
        return Refusal("conflict", f"{ask.key} is done, with another input", done.owner)
    return Refusal("done", f"{ask.key} is done (attempt {done.attempt})", done.owner)


def _not_yet(snap: Snapshot, run: Run, ask: Ask, move: str) -> Refusal | None:
    """Failed: its attempts may be used up, or its delay still run. Stopped: it may have named a time."""
    if move == RETRY and not attempts_left(run, ask.policy.max_attempts):
        limit = ask.policy.max_attempts
        return Refusal("exhausted", f"{ask.key} failed {run.failures} times, and {limit} is the limit")
    ended = run.finished_at or run.started_at
    if _in_the_future(ended, snap):
        return None
    until = ended + ask.policy.retry_delay
    if move == RETRY and ask.policy.retry_delay > 0 and ask.now < until:
        return Refusal("waiting", f"{ask.key} failed and waits before its next attempt", until=until)
    if move == RESUME and run.resume_at is not None and ask.now < run.resume_at:
        return Refusal("waiting", f"{ask.key} was stopped ({run.reason}) and resumes later", until=run.resume_at)
    return None


def attempts_left(run: Run, max_attempts: int) -> int:
    """Return how many more attempts a failed run may have: what the limit leaves, or the one a person allowed."""
    return max(max_attempts - run.failures, 1 if run.granted else 0)


def _in_the_future(recorded_at: float, snap: Snapshot) -> bool:
    """Whether a record was made under a clock that was wrong: such a record does not block the present."""
    return recorded_at > snap.wall + FUTURE_SLACK_SECONDS


def obstacle(snap: Snapshot, ask: Ask, sightings: Mapping[str, Sighting]) -> Refusal | None:
    """Say what stands in the way of starting work now, besides the run's own state."""
    if refusal := _outside_its_time(snap, ask):
        return refusal
    for gate in snap.gates:
        closed = snap.wall < gate.until and not _in_the_future(gate.closed_at, snap)
        if gate.name in ask.policy.uses and closed:
            return Refusal("gate", f"{gate.name} is closed ({gate.reason})", holder=gate.job, until=gate.until)
    return overlap(snap, ask.policy.overlap, sightings)


def _outside_its_time(snap: Snapshot, ask: Ask) -> Refusal | None:
    for version in present_schedules(snap.schedules, snap.wall):
        newer = version.number > ask.schedule
        if version.valid_from is None:
            continue
        if (newer and ask.window.start >= version.valid_from) or (
            version.number == ask.schedule and ask.window.start < version.valid_from
        ):
            return Refusal("superseded", f"{ask.key} overlaps a window of another version of the schedule")
    if ask.window.start > ask.now + ask.policy.early:
        return Refusal("early", f"{ask.key} has not begun", until=ask.window.start)
    late = ask.policy.max_late
    if late is not None and ask.trigger == "schedule" and ask.now > ask.served_from + late:
        return Refusal("late", f"{ask.key} comes later than its max_late allows")
    return None


def present_schedules(versions: tuple[ScheduleVersion, ...], wall: float) -> tuple[ScheduleVersion, ...]:
    """Return the versions that count at the real instant `wall`, each beginning after the one before.

    One recorded under a clock that was ahead does not count, nor one that a later version replaces from an earlier
    instant on. The first is always there: something must judge the windows.
    """
    counting: list[ScheduleVersion] = []
    for version in versions:
        if counting and version.recorded_at > wall + FUTURE_SLACK_SECONDS:
            continue
        begin = version.valid_from
        while counting and begin is not None and (counting[-1].valid_from or begin) > begin:
            counting.pop()
        counting.append(version)
    return tuple(counting)


def overlap(snap: Snapshot, rule: str, sightings: Mapping[str, Sighting]) -> Refusal | None:
    """Say which other window of the job still works, where that is forbidden."""
    if rule == "allow":
        return None
    for rival in snap.rivals:
        sighting = sightings.get(rival.lease.owner, UNKNOWN)
        if lease_lives(rival.lease, snap, sighting):
            return Refusal(
                "overlap",
                f"another window of the job is running: {rival.key}{_pid(sighting)}",
                holder=rival.lease.owner,
                until=_wall_until(rival.lease, snap),
                pid=sighting.pid,
            )
    return None


def _busy(snap: Snapshot, ask: Ask, run: Run, sightings: Mapping[str, Sighting]) -> Decision:
    sighting = sightings.get(run.owner, UNKNOWN)
    lease = snap.lease
    refusal = Refusal(
        "busy",
        f"{ask.key} is running (attempt {run.attempt}){_pid(sighting)}",
        holder=run.owner,
        until=_wall_until(lease, snap) if lease else None,
        pid=sighting.pid,
    )
    return _skip(snap, ask, refusal)


def _pid(sighting: Sighting) -> str:
    if sighting.state != "alive":
        return ""
    if sighting.pid is None:
        return f", {plain(sighting.name) or 'its process'} still works"
    return f", process {sighting.pid} ({plain(sighting.name)}) still works"


def _wall_until(lease: Lease, snap: Snapshot) -> float:
    return snap.wall + lease_ends(lease, snap.domain, snap.now, snap.wall) - snap.now


def _crash_ends_it(snap: Snapshot, ask: Ask, run: Run, sightings: Mapping[str, Sighting]) -> Decision | None:
    """A zombie that must not be started again: held by policy, or its attempts are used up."""
    failures = run.failures + 1
    if ask.policy.on_crash == "hold":
        status = HELD
        refusal = Refusal("held", f"{ask.key} crashed (attempt {run.attempt}), and its effects may have happened")
    elif ask.policy.on_crash != "reconcile" and failures >= ask.policy.max_attempts:
        status = FAILED
        refusal = Refusal("exhausted", f"{ask.key} crashed, and attempt {run.attempt} was its last")
    else:
        return None
    after = run.replace(status=status, failures=failures, reason="crashed", finished_at=snap.wall)
    settled = _event(snap, after, after.status, reason="crashed", host=ask.host)
    skip = _skip(snap, ask, refusal)
    return skip.replace(
        move=TAKE_OVER,
        run=after,
        drop_lease=True,
        sighted=(),
        events=(_expired(snap, run, sightings, ask.host), settled, *skip.events),
        unchanged=_considered_over(snap),
        guarded=True,
    )


def _start(snap: Snapshot, ask: Ask, move: str, sightings: Mapping[str, Sighting]) -> Decision:
    run, zombie = snap.run, snap.run is not None and snap.run.status == RUNNING
    again = move == REGENERATE
    crashed = 1 if zombie and not again else 0
    started = Run(
        key=ask.key,
        window_start=ask.window.start,
        window_end=ask.window.end,
        status=RUNNING,
        generation=(run.generation if run else 1) + (1 if again else 0),
        attempt=(run.attempt if run else 0) + 1,
        owner=ask.owner,
        failures=0 if again or run is None else run.failures + crashed,
        schedule=ask.schedule,
        trigger=ask.trigger,
        started_at=snap.wall,
        version=ask.version,
        fingerprint=ask.fingerprint if ask.fingerprint is not None else (run.fingerprint if run else None),
        reconciling=ask.policy.on_crash == "reconcile"
        and (move == TAKE_OVER or (move == RESUME and run is not None and run.reconciling)),
    )
    events = [_event(snap, started, "start", reason=move, host=ask.host, data=ask.data)]
    if again:
        events.insert(0, _event(snap, started, "rerun", reason=ask.rerun_reason, host=ask.host, data=ask.rerun_data))
    if zombie and run:
        events.insert(0, _expired(snap, run, sightings, ask.host))
    return Decision(
        move,
        run=started,
        lease=_lease(snap, ask.owner, started.attempt, ask.lease_seconds, ask.process),
        events=tuple(events),
        unchanged=_considered_over(snap),
        wall=snap.wall,
    )


def _considered_over(snap: Snapshot) -> tuple[Held, ...]:
    return _own(snap) + snap.rivals


def _own(snap: Snapshot) -> tuple[Held, ...]:
    run, lease = snap.run, snap.lease
    return (Held(run.key, run.window_start, lease),) if run and lease else ()


def _lease(snap: Snapshot, owner: str, attempt: int, seconds: float, process: str) -> Lease:
    return Lease(owner, attempt, snap.domain, snap.now + seconds, seconds, process)


def _reclaim(
    snap: Snapshot, owner: str, seconds: float, overlap_rule: str, sightings: Mapping[str, Sighting]
) -> Decision:
    """The owner's lease ran out and nobody took it: a new decision (rivals are checked again), the same attempt."""
    run = snap.run
    assert run is not None
    if refusal := overlap(snap, overlap_rule, sightings):
        return Decision(RECLAIM, refusal=refusal.replace(reason="lost"))
    process = snap.lease.process if snap.lease else ""
    slept = snap.lease is None or snap.now >= snap.lease.expires + LAPSE_SECONDS
    noted = (_event(snap, run, "noted", reason="renewed after the lease was over"),) if slept else ()
    return Decision(
        RECLAIM,
        run=run,
        lease=_lease(snap, owner, run.attempt, seconds, process),
        events=noted,
        wall=snap.wall,
        unchanged=_considered_over(snap),
    )


# --- renew ----------------------------------------------------------------------------------------------------------


def renew(snap: Snapshot, held: Claim, overlap_rule: str = "forbid") -> Decision:
    """Decide whether an attempt may keep its claim for another lease."""
    move = TABLE[situation(snap, held.owner, held.attempt, {})][RENEW]
    if move == EXTEND and snap.lease is not None:
        lease = _lease(snap, held.owner, held.attempt, held.lease_seconds, snap.lease.process)
        return Decision(EXTEND, lease=lease, unchanged=_own(snap), guarded=False, wall=snap.wall)
    if move == RECLAIM:
        return _reclaim(snap, held.owner, held.lease_seconds, overlap_rule, {})
    return Decision(move, refusal=_lost(snap, held))


def _owns(run: Run, held: Claim) -> bool:
    """Whether a claim's attempt is the run's last one: the fencing check."""
    return run.owner == held.owner and run.attempt == held.attempt


def _lost(snap: Snapshot, held: Claim) -> Refusal:
    run = snap.run
    if run is None:
        return Refusal("lost", f"{held.key} is not in the store any more")
    if _owns(run, held):
        return Refusal("lost", f"attempt {held.attempt} of {held.key} is already {run.status}", holder=run.owner)
    return Refusal("lost", f"attempt {run.attempt} took {held.key} over from attempt {held.attempt}", holder=run.owner)


# --- finish ---------------------------------------------------------------------------------------------------------


def finish(snap: Snapshot, held: Claim, verdict: Verdict, known: Mapping[str, Message] | None = None) -> Decision:
    """Decide whether an attempt's verdict stands. A refused one is recorded as `lost`, so that a double run is seen.

    An attempt has ended after its start and before now, whatever the clock of its host says. `known` are messages that
    stand in the outbox under keys of the verdict's own.
    """
    run = snap.run
    verdict = verdict.replace(at=min(max(verdict.at, held.started_at), snap.wall))
    move = TABLE[situation(snap, held.owner, held.attempt, {})][FINISH]
    if run is not None and _owns(run, held):
        if move in (SETTLE, SETTLE_LATE):
            return _settle(snap, run, verdict, late=move == SETTLE_LATE, known=known or {})
        if run.status == verdict.outcome == DONE and verdict.messages and (run.reason or "").startswith(RELEASED_AS):
            return Decision("note", events=(_came_too_late(snap, run, verdict),), guarded=False)
        if run.status == verdict.outcome:
            return Decision(KEEP)  # the reply to this very finish was lost
    not_sent = {"not_sent": verdict.emitted} if verdict.messages else {}
    lost = _event_of(held, verdict.at, "lost").replace(
        reason=verdict.outcome,
        data={**verdict.data, **not_sent, "exit": verdict.exit, "started_at": held.started_at},
        output=verdict.output,
    )
    return Decision(REFUSE_LOST, refusal=_lost(snap, held), events=(lost,), guarded=False)


def _came_too_late(snap: Snapshot, run: Run, verdict: Verdict) -> Event:
    """Return what is noted where a person has said first that a run is done: its messages were not known then."""
    count = verdict.emitted
    said = f"attempt {run.attempt} was released before its outcome came: messages not sent: {count}"
    return _event(snap, run, "noted", reason=said, data={"not_sent": count})


def _settle(snap: Snapshot, run: Run, verdict: Verdict, *, late: bool, known: Mapping[str, Message] = {}) -> Decision:
    after = run.replace(
        status=verdict.outcome,
        finished_at=verdict.at,
        failures=run.failures + (1 if verdict.outcome == FAILED and run.status == RUNNING else 0),
        resume_at=verdict.resume_at,
        reason=verdict.reason,
        exit=verdict.exit,
        late=late,
        reconciling=run.reconciling and verdict.outcome == STOPPED,  # stopped before it was known: still to be known
    )
    data = {**verdict.data, "exit": verdict.exit, "seconds": round(max(verdict.at - run.started_at, 0.0), 3)}
    if late:
        data["late"] = True
    if verdict.resume_at is not None:
        data["resume_at"] = verdict.resume_at
    messages, conflicts = _emitted(verdict, known)
    if verdict.messages:
        data.update({"messages": len(messages)} if verdict.outcome == DONE else {"not_sent": verdict.emitted})
    event = _event(snap, after, verdict.outcome, reason=verdict.reason, data=data).replace(
        at=verdict.at, output=verdict.output
    )
    return Decision(
        SETTLE_LATE if late else SETTLE,
        run=after,
        drop_lease=True,
        events=(event, *_conflict_events(event, conflicts)),
        gates=verdict.gates,
        messages=tuple(messages),
    )


def _emitted(verdict: Verdict, known: Mapping[str, Message]) -> tuple[Sequence[Message], Sequence[Conflict]]:
    """Return which messages of a verdict go out, and which contradict others. Only work that is done has any."""
    if verdict.outcome != DONE or not verdict.messages:
        return (), ()
    from ranonce.messages import emitted

    return emitted(verdict.messages, known)


def _conflict_events(beside: Event, conflicts: Sequence[Conflict]) -> tuple[Event, ...]:
    """Return what is noted of messages that will not go out, as facts beside the event that they come with."""
    return tuple(
        beside.replace(
            event="noted",
            reason=f"conflict: message {one.refused.key} stands for another body since {one.first.run}; not sent",
            data={
                "message": one.refused.key,
                "digest": one.refused.digest,
                "first": str(one.first.run),
                "first_digest": one.first.digest,
            },
            output=None,
        )
        for one in conflicts
    )


def mark(held: Claim, step: Step, messages: Sequence[Message], known: Mapping[str, Message]) -> Decision:
    """Decide the commit of an item or a step: its mark, its result and its messages, if the claim still has the run.

    Nothing needs to be read before: what is not as it should be makes the commit fail.
    """
    from ranonce.messages import emitted

    new, conflicts = emitted(messages, known)
    beside = _event_of(held, step.at, "noted")
    return Decision(
        "mark",
        steps=(step,),
        messages=tuple(new),
        events=_conflict_events(beside, conflicts),
        fence=held,
        guarded=False,
        wall=step.at,
    )


def fenced_off(snap: Snapshot, held: Claim) -> Refusal | None:
    """Say why an attempt may write nothing more about its run, or None if it may."""
    run = snap.run
    if run is not None and run.status == RUNNING and _owns(run, held):
        return None
    return _lost(snap, held)


def reconciled(snap: Snapshot, held: Claim, max_attempts: int) -> Decision:
    """The look after a crash found that the work was *not* done: go on under this attempt, unless it was the last."""
    run = snap.run
    if situation(snap, held.owner, held.attempt, {}) not in (MINE, LAPSED) or run is None:
        return Decision(REFUSE_LOST, refusal=_lost(snap, held))
    if run.failures >= max_attempts:
        verdict = Verdict(FAILED, snap.wall, reason="crashed")
        # The crash is counted already: this verdict only closes the attempt that looked into it.
        settled = _settle(snap, run.replace(failures=run.failures - 1), verdict, late=False)
        return settled.replace(
            refusal=Refusal("exhausted", f"{held.key} crashed {run.failures} times; that was its limit")
        )
    noted = _event(snap, run, "noted", reason="reconciled: it was not done")
    return Decision(EXTEND, run=run.replace(reconciling=False), events=(noted,))


# --- release --------------------------------------------------------------------------------------------------------


def release(
    snap: Snapshot, as_: str, reason: str, sightings: Mapping[str, Sighting] | None = None, *, by: str = ""
) -> Decision:
    """A person says what became of a run that cannot say so itself. `as_`: done, or not-done (one more attempt)."""
    seen = sightings or {}
    run = snap.run
    now = situation(snap, "", None, seen)
    move = TABLE[now][RELEASE]
    if run is None and snap.pruned:
        return Decision(move, refusal=Refusal("pruned", "its record was pruned, and it is never claimable again"))
    if run is None:
        return Decision(move, refusal=Refusal("unknown", "this window has never run"))
    if move == REFUSE_BUSY:
        sighting = seen.get(run.owner, UNKNOWN)
        return Decision(move, refusal=Refusal("busy", f"{run.key} is running{_pid(sighting)}", holder=run.owner))
    if move != FREE:
        return Decision(move, refusal=Refusal("not-held", f"{run.key} is {run.status}, so nothing holds it back"))
    status = DONE if as_ == "done" else FAILED
    after = run.replace(
        status=status,
        granted=as_ == "not-done",
        reason=f"{RELEASED_AS} {as_}: {reason}",
        finished_at=snap.wall,
        reconciling=False,
    )
    events = [_event(snap, after, "released", reason=reason, data={"as": as_, "by": by})]
    if now == ZOMBIE:
        events.insert(0, _expired(snap, run, seen, ""))
    return Decision(FREE, run=after, drop_lease=True, events=tuple(events), unchanged=_own(snap))


# --- prune ----------------------------------------------------------------------------------------------------------


class Retention(Record):
    """What may be pruned: runs that are done, or failed, and were over before these instants (unix seconds)."""

    done_before: float
    failed_before: float


def prunable(run: Run, keep: Retention) -> bool:
    """Say whether a run may be pruned: one that nobody waits for, and that was over long ago.

    A stopped run is yet to be resumed, a held one waits for a person, a running one works or is a crash to be looked
    into: they stay, however old.
    """
    before = {DONE: keep.done_before, FAILED: keep.failed_before}.get(run.status)
    return before is not None and max(run.window_end, run.finished_at or run.started_at) <= before


# --- note -----------------------------------------------------------------------------------------------------------


def note(
    snap: Snapshot,
    key: RunKey,
    window_start: int,
    text: str,
    *,
    by: str = "",
    host: str = "",
    held: tuple[str, int] | None = None,
) -> Decision:
    """Decide whether something worth knowing about a window is noted. It changes no state, and needs no run.

    `held` are owner and attempt of a job that notes something about its own run: one that lost its claim writes no
    more. A person, who has none, may note what they like about any window of a known job.
    """
    run = snap.run
    if held is not None and (run is None or (run.owner, run.attempt) != held):
        taken = f": attempt {run.attempt} has taken it over" if run else ""
        return Decision(REFUSE_LOST, refusal=Refusal("lost", f"attempt {held[1]} no longer holds {key}{taken}"))
    event = Event(
        at=snap.wall,
        key=key,
        window_start=window_start,
        event="noted",
        attempt=run.attempt if run else 0,
        generation=run.generation if run else 1,
        reason=text,
        owner=held[0] if held else "",
        trigger=run.trigger if run and held else "",
        host=host,
        data={"by": by} if by else {},
    )
    return Decision("note", events=(event,), guarded=False)


# --- events ---------------------------------------------------------------------------------------------------------


def _event(
    snap: Snapshot, run: Run, event: str, *, reason: str | None = None, host: str = "", data: Mapping[str, Any] = {}
) -> Event:
    return Event(
        at=snap.wall,
        key=run.key,
        window_start=run.window_start,
        event=event,
        attempt=run.attempt,
        generation=run.generation,
        reason=reason,
        owner=run.owner,
        trigger=run.trigger,
        version=run.version,
        host=host,
        data=data,
    )


def _event_of(held: Claim, at: float, event: str) -> Event:
    """Return an event of an attempt that is known by its claim only, whatever has become of its run."""
    return Event(
        at=at,
        key=held.key,
        window_start=held.window.start,
        event=event,
        attempt=held.attempt,
        generation=held.generation,
        owner=held.owner,
        trigger=held.trigger,
        version=held.version,
    )


def _expired(snap: Snapshot, run: Run, sightings: Mapping[str, Sighting], host: str) -> Event:
    dead = sightings.get(run.owner, UNKNOWN).state == "dead"
    why = "its process is dead" if dead else "its lease is over"
    return _event(snap, run, "expired", reason=why, host=host)


def _skip(snap: Snapshot, ask: Ask, refusal: Refusal) -> Decision:
    """Refuse, and record it. What is noted besides are leases seen for the first time from this clock: without that
    note, a lease from before a reboot would stand in the way for ever."""
    sights = [(held, sighted) for held in _considered_over(snap) if (sighted := first_sight(held.lease, snap))]
    noted = Decision(
        "skip",
        refusal=refusal,
        sighted=tuple(held.replace(lease=sighted) for held, sighted in sights),
        unchanged=tuple(held for held, _ in sights),
        guarded=False,
    )
    if not ask.record_skip:
        return noted
    run = snap.run
    data = {**ask.data}
    if refusal.holder:
        data["holder"] = refusal.holder
    if refusal.until is not None:
        data["until"] = refusal.until
    event = Event(
        at=snap.wall,
        key=ask.key,
        window_start=ask.window.start,
        event="skipped",
        attempt=run.attempt if run else 0,
        generation=run.generation if run else 1,
        reason=refusal.reason,
        owner=ask.owner,
        trigger=ask.trigger,
        version=ask.version,
        host=ask.host,
        data=data,
    )
    return noted.replace(events=(event,))


def at_the_write(decision: Decision, now: float, wall: float) -> Decision:
    """Return the decision with its instants moved to the moment it is written, which may be long after it was made.

    `now` is the store's lease clock, `wall` its real one, both read after all waiting.
    """
    lease, run, decided = decision.lease, decision.run, decision.wall
    if decided is None:
        return decision
    return decision.replace(
        lease=lease.replace(expires=now + lease.seconds) if lease else None,
        run=run.replace(started_at=wall) if run and run.started_at == decided else run,
        events=tuple(event.replace(at=wall) if event.at == decided else event for event in decision.events),
        steps=tuple(step.replace(at=wall) if step.at == decided else step for step in decision.steps),
        messages=tuple(_emitted_at(message, decided, wall) for message in decision.messages),
        wall=wall,
    )


def _emitted_at(message: Message, decided: float, wall: float) -> Message:
    at_once = message.created_at == message.due_at == decided
    return message.replace(created_at=wall, due_at=wall) if at_once else message


def left_behind(snap: Snapshot, decision: Decision) -> Snapshot | None:
    """Return what stands in the store once a claim's decision is committed, unless it is none that won anew."""
    if not (decision.accepted and decision.guarded and decision.run and decision.lease):
        return None
    return snap.replace(version=snap.version + 1, run=decision.run, lease=decision.lease)


def claim_of(decision: Decision, snap: Snapshot, ask: Ask) -> Claim:
    """Return the claim that a winning decision, once committed, gives its asker."""
    run = decision.run or snap.run
    assert run is not None
    assert decision.move in WINS
    return Claim(
        key=ask.key,
        window=ask.window,
        attempt=run.attempt,
        generation=run.generation,
        owner=run.owner,
        trigger=run.trigger,
        version=run.version,
        lease_seconds=ask.lease_seconds,
        started_at=run.started_at,
        reconciling=run.reconciling,
    )
