"""`ranonce run`: do a window's work, if it is still to be done."""

from __future__ import annotations

from ranonce.cli.invoking import INPUT, WORK_OPTIONS, carry_out
from ranonce.cli.options import Command, Option
from ranonce.errors import UsageError
from ranonce.invocation import that_counts
from ranonce.wrap import work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.invoking import Call
    from ranonce.cli.options import Parsed
    from ranonce.terms import Result

COMMAND = Command(
    "run",
    ("JOB",),
    "Do a window's work, if it is still to be done.",
    (
        Option("window", "The window to work on, by its key.", "KEY"),
        Option("scheduled-at", "The instant the scheduler meant.", "INSTANT", "instant"),
        Option("now", "Choose the window as if it were this instant.", "INSTANT", "instant"),
        INPUT,
        Option("trigger", "Who asks.", "WHO", "choice", ("schedule", "manual", "catch-up", "backfill", "api")),
        *WORK_OPTIONS,
    ),
    description="""Claims the window and, if nobody has done it or is doing it, starts the command and records what
    became of it. A job that was declared with `ranonce add` needs no more than its name; a command after -- replaces
    the declared one for this invocation.""",
    takes_command=True,
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Run the command; return its exit status, or end by the signal that ended the work."""
    if parsed.get("window") is not None and parsed.get("scheduled-at") is not None:
        raise UsageError("--window and --scheduled-at both name the window.", "Give one of them.")
    return carry_out(COMMAND, parsed, environ, _work)


def _work(call: Call) -> tuple[int, int | None]:
    """Work on the earlier windows that are due again, then on the trigger's own; return what counts of it."""
    invocation = call.invocation
    orders = invocation.orders(invocation.declared())
    terms = call.terms()
    results: list[Result] = []
    for order in orders:
        result = work(terms, order)
        call.receipts.write(result.receipt)
        terms.ledger.warnings.clear()
        if result.signal is not None and call.signals.first is not None:
            return result.exit, result.signal  # told to stop: the windows after this one wait for the next trigger
        results.append(result)
    counts = that_counts(results)
    return counts.exit, counts.signal
