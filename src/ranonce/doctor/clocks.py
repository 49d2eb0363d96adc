"""Is it as late as this host says, and do the schedulers fire when the jobs' schedules say?"""

from __future__ import annotations

import time
from itertools import pairwise

from ranonce.doctor.finding import Check, few, step_of
from ranonce.errors import RanonceError
from ranonce.expectation import schedule_of
from ranonce.lateness import habit
from ranonce.ledger import CLOCK_JUMP_SECONDS, CLOCK_SLACK_SECONDS
from ranonce.lifecycle import FUTURE_SLACK_SECONDS, present_schedules
from ranonce.liveness import boot_clock
from ranonce.schedulers.crontab import host_zone
from ranonce.storeclock import StoreClock
from ranonce.timefmt import format_duration, format_instant
from ranonce.zones import load_zone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ranonce.doctor.finding import Finding
    from ranonce.journal import Journal
    from ranonce.lifecycle import Run, ScheduleVersion
    from ranonce.stores.base import Job, Store
    from ranonce.windows import Schedule

#: So many of the ledger's last events are looked through for a clock that went back.
EVENTS = 500
#: So many of a job's last runs say what its habits are.
RUNS = 30
#: How long the two clocks are watched, to see whether both go.
WATCH_SECONDS = 0.05
SET = "set the clock, and keep it right (timedatectl, chrony)"


def clock(
    store: Store | None,
    journal: Journal | None,
    facts: list[dict[str, Any]],
    *,
    wall: Callable[[], float] = time.time,
    boot: Callable[[], float] = boot_clock,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Finding]:
    """Compare the real clock with the boot clock and with what was recorded. `facts` are the journal's last."""
    check = Check("clock", "compared the real clock with the boot clock and the last events")
    found = list(_going(check, wall, boot, sleep))
    now = wall()
    if store is not None and store.beside is None:  # a server has a clock of its own, which dates all that is recorded
        clock = StoreClock(wall=wall, boot=boot)
        asked_at = boot()
        clock.seen(store.clock().wall, asked_at)
        found += _apart(check, clock.ahead())
        now = clock.now()
    jump = journal.clock_jump(facts, now) if journal is not None else 0.0
    if abs(jump) > CLOCK_JUMP_SECONDS:
        way = "forward" if jump > 0 else "back, or stands still,"
        seen = f"it has gone {way} by {format_duration(abs(jump))} since the last event of this host"
        found.append(check.problem(seen, f"{SET}; if it is right now, the next run of a job settles this"))
    if store is not None:
        found += _recorded(check, store, now)
    if found:
        yield from found
    else:
        yield check.ok(f"it is {format_instant(now)}, and nothing contradicts that")


def _going(
    check: Check, wall: Callable[[], float], boot: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[Finding]:
    began, booted = wall(), boot()
    sleep(WATCH_SECONDS)
    went, passed = wall() - began, boot() - booted
    if went <= 0:
        yield check.problem(f"it stands still: {went:g} s in {passed:.3f} s", SET)


def _apart(check: Check, ahead: float) -> Iterator[Finding]:
    if ahead:
        way = "ahead of" if ahead > 0 else "behind"
        yield check.problem(f"it is {format_duration(abs(ahead))} {way} the store's, which counts", SET)


def _recorded(check: Check, store: Store, now: float) -> Iterator[Finding]:
    last = store.newest_events(EVENTS)
    if last and last[0].at > now + CLOCK_SLACK_SECONDS:
        behind = format_duration(last[0].at - now)
        seen = f"it is {behind} behind the ledger's last event ({format_instant(last[0].at)}, of {last[0].key})"
        yield check.problem(seen, f"{SET}; if it is right, that event was made under a clock that was ahead")
    # Verdicts may be recorded long after they were reached; starts and refusals never are, but for those of an import.
    own = [event for event in reversed(last) if event.event in ("start", "skipped") and "imported" not in event.data]
    back = []
    for host in dict.fromkeys(event.host for event in own):
        written = [event for event in own if event.host == host]
        back += [pair for pair in pairwise(written) if pair[1].at < pair[0].at - FUTURE_SLACK_SECONDS]
    if back:
        before, after = max(back, key=lambda pair: pair[1].seq or 0)
        by = format_duration(before.at - after.at)
        seen = f"it went back {few(len(back), 'time')} in the last events, last by {by} at event {after.seq}"
        yield check.note(f"{seen} on {after.host}", "see that this host keeps its time; windows are not harmed")


# --- schedules ------------------------------------------------------------------------------------------------------


def schedules(store: Store, jobs: list[Job], *, host: Callable[[], str] = host_zone) -> Iterator[Finding]:
    """Compare when the jobs' schedulers fire them, as their last runs show, with their schedules."""
    zone = host()
    check = Check("schedule", f"compared the last starts with the schedule; cron here counts in {zone}")
    fine = 0
    for job in jobs:
        versions = present_schedules(store.schedules(job.name), store.clock().wall)
        if not versions or versions[-1].every == "never":
            continue
        try:
            found = list(_of_job(check.of(job.name), store, job, versions[-1], zone))
        except RanonceError as error:
            found = [check.of(job.name).problem(error.sentence, step_of(error.next_step))]
        fine += not found
        yield from found
    if fine:
        yield check.ok(f"nothing speaks against the schedules of {few(fine, 'job')}")


def _of_job(check: Check, store: Store, job: Job, version: ScheduleVersion, zone: str) -> Iterator[Finding]:
    schedule = schedule_of(version)
    starts = [
        (_tick(schedule, version, run), run.started_at)
        for run in store.latest(job.name, RUNS)
        if run.trigger == "schedule" and run.attempt == 1 and run.schedule == version.number
    ]
    rule = f"{schedule.every!r} in {schedule.tz}"
    always = habit(schedule, starts, dict.fromkeys((zone, "UTC")))
    # A calendar window may be served at any hour of it: that is only worth a word where it looks like a slip.
    if always is not None and (schedule.is_cron or always.zone is not None):
        late = format_duration(round(always.seconds / 60) * 60)
        seen = f"{rule} starts {late} late, each time (the last {few(always.runs, 'scheduled run')})"
        if always.zone is not None:
            level = check.problem if schedule.is_cron else check.note
            yield level(f"{seen}: its line fires by the clock of {always.zone}", _in_zone(job, schedule, always.zone))
        else:
            level = check.problem if always.seconds >= job.late_after else check.note
            yield level(
                f"{seen}: {_clock_time(starts[0][1], zone)} by {zone}", _at_hour(job, schedule, starts[0][1], zone)
            )
    elif not starts and schedule.is_cron and version.dialect == "debian" and zone != schedule.tz:
        yield check.note(
            f"{rule}, and cron here counts in {zone}; no scheduled run shows yet when its line fires",
            f"use the lines that ranonce add {job.name} prints",
        )


def _in_zone(job: Job, schedule: Schedule, zone: str) -> str:
    return (
        f"let it fire in {schedule.tz} (CRON_TZ={schedule.tz} where cron knows that; ranonce add {job.name} prints the"
        f" lines), or declare what you mean: ranonce add {job.name} --tz {zone}"
    )


def _at_hour(job: Job, schedule: Schedule, began: float, zone: str) -> str:
    correct = f"correct its line (ranonce add {job.name} prints it)"
    words = schedule.every.split()
    if words[2:] != ["*", "*", "*"]:
        return correct
    hour, minute = _clock_time(began, zone).split(":")
    fits = f"{int(minute)} {int(hour)} * * *"
    return f"{correct}, or declare the hour it has: ranonce add {job.name} --every '{fits}' --tz {zone}"


def _clock_time(instant: float, zone: str) -> str:
    """Return what a clock on the wall of a zone reads: `04:30`."""
    offset = 0 if zone == "UTC" else load_zone(zone).offset(int(instant))
    minutes = int(instant + offset) % 86400 // 60
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _tick(schedule: Schedule, version: ScheduleVersion, run: Run) -> int:
    """Return the tick at which the trigger for a run was to come."""
    if not version.offset:
        return run.window_start
    return schedule.shift(schedule.window_at(run.window_start), -version.offset).start
