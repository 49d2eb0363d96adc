"""Rehearse the failures that a ledger must survive, on the user's own store, in a scratch ledger beside the user's.

Real processes, which the drill starts, kills and counts. The drill itself looks on from outside: what the ledger has is
read by it, and not believed of those who took part. Nothing here opens the user's own ledger.
"""

from __future__ import annotations

import time

from ranonce.drill.clocks import clock_jump
from ranonce.drill.crashes import crash_anywhere
from ranonce.drill.crew import OutOfTime
from ranonce.drill.deliverers import two_deliverers
from ranonce.drill.doubts import unknown_outcome
from ranonce.drill.emissions import atomic_emit
from ranonce.drill.holding import locked_store
from ranonce.drill.leases import no_early_take_over, stale_finish, take_over
from ranonce.drill.outcome import BROKEN, HELD, UNTRIED, Broken, Outcome, Score, Untried
from ranonce.drill.places import foreign_store, wiped_host
from ranonce.drill.races import single_winner
from ranonce.drill.replies import lost_reply
from ranonce.drill.stage import Asked, Stage
from ranonce.drill.story import one_story
from ranonce.errors import RanonceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SCENARIOS", "Asked", "Stage", "play", "rehearse"]

#: What is rehearsed, in this order. Each says what was tried and seen; it keeps the score, and raises what ends it.
SCENARIOS: dict[str, Callable[[Stage, Score], str]] = {
    "single-winner": single_winner,
    "no-early-take-over": no_early_take_over,
    "take-over": take_over,
    "stale-finish": stale_finish,
    "lost-reply": lost_reply,
    "crash-anywhere": crash_anywhere,
    "wiped-host": wiped_host,
    "foreign-store": foreign_store,
    "locked-store": locked_store,
    "clock-jump": clock_jump,
    "atomic-emit": atomic_emit,
    "two-deliverers": two_deliverers,
    "unknown-outcome": unknown_outcome,
    "one-story": one_story,
}


def rehearse(stage: Stage) -> Iterator[Outcome]:
    """Play every scenario and tell what became of each as soon as it is known."""
    for name in SCENARIOS:
        yield play(stage, name)


def play(stage: Stage, name: str) -> Outcome:
    """Play one scenario, and say what became of it; whatever it has started ends with it."""
    began = time.monotonic()
    score = Score(lambda done, of: stage.asked.tell(name, done, of))
    state, seen, in_time = HELD, "", True
    try:
        stage.deadline.check()
        seen = SCENARIOS[name](stage, score)
    except OutOfTime as error:
        state, seen, in_time = UNTRIED, str(error), False
    except Untried as why:
        state, seen = UNTRIED, str(why)
    except Broken as broken:
        score.take(broken)
    except RanonceError as error:
        score.take(Broken(str(error)))
    finally:
        stage.clear()
    if score.evidence:
        state, seen = BROKEN, "this did not hold"
    return Outcome(
        name,
        state,
        score.held,
        score.of,
        score.tried,
        seen,
        score.evidence,
        score.dead,
        score.overlapping,
        time.monotonic() - began,
        in_time,
    )
