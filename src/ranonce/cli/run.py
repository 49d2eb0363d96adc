"""`ranonce run`: do a window's work, if it is still to be done."""

from __future__ import annotations

import os
import stat
import time

from ranonce.attempt import Order, Result, Terms
from ranonce.catchup import earlier_windows
from ranonce.cli.joboptions import LEDGER_OPTIONS, RUN_OPTIONS, SCHEDULE_OPTIONS, job_settings, with_settings
from ranonce.cli.opening import open_ledger
from ranonce.cli.options import Command, Option
from ranonce.config import resolve_version
from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable, UsageError
from ranonce.jobspec import JobSpec
from ranonce.ledger import schedule_of
from ranonce.lifecycle import RunKey
from ranonce.names import check_job_name
from ranonce.process import Signals, die_by
from ranonce.receipts import Receipt, Receipts
from ranonce.stores.base import Job
from ranonce.windows import Schedule, choose
from ranonce.wrap import work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ranonce.cli.options import Parsed
    from ranonce.config import Config
    from ranonce.ledger import Declared, OpenLedger

COMMAND = Command(
    "run",
    ("JOB",),
    "Do a window's work, if it is still to be done.",
    (
        Option("window", "The window to work on, by its key.", "KEY"),
        Option("scheduled-at", "The instant the scheduler meant.", "INSTANT", "instant"),
        Option("now", "Choose the window as if it were this instant.", "INSTANT", "instant"),
        Option("input", "What the run works on: other input is a conflict (or other work).", "FILE", "path"),
        Option("trigger", "Who asks.", "WHO", "choice", ("schedule", "manual", "catch-up", "backfill", "api")),
        *SCHEDULE_OPTIONS,
        *RUN_OPTIONS,
        Option("raw-exit", "Pass on the command's exit status even where it is one of ranonce's own."),
        Option("quiet", "Give receipts of problems only.", short="q"),
        *LEDGER_OPTIONS,
    ),
    description="""Claims the window and, if nobody has done it or is doing it, starts the command and records what
    became of it. A job that was declared with `ranonce add` needs no more than its name; a command after -- replaces
    the declared one for this invocation.""",
    takes_command=True,
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Run the command; return its exit status, or end by the signal that ended the work."""
    job = check_job_name(parsed.arguments[0])
    settings = job_settings(COMMAND, parsed)
    if parsed.get("window") is not None and parsed.get("scheduled-at") is not None:
        raise UsageError("--window and --scheduled-at both name the window.", "Give one of them.")
    if parsed.rest is not None:
        settings["command"] = _from_here(parsed.rest)
    with Signals() as signals:
        receipts = Receipts(settings.get("receipt", "all"), quiet=parsed.flag("quiet"))
        try:
            config, ledger = open_ledger(parsed, environ, job=job)
            invocation = _Invocation(job, parsed, environ, settings, config, ledger, signals)
            receipts.mode = invocation.spec.receipt
            result = invocation.carry_out(receipts)
        except (StoreUnavailable, NotThisLedger, ConfigError) as error:
            receipts.write(_nothing_run(job, error))
            raise
    if result.signal is not None:
        die_by(result.signal)
    return result.exit


def _nothing_run(job: str, error: RanonceError) -> Receipt:
    return Receipt("unavailable", job, exit=error.exit_status, reason=error.code)


class _Invocation:
    """One call of `ranonce run`: which job, which windows, in which order."""

    def __init__(
        self,
        job: str,
        parsed: Parsed,
        environ: Mapping[str, str],
        settings: dict[str, Any],
        config: Config,
        ledger: OpenLedger,
        signals: Signals,
    ) -> None:
        self.parsed = parsed
        self.environ = environ
        self.settings = settings
        self.config = config
        self.ledger = ledger
        self.signals = signals
        self.now: float = parsed.get("now", time.time())
        self.digest = _digest(parsed.get("input"))
        self.spec = self._spec(job)
        if not self.spec.command:
            raise UsageError(f"{job!r} has no command.", f"Write it after --: ranonce run {job} -- COMMAND.")

    def _spec(self, job: str) -> JobSpec:
        """Put together what the file, the ledger and the command line say of the job."""
        spec = self.config.jobs.get(job)
        if spec is None:
            spec = JobSpec(job)
            recorded = self.ledger.declared(job)
            if recorded is not None:
                version = recorded.version
                spec = spec.replace(every=version.every, tz=version.tz, dialect=version.dialect, offset=version.offset)
        told = with_settings(spec, self.settings)
        if told.every is None:
            raise UsageError(
                f"nobody has declared the job {job!r}, so its window is not known.",
                f"Declare it (ranonce add {job} --every …) or say it here: --every day.",
            )
        schedule_given = self.settings.keys() & {"every", "tz", "dialect", "offset"}
        if schedule_given and spec.every is not None and _rule(spec) != _rule(told):
            raise ConfigError(
                f"{job!r} is declared as {spec.every!r} in {spec.tz}, which the command line contradicts.",
                f"Nothing was run. Change it on purpose: ranonce add {job} --every …",
            )
        return told

    def carry_out(self, receipts: Receipts) -> Result:
        """Work on the windows of this invocation; return the result that counts."""
        for key, outcome in self.ledger.settle_unrecorded():
            self.ledger.warnings.append(f"recorded first what an earlier run could not: {key} {outcome}")
        declared = self._declare()
        current = self._current(declared)
        terms = Terms(
            self.ledger,
            self.spec,
            self.signals,
            self.config.ledger.store,
            version=resolve_version(self.spec, self.config.folder or "."),
            fingerprint=self.digest if self.spec.input_mode == "fingerprint" else None,
            raw_exit=self.parsed.flag("raw-exit"),
        )
        results: list[Result] = []
        for order in (*self._earlier(declared, current), current):
            result = work(terms, order)
            receipts.write(result.receipt)
            self.ledger.warnings.clear()
            results.append(result)
            if result.signal is not None and self.signals.first is not None:
                return result  # told to stop: the windows after this one wait for the next trigger
        last = results.pop()
        return last if last.exit else next((result for result in results if result.exit), last)

    def _declare(self) -> Declared:
        spec = self.spec
        assert spec.every is not None
        job = Job(spec.name, 0, self.now, spec.late_after, spec.max_attempts)
        every = Schedule(spec.every, spec.tz, spec.dialect)
        declared, changed = self.ledger.declare(job, every, spec.offset, now=self.now, change=spec.declared)
        if changed:
            self.ledger.warnings.append(
                f"the schedule has changed: version {declared.version.number} is {every.every!r} in {every.tz}"
            )
        return declared

    def _current(self, declared: Declared) -> Order:
        key = self.parsed.get("window")
        version = declared.version
        if key is not None:
            version, window = declared.named(key)
            chosen_by = "window"
        else:
            chosen = choose(
                declared.schedule,
                now=self.now,
                early=self.spec.early,
                offset=version.offset,
                scheduled_at=self.parsed.get("scheduled-at"),
                environ=self.environ,
            )
            window, chosen_by = chosen.window, chosen.chosen_by
        digest = self.digest if self.spec.input_mode == "identity" else None
        return Order(
            key=RunKey(self.spec.name, window.key, digest or ""),
            window=window,
            schedule=version.number,
            served_from=schedule_of(version).shift(window, -version.offset).start if version.offset else window.start,
            now=self.now,
            trigger=self.parsed.get("trigger") or self._trigger(chosen_by),
            chosen_by=chosen_by,
        )

    def _trigger(self, chosen_by: str) -> str:
        if chosen_by in ("scheduled-at", "systemd", "kubernetes"):
            return "schedule"
        return "manual" if chosen_by == "window" or os.isatty(0) else "schedule"

    def _earlier(self, declared: Declared, current: Order) -> list[Order]:
        """Return the orders for the earlier windows that `catch_up` wants done first."""
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
                self.ledger, self.spec, declared, before=current.window.start, now=self.now, given=current.key.input
            )
        ]


def _from_here(command: list[str]) -> tuple[str, ...]:
    """Return a command whose relative program is found from where the caller stands, whatever folder it runs in."""
    program = command[0]
    return (os.path.abspath(program) if "/" in program else program, *command[1:])


def _rule(spec: JobSpec) -> tuple[Schedule, int]:
    assert spec.every is not None
    return Schedule(spec.every, spec.tz, spec.dialect), spec.offset


def _digest(path: str | None) -> str | None:
    """Return the full SHA-256 of the input, or None without one. Raises UsageError for a file that cannot be read."""
    if path is None:
        return None
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
