"""Is that attempt provably dead on this host?

Every attempt of `ranonce run` keeps one file, `<state folder>/attempts/<owner>`, locked (flock) for as long as it
works; the child inherits the descriptor, so the lock outlives a wrapper that was killed. The file says who works:
wrapper and child by pid *and* start time, the child's group and session, and the boot and namespaces in which those
numbers mean anything. From it another process on the same host can tell a dead attempt from a slow one.

A pid alone proves nothing (containers start with the same low pids, and numbers are reused), nor does a missing file,
nor a free lock (a program may close descriptors it does not know). Dead is only what fails every test at once. A held
lock without a living process is no proof of life either: a daemon that left the group may have inherited it.

Where there is no /proc the answer is always `unknown`, and the caller waits for the lease.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from binascii import crc32

from ranonce import jsontext as json
from ranonce.errors import StoreUnavailable, UsageError
from ranonce.record import Record

try:
    import fcntl
except ImportError:  # not POSIX: no flock, so nothing can be proved, and nothing can be run
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    State = Literal["unknown", "dead", "alive", "locked"]

RESERVED_BYTES = 8 * 1024  # kept free on the disk for the identity, the child and an outcome
LOCK_WAIT_SECONDS = 1.0  # an examiner holds a shared lock for microseconds; longer means that it was stopped


class HostIdentity(Record):
    """Where process ids and boot-clock instants mean something. A field is '' where this system does not tell."""

    host: str
    boot_id: str = ""
    pid_ns: str = ""
    time_ns: str = ""


class Evidence(Record):
    """What the attempt's file and the processes of this host say about an attempt.

    `dead`: the lock is free, boot and namespaces are the same, and no recorded process or group member lives.
    `alive`: the recorded wrapper or child, or a member of the child's group, lives; `pid` and `name` say which. An
    `orphan` is one whose wrapper is dead: nobody renews its lease any more, nor will record how it ends.
    `locked`: somebody holds the lock, but no recorded process is seen; this blocks only until the lease ends.
    `unknown`: nothing can be proved here (no file, another boot or namespace, not permitted): wait for the lease.
    """

    state: State
    pid: int | None = None
    name: str = ""
    orphan: bool = False


class Process(Record):
    """One line of /proc/PID/stat. `start` is in clock ticks since boot, as this time namespace counts them."""

    pid: int
    name: str
    dead: bool
    group: int
    session: int
    start: int


_here: dict[int, HostIdentity] = {}  # by the process that asked: a forked child asks anew


def this_host() -> HostIdentity:
    """Return the identity of this host, boot and namespace. It is looked for once: a process keeps it for life."""
    pid = os.getpid()
    if pid not in _here:
        _here.clear()
        _here[pid] = _look_around()
    return _here[pid]


def _look_around() -> HostIdentity:
    """Source: proc(5), namespaces(7)."""
    host = os.uname().nodename if hasattr(os, "uname") else ""
    host = host.encode("utf-8", "backslashreplace").decode()  # a name that is not UTF-8 could not be recorded
    if _link("/proc/self") != str(os.getpid()):
        return HostIdentity(host)  # no /proc, or one that counts the processes of another namespace
    boot_id = _proc("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
    return HostIdentity(host, boot_id, _link("/proc/self/ns/pid"), _link("/proc/self/ns/time"))


def clock_domain(identity: HostIdentity) -> str:
    """Return the domain inside which instants of `boot_clock` can be compared; '' is comparable with nothing."""
    return f"{identity.boot_id}/{identity.time_ns}" if identity.boot_id else ""


def boot_clock() -> float:
    """Return seconds since boot, suspended time included (CLOCK_BOOTTIME; elsewhere the monotonic clock)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def process_start(pid: int) -> str | None:
    """Return the start time of a living process in clock ticks since boot; None when it is gone or a zombie."""
    process = look_at(pid)
    return None if process is None or process.dead else str(process.start)


def look_at(pid: int) -> Process | None:
    """Return what /proc says of a process, or None. The name may hold spaces and brackets. Source: proc_pid_stat(5)."""
    before, bracket, after = _proc(f"/proc/{pid}/stat").rpartition(b")")
    if not bracket:
        return None
    fields = after.split()
    # A zombie with more than one thread is a program whose first thread has ended: the others work on.
    dead = fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1
    name = before.partition(b"(")[2].decode("utf-8", "replace")
    return Process(pid, name, dead, int(fields[2]), int(fields[3]), int(fields[19]))


def group_members(group: int) -> list[Process]:
    """Return the living processes of a process group, as far as /proc shows them."""
    return [process for process in _group(group) if not process.dead]


def group_exists(group: int) -> bool:
    """Tell whether the group has any member at all, living or zombie, visible or not."""
    if group <= 1:
        return False  # never a child of ours; and to kill(2) it would mean every process there is
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # but none that we may signal
    return True


class AttemptFile:
    """The locked file of one attempt. One per owner id, never used again.

    `fd` holds the lock and is inherited by the child. It is open for reading only, so that no stray write of the child
    can make the file lie; we write through a descriptor of our own.

    Lines are JSON objects, each after its length and CRC-32, so that half a line is never taken for a whole one.
    """

    def __init__(self, path: str, writing: int) -> None:
        self.path = path
        self.fd = -1  # the lock; -1 once released
        self._writing = writing
        self._end = 0
        self._outcome: str | None = None

    @classmethod
    def create(cls, folder: str, owner: str, identity: HostIdentity) -> AttemptFile:
        """Create and lock the file, write who we are, and reserve the space an outcome needs on a full disk.

        `folder` is the state folder and must exist. Raises StoreUnavailable when any of it fails: nothing was started.
        """
        path = _path(folder, owner)
        try:
            _private_folder(os.path.dirname(path))
            attempt = cls(path, above_stdio(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)))
        except OSError as error:
            raise _no_attempt_file(path, error) from error
        try:
            attempt.fd = above_stdio(os.open(path, os.O_RDONLY | os.O_NOFOLLOW))
            _lock(attempt.fd)
            _reserve(attempt._writing)
            me = os.getpid()
            attempt._append({**identity.as_dict(), "pid": me, "start": process_start(me)})
        except OSError as error:
            attempt.remove()
            raise _no_attempt_file(path, error) from error
        except BaseException:  # Ctrl-C in a program of the caller's
            attempt.remove()
            raise
        return attempt

    def child_started(self, pid: int) -> None:
        """Record the child, which leads its own group. Call it before the child may do anything."""
        self._append({"child": pid, "child_start": process_start(pid), "group": pid, "session": os.getsid(pid)})

    def write_outcome(self, text: str, *, sync: bool) -> None:
        """Record an outcome that survives this process; with `sync` also a power cut. The last one written counts.

        Texts that fit into the reserved 8 KiB are written even on a full disk; OSError otherwise.
        """
        if text != self._outcome:
            self._append({"outcome": text})
            self._outcome = text
        if sync:
            os.fsync(self._writing)
            folder = os.open(os.path.dirname(self.path), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @property
    def messages(self) -> str:
        """The path of the file for what the job emits; each of its steps has one beside that."""
        return self.path + ".messages"

    def take_stop(self) -> str | None:
        """Return the text of a stop requested by `ranonce stop`, once; None when there is none."""
        path = self.path + ".stop"
        try:
            text = _read_file(path)
        except FileNotFoundError:
            return None
        os.unlink(path)
        return text.decode("utf-8")

    def release(self) -> None:
        """Free the lock, also for those who inherited it, and keep the file: its outcome still has to be committed."""
        fds, self.fd, self._writing = (self.fd, self._writing), -1, -1
        try:
            if fds[0] >= 0:
                fcntl.flock(fds[0], fcntl.LOCK_UN)
        finally:
            for fd in fds:
                if fd >= 0:
                    os.close(fd)

    def leave(self) -> None:
        """Free the lock, and say that this process works on the attempt no more, though it lives on."""
        try:
            if self._writing >= 0:
                self._append({"left": True})
        except OSError:
            pass  # a full disk, say: then the attempt lives for as long as its process
        self.release()

    def remove(self) -> None:
        """Free the lock, also for those who inherited it, and remove the file: the verdict is in the ledger."""
        self.release()
        try:
            _unlink(self.path)
            _unlink(self.path + ".stop")
        except OSError:
            pass  # read-only by now; what stays is free and names nobody who lives, so it misleads no one

    def _append(self, record: dict[str, Any]) -> None:
        body = json.dumps(record).encode("ascii")
        line = b"%d %08x %s\n" % (len(body), crc32(body), body)
        written = 0
        while written < len(line):
            written += os.pwrite(self._writing, line[written:], self._end + written)
        self._end += len(line)


#: The permission that a file of messages has besides, once something was written into it: it outlives an emptied file.
USED = stat.S_IXUSR


def was_used(seen: os.stat_result) -> bool:
    """Say whether something was ever written into a file of messages."""
    return bool(seen.st_size or seen.st_mode & USED)


class MessagesFile:
    """The file for what the commands of an attempt emit (see `messagefile`), and the descriptor it is read by."""

    def __init__(self, path: str) -> None:
        """Create it. Raises OSError."""
        self.path = path
        self.fd = create_private(path)
        self.removed = False

    def is_untouched(self) -> bool:
        """Say whether nothing was ever emitted. Then nothing can be any more: the file is gone.

        An emitter that comes in between sees that it is gone, and takes back what it wrote. If somebody else took it
        away, whoever emitted since was refused and told so: a host that loses its state folder fails no work.
        """
        if was_used(os.fstat(self.fd)) or self.is_replaced():
            return False
        self.unlink()
        return not was_used(os.fstat(self.fd))

    def is_replaced(self) -> bool:
        """Say whether another file has its name by now: what was emitted since is there."""
        try:
            return not os.path.samestat(os.lstat(self.path), os.fstat(self.fd))
        except OSError:
            return False  # nothing has its name, so nothing was emitted since

    def remove(self) -> None:
        """Remove it, with those of steps beside it."""
        used = was_used(os.fstat(self.fd))
        self.unlink()
        try:
            if used:
                remove_beside(self.path)
        except OSError:
            pass  # read-only by now, and harmless
        os.close(self.fd)

    def unlink(self) -> None:
        """Take its name away: nothing is added to it any more."""
        if self.removed:
            return
        try:
            _unlink(self.path)
        except OSError:
            return  # read-only by now: nothing can be added either
        self.removed = True


def examine(folder: str, owner: str, here: HostIdentity) -> Evidence:
    """Say what this host can prove about an attempt. Reads only; never blocks; every doubt is `unknown`."""
    found = _open_attempt(_path(folder, owner))
    if found is None:
        return Evidence("unknown")
    held, story = found
    undecided = Evidence("locked" if held else "unknown")
    if not _same_place(story, here):
        return undecided
    try:
        living, hidden = _living(story, count_ourselves=held is not False)
    except (KeyError, TypeError, ValueError):  # a whole line that this version did not write
        return undecided
    if living is not None:
        orphan = living.pid != story["pid"] and _still(story["pid"], story["start"]) == (None, False)
        return Evidence("alive", living.pid, living.name, orphan)
    return Evidence("dead") if held is False and not hidden else undecided


def unrecorded(folder: str) -> list[tuple[str, str]]:
    """Return (owner, outcome text) of the attempts that ended with an outcome in their file, oldest first.

    An attempt whose writer still works is left alone: it is about to commit the outcome itself.
    """
    try:
        names = os.listdir(os.path.join(folder, "attempts"))
    except OSError:
        return []  # no attempt was ever made here, or not by a user we may look at
    outcomes = []
    for owner in names:
        if not is_owner(owner):
            continue
        path = _path(folder, owner)
        found = _open_attempt(path)
        if found is None or not isinstance(found[1].get("outcome"), str):
            continue
        held, story = found
        if held is False or _writer_is_dead(story):
            outcomes.append((_modified(path), owner, story["outcome"]))
    return [(owner, text) for _, owner, text in sorted(outcomes)]


def abandoned(folder: str, before: float) -> list[str]:
    """Return the owners of attempts without an outcome that nobody seems to be at any more, oldest first.

    Their files are free and were last written before an instant (unix seconds), and no process of theirs is seen here.
    That is no proof of death (another boot or namespace): whoever removes them makes sure that no lease names them.
    """
    try:
        names = os.listdir(os.path.join(folder, "attempts"))
    except OSError:
        return []
    found = []
    for owner in names:
        if not is_owner(owner):
            continue
        path = _path(folder, owner)
        written = _modified(path)
        seen = _open_attempt(path)
        if seen is None or seen[0] is not False or "outcome" in seen[1] or written >= before * 1e9:
            continue
        if examine(folder, owner, this_host()).state != "alive":
            found.append((written, owner))
    return [owner for _, owner in sorted(found)]


def forget(folder: str, owner: str) -> bool:
    """Remove an ended attempt's file, once the ledger has its story. A file still locked and without outcome stays."""
    path = _path(folder, owner)
    found = _open_attempt(path)
    if found is None or (found[0] is not False and "outcome" not in found[1]):
        return False
    remove_beside(path)
    return _unlink(path)


def remove_beside(path: str) -> None:
    """Remove what lies beside a file under its name: an attempt's request to stop, its messages, those of its steps."""
    folder, name = os.path.split(path)
    for beside in os.listdir(folder):
        if beside.startswith(name + "."):
            _unlink(os.path.join(folder, beside))


def request_stop(folder: str, owner: str, text: str) -> bool:
    """Hand a stop over to the wrapper of an attempt on this host; False when the attempt has no file here."""
    path = _path(folder, owner)
    if not os.path.lexists(path):
        return False
    draft = f"{path}.stop.{os.getpid()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        data = text.encode("utf-8")
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        os.unlink(draft)
        raise
    finally:
        os.close(fd)
    os.replace(draft, path + ".stop")
    return True


# ---------------------------------------------------------------------------------------------- evidence


def _same_place(story: dict[str, Any], here: HostIdentity) -> bool:
    """Pids, start times and groups mean the same to us as to the writer of the file."""
    return bool(here.boot_id and here.pid_ns) and all(
        story.get(name) == getattr(here, name) for name in ("boot_id", "pid_ns", "time_ns")
    )


def _living(story: dict[str, Any], *, count_ourselves: bool) -> tuple[Process | None, bool]:
    """Return a process of the attempt that still lives, and whether one may be hidden from us.

    The child comes first: it is what a person wants to hear of. This process is no witness of an attempt that it has
    itself released (a wrapper that serves several windows), and no witness that its own group still works. Nor is
    another one that has left its attempt.
    """
    hidden = False
    if story.get("child_start") is not None:  # None: it died at its gate
        child, hidden = _still(story["child"], story["child_start"])
        if child is not None:
            return child, hidden
        members, some_hidden = _still_in_group(story)
        if members:
            return members[0], hidden
        hidden = hidden or some_hidden
    if story.get("left") or (story["pid"] == os.getpid() and not count_ourselves):
        return None, hidden
    wrapper, wrapper_hidden = _still(story["pid"], story["start"])
    return wrapper, hidden or wrapper_hidden


def _still(pid: int, start: str | None) -> tuple[Process | None, bool]:
    """Return the process if it is the recorded one and lives; and whether it exists, but is hidden (`hidepid`)."""
    process = look_at(pid)
    if process is not None:
        return (process if not process.dead and str(process.start) == start else None), False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None, False
    except PermissionError:
        return None, True
    return None, look_at(pid) is None


def _still_in_group(story: dict[str, Any]) -> tuple[list[Process], bool]:
    """Return the living members of the recorded group; and whether there are members that /proc does not show.

    The kernel reuses a group's number only when the group is empty. So a leader with another start time, another
    session, or a member older than the child, shows a new group under the old number.
    """
    group, session = story["group"], story["session"]
    if not group_exists(group):
        return [], False
    seen = _group(group)
    if not seen:
        return [], group_exists(group)
    start = int(story["child_start"])
    if any(process.pid == group and process.start != start for process in seen):
        return [], False
    return [
        process
        for process in seen
        if not process.dead and process.session == session and process.start >= start and process.pid != os.getpid()
    ], False


def _writer_is_dead(story: dict[str, Any]) -> bool:
    if not _same_place(story, this_host()):
        return False
    try:
        living, hidden = _still(story["pid"], story["start"])
    except (KeyError, TypeError, ValueError):
        return False
    return living is None and not hidden


def _group(group: int) -> list[Process]:
    """Return the members of a group that /proc shows, zombies included."""
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    processes = (look_at(int(entry)) for entry in entries if entry.isdecimal())
    return [process for process in processes if process is not None and process.group == group]


# ---------------------------------------------------------------------------------------------- files


def is_owner(owner: str) -> bool:
    """Whether this is the id of an attempt of ours; other ledgers, that may have been imported, have other names."""
    return len(owner) == 32 and not owner.strip("0123456789abcdef")


def _path(folder: str, owner: str) -> str:
    if not is_owner(owner):
        raise UsageError(f"{owner!r} is not an owner id.", "An owner id is 32 lowercase hexadecimal digits.")
    return os.path.join(folder, "attempts", owner)


def _no_attempt_file(path: str, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"The attempt's file {path!r} could not be made: {error.strerror}. Nothing was started.",
        "Free space there, or give this user a state folder of its own.",
    )


def others_may_write(status: os.stat_result) -> bool:
    """Whether anybody but this user and root may put files into a folder of ours."""
    return status.st_uid not in (os.geteuid(), 0) or bool(status.st_mode & 0o022)


def _private_folder(folder: str) -> None:
    """Make sure that nobody but this user (or root) can plant or remove files in the folder."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        status = os.lstat(folder)
        if status.st_mode & 0o170000 != 0o040000:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        if others_may_write(status):
            raise PermissionError(errno.EPERM, "others can write in its folder", folder) from None


def create_private(path: str) -> int:
    """Create a file that this user alone may read and write; return a descriptor for it."""
    return above_stdio(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def above_stdio(fd: int) -> int:
    """Move a descriptor away from 0, 1 and 2, which it gets where the caller closed them: output would go into it."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _lock(fd: int) -> None:
    give_up = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.005)


def _reserve(fd: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, RESERVED_BYTES)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
            raise  # the disk is full now: an outcome would not fit either


def _open_attempt(path: str) -> tuple[bool | None, dict[str, Any]] | None:
    """Return whether the lock is held (None: cannot be known) and all fields of the file; None without a file to read.

    The shared lock that asks is compatible with that of other examiners and goes with the descriptor.
    """
    if not HAS_LOCKS:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        held: bool | None = False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            held = True
        except OSError:
            held = None  # a file system without locks
        story: dict[str, Any] = {}
        for record in _records(_read_all(fd)):
            story.update(record)
        return held, story
    except OSError:
        return None
    finally:
        os.close(fd)


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the whole lines; torn ones and the reserved zero bytes are passed over."""
    for line in data.split(b"\n")[:-1]:
        size, _, rest = line.lstrip(b"\0").partition(b" ")
        checksum, _, body = rest.partition(b" ")
        if size != b"%d" % len(body) or checksum != b"%08x" % crc32(body):
            continue
        try:
            record = json.loads(body)
        except ValueError:  # whole, but nothing that we wrote
            continue
        if isinstance(record, dict):
            yield record


def _read_all(fd: int) -> bytes:
    pieces = []
    while piece := os.read(fd, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def _read_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        return _read_all(fd)
    finally:
        os.close(fd)


def _proc(path: str) -> bytes:
    """Return a file of /proc; b'' when there is none, or when its process ends while we read."""
    try:
        return _read_file(path)
    except OSError:
        return b""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _modified(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0  # removed meanwhile by another invocation


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
