"""Named places where a test or a drill may kill this process, as a power cut or `kill -9` would.

`RANONCE_FAILPOINT=NAME` kills the process with SIGKILL the first time it comes to NAME. Unset, a failpoint is one
dictionary look-up.
"""

from __future__ import annotations

import os

ARMED = os.environ.get("RANONCE_FAILPOINT")


def failpoint(name: str) -> None:
    """Die here and now if this failpoint is armed."""
    if ARMED == name:
        os.kill(os.getpid(), 9)
