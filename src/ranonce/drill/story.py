"""After all of it: do the events of the scratch ledger tell of its runs, and does the store find nothing wrong?"""

from __future__ import annotations

from ranonce.drill.outcome import Untried, count
from ranonce.folding import TELL_OF_A_RUN, Story, disagreements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage
    from ranonce.lifecycle import RunKey


def one_story(stage: Stage, score: Score) -> str:
    """Fold every event again and compare it with the rows, when nobody works in the ledger any more."""
    store = stage.ledger().store
    upkeep = store.upkeep()
    stories: dict[RunKey, Story] = {}
    events = last = 0
    faults = []
    for event in upkeep.all_events():
        events += 1
        if event.seq is None or event.seq <= last:
            faults.append(f"event {event.seq} follows event {last}")
        last = event.seq or last
        if event.event in TELL_OF_A_RUN:
            stories.setdefault(event.key, Story()).take(event)
    runs = {run.key: run for run in upkeep.all_runs()}
    if not runs:
        raise Untried("nothing was run before that could be looked at")
    score.begin(len(runs), "every event of this drill was folded again and compared with the rows")
    for key in dict.fromkeys((*runs, *stories)):
        score.note(str(key), disagreements(runs.get(key), stories.get(key)))
    faults += upkeep.problems(deep=True)
    if faults:
        score.note("the store", faults)
    return f"{count(len(runs), 'run')} and {count(events, 'event')} tell the same, and the store finds nothing wrong"
