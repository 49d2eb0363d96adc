"""Commands under a real clock that is wrong, while the boot clock is right: Python itself is told."""

from __future__ import annotations

import os
from typing import Any

from tests.world import Ran, World

YEAR = 365 * 86400.0
#: What Python runs where this is on its path.
WRONG_CLOCK = """
import os, time
right, offset, still = time.time, float(os.environ["CLOCK_OFFSET"]), os.environ.get("CLOCK_STANDS")
time.time = lambda: float(still) if still else right() + offset
try:
    import elsewhere  # where the command is on another host besides
except ImportError:
    pass
"""


def wrong_clock(world: World, offset: float, stands: float | None = None, also: str = "") -> dict[str, str]:
    """Return an environment in which the clock is so many seconds off, or stands still at an instant."""
    folder = world.root / "wrong clock"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(WRONG_CLOCK)
    path = os.pathsep.join(filter(None, [str(folder), also]))
    return {"PYTHONPATH": path, "CLOCK_OFFSET": str(offset), "CLOCK_STANDS": str(stands or "")}


def at_another_time(
    world: World, offset: float, *words: str, env: dict[str, str] | None = None, stands: float | None = None, **how: Any
) -> Ran:
    """Run a command under a clock that is so many seconds off, or stands still at an instant."""
    env = env or {}
    return world.ranonce(*words, env={**env, **wrong_clock(world, offset, stands, env.get("PYTHONPATH", ""))}, **how)


def clock_warnings(ran: Ran) -> list[str]:
    """Return what the last receipt says of a clock."""
    return [warning for warning in ran.receipts[-1].get("warnings", ()) if "clock" in warning]
