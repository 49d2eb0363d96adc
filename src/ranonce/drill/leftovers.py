"""What a drill that was killed outright has left: found and removed by the next drill on the same store.

Its folder in the temporary directory names its scratch ledgers. A lock on a file in it says that its drill is alive.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time

from ranonce.errors import RanonceError
from ranonce.stores import site_of
from ranonce.storeurl import masked, public

PREFIX = "ranonce-drill-"
#: Such a folder is left alone for so long: until then, what its drill had started has ended as well.
SETTLED_SECONDS = 60.0
#: How long a store is waited for in order to tidy up after somebody else.
TIDY_SECONDS = 2.0


def keep_alive(folder: str) -> int:
    """Say, for as long as the descriptor that is returned is open, that the drill of a folder is alive."""
    fd = os.open(os.path.join(folder, "alive"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def remember(folder: str, name: str, url: str) -> None:
    """Note in a drill's folder that a scratch ledger of this name is made beside a store."""
    with open(os.path.join(folder, "scratch"), "a", encoding="utf-8") as file:
        file.write(f"{name} {public(url)}\n")


def removed(url: str, wait_seconds: float) -> str | None:
    """Remove a scratch ledger; return the sentence about why that was not possible, or None."""
    try:
        site_of(url, wait_seconds=wait_seconds).destroy()
    except FileNotFoundError:
        return None
    except (RanonceError, OSError) as error:
        return f"the scratch ledger {masked(url)} could not be removed: {error}"
    return None


def sweep(url: str) -> None:
    """Remove what killed drills have left on the same store; what cannot be reached now stays for another time."""
    above = tempfile.gettempdir()
    for name in os.listdir(above):
        folder = os.path.join(above, name)
        if not name.startswith(PREFIX) or not _is_dead(folder):
            continue
        names = _scratch_of(folder, url)
        if names is None:
            continue
        site = site_of(url, wait_seconds=TIDY_SECONDS)
        if any(removed(site.scratch(scratch), TIDY_SECONDS) for scratch in names):
            return
        shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: str) -> bool:
    """Say whether a folder is one of this user's drills that was killed some time ago."""
    try:
        seen = os.lstat(folder)
        if seen.st_uid != os.geteuid() or seen.st_mode & 0o077 or seen.st_mtime > time.time() - SETTLED_SECONDS:
            return False
        alive = os.open(os.path.join(folder, "alive"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(alive)
    return True


def _scratch_of(folder: str, url: str) -> list[str] | None:
    """Return the names of the scratch ledgers of a drill; None unless all of them were made beside this store."""
    try:
        with open(os.path.join(folder, "scratch"), encoding="utf-8") as file:
            told = [line.rstrip("\n").partition(" ") for line in file]
    except FileNotFoundError:
        return []  # it was killed before it had made any
    except (OSError, ValueError):
        return None
    ours = [name for name, _, beside in told if beside == public(url) and _is_scratch(name)]
    return ours if len(ours) == len(told) else None


def _is_scratch(name: str) -> bool:
    return name.startswith("drill_") and name.replace("_", "a").isalnum() and name.isascii()
