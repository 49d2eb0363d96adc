"""A board over HTTP, on a database of either kind: each comment and the answer to its request are one transaction.

RECEIVER_URL and RECEIVER_SCHEMA say which database; any ASGI server runs it, with any number of workers.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from ranonce.inbox import IdempotencyMiddleware, Reception
from tests.inbox.databases import Receiver

RECEIVER = Receiver(os.environ["RECEIVER_URL"], os.environ["RECEIVER_SCHEMA"])
JSON = [(b"content-type", b"application/json")]
MADE = b'{"ok": true}'


def put_up(comment: dict[str, Any], reception: Reception) -> None:
    connection = RECEIVER.connect()
    try:
        RECEIVER.add_effect(connection, json.dumps(comment, sort_keys=True))
        reception.settle(connection, 201, MADE, JSON)
        connection.commit()
    finally:
        connection.close()


async def board(scope: Any, receive: Any, send: Any) -> None:
    """POST puts one up; GET says that somebody listens."""
    status, told = 200, b"{}"
    if scope["method"] == "POST":
        await asyncio.to_thread(put_up, json.loads((await receive())["body"]), scope["ranonce.reception"])
        status, told = 201, MADE
    headers = [*JSON, (b"content-length", str(len(told)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": told})


# A worker that is killed in the middle of a request is waited for no longer than its lease.
application = IdempotencyMiddleware(board, RECEIVER.connect, inbox=RECEIVER.inbox, lease_seconds=5)
