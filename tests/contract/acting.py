"""What contract tests do with a store: claim, renew and finish through the ledger's own loop."""

from __future__ import annotations

import os

from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Ask, Claim, Policy, Refusal, RunKey, Verdict
from ranonce.stores.base import Job, Store
from ranonce.windows import Schedule, Window

DAILY = Schedule("day")
START = 1_762_732_800  # 2025-11-10T00:00Z


def ledger_over(store: Store, job: str = "job") -> OpenLedger:
    ledger = OpenLedger(store, folder=None, wait_seconds=20)
    ledger.declare(Job(job, 0, START, 3600.0, 3), DAILY, 0, now=START, change=False)
    return ledger


def ask(day: int = 0, *, job: str = "job", lease: float = 300.0, **changes: object) -> Ask:
    window = DAILY.shift(DAILY.window_at(START), day)
    return Ask(
        key=RunKey(job, window.key),
        window=window,
        schedule=1,
        owner=os.urandom(16).hex(),
        lease_seconds=lease,
        now=float(window.start),
        served_from=window.start,
        trigger="schedule",
        policy=Policy(max_attempts=1_000_000),
        process="a test",  # no process that anybody could see: its lease alone counts
    ).replace(**changes)


def claim(ledger: OpenLedger, day: int = 0, **changes: object) -> Claim:
    answer = ledger.claim(ask(day, **changes))
    assert isinstance(answer, Claim), answer
    return answer


def refused(ledger: OpenLedger, day: int = 0, **changes: object) -> Refusal:
    answer = ledger.claim(ask(day, **changes))
    assert isinstance(answer, Refusal), answer
    return answer


def verdict(outcome: str = "done", **more: object) -> Verdict:
    return Verdict(outcome, **{"at": float(START + 60), **more})


def window_of(day: int = 0) -> Window:
    return ask(day).window
