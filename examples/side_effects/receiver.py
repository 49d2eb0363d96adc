"""A board that takes comments over HTTP, and puts each there once, however often it comes.

Any ASGI server runs it, with as many workers as you like:

    RECEIVER_DB=/PATH uvicorn --workers 2 examples.side_effects.receiver:application

The comment and the answer to its request are committed in one transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from typing import Any

from ranonce.inbox import IdempotencyMiddleware, Inbox, Reception

PATH = os.path.abspath(os.environ.get("RECEIVER_DB", "board.db"))


def prepare() -> None:
    """Make the tables, once."""
    with sqlite3.connect(PATH, timeout=10) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE IF NOT EXISTS comments (issue INTEGER NOT NULL, body TEXT NOT NULL)")
        Inbox().create(database)
    database.close()


def put_up(comment: dict[str, Any], reception: Reception) -> None:
    """Put a comment on the board, and keep the answer with it: both or neither."""
    database = sqlite3.connect(PATH, timeout=10, isolation_level=None)
    try:
        database.execute("PRAGMA synchronous = FULL")
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO comments VALUES (?, ?)", (comment["issue"], comment["body"]))
        reception.settle(database, 201, b'{"ok": true}', [(b"content-type", b"application/json")])
        database.execute("COMMIT")
    finally:
        database.close()


def comments() -> list[list[Any]]:
    """Return all comments, by issue."""
    database = sqlite3.connect(PATH, timeout=10)
    try:
        return [list(row) for row in database.execute("SELECT issue, body FROM comments ORDER BY issue")]
    finally:
        database.close()


async def board(scope: Any, receive: Any, send: Any) -> None:
    """The application: POST /comments puts one up, GET /comments lists them."""
    if scope["type"] == "lifespan":
        await receive()
        prepare()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] != "/comments":
        status, told = 404, b"{}"
    elif scope["method"] == "POST":
        comment = json.loads((await receive())["body"])
        await asyncio.to_thread(put_up, comment, scope["ranonce.reception"])
        status, told = 201, b'{"ok": true}'
    else:
        status, told = 200, json.dumps(await asyncio.to_thread(comments)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(told)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": told})


# A worker that is killed in the middle of a request is waited for no longer than its lease.
application = IdempotencyMiddleware(board, f"sqlite:///{PATH}", keep_seconds=7 * 86400, lease_seconds=5)
