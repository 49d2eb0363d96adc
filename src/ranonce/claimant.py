"""Who holds a claim, as its lease tells everybody who can read it. Pure.

The text is one JSON object; a field that is not known is empty:

    {"host":"web1","pid":4711,"start":"81234","boot_id":"9c0f…","pid_ns":"pid:[4026531836]",
     "time_ns":"time:[4026531834]","folder":"65024:1311"}

`pid` and `start` (clock ticks since boot, as its time namespace counts them) name the process that keeps the claim, in
the boot and namespaces that give such numbers a meaning; `folder` is its ledger's state folder, by device and inode.
People are told `HOST pid N`, which is all that older ledgers have.
"""

from __future__ import annotations

from ranonce import jsontext as json
from ranonce.names import plain
from ranonce.record import Record


class Claimant(Record):
    """The process that keeps a claim. A field is '' where its system does not tell; `folder` where it has none."""

    host: str
    pid: int
    start: str = ""
    boot_id: str = ""
    pid_ns: str = ""
    time_ns: str = ""
    folder: str = ""

    def __str__(self) -> str:
        return f"{self.host} pid {self.pid}"


def text_of(claimant: Claimant) -> str:
    """Return what a lease says of its holder."""
    return json.compact(claimant.as_dict())


def claimant_of(text: str) -> Claimant | None:
    """Return the holder that a lease tells of; None where it says no more than a person can read."""
    if not text.startswith("{"):
        return None
    try:
        told = json.loads(text)
        claimant = Claimant(**{name: told[name] for name in Claimant._fields})
    except (ValueError, KeyError, TypeError):
        return None
    whole = type(claimant.pid) is int and all(isinstance(told[name], str) for name in told if name != "pid")
    return claimant if whole else None


def shown(text: str) -> str:
    """Return what people are told of a lease's holder: `HOST pid N`."""
    claimant = claimant_of(text)
    return plain(text if claimant is None else str(claimant))
