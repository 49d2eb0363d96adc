"""What the errors mean that a Redis or Valkey server answers with: what may pass is 69, what a person must mend is 78.

Source of the words that begin them: the manual of Redis, "Redis serialization protocol" and "Cluster specification",
and `src/server.c` of Valkey, `createSharedObjects`.
"""

from __future__ import annotations

from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable
from ranonce.stores.values import LOST

#: What may be over in a moment, and a sentence for each.
PASSING = {
    "LOADING": "is still reading its data",
    "READONLY": "is a replica, or is being made the primary",
    "MASTERDOWN": "is a replica that has lost its primary",
    "BUSY": "is busy with a script of somebody else",
    "TRYAGAIN": "is a cluster that moves its data",
    "CLUSTERDOWN": "is a cluster that is down",
    "OOM": "has no memory left (maxmemory)",
    "MISCONF": "cannot write to its disk",
    "NOREPLICAS": "has fewer replicas than it must have to be written to",
    "UNBLOCKED": "has changed its role",
}
#: What the owner of the server may do about it.
REMEDY = {
    "READONLY": "Name the server that writes.",
    "MASTERDOWN": "Name the server that writes.",
    "OOM": "Give it more memory, or prune the ledger (ranonce prune).",
    "MISCONF": "Look into its log; free some space on its disk.",
}
FULL = "max number of clients"
DENIED = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"})
CLUSTER = frozenset({"MOVED", "ASK", "CROSSSLOT"})
DAMAGED = "WRONGTYPE"
#: What a script, or a command in it, says of a value that is no number.
OF_A_SCRIPT = ("attempt to ", "bad argument", "hash value is not", "not a valid float", "not an integer")
#: What is said of a command that a server does not have, by itself and in a script.
ABSENT = ("unknown command", "command called from", "invalid command passed")
KNOWN = frozenset({*PASSING, *DENIED, *CLUSTER, DAMAGED})


class Broken(Exception):
    """The connection is of no use any more. What was sent may have been carried out."""


class Foreign(Exception):
    """What answers speaks another protocol."""


class Untrusted(Exception):
    """What answers is not who it should be, or cannot be asked."""


class Answer(Exception):
    """The server refused a command: the word its answer began with, and the rest of it."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = inner(words) if code == "ERR" else code
        self.words = words


def inner(words: str) -> str:
    """Return the word that the answer to a script's own command began with, which older servers wrap into another."""
    if not words.startswith("Error running script"):
        return "ERR"
    known = (word.lstrip("-") for word in words.split() if word.lstrip("-") in KNOWN)
    return next(known, "ERR")


def passes(answer: Answer) -> bool:
    """Whether another answer is likely in a moment."""
    return answer.code in PASSING or FULL in answer.words


def no_server(error: Foreign | Untrusted, shown: str) -> ConfigError:
    """Return the error for something else that answers at an address."""
    if isinstance(error, Untrusted):
        return ConfigError(f"{shown} cannot be talked to: {error}.", "Nothing was run; mend the address or the files.")
    return ConfigError(
        f"what answers at {shown} is no Redis or Valkey server: {error}.",
        "Nothing was run; name the right host and port.",
    )


def translated(answer: Answer, shown: str) -> RanonceError:
    """Return the error for a person."""
    code, words = answer.code, answer.words
    if code in PASSING:
        step = REMEDY.get(code, "Try again later.")
        return StoreUnavailable(f"{shown} {PASSING[code]}: {words}.", f"Nothing was started. {step}")
    if FULL in words:
        return StoreUnavailable(f"{shown} has no connection left for us: {words}.", "Try again later.")
    if code in DENIED or "AUTH" in words or "invalid password" in words or words.startswith("ACL failure"):
        return ConfigError(
            f"{shown} does not let us in, or not do this: {words}.",
            "Nothing was run; see the user and password in RANONCE_STORE, and what that user may do (ACL LIST).",
        )
    if code in CLUSTER or "cluster mode" in words:
        return ConfigError(
            f"{shown} is one of a cluster, and the ledger's keys are not its own: {words}.",
            "A ledger lies on one server: name the one that has the keys, or a server that is no cluster.",
        )
    if code == DAMAGED:
        return NotThisLedger(f"the ledger at {shown} is damaged: {words}.", LOST)
    if "DB index" in words or any(sign in words.lower() for sign in ABSENT):
        return ConfigError(f"{shown} cannot hold a ledger: {words}.", "Nothing was run; name another.")
    if any(sign in words for sign in OF_A_SCRIPT):
        return NotThisLedger(f"the ledger at {shown} is damaged: {words}.", LOST)
    return StoreUnavailable(f"{shown} cannot be used: {words}.", "Nothing was started.")
