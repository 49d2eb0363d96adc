"""`Ledger`: a handle on a ledger, for those who want the parts rather than `@job`."""

from __future__ import annotations

from ranonce.lifecycle import FAILED, HELD
from ranonce.lifecycle import Refusal as Refused
from ranonce.python.answers import Refusal, public
from ranonce.python.calling import Place, asked, claim, job_settings, place_of, plan
from ranonce.started import FUNCTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Literal, NoReturn, Self, Unpack

    from ranonce.python.calling import Input, Instant, Settings
    from ranonce.python.connections import Connections
    from ranonce.python.holder import OnLost
    from ranonce.python.run import Run


class Ledger:
    """An open ledger. It may be shared by threads and used after a fork: each has connections of its own.

    A context manager: leaving it closes the ledger. Open one with `Ledger.open()`.
    """

    def __init__(self, place: Place, connections: Connections, id: str) -> None:
        self.id = id
        self._place = place
        self._connections = connections

    @classmethod
    def open(
        cls, store: str | None = None, *, ledger: str | None = None, config: str | PathLike[str] | None = None
    ) -> Self:
        """Open the ledger that the command line would use here, or the one that is named. Creates nothing.

        `store` is the address of its store, such as `sqlite:////var/lib/ranonce/ledger.db`, `ledger` the id it must
        have, `config` the configuration file. Raises ConfigError, NotThisLedger or StoreUnavailable.
        """
        place = place_of(store, ledger, config)
        connections = place.open()
        with connections.lend() as opened:
            found = opened.store.identity().ledger
        return cls(place, connections, found)

    def claim(
        self,
        job: str,
        *,
        window: str | None = None,
        now: Instant | None = None,
        scheduled_at: Instant | None = None,
        input: Input | None = None,
        trigger: Literal["schedule", "manual", "catch-up", "backfill", "api"] = "api",
        record_skip: bool = True,
        on_lost: OnLost = "raise",
        **settings: Unpack[Settings],
    ) -> Run | Refusal:
        """Claim a window of a job: a `Run`, or a `Refusal`, which is false.

        Without `window` (a key) it is the window that an instant belongs to: `scheduled_at`, else `now`, which are
        aware datetimes or RFC 3339 text. `input` is what the run works on: bytes, or the path of a file.
        `record_skip=False` writes nothing where the claim is refused. Settings are those of `@job`; they are put over
        the configuration's, and a schedule that contradicts the recorded one raises ConfigError. Raises UsageError,
        and StoreUnavailable or NotThisLedger: then nothing may be started.
        """
        told = {**job_settings(job, settings), "catch_up": "none"}
        question = asked(told, window=window, now=now, scheduled_at=scheduled_at, input=input, trigger=trigger)
        found = plan(self._place, self._connections, job, question, {}).replace(told={FUNCTION: "Ledger.claim"})
        order = found.orders[-1].replace(record_skip=record_skip)
        answer = claim(found, self._connections, order, on_lost)
        if isinstance(answer, Refused):
            return public(answer)
        if answer._reconciling and (ended := answer._looked(answer._look())) is not None:
            if ended.error is not None:
                raise ended.error
            receipt = ended.result.receipt
            reason = {HELD: "held", FAILED: "exhausted"}.get(receipt.event, "done")
            return Refusal(reason, f"{order.key} had crashed, and was looked into: {receipt.event}")
        return answer

    def close(self) -> None:
        """Let go of the store. Runs that are still held cannot be recorded any more."""
        self._connections.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open ledger can be neither copied nor sent to another process: open it there, too.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
