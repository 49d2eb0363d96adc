"""Many processes, one window, at one moment: one of them gets it, and once it is done nobody does."""

from __future__ import annotations

from ranonce.drill.asking import new_owner
from ranonce.drill.crew import most_in_flight
from ranonce.drill.looking import look
from ranonce.drill.outcome import Broken, Untried, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.drill.crew import Answer, Crew
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage

PROCESSES = 8
JOB = "race"
LEASE_SECONDS = 300.0


def single_winner(stage: Stage, score: Score) -> str:
    """Let eight processes want one new window at once, round after round; stop at the first without one winner."""
    score.begin(stage.rounds, f"{PROCESSES} processes wanted one new window at once, and again once it was done")
    score.overlapping = most = 0
    ledger = stage.declared(JOB)
    with stage.crew(PROCESSES, stage.host("race")) as crew:
        for day in range(stage.rounds):
            stage.deadline.check()
            answers = crew.race(owners(), job=JOB, day=day, lease=LEASE_SECONDS)
            flying = most_in_flight(answers)
            most, score.overlapping = max(most, flying), score.overlapping + (flying > 1)
            winner = only_winner(day, answers)
            if faults := list(look(ledger, JOB, day).faults("running", 1, winner["owner"])):
                raise Broken(*(f"round {day + 1}: {fault}" for fault in faults))
            _finish(crew, day, winner, answers)
            again = crew.race(owners(), job=JOB, day=day, lease=LEASE_SECONDS)
            faults = [*_not_all_refused(again, "done"), *look(ledger, JOB, day).faults("done", 1, winner["owner"])]
            if faults:
                raise Broken(*(f"round {day + 1}, once it was done: {fault}" for fault in faults))
            score.hold()
    if not score.overlapping:
        raise Untried("no two claims were ever in flight at once, so nothing raced: try more --rounds on a busier host")
    return f"one winner, then none (up to {most} claims on their way at once)"


def owners() -> list[str]:
    """Return a new owner id for each of the processes."""
    return [new_owner() for _ in range(PROCESSES)]


def only_winner(day: int, answers: list[Answer], attempt: int = 1) -> Answer:
    """Return the answer of the one that won this attempt. Raises Broken unless all others were told that it is busy."""
    winners = [(number, answer) for number, answer in enumerate(answers, 1) if answer["won"]]
    losers = [answer for answer in answers if not answer["won"]]
    where = f"round {day + 1}"
    if len(winners) != 1:
        told = [f"{where}: process {number} won attempt {answer['attempt']}" for number, answer in winners]
        told += [f"{where}: all were told: {'; '.join({answer['sentence'] for answer in losers})}"] if not told else []
        raise Broken(f"{where}: {count(len(winners), 'winner')} of {len(answers)}", *told)
    if winners[0][1]["attempt"] != attempt:
        raise Broken(f"{where}: the winner has attempt {winners[0][1]['attempt']}, not {attempt}")
    if faults := list(_not_all_refused(losers, "busy")):
        raise Broken(*(f"{where}: {fault}" for fault in faults))
    return winners[0][1]


def _not_all_refused(answers: list[Answer], reason: str) -> Iterator[str]:
    """Say of each that was not refused for this reason what it was told."""
    for answer in answers:
        if answer["won"]:
            yield f"one more won it, as attempt {answer['attempt']}"
        elif answer["reason"] != reason:
            yield f"one was told {answer['reason']}, not {reason}: {answer['sentence']}"


def _finish(crew: Crew, day: int, winner: Answer, answers: list[Answer]) -> None:
    member = crew.members[answers.index(winner)]
    answer = member.ask("finish", job=JOB, day=day)
    if not answer.get("finished"):
        raise Broken(f"round {day + 1}: the winner could not finish: {answer['sentence']}")
