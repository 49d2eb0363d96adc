"""The person at this command line: who asks, and which run is meant."""

from __future__ import annotations

import os
import pwd

from ranonce.errors import UsageError
from ranonce.lifecycle import RunKey
from ranonce.naming import one_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.cli.options import Parsed
    from ranonce.ledger import OpenLedger

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


def named_run(parsed: Parsed, ledger: OpenLedger, job: str, text: str) -> tuple[RunKey, int]:
    """Return the run that a person names by job, window and `--input`, and where its window starts. UsageError."""
    declared = ledger.declared(job)
    if declared is None:
        raise UsageError(f"the ledger does not know the job {job!r}.", "See: ranonce status")
    window = one_named(declared.versions, text, lambda: ledger.store.runs_named(job, text)).window
    return RunKey(job, window.key, parsed.get("input", "")), window.start
