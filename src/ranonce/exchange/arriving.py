"""Messages that come into a ledger from elsewhere: in which state, and which of them are here already."""

from __future__ import annotations

from collections import Counter

from ranonce.exchange.effects import MOVED, PRUNED_HERE, arrived

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranonce.exchange.native import Head
    from ranonce.exchange.reading import Source
    from ranonce.ledger import OpenLedger
    from ranonce.messages import Message
    from ranonce.stores.base import Tombstone

#: Before and after every window.
EVER = (-(1 << 62), 1 << 62)
#: So many messages that contradict one that is here are named; all are counted.
NAMED = 10


class Arrivals:
    """Decides how messages come in, and counts them: `new` by the states that they have here, `there` those that were
    here already by the states that they keep, `conflicts` those whose keys stand here for other bodies."""

    def __init__(self, ledger: OpenLedger, source: Source) -> None:
        self.head: Head | None = None
        self.new: Counter[str] = Counter()
        self.there: Counter[str] = Counter()
        self.conflicts = 0
        self.first_conflicts: list[str] = []
        self._ledger = ledger
        self._source = source
        self._pruned: dict[str, list[Tombstone]] = {}  # by job, as they stood before anything of it came in

    def look_at(self, job: str) -> None:
        """See what is pruned of a job, before anything of it comes in."""
        if job not in self._pruned:
            self._pruned[job] = self._ledger.store.tombstones(job, *EVER)

    def of(self, message: Message) -> Message:
        """Return a message as it comes in. Here it goes out only if this ledger cannot have sent it before: one that it
        had, and that was delivered, went when its window was pruned, or is lost if the export is of this very ledger.
        """
        self.look_at(message.run.job)
        store, start = self._ledger.store, message.window_start
        ours = self.head is not None and self.head.ledger == store.identity().ledger
        pruned = (
            any(stone.since <= start < stone.until for stone in self._pruned[message.run.job])
            and store.read(message.run, start).run is None
        )
        at = self.head.exported_at if self.head else self._source.now
        delivers = self._source.delivers_here and not ours and not pruned
        return arrived(message, at, delivers_here=delivers, why=PRUNED_HERE if pruned else MOVED)

    def count(self, messages: Sequence[Message]) -> None:
        """Count messages that are about to come in. What is here stays as it is, also where it has another body."""
        known = self._ledger.store.outbox().known([each.key for each in messages]) if messages else {}
        self.new.update(each.state for each in messages if each.key not in known)
        self.there.update(each.state for each in known.values())
        for each in messages:
            if each.key in known and known[each.key].digest != each.digest:
                self.conflicts += 1
                if len(self.first_conflicts) < NAMED:
                    self.first_conflicts.append(each.key)
