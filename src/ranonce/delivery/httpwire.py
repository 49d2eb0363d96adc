"""HTTP/1.1 over a connection that knows whether anything of a request has left, with one deadline for an exchange.

Answers are read by `http.client`, of which nothing else is used: it waits anew at each read, sends a request in pieces,
and takes an answer that breaks off within its head for a whole one. Here every wait ends at the same deadline, and what
has no end is broken off. Redirects are answers like any other.

Sources: RFC 9110 and RFC 9112; section 9.6 of the latter for connections that are closed while a request is on its way.
"""

from __future__ import annotations

import time
from http.client import HTTPException, HTTPResponse

from ranonce.delivery.httpline import Line, NotSentError, no_answer, opened, said
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from email.message import Message as Head

    from ranonce.delivery.httpline import Peer

#: No more of an answer's body is read.
LONGEST_ANSWER = 64 * 1024  # bytes
#: A connection that was idle for longer is not used again: many servers close theirs after five seconds.
LONGEST_IDLE_SECONDS = 4.0


class UnansweredError(Exception):
    """The request may have been received, and there is no answer that could be read."""


class Reply(Record):
    """An answer. `broken` says why its body is not all that was announced, or that the request had not left whole when
    it came; one that is merely long is not broken."""

    status: int
    head: Head
    body: bytes
    broken: str | None = None


class Wire:
    """Exchanges requests for answers with one peer. `keeps`: the connection is used again while it lives."""

    def __init__(self, peer: Peer, *, keeps: bool = True) -> None:
        self._peer = peer
        self._keeps = keeps
        self._kept: Line | None = None
        self._kept_at = 0.0

    def exchange(self, method: str, written: bytes, seconds: float, most: int = LONGEST_ANSWER) -> Reply:
        """Send a request and return the answer with no more than so many bytes of body, all within so many seconds.

        Raises NotSentError if not one byte of it has left, and UnansweredError if some may have been received.
        """
        deadline = time.monotonic() + seconds
        line = self._living()
        if line is not None:
            try:
                return self._over(line, method, written, deadline, most)
            except NotSentError:
                pass  # it was closed after all, before anything of this request was on it
        return self._over(opened(self._peer, deadline), method, written, deadline, most)

    def close(self) -> None:
        """Let go of the connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _living(self) -> Line | None:
        """Return the connection that was kept, if it is young enough and nobody has closed it."""
        line, self._kept = self._kept, None
        if line is None:
            return None
        if time.monotonic() - self._kept_at <= LONGEST_IDLE_SECONDS and line.is_quiet():
            return line
        line.close()
        return None

    def _over(self, line: Line, method: str, written: bytes, deadline: float, most: int) -> Reply:
        keep = False
        try:
            reply, keep = _exchanged(line, method, written, deadline, most)
        finally:
            if keep and self._keeps:
                self._kept, self._kept_at = line, time.monotonic()
            else:
                line.close()
        return reply


def _exchanged(line: Line, method: str, written: bytes, deadline: float, most: int) -> tuple[Reply, bool]:
    """Return the answer to a request over a connection, and whether that can be used again."""
    line.begin(deadline)
    unsent: str | None = None
    try:
        line.send(written)
    except OSError as error:
        if not line.began:
            raise NotSentError(f"the connection was lost before anything was sent: {said(error)}") from None
        unsent = f"the connection was lost while it was sent: {said(error)}"  # there may be an answer all the same
    try:
        response = HTTPResponse(line, method=method)  # type: ignore[arg-type]
        response.begin()
        while 100 < response.status < 200 and response.status != 101:  # early hints, and what else is no answer yet
            response = HTTPResponse(line, method=method)  # type: ignore[arg-type]
            response.begin()
    except (OSError, HTTPException, ValueError) as error:
        raise UnansweredError(unsent or no_answer(error)) from None
    body, broken = _body(response, most)
    ended = broken is None and response.isclosed() and unsent is None
    return Reply(response.status, response.headers, body, broken or unsent), ended and not response.will_close


def _body(response: HTTPResponse, most: int) -> tuple[bytes, str | None]:
    """Return what is read of a body, and why it is not whole, if so."""
    body = b""
    try:
        while len(body) < most:
            piece = response.read(min(16 * 1024, most - len(body)))
            if not piece:
                cut = response.length not in (None, 0)
                return body, "it closed the connection within its answer" if cut else None
            body += piece
            if response.isclosed():
                return body, None
    except (OSError, HTTPException, ValueError) as error:
        return body, no_answer(error)
    return body, None
