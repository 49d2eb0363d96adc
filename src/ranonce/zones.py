"""Named time zones, and what a local clock that changes does to the slots of a schedule.

A zone is a row of segments with a constant offset, so everything between two clock changes is arithmetic. Loaded for
named zones only: UTC has one segment and needs none of this.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import datetime
from functools import lru_cache

from ranonce.errors import ConfigError
from ranonce.timefmt import DAY, FIRST_INSTANT, INSTANTS_END, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Slots(Protocol):
        """The local instants of a rule in [since, until), ascending."""

        def __call__(self, since: int, until: int) -> Sequence[int]: ...


# Offsets are sampled this far apart. It must be shorter than the time between any two clock changes of a zone, or a
# pair of them could hide between two samples. The shortest in the tz database is 3.98 days (Freetown, 1939).
SAMPLE = 2 * DAY
# How far back to look for the clock change whose repeated hours may still run. The longest is 24 h (Kwajalein, 1969).
LOOKBACK = 2 * DAY
SAMPLES_KEPT = 50_000

_NOT_A_PLACE = ("localtime", "posixrules", "factory", "posix", "right")


class Zone:
    """A named zone of the tz database: its offsets, and the segments between its clock changes."""

    def __init__(self, name: str, info: zoneinfo.ZoneInfo) -> None:
        self.name = name
        self._info = info
        self._samples: dict[int, int] = {}
        self._changes: dict[int, int] = {}

    def offset(self, t: int) -> int:
        """Return local time minus UTC at an instant, in seconds."""
        # No zone changes its clock within a day of the ends of time; there datetime would overflow.
        inside = min(max(t, FIRST_INSTANT + 2 * DAY), INSTANTS_END - 2 * DAY)
        offset = datetime.fromtimestamp(inside, self._info).utcoffset()
        assert offset is not None
        return offset.days * DAY + offset.seconds

    def segments(self, since: int, until: int) -> list[tuple[int, int, int]]:
        """Return (start, end, offset) of the stretches of constant offset that cover [since, until)."""
        found = []
        start, offset = since, self.offset(since)
        for block in range(since // SAMPLE, (until - 1) // SAMPLE + 1):
            after = self._sample(block + 1)
            if after == self._sample(block):
                continue
            change = self._change(block)
            if start < change < until:
                found.append((start, change, offset))
                start, offset = change, after
        if start < until:
            found.append((start, until, offset))
        return found

    def changes(self, since: int, until: int) -> list[int]:
        """Return the instants in [since, until) at which the offset changes."""
        blocks = range(since // SAMPLE, (until - 1) // SAMPLE + 1)
        changes = [self._change(block) for block in blocks if self._sample(block) != self._sample(block + 1)]
        return [change for change in changes if since <= change < until]

    def _sample(self, block: int) -> int:
        offset = self._samples.get(block)
        if offset is None:
            if len(self._samples) > SAMPLES_KEPT:
                self._samples.clear()
            offset = self._samples[block] = self.offset(block * SAMPLE)
        return offset

    def _change(self, block: int) -> int:
        """Return the first second with the new offset, in a block whose ends differ, by bisection."""
        change = self._changes.get(block)
        if change is None:
            before, low, high = self._sample(block), block * SAMPLE, (block + 1) * SAMPLE
            while high - low > 1:
                middle = (low + high) // 2
                if self.offset(middle) == before:
                    low = middle
                else:
                    high = middle
            change = self._changes[block] = high
        return change


@lru_cache(maxsize=64)
def load_zone(name: str) -> Zone:
    """Load a zone by its tz database name, from the system or the `tzdata` package. ConfigError if there is none.

    Paths, and names that only some systems have (`localtime`, `posix/…`, `right/…`), are refused, so that a
    schedule means the same on every host.
    """
    place = re.fullmatch(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}", name)
    if not place or name.partition("/")[0].lower() in _NOT_A_PLACE:
        raise ConfigError(f"{shown(name)} is not the name of a time zone.", _ZONE_WANTED)
    try:
        return Zone(name, zoneinfo.ZoneInfo(name))
    except (zoneinfo.ZoneInfoNotFoundError, OSError, ValueError):
        raise ConfigError(f"The time zone {shown(name)} is not known on this machine.", _ZONE_WANTED) from None


_ZONE_WANTED = "Write UTC, or a name of the tz database such as Europe/Berlin."


def every_pass(zone: Zone, slots: Slots, since: int, until: int) -> list[int]:
    """Return the instants in [since, until) at which the local clock shows a slot, each time that it does."""
    found: list[int] = []
    for start, end, offset in zone.segments(since, until):
        found.extend(_as_instants(slots(start + offset, end + offset), offset))
    return found


def first_pass(
    zone: Zone, slots: Slots, since: int, until: int, *, limit: float = float("inf"), skipped_run: bool = True
) -> list[int]:
    """Return the instants in [since, until) at which each slot is reached for the first time.

    A slot in a repeated stretch of local time is reached in its first pass only. Slots in a skipped stretch are
    reached together at the clock change, if `skipped_run`. A clock set forward by `limit` seconds or more, or back
    by more, is a jump: what it skips is lost and what it repeats is new. Source: the behaviour of Debian's cron.
    """
    found: list[int] = []
    reached = None  # the local time up to which slots have been dealt with
    for start, end, offset in zone.segments(max(since - LOOKBACK, FIRST_INSTANT), until):
        local = start + offset
        if reached is None or local - reached >= limit or reached - local > limit:
            reached = local
        gap_ran = skipped_run and start >= since and reached < local and len(slots(reached, local)) > 0
        if gap_ran:
            found.append(start)
        begin = max(local + 1 if gap_ran else local, reached, since + offset)
        found.extend(_as_instants(slots(begin, end + offset), offset))
        reached = max(reached, end + offset)
    return found


def _as_instants(slots: Sequence[int], offset: int) -> Sequence[int]:
    if isinstance(slots, range):
        return range(slots.start - offset, slots.stop - offset, slots.step)
    return [slot - offset for slot in slots]
