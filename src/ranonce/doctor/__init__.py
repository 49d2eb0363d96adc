"""Examine a ledger and its host: one finding for each thing that was looked at. Changes nothing.

It never gives up: a store that cannot be opened is a finding, and what does not need the store is still looked at. The
journal is read before the store is opened, as at every run, so that the store may know more than it, never less.

`deep` reads all of the ledger: every page and index, every event and every line of the journal.
"""

from __future__ import annotations

import os
import sqlite3

from ranonce.doctor import claims, clocks, deliveries, host, jobs, locks, places, records, store, witness
from ranonce.doctor.finding import RESTORE, Check, Finding, step_of
from ranonce.doctor.kinds import kind_of
from ranonce.errors import RanonceError
from ranonce.journal import Journal
from ranonce.ledger import known_ledger
from ranonce.names import plain
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ranonce.config import Config
    from ranonce.doctor.kinds import Kind
    from ranonce.stores.base import Job, Store


#: What values of the wrong type lead to: in a damaged file a column may hold anything.
DAMAGE = (TypeError, AttributeError, KeyError, IndexError)


class Patient(Record):
    """What is to be examined: the jobs (none: all), what the options name, the environment, and how deep to look."""

    names: list[str]
    config: str | None
    store: str | None
    environ: Mapping[str, str]
    deep: bool = False


class _Ledger(Record):
    """What is known of the ledger on this host: its kind, this host's folder for it, its journal's end."""

    kind: Kind
    folder: str | None
    journal: Journal | None
    facts: list[dict[str, Any]]


def examine(patient: Patient) -> Iterator[Finding]:
    """Look at everything, the outermost first, and tell each finding as soon as there is one."""
    yield from host.versions()
    config, findings = host.configuration(patient.config, patient.store, patient.environ)
    yield from findings
    if config is None:
        check = Check("store", "looked for the store")
        yield check.problem("which one is meant is not known", "mend the configuration, or name it: --store URL")
        return
    yield from jobs.declared(config, patient.names, patient.environ)
    yield from deliveries.declared(config, patient.environ)
    states, none = host.states(patient.environ)
    yield from none
    ledger, unread = _on_this_host(config, states)
    yield from unread
    opened, found = store.opened(config.ledger, states)
    accepted = opened.identity().volatile if opened is not None else None
    yield from ledger.kind.before(config.ledger.store, accepted)
    yield from _places(ledger, accepted)
    yield from found
    if opened is None:
        yield from clocks.clock(None, ledger.journal, ledger.facts)
        if ledger.folder is not None and os.path.isdir(ledger.folder):
            yield from claims.attempts(None, ledger.folder)
        return
    try:
        yield from _of_store(patient, config, opened, ledger)
    finally:
        ledger.kind.let_go(opened)


def _on_this_host(config: Config, states: str | None) -> tuple[_Ledger, list[Finding]]:
    """Find this host's folder of the ledger, and read the end of its journal before anybody opens the store."""
    expected = config.ledger.ledger_id or (known_ledger(states, config.ledger.store) if states else None)
    folder = os.path.join(states, expected) if states and expected else None
    journal = Journal(folder) if folder else None
    facts, found = witness.tail(journal)
    return _Ledger(kind_of(config.ledger.store), folder, journal, facts), found


def _places(ledger: _Ledger, accepted: str | None) -> Iterator[Finding]:
    """Look at the folder of this host's state."""
    if ledger.folder is not None:
        yield from host.writable(ledger.folder)
        if os.path.isdir(ledger.folder):
            yield from places.file_system(ledger.folder, "state-place", accepted=accepted)
            mine = [
                ledger.folder,
                os.path.join(ledger.folder, "attempts"),
                os.path.join(ledger.folder, "journal.jsonl"),
            ]
            yield from places.owners(mine, "state-owner", private=True)
            yield locks.contest(ledger.folder, "state-locks", database=False)


def _of_store(patient: Patient, config: Config, opened: Store, ledger: _Ledger) -> Iterator[Finding]:
    """Look at everything that needs the store; what breaks off is a finding, and the next check is made."""
    journal = Journal(ledger.folder, opened.identity().epoch) if ledger.folder else None
    declared = config.jobs.keys() | config.broken.keys()

    def chosen() -> list[Job]:
        return [job for job in opened.jobs() if not patient.names or job.name in patient.names]

    steps: list[tuple[str, Callable[[], Iterable[Finding]]]] = list(ledger.kind.steps(opened, deep=patient.deep))
    if journal is not None:
        steps.append(("journal", lambda: witness.newest(journal, ledger.facts, opened)))
    if journal is not None and patient.deep:
        steps.append(("journal", lambda: witness.every_line(journal, opened)))
    if patient.deep:
        steps.append(("events", lambda: records.records(opened, restore=ledger.kind.restore, gaps=ledger.kind.gaps)))
        steps.append(("bodies", lambda: deliveries.bodies(opened, ledger.kind.restore)))
    steps += [
        ("losses", lambda: store.losses(opened)),
        ("clock", lambda: clocks.clock(opened, journal, ledger.facts)),
        ("jobs", lambda: store.jobs_known(opened, set(declared), config.path, patient.names)),
        ("schedule", lambda: clocks.schedules(opened, chosen())),
        ("claims", lambda: claims.claims(opened, chosen(), ledger.folder)),
    ]
    if ledger.folder is not None and os.path.isdir(ledger.folder):
        folder = ledger.folder
        steps.append(("attempts", lambda: claims.attempts(opened, folder)))
    steps += [
        ("triggers", lambda: claims.triggers(opened, chosen())),
        ("gates", lambda: claims.gates(opened)),
        ("messages", lambda: deliveries.waiting(opened, config, patient.names)),
    ]
    for name, step in steps:
        yield from _unbroken(name, step)


def _unbroken(name: str, step: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Tell a check's findings; where it breaks off (a damaged file, a full disk), that is one more."""
    try:
        yield from step()
    except RanonceError as error:
        yield Check(name, "looked, and could not go on").problem(plain(error.sentence), step_of(error.next_step))
    except (OSError, ValueError, OverflowError, sqlite3.Error, *DAMAGE) as error:
        yield Check(name, "looked, and could not go on").problem(plain(f"{type(error).__name__}: {error}"), RESTORE)
