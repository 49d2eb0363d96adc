"""Named places where a test or a drill may kill this process, as a power cut or `kill -9` would.

`RANONCE_FAILPOINT=NAME` kills the process with SIGKILL the first time it comes to NAME, `NAME:COUNT` the COUNT-th time
(the second commit of a run is its verdict). `RANONCE_FAILPOINT=/PATH` kills nobody and adds each place that is passed
to that file, named as above: so a drill learns which there are. Unset, a failpoint is one comparison.
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
    here = f"{name}:{_met.count(name)}"
    if ARMED.startswith("/"):
        with open(ARMED, "a", encoding="utf-8") as file:
            file.write(here + "\n")
    elif ARMED in (name, here):
        os.kill(os.getpid(), 9)
