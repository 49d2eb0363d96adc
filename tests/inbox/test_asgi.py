"""The middleware before an application, request by request."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time

import pytest

from ranonce.errors import ConfigError, UsageError
from ranonce.inbox import IdempotencyMiddleware, Inbox


class Application:
    """Counts what it does. `status`, `body` and the rest say how it answers."""

    def __init__(self, status=201, chunks=(b"made",), headers=((b"x-id", b"7"),)):
        self.status, self.chunks, self.headers = status, chunks, headers
        self.seen = []
        self.before_answer = None

    async def __call__(self, scope, receive, send):
        message = await receive()
        self.seen.append(message["body"])
        if self.before_answer is not None:
            await self.before_answer(scope)
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        for number, chunk in enumerate(self.chunks):
            more = number < len(self.chunks) - 1
            await send({"type": "http.response.body", "body": chunk, "more_body": more})


class Answered:
    def __init__(self, messages):
        self.status = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])

    @property
    def problem(self):
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.body)


async def request(app, key=b'"k"', body=(b"pay", b"load"), method="POST", path="/charges", headers=()):
    headers = [*headers, *([(b"idempotency-key", key)] if key is not None else [])]
    pieces = [
        {"type": "http.request", "body": part, "more_body": number < len(body) - 1} for number, part in enumerate(body)
    ]
    sent = []

    async def receive():
        return pieces.pop(0) if pieces else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    return Answered(sent)


def ask(app, *arguments, **named):
    return asyncio.run(request(app, *arguments, **named))


@pytest.fixture(autouse=True)
def _closed():
    yield
    while OPENED:
        OPENED.pop().close()


OPENED: list[IdempotencyMiddleware] = []


def over(receiver, app, **options):
    OPENED.append(IdempotencyMiddleware(app, receiver.connect, inbox=receiver.inbox, **options))
    return OPENED[-1]


def test_a_repeated_request_gets_the_answer_to_the_first(receiver):
    app = Application(chunks=(b"ma", b"de"))
    middleware = over(receiver, app)
    first, again = ask(middleware), ask(middleware)
    assert (first.status, first.body, first.headers["x-id"]) == (201, b"made", "7")
    assert (again.status, again.body, again.headers["x-id"]) == (201, b"made", "7")
    assert app.seen == [b"payload"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers


def test_other_workers_know_it_too(receiver):
    apps = [Application(), Application()]
    assert [ask(over(receiver, app)).status for app in apps] == [201, 201]
    assert apps[1].seen == []


def test_no_key_where_one_is_required_is_400(receiver):
    app = Application()
    answered = ask(over(receiver, app, documentation="https://example.org/keys"), None)
    assert answered.status == 400
    assert answered.problem["title"] == "Idempotency-Key is missing"
    assert answered.problem["type"] == "https://example.org/keys"
    assert app.seen == []


@pytest.mark.parametrize("key", [b"", b'"', b'"open', b"two words", b"\xff"])
def test_a_key_that_is_none_is_400(receiver, key):
    assert ask(over(receiver, Application()), key).problem["title"] == "Idempotency-Key is not readable"


def test_two_keys_are_400(receiver):
    answered = ask(over(receiver, Application()), headers=[(b"Idempotency-Key", b'"other"')])
    assert answered.status == 400


def test_where_none_is_required_a_request_without_one_goes_through(receiver):
    app = Application()
    middleware = over(receiver, app, required=False)
    assert [ask(middleware, None).status for _ in range(2)] == [201, 201]
    assert len(app.seen) == 2


def test_methods_that_are_not_named_go_through(receiver):
    app = Application(200)
    middleware = over(receiver, app)
    assert ask(middleware, method="GET", key=None).status == 200
    assert ask(middleware, method="PATCH", key=None).status == 400


def test_what_it_does_not_apply_to_goes_through(receiver):
    middleware = over(receiver, Application(200), applies=lambda scope: scope["path"] != "/health")
    assert ask(middleware, key=None, path="/health").status == 200


@pytest.mark.parametrize(
    "other", [{"body": (b"other",)}, {"path": "/refunds"}, {"headers": [(b"content-type", b"x/y")]}]
)
def test_another_request_under_the_key_is_422(receiver, other):
    app = Application()
    middleware = over(receiver, app)
    ask(middleware)
    assert ask(middleware, **other).status == 422
    assert app.seen == [b"payload"]


def test_a_request_while_the_first_is_under_way_is_409(receiver):
    app = Application()
    middleware = over(receiver, app)

    async def both():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def wait(scope):
            begun.set()
            await go_on.wait()

        app.before_answer = wait
        first = asyncio.create_task(request(middleware))
        await begun.wait()
        meanwhile = await request(middleware)
        go_on.set()
        return await first, meanwhile, await request(middleware)

    first, meanwhile, afterwards = asyncio.run(both())
    assert (first.status, meanwhile.status, afterwards.status) == (201, 409, 201)
    assert 1 <= int(meanwhile.headers["retry-after"]) <= 60
    assert len(app.seen) == 1


@pytest.mark.parametrize("status", [400, 404, 429])
def test_a_refusal_by_the_application_is_an_answer_like_others(receiver, status):
    app = Application(status)
    middleware = over(receiver, app)
    assert [ask(middleware).status for _ in range(2)] == [status] * 2
    assert len(app.seen) == 1


def test_an_application_that_failed_gets_the_request_again(receiver):
    app = Application(503)
    middleware = over(receiver, app)
    assert ask(middleware).status == 503
    app.status = 201
    assert ask(middleware).status == 201
    assert len(app.seen) == 2


def test_an_application_that_raised_gets_the_request_again(receiver):
    app = Application()
    middleware = over(receiver, app)

    async def fail(scope):
        raise RuntimeError("no")

    app.before_answer = fail
    with pytest.raises(RuntimeError):
        ask(middleware)
    app.before_answer = None
    assert ask(middleware).status == 201


def test_an_effect_and_its_answer_are_committed_together(receiver):
    """The application dies right after its commit: the request that comes again does nothing, and is told."""
    app = Application()
    middleware = over(receiver, app)

    async def commit_then_die(scope):
        connection = receiver.connect()
        receiver.add_effect(connection, "charged")
        scope["ranonce.reception"].settle(connection, 201, b"charged")
        connection.commit()
        connection.close()
        raise KeyboardInterrupt

    app.before_answer = commit_then_die
    with pytest.raises(KeyboardInterrupt):
        ask(middleware)
    app.before_answer = None
    again = ask(middleware)
    assert (again.status, again.body) == (201, b"charged")
    assert receiver.effects() == ["charged"]
    assert len(app.seen) == 1


def test_an_effect_that_was_rolled_back_leaves_the_key_free(receiver):
    app = Application()
    middleware = over(receiver, app)

    async def roll_back(scope):
        connection = receiver.connect()
        receiver.add_effect(connection, "charged")
        scope["ranonce.reception"].settle(connection)
        connection.rollback()
        connection.close()
        raise RuntimeError("declined")

    app.before_answer = roll_back
    with pytest.raises(RuntimeError):
        ask(middleware)
    app.before_answer = None
    assert ask(middleware).body == b"made"
    assert receiver.effects() == []


def test_one_that_was_taken_over_while_it_slept_commits_nothing_and_answers_409(receiver):
    slow, quick = Application(), Application()
    middleware = over(receiver, slow, lease_seconds=0.2, keep_seconds=60)

    async def sleep_then_charge(scope):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(IdempotencyMiddleware, "_renew", lambda *_: True)  # as if this worker were stopped
            await asyncio.sleep(0.5)
            other = await request(over(receiver, quick, lease_seconds=60))
        assert other.status == 201
        connection = receiver.connect()
        try:
            receiver.add_effect(connection, "charged twice")
            scope["ranonce.reception"].settle(connection)
        finally:
            connection.rollback()
            connection.close()

    slow.before_answer = sleep_then_charge
    assert ask(middleware).status == 409
    assert receiver.effects() == []


def test_a_long_request_keeps_its_key(receiver):
    app = Application()
    middleware = over(receiver, app, lease_seconds=0.3, keep_seconds=60)

    async def both():
        async def work(scope):
            await asyncio.sleep(1.2)

        app.before_answer = work
        first = asyncio.create_task(request(middleware))
        await asyncio.sleep(0.9)
        meanwhile = await request(middleware)
        return meanwhile, await first

    meanwhile, first = asyncio.run(both())
    assert (meanwhile.status, first.status) == (409, 201)


def test_one_that_was_never_heard_of_again_waits_for_a_person_where_that_is_wanted(receiver):
    app = Application()
    middleware = over(receiver, app, lease_seconds=0.2, keep_seconds=60, again=False)

    async def die(scope):
        raise KeyboardInterrupt

    app.before_answer = die
    with pytest.raises(KeyboardInterrupt):
        ask(middleware)
    asyncio.run(asyncio.sleep(0.3))
    answered = ask(middleware)
    assert (answered.status, answered.problem["title"]) == (409, "Nobody knows what became of this request")
    assert len(app.seen) == 1


def test_a_body_that_is_too_long_is_413_and_nothing_is_done(receiver):
    app = Application()
    assert ask(over(receiver, app, most_body=6)).status == 413
    assert (app.seen, receiver.rows()) == ([], 0)


def test_an_answer_that_is_too_long_to_keep_goes_out_whole_and_is_repeated_without_its_body(receiver):
    app = Application(chunks=(b"x" * 6, b"y" * 6, b"z"), headers=((b"content-length", b"13"), (b"x-id", b"7")))
    middleware = over(receiver, app, most_answer=10)
    assert ask(middleware).body == b"x" * 6 + b"y" * 6 + b"z"
    again = ask(middleware)
    assert (again.status, again.body, again.headers["content-length"], again.headers["x-id"]) == (201, b"", "0", "7")
    assert len(app.seen) == 1


def test_what_belongs_to_one_caller_is_not_repeated(receiver):
    app = Application(headers=((b"Set-Cookie", b"session=1"), (b"x-id", b"7")))
    middleware = over(receiver, app)
    assert "Set-Cookie" in ask(middleware).headers
    assert set(ask(middleware).headers) == {"x-id", "content-length", "idempotency-replayed"}


def test_callers_may_have_their_own_keys(receiver):
    app = Application()
    middleware = over(receiver, app, client=lambda scope: dict(scope["headers"]).get(b"x-tenant", b"").decode())
    for tenant in (b"a", b"b", b"a"):
        ask(middleware, headers=[(b"x-tenant", tenant)])
    assert len(app.seen) == 2


def test_another_header_may_hold_the_key(receiver):
    app = Application()
    middleware = over(receiver, app, header="webhook-id")
    for _ in range(2):
        assert ask(middleware, None, headers=[(b"webhook-id", b"msg_1")]).status == 201
    assert len(app.seen) == 1


def test_while_the_database_is_away_nothing_is_done_and_503_says_so(receiver):
    def away():
        raise sqlite3.OperationalError("unable to open database file")

    app = Application()
    answered = ask(IdempotencyMiddleware(app, away, inbox=receiver.inbox))
    assert (answered.status, answered.headers["retry-after"], app.seen) == (503, "5", [])


def test_a_database_that_is_away_is_named_in_the_log_without_its_password(tmp_path, caplog):
    ask(IdempotencyMiddleware(Application(), f"sqlite:///{tmp_path}/none.db"))
    ask(IdempotencyMiddleware(Application(), "postgresql://app:sesame@127.0.0.1:9/app"))
    first, second = [record.getMessage() for record in caplog.records]
    assert first == f"the inbox ({tmp_path}/none.db) could not be asked: unable to open database file"
    assert second.startswith("the inbox (postgresql://app:***@127.0.0.1:9/app) could not be asked: ")
    assert "sesame" not in caplog.text


def test_what_was_done_is_said_even_if_it_cannot_be_kept(receiver, caplog):
    app = Application()
    connections = []

    def connect():
        if connections:
            raise sqlite3.OperationalError("disk I/O error")
        connections.append(receiver.connect())
        return connections[0]

    middleware = IdempotencyMiddleware(app, connect, inbox=receiver.inbox)
    OPENED.append(middleware)

    async def lose_the_database(scope):
        middleware._pool.close()

    app.before_answer = lose_the_database
    assert ask(middleware).status == 201
    assert "could not be kept" in caplog.text


def test_keys_are_forgotten_after_their_time(receiver):
    ask(over(receiver, Application(), keep_seconds=61.0))
    later = Inbox(receiver.inbox.table, now=lambda: time.time() + 62)
    OPENED.append(IdempotencyMiddleware(Application(), receiver.connect, inbox=later, keep_seconds=61.0))
    ask(OPENED[-1], b'"other"')
    assert receiver.rows() == 1


def test_a_lifespan_goes_through(receiver):
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(over(receiver, app)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_a_retention_shorter_than_a_lease_is_refused(receiver):
    with pytest.raises(UsageError, match="kept for longer"):
        over(receiver, Application(), keep_seconds=60.0)


def test_an_address_that_is_none_is_refused_without_showing_it():
    with pytest.raises(ConfigError) as error:
        IdempotencyMiddleware(Application(), "mysql://me:secret@host/db")
    assert "secret" not in str(error.value)


def test_a_connection_that_is_lent_while_all_are_closed_is_closed_when_it_comes_back(receiver):
    from ranonce.inbox.connections import Pool

    pool = Pool(receiver.connect)
    with pool.transaction() as lent:
        pool.close()
    with pytest.raises(Exception, match="clos"):
        lent.execute("SELECT 1")
    assert not pool._idle
