"""What type checkers must understand of the Python face. Never run: `make types` checks it with mypy and basedpyright.

Each `type: ignore` is a mistake that must be seen: one that is not seen is reported as an unused comment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_type

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session

from ranonce import Job, Ledger, Receipt, Refusal, Run, Stop, job
from ranonce.inbox import Answer, IdempotencyMiddleware, Inbox, Received, Reception


@job("triage", every="day", max_attempts=3, lease=timedelta(minutes=5), timeout="2h", uses=["model-api"])
def triage(run: Run) -> None:
    assert_type(run.window, str)
    assert_type(run.window_start, datetime)
    assert_type(run.attempt, int)
    run.note("begun")
    run.check()
    raise Stop("429", retry_after=60, gate="model-api")


@job("fetch", every="0 2 * * *", tz="Europe/Berlin", on_lost="exit")
async def fetch(run: Run) -> int:
    run.note("begun")
    return 3


@job("looked-into", every="day", reconcile=lambda run: run.window == "2026-11-09")
def looked_into(run: Run) -> str:
    return run.job


assert_type(triage, Job[Receipt])
assert_type(fetch, Job[Coroutine[Any, Any, Receipt]])
assert_type(looked_into, Job[Receipt])


def calls() -> None:
    assert_type(triage(), Receipt)
    assert_type(triage(window="2026-11-09", input=b"rows", trigger="manual"), Receipt)
    assert_type(triage(now=datetime.now(UTC)).event, str)
    triage(now=3)  # type: ignore[arg-type]
    triage(trigger="whoever")  # type: ignore[arg-type]
    triage("2026-11-09")  # type: ignore[call-arg]


async def awaited() -> None:
    assert_type(await fetch(), Receipt)


def program() -> None:
    triage.main(["--window", "2026-11-09"])
    print("never reached")  # type: ignore[unreachable]


def claims() -> None:
    with Ledger.open("sqlite:////var/lib/ranonce/ledger.db") as ledger:
        claim = ledger.claim("triage", every="day", now="2026-11-09T12:00:00Z", record_skip=False)
        assert_type(claim, Run | Refusal)
        if claim:
            assert_type(claim, Run)
        else:
            assert_type(claim, Refusal)
        if isinstance(claim, Refusal):
            assert_type(claim.reason, str)
            assert_type(claim.until, datetime | None)
            return
        with claim as run:
            assert_type(run, Run)
        assert_type(run.receipt, Receipt | None)


def matched(ledger: Ledger) -> str:
    match ledger.claim("triage"):
        case Refusal(reason=reason):
            return assert_type(reason, str)
        case Run() as run:
            with run:
                return assert_type(run.window, str)


def truth(run: Run, refusal: Refusal) -> None:
    assert_type(run.__bool__(), Literal[True])
    assert_type(refusal.__bool__(), Literal[False])


def emitted(run: Run) -> None:
    run.emit("slack", "hello")
    run.emit("api", {"total": 3}, key="total", scope="job", content_type="application/json")
    run.emit("files", b"...", key="a")
    run.emit("slack", None)  # type: ignore[arg-type]
    run.emit("slack", 3)  # type: ignore[arg-type]
    run.emit("slack", "hello", scope="world")  # type: ignore[arg-type]
    run.emit("slack", "hello", "key")  # type: ignore[call-arg]


def in_pieces(run: Run, issues: list[dict[str, int]]) -> None:
    for issue in run.items(issues, key=lambda issue: issue["number"]):
        assert_type(issue, dict[str, int])
    for number in run.items(range(3)):
        assert_type(number, int)
    for _ in run.items(issues, key=lambda issue: issue):  # type: ignore[arg-type, return-value]
        pass
    assert_type(run.step("count", lambda: len(issues)), int)


async def in_pieces_later(run: Run, lines: AsyncIterator[str]) -> None:
    async def fetched() -> list[str]:
        return []

    async for line in run.items(lines):
        assert_type(line, str)
    assert_type(await run.step("fetch", fetched), list[str])


def finished(run: Run, connection: sqlite3.Connection) -> None:
    run.finish()
    run.finish("failed", "no rows")
    run.finish(connection=connection)
    run.finish("perfect")  # type: ignore[arg-type]


def finished_elsewhere(run: Run, driver: psycopg.Connection, core: sqlalchemy.Connection, session: Session) -> None:
    run.finish(connection=driver)
    run.finish(connection=core)
    run.finish(connection=session)


def finished_nowhere(run: Run, other: psycopg.AsyncConnection) -> None:
    run.finish(connection=other)  # type: ignore[arg-type]
    run.finish(connection="postgresql://")  # type: ignore[arg-type]


def received(inbox: Inbox, connection: sqlite3.Connection | psycopg.Connection | Session) -> Answer | None:
    inbox.create(connection)
    assert_type(inbox.schema("postgresql"), str)
    told = inbox.receive(connection, "invoice/7", fingerprint="ann 1200")
    assert_type(told, Received)
    assert_type(told.first, bool)
    assert_type(told.conflict, bool)
    if told.first:
        inbox.answer(connection, "invoice/7", Answer(201, body=b"charged"))
    assert_type(inbox.prune(connection, keep_seconds=86400.0), int)
    inbox.receive(connection, b"invoice/7")  # type: ignore[arg-type]
    inbox.answer(connection, "invoice/7", "charged")  # type: ignore[arg-type]
    Answer("201")  # type: ignore[arg-type]
    return assert_type(told.answer, Answer | None)


Told = MutableMapping[str, Any]  # as frameworks write it


async def application(
    scope: Told, receive: Callable[[], Awaitable[Told]], send: Callable[[Told], Awaitable[None]]
) -> None:
    reception: Reception = scope["ranonce.reception"]
    reception.settle(sqlite3.connect("shop.db"), 201, body=b"charged")
    reception.settle(sqlite3.connect("shop.db"), "201")  # type: ignore[arg-type]


def middleware(connect: Callable[[], psycopg.Connection]) -> None:
    made = IdempotencyMiddleware(application, "postgresql://shop", inbox=Inbox("shop.keys"), required=False)
    IdempotencyMiddleware(made, connect, client=lambda scope: str(scope["client"]), again=False)
    made.close()
    IdempotencyMiddleware(application)  # type: ignore[call-arg]
    IdempotencyMiddleware(application, connect, retries=3)  # type: ignore[call-arg]
    IdempotencyMiddleware(application, connect, lease_seconds="1m")  # type: ignore[arg-type]


def misused() -> None:
    job("triage", every=1)  # type: ignore[arg-type]
    job("triage", evry="day")  # type: ignore[call-arg]
    job("triage", overlap="maybe")  # type: ignore[arg-type]

    @job("triage", every="day")  # type: ignore[arg-type]
    def takes_nothing() -> None: ...

    assert takes_nothing
