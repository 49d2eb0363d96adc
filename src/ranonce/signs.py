"""A sign of life beside a ledger that is a file: a lock that everybody sees who may claim there.

The attempt's own file (`liveness`) lies in a state folder, which another container on the same volume need not have;
and where it has it, the pids in it mean nothing in another namespace. So the wrapper of an attempt on a local ledger
also locks one byte of the folder that the ledger lies in, at a place that its owner id names. Nothing is stored there:
the lock needs no space, leaves nothing behind, and can be neither deleted nor copied. Whoever may claim in that ledger
can open that folder, from whatever container, and is answered by the kernel they all share.

Held, the process that keeps the claim lives, be it paused or unable to write; free, it has ended or has let go. It is
the process itself that counts: neither what it has started nor what it has forked keeps the lock.

Open file description locks, fcntl(2): Linux. Elsewhere no sign is shown, and the attempt keeps itself by its lease.
"""

from __future__ import annotations

import errno
import os
import sys

from ranonce.errors import StoreUnavailable
from ranonce.liveness import above_stdio

try:
    import fcntl
except ImportError:  # not POSIX
    HAS_SIGNS = False
else:
    #: `struct flock` is laid out here as 64-bit Linux has it.
    HAS_SIGNS = hasattr(fcntl, "F_OFD_SETLK") and sys.maxsize > 1 << 32

#: What a kernel, or a sandbox in its place, says that does not have such locks.
NO_SUCH_LOCKS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

_held: set[int] = set()  # descriptors of this process that hold a sign
_watched: list[bool] = []


class Sign:
    """The sign of one attempt, shown until `end`, or until this process has ended."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _held.add(fd)
        if not _watched:
            _watched.append(True)
            os.register_at_fork(after_in_child=_forked)

    @classmethod
    def show(cls, folder: str, owner: str) -> Sign | None:
        """Show the sign of an attempt in a ledger's folder. None where that cannot be: then nothing proves its life."""
        if not HAS_SIGNS:
            return None
        try:
            fd = above_stdio(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError:
            return None
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, owner))
        except OSError:
            os.close(fd)
            return None
        return cls(fd)

    def end(self) -> None:
        """Show it no more."""
        fd, self._fd = self._fd, -1
        if fd in _held:
            _held.discard(fd)
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, None))  # also for a copy on its way to exec
            finally:
                os.close(fd)


def shown(folder: str, owner: str) -> bool:
    """Say whether the sign of an attempt is shown in a ledger's folder. StoreUnavailable where that is not known."""
    if not HAS_SIGNS:
        return False
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, owner))
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in NO_SUCH_LOCKS:
            return False
        raise StoreUnavailable(
            f"the locks of the ledger's folder {folder!r} cannot be seen: {error.strerror}.", "Nothing was started."
        ) from error
    return int.from_bytes(answer[:2], sys.byteorder) != fcntl.F_UNLCK


def _lock(kind: int, owner: str | None) -> bytes:
    """Return a `struct flock` for the byte of an attempt, or for all: type, whence, start, length, pid."""
    order = sys.byteorder
    start, length = (int(owner[:15], 16), 1) if owner else (0, 0)  # 60 bits of the owner id, which is random
    return kind.to_bytes(2, order) + bytes(6) + start.to_bytes(8, order) + length.to_bytes(8, order) + bytes(8)


def _forked() -> None:
    """In a fork: it is not the process that keeps the claims."""
    while _held:
        os.close(_held.pop())
