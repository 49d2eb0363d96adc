"""What the commands of a job emit, kept until their work has an outcome: one file for each attempt, and each step.

`ranonce emit` appends to it, whoever is around it reads it once and closes it for good. A message is a line, after its
length and CRC-32, that says what it is, and then its body, whose digest stands in the line. Each is one write under an
exclusive lock: half a message is never taken for a whole one, and a file that has one is damaged, so that nobody takes
what is left of it for all of it. A line that is a word is about the file: `step`, a step of the job keeps files of its
own beside this one. Once the file has no name any more, nothing is added.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from binascii import crc32

from ranonce import jsontext as json
from ranonce.emission import Emission, digest_of
from ranonce.errors import EX_NOT_RECORDED, ClaimLost, RanonceError, StoreUnavailable, UsageError
from ranonce.liveness import USED
from ranonce.messages import MOST_BYTES, MOST_MESSAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.liveness import MessagesFile

STEP = "step"
#: More than the line of a message ever has.
LONGEST_LINE = 4096
#: Whoever holds the lock for longer was stopped.
LOCK_WAIT_SECONDS = 10.0

KEPT, THERE, CONFLICT = "kept", "there", "conflict"


class DamagedMessages(RanonceError):
    """What a job has emitted can be read no more, or not all of it."""

    code = "messages-damaged"
    exit_status = EX_NOT_RECORDED


class _Line:
    """What one line says: a word about the file, or a message and where its body is."""

    def __init__(self, told: object, at: int) -> None:
        self.word = told if isinstance(told, str) else None
        self.at = at
        self.size = 0
        if isinstance(told, list):
            self.destination, self.content_type, self.key, self.scope, self.size, self.digest = told

    @property
    def names(self) -> tuple[str, str, str]:
        """What makes it the same message as another."""
        return self.scope, self.destination, self.key


def add(path: str, emissions: list[Emission]) -> str:
    """Add messages to a file, all or none, and say what became of them: KEPT, THERE already, or a CONFLICT.

    One whose key stands for another body in this file is added all the same, and told apart when they are read.
    Raises UsageError for more than may be kept, ClaimLost where nothing is added any more, DamagedMessages, and
    StoreUnavailable where it cannot be written.
    """
    fd = _opened(path)
    try:
        _lock(fd, path)
        if not os.fstat(fd).st_nlink:
            raise _over()
        kept = [line for line in _lines(fd, path) if line.word is None]
        known: dict[tuple[str, str, str], list[str]] = {}
        for line in kept:
            known.setdefault(line.names, []).append(line.digest)
        new, answer = [], THERE
        for emission in emissions:
            digest = digest_of(emission.content_type, emission.body)
            before = known.setdefault((emission.scope, emission.destination, emission.key), [])
            if before and before[0] != digest:
                answer = CONFLICT
            if digest not in before:
                before.append(digest)
                new.append((emission, digest))
                answer = KEPT if answer == THERE else answer
        check_room(len(kept) + len(new), sum(line.size for line in kept) + sum(len(each.body) for each, _ in new))
        _append(fd, path, b"".join(_record(emission, digest) for emission, digest in new))
        return answer
    finally:
        os.close(fd)


def check_room(count: int, size: int) -> None:
    """Refuse more messages, or more bytes in all, than are kept for one outcome. Raises UsageError."""
    if count > MOST_MESSAGES:
        raise UsageError(
            f"more than {MOST_MESSAGES} messages wait for the same outcome.",
            "Emit them in steps (ranonce step, run.items), which are recorded one by one.",
        )
    if size > MOST_BYTES:
        raise UsageError(
            f"the messages that wait for the same outcome have more than {MOST_BYTES} bytes.",
            "Emit them in steps (ranonce step, run.items), which are recorded one by one.",
        )


def note_a_step(path: str) -> None:
    """Note that a step keeps files beside this one, so that they go with it. Costs the same however many there were.

    Raises ClaimLost where the job has ended.
    """
    fd = _opened(path)
    try:
        if not os.fstat(fd).st_size:
            _lock(fd, path)
            if not os.fstat(fd).st_size:
                _append(fd, path, _framed(json.compact(STEP).encode()))
    finally:
        os.close(fd)


def close(file: MessagesFile) -> list[Emission]:
    """Return what was emitted, in order, and let nothing be added any more. Raises DamagedMessages."""
    fd, path = file.fd, file.path
    try:
        _lock(fd, path)
        if not (os.fstat(fd).st_nlink or file.removed):
            raise _damaged(path, "it was removed")
        if file.is_replaced():
            raise _damaged(path, "another file is in its place")
        found = []
        for line in _lines(fd, path):
            if line.word is None:
                body = os.pread(fd, line.size, line.at)
                if digest_of(line.content_type, body) != line.digest:
                    raise _damaged(path, f"the body at byte {line.at} is not what was emitted")
                found.append(Emission(line.destination, body, line.content_type, line.key, line.scope))
        file.unlink()
    except (OSError, StoreUnavailable) as error:
        raise _damaged(path, str(error)) from error
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
    return found


def _opened(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise _over() from None
    except OSError as error:
        raise StoreUnavailable(f"{path!r} cannot be opened: {error.strerror}.", "Nothing was emitted.") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # a device would swallow it
        os.close(fd)
        raise StoreUnavailable(f"{path!r} is no file.", "Nothing was emitted. Leave RANONCE_MESSAGES as it is.")
    return fd


def _over() -> ClaimLost:
    return ClaimLost(
        "the work that this belongs to has ended: nothing can be emitted any more.",
        "Wait for background processes before the command ends.",
    )


def _damaged(path: str, why: str) -> DamagedMessages:
    return DamagedMessages(f"the messages in {path!r} cannot be read: {why.rstrip('.')}.", "They will not be sent.")


def _lock(fd: int, path: str) -> None:
    give_up = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise StoreUnavailable(f"somebody holds {path!r} and does not let go.", "Look: fuser.") from None
            time.sleep(0.002)
        except OSError as error:
            raise StoreUnavailable(f"{path!r} cannot be locked: {error.strerror}.", "Nothing was emitted.") from error


def _record(emission: Emission, digest: str) -> bytes:
    told = [
        emission.destination,
        emission.content_type,
        emission.key,
        emission.scope,
        len(emission.body),
        digest,
    ]
    return _framed(json.compact(told).encode()) + emission.body + b"\n"


def _framed(text: bytes) -> bytes:
    return b"%d %08x %s\n" % (len(text), crc32(text), text)


def _append(fd: int, path: str, data: bytes) -> None:
    """Write at the end, all of it or nothing: what was written in part is taken back."""
    end = os.fstat(fd).st_size
    try:
        written = os.pwrite(fd, data, end) if data else 0
        while written < len(data):  # a full disk says so at the next write
            written += os.pwrite(fd, data[written:], end + written)
        mode = os.fstat(fd).st_mode
        if data and not mode & USED:
            os.fchmod(fd, stat.S_IMODE(mode) | USED)
    except OSError as error:
        os.ftruncate(fd, end)
        raise StoreUnavailable(f"{path!r} cannot be written: {error.strerror}.", "Nothing was emitted.") from error
    if not os.fstat(fd).st_nlink:  # it was empty, and its reader is gone
        os.ftruncate(fd, end)
        raise _over()


def _lines(fd: int, path: str) -> Iterator[_Line]:
    """Go through the lines, without the bodies. Raises DamagedMessages."""
    seen = os.fstat(fd)
    at, end = 0, seen.st_size
    if not end and seen.st_mode & USED:
        raise _damaged(path, "it was emptied")
    while at < end:
        text, newline, _ = os.pread(fd, LONGEST_LINE, at).partition(b"\n")
        size, _, rest = text.partition(b" ")
        checksum, _, told = rest.partition(b" ")
        if not newline or size != b"%d" % len(told) or checksum != b"%08x" % crc32(told):
            raise _damaged(path, f"byte {at} does not begin a whole message")
        try:
            line = _Line(json.loads(told), at + len(text) + 1)
        except (ValueError, TypeError) as error:
            raise _damaged(path, f"byte {at} begins what this version did not write") from error
        at = line.at + (line.size + 1 if line.word is None else 0)
        if at > end:
            raise _damaged(path, f"byte {line.at} begins half a message")
        yield line
