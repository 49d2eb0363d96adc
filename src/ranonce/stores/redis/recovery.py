"""Build a lost ledger in Redis or Valkey anew, in a name space beside the old one.

What stood there is moved aside whole before anything else, by one script: Redis knows no lock that would keep others
from writing into it. Until the new ledger has its place, by one script as well, jobs are refused. Where that does not
come about, what was moved aside is put back; where this process is killed before, the next one finds it.
"""

from __future__ import annotations

import os
import re
import time

from ranonce.errors import NotThisLedger, StoreUnavailable
from ranonce.stores.redis.connection import Connection, script
from ranonce.stores.redis.keys import FORMAT, Keys
from ranonce.stores.redis.site import RedisSite
from ranonce.stores.redis.store import RedisStore
from ranonce.stores.statements import load
from ranonce.storeurl import in_namespace
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

SCRIPTS = {name: script(text, b"moved") for name, text in load("redis/recovery.lua").items()}
#: So much of the name space's name is in those beside it, which may have 63 letters, too.
LONGEST_STEM = 40
#: Keys that are removed at once.
REMOVED_AT_ONCE = 100


class RedisRecovery:
    """The building anew of the ledger in one name space."""

    def __init__(self, url: str, *, wait_seconds: float) -> None:
        self.url = url
        self.wait_seconds = wait_seconds
        self._connection = Connection(url, wait_seconds)
        self.namespace = self._connection.server.namespace
        self._building: str | None = None
        self._aside: str | None = None
        self._done = False

    def __enter__(self) -> Self:
        self._sweep()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._aside is not None and not self._done:
                self._rename(self._aside, self.namespace)
            self._sweep()
        finally:
            self._connection.close()

    @property
    def _stem(self) -> str:
        return self.namespace[:LONGEST_STEM]

    def _sweep(self) -> None:
        """Remove what somebody who was killed, or this one, has begun."""
        for name in self._beside("recovered", "[0-9a-f]{8}"):
            found = self._found(f"{Keys(name).prefix}*")
            for first in range(0, len(found), REMOVED_AT_ONCE):
                self._connection.ask(("UNLINK", *found[first : first + REMOVED_AT_ONCE]))

    def _beside(self, what: str, how: str) -> list[str]:
        """Return the name spaces beside the ledger's whose names go on like this, in order."""
        stem = f"{self._stem}_{what}_"
        names = {key.decode("utf-8", "replace")[1:].partition("}")[0] for key in self._found(f"{{{stem}*")}
        return sorted(name for name in names if re.fullmatch(how, name[len(stem) :]))

    def _found(self, pattern: str) -> list[bytes]:
        cursor, found = b"0", []
        while True:
            cursor, some = self._connection.ask(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))[0]
            found += some
            if cursor == b"0":
                return found

    def _rename(self, one: str, other: str) -> int:
        answer = self._connection.tell_script(SCRIPTS["rename"], [], Keys(one).prefix, Keys(other).prefix)
        return int(answer[1])

    # --- what is there ---

    def broken(self) -> str | None:
        fields = self._connection.ask(("HGETALL", Keys(self.namespace)("ledger")))[0]
        told = dict(zip(fields[::2], fields[1::2], strict=True))
        if not {b"id", b"format"} <= set(told):
            return f"the ledger at {self._connection.shown} has lost its identity."
        if told[b"format"] != str(FORMAT).encode():
            raise NotThisLedger(
                f"the ledger at {self._connection.shown} has format {told[b'format'].decode()}; this ranonce knows"
                f" format {FORMAT}.",
                "Use the version that wrote it.",
            )
        return None

    def halt(self) -> None:
        aside = f"{self._stem}_lost_{format_instant(time.time()).lower().replace('-', '').replace(':', '')}"
        names = (aside, *(f"{aside}_{number}" for number in range(2, 100)))
        for name in names:
            moved = self._rename(self.namespace, name)
            if moved > 0:
                self._aside = name
            if moved >= 0:
                return
        raise StoreUnavailable(f"what is left at {self._connection.shown} could not be moved aside.", "Try again.")

    def remains(self, ledger: str) -> RedisStore | None:
        found = [self._aside] if self._aside is not None else self._beside("lost", r"\d{8}t\d{6}z(_\d+)?")[-1:]
        for name in found:
            key = Keys(name)("ledger")
            told = self._connection.ask(("HMGET", key, "id", "format"))[0]
            if told[0] not in (None, ledger.encode()):
                return None
            if None in told:  # what is left is read as the ledger that is meant
                self._connection.ask(
                    ("HSET", key, "id", ledger, "format", FORMAT),
                    ("HSETNX", key, "created_at", "0.0"),
                    ("HSETNX", key, "epoch", "1"),
                )
            return RedisStore(in_namespace(self.url, name), wait_seconds=self.wait_seconds)
        return None

    # --- what takes its place ---

    def begin(self, ledger: str, *, volatile: str | None, epoch: int) -> RedisStore:
        self._building = f"{self._stem}_recovered_{os.urandom(4).hex()}"
        url = in_namespace(self.url, self._building)
        RedisSite(url, wait_seconds=self.wait_seconds).create(ledger, volatile=volatile, epoch=epoch)
        return RedisStore(url, wait_seconds=self.wait_seconds)

    def take_place(self) -> str | None:
        assert self._building is not None
        versions = Keys(self._building)("versions")
        self._connection.tell_script(SCRIPTS["decide_anew"], [versions], int(time.time() * 1000))
        if self._rename(self._building, self.namespace) < 0:
            raise NotThisLedger(
                f"somebody has put a ledger at {self._connection.shown} meanwhile.", "Nothing was changed. Look again."
            )
        self._done = True
        return self._aside
