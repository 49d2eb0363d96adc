"""`ranonce deliver`: send what waits in the outbox, once or for ever."""

from __future__ import annotations

import json
import os
import select
import sys

from ranonce.cli.delivertext import Problems, counts, undeclared, why_waiting
from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import ledger_of, read_config, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.report import with_instants
from ranonce.delivery.crew import Crew, Settled, Trouble, share_the_interpreter
from ranonce.delivery.orders import POLL_SECONDS, Orders, spread
from ranonce.delivery.spec import open_sender
from ranonce.delivery.witness import Witness
from ranonce.errors import (
    EX_CONFIG,
    EX_PERSON_NEEDED,
    EX_TRY_LATER,
    ConfigError,
    RanonceError,
    StoreUnavailable,
    UsageError,
)
from ranonce.liveness import boot_clock
from ranonce.messages import DEAD, PENDING, SENDING, SENT, UNSURE
from ranonce.names import plain
from ranonce.receipts import PIECE_BYTES, STUCK_MILLISECONDS, say
from ranonce.settings import duration, nearest
from ranonce.signals import STOP_SIGNALS, Signals, die_by
from ranonce.undelivered import Destinations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ranonce.cli.options import Parsed
    from ranonce.config import Config
    from ranonce.delivery.base import Spec
    from ranonce.ledger import OpenLedger

#: A worker that was told to end is waited for this much longer than its longest time limit.
LEAVING_SECONDS = 20.0
PROGRESS_SECONDS = 1.0

COMMAND = Command(
    "deliver",
    ("[DESTINATION…]",),
    "Send what waits in the outbox.",
    (
        Option("watch", "Go on when nothing is left, until a signal comes."),
        Option(
            "poll", "With --watch: look for new messages this often, in seconds or like 500ms.", "TIME", default="1"
        ),
        Option("limit", "Begin no more than so many messages.", "N", "number", default="no limit"),
        Option("quiet", "Say only what needs somebody.", short="q"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Sends the messages that jobs have emitted to their destinations ([destinations.NAME] of the
    configuration), all of them or those that are named, until nothing is left that could go now. Any number of
    deliverers may work at the same time, on any host. What may have been received, and would be received twice, is
    never sent again by itself: a person says what became of it (`ranonce outbox`).

    Exits 0 when nothing waits any more, 75 when messages wait for their next try or for a destination that wants to be
    left alone, and 80 when some are unsure or dead. TERM and INT end it after what is on its way has its answer.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Deliver; return the exit status, or end by the signal that ended it."""
    orders = _orders(parsed)
    with Signals() as signals:
        status = _Delivery(parsed, environ, orders, signals).run()
        stopped_by = signals.first
    if stopped_by is not None:
        die_by(stopped_by)
    return status


def _orders(parsed: Parsed) -> Orders:
    limit, poll = parsed.get("limit"), _seconds(parsed.get("poll", str(POLL_SECONDS)))
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} sends nothing.", "Write a number of messages, 1 or more.")
    if not 0.01 <= poll <= 3600:
        raise UsageError(f"--poll {poll:g}s is out of range.", "It is from 0.01s to 1h.")
    if "poll" in parsed.options and not parsed.flag("watch"):
        raise UsageError("--poll says how often one that watches looks.", "Write --watch too, or leave it away.")
    return Orders(watch=parsed.flag("watch"), poll=poll, limit=limit)


def _seconds(written: str) -> float:
    """Return what --poll says: seconds, or a time with a unit. Raises UsageError."""
    if written.replace(".", "", 1).isdecimal() and written.isascii():
        return float(written)
    try:
        return duration(written)
    except UsageError as error:
        raise UsageError(f"--poll: {error.sentence}", error.next_step) from None


class _Delivery:
    """One invocation: who is asked for, what was told, and what it comes to."""

    def __init__(self, parsed: Parsed, environ: Mapping[str, str], orders: Orders, signals: Signals) -> None:
        self._parsed = parsed
        self._environ = environ
        self._orders = orders
        self._signals = signals
        self._as_json = parsed.flag("json")
        self._quiet = parsed.flag("quiet")
        self._sent: dict[str, int] = {}
        self._terminal = not (self._as_json or self._quiet) and sys.stderr.isatty()
        self._shown_at = boot_clock()
        self._line = False  # whether the terminal's cursor stands behind how far it has come
        self._problems = Problems(self._say_alone)

    def run(self) -> int:
        """Deliver, and return the exit status."""
        config = read_config(self._parsed, self._environ, pass_over=True)
        destinations = Destinations(config)
        asked = _asked(self._parsed.arguments, destinations)
        ledger = self._opened(config)
        if ledger is None:
            return 0  # told to end before the store came back
        tell_warnings(ledger)
        specs, broken = self._specs(destinations, asked)
        share_the_interpreter()
        crew = Crew(
            ledger.store,
            specs,
            lambda spec: open_sender(spec, self._environ),
            self._orders,
            name=f"{ledger.host.host}:{os.getpid()}",
            wait_seconds=ledger.wait_seconds,
            wake=self._signals.wake,
            witness=Witness(ledger.folder, ledger.store.identity().epoch),
        )
        strangers = self._strangers(ledger, destinations, asked)
        if self._orders.watch:
            self._watch(crew)
        else:
            crew.start_all()
        self._see_to_the_end(crew, max((spec.route.timeout for spec in specs.values()), default=0.0))
        try:
            if problem := crew.fatal or crew.unavailable:
                raise problem if isinstance(problem, RanonceError) else RuntimeError("a worker broke") from problem
            return self._sum_up(ledger, [*specs, *strangers], bool(broken or strangers or crew.unusable))
        except StoreUnavailable as error:
            if self._signals.first is None:
                raise
            say(f"ranonce: {plain(error.sentence)}")  # and end as told
            return error.exit_status

    def _opened(self, config: Config) -> OpenLedger | None:
        """Open the ledger; one that watches waits for a store that is away."""
        pause = 0.5
        while True:
            try:
                return ledger_of(config, self._environ)
            except StoreUnavailable as error:
                if not self._orders.watch:
                    raise
                if pause == 0.5:
                    say(f"ranonce: {plain(error.sentence)} It is asked again.")
                pause = min(pause * 2, 60.0)
                self._signals.wait(spread(pause))
                if self._signals.first is not None:
                    return None

    def _specs(self, destinations: Destinations, asked: Sequence[str]) -> tuple[dict[str, Spec], list[str]]:
        """Return the destinations that can be used; say why the others cannot."""
        specs, broken = {}, []
        for name in asked:
            spec = destinations.spec(name)
            if isinstance(spec, ConfigError):
                say(f"ranonce: {plain(str(spec))}")
                broken.append(name)
            else:
                specs[name] = spec
        return specs, broken

    def _strangers(self, ledger: OpenLedger, destinations: Destinations, asked: Sequence[str]) -> list[str]:
        """Say once which messages are for destinations that are not declared here; return those."""
        if self._parsed.arguments:
            return []
        outbox = ledger.store.outbox()
        strangers = [name for name in outbox.destinations() if not destinations.declared(name)]
        for name in strangers:
            say(f"ranonce: {undeclared(name, outbox.tally(name, 0.0))}")
        return strangers

    # --- while it goes on ---

    def _watch(self, crew: Crew) -> None:
        while self._signals.first is None and not self._orders.spent and crew.fatal is None:
            look_at = boot_clock() + crew.look()
            while self._signals.first is None and crew.fatal is None and (left := look_at - boot_clock()) > 0:
                self._tell(crew)
                self._signals.wait(left)

    def _see_to_the_end(self, crew: Crew, longest: float) -> None:
        """Wait for the workers; a stop signal lets them end what they have begun, a second one does not."""
        give_up: float | None = None
        stops = 0
        while crew.working:
            self._tell(crew)
            stops += sum(number in STOP_SIGNALS for number in self._signals.take())
            if self._signals.first is not None and give_up is None:
                self._orders.stop()
                give_up = boot_clock() + longest + LEAVING_SECONDS
            if give_up is not None and (stops > 1 or boot_clock() > give_up):
                say("ranonce: it ends before what is on its way has its answer; that lapses with its lease.")
                break
            self._signals.wait(0.2)
        self._tell(crew)
        self._problems.sum_up()

    def _tell(self, crew: Crew) -> None:
        for told in crew.news():
            if isinstance(told, Trouble):
                self._break_line()
                where = f"{told.destination}: " if told.destination else ""
                say(plain(f"ranonce: {where}{told.sentence} {told.next_step}".rstrip()))
            else:
                self._tell_of(told)
        self._problems.sum_up(at_once=not crew.working)
        if self._terminal and boot_clock() - self._shown_at > PROGRESS_SECONDS:
            self._shown_at, self._line = boot_clock(), True
            _write(2, f"\rsent {sum(self._sent.values())} …".encode(), patience=0)

    def _tell_of(self, told: Settled) -> None:
        message = told.message
        if message.state == SENT:
            self._sent[message.destination] = self._sent.get(message.destination, 0) + 1
        if self._as_json:
            _print(_as_json(told))
        if message.state in (UNSURE, DEAD):
            self._problems.tell(message)

    def _say_alone(self, sentence: str) -> None:
        self._break_line()
        say(plain(f"ranonce: {sentence}"))

    def _break_line(self) -> None:
        if self._line:
            self._line = False
            _write(2, b"\r\x1b[K", patience=0)

    # --- what it comes to ---

    def _sum_up(self, ledger: OpenLedger, names: Sequence[str], misconfigured: bool) -> int:
        outbox = ledger.store.outbox()
        by_name = {}
        for name in sorted({*names, *self._sent}):
            found = {"sent": self._sent.get(name, 0), "waiting": 0, "unsure": 0, "dead": 0}
            for tally in outbox.tally(name, 0.0):
                kind = {PENDING: "waiting", SENDING: "waiting", UNSURE: "unsure", DEAD: "dead"}[tally.state]
                found[kind] += tally.count
            by_name[name] = found
        whole = {kind: sum(found[kind] for found in by_name.values()) for kind in ("sent", "waiting", "unsure", "dead")}
        status = (
            EX_PERSON_NEEDED
            if whole["unsure"] or whole["dead"]
            else EX_CONFIG
            if misconfigured
            else EX_TRY_LATER
            if whole["waiting"]
            else 0
        )
        self._break_line()
        if self._as_json:
            _print({"event": "delivered", **whole, "destinations": by_name})
        elif not self._quiet:  # what is new of what needs somebody was said already: no mail every minute
            busy = {name: found for name, found in by_name.items() if any(found.values())}
            for name in busy:
                if busy[name]["waiting"] and (why := why_waiting(outbox.queue(name, 0))) is not None:
                    say(why)
            if len(busy) > 1:
                for name, found in busy.items():
                    say(plain(f"{name}: {counts(found)}"))
            say(counts(whole))
        return status


def _asked(named: Sequence[str], destinations: Destinations) -> list[str]:
    """Return the destinations that are asked for. Raises ConfigError for one that is not declared."""
    declared = list(destinations.config.destinations)
    for name in named:
        if not destinations.declared(name):
            raise ConfigError(
                f"the configuration declares no destination {plain(name)!r}.",
                nearest(name, declared) if declared else f"Declare it as [destinations.{plain(name)}].",
            )
    return list(dict.fromkeys(named)) or declared


def _as_json(told: Settled) -> dict[str, object]:
    message = told.message
    return {
        "event": "settled",
        "message": message.seq,
        "key": message.key,
        "destination": message.destination,
        "job": message.run.job,
        "window": message.run.window,
        "state": message.state,
        "tries": message.tries,
        **({"answer": told.answer.kind} if told.answer else {}),
        **with_instants({"due_at": message.due_at if message.state == PENDING else None}),
        **({"receipt": message.receipt} if message.state == SENT else {"error": message.error}),
    }


def _print(told: Mapping[str, object]) -> None:
    """Print one line of JSON, if somebody reads: a closed, full or stuck output changes nothing."""
    _write(1, (json.dumps(told) + "\n").encode(), patience=STUCK_MILLISECONDS)


def _write(fd: int, data: bytes, *, patience: int) -> None:
    """Write, if somebody reads within so many milliseconds."""
    ready = select.poll()
    ready.register(fd, select.POLLOUT)
    try:
        while data and ready.poll(patience):
            data = data[os.write(fd, data[:PIECE_BYTES]) :]
    except OSError:
        return
