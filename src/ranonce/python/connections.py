"""The open ledgers of one process: lent to one thread at a time, and none crosses a fork.

A connection to SQLite may not be used by two threads at once, and after a fork it may not even be closed by the child.
So a thread borrows one for as long as it asks the ledger something; a fork waits for those that are lent, and closes
what is idle. Parent and child open their own when they next need one.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import contextmanager

from ranonce.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.ledger import OpenLedger

#: How long a fork waits for questions that are under way in other threads. What is still lent then stays with the
#: parent: the child never touches it.
FORK_WAIT_SECONDS = 5.0


class Connections:
    """Open ledgers of the same store, as many as are asked at the same time."""

    def __init__(self, first: OpenLedger) -> None:
        self._pattern = first
        self._idle: dict[float, list[OpenLedger]] = {first.wait_seconds: [first]}
        self._lent: dict[object, int] = {}  # what is lent or being opened, and the thread that has it
        self._left_behind: list[object] = []
        self._changed = threading.Condition()
        self._closed = False
        self._fork: int | None = None  # the thread that waits to fork: meanwhile no other begins a question
        _watch_forks()
        with _turn[0]:
            _every.add(self)

    @contextmanager
    def lend(self, wait_seconds: float | None = None) -> Iterator[OpenLedger]:
        """Lend an open ledger to this thread. `wait_seconds` is how long it waits for its store.

        One that was left by an exception is closed, not lent again. Raises what opening a ledger raises.
        """
        wait = self._pattern.wait_seconds if wait_seconds is None else wait_seconds
        ledger = self._take(wait)
        sound = False
        try:
            yield ledger
            sound = True
        finally:
            self._give_back(ledger, sound)

    def _take(self, wait: float) -> OpenLedger:
        here = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._fork in (None, here) or here in self._lent.values())
            if self._closed:
                raise UsageError("this ledger is closed.", "Open it again: Ledger.open().")
            if idle := self._idle.get(wait):
                ledger = idle.pop()
                self._lent[ledger] = here
                return ledger
            opening = object()
            self._lent[opening] = here
        try:
            ledger = self._pattern.reopen(wait_seconds=wait)  # it may wait for the file, so not under our lock
            self._lent[ledger] = here
        finally:
            with self._changed:
                self._lent.pop(opening, None)
                self._changed.notify_all()
        return ledger

    def _give_back(self, ledger: OpenLedger, sound: bool) -> None:
        with self._changed:
            if self._lent.pop(ledger, None) is None:
                return  # a fork went through its question: it is the parent's, and left alone
            ledger.warnings.clear()
            if sound and not self._closed:
                self._idle.setdefault(ledger.wait_seconds, []).append(ledger)
            else:
                ledger.close()
            self._changed.notify_all()

    def close(self) -> None:
        """Close what is idle now, and what is lent once it comes back."""
        with self._changed:
            self._closed = True
            self._close_idle()

    def _close_idle(self) -> None:
        for ledgers in self._idle.values():
            while ledgers:
                ledgers.pop().close()

    def _before_fork(self) -> None:
        self._changed.acquire()
        here = self._fork = threading.get_ident()
        self._changed.wait_for(lambda: all(thread == here for thread in self._lent.values()), FORK_WAIT_SECONDS)
        self._close_idle()

    def _after_fork_here(self) -> None:
        self._fork = None
        self._changed.notify_all()
        self._changed.release()

    def _after_fork_there(self) -> None:
        self._changed = threading.Condition()
        self._fork = None
        self._left_behind += self._lent  # the parent's: not to be closed, so never to be forgotten
        self._lent.clear()


_every: weakref.WeakSet[Connections] = weakref.WeakSet()
_forking: list[Connections] = []
_turn = [threading.RLock()]  # whose fork it is: two threads may fork at the same time
_watched: list[bool] = []


def _watch_forks() -> None:
    """Let every fork of this process pass by here, from the first open ledger on."""
    if not _watched:
        _watched.append(True)
        os.register_at_fork(before=_before, after_in_parent=_here, after_in_child=_there)


def _before() -> None:
    _turn[0].acquire()
    for connections in list(_every):
        _forking.append(connections)
        connections._before_fork()


def _here() -> None:
    while _forking:
        _forking.pop()._after_fork_here()
    _turn[0].release()


def _there() -> None:
    while _forking:
        _forking.pop()._after_fork_there()
    _turn[0] = threading.RLock()
