"""Who asks? The name of the person at this command line, for the record."""

from __future__ import annotations

import os
import pwd

#: Longer texts for the record are cut: what a person writes is kept with an event, and read in a table.
LONGEST_TEXT = 1000


def who(host: str) -> str:
    """Return `user@host`. A user id without a name (in a container, say) stands for itself."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    behind = os.environ.get("SUDO_USER")
    return f"{behind} as {name}@{host}" if behind and behind != name else f"{name}@{host}"
