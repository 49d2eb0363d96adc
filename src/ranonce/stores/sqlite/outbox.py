"""The outbox of a SQLite ledger: what deliverers and people ask. Apart from the store, since no plain run needs it."""

from __future__ import annotations

from ranonce.failpoints import failpoint
from ranonce.messages import UNDELIVERED, Queue, Tally, Waiting
from ranonce.stores.base import Exchanged
from ranonce.stores.sqlite.effects import SQL, message_of, move_row
from ranonce.stores.sqlite.rows import instant_of, read_instant, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranonce.messages import Closing, Message, Move, Take
    from ranonce.stores.base import Wanted
    from ranonce.stores.sqlite.store import SqliteStore

#: A destination of which nothing is known: nobody took, nothing closed it, any rate lets go.
NEW_LINE = (0, None, None, 0.0)
MOST = (1 << 63) - 1  # that a number can be in SQLite


class SqliteOutbox:
    """The outbox of one open ledger file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._db = store.connection

    def queue(self, destination: str, most: int, *, sending: bool = True) -> Queue:
        with self._store.reading():
            clock = self._store.clock()
            now = text_of(clock.wall)
            line = self._db.execute(SQL["line"], (destination,)).fetchone() or NEW_LINE
            due = self._db.execute(SQL["due"], (destination, now, most)).fetchall()
            others = self._db.execute(SQL["sending"], (destination,)).fetchall() if sending else ()
            next_due = self._db.execute(SQL["next_due"], (destination, now)).fetchone()[0]
        version, closed_until, closed_why, next_at = line
        return Queue(
            destination,
            version,
            instant_of(closed_until),
            closed_why,
            next_at,
            tuple(map(message_of, due)),
            tuple(map(message_of, others)),
            instant_of(next_due),
            clock.domain,
            clock.now,
            clock.wall,
        )

    def exchange(
        self, destination: str, moves: Sequence[Move] = (), *, closing: Closing | None = None, take: Take | None = None
    ) -> Exchanged:
        with self._store.transaction():
            db = self._db
            if self._all_moved(moves):
                moved = frozenset(move.was.key for move in moves)
            else:
                moved = frozenset(move.was.key for move in moves if db.execute(SQL["move"], move_row(move)).rowcount)
            failpoint("exchange:after-moves")
            taken = False
            if closing is not None or take is not None:
                taken = self._change_line(destination, closing, take)
            failpoint("exchange:before-commit")
        failpoint("exchange:after-commit")
        return Exchanged(moved, taken)

    def _change_line(self, destination: str, closing: Closing | None, take: Take | None) -> bool:
        """Close or open a destination, and take messages; say whether they were taken."""
        line = self._db.execute(SQL["line"], (destination,)).fetchone() or NEW_LINE
        version, closed_until, closed_why, next_at = line
        if closing is not None:
            until = text_of(closing.until)
            if until is None or closed_until is None or until > closed_until:
                closed_until, closed_why = until, closing.why
        taken = take is not None and take.after == version and self._all_moved(take.moves)
        if take is not None and taken:
            version, next_at = version + 1, take.next_at
        now = (version, closed_until, closed_why, next_at)
        if now != line:
            self._db.execute(SQL["put_line"], (destination, *now))
        return taken

    def _all_moved(self, moves: Sequence[Move]) -> bool:
        """Write all moves, or none if one of the messages is not as it was."""
        if not moves:
            return True
        db = self._db
        db.execute("SAVEPOINT moving")
        whole = db.executemany(SQL["move"], map(move_row, moves)).rowcount == len(moves)
        if not whole:
            db.execute("ROLLBACK TO moving")
        db.execute("RELEASE moving")
        return whole

    def known(self, keys: Sequence[str]) -> dict[str, Message]:
        found = {}
        for key in dict.fromkeys(keys):
            for row in self._store.ask(SQL["message_of_key"], key):
                found[key] = message_of(row)
        return found

    def message(self, name: int | str) -> Message | None:
        if isinstance(name, int) and not 0 < name <= MOST:
            return None
        by = (name, None) if isinstance(name, int) else (None, name)
        rows = self._store.ask(SQL["message"], *by)
        return message_of(rows[0]) if rows else None

    def messages(self, wanted: Wanted, *, after: int = 0, limit: int = 100) -> list[Message]:
        states = None if wanted.states is None else f" {' '.join(sorted(wanted.states))} "
        statement = "messages"
        if wanted.job is not None and wanted.window_start is not None:
            statement = "messages_of_window"
        elif wanted.states is not None and wanted.states <= UNDELIVERED:
            statement = "messages_undelivered"
        asked = (after, wanted.job, wanted.window_start, wanted.destination, states, limit)
        return [message_of(row) for row in self._store.ask(SQL[statement], *asked)]

    def destinations(self) -> list[str]:
        return [destination for (destination,) in self._store.ask(SQL["destinations"])]

    def tally(self, destination: str, late_before: float) -> list[Tally]:
        rows = self._store.ask(SQL["tally"], text_of(late_before), destination)
        return [
            Tally(job, destination, state, bool(late), count, read_instant(oldest))
            for job, destination, state, late, count, oldest in rows
        ]

    def waiting(self, job: str, since: int, until: int) -> list[Waiting]:
        return [Waiting(*row) for row in self._store.ask(SQL["waiting"], job, since, until)]
