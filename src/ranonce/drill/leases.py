"""Leases: nobody is robbed while one lives, somebody gets the window after it, and who lost it writes no more."""

from __future__ import annotations

import contextlib
import os
import signal

from ranonce.drill.asking import new_owner
from ranonce.drill.crew import most_in_flight, settled
from ranonce.drill.looking import look
from ranonce.drill.outcome import Broken, Untried
from ranonce.drill.races import PROCESSES, only_winner, owners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.drill.crew import Answer, Member
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage
    from ranonce.ledger import OpenLedger

#: A lease that is long enough for what happens within it; on a host too slow for that, the next is tried.
LEASES_SECONDS = (2.0, 6.0, 18.0)


class TooSlow(Exception):
    """What should have happened within a lease took longer than that: it says nothing."""


def no_early_take_over(stage: Stage, score: Score) -> str:
    """Let a second host want windows in the middle of their leases, and after the first end of renewed ones."""
    tried = "a second process wanted it in the middle of its lease, and after its first end when it had been renewed"
    score.begin(stage.rounds, tried)
    for number, lease in enumerate(LEASES_SECONDS):
        with contextlib.suppress(TooSlow):
            _defended(stage, score, f"early-{number}", lease)
            return f"refused as busy, with the holder's name, each time (leases of {lease:g} s)"
    raise Untried(f"this host is so slow that leases of {LEASES_SECONDS[-1]:g} s are over before they are looked at")


def _defended(stage: Stage, score: Score, job: str, lease: float) -> None:
    ledger = stage.declared(job)
    holder, other = stage.members(2, stage.host("leases"))
    held = _hold(stage, holder, job, lease)
    stage.deadline.sleep(lease * 0.3)
    faults: dict[int, list[str]] = {day: list(_robbed(other, job, day, held[day], lease)) for day in held}
    if any(faults.values()):  # it cannot be renewed any more, and need not
        for day, found in faults.items():
            score.note(f"window {day + 1}", found)
        return
    renewed = {day: _renewed(ledger, holder, job, day) for day in held}
    last = max(answer["before"] for answer in held.values()) + lease
    stage.deadline.sleep(last - ledger.store.clock().now + 0.1)
    for day, at in renewed.items():
        faults[day] += _robbed(other, job, day, held[day] | {"before": at}, lease)
    for day, found in faults.items():
        score.note(f"window {day + 1}", found)


def _hold(stage: Stage, holder: Member, job: str, lease: float) -> dict[int, Answer]:
    """Let a process claim a window for each round; return what it was told."""
    held = {}
    for day in range(stage.rounds):
        answer = settled(holder, holder.ask("claim", job=job, day=day, owner=new_owner(), lease=lease, clock=True))
        if not answer["won"]:
            raise Broken(f"window {day + 1} was new, and could not be claimed: {answer['sentence']}")
        held[day] = answer
    return held


def _renewed(ledger: OpenLedger, holder: Member, job: str, day: int) -> float:
    """Renew a claim; return the store's clock just before."""
    before = ledger.store.clock().now
    answer = settled(holder, holder.ask("renew", job=job, day=day))
    if not answer.get("renewed"):
        raise Broken(f"window {day + 1}: its holder could not renew it: {answer['sentence']}")
    return before


def _robbed(other: Member, job: str, day: int, held: Answer, lease: float) -> Iterator[str]:
    """Let another want the window; say what is wrong unless it is refused, with the holder's name, within the lease.

    `held["before"]` is the store's clock before the holder asked: its lease lives at least until then and a lease more.
    """
    answer = settled(other, other.ask("claim", job=job, day=day, owner=new_owner(), lease=lease, clock=True))
    left = held["before"] + lease - answer["after"]
    if left <= 0:
        raise TooSlow(job)
    if answer["won"]:
        yield f"taken over (attempt {answer['attempt']}) {left:.2f} s before the lease was over"
    elif (answer["reason"], answer["holder"]) != ("busy", held["owner"]):
        yield f"refused as {answer['reason']} of {answer['holder']}, not as busy of {held['owner']}"


def take_over(stage: Stage, score: Score) -> str:
    """Kill a process that holds windows and left no trace on its host; after their leases one of many gets each."""
    job, lease = "take-over", LEASES_SECONDS[0]
    tried = (
        f"its holder was killed and left no trace on its host, and {PROCESSES} wanted it after its lease of {lease:g} s"
    )
    score.begin(stage.rounds, tried)
    score.overlapping = 0
    ledger = stage.declared(job)
    host = stage.host("leases")
    holder = stage.member(host)
    with stage.crew(PROCESSES, host) as crew:
        held = _hold(stage, holder, job, lease)
        holder.started.kill()
        over = max(each.lease.expires for each in ledger.store.leases(job))
        for day in held:
            stage.deadline.sleep(over - ledger.store.clock().now)
            answers = crew.race(owners(), job=job, day=day, lease=300.0, clock=True)
            winner = only_winner(day, answers, attempt=2)
            score.overlapping += most_in_flight(answers) > 1
            early = held[day]["before"] + lease - winner["after"]
            faults = list(look(ledger, job, day).faults("running", 2, winner["owner"]))
            if early > 0:
                faults.append(f"taken over {early:.2f} s before its lease was over")
            if not look(ledger, job, day).named("expired"):
                faults.append("the crash was not recorded")
            if not score.note(f"window {day + 1}", faults):
                break
    return "one got it, as attempt 2, and the crash is recorded"


def stale_finish(stage: Stage, score: Score) -> str:
    """Pause a process beyond its leases; when it goes on, what it has to say of windows others have is refused."""
    job, lease = "stale", LEASES_SECONDS[0]
    tried = "its holder was paused beyond the lease, another took over, and the first renewed and finished, twice"
    score.begin(stage.rounds, tried)
    ledger = stage.declared(job)
    first, second = stage.members(2, stage.host("leases"))
    held = _hold(stage, first, job, lease)
    os.kill(first.started.process.pid, signal.SIGSTOP)
    over = max(each.lease.expires for each in ledger.store.leases(job))
    stage.deadline.sleep(over - ledger.store.clock().now)
    taken = {}
    for day in held:
        answer = settled(second, second.ask("claim", job=job, day=day, owner=new_owner(), lease=300.0))
        if not answer["won"]:
            raise Broken(f"window {day + 1} could not be taken over after its lease: {answer['sentence']}")
        taken[day] = answer["owner"]
    os.kill(first.started.process.pid, signal.SIGCONT)
    for day in held:
        faults = [
            *_accepted(first, "renew", job, day),
            *_accepted(first, "finish", job, day),
            *look(ledger, job, day).faults("running", 2, taken[day]),
        ]
        if not settled(second, second.ask("finish", job=job, day=day)).get("finished"):
            faults.append("the second, whose window it is, could not finish it")
        faults += [*_accepted(first, "finish", job, day), *look(ledger, job, day).faults("done", 2, taken[day])]
        if len(look(ledger, job, day).named("lost")) < 2:  # more, where an answer to one was lost
            faults.append("its late verdicts were not recorded as lost")
        score.note(f"window {day + 1}", faults)
    return "refused and recorded each time, and the window stayed the second's"


def _accepted(member: Member, do: str, job: str, day: int) -> Iterator[str]:
    answer = settled(member, member.ask(do, job=job, day=day))
    if answer.get("reason") != "lost":
        yield f"the first, whose lease was over, could still {do}: {answer}"
