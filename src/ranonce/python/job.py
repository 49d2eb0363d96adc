"""`@job`: a function that works on a window, claimed and recorded around each call.

What happens around the function is written once, as a generator of steps (`_conduct`); a plain function is driven
through it in place, an `async def` one with everything that may wait done in other threads.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from functools import partial
from typing import Generic, TypeVar, cast

from ranonce.errors import StoreUnavailable, UsageError
from ranonce.lifecycle import Refusal as Refused
from ranonce.names import check_job_name
from ranonce.python.answers import Stop, plain
from ranonce.python.calling import asked, claim, job_settings, not_run, place_of, plan
from ranonce.python.run import Ended, Run
from ranonce.python.verdict import TimeLimit, told
from ranonce.record import Record
from ranonce.started import FUNCTION, PROGRAM
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
    from os import PathLike
    from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeGuard, Unpack, overload

    from ranonce.invocation import Asked
    from ranonce.python.calling import Input, Instant, Place, Plan, Settings
    from ranonce.python.connections import Connections
    from ranonce.python.handle import Ledger
    from ranonce.python.holder import OnLost
    from ranonce.receipts import Receipt

    Later = Coroutine[Any, Any, Receipt]

    class Decorator(Protocol):
        """Makes a job of a function."""

        @overload
        def __call__(  # type: ignore[overload-overlap]  # an async function returns an object, too
            self, function: Callable[[Run], Coroutine[Any, Any, object]], /
        ) -> Job[Later]: ...
        @overload
        def __call__(self, function: Callable[[Run], object], /) -> Job[Receipt]: ...

    # What the generator of steps asks for: something that may wait, or the job's own code with its run.
    Step: TypeAlias = "Callable[[], Any] | Own"

R = TypeVar("R", covariant=True)
_A_FUNCTION = ("a Python function",)


class Own(Record):
    """A step that is the job's own code: its function, or its look after a crash."""

    function: Callable[[Run], object]
    run: Run


def _nobody(_: Ended) -> None:
    """Nobody is told: the caller gets the receipt that counts."""


def _no_signal() -> int | None:
    """Signals are the caller's own."""
    return None


def _goes_on() -> bool:
    """Nothing ends a call before its time."""
    return False


class Call(Record):
    """One call of a job: which ledger, and what it asks for.

    `hints` is the environment in which the scheduler may say what it meant; `keeps_time` says whether a time limit can
    be kept. `tell` is told of each window's end, `signum` says which signal has come, `over` whether to go on. A call
    that is `inside` works inside `ranonce run` of the job, under its claim.
    """

    place: Place
    asked: Asked
    hints: Mapping[str, str] = {}
    keeps_time: bool = False
    tell: Callable[[Ended], None] = _nobody
    signum: Callable[[], int | None] = _no_signal
    over: Callable[[], bool] = _goes_on
    inside: bool = False
    program: str | None = None


class Job(Generic[R]):
    """A function that does a job's work for one window, made by `@job`. Calling it returns a receipt.

    `R` is what a call returns: a `Receipt`, or for an `async def` function something to await that returns one.
    `function` is the function itself, for tests.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Run], object],
        settings: Mapping[str, Any],
        on_lost: OnLost = "raise",
        reconcile: Callable[[Run], object] | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self._settings = settings
        self._on_lost: OnLost = on_lost
        self._reconcile = reconcile
        self._is_async = inspect.iscoroutinefunction(function)
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            # Not __wrapped__: a scheduler that looks at the signature would find an argument that is not to be given.
            if hasattr(function, attribute):
                setattr(self, attribute, getattr(function, attribute))
        if self._is_async and sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)  # so that a scheduler awaits what a call returns

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    @property
    def _shown(self) -> str:
        """Where the function is found, for people."""
        module, name = getattr(self, "__module__", ""), getattr(self, "__qualname__", self.name)
        if module == "__main__":
            module = os.path.basename(sys.argv[0] if sys.argv else "") or module
        return plain(f"{module}.{name}" if module else name)

    def __reduce__(self) -> str:
        return str(getattr(self, "__qualname__"))  # noqa: B009 - by its name, as a function is pickled

    def __call__(
        self,
        *,
        window: str | None = None,
        now: Instant | None = None,
        scheduled_at: Instant | None = None,
        input: Input | None = None,
        trigger: Literal["schedule", "manual", "catch-up", "backfill", "api"] = "api",
        ledger: Ledger | None = None,
        store: str | None = None,
        config: str | PathLike[str] | None = None,
    ) -> R:
        """Do the work of a window, if it is still to be done, and return the receipt of what became of it.

        Without `window` (a key) it is the window that an instant belongs to: `scheduled_at`, else `now`, which are
        aware datetimes or RFC 3339 text. Earlier windows that the job itself stopped come first (`catch_up`). `input`
        is what the run works on: bytes, or the path of a file. The ledger is the one that the command line would use,
        or the one that `store` and `config` name, or an open one.

        What the function raises is recorded and raised again; only `Stop` is a receipt. Raises UsageError,
        ConfigError, NotThisLedger and StoreUnavailable, with nothing run; ClaimLost and OutcomeNotRecorded.
        """
        if ledger is not None and not (store is None and config is None):
            raise UsageError("ledger, store and config all name the ledger.", "Give one of them.")
        question = asked(
            self._settings, window=window, now=now, scheduled_at=scheduled_at, input=input, trigger=trigger
        )
        place = ledger._place if ledger else place_of(store, None, config)
        here = ledger is None and store is None and config is None and now is None and scheduled_at is None
        call = Call(place, question, inside=here and is_inside(self.name, window))
        connections = ledger._connections if ledger else None
        if self._is_async:
            from ranonce.python.aside import receipt_later

            return cast("R", receipt_later(self._conduct, call, connections))
        return cast("R", receipt_of(drive(self._conduct, call, connections)))

    def main(self, argv: Sequence[str] | None = None) -> NoReturn:
        """Be the job's command line, and end this process: options, receipts and exit statuses are `ranonce run`'s.

        `argv` are the arguments, by default the program's own. TERM, INT, HUP and QUIT stop the work and are recorded.
        """
        from ranonce.python.main import main

        main(self, argv)

    def _conduct(self, call: Call, connections: Connections) -> Generator[Step, Any, list[Ended]]:
        """Work on the windows of a call, oldest first; return how each of them ended."""
        if call.inside:
            from ranonce.python.around import join

            inner = yield partial(join, call.place, connections, self.name, call.asked, self._on_lost)
            ended = yield from self._work(call, inner)
            call.tell(ended)
            return [ended]
        found: Plan = yield partial(plan, call.place, connections, self.name, call.asked, call.hints)
        if found.terms.spec.timeout is not None and not call.keeps_time:
            found = found.replace(warnings=(*found.warnings, "no time limit: main() and async jobs keep one"))
        ends: list[Ended] = []
        found = found.replace(told={PROGRAM: call.program} if call.program else {FUNCTION: self._shown})
        for order in found.orders:
            if call.over():
                break
            try:
                answer: Run | Refused = yield partial(claim, found, connections, order, self._on_lost)
            except StoreUnavailable as error:
                ended = not_run(found, order, error)
            else:
                if isinstance(answer, Refused):
                    ended = not_run(found, order, answer)
                else:
                    ended = yield from self._work(call, answer)
            call.tell(ended)
            ends.append(ended)
            found = found.replace(warnings=())
            if call.signum() is not None or not (ended.error is None or isinstance(ended.error, Exception)):
                break  # told to stop: the windows after this one wait for the next trigger
        return ends

    def _work(self, call: Call, run: Run) -> Generator[Step, Any, Ended]:
        """Do one window's work. The answer of the job's own code is what it raised, or None, and what it returned."""
        if run._reconciling:
            if self._reconcile is None:
                did, why = (yield run._look), "the command does not know"
            else:
                error, did = yield Own(self._reconcile, run)
                why = "nobody knows" if error is None else told(error)
            ended: Ended | None = yield partial(run._looked, did, why)
            if ended is not None:
                return ended
        error, given = yield Own(self.function, run)
        if error is None and (is_awaitable(given) or issubclass(type(given), types.GeneratorType)):
            error = TypeError(f"the function returned a {type(given).__name__} that nobody has run")
        run._leave()
        signum = call.signum()
        last: Ended = yield partial(run._end, error, signum=signum)
        return last


def is_inside(job: str, window: str | None) -> bool:
    """Say whether this process is inside `ranonce run` of the same job (and window), and has not done its work yet."""
    environ = os.environ
    if environ.get("RANONCE_JOB") != job or window not in (None, environ.get("RANONCE_WINDOW")):
        return False
    owner = environ.get("RANONCE_OWNER")
    if not owner or owner in _worked_for:
        return False
    _worked_for.add(owner)
    return True


#: The attempts around this process whose work was begun here: it is begun once.
_worked_for: set[str] = set()


def drive(
    conduct: Callable[[Call, Connections], Generator[Step, Any, list[Ended]]],
    call: Call,
    opened: Connections | None,
    own: Callable[[Own], tuple[BaseException | None, object]] | None = None,
) -> list[Ended]:
    """Go through the steps in this thread. `own` calls the job's own code, if it must be called in its own way."""
    connections = opened or call.place.open()
    steps, answer, trouble = conduct(call, connections), None, None
    try:
        while True:
            step = steps.send(answer) if trouble is None else steps.throw(trouble)
            answer, trouble = None, None
            if isinstance(step, Own):
                answer = (own or called)(step)
                continue
            try:
                answer = step()
            except StoreUnavailable as error:
                trouble = error
    except StopIteration as ended:
        return cast("list[Ended]", ended.value)
    finally:
        if opened is None:
            connections.close()


def is_awaitable(given: object) -> TypeGuard[Awaitable[object]]:
    """Whether something has to be awaited. What cannot be asked has not: its class is the job's own."""
    try:
        return inspect.isawaitable(given)
    except Exception:  # noqa: BLE001
        return False


def called(step: Own) -> tuple[BaseException | None, object]:
    """Call the job's own code; return what it raised, or None, and what it returned."""
    try:
        return None, step.function(step.run)
    except BaseException as error:  # noqa: BLE001 - each way out is recorded, and raised again afterwards
        return error, None


def receipt_of(ends: list[Ended]) -> Receipt:
    """Return the receipt of the window that was asked for, or raise what its work raised, or an earlier one's."""
    for ended in (ends[-1], *ends):
        if isinstance(ended.error, TimeLimit):
            raise TimeoutError(str(ended.error)) from ended.error
        if ended.error is not None and not isinstance(ended.error, Stop):
            raise ended.error
    return ends[-1].result.receipt


def job(
    name: str,
    *,
    on_lost: OnLost = "raise",
    reconcile: Callable[[Run], object] | None = None,
    **settings: Unpack[Settings],
) -> Decorator:
    """Make a job of a function that takes a `Run`.

    The settings are those of a job in the configuration, which they are put over: `every` (hour, day, week, month or a
    cron expression), `tz`, `max_attempts` and so on; times are seconds, timedeltas or text such as "5m". A job that the
    configuration declares needs none. `on_lost="exit"` ends the process with status 76 when the claim is lost, rather
    than raising ClaimLost from the next call of the run. `reconcile` looks after a crash whether the work was done:
    True, False, or None if nobody knows (then a person must release it). Nothing is opened before the job is called.
    Raises UsageError for settings that cannot be used.
    """
    check_job_name(name)
    if on_lost not in ("raise", "exit"):
        raise UsageError(f"on_lost={shown(on_lost)} is not a choice.", "It is raise or exit.")
    given = job_settings(name, settings)
    if reconcile is not None:
        given |= {"on_crash": "reconcile", "reconcile": _A_FUNCTION}

    def make(function: Callable[[Run], object]) -> Job[Any]:
        if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{shown(function)} is not a function that does its work when it is called.", "")
        if inspect.iscoroutinefunction(reconcile) and not inspect.iscoroutinefunction(function):
            raise UsageError(f"reconcile={shown(reconcile)} is async, and the job is not.", "Make both alike.")
        return Job(name, function, given, on_lost, reconcile)

    return cast("Decorator", make)
