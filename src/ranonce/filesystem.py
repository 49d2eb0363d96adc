"""Which file system is a path on, and how long does what is written there live?

A ledger on a file system that forgets (tmpfs, a container's own layer) or whose locks and memory maps do not hold
between hosts (NFS, SMB) cannot keep its promise. Source: proc_pid_mountinfo(5); the SQLite documentation on WAL.
"""

from __future__ import annotations

import os

from ranonce.record import Record

VOLATILE = {
    "tmpfs": "it is kept in memory and gone after a restart",
    "ramfs": "it is kept in memory and gone after a restart",
    "overlay": "it is a container's own layer and gone with the container",
    "aufs": "it is a container's own layer and gone with the container",
    "squashfs": "it is a read-only image",
}
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "gfs2",
    "ocfs2",
    "beegfs",
)
MOUNTS = "/proc/self/mountinfo"


class FileSystem(Record):
    """The file system under a path. `problem` says why a ledger must not live there, or is None."""

    kind: str
    mount: str
    problem: str | None


def file_system_of(path: str, *, mounts: str = MOUNTS) -> FileSystem:
    """Return the file system a path is, or would be, on. Where the system does not tell, it has no problem."""
    real = os.path.realpath(path)
    best: tuple[str, str] | None = None
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                mount = fields.split(" ")[4].encode("utf-8", "surrogateescape").decode("unicode_escape")
                # Later lines hide earlier ones mounted at the same place.
                if _under(real, mount) and (best is None or len(mount) >= len(best[0])):
                    best = (mount, rest.split(" ")[0])
    except OSError:
        best = None
    if best is None:
        return FileSystem("unknown", "/", None)
    mount, kind = best
    return FileSystem(kind, mount, _problem(kind))


def shared_by_hosts(path: str) -> bool:
    """Whether a path is on a file system of several hosts: some locks that are taken there are this host's alone."""
    return _of_a_network(file_system_of(path).kind)


def _of_a_network(kind: str) -> bool:
    return kind in NETWORK or kind.startswith("fuse.")


def _problem(kind: str) -> str | None:
    if kind in VOLATILE:
        return VOLATILE[kind]
    if _of_a_network(kind):
        return "it is a network file system, where SQLite's locks and shared memory do not hold between hosts"
    return None


def _under(path: str, mount: str) -> bool:
    return mount == "/" or path == mount or path.startswith(mount + "/")
