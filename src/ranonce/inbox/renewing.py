"""Keeping requests that are under way, from a thread that waits for nobody.

An application may hold up the loop it runs in, or every thread of that loop, for longer than a lease: it is still at
work then, and nobody may begin its request anew.
"""

from __future__ import annotations

import logging
import time
from threading import Condition, Thread

from ranonce.inbox.connections import failures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger("ranonce.inbox")
#: With nothing to renew for so long, the thread ends.
IDLE_SECONDS = 30.0


class Renewing:
    """Says of each request, every so many seconds, that it is still worked on. `renew` is given its key and token, and
    returns whether it has it still."""

    def __init__(self, renew: Callable[[str, str], bool], every: float) -> None:
        self._renew = renew
        self._every = every
        self._changed = Condition()
        self._due: dict[tuple[str, str], float] = {}  # the first due first: each waits for as long as the others
        self._thread: Thread | None = None

    def begin(self, key: str, token: str) -> None:
        """Renew a request from now on."""
        with self._changed:
            self._due[key, token] = time.monotonic() + self._every
            if self._thread is None:
                self._thread = Thread(target=self._work, name="ranonce inbox", daemon=True)
                self._thread.start()
            elif len(self._due) == 1:
                self._changed.notify()

    def end(self, key: str, token: str) -> None:
        """Renew it no more."""
        with self._changed:
            self._due.pop((key, token), None)

    def _work(self) -> None:
        while (found := self._next()) is not None:
            key, token = found
            try:
                kept = self._renew(key, token)
            except failures() as error:
                LOG.warning("the key %s could not be renewed: %s", key, error)
                kept = True  # for all that is known
            if not kept:
                self.end(key, token)

    def _next(self) -> tuple[str, str] | None:
        """Wait for a request that is due, and return it, to be renewed again later; None where the thread ends."""
        with self._changed:
            while True:
                found, at = next(iter(self._due.items()), (None, 0.0))
                left = at - time.monotonic() if found else IDLE_SECONDS
                if found and left <= 0:
                    del self._due[found]
                    self._due[found] = time.monotonic() + self._every
                    return found
                if not self._changed.wait(left) and not self._due:
                    self._thread = None
                    return None
