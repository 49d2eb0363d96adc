"""`ranonce outbox`: the messages of jobs. Which are not delivered, what became of one, and what a person says of it."""

from __future__ import annotations

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.messagetext import as_json, body_as_json, body_lines, is_about, story, write_body
from ranonce.cli.opening import ledger_of, read_config, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.outboxlist import left_as_they_are, rows, steps
from ranonce.cli.person import LONGEST_TEXT, who
from ranonce.cli.probe import unknown_job
from ranonce.cli.report import with_instants, write, write_json
from ranonce.delivery.knownas import known_as
from ranonce.errors import EX_PERSON_NEEDED, EX_TRY_LATER, EX_USAGE, ConfigError, UsageError
from ranonce.messages import DEAD, DROPPED, PENDING, SENDING, SENT, STATES, UNDELIVERED, UNSURE, No
from ranonce.names import check_job_name, check_name, plain
from ranonce.settings import nearest
from ranonce.stores.base import Wanted
from ranonce.timefmt import format_instant, shown
from ranonce.undelivered import (
    RESOLUTIONS,
    Destinations,
    counted,
    every,
    is_closed,
    open_destination,
    resolve_all,
    retry_all,
    standings,
    tally_of,
    worst_first,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ranonce.cli.options import Parsed
    from ranonce.ledger import OpenLedger
    from ranonce.messages import Message
    from ranonce.undelivered import Answers

LIST, SHOW, RETRY, RESOLVE = "list", "show", "retry", "resolve"
#: What each of them may be told.
OPTIONS = {
    LIST: {"job", "destination", "state", "all", "limit", "json"},
    SHOW: {"body", "json"},
    RETRY: {"destination", "json"},
    RESOLVE: {"destination", "state", "as", "reason", "json"},
}
EVERYWHERE = {option.name for option in LEDGER_OPTIONS}
LISTED = 100
IN_ORDER = (UNSURE, DEAD, SENDING, PENDING, SENT, DROPPED)

COMMAND = Command(
    "outbox",
    ("list|show|retry|resolve", "[MESSAGE…]"),
    "Show the messages of jobs, and say what becomes of those that are not delivered.",
    (
        Option("job", "list: only messages of this job.", "JOB"),
        Option("destination", "list, retry, resolve: only messages to this destination.", "NAME"),
        Option("state", "list, resolve: only messages in this state.", "STATE", "choice", IN_ORDER, repeat=True),
        Option("all", "list: those that were sent or dropped, too."),
        Option("limit", "list: at most so many.", "N", "number", default=str(LISTED)),
        Option("body", "show: write the body to standard output, byte for byte, and nothing else."),
        Option("as", "resolve: what became of it.", "RESULT", "choice", RESOLUTIONS),
        Option("reason", "resolve: how you know; it is recorded.", "TEXT"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""`ranonce outbox list` shows what is not delivered, the worst first: unsure (it may have been
    received, and a person must say), dead (it will not be tried again), then what waits, the oldest first; and below
    what to do about all that are alike. TAKEN counts all tries, FAILED those that count against `max_attempts`.
    `ranonce outbox show MESSAGE` tells the story of one message, by its number or its key, and by what its destination
    knows it.

    `ranonce outbox retry MESSAGE…` has messages tried now, or all to one destination (--destination), and opens the
    destination where it is closed. `ranonce outbox resolve MESSAGE… --as sent|not-sent|dropped --reason TEXT` says what
    became of messages that nobody else can know: not-sent sends it again, dropped means that it need not go out any
    more. With --destination and --state it says so of all of them. Who said what, and why, is kept in the story of the
    window. Exits 64 where a message is not what that can be said of, 75 where it is being sent at this moment, 80 where
    it may have been received and must be resolved first.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Show messages, or settle them."""
    verb, *names = parsed.arguments
    if verb not in OPTIONS:
        raise UsageError(f"`ranonce outbox` has no {shown(verb)}.", nearest(verb, OPTIONS))
    for name in parsed.options.keys() - OPTIONS[verb] - EVERYWHERE:
        raise UsageError(f"`ranonce outbox {verb}` has no --{name}.", "See: ranonce outbox --help")
    command = _Outbox(parsed, environ, reading=verb in (LIST, SHOW))
    does: dict[str, Callable[[Sequence[str]], int]] = {
        LIST: command.listing,
        SHOW: command.show,
        RETRY: command.retry,
        RESOLVE: command.resolve,
    }
    return does[verb](names)


class _Outbox:
    """The outbox of the ledger that the command line names."""

    def __init__(self, parsed: Parsed, environ: Mapping[str, str], *, reading: bool) -> None:
        self.parsed = parsed
        self.environ = environ
        config = read_config(parsed, environ, pass_over=True)
        self.destinations = Destinations(config)
        if "job" in parsed.options:
            check_job_name(parsed.get("job"))
        if "destination" in parsed.options:
            check_name("destination", parsed.get("destination"))
        self.ledger: OpenLedger = ledger_of(config, environ, reading=reading)
        tell_warnings(self.ledger)
        self.outbox = self.ledger.store.outbox()

    # --- looking ---

    def listing(self, names: Sequence[str]) -> int:
        """Print a line for each message, the worst first."""
        if names:
            raise UsageError(f"{shown(names[0])} is one argument too many.", "One message: ranonce outbox show MESSAGE")
        limit = self.parsed.get("limit", LISTED)
        if limit < 1:
            raise UsageError(f"--limit {limit} is less than one message.", "Leave it away for the first messages.")
        states = self.parsed.get("state")
        if states is not None and self.parsed.flag("all"):
            raise UsageError("--all is every state.", "Leave --all away, or --state.")
        everything = STATES if self.parsed.flag("all") else UNDELIVERED
        wanted = self._wanted(frozenset(states) if states else everything)
        found = worst_first(self.outbox, wanted, limit + 1)
        if not found:
            self._refuse_unknown()
        now = self.ledger.store.clock().wall
        found, more = found[:limit], len(found) > limit
        if self.parsed.flag("json"):
            write_json(
                {"messages": [as_json(message, late=self._late(message, now)) for message in found], "more": more}
            )
            return 0
        self._tell_list(found, now, more)
        return 0

    def _wanted(self, states: frozenset[str] | None) -> Wanted:
        return Wanted(job=self.parsed.get("job"), destination=self.parsed.get("destination"), states=states)

    def _tell_list(self, found: Sequence[Message], now: float, more: bool) -> None:
        if not found:
            write(["There is no such message." if self.parsed.options.keys() & OPTIONS[LIST] else "All is delivered."])
            return
        clock = self.ledger.store.clock()
        waiting = standings(self.outbox, self.outbox.destinations(), self.destinations, now)
        closed = {each.destination: each.closed_until for each in waiting if each.closed_until is not None}
        write(rows(found, self.destinations, clock, closed, lambda message: self._late(message, now)))
        if more:
            counts = counted(waiting, self.parsed.get("job"))
            told = ", ".join(f"{counts[state]:,} {state}" for state in IN_ORDER if state in counts)
            write(["", f"There are more (--limit N). Not delivered: {told or 'none'}."])
        if hints := list(steps(found, waiting, self.destinations, clock, self.environ)):
            write([*([] if more else [""]), *hints])

    def _refuse_unknown(self) -> None:
        """Refuse a job or a destination that nobody knows: it may be misspelt. UsageError."""
        job, destination = self.parsed.get("job"), self.parsed.get("destination")
        if destination is not None and not self.outbox.messages(Wanted(destination=destination), limit=1):
            self._known_destination(destination, [])
        if job is not None and not self.outbox.messages(Wanted(job=job), limit=1):
            config = self.destinations.config
            known = {*config.jobs, *config.broken, *(each.name for each in self.ledger.store.jobs())}
            if job not in known:
                raise unknown_job(job, sorted(known))

    def _late(self, message: Message, now: float) -> bool:
        late_after = self.destinations.late_after(message.destination)
        return message.state in (PENDING, SENDING) and message.created_at < now - late_after

    def show(self, names: Sequence[str]) -> int:
        """Tell the story of one message, or write its body."""
        if len(names) != 1:
            raise UsageError("it is one message that is shown.", "Write: ranonce outbox show MESSAGE")
        message = self._message(names[0])
        if self.parsed.flag("body"):
            return write_body(message)
        start = message.window_start
        events = [
            event
            for event in self.ledger.store.notable_events(message.run.job, start, start + 1)
            if event.key == message.run and is_about(event, message)
        ]
        now = self.ledger.store.clock().wall
        if self.parsed.flag("json"):
            told = [with_instants({"at": each.at, "reason": each.reason, "host": each.host}) for each in events]
            whole = {**as_json(message, late=self._late(message, now)), "known_as": self._there(message)}
            write_json({**whole, **body_as_json(message), "events": told})
            return 0
        queue = self.outbox.queue(message.destination, 0, sending=False)
        closed = queue.closed_until if is_closed(queue) else None
        declared = self.destinations.declared(message.destination)
        late = self._late(message, now)
        clock = self.ledger.store.clock()
        write(story(message, late=late, declared=declared, there=self._there(message), clock=clock, closed=closed))
        write(
            plain(f"  {format_instant(event.at)}  {event.reason}; by {event.data.get('by', '-')}") for event in events
        )
        write(body_lines(message))
        return 0

    def _there(self, message: Message) -> dict[str, str]:
        """Return by what its destination knows a message, where the configuration here knows the destination."""
        declared = self.destinations.declared(message.destination)
        spec = self.destinations.spec(message.destination) if declared else None
        return {} if spec is None or isinstance(spec, ConfigError) else known_as(spec, message, self.environ)

    def _message(self, name: str) -> Message:
        """Return a message by its number or its key. UsageError where there is none."""
        number = name.isascii() and name.isdigit() and len(name) < 19
        found = self.outbox.message(int(name) if number else name)
        if found is None:
            raise UsageError(f"there is no message {shown(name)}.", "See: ranonce outbox list --all")
        return found

    # --- settling ---

    def retry(self, names: Sequence[str]) -> int:
        """Have messages tried now, and their destinations opened."""
        destination = self.parsed.get("destination")
        if bool(names) == (destination is not None):
            raise UsageError(
                "which messages are to be tried now?", "Write: ranonce outbox retry MESSAGE… or --destination NAME"
            )
        by = who(self.ledger.host.host)
        if names:
            messages = self._named(names)
        else:
            messages = list(every(self.outbox, self._wanted(UNDELIVERED)))
            self._known_destination(destination, messages)
        opened = [
            name
            for name in sorted({destination} if destination else {message.destination for message in messages})
            if open_destination(self.outbox, name, f"opened by {by}")
        ]
        answers = retry_all(self.ledger, messages, self.destinations, by=by)
        return self._tell(messages, answers, "to be tried now", "retried", opened, bulk=not names)

    def resolve(self, names: Sequence[str]) -> int:
        """Record what a person says became of messages."""
        as_, reason, states = self.parsed.get("as"), self.parsed.get("reason"), self.parsed.get("state")
        destination = self.parsed.get("destination")
        if as_ is None or reason is None:
            raise UsageError(
                "a message is resolved with what became of it, and how you know.",
                "Write: ranonce outbox resolve MESSAGE… --as sent|not-sent|dropped --reason TEXT",
            )
        if bool(names) == (destination is not None) or bool(names) == bool(states):
            raise UsageError(
                "which messages are resolved?",
                "Name them by their numbers, or all of a kind: --destination NAME --state unsure",
            )
        if names:
            messages = self._named(names)
        else:
            asked = frozenset(states) | (frozenset((SENDING,)) if UNSURE in states else frozenset())
            messages = list(every(self.outbox, self._wanted(asked)))
            self._known_destination(destination, messages)
        answers = resolve_all(self.ledger, messages, as_, reason[:LONGEST_TEXT], by=who(self.ledger.host.host))
        return self._tell(messages, answers, f"resolved as {as_}", "resolved", [], bulk=not names)

    def _known_destination(self, name: str, messages: Sequence[Message]) -> None:
        """Refuse a name that nobody knows: it may be misspelt. UsageError."""
        known = {*self.destinations.config.destinations, *self.outbox.destinations()}
        if not messages and name not in known:
            step = nearest(name, sorted(known)) if known else "No destination is declared, and no message waits."
            raise UsageError(f"there is no destination {name!r}, and no message to it.", step)

    def _named(self, names: Sequence[str]) -> list[Message]:
        return list({message.key: message for message in map(self._message, names)}.values())

    def _tell(
        self,
        messages: Sequence[Message],
        answers: Answers,
        what: str,
        event: str,
        opened: Sequence[str],
        *,
        bulk: bool,
    ) -> int:
        """Print what became of messages; return the exit status.

        Each that stays as it is counts; but where all of a kind were resolved, those that could be were.
        """
        changed = tally_of(answers)
        refused = [(message, answers[message.key]) for message in messages if message.key in answers]
        left = [(message, answer) for message, answer in refused if isinstance(answer, No)]
        if self.parsed.flag("json"):
            write_json(
                {
                    "event": event,
                    "changed": changed,
                    "opened": list(opened),
                    "left": [
                        {"message": message.seq, "state": message.state, "why": answer.sentence}
                        for message, answer in left
                    ],
                }
            )
        else:
            write(f"{name} is open." for name in opened)
            write([f"{_messages(changed)} {what}."])
            write(map(plain, left_as_they_are(left, event, self.ledger.store.clock())))
        if bulk and event == "resolved" and changed:
            return 0
        return max((_status(message, event) for message, _ in left), key=_WORSE.index, default=0)


_WORSE = (0, EX_USAGE, EX_TRY_LATER, EX_PERSON_NEEDED)


def _status(message: Message, event: str) -> int:
    """Return the exit status for a message that stays as it is."""
    if message.state == SENDING:
        return EX_TRY_LATER
    return EX_PERSON_NEEDED if event == "retried" and message.state in (UNSURE, DEAD) else EX_USAGE


def _messages(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"
