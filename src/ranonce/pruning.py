"""Forget what was over long ago: runs go with their events, a tombstone stays, and the window is never run again.

How old something is, is counted to the newest recorded event, and never to a clock alone: a host whose clock says 2030
prunes no more than one whose clock is right. Batches are small, each a transaction of its own, so that jobs go on and
a pruning that was broken off is gone on with by the same command. What also grows on this host, the files of ended
attempts and the journal, is cleared with it.
"""

from __future__ import annotations

from ranonce.errors import ConfigError, UsageError
from ranonce.journal_upkeep import forget_pruned
from ranonce.ledger import CLOCK_JUMP_SECONDS
from ranonce.lifecycle import FAILED, FUTURE_SLACK_SECONDS, HELD, RUNNING, STOPPED, Retention, prunable
from ranonce.liveness import abandoned, forget
from ranonce.record import Record
from ranonce.stores.base import FIRST, Wanted, spared
from ranonce.timefmt import DAY, FIRST_INSTANT, format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ranonce.journal_upkeep import Forgotten
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Run
    from ranonce.stores.base import Store

#: So many failed, stopped and held runs of a job are named as kept; beyond, the count is "at least".
MOST_KEPT = 10_000
FAR = 1 << 62
NEWEST = "newest"


class Bounds(Record):
    """What may go. Ages are counted to `as_of`; `now` is what the clock, or the caller, says."""

    keep: Retention
    as_of: float
    now: float


class JobPruned(Record):
    """What became of one job's runs. `kept`: how many old ones stay, by reason; `complete`: all of them were gone to.

    Reasons are `held`, `stopped`, `running` (each waits for somebody), `failed` (kept longer than what is done) and
    `newest` (the newest run, the newest done one, and the one with the ledger's last event). `undelivered` messages of
    windows that old stay, too.
    """

    job: str
    runs: int
    events: int
    kept: dict[str, int]
    complete: bool = True
    undelivered: int = 0


# --- how far back ---------------------------------------------------------------------------------------------------


def bounds(ledger: OpenLedger, *, older_than: float, failed_older_than: float, now: float | None = None) -> Bounds:
    """Return what may go: what was over for so many seconds, as far as recorded events say that time has gone by.

    UsageError where failures would go before what is done. ConfigError while this host's clock is known to be wrong.
    """
    if failed_older_than < older_than:
        raise UsageError(
            f"failures would be kept for {format_duration(failed_older_than)}, and what is done for "
            f"{format_duration(older_than)}.",
            "Nothing was pruned. Keep failures at least as long: --failed-older-than",
        )
    wall = ledger.store.clock().wall
    _refuse_wrong_clock(ledger, wall)
    last = ledger.store.newest_events(1)
    asked = wall if now is None else now
    as_of = min(asked, last[0].at if last else wall)
    keep = Retention(max(as_of - older_than, FIRST_INSTANT), max(as_of - failed_older_than, FIRST_INSTANT))
    return Bounds(keep, as_of, asked)


def _refuse_wrong_clock(ledger: OpenLedger, wall: float) -> None:
    """Refuse to judge ages by events that may have been recorded under a wrong clock."""
    last = ledger.store.newest_events(1)
    if last and last[0].at > wall + FUTURE_SLACK_SECONDS:
        raise ConfigError(
            f"the ledger's last event is {format_duration(last[0].at - wall)} ahead of this host's clock.",
            "Nothing was pruned. Set the clock; if the event was recorded under a wrong one, prune after the next run.",
        )
    if ledger.journal is None:
        return
    facts = ledger.journal.tail()
    for seen in range(len(facts), 0, -1):
        jump = ledger.journal.clock_jump(facts[:seen], wall)
        if abs(jump) > CLOCK_JUMP_SECONDS:
            way = "forward" if jump > 0 else "back, or stood still,"
            raise ConfigError(
                f"this host's clock has gone {way} by {format_duration(abs(jump))} since {facts[seen - 1]['at']}.",
                "Nothing was pruned, since ages may be wrong. Set the clock; a few runs later pruning goes on.",
            )


# --- runs and events ------------------------------------------------------------------------------------------------


def prune_job(
    ledger: OpenLedger, job: str, keep: Retention, *, go_on: Callable[[], bool], told: Callable[[int, int], None]
) -> JobPruned:
    """Prune one job, batch after batch, as long as `go_on` says so; `told` hears runs and events after each."""
    upkeep = ledger.store.upkeep()
    runs = events = 0
    place = FIRST
    while go_on():
        batch = upkeep.prune(job, keep, after=place)
        runs, events = runs + batch.runs, events + batch.events
        told(runs, events)
        if batch.upto is None:
            kept = _kept(_old_ones(ledger.store, job, keep), ledger.store, job, keep)
            return JobPruned(job, runs, events, kept, undelivered=_undelivered(ledger.store, job, keep))
        place = batch.upto
    return JobPruned(job, runs, events, {}, complete=False)


def would_prune(ledger: OpenLedger, jobs: list[str], keep: Retention) -> list[JobPruned]:
    """Return what `prune_job` would do, by going through every run. Events are not counted."""
    store = ledger.store
    staying = {job: spared(store, job) for job in jobs}
    told = {job: JobPruned(job, 0, 0, {}) for job in jobs}
    for run in store.upkeep().all_runs():
        job = run.key.job
        if job not in told:
            continue
        why = _why_kept(run, keep, staying[job])
        if why is None and prunable(run, keep):
            told[job] = told[job].replace(runs=told[job].runs + 1)
        elif why is not None:
            told[job].kept[why] = told[job].kept.get(why, 0) + 1
    return [one.replace(undelivered=_undelivered(store, one.job, keep)) for one in told.values()]


def leaves_effects(ledger: OpenLedger, jobs: list[str]) -> bool:
    """Say whether runs of these jobs may have left steps or messages, which would go with them."""
    store = ledger.store
    return next(store.upkeep().all_steps(), None) is not None or any(
        store.outbox().messages(Wanted(job=job), limit=1) for job in jobs
    )


def _undelivered(store: Store, job: str, keep: Retention) -> int:
    """Count the messages of old windows that wait for somebody: they stay, whatever becomes of their runs.

    Old is what pruning calls so: a window whose run was over before, or that has none any more.
    """
    counts: dict[tuple[str, int], int] = {}
    for one in store.outbox().waiting(job, FIRST.window_start, int(min(keep.done_before, FAR))):
        counts[one.window, one.window_start] = counts.get((one.window, one.window_start), 0) + one.count
    return sum(count for (window, start), count in counts.items() if _is_old(store, job, window, start, keep))


def _is_old(store: Store, job: str, window: str, start: int, keep: Retention) -> bool:
    runs = [run for run in store.runs(job, start, start + 1) if run.key.window == window]
    return not runs or any(_over(run) <= keep.done_before for run in runs)


def _over(run: Run) -> float:
    """Return when a run was over; of one that works, when its window was."""
    return run.window_end if run.status == RUNNING else max(run.window_end, run.finished_at or run.started_at)


def _kept(runs: Iterable[Run], store: Store, job: str, keep: Retention) -> dict[str, int]:
    staying, kept = spared(store, job), dict[str, int]()
    for run in runs:
        if why := _why_kept(run, keep, staying):
            kept[why] = kept.get(why, 0) + 1
    return kept


def _old_ones(store: Store, job: str, keep: Retention) -> list[Run]:
    """Return the runs that may be old and still stay, without going through all of them."""
    before = int(min(max(keep.done_before, keep.failed_before), FAR))
    starts = {held.window_start for held in store.leases(job)} | spared(store, job)
    found = store.unfinished(job, before, MOST_KEPT) + [
        run for start in starts if start < before for run in store.runs(job, start, start + 1)
    ]
    return list({(run.key, run.window_start): run for run in found}.values())


def _why_kept(run: Run, keep: Retention, staying: set[int]) -> str | None:
    """Return why an old run stays; None for one that goes, or is not old."""
    if prunable(run, keep):
        return NEWEST if run.window_start in staying else None
    if _over(run) > keep.done_before:
        return None
    return run.status if run.status in (HELD, STOPPED, RUNNING, FAILED) else None


# --- this host ------------------------------------------------------------------------------------------------------


def clear_attempts(ledger: OpenLedger) -> int:
    """Remove the files of attempts that ended without an outcome more than a day ago; return how many there were.

    An attempt that a lease still names is not over for the ledger: its file may prove that it is dead.
    """
    if ledger.folder is None:
        return 0
    owners = abandoned(ledger.folder, ledger.store.clock().wall - DAY)
    if not owners:
        return 0
    held = {held.lease.owner for job in ledger.store.jobs() for held in ledger.store.leases(job.name)}
    return sum(forget(ledger.folder, owner) for owner in owners if owner not in held)


def clear_journal(ledger: OpenLedger) -> Forgotten | None:
    """Let this host's journal forget what is pruned, where that is worth the work. A failure is a warning."""
    if ledger.journal is None:
        return None
    try:
        return forget_pruned(ledger.journal, ledger.store)
    except OSError as error:
        ledger.warnings.append(f"the journal {ledger.journal.path!r} could not be written anew: {error.strerror}")
        return None
