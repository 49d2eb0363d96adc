"""Is the store the ledger that is meant, and what does it say of losses and jobs? The same questions on every store."""

from __future__ import annotations

import time

from ranonce.doctor.finding import Check, few, step_of
from ranonce.errors import RanonceError
from ranonce.ledger import CLOCK_SLACK_SECONDS, known_ledger
from ranonce.names import plain, shown_path
from ranonce.started import python_start
from ranonce.stores import open_store
from ranonce.storeurl import masked
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.config import LedgerSpec
    from ranonce.doctor.finding import Finding
    from ranonce.stores.base import Store

#: A doctor does not wait as long for a locked file as a job does.
WAIT_SECONDS = 5.0


def opened(spec: LedgerSpec, states: str | None) -> tuple[Store | None, list[Finding]]:
    """Open the store as `ranonce run` would, and see whether it is the ledger that is meant."""
    url = masked(spec.store)
    check = Check("store", f"opened {url}")
    try:
        store = open_store(spec.store, wait_seconds=min(spec.store_wait, WAIT_SECONDS))
    except RanonceError as error:
        return None, [check.problem(error.sentence, step_of(error.next_step))]
    found = store.identity()
    expected = spec.ledger_id or (known_ledger(states, spec.store) if states else None)
    if expected is None:
        seen, step = (
            f"nothing says which ledger this should be; it is {found.ledger}",
            f"set RANONCE_LEDGER={found.ledger}",
        )
        return store, [check.problem(seen, step)]
    if expected != found.ledger:
        seen = f"it is ledger {found.ledger}, and {expected} is meant"
        return store, [check.problem(seen, "name the right store, or restore this one: no job runs until then")]
    said = f"it is ledger {found.ledger}, made at {format_instant(found.created_at)}"
    by = "as it should be" if spec.ledger_id else "as this host has known it"
    findings = [check.ok(f"{said}, {by}")]
    if time.time() < found.created_at - CLOCK_SLACK_SECONDS:
        findings.append(check.problem(f"{said}, which is in this clock's future", "set the clock"))
    return store, findings


def losses(store: Store) -> Iterator[Finding]:
    """Tell of every loss that was accepted: what was known before it may have run again since."""
    check = Check("losses", "looked for losses that were accepted")
    epochs = store.upkeep().epochs()
    for epoch in epochs:
        seen = f"epoch {epoch.number} began at {format_instant(epoch.began_at)}: {plain(epoch.reason)}"
        yield check.note(f"{seen} (accepted by {plain(epoch.by)})")
    if not epochs:
        yield check.ok("none")


def jobs_known(store: Store, declared: set[str], file: str | None, names: list[str]) -> Iterator[Finding]:
    """Compare the jobs of the ledger with those of the configuration."""
    check = Check("jobs", "compared the jobs of the ledger with those of the configuration")
    recorded = {job.name for job in store.jobs()}
    for name in sorted(set(names) - recorded - declared):
        yield check.of(name).problem("neither of them has it", "look at the name; known are: ranonce status")
    if file is None:
        return
    chosen = set(names) or recorded | declared
    for name in sorted((recorded - declared) & chosen):
        if store.schedules(name) and store.schedules(name)[-1].every == "never":
            continue  # it was removed on purpose
        started = python_start(store, name)
        if started is not None:  # it declares itself
            again = f"ranonce rerun and backfill start it with: -- {started.command}"
            yield check.of(name).ok(f"it is a Python job, started by {started.way}; {again}")
            continue
        seen = f"it is in the ledger, and not in {shown_path(file)}: its triggers must give schedule and command"
        yield check.of(name).note(seen, f"declare it: ranonce add {name} --every RULE -- COMMAND")
    for name in sorted((declared - recorded) & chosen):
        seen = f"it is in {shown_path(file)}, and the ledger has never heard of it: no trigger ever came"
        yield check.of(name).note(seen, f"see that its line is in place: ranonce add {name}")
    if recorded & declared & chosen and not (recorded ^ declared) & chosen:
        yield check.ok(f"the same {few(len(chosen), 'job')} in both")
