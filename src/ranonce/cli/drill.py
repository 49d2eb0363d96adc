"""`ranonce drill`: rehearse the failures on the user's own store, in a scratch ledger that is removed again."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import read_config
from ranonce.cli.options import Command, Option
from ranonce.cli.report import write, write_json
from ranonce.drill import Asked, Stage, rehearse
from ranonce.drill.outcome import BROKEN, STATES
from ranonce.errors import EX_DONE, EX_STORE_UNAVAILABLE, UsageError
from ranonce.names import plain
from ranonce.receipts import say
from ranonce.signals import STOP_SIGNALS, die_by
from ranonce.storeurl import masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from ranonce.cli.options import Parsed
    from ranonce.drill.outcome import Outcome

EX_BROKEN = 1
DEFAULT_ROUNDS, MOST_ROUNDS = 20, 1000
DEFAULT_DEADLINE = 300.0

COMMAND = Command(
    "drill",
    (),
    "Rehearse the failures on this store, in a scratch ledger that is removed again.",
    (
        Option("rounds", "How often races and leases are tried.", "N", "number", default=str(DEFAULT_ROUNDS)),
        Option("deadline", "Stop after this time.", "TIME", "duration", default="5m"),
        Option("json", JSON.help.rstrip(".") + ", one object a line."),
        *LEDGER_OPTIONS,
    ),
    description="""Makes a scratch ledger beside yours (in the same folder or on the same server), lets real processes
    race for its windows, kills them between any two writes, wipes their host, takes the store away, sets their clocks,
    and lets them die with messages in their hands. Prints a line for each scenario: whether it held, how often, what
    was tried and what was seen. Your own ledger, its journal, your jobs and your destinations are not touched; the
    scratch ledger is removed at the end, however that comes.

    Exits 0 if everything held, 1 if something did not (the evidence follows its line) or the time was over, 69 or 78 if
    the store cannot be used. What cannot be tried on a store says so, and is not counted as held.""",
)


class _Told(BaseException):
    """A signal told the drill to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Print what became of each scenario; 0 if all held, else 1. Ends by the signal that told it to."""
    rounds, deadline = parsed.get("rounds", DEFAULT_ROUNDS), parsed.get("deadline", DEFAULT_DEADLINE)
    if not 1 <= rounds <= MOST_ROUNDS:
        raise UsageError(f"--rounds: {rounds} is out of range.", f"It is a whole number from 1 to {MOST_ROUNDS}.")
    if deadline <= 0:
        raise UsageError("--deadline: 0 is no time.", "Write it like 90s or 5m.")
    config = read_config(parsed, environ, pass_over=True)
    progress = _Progress()
    stage = Stage(Asked(config.ledger.store, environ, rounds, deadline, tell=progress.tell))
    try:
        status = _carry_out(stage, progress, as_json=parsed.flag("json"))
    except _Told as told:
        _tell_left(stage)
        die_by(told.number)
    except BaseException:
        _tell_left(stage)
        raise
    left = _tell_left(stage)
    return status or left


def _carry_out(stage: Stage, progress: _Progress, *, as_json: bool) -> int:
    _listen()
    counted: Counter[str] = Counter()
    in_time = True
    try:
        with stage:
            if not as_json:
                write([f"drill on {plain(masked(stage.asked.url))}"])
            for note in stage.notes:
                say(f"ranonce: {plain(note)}")
            for outcome in rehearse(stage):
                progress.clear()
                counted[outcome.state] += 1
                in_time = in_time and outcome.in_time
                _tell(outcome, as_json=as_json)
    finally:
        progress.clear()
    if not as_json:
        write([" ".join(f"{state.lower()}={counted[state]}" for state in STATES)])
    return EX_DONE if in_time and not counted[BROKEN] else EX_BROKEN


def _listen() -> None:
    """Let the first signal to stop end the drill where it is; those that follow must not disturb the tidying up."""
    came: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise _Told(number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def _tell(outcome: Outcome, *, as_json: bool) -> None:
    """Print an outcome at once: the next one takes its time."""
    if as_json:
        write_json(outcome.as_told())
    else:
        write(map(plain, outcome.lines))
    sys.stdout.flush()


def _tell_left(stage: Stage) -> int:
    """Say what could not be removed; return the exit status for that, 0 where nothing is left."""
    for sentence in stage.left:
        say(f"ranonce: {plain(sentence)} The next drill on this store removes it.")
    return EX_STORE_UNAVAILABLE if stage.left else EX_DONE


class _Progress:
    """One line on the terminal that says what is going on; nothing where there is none."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def tell(self, name: str, done: int, of: int) -> None:
        """Show how far a scenario is."""
        if self._shown:
            columns = os.get_terminal_size(2).columns or 80  # a terminal that nobody has measured says 0
            text = f"{name} {done}/{of} …"[: columns - 1]
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
