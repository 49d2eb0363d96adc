"""What a drill says of one thing that it rehearsed: did it hold, how often, what was tried, what was seen."""

from __future__ import annotations

from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

HELD, BROKEN, UNTRIED = "held", "BROKEN", "untried"
STATES = (HELD, BROKEN, UNTRIED)
#: So many pieces of evidence are told one by one; the others are counted.
SHOWN = 10


class Broken(Exception):
    """Something did not hold, so that this scenario cannot go on. `dead` processes are part of the evidence."""

    def __init__(self, *evidence: str, dead: int = 0) -> None:
        super().__init__(*evidence)
        self.evidence = evidence
        self.dead = dead


class Untried(Exception):
    """This cannot be tried here; the text says why. It proves nothing, in either direction."""


class Outcome(Record):
    """What became of one scenario. `held` of `of` tries held; `dead` processes died that were not killed on
    purpose.

    `overlapping` counts the rounds in which claims were in flight at the same time, where there are rounds. `in_time`
    is False where the drill's time was over: what was left was not tried, and nobody may call it held.
    """

    name: str
    state: str
    held: int
    of: int
    tried: str
    seen: str
    evidence: tuple[str, ...] = ()
    dead: int = 0
    overlapping: int | None = None
    seconds: float = 0.0
    in_time: bool = True

    @property
    def lines(self) -> list[str]:
        """The outcome for people: a line, and one more for each piece of evidence."""
        if self.state == UNTRIED:
            return [f"{self.state:<8}{self.name}: not tried: {self.seen}"]
        seen = [self.seen]
        if self.overlapping is not None:
            seen.append(f"{count(self.overlapping, 'round')} with overlapping claims")
        line = f"{self.state:<8}{self.held}/{self.of} {self.name}: {self.tried}: {'; '.join(seen)}; {self.dead} dead"
        return [line, *(f"        {piece}" for piece in self.evidence)]

    def as_told(self) -> dict[str, Any]:
        """Return the outcome for machines."""
        told: dict[str, Any] = {"scenario": self.name, "result": self.state.lower()}
        if self.state != UNTRIED:
            told |= {"held": self.held, "of": self.of, "dead": self.dead, "tried": self.tried}
        if self.overlapping is not None:
            told["overlapping"] = self.overlapping
        told |= {"seen": self.seen, "seconds": round(self.seconds, 3)}
        return told | ({"evidence": list(self.evidence)} if self.evidence else {})


class Score:
    """What a scenario has tried so far, and what it saw."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self.tried = ""
        self.of = 0
        self.held = 0
        self.dead = 0
        self.overlapping: int | None = None
        self._tell = tell
        self._evidence: list[str] = []

    def begin(self, of: int, tried: str) -> None:
        """Say what will be tried, and how often."""
        self.of, self.tried = of, tried
        self._tell(0, of)

    def hold(self, count: int = 1) -> None:
        """Count tries that held."""
        self.held += count
        self._tell(self.held, self.of)

    def note(self, where: str, faults: Iterable[str]) -> bool:
        """Take what was wrong with one try as evidence, or count it as held; say whether it held."""
        found = [f"{where}: {fault}" for fault in faults]
        self._evidence += found
        if not found:
            self.hold()
        return not found

    def take(self, broken: Broken) -> None:
        """Take the evidence of what ended this scenario."""
        self._evidence += broken.evidence
        self.dead += broken.dead

    @property
    def evidence(self) -> tuple[str, ...]:
        """What did not hold, no more of it than a screenful."""
        more = len(self._evidence) - SHOWN
        return (*self._evidence[:SHOWN], *([f"and {more} more like these"] if more > 0 else []))


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its word: `1 round`, `3 rounds`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
