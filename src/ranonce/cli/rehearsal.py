"""`ranonce backfill --dry-run`: what would be done with each window, by the rules themselves; nothing is changed."""

from __future__ import annotations

from ranonce.backfill import is_done
from ranonce.cli.invoking import asked_of, given_settings
from ranonce.cli.opening import open_ledger, tell_warnings
from ranonce.cli.report import write, write_json
from ranonce.invocation import Invocation
from ranonce.names import check_job_name, plain
from ranonce.story import what_next
from ranonce.survey import Survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ranonce.backfill import Place
    from ranonce.cli.options import Command, Parsed
    from ranonce.lifecycle import Decision


def rehearse(command: Command, parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Print a line for each window that is not done, then the counts; 0 whatever they are."""
    from ranonce.cli.backfill import asked_walk, warn_of_the_window

    job = check_job_name(parsed.arguments[0])
    config, ledger = open_ledger(parsed, environ, job=job, reading=True)
    tell_warnings(ledger)
    asked = asked_of(parsed, given_settings(command, parsed))
    invocation = Invocation(job, asked, environ, config, ledger)
    survey = Survey(ledger.store, ledger.folder, invocation.now)
    walk = asked_walk(parsed, invocation.versions(), invocation.now)
    warn_of_the_window(ledger.store, invocation.spec)
    fingerprint = invocation.asked.digest if invocation.spec.input_mode == "fingerprint" else None
    done = starts = 0
    for place in walk.places(invocation):
        if is_done(place, fingerprint):
            done += 1
            continue
        named = place.named
        decision = survey.would(
            job, named.window, invocation.identity, named.version, invocation.spec, trigger="backfill"
        )
        starts += decision is None or decision.accepted
        _tell(parsed, place, decision)
    total = walk.count()
    if parsed.flag("json"):
        write_json({"job": job, "windows": total, "done_before": done, "would_start": starts})
    else:
        refused = total - done - starts
        write([f"{total} windows: {done} done before, {starts} would start, {refused} would be refused."])
    return 0


def _tell(parsed: Parsed, place: Place, decision: Decision | None) -> None:
    window, state = place.named.window.key, place.run.status if place.run else "never ran"
    text = "it would start" if decision is None else what_next(decision)
    if parsed.flag("json"):
        told: dict[str, Any] = {"window": window, "state": state, "starts": decision is None or decision.accepted}
        write_json({**told, "explanation": text})
    else:
        write([plain(f"{window}  {state}: {text}")])
