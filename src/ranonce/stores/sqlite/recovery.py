"""Build a lost SQLite ledger anew, in a file beside the old one, which is moved aside with all that belongs to it."""

from __future__ import annotations

import glob
import os
import time

from ranonce.errors import NotThisLedger, RanonceError, StoreUnavailable
from ranonce.failpoints import failpoint
from ranonce.stores.base import Identity
from ranonce.stores.sqlite.create import create, sync_folder
from ranonce.stores.sqlite.file import APPLICATION_ID, FORMAT, private_file
from ranonce.stores.sqlite.line import WaitingLine
from ranonce.stores.sqlite.store import SqliteStore
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

MAGIC = b"SQLite format 3\0"
#: The files that SQLite and we keep beside a ledger.
BESIDE = ("-wal", "-shm", "-journal")


class SqliteRecovery:
    """The building anew of the ledger at one path. One process at a time: the caller stands in a line for that."""

    def __init__(self, path: str, *, wait_seconds: float) -> None:
        self.path = path
        self.wait_seconds = wait_seconds
        self._line: WaitingLine | None = None
        self._building: str | None = None

    def __enter__(self) -> Self:
        self._sweep()
        return self

    def __exit__(self, *_: object) -> None:
        self._sweep()
        if self._line is not None:
            self._line.__exit__(None, None, None)
            self._line.close()

    def _sweep(self) -> None:
        for leftover in glob.glob(f"{glob.escape(self.path)}.*.recovered*"):
            os.unlink(leftover)

    def broken(self) -> str | None:
        path = self.path
        if not os.path.islink(path) and os.path.isfile(path) and os.path.getsize(path) == 0:
            return f"the ledger {path!r} is empty (0 bytes)."
        private_file(path)
        with open(path, "rb") as file:
            header = file.read(100)
        if not header.startswith(MAGIC) or len(header) < 100:
            return f"{path!r} is no database any more."
        application, version = (int.from_bytes(header[at : at + 4], "big") for at in (68, 60))
        if application != APPLICATION_ID:
            raise NotThisLedger(
                f"{path!r} is a SQLite file of something else, not a ranonce ledger.",
                "Nothing was changed. Move it away yourself if the ledger was overwritten, and say so again.",
            )
        if version != FORMAT:
            raise NotThisLedger(
                f"{path!r} has table format {version}; this ranonce knows format {FORMAT}.",
                "Bring it up to date: ranonce init" if 0 < version < FORMAT else "Use the version that wrote it.",
            )
        return None

    def halt(self) -> None:
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"no ledger can be built at {self.path!r}: {error.strerror}.", "") from error
        self._line = WaitingLine(self.path + "-line", self.wait_seconds)
        self._line.__enter__()  # a damaged file may be good enough to write, and whoever wants to stands in this line

    def remains(self, ledger: str) -> SqliteStore | None:
        aside = sorted(glob.glob(f"{glob.escape(self.path)}.lost-*[0-9Z-]"), reverse=True)
        for path in (self.path, *aside[:1]):
            try:
                store = _Remains(path, ledger, wait_seconds=self.wait_seconds)
            except (RanonceError, OSError):
                continue
            if store.identity().ledger == ledger:
                return store
            store.close()
        return None

    def begin(self, ledger: str, *, volatile: str | None, epoch: int) -> SqliteStore:
        assert self._line is not None, "somebody could still write"
        self._building = f"{self.path}.{os.getpid()}.recovered"
        create(self._building, ledger, volatile=volatile, epoch=epoch)
        return SqliteStore(self._building, wait_seconds=self.wait_seconds)

    def take_place(self) -> str | None:
        assert self._building is not None
        try:
            aside = _move_aside(self.path)
            failpoint("loss:moved-aside")
            _give_to_owner(self._building)
            os.link(self._building, self.path)
        except OSError as error:
            raise StoreUnavailable(f"no ledger could be put at {self.path!r}: {error.strerror}.", "") from error
        sync_folder(os.path.dirname(self.path))
        return aside


class _Remains(SqliteStore):
    """What is left of a ledger; its identity may be lost."""

    def __init__(self, path: str, ledger: str, *, wait_seconds: float) -> None:
        self._ledger = ledger
        super().__init__(path, wait_seconds=wait_seconds)

    def _recognise(self) -> Identity:
        try:
            return super()._recognise()
        except NotThisLedger:
            header = [self._db.execute(f"PRAGMA {what}").fetchone()[0] for what in ("application_id", "user_version")]
            if header != [APPLICATION_ID, FORMAT]:
                raise
            return Identity(self._ledger, 0.0)


def _move_aside(path: str) -> str | None:
    """Give the old files another name, all of them; return it, or None where there are none."""
    if not os.path.lexists(path):
        return None
    aside = f"{path}.lost-{format_instant(time.time()).replace(':', '')}"
    while os.path.lexists(aside):
        aside += "-"
    for suffix in (*BESIDE, ""):
        if os.path.lexists(path + suffix):
            os.rename(path + suffix, aside + suffix)
    return aside


def _give_to_owner(path: str) -> None:
    """Root looking after a user's ledger must not leave a file that the user cannot use."""
    if os.geteuid() == 0:
        owner = os.stat(os.path.dirname(path))
        os.chown(path, owner.st_uid, owner.st_gid)
