"""The receiver's side: what comes twice under one key is done once.

`Inbox.receive` belongs into the receiver's own transaction, so that the key and the effect are committed together.
`IdempotencyMiddleware` stands before an ASGI application and answers a repeated request with the answer to the first.
"""

from __future__ import annotations

from ranonce.inbox.answers import Answer, Received
from ranonce.inbox.asgi import IdempotencyMiddleware, Reception
from ranonce.inbox.table import Inbox

__all__ = ["Answer", "IdempotencyMiddleware", "Inbox", "Received", "Reception"]
