"""What this host still knows of a ledger: its journal, and outcomes that wait on this host to be recorded."""

from __future__ import annotations

import os

from ranonce.errors import UsageError
from ranonce.exchange.effects import arrived
from ranonce.exchange.facts import JournalReader
from ranonce.exchange.importing import NAMED
from ranonce.exchange.lines import Bad, blocks
from ranonce.exchange.lookup import Find, Place
from ranonce.exchange.recognise import open_plain
from ranonce.journal import Journal, decode
from ranonce.ledger import outcome_of
from ranonce.lifecycle import DONE, Event, ScheduleVersion
from ranonce.liveness import unrecorded
from ranonce.merging import Told
from ranonce.messages import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ranonce.exchange.diagnosis import Where
    from ranonce.lifecycle import Verdict


class Memory:
    """What this host still knows of the ledger: its journal, and outcomes that wait to be recorded."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.facts = 0
        self.epoch = 0
        self.bad = 0
        self.first_bad: list[Bad] = []
        self.messages: dict[str, Message] = {}  # by key, once all was told: of outcomes that wait, and keys

    def told(self, versions: Callable[[str], Sequence[ScheduleVersion]]) -> Iterator[Told]:
        """Yield what is known, window by window; `versions` of a job's schedule say where its windows end."""
        reader = JournalReader(Find(versions, float("inf")))
        try:
            with open_plain(Journal(self.where.folder).path) as file:
                for block in blocks(file):
                    for item in (block,) if isinstance(block, Bad) else reader.take(block):
                        yield from self._item(item)
        except UsageError:
            if os.path.lexists(Journal(self.where.folder).path):
                raise
        for owner, text in unrecorded(self.where.folder):
            self._outcome(reader, owner, text)
        for item in reader.rest():
            yield from self._item(item)

    def _item(self, item: Told | Bad | Message) -> Iterator[Told]:
        if isinstance(item, Told):
            yield item
            return
        if isinstance(item, Message):
            self.messages.setdefault(item.key, item)
            return
        self.bad += 1
        if len(self.first_bad) < NAMED:
            self.first_bad.append(item)

    def _outcome(self, reader: JournalReader, owner: str, text: str) -> None:
        outcome = outcome_of(text)
        if outcome is None:
            self.first_bad.append(Bad(f"the outcome kept for attempt {owner} cannot be read", place="attempts"))
            self.bad += 1
            return
        held, verdict = outcome
        if verdict.outcome == DONE:  # it may have been committed, and they may have been sent
            self.messages.update({one.key: arrived(one, verdict.at, delivers_here=False) for one in verdict.messages})
        event = Event(
            verdict.at,
            held.key,
            held.window.start,
            verdict.outcome,
            held.attempt,
            held.generation,
            verdict.reason,
            held.owner,
            held.trigger,
            held.version,
            data={"imported": "outcome", "exit": verdict.exit, "started_at": held.started_at, **_emitted(verdict)},
        )
        reader.facts.add(event, Place(held.window, 1))

    def count(self) -> None:
        """Count the journal's facts, and find its last epoch."""
        try:
            with open_plain(Journal(self.where.folder).path) as file:
                for block in blocks(file):
                    for line in () if isinstance(block, Bad) else block.data.split(b"\n"):
                        if line and (fact := _whole(line)) is not None:
                            self.facts += 1
                            self.epoch = max(self.epoch, fact)
        except UsageError:
            return  # there is none: this host saw nothing


def _emitted(verdict: Verdict) -> dict[str, int]:
    count = len(verdict.messages) if verdict.outcome == DONE else 0
    return {"messages": count} if count else {}


def _whole(line: bytes) -> int | None:
    """Return the epoch of a whole line of the journal, or None."""
    try:
        fact = decode(line)
        return int(fact["epoch"]) if fact is not None else None
    except (ValueError, KeyError, TypeError):
        return None
