"""A fair, bounded waiting line before SQLite's write lock.

SQLite's own busy handler polls, and under eight writers somebody starves for seconds. Here every writer first takes an
flock on a small file beside the database; the kernel keeps those who wait in order. The line is a courtesy, not the
lock: without it (the file deleted, another program writing) SQLite's lock still holds, and its busy handler waits.
"""

from __future__ import annotations

import fcntl
import os
from _thread import allocate_lock, start_new_thread

from ranonce.errors import StoreUnavailable


class WaitingLine:
    """A context manager: inside it, this process is the one writer that stands at the counter."""

    def __init__(self, path: str, wait_seconds: float) -> None:
        self.path = path
        self.wait_seconds = wait_seconds
        self._fd: int | None = None
        self._pid = 0

    def __enter__(self) -> None:
        if self._fd is None or self._pid != os.getpid():
            # A descriptor inherited over fork shares its lock with the parent: never stand in line with it.
            self._fd, self._pid = self._open(), os.getpid()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._fd = self._wait()

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave for good."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.geteuid() == 0:
            # Root looking after a user's ledger must not leave a line that the user cannot stand in.
            owner = os.stat(os.path.dirname(self.path))
            os.fchown(fd, owner.st_uid, owner.st_gid)
        return fd

    def _wait(self) -> int:
        """Wait for the turn in a thread of its own, since an flock cannot be given a time limit.

        The thread waits on a descriptor of its own. If the time is over, it is left behind: closing the descriptor
        when it finally gets the lock gives the turn to the next.
        """
        turn = _Turn(self._open())
        try:
            start_new_thread(turn.wait, ())
            come = turn.come.acquire(timeout=self.wait_seconds)
        except BaseException:  # Ctrl-C, say: a turn that comes now would be nobody's
            if turn.taken_after_all():
                os.close(turn.fd)
            raise
        if not come and not turn.taken_after_all():
            raise StoreUnavailable(
                f"the ledger {self.path.removesuffix('-line')} was busy for {self.wait_seconds:g} seconds.",
                "Nothing was started; look for a process that holds it (fuser), or allow a longer store wait.",
            )
        if turn.error is not None:
            os.close(turn.fd)
            raise turn.error
        if self._fd is not None:
            os.close(self._fd)
        return turn.fd


class _Turn:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.come = allocate_lock()
        self.come.acquire()  # released when the turn has come
        self.error: OSError | None = None
        self._given_up = False
        self._lock = allocate_lock()

    def wait(self) -> None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except OSError as error:
            self.error = error
        with self._lock:
            if self._given_up:
                os.close(self.fd)
            else:
                self.come.release()

    def taken_after_all(self) -> bool:
        """Give up, unless the turn came in this very moment."""
        with self._lock:
            self._given_up = self.come.locked()
            return not self._given_up
