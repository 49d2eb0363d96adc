"""Named places where a test or a drill may kill this process, as a power cut or `kill -9` would.

`RANONCE_FAILPOINT=NAME` kills the process with SIGKILL the first time it comes to NAME, `NAME:COUNT` the COUNT-th time
(the second commit of a run is its verdict). Unset, a failpoint is one comparison.
"""

from __future__ import annotations

import os

ARMED = os.environ.get("RANONCE_FAILPOINT")
_met: list[str] = []


def failpoint(name: str) -> None:
    """Die here and now if this failpoint is armed."""
    if ARMED is None:
        return
    _met.append(name)
    if ARMED in (name, f"{name}:{_met.count(name)}"):
        os.kill(os.getpid(), 9)
