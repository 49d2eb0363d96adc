"""A store that somebody else holds back: a trigger waits its time, says so, and nothing is run; then all goes on."""

from __future__ import annotations

import time

from ranonce.drill.crew import settled
from ranonce.drill.invoking import ended
from ranonce.drill.looking import look
from ranonce.drill.outcome import Untried
from ranonce.errors import EX_DONE, EX_STORE_UNAVAILABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage

JOB = "held-back"
TRIGGERS = 4
#: How long these triggers wait for the store, and how much longer they may take altogether.
WAIT_SECONDS = 1.0
SLACK_SECONDS = 15.0


def locked_store(stage: Stage, score: Score) -> str:
    """Let another process hold the store's lock while triggers come, and let it go again."""
    score.begin(TRIGGERS, f"triggers came that wait {WAIT_SECONDS:g} s, while another process held the store's lock")
    ledger = stage.declared(JOB)
    host = stage.host("held-back", wait=WAIT_SECONDS)
    holder = stage.member(host)
    answer = settled(holder, holder.ask("lock", job=JOB))
    if "reason" in answer:
        raise Untried(answer["reason"])
    began = time.monotonic()
    runs = [stage.trigger(host, *host.run_words(JOB, day)) for day in range(TRIGGERS)]
    statuses = ended(runs)
    took = time.monotonic() - began
    settled(holder, holder.ask("unlock"))
    after = [stage.trigger(host, *host.run_words(JOB, day)) for day in range(TRIGGERS)]
    for day, (run, status) in enumerate(zip(runs, statuses, strict=True)):
        faults = []
        if status != EX_STORE_UNAVAILABLE or run.receipt.get("event") != "unavailable":
            faults.append(f"while the store was locked: {run.said}")
        if run.seconds > WAIT_SECONDS + SLACK_SECONDS:
            faults.append(f"it was to wait {WAIT_SECONDS:g} s, and took {run.seconds:.1f} s")
        if after[day].ends() != EX_DONE:
            faults.append(f"once the store was free again: {after[day].said}")
        faults += look(ledger, JOB, day).faults("done", 1)
        if (effects := host.effects(JOB, day)) != [1]:
            faults.append(f"its effects are those of the attempts {effects}")
        score.note(f"window {day + 1}", faults)
    return (
        f"exit {EX_STORE_UNAVAILABLE} within {took:.1f} s and nothing was run; once it was free, the next ones worked"
    )
