"""The file of a SQLite ledger: make sure it is private, and say what SQLite's errors mean for a person."""

from __future__ import annotations

import os
import sqlite3
import stat

from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable
from ranonce.stores.statements import load

APPLICATION_ID = 0x72616E6F  # "rano", in the file's header: whose file this is
FORMAT = 3  # of the tables, in the header's user_version
SQL = load("sqlite/store.sql")

LOST = (
    "Nothing was run. Put the ledger back (restore it from a backup), or if it is lost, go on with what this host"
    " remembers: ranonce accept-loss --reason TEXT"
)


def quoted(path: str) -> str:
    """Return a path as it stands in a SQLite URI."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def private_file(path: str) -> tuple[int, int]:
    """Return device and inode of a ledger file that may be used, or say why this one may not."""
    try:
        seen = os.lstat(path)
    except FileNotFoundError as error:
        raise NotThisLedger(f"there is no ledger at {path!r}.", LOST_OR_NEW) from error
    except OSError as error:
        raise NotThisLedger(
            f"the ledger {path!r} cannot be reached: {error.strerror}.", f"You are {_user(os.geteuid())}."
        ) from error
    if stat.S_ISLNK(seen.st_mode):
        raise NotThisLedger(f"{path!r} is a symbolic link.", "Name the ledger's real path.")
    if stat.S_ISDIR(seen.st_mode):
        raise NotThisLedger(f"{path!r} is a directory.", "Name the ledger file in it.")
    if not stat.S_ISREG(seen.st_mode):
        raise NotThisLedger(f"{path!r} is not a regular file.", "Name the ledger file.")
    if seen.st_size == 0:
        raise NotThisLedger(f"the ledger {path!r} is empty (0 bytes).", LOST)
    folder = os.path.dirname(path)
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        if seen.st_uid == os.geteuid():
            raise NotThisLedger(
                f"the ledger {path!r} or its folder is read-only.",
                f"Make both writable (chmod u+w {path} {folder}; or the disk: mount).",
            )
        raise NotThisLedger(
            f"the ledger {path!r} belongs to {_user(seen.st_uid)}, and {_user(os.geteuid())} may not write it.",
            "Run the job as its owner, or give this user a ledger of its own (ranonce init).",
        )
    if seen.st_mode & 0o022:
        raise NotThisLedger(
            f"others may write the ledger {path!r} (mode {stat.S_IMODE(seen.st_mode):04o}).", f"chmod 600 {path}"
        )
    return seen.st_dev, seen.st_ino


LOST_OR_NEW = (
    "Nothing was run. If it was lost, restore it from a backup, or go on without: ranonce accept-loss --reason TEXT."
    " If there never was one, create it: ranonce init"
)


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def translated(error: sqlite3.Error | OSError, path: str) -> RanonceError:
    """Turn an error of SQLite or the system into a sentence: what a person must mend is 78, what may pass is 69."""
    if isinstance(error, OSError):
        return StoreUnavailable(f"the ledger {path!r} cannot be locked: {error.strerror}.", "")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(
            f"the ledger {path!r} was locked by another program until the wait was over.",
            "Nothing was started; look for what holds it (fuser).",
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_SCHEMA):
        return NotThisLedger(f"{path!r} is damaged or not a ledger: {error}.", LOST)
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"the disk of the ledger {path!r} is full.", "Nothing was lost; free some space.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH):
        return ConfigError(f"the ledger {path!r} cannot be opened for writing: {error}.", "Check owner and mode.")
    if isinstance(error, sqlite3.OperationalError) and "no such table" in str(error):
        return NotThisLedger(f"{path!r} has lost tables: {error}.", LOST)
    return StoreUnavailable(f"the ledger {path!r} cannot be used: {error}.", "")
