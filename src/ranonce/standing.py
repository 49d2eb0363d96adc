"""Where a run stands, in words for people: its state at one instant, with what is known of whoever holds it. Pure.

The words for a window's state are those of a run (`done failed stopped held running`), and four more: `zombie` (it
runs by its record, and nobody is alive behind it), `missing` (due, and never started), `expected` (not started, and
not missing yet: in the future, or its trigger may still come) and `pruned` (it ran, and its record was pruned).
"""

from __future__ import annotations

from ranonce.claimant import shown
from ranonce.lifecycle import DONE, FAILED, RUNNING, STOPPED, UNKNOWN, lease_ends
from ranonce.record import Record
from ranonce.timefmt import format_duration, format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.lifecycle import Lease, Run, Sighting
    from ranonce.stores.base import Clock

ZOMBIE, MISSING, EXPECTED, PRUNED = "zombie", "missing", "expected", "pruned"
STATES = (DONE, FAILED, STOPPED, "held", RUNNING, ZOMBIE, MISSING, EXPECTED, PRUNED)

#: A run is stuck when it has been at work for longer than so many of its windows.
STUCK_AFTER_WINDOWS = 2


class Holder(Record):
    """What is known of the attempt behind a running run: does it live, and how is that known?

    `until` is when its lease ends, in unix seconds, as far as that can be told.
    """

    alive: bool
    why: str
    until: float | None = None
    process: str = ""
    orphan: bool = False  # something of it lives, and nobody renews its lease any more


def holder(lease: Lease | None, clock: Clock, sighting: Sighting = UNKNOWN) -> Holder:
    """Judge a claim by the store's clock and by what this host saw of its process.

    A lease that was written under another boot of the host is over: its holder ended with that boot.
    """
    process = shown(lease.process) if lease else ""
    if sighting.state == "alive":
        in_time = lease is None or lease_ends(lease, clock.domain, clock.now, clock.wall) > clock.now
        if sighting.pid is None:  # by its sign: whoever keeps the claim lives, wherever that is
            late = "" if in_time else ", and cannot renew its lease: is it paused, the ledger locked, the disk full?"
            return Holder(True, f"{sighting.name or 'its process'} works{late}", process=process)
        works = f"process {sighting.pid} ({sighting.name}) works"
        if in_time and not sighting.orphan:
            return Holder(True, works, process=process)
        alone = "its ranonce is dead" if sighting.orphan else "its lease is over"
        blocks = f"{alone}, so nobody will record how it ends; until then nothing is started beside it"
        return Holder(
            True, f"{works} on, but {blocks}: wait for it, or end it (kill {sighting.pid})", None, process, True
        )
    if sighting.state == "dead":
        return Holder(False, "its process is dead", process=process)
    if lease is None:
        return Holder(False, "there is no lease for it")
    if _boot(lease.domain) != _boot(clock.domain):
        return Holder(False, "the host was restarted since", process=process)
    ends = clock.wall + lease_ends(lease, clock.domain, clock.now, clock.wall) - clock.now
    if ends > clock.wall:
        return Holder(True, f"its lease is good until {format_instant(ends)}", ends, process)
    return Holder(False, f"its lease ended at {format_instant(ends)}", ends, process)


def waits(outcome: str) -> str:
    """Say that an attempt's outcome is known on this host only, and what records it."""
    return f"its outcome ({outcome}) waits on this host to be recorded: ranonce run JOB, whichever job it is"


def _boot(domain: str) -> str:
    """Return the part of a clock's name that changes when its host is restarted; a server's clock has no other."""
    return domain.partition("/")[0]


def state_of(run: Run, alive: bool) -> str:
    """Return the word for a run's state; `alive` says whether somebody is behind it, and counts where it runs."""
    return ZOMBIE if run.status == RUNNING and not alive else run.status


def stuck(run: Run, now: float) -> bool:
    """Say whether a run that is at work has been so for too long."""
    return now - run.started_at > STUCK_AFTER_WINDOWS * (run.window_end - run.window_start)


def since(run: Run) -> float:
    """Return the instant since which a run is in its state."""
    return run.finished_at if run.status != RUNNING and run.finished_at is not None else run.started_at


def how_it_ended(run: Run) -> str:
    """Return exit status and reason of an attempt's end, as far as they are known: `exit 1: disk full`."""
    told = f"exit {run.exit}" if run.exit is not None else ""
    if run.reason and run.reason != told:
        told = f"{told}: {run.reason}" if told else run.reason
    return told or "no reason given"


def worked(run: Run) -> str:
    """Return when a run's last attempt worked, for people."""
    began = format_instant(run.started_at)
    if run.finished_at is None:
        return f"since {began}"
    return f"{began} for {format_duration(max(0.0, run.finished_at - run.started_at))}"
