"""What a receiver knows of a key, as plain values."""

from __future__ import annotations

from ranonce.record import Record

#: The states of a key, as stored.
BEGUN, ANSWERED = "begun", "answered"
#: What a key may be found to be.
FIRST, AGAIN, CONFLICT, IN_FLIGHT, UNKNOWN = "first", "again", "conflict", "in-flight", "unknown"


class Answer(Record):
    """What was answered to the first request of a key: an HTTP status, headers in order, and the body (None: it was too
    long to be kept)."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes | None = b""


class Received(Record):
    """What a key was found to be.

    `first`: nobody has had it, and now the asker has. `again`: it was received before, with `answer` where one is kept.
    `conflict`: it was received before, for something else. `in-flight`: somebody works on it, for `until` (seconds from
    now) if no more is heard. `unknown`: somebody began, and was never heard of again.
    """

    kind: str
    answer: Answer | None = None
    until: float = 0.0
    token: str = ""

    @property
    def first(self) -> bool:
        """Whether the work is the asker's to do."""
        return self.kind == FIRST

    @property
    def conflict(self) -> bool:
        """Whether the key stands for something else."""
        return self.kind == CONFLICT
