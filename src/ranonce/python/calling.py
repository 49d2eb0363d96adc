"""One call for work from Python: what was asked, which ledger it means, and the claim on a window.

The rules are those of the command line (`invocation`); here their values come from Python: aware datetimes,
timedeltas, bytes.
"""

from __future__ import annotations

import os

from ranonce.cli.opening import ledger_of
from ranonce.config import find_config, load
from ranonce.errors import RanonceError, StoreUnavailable, UsageError
from ranonce.failpoints import failpoint
from ranonce.invocation import Asked, Invocation, digest_of
from ranonce.jobspec import JobSpec, broken_rule, schedule_error
from ranonce.lifecycle import Refusal
from ranonce.names import check_job_name
from ranonce.python.answers import seconds
from ranonce.python.connections import Connections
from ranonce.python.run import Ended, Run
from ranonce.record import Record
from ranonce.settings import exit_codes, flag, gates, instant, nearest, text, whole
from ranonce.signals import Signals
from ranonce.timefmt import shown
from ranonce.wrap import ask_of, refused, take, unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta
    from os import PathLike
    from typing import Any, Literal, TypedDict

    from ranonce.config import Config
    from ranonce.python.holder import OnLost
    from ranonce.terms import Order, Terms

    Instant = datetime | str
    Duration = float | str | timedelta
    Input = bytes | bytearray | memoryview | str | PathLike[str]

    class Settings(TypedDict, total=False):
        """How a job is run. What is left out comes from the configuration, else it has the default of `ranonce run`."""

        every: str | None
        tz: str
        dialect: Literal["debian", "systemd", "kubernetes"]
        offset: int
        timeout: Duration | None
        lease: Duration
        max_attempts: int
        retry_delay: Duration
        early: Duration
        late_after: Duration
        max_late: Duration | None
        overlap: Literal["forbid", "allow"]
        on_crash: Literal["retry", "hold"]
        catch_up: Literal["stopped", "none", "unfinished", "all"]
        catch_up_limit: int
        input_mode: Literal["fingerprint", "identity"]
        version: str | None
        uses: str | Sequence[str]
        stop_exit_codes: Sequence[int]
        keep_output: bool
        since: Instant | None


TRIGGERS = ("schedule", "manual", "catch-up", "backfill", "api")


class Place(Record):
    """Which ledger is meant: the address of its store, the id it must have, and the configuration, as far as given."""

    store: str | None = None
    ledger: str | None = None
    config: str | None = None
    environ: Mapping[str, str] | None = None  # None: that of the process

    def configuration(self, job: str | None) -> Config:
        """Read the configuration anew, and of its jobs only the one that is asked for."""
        environ = self.environment()
        # A name that no job can have: to open a ledger, a job's mistake is nobody's business.
        config = load(find_config(self.config, environ), environ, store=self.store, job=job or "none.is-meant")
        return config.replace(ledger=config.ledger.replace(ledger_id=self.ledger)) if self.ledger else config

    def environment(self) -> Mapping[str, str]:
        """Return the environment that names the ledger and says what the scheduler meant."""
        return os.environ if self.environ is None else self.environ

    def open(self) -> Connections:
        """Open the ledger. Raises ConfigError, NotThisLedger or StoreUnavailable."""
        return Connections(ledger_of(self.configuration(None), self.environment()))


def place_of(store: str | None, ledger: str | None, config: str | PathLike[str] | None) -> Place:
    """Return which ledger a caller means. Raises UsageError for what is not of its kind."""
    for name, given in (("store", store), ("ledger", ledger)):
        if not (given is None or isinstance(given, str)):
            raise UsageError(f"{name}={shown(given)} is not text.", "A store is written sqlite:////PATH.")
    return Place(store, ledger, None if config is None else _path("config", config))


class Plan(Record):
    """The windows of one call, oldest first, and what they have in common."""

    terms: Terms
    orders: list[Order]
    warnings: tuple[str, ...]
    told: Mapping[str, str] = {}  # how the job is started, for its story


def plan(place: Place, connections: Connections, job: str, asked: Asked, hints: Mapping[str, str]) -> Plan:
    """Record what comes before any claim; return the orders of the call.

    `hints` is the environment in which a scheduler may have said what it meant.
    """
    with connections.lend() as ledger:
        invocation = Invocation(job, asked, hints, place.configuration(job), ledger)
        orders = invocation.orders(invocation.declared())
        return Plan(invocation.terms(Signals()), orders, tuple(ledger.warnings))  # no child of ours gets a signal


def claim(plan: Plan, connections: Connections, order: Order, on_lost: OnLost) -> Run | Refusal:
    """Claim a window, or learn why not. Raises StoreUnavailable and NotThisLedger: then nothing may be started."""
    with connections.lend() as ledger:
        ledger.warnings.extend(plan.warnings)
        ask = ask_of(plan.terms.replace(ledger=ledger), order)
        won = take(ledger, ask.replace(data={**ask.data, **plan.told}))
    if isinstance(won, Refusal):
        return won
    failpoint("run:claimed")
    return Run(connections, plan, order, won, on_lost)


def not_run(plan: Plan, order: Order, answer: Refusal | StoreUnavailable) -> Ended:
    """Return how an order ended whose claim was refused, or got no answer."""
    if isinstance(answer, Refusal):
        result, error = refused(plan.terms, order, answer), None
    else:
        result, error = unavailable(plan.terms, order, answer), answer
    receipt = result.receipt.replace(warnings=plan.warnings or None)
    return Ended(result.replace(receipt=receipt), error)


# --- what is said in Python ------------------------------------------------------------------------------------------


def asked(
    settings: Mapping[str, Any],
    *,
    window: str | None,
    now: Instant | None,
    scheduled_at: Instant | None,
    input: Input | None,
    trigger: str | None,
) -> Asked:
    """Return what a call asks for. Raises UsageError for naive instants and for what is not of its kind."""
    if window is not None and scheduled_at is not None:
        raise UsageError("window and scheduled_at both name the window.", "Give one of them.")
    if trigger is not None and trigger not in TRIGGERS:
        raise UsageError(f"trigger={shown(trigger)} is not a choice.", f"It is one of {', '.join(TRIGGERS)}.")
    return Asked(
        now=None if now is None else instant(now),
        settings=settings,
        window=None if window is None else text(window),
        scheduled_at=None if scheduled_at is None else instant(scheduled_at),
        digest=None if input is None else _digest(input),
        trigger=trigger,
    )


def _digest(given: Input) -> str:
    if isinstance(given, (bytes, bytearray, memoryview)):
        import hashlib

        return hashlib.sha256(given).hexdigest()
    return digest_of(_path("input", given))


def _path(name: str, given: object) -> str:
    path = given.__fspath__() if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or "\0" in path:
        raise UsageError(f"{name}={shown(given)} is not a path.", "Give it as text or as a Path.")
    return path


def _version(given: object) -> str:
    version = text(given)
    if version != version.encode("utf-8", "backslashreplace").decode():
        raise UsageError(f"{shown(given)} is not text that can be recorded.", "Give it without surrogates.")
    return version


def job_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job that were given in Python, in the types of `JobSpec`.

    Raises UsageError that begins with the setting's name.
    """
    check_job_name(name)
    settings: dict[str, Any] = {}
    for field, value in given.items():
        if field not in KINDS:
            raise UsageError(f"a job has no setting {field!r}.", nearest(field, KINDS))
        if value is None:
            continue
        try:
            settings[field] = KINDS[field](value)
        except RanonceError as error:
            raise UsageError(f"{field}: {error.sentence}", error.next_step) from None
    spec = JobSpec(name, **settings)
    broken = broken_rule(spec)
    if broken is not None:
        raise UsageError(f"{broken[0]}: {broken[1]}", broken[2])
    wrong = schedule_error(spec)
    if wrong is not None:
        raise UsageError(f"{wrong[0]}: {wrong[1].sentence}", wrong[1].next_step)
    return settings


def _uses(value: object) -> tuple[str, ...]:
    return gates([value] if isinstance(value, str) else value)


#: The settings that mean something for a function, and how each is read.
KINDS: dict[str, Callable[[Any], object]] = {
    "every": text,
    "tz": text,
    "dialect": text,
    "offset": whole,
    "timeout": seconds,
    "lease": seconds,
    "max_attempts": whole,
    "retry_delay": seconds,
    "early": seconds,
    "late_after": seconds,
    "max_late": seconds,
    "overlap": text,
    "on_crash": text,
    "catch_up": text,
    "catch_up_limit": whole,
    "input_mode": text,
    "version": _version,
    "uses": _uses,
    "stop_exit_codes": exit_codes,
    "keep_output": flag,
    "since": instant,
}
