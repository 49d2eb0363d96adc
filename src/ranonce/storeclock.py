"""A server's real clock, as this host can tell it between two looks.

A server has the say in leases and events, and what a host adds (when a verdict was reached, until when a gate is
closed, which window is now) must fit. Between two looks the server's clock is carried on by this host's boot clock,
which goes at the same rate and which nobody sets. As long as this host's own clock agrees with that, it is used.
"""

from __future__ import annotations

import time

from ranonce.lifecycle import CLOCK_SLACK_SECONDS
from ranonce.liveness import boot_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class StoreClock:
    """What was last seen of a store's real clock. All threads of a process may share it."""

    def __init__(self, *, wall: Callable[[], float] = time.time, boot: Callable[[], float] = boot_clock) -> None:
        self._wall = wall
        self._boot = boot
        self._last: tuple[float, float, float] | None = None  # its clock, ours by boot, and how long the answer took

    @property
    def known(self) -> bool:
        """Whether it was ever looked at."""
        return self._last is not None

    def seen(self, wall: float, asked_at: float) -> None:
        """Note what the store's real clock read in an answer that came now; `asked_at` is when, by the boot clock."""
        told_at = self._boot()
        self._last = (wall, told_at, told_at - asked_at)

    def ahead(self) -> float:
        """Return by how many seconds this host's real clock is ahead of the store's; 0 where they agree."""
        if self._last is None:
            return 0.0
        there, told_at, took = self._last
        ahead = self._wall() - (there + self._boot() - told_at)
        return ahead if abs(ahead) > CLOCK_SLACK_SECONDS + took else 0.0

    def now(self) -> float:
        """Return the present by the store's real clock, in unix seconds."""
        return self._wall() - self.ahead()
