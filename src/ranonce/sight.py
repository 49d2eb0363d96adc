"""What can be seen from here of who holds a claim: by the attempt's file, by its sign, by its process.

Each counts where it means something. The file, in this host's state folder, knows wrapper, child and group, and so is
the only proof of death. The sign, beside a ledger that is a local file, is seen from every state folder and every
namespace. The process that a lease names means something in the same boot and namespaces: it proves life where a
store is a server's, and gives the sign a pid.

Names prove nothing: two containers may have the same host name, and each a process 1.
"""

from __future__ import annotations

import os

from ranonce.claimant import Claimant, claimant_of, shown, text_of
from ranonce.lifecycle import UNKNOWN, Sighting
from ranonce.liveness import examine, is_owner, look_at, process_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.liveness import HostIdentity, Process


#: When this process began, by its number and its boot: a forked child asks anew.
_started: dict[tuple[int, str], str] = {}


def ourselves(here: HostIdentity, folder: str | None) -> str:
    """Return what a lease of this process says of its holder. `folder` is the ledger's state folder on this host."""
    pid = os.getpid()
    this = (pid, here.boot_id)
    if this not in _started:
        _started.clear()
        # Without a boot, /proc counts the processes of another namespace.
        _started[this] = process_start(pid) or "" if here.boot_id else ""
    return text_of(Claimant(here.host, pid, _started[this], here.boot_id, here.pid_ns, here.time_ns, _id_of(folder)))


def sighting_of(owner: str, process: str, *, folder: str | None, beside: str | None, here: HostIdentity) -> Sighting:
    """Return what can be proved here of the attempt behind a claim. Reads only, and every doubt is `unknown`.

    `process` is what its lease says of it; `folder` is the ledger's state folder on this host, `beside` the folder of
    a ledger that is a file. Raises StoreUnavailable where that folder cannot be looked at.
    """
    if not is_owner(owner):
        return UNKNOWN  # brought from another ledger, or written by hand
    seen = UNKNOWN
    if folder is not None:
        evidence = examine(folder, owner, here)
        seen = Sighting(evidence.state, evidence.pid, evidence.name, evidence.orphan)
    if seen.state in ("alive", "dead"):
        return seen
    if beside is not None:
        from ranonce.signs import shown as sign_is_shown

        if not sign_is_shown(beside, owner):
            return seen
        living = _process_of(claimant_of(process), here)
        return Sighting("alive", living.pid, living.name) if living else Sighting("alive", None, shown(process))
    claimant = claimant_of(process)
    if claimant is not None and claimant.folder == _id_of(folder) != "":
        return seen  # its file would be here: it has let go
    living = _process_of(claimant, here)
    return Sighting("alive", living.pid, living.name) if living else seen


def _process_of(claimant: Claimant | None, here: HostIdentity) -> Process | None:
    """Return the process that a lease names, if it can be seen here and lives.

    This process is no witness for itself: it may have let go of an attempt that it once kept.
    """
    if claimant is None or claimant.pid == os.getpid() or not (here.boot_id and here.pid_ns):
        return None
    if any(getattr(claimant, name) != getattr(here, name) for name in ("boot_id", "pid_ns", "time_ns")):
        return None
    process = look_at(claimant.pid)
    return None if process is None or process.dead or str(process.start) != claimant.start else process


def _id_of(folder: str | None) -> str:
    """Return what names a folder on this host, under whatever path it is seen; '' for none."""
    try:
        status = os.stat(folder) if folder is not None else None
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}" if status else ""
