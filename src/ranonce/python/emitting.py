"""What a Python job emits, and the pieces of its work: kept in memory until the piece or the run is recorded.

An item and a step are one thing to the ledger: a name, its result and its messages, committed together. What the code
of one emits belongs to it, by the context it runs in (`contextvars`): the same thread, a task it awaits,
`asyncio.to_thread`. A thread of its own has an empty context, so what it emits goes with the outcome.
"""

from __future__ import annotations

import json
from _thread import allocate_lock
from collections.abc import Mapping
from contextvars import ContextVar

from ranonce.emission import JSON, OCTETS, TEXT, Emission, addressed, check_declared, checked, digest_of, message_of
from ranonce.errors import UsageError
from ranonce.lifecycle import Step
from ranonce.messagefile import check_room
from ranonce.messages import LONGEST_BODY
from ranonce.stores.base import LostReply
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Claim, Refusal
    from ranonce.messages import Message
    from ranonce.python.connections import Connections

    Payload = bytes | bytearray | memoryview | str | Mapping[str, Any] | list[Any]

#: No more of what a step returned is kept.
LONGEST_RESULT = LONGEST_BODY
#: Stands between the names of an item and of a step in it; no name has one.
INSIDE = "\t"


class Piece:
    """What was emitted for one outcome: of the run, of an item, or of a step (which have a name)."""

    def __init__(self, owner: Emitter, name: str = "", *, is_step: bool = False) -> None:
        self.name = name
        self.is_step = is_step
        self.over = False
        self.recorded = False
        self._owner = owner
        self._emissions: list[Emission] = []
        self._digests: dict[tuple[str, str, str], list[str]] = {}
        self._size = 0
        self._lock = allocate_lock()

    def __len__(self) -> int:
        return len(self._emissions)

    @property
    def shown(self) -> str:
        """Its name for people."""
        return self.name.replace(INSIDE, " / ")

    def is_of(self, owner: Emitter) -> bool:
        """Whether it is a piece of this run, and not of another one in the same context."""
        return self._owner is owner

    def add(self, emissions: list[Emission]) -> None:
        """Add messages, all or none. Raises UsageError for too many, and for a key that stands for something else.

        That one is kept, too, so that it is recorded as a conflict; it is not sent.
        """
        contradicts = None
        with self._lock:
            if self.over:
                raise UsageError(f"{self.shown!r} has ended.", "Wait for what works on it before you go on.")
            new = []
            for emission in emissions:
                digest = digest_of(emission.content_type, emission.body)
                before = self._digests.get((emission.scope, emission.destination, emission.key), [])
                if before and before[0] != digest:
                    contradicts = emission
                if digest not in before:
                    new.append((emission, digest))
            size = self._size + sum(len(emission.body) for emission, _ in new)
            check_room(len(self._emissions) + len(new), size)
            for emission, digest in new:
                self._digests.setdefault((emission.scope, emission.destination, emission.key), []).append(digest)
                self._emissions.append(emission)
            self._size = size
        if contradicts is not None:
            raise UsageError(
                f"a message to {contradicts.destination} with the key {shown(contradicts.key)} stands for another"
                " payload already; this one is not sent.",
                "Give each its own key: run.emit(…, key=…).",
            )

    def messages(self, claim: Claim, now: float, *, resend: bool) -> list[Message]:
        """Return the messages, as of an instant by the ledger's clock."""
        with self._lock:
            return [message_of(each, claim, now, item=self.name, resend=resend) for each in self._emissions]

    def emissions(self) -> list[Emission]:
        """Return what was emitted, in order."""
        with self._lock:
            return list(self._emissions)

    def end(self) -> None:
        """Let nothing be added any more."""
        with self._lock:
            self.over = True


_current: ContextVar[Piece | None] = ContextVar("ranonce_piece", default=None)


class Emitter:
    """What one run emits. `warnings` are for its receipt."""

    def __init__(
        self, connections: Connections, claim: Claim, destinations: Mapping[str, Mapping[str, object]]
    ) -> None:
        self.warnings: list[str] = []
        self._connections = connections
        self._claim = claim
        self._destinations = destinations
        self._rest = Piece(self)
        self._open: list[Piece] = []
        self._resend: bool | None = None if claim.generation > 1 else False

    # --- emitting ---

    @property
    def piece(self) -> Piece:
        """Return the piece of work that this context belongs to: a step, an item, or all the rest of the run."""
        current = _current.get()
        return current if current is not None and current.is_of(self) else self._rest

    def emit(self, destination: str, payload: Payload, key: str | None, scope: str, content_type: str | None) -> None:
        """Keep a message. Raises UsageError and ConfigError, and what asking the ledger raises, for a rerun."""
        check_declared(destination, self._destinations)
        body, usual = _body(payload)
        if key is not None and not (isinstance(key, str) and key):
            raise UsageError(f"key={shown(key)} is no text.", "Leave it away for a message that has none.")
        emission = checked(Emission(destination, body, content_type or usual, key or "", scope))
        piece = self.piece
        if not emission.key:
            emission = emission.replace(key=piece.name)
        table = self._destinations.get(destination)
        if self._resend is None:  # asked now, since the outcome must not wait for it
            with self._connections.lend() as ledger:
                self._resend = ledger.resends(self._claim)
        piece.add(addressed(emission, table.get("type") if isinstance(table, dict) else None))

    def messages(self, now: float) -> tuple[Message, ...]:
        """Return those that wait for the outcome of the run."""
        return tuple(self._rest.messages(self._claim, now, resend=bool(self._resend)))

    def waiting(self) -> list[Emission]:
        """Return the same as they were emitted."""
        return self._rest.emissions()

    def __len__(self) -> int:
        return len(self._rest)

    # --- pieces ---

    def begin(self, name: str, *, is_step: bool = False) -> Piece:
        """Begin a piece: what this context emits from now on belongs to it."""
        piece = Piece(self, name, is_step=is_step)
        self._open.append(piece)
        _current.set(piece)
        return piece

    def leave(self, piece: Piece, before: Piece | None) -> None:
        """End a piece in this context and for all others: it is recorded, or never will be."""
        piece.end()
        if piece in self._open:
            self._open.remove(piece)
            if len(piece) and not piece.recorded:
                self.warnings.append(f"{piece.shown!r} was left before its end: messages not sent: {len(piece)}")
        if _current.get() is piece:
            _current.set(before)

    def leave_all(self) -> None:
        """End what is left of pieces when the run ends."""
        for piece in list(self._open):
            self.leave(piece, None)

    def outer(self) -> Piece | None:
        """Return the piece of this run that this context is in, if any."""
        current = _current.get()
        return current if current is not None and current.is_of(self) else None

    def done(self) -> set[str]:
        """Return the names of all that is done in this generation."""
        claim = self._claim
        with self._connections.lend() as ledger:
            return set(ledger.store.steps(claim.key, claim.window.start, claim.generation))

    def result(self, name: str) -> Step | None:
        """Return a step that is done in this generation."""
        claim = self._claim
        with self._connections.lend() as ledger:
            return ledger.store.step(claim.key, claim.window.start, claim.generation, name)

    def mark(self, piece: Piece, now: float, result: bytes | None = None) -> Refusal | None:
        """Commit a piece: its mark, its result and its messages. A refusal means that the claim is lost."""
        piece.end()
        claim = self._claim
        step = Step(claim.key, claim.window.start, claim.generation, piece.name, claim.attempt, now, result)
        with self._connections.lend() as ledger:
            try:
                refusal = ledger.mark(claim, step, piece.messages(claim, now, resend=bool(self._resend)))
            except LostReply:
                piece.recorded = True  # perhaps: so nobody is told that its messages are not sent
                raise
            self._hear(ledger)
        piece.recorded = refusal is None
        return refusal

    def _hear(self, ledger: OpenLedger) -> None:
        """Keep what a lent ledger has noticed for the receipt."""
        self.warnings += [warning for warning in ledger.warnings if warning not in self.warnings]


# --- payloads and results --------------------------------------------------------------------------------------------


def _body(payload: object) -> tuple[bytes, str]:
    """Return a payload as bytes, and the content type that it usually has. Raises UsageError."""
    if payload is None:
        raise UsageError("the payload is None, so there is nothing to send.", "Emit only where there is something.")
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload), OCTETS
    if isinstance(payload, str):
        try:
            return payload.encode("utf-8"), TEXT
        except UnicodeEncodeError:
            raise UsageError(f"the payload {shown(payload)} is no text: it has lone surrogates.", _BYTES) from None
    if isinstance(payload, (Mapping, list)):
        whole = payload if isinstance(payload, list) else dict(payload)
        return (json_of("the payload", whole) if whole else b""), JSON
    raise UsageError(f"the payload is a {type(payload).__name__}.", "It is bytes, text, or a dict or list for JSON.")


_BYTES = "Send it as bytes."


def json_of(what: str, value: object) -> bytes:
    """Return a value as JSON in UTF-8. Raises UsageError for what JSON cannot hold."""
    try:
        _check_keys(what, value)
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{what} holds text with lone surrogates, which is no text.", _BYTES) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON: {error}.", "Make of it text, numbers, lists and dicts.") from None


def _check_keys(what: str, value: object) -> None:
    """Refuse keys that JSON would turn into others."""
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{what} has the key {shown(key)}, and JSON has text alone.", "Write str(…).")
            _check_keys(what, each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _check_keys(what, each)


def result_of(name: str, value: object) -> bytes:
    """Return what a step returned as it is kept. Raises UsageError for what cannot be."""
    kept = json_of(f"what the step {shown(name)} returned", value)
    if len(kept) > LONGEST_RESULT:
        raise UsageError(
            f"what the step {shown(name)} returned has {len(kept)} bytes of JSON; {LONGEST_RESULT} are kept.",
            "It is not done. Write it to a file, and return its path.",
        )
    return kept
