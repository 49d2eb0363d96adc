"""The keys of a ledger in Redis, what each holds, and records as the values that stand in them.

All keys of a ledger begin with `{NAME}:`, so they lie together even in a cluster. Values are JSON lists. What a script
must compare or change by itself stands first in them: the instants of the write, an attempt and its owner. Instants are
rounded to the millisecond, as in every ledger, but for the end of a lease: whole microseconds, compared to the last.
"""

from __future__ import annotations

import math

from ranonce import jsontext as json
from ranonce.lifecycle import DONE, Event, Gate, Held, Lease, Run, RunKey, ScheduleVersion
from ranonce.stores import values
from ranonce.stores.base import Job, Tombstone
from ranonce.stores.values import damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
#: The clock that leases count in: the server's. One constant, since there is one server that writes.
DOMAIN = "server"
#: Stands for the moment of a write in a decision that is yet to be written.
MOMENT = math.inf

#: What the keys hold, and the letter of their type: h(ash), z (sorted set), l(ist). Those below are one for each job,
#: or destination. Those of messages and steps come with the first of them.
KINDS = {
    "ledger": "h",  # id, format, created_at, epoch, volatile, seq, pruned_seq, edition, message_seq
    "events": "h",  # number -> event
    "pages": "z",  # numbers / 256 under which there are events
    "fill": "h",  # such a page -> how many events it has
    "output": "h",  # number -> what was kept of a command's output
    "jobs": "h",  # job -> its settings
    "versions": "h",  # job -> its version
    "gates": "h",  # gate -> how it was closed
    "epochs": "l",  # the losses that were accepted
    "messages": "h",  # number -> message
    "message_keys": "h",  # a message's key -> its number
    "bodies": "h",  # number -> body
    "numbers": "z",  # numbers of messages, in order
    "destinations": "h",  # destination -> who took last, when its rate lets one go, until when it is closed, why
    # of a job
    "schedules": "l",  # its versions, oldest first
    "runs": "h",  # place -> run
    "order": "z",  # places, by start
    "notable": "z",  # those of runs that are more than done at the first attempt and in time
    "waiting": "z",  # those of runs that are failed, stopped or held
    "leases": "h",  # place -> lease
    "work": "z",  # numbers of events that say `start` or `done`, by start of the window
    "besides": "z",  # numbers of all other events
    "tombstones": "z",  # spans of pruned windows, by where they begin
    "steps": "z",  # places of steps: of the run, then generation and name; by start
    "results": "h",  # such a place -> step, with its result
    "emitted": "z",  # numbers of messages, by start of the window
    "undelivered": "z",  # those of them that wait for somebody
    # of a destination: numbers of messages with 16 digits, by when they are due
    "pending": "z",
    "sending": "z",
    "aside": "z",  # those that are unsure or dead
}
#: How many numbers of events share a page; `redis.lua` has it, too.
PAGE = 256


class Keys:
    """The names of a ledger's keys."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"{{{namespace}}}:"

    def __call__(self, what: str, job: str | None = None) -> str:
        """Return the name of a key."""
        return f"{self.prefix}{what}" if job is None else f"{self.prefix}{what}:{job}"

    def kind(self, name: str) -> str:
        """Return the letter of a key's type."""
        return KINDS[name[len(self.prefix) :].partition(":")[0]]


# --- places ---------------------------------------------------------------------------------------------------------


def place_of(key: RunKey, window_start: int) -> str:
    """Return what names a run among those of its job. Places that start together sort as window and input do."""
    return f"{window_start}\0{key.window}\0{key.input}"


def start_of(place: bytes) -> int:
    """Return where the window of a place starts."""
    return number_of(place.partition(b"\0")[0])


def key_of(job: str, place: bytes) -> RunKey:
    """Return the key of the run at a place."""
    _, _, rest = text_of(place).partition("\0")
    window, zero, digest = rest.rpartition("\0")
    if not zero:
        raise damaged(place)
    return RunKey(job, window, digest)


def number_of(told: bytes) -> int:
    """Return the whole number that a field, or a member of an index, is: written as we write it."""
    try:
        number = int(told[:17])
    except ValueError as error:
        raise damaged(told) from error
    if b"%d" % number != told:
        raise damaged(told)
    return number


def text_of(told: bytes) -> str:
    """Return the text that is kept so."""
    try:
        return told.decode("utf-8", "surrogatepass")
    except ValueError as error:
        raise damaged(told) from error


# --- values ---------------------------------------------------------------------------------------------------------


def instant(moment: float | None) -> str:
    """Return an instant as it stands in a value, or `now` for the moment of the write."""
    if moment is None:
        return "null"
    return "now" if moment == MOMENT else repr(round(moment, 3))


def following(*told: object) -> str:
    """Return what follows the first item of a list."""
    return f",{json.compact(list(told))[1:]}"


def read(value: bytes | None) -> list[Any]:
    """Return the list that a value is."""
    try:
        told = json.loads(value) if value is not None else None
    except ValueError as error:
        raise damaged(value) from error
    if not isinstance(told, list):
        raise damaged(value)
    return told


def _at_least(count: int, value: bytes) -> list[Any]:
    told = read(value)
    if len(told) < count:
        raise damaged(value)
    return told


def microseconds(seconds: float) -> int:
    """Return seconds in whole microseconds."""
    return round(seconds * 1_000_000)


def _rounded(moment: float | None) -> float | None:
    return None if moment is None else round(moment, 3)


def holder(attempt: int, owner: str) -> str:
    """Return attempt and owner as they stand in a lease or a run."""
    return f"{json.compact([attempt, owner])[1:-1]},"


def run_rest(run: Run) -> str:
    """Return a run as what follows the instant of its start. Job, window and input stand elsewhere."""
    return following(
        _rounded(run.finished_at),
        run.window_end,
        run.schedule,
        run.attempt,  # the fifth and sixth: `redis.lua` compares them
        run.owner,
        run.status,
        run.generation,
        run.failures,
        run.trigger,
        run.version,
        run.fingerprint,
        _rounded(run.resume_at),
        run.reason,
        run.exit,
        run.late,
        run.reconciling,
        run.granted,
    )


def run_of(job: str, place: bytes, value: bytes | None) -> Run:
    """Return the run at a place."""
    key = key_of(job, place)
    try:
        began, ended, end, schedule, attempt, owner, status, generation, failures, trigger, *rest = read(value)
        version, fingerprint, resume, reason, code, *flags = rest
    except ValueError as error:
        raise damaged(value) from error
    state = (start_of(place), end, status, generation, attempt, owner, failures, schedule, trigger, began)
    named = (key.job, key.window, key.input)
    return values.run_of([*named, *state, version, fingerprint, ended, resume, reason, code, *flags])


def plain(run: Run) -> bool:
    """Whether a run is no more than done at the first attempt and in time."""
    return run.status == DONE and run.attempt == 1 and not run.late


def lease_rest(lease: Lease) -> str:
    """Return a lease as what follows its end."""
    seen = (lease.seen_domain, lease.seen_at, lease.seen_wall)
    return following(lease.attempt, lease.owner, lease.domain, lease.seconds, lease.process, *seen)


def held_of(job: str, place: bytes, value: bytes) -> Held:
    """Return the claim on the run at a place."""
    try:
        expires, attempt, owner, domain, *rest = read(value)
        ends = int(expires) / 1_000_000
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged(value) from error
    key = key_of(job, place)
    return values.held_of(job, [key.window, key.input, start_of(place), owner, attempt, domain, ends, *rest])


def event_rest(event: Event) -> str:
    """Return an event as what follows its instant, without its output and its number."""
    return following(*values.event_values(event)[1:])


def event_of(seq: int, value: bytes | None, output: bytes | None = None) -> Event:
    """Return the event of a number."""
    return values.event_of(read(value), seq, output)


def gate_rest(gate: Gate) -> str:
    """Return a gate as what follows its end."""
    return following(_rounded(gate.closed_at), gate.name, gate.reason, gate.job)


def gate_of(value: bytes) -> Gate:
    """Return the gate of a value."""
    until, closed_at, *named = _at_least(2, value)
    return values.gate_of([*named[:1], until, *named[1:], closed_at])


def schedule_rest(version: ScheduleVersion) -> str:
    """Return a version of a schedule as what follows the instant it was recorded at."""
    number, *rule, _ = version.as_dict().values()
    return following(number, *rule)


def schedule_of(value: bytes) -> ScheduleVersion:
    """Return the version of a schedule."""
    recorded_at, *rule = _at_least(1, value)
    return values.schedule_of([*rule, recorded_at])


def job_rest(job: Job) -> str:
    """Return a job as what follows the instant of its declaration; its name and version stand elsewhere."""
    return following(job.late_after, job.max_attempts)


def job_of(name: str, version: bytes, value: bytes | None) -> Job:
    """Return the job of a name."""
    return values.job_of([name, number_of(version), *read(value)])


def tombstone_value(stone: Tombstone) -> str:
    """Return a tombstone as the member of its set."""
    return json.compact([stone.since, stone.until, stone.runs, stone.failed, round(stone.pruned_at, 3)])


def tombstone_of(job: str, value: bytes) -> Tombstone:
    """Return the tombstone that a member stands for."""
    return values.tombstone_of([job, *read(value)])
