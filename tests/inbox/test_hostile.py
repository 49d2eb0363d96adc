"""Callers, applications and connections that do what nobody expects, before the middleware and the table."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
import time
from pathlib import Path

import pytest

from ranonce.inbox import IdempotencyMiddleware, Inbox
from tests.inbox.databases import Receiver
from tests.inbox.test_asgi import Answered, Application, _closed, ask, over, request

__all__ = ["_closed"]  # after each test, what it opened is closed


def test_a_request_whose_caller_left_before_its_end_is_not_begun(receiver: Receiver) -> None:
    app = Application()
    middleware = over(receiver, app)
    arriving = [{"type": "http.request", "body": b"pay", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        return arriving.pop(0)

    async def send(message: object) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", b'"k"')]
    scope = {"type": "http", "method": "POST", "path": "/charges", "query_string": b"", "headers": headers}
    asyncio.run(middleware(scope, receive, send))
    assert (app.seen, sent, receiver.rows()) == ([], [], 0)
    assert (ask(middleware).status, app.seen) == (201, [b"payload"])


@pytest.mark.parametrize("blocked", ["threads", "loop"])
def test_an_application_that_holds_everything_up_keeps_its_key(receiver: Receiver, blocked: str) -> None:
    app, other = Application(), Application()

    async def hold(_: object) -> None:
        if blocked == "loop":
            time.sleep(1.2)
        else:
            await asyncio.gather(*(asyncio.to_thread(time.sleep, 1.2) for _ in range(2)))

    app.before_answer = hold
    first = over(receiver, app, lease_seconds=0.3, keep_seconds=60)

    async def serve() -> Answered:
        asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(2))
        return await request(first)

    with concurrent.futures.ThreadPoolExecutor(1) as elsewhere:
        answered = elsewhere.submit(asyncio.run, serve())
        while not app.seen:
            time.sleep(0.01)
        time.sleep(0.7)  # more than two leases
        again = ask(over(receiver, other, lease_seconds=0.3, keep_seconds=60))
        assert (again.status, other.seen) == (409, [])
        assert answered.result().status == 201
    assert ask(first).headers["idempotency-replayed"] == "true"


def test_an_answer_that_could_not_be_kept_at_first_is_kept_when_the_application_has_ended(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Application()
    middleware = over(receiver, app)
    settle, asked = IdempotencyMiddleware._settle, []

    def locked_once(self: IdempotencyMiddleware, *arguments: object) -> None:
        asked.append(arguments)
        if len(asked) == 1:  # by the application's own transaction, which is committed after its answer
            raise sqlite3.OperationalError("database is locked")
        settle(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(IdempotencyMiddleware, "_settle", locked_once)
    assert ask(middleware).status == 201
    assert ask(middleware).headers.get("idempotency-replayed") == "true"
    assert len(app.seen) == 1


class AlwaysInside(sqlite3.Connection):
    """Begins a transaction as soon as one has ended, as `autocommit=False` does since Python 3.12."""

    def commit(self) -> None:
        super().commit()
        self.execute("BEGIN")


def test_a_connection_that_is_always_in_a_transaction_serves_as_any_other(tmp_path: Path) -> None:
    inbox = Inbox()

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "receiver.db", factory=AlwaysInside, check_same_thread=False)
        connection.execute("BEGIN")
        return connection

    connection = connect()
    inbox.create(connection)
    connection.commit()
    connection.close()
    app = Application()
    middleware = IdempotencyMiddleware(app, connect, inbox=inbox)
    assert [ask(middleware).status, ask(middleware).status] == [201, 201]
    assert len(app.seen) == 1
    middleware.close()


@pytest.mark.parametrize("receiver", ["postgresql"], indirect=True)  # in SQLite it holds up who would take over, too
def test_a_transaction_that_holds_its_key_for_long_holds_up_no_other_request(receiver: Receiver) -> None:
    app = Application()
    middleware = over(receiver, app, lease_seconds=0.6, keep_seconds=60)
    renewed: list[str] = []
    renew = middleware._renew

    def note(key: str, token: str) -> bool:
        renewed.append(key)
        return renew(key, token)

    middleware._renew = note  # type: ignore[method-assign]

    async def work(scope: dict[str, object]) -> None:
        reception = scope["ranonce.reception"]
        if reception.key == "slow":  # type: ignore[attr-defined]
            connection = receiver.connect()
            reception.settle(connection, 201, b"made")  # type: ignore[attr-defined]
            await asyncio.sleep(1.5)
            connection.commit()
            connection.close()
        else:
            await asyncio.sleep(1.5)

    app.before_answer = work

    async def both() -> list[Answered]:
        return list(await asyncio.gather(request(middleware, b'"slow"'), request(middleware, b'"other"')))

    assert [each.status for each in asyncio.run(both())] == [201, 201]
    assert renewed.count("other") > 4 and renewed.count("slow") <= 1
