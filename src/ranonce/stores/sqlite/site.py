"""Where a SQLite ledger is, or may be made: a file in a private folder on a local disk."""

from __future__ import annotations

import os
import shutil

from ranonce.errors import UsageError
from ranonce.filesystem import file_system_of
from ranonce.stores.base import Risk
from ranonce.stores.sqlite.create import create, upgrade

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.sqlite.recovery import SqliteRecovery

#: What a scratch ledger's folder is called, before its own name.
SCRATCH = "ranonce-scratch-"


class SqliteSite:
    """The site of one ledger file, named by its absolute path."""

    def __init__(self, path: str, *, wait_seconds: float = 30.0) -> None:
        self.path = path
        self.wait_seconds = wait_seconds

    def stands(self) -> bool:
        return os.path.lexists(self.path)

    def risk(self) -> Risk | None:
        where = file_system_of(os.path.dirname(self.path))
        return Risk(f"{where.kind} (mounted at {where.mount})", where.problem) if where.problem else None

    def create(self, ledger: str, *, volatile: str | None = None, epoch: int = 1) -> None:
        create(self.path, ledger, volatile=volatile, epoch=epoch)

    def upgrade(self, ledger: str | None) -> bool:
        return upgrade(self.path, ledger)

    def recovery(self) -> SqliteRecovery:
        from ranonce.stores.sqlite.recovery import SqliteRecovery

        return SqliteRecovery(self.path, wait_seconds=self.wait_seconds)

    def scratch(self, name: str) -> str:
        folder = os.path.dirname(self.path)
        while not os.path.isdir(folder) and folder != "/":
            folder = os.path.dirname(folder)  # where the ledger's own folder would be made: nothing but ours is made
        return f"sqlite:///{folder.rstrip('/')}/{SCRATCH}{name}/ledger.db"

    def destroy(self) -> None:
        folder = os.path.dirname(self.path)
        if not os.path.basename(folder).startswith(SCRATCH):
            raise UsageError(f"{folder!r} holds no scratch ledger.", "Nothing was removed.")
        shutil.rmtree(folder)
