"""`ranonce rerun`: do a window's work again on purpose, for a reason that is recorded."""

from __future__ import annotations

from ranonce.cli.invoking import INPUT, WORK_OPTIONS, carry_out
from ranonce.cli.options import Command, Option
from ranonce.cli.person import LONGEST_TEXT, who
from ranonce.errors import UsageError
from ranonce.wrap import work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.invoking import Call
    from ranonce.cli.options import Parsed

COMMAND = Command(
    "rerun",
    ("JOB", "WINDOW"),
    "Do a window's work again on purpose.",
    (
        Option("reason", "Why it is done again; it is recorded.", "TEXT"),
        Option("resend", "Send again what the run has sent before."),
        Option("now", "Judge the window as if it were this instant.", "INSTANT", "instant"),
        INPUT,
        *(option for option in WORK_OPTIONS if option.name not in ("catch-up", "catch-up-limit")),
    ),
    description="""Starts the command at once, whether the window is done, failed, stopped or held, under a new
    generation of the run: its attempts are counted anew, and a probe calls it a rerun by request. WINDOW is a key, or
    a date that names one window. No other window is caught up. What a run sent is not sent again, unless
    --resend says so (the command then finds RANONCE_RESEND=1).""",
    takes_command=True,
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Run the command again; return its exit status, or end by the signal that ended the work."""
    job, text = parsed.arguments
    reason = (parsed.get("reason") or "").strip()
    if not reason:
        raise UsageError(
            "a rerun needs a reason: it does again what may be done.",
            f"Write: ranonce rerun {job} {text} --reason TEXT",
        )

    def again(call: Call) -> tuple[int, int | None]:
        invocation = call.invocation
        told = {"by": who(invocation.ledger.host.host)} | ({"resend": True} if parsed.flag("resend") else {})
        order = invocation.again(invocation.declared(), text, reason[:LONGEST_TEXT], told)
        result = work(call.terms(), order)
        call.receipts.write(result.receipt)
        return result.exit, result.signal

    return carry_out(COMMAND, parsed, environ, again)
