"""`ranonce accept-loss`: the one recorded way on after a ledger was lost."""

from __future__ import annotations

import os

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.messagetext import counted
from ranonce.cli.opening import read_config
from ranonce.cli.options import Command, Option
from ranonce.cli.person import who
from ranonce.cli.report import write, write_json
from ranonce.config import state_folder
from ranonce.errors import NotThisLedger, UsageError
from ranonce.exchange.diagnosis import BEHIND, MISSING, Loss, Where, diagnose
from ranonce.exchange.loss import Recovered, alone, recover
from ranonce.ledger import known_ledger, remember_ledger
from ranonce.liveness import this_host
from ranonce.messages import UNSURE
from ranonce.names import plain
from ranonce.stores import site_of
from ranonce.storeurl import masked, public, server_of
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ranonce.cli.options import Parsed

COMMAND = Command(
    "accept-loss",
    (),
    "Accept that the ledger was lost, and go on with what is still known.",
    (Option("reason", "What happened; it is recorded.", "TEXT"), JSON, *LEDGER_OPTIONS),
    description="""For a ledger that is missing, empty, damaged, or went back behind what this host remembers. What this
    host's journal saw finished is put back, so that it does not run again; so is what can be read of a damaged ledger,
    which is moved aside and never deleted. The ledger keeps its id, and a new epoch begins in it.

    What other hosts did is not known here: import their journals. Until then a host whose journal remembers more is
    refused; there, accepting the loss puts its memory back, too. Where nothing is wrong, nothing is changed.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Accept the loss; 0 if the ledger can be used again, or was never lost."""
    reason = parsed.get("reason")
    if reason is None:
        raise UsageError(
            "accepting a loss says what happened, and is recorded.", "Write: ranonce accept-loss --reason TEXT"
        )
    config = read_config(parsed, environ)
    states, url = state_folder(environ), config.ledger.store
    ledger = config.ledger.ledger_id or known_ledger(states, url)
    if ledger is None:
        raise NotThisLedger(
            f"nothing says which ledger was at {masked(url)}.",
            "Nothing was changed. Set RANONCE_LEDGER to its id; if there never was one, create it: ranonce init",
        )
    wait = config.ledger.store_wait
    where = Where(ledger, url, site_of(url, wait_seconds=wait), os.path.join(states, ledger), wait)
    with alone(where) as recovery:
        loss = diagnose(where, recovery)
        if loss is None:
            _nothing_wrong(where, as_json=parsed.flag("json"))
            return 0
        jobs = list(config.jobs.values())
        recovered = recover(where, loss, recovery, jobs, reason=reason, by=who(this_host().host))
    remember_ledger(states, url, ledger)
    if parsed.flag("json"):
        write_json(_json(where, recovered))
    else:
        write(map(plain, _told(where, loss, recovered)))
    return 0


def _nothing_wrong(where: Where, *, as_json: bool) -> None:
    if as_json:
        write_json({"event": "nothing-wrong", "ledger": where.ledger, "store": public(where.url)})
    else:
        write([f"Nothing is wrong with the ledger {where.ledger} at {plain(masked(where.url))}. Nothing was changed."])


def _told(where: Where, loss: Loss, recovered: Recovered) -> Iterator[str]:
    yield f"It was so: {loss.why.rstrip('.')}."
    yield f"The loss is accepted: epoch {recovered.epoch} of the ledger {where.ledger} begins."
    if recovered.aside is not None:
        yield f"What stood there is now called {recovered.aside}" + (
            f"; windows that could be read of it: {recovered.salvaged:,}."
            if recovered.salvaged
            else "; nothing could be read of it."
        )
    put_back = sum(count for name, count in recovered.runs.items() if name in ("added", "advanced"))
    done, facts = f"{recovered.done:,}", f"{recovered.facts:,}"
    yield f"Windows put back: {put_back:,}, of them done: {done}. Facts in the journal: {facts}."
    yield from _messages(recovered)
    if recovered.bad:
        yield f"Could not be read: {recovered.bad:,}."
        yield from (f"  {bad}" for bad in recovered.first_bad)
    if loss.kind == BEHIND and recovered.last is not None:
        yield f"Of other hosts nothing is known after {format_instant(recovered.last.at)}."
    else:
        yield "Of other hosts nothing is known."
    server = server_of(where.url)
    if loss.kind == MISSING and server is not None and server.scheme == "postgresql":
        from ranonce.stores.postgres.promise import grants

        again = grants(server.namespace, "jobs")
        yield f"The rights of other roles were gone with the schema; grant again, for jobs: {again}"
    yield "Those that remember what is not here are refused until their journals are imported (or they accept the loss,"
    yield f"too): ranonce import …/ranonce/{where.ledger}/journal.jsonl"


def _messages(recovered: Recovered) -> Iterator[str]:
    """Say what is known of messages, and what is not."""
    if recovered.messages:
        yield f"Messages that are known: {counted(recovered.messages)}."
    if recovered.messages.get(UNSURE):
        yield (
            "The unsure ones may have been sent: ranonce outbox list --state unsure names them; ranonce outbox resolve"
            " settles them."
        )
    if recovered.by_key:
        yield (
            f"Messages of which only the key is remembered: {recovered.by_key:,}. They may have been sent, and are not"
            " sent again under that key."
        )
    if recovered.forgotten:
        yield f"Messages of runs that are done, and of which nothing is left: {recovered.forgotten:,}."
        yield "Nobody can know any more whether they were sent."


def _json(where: Where, recovered: Recovered) -> dict[str, object]:
    told = {name: value for name, value in recovered.as_dict().items() if name not in ("first_bad", "last")}
    last = recovered.last
    return {
        "event": "loss-accepted",
        "ledger": where.ledger,
        **told,
        "first_bad": [str(bad) for bad in recovered.first_bad],
        "last_event_at": format_instant(last.at, precision="ms") if last else None,
    }
