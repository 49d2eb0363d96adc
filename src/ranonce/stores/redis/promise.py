"""Which ledger lies in a name space, and what its server promises to keep.

A ledger in Redis is as good as three settings: whether every write is in the append-only file before it is answered
(`appendonly yes`, `appendfsync always`), whether keys may be evicted, and whether another server may take over that has
not seen the last writes. The first two are read here; of the third only replicas can be seen.
Source: the manual of Redis, "Redis persistence", "Key eviction" and "Redis replication".
"""

from __future__ import annotations

from ranonce.errors import ConfigError, NotThisLedger
from ranonce.record import Record
from ranonce.stores.base import Identity, Risk
from ranonce.stores.redis.answers import Answer, passes, translated
from ranonce.stores.redis.keys import FORMAT, number_of, text_of
from ranonce.stores.values import LOST, damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ranonce.stores.redis.connection import Connection
    from ranonce.stores.redis.keys import Keys

OK, NOTE, PROBLEM = "ok", "note", "problem"
#: The oldest version whose scripts see what they need.
OLDEST = (6, 2)
#: The kind of risk that eviction is: a ledger that was made in spite of it says so for ever.
EVICTION = "a server that evicts keys"
LOST_OR_NEW = (
    "Nothing was run. If it was lost, restore it from a backup, or go on without: ranonce accept-loss --reason TEXT."
    " If there never was one, create it: ranonce init"
)


def identified(connection: Connection, keys: Keys) -> Identity:
    """Return which ledger lies there. NotThisLedger where none does, ConfigError where keys are evicted."""
    fields, memory = connection.look(("HGETALL", keys("ledger")), ("INFO", "memory"))
    identity = identity_of(fields, connection)
    if identity is None:
        raise NotThisLedger(f"there is no ledger at {connection.shown}.", LOST_OR_NEW)
    accepted = identity.volatile or ""
    if not isinstance(memory, Answer) and evicts(_told(memory)) and EVICTION not in accepted:
        raise ConfigError(
            f"{connection.shown} may evict keys ({_policy(_told(memory))}), and with them what has been done.",
            "Nothing was run. Set maxmemory-policy noeviction there, or maxmemory 0.",
        )
    return identity


def identity_of(fields: Any, connection: Connection) -> Identity | None:
    """Return which ledger the fields of its own key say it is; None where there are none."""
    if isinstance(fields, Answer):
        raise translated(fields, connection.shown) from fields
    if not fields:
        return None
    told = dict(zip(fields[::2], fields[1::2], strict=True))
    if (known := told.get(b"format")) != str(FORMAT).encode():
        if known is None:
            raise NotThisLedger(f"the ledger at {connection.shown} has lost its identity.", LOST)
        raise NotThisLedger(
            f"the ledger at {connection.shown} has format {text_of(known)}; this ranonce knows format {FORMAT}.",
            "Use the version that wrote it.",
        )
    try:
        volatile = told.get(b"volatile")
        return Identity(
            told[b"id"].decode(),
            float(told[b"created_at"]),
            number_of(told[b"epoch"]),
            None if volatile is None else volatile.decode("utf-8", "surrogatepass"),
        )
    except (KeyError, ValueError) as error:
        raise damaged(told) from error


class Seen(Record):
    """What a server says of itself; None for what it does not say (or not to us)."""

    info: dict[str, str] | None
    appendonly: str | None
    appendfsync: str | None
    on_rewrite: str | None


def look(connection: Connection) -> Seen:
    """Look at a server's settings. Some are kept from users, and some from all who rent a server."""
    info, config = connection.look(("INFO",), ("CONFIG", "GET", "*append*"))
    for answer in (info, config):
        if isinstance(answer, Answer) and (passes(answer) or answer.code not in ("NOPERM", "ERR")):
            raise translated(answer, connection.shown) from answer
    told: dict[bytes, bytes] = {} if isinstance(config, Answer) else dict(zip(config[::2], config[1::2], strict=True))
    settings = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in told.items()}
    return Seen(
        None if isinstance(info, Answer) else _told(info),
        settings.get("appendonly"),
        settings.get("appendfsync"),
        settings.get("no-appendfsync-on-rewrite"),
    )


def _told(info: bytes) -> dict[str, str]:
    """Return what INFO says, by name."""
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def evicts(info: dict[str, str]) -> bool:
    """Whether a server may remove keys that have no time to live."""
    return info.get("maxmemory_policy", "").startswith("allkeys-") and info.get("maxmemory", "0") != "0"


def _policy(info: dict[str, str]) -> str:
    return f"maxmemory-policy {info.get('maxmemory_policy')}"


def risk(seen: Seen) -> Risk | None:
    """Say why what a server has answered may be lost, if so: the worst first."""
    if seen.info is not None and evicts(seen.info):
        why = f"{_policy(seen.info)}: a finished window that is evicted would be run again"
        return Risk(EVICTION, why)
    return _persistence(seen)


def _persistence(seen: Seen) -> Risk | None:
    aof = seen.appendonly or {"0": "no", "1": "yes"}.get((seen.info or {}).get("aof_enabled", ""))
    if aof == "no":
        why = "without appendonly yes a restart may lose all that was done since its last snapshot, or everything"
        if seen.appendfsync not in (None, "always"):
            why += f"; and appendfsync is {seen.appendfsync}, where only always keeps what was answered"
        return Risk("a server that keeps its data in memory", why)
    if aof is None or seen.appendfsync is None:
        why = "whether a write is on disk before it is answered cannot be read (CONFIG GET is not allowed)"
        return Risk("a server whose settings are not known", why)
    if seen.appendfsync != "always":
        lost = "second" if seen.appendfsync == "everysec" else "half minute"
        why = f"a power cut may lose the last {lost} of finished work, which would then be run again"
        return Risk(f"a server with appendfsync {seen.appendfsync}", why)
    if seen.on_rewrite == "yes":
        why = "a power cut while it rewrites its file may lose finished work, which would then be run again"
        return Risk("a server with no-appendfsync-on-rewrite yes", why)
    return None


def refuse_too_old(seen: Seen, connection: Connection) -> None:
    """Raise ConfigError for a server that is older than what this is written for."""
    version = (seen.info or {}).get("redis_version", "")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if parts and parts < OLDEST:
        raise ConfigError(
            f"{connection.shown} is Redis {version}, and a ledger needs {'.'.join(map(str, OLDEST))} or newer.",
            "Name another server (Valkey will do).",
        )


def promise(connection: Connection, volatile: str | None) -> list[tuple[str, str]]:
    """Return what a server promises, and where it does not: a level and a sentence for each thing."""
    seen = look(connection)
    told = [_kept(seen, volatile), *_evicted(seen, volatile)]
    info = seen.info
    if info is None:
        return [*told, (NOTE, "its version, role and replicas cannot be read (INFO is not allowed)")]
    return [*told, *_role(info), (OK, _named(info))]


def _kept(seen: Seen, volatile: str | None) -> tuple[str, str]:
    found = _persistence(seen)
    if found is None:
        return OK, "every write is on its disk before it is answered (appendonly yes, appendfsync always)"
    said = f"{found.kind}: {found.problem}"
    if volatile is not None:
        return NOTE, f"{said}; that was accepted when the ledger was made"
    return PROBLEM, said


def _evicted(seen: Seen, volatile: str | None) -> list[tuple[str, str]]:
    if seen.info is None:
        return [(NOTE, "whether it evicts keys cannot be read (INFO is not allowed)")]
    if not evicts(seen.info):
        limit = seen.info.get("maxmemory", "0") != "0"
        return [
            (OK, "it evicts no key of a ledger" + (": when its memory is full, it refuses writes" if limit else ""))
        ]
    said = f"{EVICTION} ({_policy(seen.info)}): a finished window that is evicted would be run again"
    return [(NOTE, f"{said}; that was accepted") if EVICTION in (volatile or "") else (PROBLEM, said)]


def _role(info: dict[str, str]) -> list[tuple[str, str]]:
    if info.get("role") == "slave":
        return [(PROBLEM, f"it is a replica of {info.get('master_host')}:{info.get('master_port')}: nothing can run")]
    replicas = int(info.get("connected_slaves", "0"))
    if not replicas:
        return [(OK, "it has no replica that could take over with less than it has answered")]
    what = "a replica" if replicas == 1 else f"{replicas} replicas"
    return [
        (
            NOTE,
            f"it has {what}: a failover may lose writes that were answered, and what they had finished would run again",
        )
    ]


def _named(info: dict[str, str]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', 'of an unknown version')}"
