"""How far this host has seen each destination's takes go, beside the ledger: a witness that a restored ledger has not.

The journal knows runs and not deliveries, so a copy of the ledger from before a delivery looks whole to it, and its
messages as if nobody had ever sent them. A queue's version moves with each take and never goes back; the highest that
was seen here is kept in the ledger's state folder, one small file a destination, written after a take and before
anything of it is sent. It is written without a sync: after a power cut it may lag behind, never ahead.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

FOLDER = "taken"
_LONGEST = 64  # bytes of a file


class Witness:
    """Remembers versions of queues by destination. `folder` is the ledger's state folder, None where there is none:
    then this process alone remembers. What was seen before a loss that was accepted (another `epoch`) says nothing."""

    def __init__(self, folder: str | None = None, epoch: int = 1) -> None:
        self._folder = None if folder is None else os.path.join(folder, FOLDER)
        self._epoch = epoch
        self._seen: MutableMapping[str, int] = {}

    def seen(self, destination: str) -> int:
        """Return the highest version that was seen here."""
        if destination not in self._seen:
            self._seen[destination] = self._read(destination)
        return self._seen[destination]

    def note(self, destination: str, version: int) -> str | None:
        """Remember a version that is higher than all before; say why that cannot outlive this process, if so."""
        if version <= self.seen(destination):
            return None
        return self.put(destination, version)

    def put(self, destination: str, version: int) -> str | None:
        """Remember a version, whatever was seen before: what a ledger has gone back to was dealt with."""
        self._seen[destination] = version
        if self._folder is None:
            return None
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(os.path.join(self._folder, destination), flags, 0o600)
            try:
                os.pwrite(fd, b"%020d %020d\n" % (self._epoch, version), 0)
            finally:
                os.close(fd)
        except OSError as error:
            return f"{os.path.join(self._folder, destination)!r} could not be written: {error.strerror}"
        return None

    def _read(self, destination: str) -> int:
        """Return what a file says. One that cannot be read, or was torn, says nothing: it is a second witness only."""
        if self._folder is None:
            return 0
        try:
            fd = os.open(os.path.join(self._folder, destination), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                epoch, version = os.read(fd, _LONGEST).split()
            finally:
                os.close(fd)
            return int(version) if int(epoch) == self._epoch else 0
        except (OSError, ValueError):
            return 0
