"""`ranonce gate`: shared resources that jobs wait for. Show them, open one before its time, or close one."""

from __future__ import annotations

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import ledger_of, read_config, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.person import LONGEST_TEXT, who
from ranonce.cli.report import instant, table, with_instants, write, write_json
from ranonce.cli.stop import until_when
from ranonce.errors import UsageError
from ranonce.lifecycle import Gate
from ranonce.names import check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed
    from ranonce.config import Config
    from ranonce.ledger import OpenLedger

COMMAND = Command(
    "gate",
    ("[NAME]",),
    "Show the gates, open one before its time, or close one.",
    (
        Option("open", "Open the gate now: its jobs may work again."),
        Option("close-for", "Close the gate: a time like 2h, or seconds, or an instant.", "WHEN"),
        Option("reason", "Why; it is recorded.", "TEXT"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""A gate is closed by a job that meets a rate limit (`ranonce stop --gate`), and until it opens no job
    that uses it (`--uses`) is started. Without options this shows the gates that were ever closed, or one of them. A
    destination of messages that wants to be left alone is no gate: `ranonce outbox retry --destination NAME` opens
    it.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Show gates, or set one."""
    name = check_name("gate", parsed.arguments[0]) if parsed.arguments else None
    setting = parsed.options.keys() & {"open", "close-for"}
    reason = parsed.get("reason")
    if (setting or reason) and (name is None or reason is None or len(setting) != 1):
        raise UsageError(
            "to set a gate takes its name and a reason.",
            "Write: ranonce gate NAME --open --reason TEXT, or --close-for TIME --reason TEXT",
        )
    config = read_config(parsed, environ, pass_over=True)
    ledger = ledger_of(config, environ, reading=not setting)
    tell_warnings(ledger)
    when = until_when("--close-for", parsed.get("close-for"))
    known = [gate.name for gate in ledger.store.gates()]
    if name is not None and when is None and name not in known:
        _refuse_destination(name, config, ledger)
        raise UsageError(f"the gate {name!r} was never closed.", f"Known are: {', '.join(known)}." if known else "")
    if setting and name is not None:
        now = ledger.now()
        until = when.counted(now) if when else now
        ledger.store.upkeep().set_gate(Gate(name, until, reason[:LONGEST_TEXT], who(ledger.host.host), now))
    _tell(parsed, [gate for gate in ledger.store.gates() if name in (None, gate.name)], ledger.store.clock().wall)
    return 0


def _refuse_destination(name: str, config: Config, ledger: OpenLedger) -> None:
    """Refuse the name of a destination: a rate limit that was met there closes the destination, and no gate."""
    outbox = ledger.store.outbox()
    if name not in config.destinations and name not in outbox.destinations():
        return
    queue = outbox.queue(name, 0, sending=False)
    closed = queue.closed_until is not None and queue.closed_until > queue.wall
    until = f", which is closed until {instant(queue.closed_until)}" if closed else ", which is open"
    raise UsageError(
        f"{name!r} is a destination of messages{until}, and no gate.",
        f"To open it: ranonce outbox retry --destination {name}" if closed else "See: ranonce outbox list",
    )


def _tell(parsed: Parsed, gates: list[Gate], now: float) -> None:
    if parsed.flag("json"):
        write_json({"gates": [_as_json(gate, now) for gate in gates]})
        return
    if not gates:
        write(["No gate was ever closed."])
        return
    rows = [
        (gate.name, f"closed until {instant(gate.until)}" if gate.until > now else "open", gate.reason, gate.job)
        for gate in gates
    ]
    write(table(("GATE", "STATE", "REASON", "BY"), rows))


def _as_json(gate: Gate, now: float) -> dict[str, object]:
    told = with_instants({"until_at": gate.until, "closed_at": gate.closed_at, "reason": gate.reason, "by": gate.job})
    return {"gate": gate.name, "closed": gate.until > now, **told}
