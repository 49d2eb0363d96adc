"""Does what jobs emit go out? The destinations of the configuration, what waits for them, and whether bodies are whole.

Nothing is sent, and no destination is asked anything.
"""

from __future__ import annotations

from ranonce.delivery.spec import DELIVERER, unusable
from ranonce.doctor.finding import PROBLEM, RESTORE, Check, few, step_of
from ranonce.doctor.jobs import program
from ranonce.emission import digest_of
from ranonce.errors import ConfigError
from ranonce.messages import AHEAD_SECONDS, DEAD, UNDELIVERED, UNSURE, lease_over
from ranonce.names import plain, shown_path
from ranonce.settings import argv
from ranonce.timefmt import format_duration, format_instant
from ranonce.undelivered import Destinations, standings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ranonce.config import Config
    from ranonce.delivery.base import Spec
    from ranonce.doctor.finding import Finding
    from ranonce.messages import Message, Queue, Standing, Tally
    from ranonce.stores.base import Store

#: A message that is being sent is its deliverer's for so long after its lease was over: it may only be late.
GONE_SECONDS = 600.0
#: So many messages of which something is wrong are told one by one; the others are counted.
SHOWN = 10


def declared(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Read the table of each destination; a mistake in one hides no other."""
    check = Check("destinations", "read the tables of destinations")
    destinations, fine = Destinations(config), 0
    for name in sorted(config.destinations):
        spec = destinations.spec(name)
        if isinstance(spec, ConfigError):
            yield check.problem(plain(spec.sentence), step_of(spec.next_step))
            continue
        found = list(_usable(check, spec, environ))
        fine += not any(one.level == PROBLEM for one in found)
        yield from found
    if fine:
        yield check.ok(f"{few(fine, 'destination')} can be read")


def _usable(check: Check, spec: Spec, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Say what would keep messages from going there: a mistake, or what is missing here and may be there elsewhere."""
    wrong = unusable(spec, environ)
    if wrong is None:
        if spec.type == "command":
            for one in program(check, argv(spec.settings["command"])[0], spec.folder or "/", environ):
                yield one.replace(seen=f"{spec.name}: {one.seen}")
    elif wrong.elsewhere:
        seen = f"{spec.name} cannot be used from here: {plain(wrong.sentence)}"
        yield check.note(seen, f"see that it can {DELIVERER}: {step_of(wrong.next_step)}")
    else:
        yield check.problem(plain(wrong.sentence), step_of(wrong.next_step))


def waiting(store: Store, config: Config, names: list[str]) -> Iterator[Finding]:
    """Look at what is not delivered, destination by destination; with names, at what those jobs emitted."""
    check = Check("messages", "looked for messages that are not delivered")
    outbox, destinations = store.outbox(), Destinations(config)
    count, worse = 0, False
    for standing in standings(outbox, outbox.destinations(), destinations, store.clock().wall):
        tallies = [tally for tally in standing.tallies if not names or tally.job in names]
        if not tallies:
            continue
        count += sum(tally.count for tally in tallies)
        found = [
            *_undeclared(check, standing, tallies, config, destinations),
            *_by_state(check, standing, tallies),
            *_in_the_queue(check, outbox.queue(standing.destination, 0), standing),
        ]
        worse = worse or bool(found)
        yield from found
        if standing.closed_until is not None:
            why = f": {plain(standing.closed_why)}" if standing.closed_why else ""
            seen = f"{standing.destination} is closed until {format_instant(standing.closed_until)}{why}"
            yield check.note(seen, f"to open it: ranonce outbox retry --destination {standing.destination}")
    if not worse:
        yield check.ok(f"{_wait(count)} in time" if count else "none")


def _undeclared(
    check: Check, standing: Standing, tallies: list[Tally], config: Config, destinations: Destinations
) -> Iterator[Finding]:
    name = standing.destination
    if destinations.declared(name):
        return
    count = sum(tally.count for tally in tallies)
    none = config.path is None
    file = "no configuration is there to declare it" if none else f"{shown_path(config.path or '')} does not declare it"
    step = f"declare it: [destinations.{name}]; or see what it is: ranonce outbox list --destination {name}"
    yield check.problem(f"{_wait(count)} for {name}, and {file}", step)


def _by_state(check: Check, standing: Standing, tallies: list[Tally]) -> Iterator[Finding]:
    name = standing.destination
    show = f"ranonce outbox list --destination {name}"
    unsure = sum(tally.count for tally in tallies if tally.state == UNSURE)
    dead = sum(tally.count for tally in tallies if tally.state == DEAD)
    late = [tally for tally in tallies if tally.late]
    if unsure:
        seen = f"{few(unsure, 'message')} to {name} may have been received, and nobody but a person can say"
        yield check.problem(seen, f"{show} --state unsure")
    if dead:
        yield check.problem(f"{few(dead, 'message')} to {name} will not be tried again", f"{show} --state dead")
    if late:
        count, oldest = sum(tally.count for tally in late), format_instant(min(tally.oldest for tally in late))
        after = format_duration(standing.late_after)
        seen = f"{_wait(count)} to be sent to {name} for longer than {after}, the oldest since {oldest}"
        yield check.problem(seen, "see that ranonce deliver is started, and what it says")


def _in_the_queue(check: Check, queue: Queue, standing: Standing) -> Iterator[Finding]:
    """Say which messages a deliverer has that is gone, and whether the others wait for a day that is far away."""
    if queue.next_due is not None and queue.next_due > queue.wall + AHEAD_SECONDS:
        seen = f"the next message to {standing.destination} is due on {format_instant(queue.next_due)}"
        step = "where a clock was ahead, the next ranonce deliver brings it forward; see that the clocks are right"
        yield check.note(seen, step)
    gone = [message for message in queue.sending if lease_over(_later(message), queue.domain, queue.now, queue.wall)]
    if gone:
        which = f"{few(len(gone), 'message')} to {standing.destination}"
        seen = f"{which} {'was' if len(gone) == 1 else 'were'} taken by a deliverer that is gone"
        yield check.problem(seen, "the next ranonce deliver settles what can be settled: see that it is started")


def _later(message: Message) -> Message:
    """Return a message as if its lease ended later: its deliverer may be about to come back."""
    until, seconds = message.lease_until + GONE_SECONDS, message.lease_seconds + GONE_SECONDS
    return message.replace(lease_until=until, lease_seconds=seconds)


def _wait(count: int) -> str:
    return f"{few(count, 'message')} {'waits' if count == 1 else 'wait'}"


def bodies(store: Store, restore: str = RESTORE) -> Iterator[Finding]:
    """Read every message: is its body the one that its digest is of?"""
    check = Check("bodies", "compared the bodies of all messages with their digests")
    count = faults = 0
    for message in store.upkeep().all_messages():
        count += 1
        if (wrong := _wrong(message)) is None:
            continue
        faults += 1
        if faults <= SHOWN:
            yield check.of(message.run.job).problem(f"message {message.seq} ({plain(message.key)}): {wrong}", restore)
    if faults > SHOWN:
        yield check.problem(f"{few(faults - SHOWN, 'more fault')} like these", restore)
    if not faults:
        yield check.ok(f"{few(count, 'message')} {'is' if count == 1 else 'are'} whole")


def _wrong(message: Message) -> str | None:
    if message.body is None:
        return "it is not delivered, and its body is gone" if message.state in UNDELIVERED else None
    if digest_of(message.content_type, message.body) != message.digest:
        return "its body is not the one that was emitted"
    return None
