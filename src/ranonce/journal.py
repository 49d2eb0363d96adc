"""The second witness: what this host saw committed, in an append-only JSON Lines file outside the store.

One line per event, written after its commit with one write, its length and checksum in front. A store that knows less
than the journal (wiped, re-created, restored from yesterday) or something else is refused, so that finished windows
do not run again. The journal protects this host only: what another host committed, it has not seen.
"""

from __future__ import annotations

import os
import time
from binascii import crc32

from ranonce import jsontext as json
from ranonce.errors import ConfigError, NotThisLedger
from ranonce.lifecycle import DONE, RUNNING, RunKey
from ranonce.liveness import boot_clock, clock_domain, this_host
from ranonce.record import Record
from ranonce.timefmt import format_instant, parse_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from ranonce.lifecycle import Event
    from ranonce.messages import Message
    from ranonce.stores.base import Store

#: How much of the end of the journal is read at first to find the newest fact: some twelve lines, a dozen µs each.
TAIL_BYTES = 4 * 1024
#: Reasons of a refused trigger that say: it was done.
SEEN_DONE = ("done", "conflict", "pruned")
#: Facts that say nothing of what an attempt has come to.
SAY_NOTHING = ("noted", "lost", "rerun")
#: So many of the newest windows are looked up after a loss that another host accepted.
LOOKED_UP = 8
#: No line of ours is longer; what a power cut left may be.
LONGEST_LINE = 1 << 20
#: A fact about no event: keys of messages that are the same for all windows of a job, or of the ledger.
EMITTED = "emitted"
#: So many keys stand on one line.
KEYS_A_LINE = 100


class MoreRemembered(NotThisLedger):
    """This host remembers what the ledger does not know since another host accepted its loss."""


class Line(Record):
    """One line of a journal's file: its number from 1 on, where it begins, and its fact; None where it is not whole."""

    path: str
    number: int
    offset: int
    fact: dict[str, Any] | None


def encode(fact: dict[str, Any]) -> bytes:
    """Return a fact as one line that proves itself whole: `{"len":…,"crc":"…","fact":…}`."""
    body = json.compact(fact).encode()
    return b'{"len":%d,"crc":"%08x","fact":%b}\n' % (len(body), crc32(body), body)


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the fact of a line, or None if any of it is torn, padded or changed."""
    head, found, rest = line.partition(b',"fact":')
    if not found or not head.startswith(b'{"len":') or not rest.endswith(b"}"):
        return None
    body = rest[:-1]
    if head != b'{"len":%d,"crc":"%08x"' % (len(body), crc32(body)):
        return None
    fact = json.loads(body)
    return fact if isinstance(fact, dict) else None


class Journal:
    """The journal of one ledger on this host. It need not exist: a host that saw nothing has nothing to say."""

    def __init__(self, folder: str, epoch: int = 1, *, present: Callable[[], float] = time.time) -> None:
        self.path = os.path.join(folder, "journal.jsonl")
        self.epoch = epoch
        self._present = present  # by the clock that events are dated by: a server has its own
        self._clock = clock_domain(this_host())

    def append(self, events: Iterable[Event], messages: Sequence[Message] = ()) -> None:
        """Note committed events, and what of the messages that came with them must be known for longer than their
        windows. Raises OSError: the store has them, so the caller only says it."""
        facts = [*(self._emitted(messages) if messages else ()), *map(self._fact, events)]
        lines = b"".join(map(encode, facts))
        if not lines:
            return
        while not self._written(lines):
            pass  # a shorter journal has just taken the place of the one we wrote to (`journal_upkeep`)

    def _written(self, lines: bytes) -> bool:
        """Write lines at the end of the journal; say whether it still is the journal."""
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # whatever was torn there stays torn, alone on its line
            os.write(fd, lines)
            return os.fstat(fd).st_nlink > 0
        finally:
            os.close(fd)

    def _fact(self, event: Event) -> dict[str, Any]:
        return {
            **_identity(event),
            "generation": event.generation,
            "start": format_instant(event.window_start),
            **({"as": event.data.get("as")} if event.event == "released" else {}),
            **({"messages": event.data["messages"]} if event.event == DONE and event.data.get("messages") else {}),
            "epoch": self.epoch,
            "at": format_instant(event.at, precision="ms"),
            "clock": self._clock,
            # What the boot clock read at that instant: some events are recorded long after they happened.
            "boot": round(boot_clock() - (self._present() - event.at), 3),
        }

    def _emitted(self, messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
        """Tell of messages by their keys, where another window may emit the same: without them, it would send again."""
        from ranonce.messages import WINDOW, scope_of

        lasting = [message for message in messages if scope_of(message.key) != WINDOW]
        for begin in range(0, len(lasting), KEYS_A_LINE):
            some = lasting[begin : begin + KEYS_A_LINE]
            first = some[0]
            yield {
                "event": EMITTED,
                "job": first.run.job,
                "window": first.run.window,
                "input": first.run.input,
                "attempt": first.attempt,
                "generation": first.generation,
                "start": format_instant(first.window_start),
                **({"item": first.item} if first.item else {}),
                "epoch": self.epoch,
                "at": format_instant(first.created_at, precision="ms"),
                "keys": {message.key: message.digest for message in some},
            }

    def tail(self) -> list[dict[str, Any]]:
        """Return the facts of events near the end of the journal, in the order they were written; bad lines are passed
        over.

        Reads back as far as it takes to find one: neither a long line nor a torn end silences the witness. Raises
        ConfigError for a journal that is there and cannot be read.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                size = os.fstat(fd).st_size
                length = TAIL_BYTES
                while True:
                    tail = os.pread(fd, length, max(0, size - length))
                    found = [fact for line in tail.split(b"\n") if (fact := decode(line))]
                    facts = [fact for fact in found if fact.get("event") != EMITTED]
                    if facts or length >= size:
                        return facts
                    length *= 8
            finally:
                os.close(fd)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(
                f"the journal {self.path!r} cannot be read: {error.strerror}.",
                "Nothing was run. Run the job as the user who owns the journal.",
            ) from error

    def check(self, facts: list[dict[str, Any]], store: Store) -> None:
        """Refuse a store that has forgotten or changed what this host saw committed.

        `facts` were read before the store: it may know more than they say, never less, but for what was pruned. Facts
        of a later epoch the store should know, too. Those of an earlier one are from before a loss that was accepted:
        here, and then what they say was put back; or, where none is newer, on another host (MoreRemembered).
        """
        latest = max((int(fact["epoch"]) for fact in facts), default=0)
        if latest > self.epoch:
            raise NotThisLedger(
                f"the ledger has gone back in time: this host saw its epoch {latest}, and it is in epoch {self.epoch}.",
                _MEND,
            )
        known = [fact for fact in facts if fact["epoch"] == self.epoch]
        if not known:
            self._check_what_is_older(facts, store)
            return
        if contradiction := self.contradiction(max(known, key=lambda fact: int(fact["seq"])), store):
            raise NotThisLedger(contradiction, _MEND)

    def _check_what_is_older(self, facts: list[dict[str, Any]], store: Store) -> None:
        """Refuse a ledger in an epoch that this host has not met yet, where it does not know this host's last windows.

        The numbers of events mean nothing across a loss, so they are looked up by what they say.
        """
        newest: dict[RunKey, dict[str, Any]] = {}
        for fact in reversed(facts):
            if "start" in fact and fact["event"] not in SAY_NOTHING and _says_more_than_a_refusal(fact):
                newest.setdefault(RunKey(fact["job"], fact["window"], fact["input"]), fact)
        for key, fact in list(newest.items())[:LOOKED_UP]:
            if not _known(key, fact, store):
                from shlex import quote

                raise MoreRemembered(
                    f"a loss was accepted on another host (epoch {self.epoch}), and this host remembers what the ledger"
                    f" does not: {fact['event']} of {key.job}:{key.window}.",
                    "No job runs here, since finished windows might run again. Bring in what this host remembers:"
                    f" ranonce import {quote(self.path)} (or accept the loss here, too: ranonce accept-loss --reason"
                    " TEXT)",
                )

    def contradiction(self, fact: dict[str, Any], store: Store) -> str | None:
        """Say how the store contradicts one fact of its epoch; None where it does not."""
        event = store.event(fact["seq"])
        seen = f"this host saw {fact['event']} of {fact['job']}:{fact['window']} (event {fact['seq']})"
        if event is None and int(fact["seq"]) <= store.upkeep().pruned_seq():
            return None
        if event is None:
            return f"the ledger has gone back in time: {seen}, and the ledger does not know it."
        if any(fact[name] != value for name, value in _identity(event).items()):
            return f"the ledger has changed: {seen}, and the ledger has another event there."
        return None

    def lines(self) -> Iterator[Line]:
        """Go through the whole journal, line by line, without holding it in memory. Raises OSError."""
        number = offset = 0
        with open(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                yield Line(self.path, number, offset, decode(line.rstrip(b"\n")))
                offset += len(line)

    def clock_jump(self, facts: list[dict[str, Any]], now: float) -> float:
        """Return by how many seconds the real clock has jumped since the last fact of this boot; 0 if none is known.

        The boot clock goes on whatever anybody sets: a real clock that stands still has jumped back, too.
        """
        for fact in reversed(facts):
            if self._clock and fact.get("clock") == self._clock:
                return (now - parse_instant(fact["at"])) - (boot_clock() - float(fact["boot"]))
        return 0.0


def _says_more_than_a_refusal(fact: dict[str, Any]) -> bool:
    return fact["event"] != "skipped" or fact["reason"] in SEEN_DONE


def _known(key: RunKey, fact: dict[str, Any], store: Store) -> bool:
    """Whether the store knows that a window has come as far as a fact says, by whichever attempt."""
    snap = store.read(key, int(parse_instant(fact["start"])))
    run = snap.run
    if run is None:
        return snap.pruned is not None
    generation, attempt = int(fact.get("generation", 1)), int(fact["attempt"])
    if run.generation != generation:
        return run.generation > generation
    if run.status == DONE:
        return True
    if fact["event"] in (DONE, "skipped") or fact.get("as") == DONE:
        return False
    over = fact["event"] not in ("start", "expired")
    return run.attempt > attempt or (run.attempt == attempt and (run.status != RUNNING or not over))


def _identity(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "event": event.event,
        "job": event.key.job,
        "window": event.key.window,
        "input": event.key.input,
        "attempt": event.attempt,
        "owner": event.owner,
        "reason": event.reason,
    }


_MEND = (
    "Nothing was run, since finished windows might run again. Put the newest ledger back, or if it is lost, go on with"
    " what this host remembers: ranonce accept-loss --reason TEXT"
)
