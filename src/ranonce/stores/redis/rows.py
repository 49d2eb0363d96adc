"""Read the rows of a job from a ledger in Redis through its indexes, in pieces that keep nobody waiting for long."""

from __future__ import annotations

from functools import cache
from itertools import chain

from ranonce.errors import NotThisLedger
from ranonce.stores.redis.answers import Answer, translated
from ranonce.stores.redis.connection import script
from ranonce.stores.redis.keys import PAGE, event_of, number_of, run_of
from ranonce.stores.statements import load
from ranonce.stores.values import LOST, damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from ranonce.lifecycle import Event, Run
    from ranonce.stores.redis.connection import Connection, Script
    from ranonce.stores.redis.keys import Keys

#: The script that writes, where messages are written; and what is asked about messages. What a run without them needs
#: stands in a file of its own; the others are read when one of them is asked for.
WRITE_MESSAGES = "write messages"
OUTBOX_SCRIPTS = ("queue", "known", "undelivered", "tally", "sums")
#: The words that the answers of a script begin with, where they are others than its name and what any may say.
SAYS = {
    "write": (b"written", b"raced", b"other", b"seq", b"denied"),
    WRITE_MESSAGES: (b"written", b"raced", b"other", b"seq", b"denied", b"lost"),
    "read": (b"read", b"other"),
    "chapter": (b"chapter", b"changed", b"other"),
    "glance": (b"glance", b"many", b"other", b"lost"),
}


@cache
def named(name: str) -> Script:
    """Return a script by its name, with what stands before it."""
    return script("\n".join(_parts(name)), *SAYS.get(name, (b"other", b"lost", name.encode())))


def _parts(name: str) -> list[str]:
    texts = load("redis/store.lua")
    if name == "read":
        return [texts["common"], texts[name]]
    if name == "write":
        return [texts["common"], texts[name], texts["carry out"]]
    if name == WRITE_MESSAGES:
        return [texts["common"], texts["write"], load("redis/outbox.lua")["messages"], texts["carry out"]]
    windows = load("redis/windows.lua")
    if name in OUTBOX_SCRIPTS:
        outbox = load("redis/outbox.lua")
        return [texts["common"], windows["windows"], outbox["outbox"], outbox[name]]
    return [texts["common"], windows["windows"], windows[name]]


#: How many members of a set, or values of a hash, the server is asked for at once.
PIECE = 1000
#: How many windows a script looks at, at once: a few thousandths of a second.
WINDOWS = 1000


class Rows:
    """The rows of an open ledger, by job."""

    def __init__(self, connection: Connection, keys: Keys, ledger: str) -> None:
        self.connection = connection
        self.keys = keys
        self.ledger = ledger

    # --- indexes ---

    def members(self, what: str, job: str, since: int | str, until: int | str) -> list[bytes]:
        """Return the members of an index whose windows start in [since, until), in order."""
        return list(chain.from_iterable(self.pieces(self.keys(what, job), str(since), f"({until}")))

    def pieces(self, key: str, since: str, until: str) -> Iterator[list[bytes]]:
        """Yield the same of an index by its name, in pieces, each with all members of its scores."""
        while True:
            (found,) = self.connection.ask(("ZRANGEBYSCORE", key, since, until, "WITHSCORES", "LIMIT", 0, PIECE))
            members, scores = found[::2], found[1::2]
            if len(members) < PIECE:
                yield members
                return
            last = scores[-1]  # more may start there than fitted
            yield members[: scores.index(last)]
            (those,) = self.connection.ask(("ZRANGEBYSCORE", key, last, last))
            yield those
            since = f"({last.decode()}"

    def newest(self, what: str, job: str, before: int | str, limit: int, skip: int = 0) -> list[bytes]:
        """Return the last members of an index whose windows start before an instant, newest first."""
        until = f"({before}" if isinstance(before, int) else before
        words = ("ZREVRANGEBYSCORE", self.keys(what, job), until, "-inf", "LIMIT", skip, limit)
        return list(self.connection.ask(words)[0])

    # --- values ---

    def values(self, key: str, fields: Sequence[bytes | str | int]) -> list[bytes | None]:
        """Return the values of many fields."""
        found: list[bytes | None] = []
        for first in range(0, len(fields), PIECE):
            found += self.connection.ask(("HMGET", key, *fields[first : first + PIECE]))[0]
        return found

    def runs(self, job: str, places: Sequence[bytes]) -> list[Run]:
        """Return the runs at these places, without those that were pruned since the places were read.

        A run that its index still knows and that is not there is damage.
        """
        found = self.values(self.keys("runs", job), places)
        for place in [place for place, value in zip(places, found, strict=True) if value is None]:
            if self.connection.ask(("ZSCORE", self.keys("order", job), place))[0] is not None:
                raise damaged(place)
        return [run_of(job, place, value) for place, value in zip(places, found, strict=True) if value is not None]

    def events(self, seqs: Iterable[bytes]) -> list[Event]:
        """Return the events of these numbers, in order of the numbers, without those that were pruned meanwhile."""
        numbers = sorted(map(number_of, seqs))
        found = self.values(self.keys("events"), numbers)
        return [event_of(seq, value) for seq, value in zip(numbers, found, strict=True) if value is not None]

    def page(self, number: int) -> list[Event]:
        """Return the events of one page of numbers, in order."""
        return self.events([b"%d" % seq for seq in range(number * PAGE, (number + 1) * PAGE)])

    # --- scripts over whole windows ---

    def spans(self, name: str, what: tuple[str, ...], job: str, since: int, until: int, *more: int) -> Iterator[Any]:
        """Carry out a script that looks at the next windows, until there are no more; yield its answers."""
        keys = [self.keys("ledger"), *(self.keys(each, job) for each in what)]
        place = str(since)
        while True:
            asked = self.connection.ask_script(named(name), keys, self.ledger, place, f"({until}", WINDOWS, *more)
            answer = self.checked(asked)
            yield answer
            if not answer[1]:
                return
            place = f"({answer[1].decode()}"

    def checked(self, answer: list[Any]) -> list[Any]:
        """Return the answer of a script, unless it says that this is not the ledger, or is damaged."""
        said = answer[0]
        if said == b"other":
            found = answer[1].decode("utf-8", "replace")
            raise NotThisLedger(
                f"{self.connection.shown} holds the ledger {found} now, not {self.ledger}."
                if found
                else f"the ledger at {self.connection.shown} is gone: its server is empty, or somebody removed it.",
                LOST,
            )
        if said == b"seq":
            last = answer[1].decode("utf-8", "replace")
            raise NotThisLedger(
                f"the ledger at {self.connection.shown} is damaged: there are events after {last}, its last.", LOST
            )
        if said == b"denied":
            raise translated(
                Answer("NOPERM", f"its user may not {answer[1].decode('utf-8', 'replace')}"), self.connection.shown
            )
        if said == b"lost":
            raise damaged(answer[1])
        return answer
