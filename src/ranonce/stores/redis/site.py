"""Where a ledger in Redis or Valkey is, or may be made: a name space of keys that all begin alike."""

from __future__ import annotations

import time

from ranonce.errors import NotThisLedger, UsageError
from ranonce.stores.base import Risk
from ranonce.stores.redis.connection import Connection
from ranonce.stores.redis.keys import FORMAT, KINDS, Keys
from ranonce.stores.redis.plan import FIXED, OUTBOX, Plan
from ranonce.stores.redis.promise import identity_of, look, refuse_too_old, risk
from ranonce.stores.redis.rows import Rows, named
from ranonce.storeurl import in_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.redis.recovery import RedisRecovery

#: What the name space of a scratch ledger begins with.
SCRATCH = "scratch_"
#: Keys that are removed at once; each may be large, so the server frees it aside.
REMOVED_AT_ONCE = 100
#: Keys without a job's name in them: where a ledger is, or was, one of them stands.
OF_A_LEDGER = (*FIXED, *OUTBOX, "jobs", "versions", "gates", "epochs")


class RedisSite:
    """The site of one ledger: a name space, named by the URL."""

    def __init__(self, url: str, *, wait_seconds: float) -> None:
        self.url = url
        self._connection = Connection(url, wait_seconds)
        self.keys = Keys(self._connection.server.namespace)

    def stands(self) -> bool:
        return bool(self._connection.ask(("EXISTS", *map(self.keys, OF_A_LEDGER)))[0])

    def risk(self) -> Risk | None:
        seen = look(self._connection)
        refuse_too_old(seen, self._connection)
        return risk(seen)

    def create(self, ledger: str, *, volatile: str | None = None, epoch: int = 1) -> None:
        refuse_too_old(look(self._connection), self._connection)
        seconds, _ = self._connection.ask(("TIME",))[0]
        plan = Plan(self.keys)
        plan.unless_denied()
        for what in OF_A_LEDGER:
            plan.unless_nothing(plan.key(what))
        born = min(float(seconds), time.time())  # the host that makes it may begin at once, whoever's clock is ahead
        told = {"id": ledger, "format": str(FORMAT), "created_at": repr(round(born, 3)), "epoch": str(epoch)}
        for field, value in told.items():
            plan.put(plan.key("ledger"), field, value)
        if volatile is not None:
            plan.put(plan.key("ledger"), "volatile", volatile)
        rows = Rows(self._connection, self.keys, "")
        answer = rows.checked(self._connection.tell_script(named("write"), plan.keys, *plan.arguments("")))
        if answer[0] != b"written":
            raise NotThisLedger(
                f"the name space of {self._connection.shown} holds something already.",
                "Nothing was changed; name another with ?namespace=NAME.",
            )

    def upgrade(self, ledger: str | None) -> bool:
        found = identity_of(self._connection.look(("HGETALL", self.keys("ledger")))[0], self._connection)
        if found is not None and ledger not in (None, found.ledger):
            raise NotThisLedger(
                f"the ledger at {self._connection.shown} is ledger {found.ledger}, and {ledger} is expected there.",
                "Nothing was changed. Restore the right ledger, or name another store.",
            )
        return False  # there has been one format so far

    def recovery(self) -> RedisRecovery:
        from ranonce.stores.redis.recovery import RedisRecovery

        return RedisRecovery(self.url, wait_seconds=self._connection.wait_seconds)

    def scratch(self, name: str) -> str:
        return in_namespace(self.url, SCRATCH + name)

    def destroy(self) -> None:
        namespace = self._connection.server.namespace
        if not namespace.startswith(SCRATCH):
            raise UsageError(f"the name space {namespace!r} holds no scratch ledger.", "Nothing was removed.")
        cursor = b"0"
        while True:
            words = ("SCAN", cursor, "MATCH", f"{self.keys.prefix}*", "COUNT", REMOVED_AT_ONCE * 10)
            cursor, found = self._connection.ask(words)[0]
            for first in range(0, len(found), REMOVED_AT_ONCE):
                self._connection.ask(("UNLINK", *found[first : first + REMOVED_AT_ONCE]))
            if cursor == b"0":
                break
        self._connection.close()


assert set(OF_A_LEDGER) <= set(KINDS)
