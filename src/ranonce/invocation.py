"""One call for work: which job, under which settings, on which windows, in which order.

What is asked comes from a command line or from Python; the rules are the same, so they stand here once. A declared job
needs no more than its name, what is said now is put over what stands in the configuration, and a schedule that
contradicts the declared one is refused.
"""

from __future__ import annotations

import os
import stat

from ranonce.catchup import earlier_windows
from ranonce.config import resolve_version
from ranonce.errors import ConfigError, UsageError
from ranonce.jobspec import JobSpec, check_job
from ranonce.ledger import schedule_of
from ranonce.lifecycle import RunKey, ScheduleVersion
from ranonce.record import Record
from ranonce.stores.base import Job
from ranonce.terms import Order, Terms
from ranonce.windows import Schedule, choose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ranonce.config import Config
    from ranonce.ledger import Declared, OpenLedger
    from ranonce.signals import Signals
    from ranonce.terms import Result
    from ranonce.windows import Window


class Asked(Record):
    """What one call asks for. Instants are unix seconds.

    `now` is what chooses windows and delays, None for the present. `settings` are the job's settings that were given
    with it, by their names in `JobSpec`; `digest` is the full SHA-256 of the input, `terminal` whether a person sits
    before it. `rerun` is the reason to do the window again, `rerun_data` who asks for it and how.
    """

    now: float | None = None
    settings: Mapping[str, Any] = {}
    window: str | None = None
    scheduled_at: float | None = None
    digest: str | None = None
    trigger: str | None = None
    terminal: bool = False
    rerun: str | None = None
    rerun_data: Mapping[str, Any] = {}


class Invocation:
    """One call for a job's work. Raises UsageError or ConfigError where the job's settings do not fit together."""

    def __init__(self, job: str, asked: Asked, environ: Mapping[str, str], config: Config, ledger: OpenLedger) -> None:
        self.asked = asked
        self.environ = environ
        self.config = config
        self.ledger = ledger
        #: What chooses windows and delays: the present, by the clock that leases and events go by, unless one was told.
        self.now = ledger.now() if asked.now is None else asked.now
        ledger.warn_of_the_clock()
        self.spec = self._spec(job)

    def _spec(self, job: str) -> JobSpec:
        """Put together what the file, the ledger and the caller say of the job."""
        spec = self.config.jobs.get(job)
        if spec is None:
            spec = JobSpec(job)
            recorded = self.ledger.declared(job)
            if recorded is not None:
                version = recorded.version
                spec = spec.replace(every=version.every, tz=version.tz, dialect=version.dialect, offset=version.offset)
        told = check_job(spec.replace(**self.asked.settings)) if self.asked.settings else spec
        if told.every is None:
            raise UsageError(
                f"nobody has declared the job {job!r}, so its window is not known.",
                f"Declare it (ranonce add {job} --every …) or say it here: --every day.",
            )
        schedule_given = self.asked.settings.keys() & {"every", "tz", "dialect", "offset"}
        if schedule_given and spec.every is not None and _rule(spec) != _rule(told):
            raise ConfigError(
                f"{job!r} is declared as {spec.every!r} in {spec.tz}, which this call contradicts.",
                f"Nothing was run. Change it on purpose: ranonce add {job} --every …",
            )
        return told

    def terms(self, signals: Signals, *, raw_exit: bool = False) -> Terms:
        """Return what all windows of this invocation have in common."""
        return Terms(
            self.ledger,
            self.spec,
            signals,
            self.config.ledger.store,
            version=resolve_version(self.spec, self.config.folder or "."),
            fingerprint=self.asked.digest if self.spec.input_mode == "fingerprint" else None,
            raw_exit=raw_exit,
            config=self.config.path,
            destinations=self.config.destinations,
        )

    def declared(self) -> Declared:
        """Record what has to be recorded before any window is claimed; return the job's schedule.

        First the outcomes that earlier invocations on this host could not record: work that was done is not done again.
        """
        for key, outcome in self.ledger.settle_unrecorded():
            self.ledger.warnings.append(f"recorded first what an earlier run could not: {key} {outcome}")
        spec = self.spec
        assert spec.every is not None
        job = Job(spec.name, 0, self.now, spec.late_after, spec.max_attempts)
        every = Schedule(spec.every, spec.tz, spec.dialect)
        declared, changed = self.ledger.declare(
            job, every, spec.offset, now=self.now, change=spec.declared, still=self._still_stands
        )
        if changed:
            self.ledger.warnings.append(
                f"the schedule has changed: version {declared.version.number} is {every.every!r} in {every.tz}"
            )
        return declared

    def _still_stands(self) -> bool:
        """Say whether the job stands in the configuration as it is now: `ranonce remove` takes it out there first."""
        from ranonce.config import load

        return self.spec.name in load(self.config.path, self.environ, job=self.spec.name).jobs

    def versions(self) -> tuple[ScheduleVersion, ...]:
        """Return the versions of the job's schedule, without recording one: the first would be as the job says."""
        recorded = self.ledger.declared(self.spec.name)
        if recorded is not None:
            return recorded.versions
        assert self.spec.every is not None
        spec = self.spec
        return (ScheduleVersion(1, self.spec.every, spec.tz, spec.dialect, spec.offset, None, self.now),)

    def orders(self, declared: Declared) -> list[Order]:
        """Return the orders of a trigger: the earlier windows that `catch_up` wants done first, then its own."""
        if self.asked.rerun is not None:
            return [self.again(declared, self.asked.window or "", self.asked.rerun, self.asked.rerun_data)]
        current = self._current(declared)
        return [*self._earlier(declared, current), current]

    def again(self, declared: Declared, text: str, reason: str, data: Mapping[str, Any]) -> Order:
        """Return the order to do a window again that a key or a date names. Raises UsageError."""
        from ranonce.naming import one_named

        named = one_named(declared.versions, text, lambda: self.ledger.store.runs_named(self.spec.name, text))
        if self.spec.input_mode == "identity" and self.asked.digest is None:
            raise UsageError(f"{self.spec.name!r} has a run for each input.", "Say which is run again: --input FILE")
        order = self.order(named.version, named.window, trigger="rerun", chosen_by="window")
        return order.replace(rerun_reason=reason, rerun_data=data)

    @property
    def identity(self) -> str:
        """The input's digest where other input is other work, else nothing: the last part of a run's key."""
        return (self.asked.digest or "") if self.spec.input_mode == "identity" else ""

    def order(self, version: ScheduleVersion, window: Window, *, trigger: str, chosen_by: str) -> Order:
        """Return the order to work on one window, which belongs to a version of the schedule."""
        return Order(
            key=RunKey(self.spec.name, window.key, self.identity),
            window=window,
            schedule=version.number,
            served_from=schedule_of(version).shift(window, -version.offset).start if version.offset else window.start,
            now=self.now,
            trigger=trigger,
            chosen_by=chosen_by,
        )

    def _current(self, declared: Declared) -> Order:
        asked, version = self.asked, declared.version
        if asked.window is not None:
            version, window = declared.named(asked.window)
            chosen_by = "window"
        else:
            chosen = choose(
                declared.schedule,
                now=self.now,
                early=self.spec.early,
                offset=version.offset,
                scheduled_at=asked.scheduled_at,
                environ=self.environ,
            )
            window, chosen_by = chosen.window, chosen.chosen_by
        return self.order(version, window, trigger=asked.trigger or self._trigger(chosen_by), chosen_by=chosen_by)

    def _trigger(self, chosen_by: str) -> str:
        if chosen_by in ("scheduled-at", "systemd", "kubernetes"):
            return "schedule"
        return "manual" if chosen_by == "window" or self.asked.terminal else "schedule"

    def _earlier(self, declared: Declared, current: Order) -> list[Order]:
        if current.chosen_by == "window":
            return []
        return [
            Order(
                key=found.key,
                window=found.window,
                schedule=found.schedule,
                served_from=found.window.start,
                now=self.now,
                trigger="catch-up",
                chosen_by="catch-up",
            )
            for found in earlier_windows(
                self.ledger,
                self.spec,
                declared,
                before=current.window.start,
                now=self.now,
                given=current.key.input,
            )
        ]


def that_counts(results: Sequence[Result]) -> Result:
    """Return the result that speaks for the invocation: the last window's, or the first that is not 0."""
    last = results[-1]
    return last if last.exit else next((result for result in results if result.exit), last)


def digest_of(path: str) -> str:
    """Return the full SHA-256 of an input. Raises UsageError for a file that cannot be read."""
    import hashlib

    digest = hashlib.sha256()
    try:
        # Opening a pipe that nobody writes would wait for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"--input {path!r} is not a regular file.", "Nothing was run; name a file.")
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise UsageError(f"--input {path!r} cannot be read: {error.strerror}.", "Nothing was run.") from error
    return digest.hexdigest()


def _rule(spec: JobSpec) -> tuple[Schedule, int]:
    assert spec.every is not None
    return Schedule(spec.every, spec.tz, spec.dialect), spec.offset
