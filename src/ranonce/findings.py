"""What a probe found: findings and notes, how they are counted, and how long rows of the same are told. Pure.

Buckets, in the order in which they are counted and told:

    missing      due, and never started
    zombies      started, no verdict, and nobody alive behind it
    dupes        two attempts completed the same window
    failed       the last attempt failed, and there are attempts left
    exhausted    the last attempt failed, and there are none left
    held         a person must say what became of it
    stopped      gave up on purpose (a note until its time to resume has come)
    late         the verdict came after the lease was over, or after a person had spoken
    running      at work now (a note)
    stuck        at work for longer than two of its windows
    overlapping  two runs of the job worked at the same time, which is forbidden
    unexpected   recorded, but no schedule has such a window, or it lies in the future
    repeated     more than one trigger arrived for the window (a note)

What is said of messages is counted apart from the runs that they come from:

    unsent       waits to be sent, in time (a note)
    overdue      waits for longer than its destination's late_after
    unsure       may have been received, and a person must say
    dead         was refused for good, or its attempts are spent

Three more kinds are notes that are told and not counted: `rerun` (done again by request), `retried` (done, but not at
the first attempt) and `released` (a person said what became of it).
"""

from __future__ import annotations

from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

BUCKETS = (
    "missing",
    "zombies",
    "dupes",
    "failed",
    "exhausted",
    "held",
    "stopped",
    "late",
    "running",
    "stuck",
    "overlapping",
    "unexpected",
    "repeated",
)
#: Of messages that are not delivered.
MESSAGES = ("unsent", "overdue", "unsure", "dead")
UNCOUNTED = ("rerun", "retried", "released", "schedule")
#: From so many windows in a row with the same to say on, they are told as one range.
RANGE_FROM = 4

_ORDER = {bucket: at for at, bucket in enumerate((*BUCKETS, *UNCOUNTED, *MESSAGES))}


class Finding(Record):
    """One thing a probe has to say. `note`: nobody need act on it.

    `window` is a key and `start` its start in unix seconds ('' and None where it is about the job). A range of
    windows ends with `last`; `windows` is how many there are. `gist` is what is said of each window of a range.
    `facts` are details for machines: instants are unix seconds under names that end in `_at`.
    """

    bucket: str
    job: str
    window: str
    start: int | None
    text: str
    note: bool = False
    last: str | None = None
    windows: int = 1
    gist: str = ""
    facts: Mapping[str, Any] = {}

    @property
    def span(self) -> str:
        """The window, or the range of windows, for people."""
        if self.last is None:
            return self.window or "-"
        return f"{self.window} … {self.last} ({self.windows} windows)"


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many windows are in each bucket, notes included; a range counts each of its windows."""
    counted = dict.fromkeys(BUCKETS, 0)
    for finding in findings:
        if finding.bucket in counted:
            counted[finding.bucket] += finding.windows
    return counted


def message_counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many messages are in each bucket of theirs, notes included."""
    counted = dict.fromkeys(MESSAGES, 0)
    for finding in findings:
        if finding.bucket in counted:
            counted[finding.bucket] += finding.facts["messages"]
    return counted


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by job, by window, and by bucket."""
    return sorted(findings, key=lambda each: (each.job, each.start or 0, each.window, _ORDER[each.bucket]))


def in_ranges(findings: Iterable[Finding], number: Callable[[int], int | None]) -> list[Finding]:
    """Return the findings of one job with rows of four or more windows told as one.

    `number` gives a window's place among the expected ones. Windows that follow each other without a gap, in the same
    bucket and with the same gist, are a row.
    """
    rows: list[list[Finding]] = []
    ends: dict[tuple[str, bool, str], tuple[int, list[Finding]]] = {}
    for finding in sorted(findings, key=lambda each: (each.start or 0, each.window)):
        place = number(finding.start) if finding.start is not None and finding.windows == 1 and finding.gist else None
        kind = (finding.bucket, finding.note, finding.gist)
        row_ends = ends.get(kind)
        if place is not None and row_ends is not None and row_ends[0] == place - 1:
            row = row_ends[1]
            row.append(finding)
        else:
            row = [finding]
            rows.append(row)
        if place is not None:
            ends[kind] = (place, row)
    return [told for row in rows for told in ([_as_range(row)] if len(row) >= RANGE_FROM else row)]


def _as_range(row: list[Finding]) -> Finding:
    first, last = row[0], row[-1]
    return first.replace(text=first.gist, last=last.window, windows=len(row), facts={})
