"""Wait until one of several descriptors can be read, whatever their numbers are: select(2) knows 1024 of them."""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Return those that can be read, or have come to their end, after at most so many seconds."""
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(max(seconds, 0.0) * 1000)}
