"""`ranonce backfill`: do the work of many windows, oldest first, one at a time unless told."""

from __future__ import annotations

from ranonce.backfill import Tally, Walk, ends_the_walk, is_done
from ranonce.cli.invoking import INPUT, WORK_OPTIONS, carry_out
from ranonce.cli.joboptions import JSON
from ranonce.cli.options import Command, Option
from ranonce.cli.report import write_json
from ranonce.cli.span import moment, span_of
from ranonce.errors import RanonceError, UsageError
from ranonce.names import plain
from ranonce.receipts import say
from ranonce.started import python_start
from ranonce.wrap import work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ranonce.backfill import Place
    from ranonce.cli.invoking import Call
    from ranonce.cli.options import Parsed
    from ranonce.jobspec import JobSpec
    from ranonce.lifecycle import ScheduleVersion
    from ranonce.stores.base import Store
    from ranonce.terms import Order

#: More processes than this at once are no backfill, but a fork bomb.
MOST_PARALLEL = 64
NOT_TAKEN = frozenset({"catch-up", "catch-up-limit", "max-late"})

COMMAND = Command(
    "backfill",
    ("JOB",),
    "Do the work of many windows, oldest first.",
    (
        Option("since", "From when on: a date, the key of a window, an instant, or a time back like 30d.", "WHEN"),
        Option("until", "To when: windows that start before it.", "WHEN", default="now"),
        Option("parallel", "Work on so many windows at once (only with overlap=allow).", "N", "number", default="1"),
        Option("dry-run", "Only say what would be done with each window."),
        Option("now", "Take this instant for the present.", "INSTANT", "instant"),
        INPUT,
        JSON,
        *(option for option in WORK_OPTIONS if option.name not in NOT_TAKEN),
    ),
    description="""Works on each window of the job's schedule that starts in the given time, as `ranonce run --window`
    would, and passes over those that are done. A window that fails, or that waits for a person, is named, and the next
    one follows. What every later window would meet, too, ends it: the job stopped itself (a rate limit), a signal, a
    closed gate, another window at work, a store that is away, a command that cannot be started. The same command then
    goes on where it ended. Exits 0 if every window is done, else with the status of the first that is not.""",
    takes_command=True,
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Work on the windows; return the exit status, or end by the signal that ended the work."""
    if parsed.get("since") is None:
        job = parsed.arguments[0]
        raise UsageError("a backfill needs a beginning.", f"Write: ranonce backfill {job} --since 2026-11-01")
    if parsed.flag("dry-run"):
        from ranonce.cli.rehearsal import rehearse

        return rehearse(COMMAND, parsed, environ)
    parallel = parsed.get("parallel", 1)
    if not 1 <= parallel <= MOST_PARALLEL:
        raise UsageError(f"--parallel {parallel} is not possible.", f"Write a number from 1 to {MOST_PARALLEL}.")
    if parallel == 1:
        return carry_out(COMMAND, parsed, environ, lambda call: _backfill(call, parsed, _one_by_one))
    if parsed.flag("stdin"):
        raise UsageError("several windows at once cannot share a standard input.", "Leave --stdin or --parallel away.")
    from ranonce.cli.crew import Crew

    with Crew(parallel, COMMAND, parsed, environ) as crew:  # forked before anything is opened
        return carry_out(COMMAND, parsed, environ, lambda call: _backfill(call, parsed, crew.work))


def warn_of_the_window(store: Store, spec: JobSpec) -> None:
    """Say so where the command does not say which window it is for: one that looks at the clock would do today's.

    A Python job is told by its run.
    """
    if not any("{window}" in argument for argument in spec.command) and python_start(store, spec.name) is None:
        say("ranonce: no argument of the command holds {window}: it must read RANONCE_WINDOW to know which one it is.")


def asked_walk(parsed: Parsed, versions: Sequence[ScheduleVersion], now: float) -> Walk:
    """Return the windows that the options name. Raises UsageError."""
    until = now if parsed.get("until") is None else moment("until", parsed.get("until"), versions)
    span = span_of(moment("since", parsed.get("since"), versions, back_from=until), until)
    return Walk(versions, span.since, span.until, now)


def _backfill(
    call: Call, parsed: Parsed, do: Callable[[Call, Tally, Iterator[tuple[Place, Order]]], None]
) -> tuple[int, int | None]:
    invocation = call.invocation
    if parsed.get("parallel", 1) > 1 and invocation.spec.overlap != "allow":
        raise UsageError(
            f"two windows of {invocation.spec.name!r} may not run at once (overlap = forbid).",
            "Leave --parallel away, or allow it: --overlap allow",
        )
    declared = invocation.declared()
    walk = asked_walk(parsed, declared.versions, invocation.now)
    warn_of_the_window(invocation.ledger.store, invocation.spec)
    tally = Tally(invocation.spec.name, walk, walk.count())
    try:
        do(call, tally, _orders(call, walk, tally))
    except RanonceError as error:
        tally.break_off(error)
        _summary(parsed, tally)
        raise
    if call.signals.first is not None and tally.ended_by is None:
        tally.ended_by = "it was told to end"
    _summary(parsed, tally)
    return tally.exit, call.signals.first


def _orders(call: Call, walk: Walk, tally: Tally) -> Iterator[tuple[Place, Order]]:
    """Return the windows that are to be worked on, each with its order, until a stop signal comes."""
    invocation = call.invocation
    fingerprint = invocation.asked.digest if invocation.spec.input_mode == "fingerprint" else None
    for place in walk.places(invocation):
        if call.signals.first is not None:
            return
        if is_done(place, fingerprint):
            tally.done_before += 1
            continue
        named = place.named
        order = invocation.order(named.version, named.window, trigger="backfill", chosen_by="backfill")
        yield place, order.replace(record_skip=False)


def _one_by_one(call: Call, tally: Tally, orders: Iterator[tuple[Place, Order]]) -> None:
    terms = call.terms()
    for place, order in orders:
        result = work(terms, order)
        call.receipts.write(result.receipt.replace(progress=f"{place.number}/{tally.total}"))
        terms.ledger.warnings.clear()
        tally.add(place, result)
        if ends_the_walk(place, result, overlap=terms.spec.overlap):
            tally.end(place, result.receipt)
            return


def _summary(parsed: Parsed, tally: Tally) -> None:
    if parsed.flag("json"):
        write_json(tally.as_dict())
    elif not parsed.flag("quiet") or tally.exit:
        say(plain(f"ranonce: {tally.as_sentence()}"))
