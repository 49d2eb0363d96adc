"""A process that keeps a ledger busy in one way: it claims and finishes, prunes, imports, or opens gates.

Told a store, a way, a number and how often; ends with 0 once it has done so. What a store may say while others are at
work (busy, changed faster than it could be decided on) is no fault; anything else is.
"""

from __future__ import annotations

import random
import sys

from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, Event, Gate, Policy, Retention, Run, RunKey
from ranonce.merging import Told
from ranonce.stores import open_store
from ranonce.stores.base import Intake, Tombstone
from tests.contract.acting import START, ask, verdict

JOBS = ("a", "b", "c")
DAY = 86400
#: Windows that are worked on, and those that are imported.
WORKED, BROUGHT = range(40), range(40, 80)
GATES = [f"gate-{number}" for number in range(30)]


def gate(name: str, chance: random.Random) -> Gate:
    return Gate(name, START + chance.random() * 1000, "429", "job", START + chance.random())


def work(ledger: OpenLedger, chance: random.Random) -> None:
    """Claim a window of a job and finish it, closing gates in any order."""
    job, day = chance.choice(JOBS), chance.choice(WORKED)
    rerun = {"rerun_reason": "again"} if chance.random() < 0.5 else {}
    answer = ledger.claim(ask(day, job=job, policy=Policy(max_attempts=1 << 20, overlap="allow"), **rerun))
    if isinstance(answer, Claim):
        ledger.renew(answer, "allow")
        gates = [gate(name, chance) for name in chance.sample(GATES, len(GATES))]
        ledger.finish(answer, verdict(chance.choice(("done", "failed")), gates=tuple(gates)))


def prune(ledger: OpenLedger, chance: random.Random) -> None:
    ledger.store.upkeep().prune(chance.choice(JOBS), Retention(4e9, 4e9), limit=5)


def told(job: str, day: int) -> Told:
    window = ask(day).window
    key = RunKey(job, window.key)
    events = tuple(
        Event(window.start + 60.0 * number, key, window.start, event, 1, 1, owner="imported", trigger="import")
        for number, event in enumerate(("start", "done"), 1)
    )
    at = (events[0].at, None, None, events[1].at)
    return Told(Run(key, window.start, window.end, "done", 1, 1, "imported", 0, 1, "import", *at), events)


def bring(ledger: OpenLedger, chance: random.Random) -> None:
    """Import windows of all jobs, in any order, with tombstones and gates, numbers kept or not."""
    those = [told(job, day) for job in JOBS for day in chance.sample(BROUGHT, 5)]
    chance.shuffle(those)
    numbered = chance.random() < 0.5
    if numbered:
        seqs = iter(sorted(chance.sample(range(1, 4000), 2 * len(those))))
        those = [Told(one.run, tuple(event.replace(seq=next(seqs)) for event in one.events)) for one in those]
    day = START + chance.choice(BROUGHT) * DAY
    stones = [Tombstone(chance.choice(JOBS), day, day + DAY, 1, 0, START)]
    gates = [gate(name, chance) for name in chance.sample(GATES, len(GATES))]
    intake = Intake(those, stones, gates, keep_numbers=numbered, pruned_seq=chance.randrange(10))
    ledger.store.upkeep().take_in(intake, lambda run, lease: True)


def own(ledger: OpenLedger, chance: random.Random) -> None:
    upkeep = ledger.store.upkeep()
    upkeep.set_gate(gate(chance.choice(GATES), chance))
    if chance.random() < 0.1:
        upkeep.accept_loss("a rehearsal", "a test")
    with upkeep.view():
        runs = {run.key for run in upkeep.all_runs()}
        assert runs <= {event.key for event in upkeep.events_by_window()}


WAYS = {"work": work, "prune": prune, "bring": bring, "own": own}


def main() -> None:
    url, way, number, count = sys.argv[1:]
    ledger = OpenLedger(open_store(url, wait_seconds=60), folder=None, wait_seconds=60)
    chance = random.Random(int(number))
    for _ in range(int(count)):
        WAYS[way](ledger, chance)
    ledger.store.close()


if __name__ == "__main__":
    main()
