"""What the drill itself sees in the scratch ledger of one window, past those who took part: a witness of its own."""

from __future__ import annotations

from ranonce.drill.asking import key_of, window_of
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Event, Run


class Seen(Record):
    """What the ledger has of one window: its run, and its events in order."""

    run: Run | None
    events: tuple[Event, ...]

    def named(self, event: str) -> list[Event]:
        """Return the events of one kind."""
        return [each for each in self.events if each.event == event]

    def faults(self, status: str, attempt: int, owner: str | None = None) -> Iterator[str]:
        """Say what the ledger has that is not so: its run's state, or a number of attempts that never began."""
        run = self.run
        if run is None:
            yield "the ledger has no run of it"
            return
        if (run.status, run.attempt) != (status, attempt):
            yield f"the ledger has it {run.status} at attempt {run.attempt}, not {status} at attempt {attempt}"
        if owner is not None and run.owner != owner:
            yield f"the ledger has owner {run.owner}, not {owner}"
        started = [event.attempt for event in self.named("start")]
        if started != list(range(1, attempt + 1)):
            yield f"the ledger tells of the attempts {started}"


def look(ledger: OpenLedger, job: str, day: int) -> Seen:
    """Return what the ledger has of a day."""
    start = window_of(day).start
    run = ledger.store.read(key_of(job, day), start).run
    return Seen(run, tuple(ledger.store.events(job, start, start + 1)))
