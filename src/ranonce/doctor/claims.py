"""Who is at work, who died, and what was left behind: leases in the store, attempts' files on this host, triggers."""

from __future__ import annotations

import os
import time
from collections import Counter

from ranonce.doctor.finding import Check, few
from ranonce.ledger import outcome_of
from ranonce.lifecycle import RUNNING, Sighting
from ranonce.liveness import is_owner, this_host, unrecorded
from ranonce.names import plain, shown_path
from ranonce.sight import sighting_of
from ranonce.standing import holder
from ranonce.started import python_start
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ranonce.doctor.finding import Finding
    from ranonce.lifecycle import Held, Run
    from ranonce.stores.base import Job, Store

#: Between two looks at what may only be on its way: a claim that is about to be committed, a verdict likewise.
SECOND_LOOK_SECONDS = 0.5
#: So many of a job's last windows are looked through for triggers that came more than once.
WINDOWS = 20
#: In so many of them it is no chance any more.
AGAIN = 3
#: A gate that is closed for longer than this may have been closed by a slip.
LONG_GATE_SECONDS = 14 * 86400.0


def claims(store: Store, jobs: list[Job], folder: str | None) -> Iterator[Finding]:
    """Look for claims with nobody behind them."""
    check = Check("claims", "looked for the process behind every claim")
    held = [(job, claim) for job in jobs for claim in store.leases(job.name)]
    working = 0
    found: list[Finding] = []
    for job, claim in held:
        run = _run_of(store, claim)
        if run is None or run.status != RUNNING or run.owner != claim.lease.owner:
            if _run_of(store, claim) == run and claim in store.leases(job.name):
                seen = f"{claim.key} has a claim, and its run is {run.status if run else 'not recorded'}"
                found.append(check.of(job.name).problem(seen, "ranonce doctor --deep: the file was changed by hand"))
            continue
        behind = holder(claim.lease, store.clock(), _sighting(store, folder, claim.lease.owner, claim.lease.process))
        started = python_start(store, job.name)
        step = started.again(claim.key.window) if started else f"ranonce run {job.name} --window {claim.key.window}"
        if not behind.alive and _ended(folder, claim.lease.owner) is None:
            began = format_instant(run.started_at)
            seen = f"{claim.key} began at {began} (attempt {run.attempt}) and has no verdict: {behind.why}"
            found.append(check.of(job.name).problem(plain(seen), f"the next trigger takes it over, or: {step}"))
        elif behind.orphan:
            found.append(check.of(job.name).problem(plain(f"{claim.key}: {behind.why}"), "then: " + step))
        else:
            working += 1
    yield from found
    if not found:
        yield check.ok(f"{few(working, 'claim is', 'claims are')} held, by who works" if working else "there is none")


def _run_of(store: Store, claim: Held) -> Run | None:
    runs = store.runs(claim.key.job, claim.window_start, claim.window_start + 1)
    return next((run for run in runs if run.key == claim.key), None)


def _sighting(store: Store, folder: str | None, owner: str, process: str = "") -> Sighting:
    return sighting_of(owner, process, folder=folder, beside=store.beside, here=this_host())


def _ended(folder: str | None, owner: str) -> str | None:
    return dict(unrecorded(folder)).get(owner) if folder is not None else None


# --- what attempts left on this host --------------------------------------------------------------------------------


def attempts(store: Store | None, folder: str, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[Finding]:
    """Look at the attempts' files of this host: outcomes that wait, and files with nothing behind them."""
    check = Check("attempts", f"looked at the files of attempts in {shown_path(folder)}")
    waiting = dict(unrecorded(folder))
    for owner, text in waiting.items():
        outcome = outcome_of(text)
        if outcome is None:
            yield check.problem(f"the outcome kept for attempt {owner} cannot be read", "release its window by hand")
            continue
        held, verdict = outcome
        seen = (
            f"{held.key} ended ({verdict.outcome}) at {format_instant(verdict.at)}, and that is not in the ledger yet"
        )
        yield check.of(held.key.job).problem(seen, f"the next run here records it first: ranonce run {held.key.job}")
    left = _without_claim(store, folder, waiting)
    if left:
        sleep(SECOND_LOOK_SECONDS)  # what is only on its way is gone then
        left = {owner: state for owner, state in _without_claim(store, folder, waiting).items() if owner in left}
    yield from _left(check, left)
    if not waiting and not left:
        yield check.ok("nothing was left behind")


def _without_claim(store: Store | None, folder: str, waiting: dict[str, str]) -> dict[str, Sighting]:
    """Return the attempts that have a file here and no claim in the store; without a store none can be told."""
    if store is None:
        return {}
    try:
        names = os.listdir(os.path.join(folder, "attempts"))
    except OSError:
        return {}
    held = {claim.lease.owner for job in store.jobs() for claim in store.leases(job.name)}
    owners = [name for name in names if is_owner(name) and name not in held and name not in waiting]
    return {owner: _sighting(store, folder, owner) for owner in owners}


def _left(check: Check, left: dict[str, Sighting]) -> Iterator[Finding]:
    for owner, sighting in left.items():
        if sighting.state == "alive":
            seen = f"process {sighting.pid} ({plain(sighting.name)}) of attempt {owner} works on without a claim"
            yield check.problem(seen, f"wait for it, or end it: kill {sighting.pid}")
        elif sighting.state == "locked":
            seen = f"the lock of attempt {owner} is held by a process that is not seen here, and it has no claim"
            yield check.note(seen, "look for a background process of the job (fuser)")
    dead = sum(sighting.state in ("dead", "unknown") for sighting in left.values())
    if dead:
        yield check.note(f"{few(dead, 'file')} of attempts that are long over: harmless", "ranonce prune removes them")


# --- triggers and gates ---------------------------------------------------------------------------------------------


def triggers(store: Store, jobs: list[Job]) -> Iterator[Finding]:
    """Look for windows that more than one scheduled trigger came for, time and again."""
    check = Check("triggers", f"counted the triggers of the last {WINDOWS} windows of each job")
    found = []
    for job in jobs:
        runs = store.latest(job.name, WINDOWS)
        if not runs:
            continue
        since, until = runs[-1].window_start, runs[0].window_start + 1
        again: Counter[int] = Counter()
        hosts: set[str] = set()
        for event in store.notable_events(job.name, since, until):
            if event.event == "skipped" and event.reason in ("done", "busy") and event.trigger == "schedule":
                again[event.window_start] += 1
                hosts.add(event.host)
        if len(again) >= AGAIN:
            most = max(again.values()) + 1
            seen = f"{few(len(again), 'window')} of the last {len(runs)} had up to {most} triggers, from {_list(hosts)}"
            step = "harmless, if meant; else look for a second line (crontab -l, /etc/cron.d, systemctl list-timers)"
            found.append(check.of(job.name).note(plain(seen), step))
    yield from found
    if not found:
        yield check.ok("none comes twice time and again")


def _list(names: set[str]) -> str:
    return ", ".join(sorted(name or "an unnamed host" for name in names))


def gates(store: Store) -> Iterator[Finding]:
    """Tell which gates are closed now, and for how long."""
    check = Check("gates", "looked for closed gates")
    now = store.clock().wall
    closed = [gate for gate in store.gates() if gate.until > now]
    for gate in closed:
        seen = f"{gate.name} is closed until {format_instant(gate.until)} (by {gate.job}: {plain(gate.reason)})"
        long = gate.until - now > LONG_GATE_SECONDS
        yield check.note(seen, f"is that meant? To open it: ranonce gate {gate.name} --open" if long else "")
    if not closed:
        yield check.ok("all are open")
