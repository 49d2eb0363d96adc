"""Does the journal of this host agree with the store? It remembers what the store may have lost."""

from __future__ import annotations

from ranonce.doctor.finding import Check, few, step_of
from ranonce.errors import ConfigError, NotThisLedger, RanonceError
from ranonce.journal import EMITTED
from ranonce.names import shown_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ranonce.doctor.finding import Finding
    from ranonce.journal import Journal
    from ranonce.stores.base import Store

#: So many contradictions, and so many torn lines, are told one by one.
SHOWN = 5
MEND = "put the newest ledger back, or go on without what is lost: ranonce accept-loss --reason TEXT"


def tail(journal: Journal | None) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Return the journal's last facts, and what keeps them from being read. To be called before the store is opened."""
    if journal is None:
        return [], []
    try:
        return journal.tail(), []
    except ConfigError as error:
        check = Check("journal", f"read the end of {shown_path(journal.path)}")
        return [], [check.problem(error.sentence, step_of(error.next_step))]


def newest(journal: Journal, facts: list[dict[str, Any]], store: Store) -> Iterator[Finding]:
    """Compare the journal's last facts, which were read before the store was opened, with the store."""
    check = Check("journal", f"compared the end of {shown_path(journal.path)} with the store")
    known = [fact for fact in facts if fact.get("epoch") == journal.epoch]
    try:
        journal.check(facts, store)
    except NotThisLedger as error:
        yield check.problem(f"{error.sentence} No job runs", step_of(error.next_step))
        return
    if not known:
        yield check.note("it remembers nothing of this ledger's present, so it would notice no loss of it")
    else:
        yield check.ok(f"the store knows its newest fact (event {max(int(fact['seq']) for fact in known)})")


def every_line(journal: Journal, store: Store) -> Iterator[Finding]:
    """Compare every line of the journal with the store, and count those that are torn."""
    check = Check("journal", f"compared every line of {shown_path(journal.path)} with the store")
    agreed = earlier = wrong = torn = 0
    torn_at: list[str] = []
    try:
        for line in journal.lines():
            where = f"line {line.number} (byte {line.offset})"
            if line.fact is None:
                torn += 1
                torn_at += [where] if torn <= SHOWN else []
            elif line.fact.get("event") == EMITTED:
                continue  # of no event: there is nothing to compare it with
            elif line.fact.get("epoch") != journal.epoch:
                earlier += 1
            elif contradiction := _contradiction(journal, line.fact, store):
                wrong += 1
                if wrong <= SHOWN:
                    yield check.problem(f"{where}: {contradiction}", MEND)
            else:
                agreed += 1
    except FileNotFoundError:
        yield check.note("there is no journal: this host has seen nothing of this ledger")
        return
    except (OSError, RanonceError) as error:
        why = error.sentence if isinstance(error, RanonceError) else error.strerror
        yield check.problem(
            f"could not go on after {few(agreed, 'line')}: {why}", "read it as the user who runs the jobs"
        )
        return
    if wrong > SHOWN:
        yield check.problem(f"{few(wrong - SHOWN, 'more line')} like these", MEND)
    if torn:
        more = f" and {torn - SHOWN} more" if torn > SHOWN else ""
        seen = f"{few(torn, 'line')} torn, which mislead nobody: {', '.join(torn_at)}{more}"
        yield check.note(seen, "was there a power cut, or a full disk?")
    if not wrong:
        before = f"; {few(earlier, 'line')} from before an accepted loss" if earlier else ""
        yield check.ok(f"{few(agreed, 'line agrees', 'lines agree')} with the store{before}")


def _contradiction(journal: Journal, fact: dict[str, Any], store: Store) -> str | None:
    try:
        return journal.contradiction(fact, store)
    except (KeyError, TypeError, ValueError):
        return "it is whole, and nothing that this version writes"
