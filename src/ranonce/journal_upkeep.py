"""Keep the journal of this host from growing for ever: it forgets what the ledger has pruned, and nothing else.

The journal is written anew under another name and moved into place, while jobs go on. Whoever appends at that very
moment loses nothing: what came into the old file until it was replaced is carried over, and whoever writes into it
later sees that it is no journal any more and writes again (`Journal.append`).
"""

from __future__ import annotations

import fcntl
import os

from ranonce.failpoints import failpoint
from ranonce.journal import EMITTED, decode
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

    from ranonce.journal import Journal
    from ranonce.stores.base import Store

#: A journal shorter than this is not worth writing anew.
WORTH_BYTES = 64 * 1024
#: So many facts, evenly spread, are asked for first: it is written anew when half of them are pruned.
SAMPLES = 16
LINE_BYTES = 16 * 1024


class Forgotten(Record):
    """How many facts the journal kept, and how many bytes it has become shorter by."""

    facts: int
    shorter: int


def forget_pruned(journal: Journal, store: Store) -> Forgotten | None:
    """Write the journal anew without the facts whose events are pruned; None where that is not worth the work.

    What stays: its newest fact, facts of events that the store has or should have, those of earlier epochs, and keys
    of messages that outlive their windows. Torn lines go. Raises OSError where it cannot be written: the journal is
    what it was.
    """
    try:
        fd = os.open(journal.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as old:
        memory = _Memory(journal, store)
        if not _worth(old, memory):
            return None
        draft = _Draft(journal.path)
        try:
            return _replace(old, draft, memory) if draft.ours else None
        finally:
            draft.close()


class _Memory:
    """Says which facts the ledger has pruned. The newest one stays: it is what a store that went back is seen by."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._store = store
        self._epoch = journal.epoch
        self._pruned_seq = store.upkeep().pruned_seq()
        ours = [int(fact["seq"]) for fact in journal.tail() if fact["epoch"] == self._epoch]
        self._newest = max(ours, default=0)

    def pruned(self, fact: dict[str, Any]) -> bool:
        if fact["event"] == EMITTED:
            return False
        seq = int(fact["seq"])
        if fact["epoch"] != self._epoch or seq > self._pruned_seq or seq == self._newest:
            return False
        return self._store.event(seq) is None


def _worth(old: BinaryIO, memory: _Memory) -> bool:
    size = os.fstat(old.fileno()).st_size
    if size < WORTH_BYTES:
        return False
    gone = [memory.pruned(fact) for fact in _samples(old, size)]
    return sum(gone) * 2 >= len(gone) > 0


def _samples(old: BinaryIO, size: int) -> Iterator[dict[str, Any]]:
    for part in range(SAMPLES):
        for line in os.pread(old.fileno(), LINE_BYTES, size * part // SAMPLES).split(b"\n"):
            if fact := decode(line):
                yield fact
                break


class _Draft:
    """The journal to be, under another name. `ours` is False while another process is at it."""

    def __init__(self, journal: str) -> None:
        self.path = journal + ".new"
        self.journal = journal
        self.fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.ours = self._take()

    def _take(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it before may have moved it into place just now: then it is the journal.
            if os.fstat(self.fd).st_ino != os.stat(self.path).st_ino:
                return False
        except (BlockingIOError, FileNotFoundError):
            return False
        os.ftruncate(self.fd, 0)  # one that was killed left it
        return True

    def move_into_place(self) -> None:
        os.fsync(self.fd)
        failpoint("journal:before-replaced")
        os.rename(self.path, self.journal)
        self.ours = False
        failpoint("journal:replaced")

    def close(self) -> None:
        if self.ours:
            os.unlink(self.path)
        os.close(self.fd)


def _replace(old: BinaryIO, draft: _Draft, memory: _Memory) -> Forgotten:
    facts, read = 0, 0
    with open(os.dup(draft.fd), "ab") as new:
        for line in old:
            if not line.endswith(b"\n"):
                break  # torn, or being written this moment
            read += len(line)
            fact = decode(line[:-1])
            if fact is not None and not memory.pruned(fact):
                facts += 1
                new.write(line)
    shorter = read - os.fstat(draft.fd).st_size
    read = _carry_over(old, draft, read, whole_lines=True)
    draft.move_into_place()
    _carry_over(old, draft, read, whole_lines=False)
    return Forgotten(facts, shorter)


def _carry_over(old: BinaryIO, draft: _Draft, read: int, *, whole_lines: bool) -> int:
    """Append what has come into the old file since so much of it was read; return how much is read now."""
    while late := os.pread(old.fileno(), 1 << 20, read):
        if whole_lines:
            late = late[: late.rfind(b"\n") + 1]
            if not late:
                break
        os.write(draft.fd, late)
        read += len(late)
    return read
