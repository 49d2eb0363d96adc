"""Clocks that are set: leases go by the store's clock, and nobody is robbed because somebody's real one is wrong."""

from __future__ import annotations

from ranonce.drill.asking import NOON, new_owner, window_of
from ranonce.drill.crew import settled
from ranonce.drill.looking import look
from ranonce.drill.outcome import Broken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.drill.crew import Answer, Member
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage

JOB = "clocks"
HOUR = 3600.0
LEASE_SECONDS = 120.0
SHORT_LEASE_SECONDS = 1.0
DAYS_AHEAD = 400


def clock_jump(stage: Stage, score: Score) -> str:
    """Let windows that are worked on be wanted from hosts whose clock is wrong, and as if it were another year."""
    tries = stage.rounds
    tried = "windows that were worked on were wanted with the clock set an hour ahead, an hour back, and another --now"
    score.begin(2 * tries, tried)
    ledger = stage.declared(JOB)
    host = stage.host("clocks")
    holder, other, ahead, behind = stage.members(4, host)
    ahead.ask("set the clock", ahead=HOUR)
    behind.ask("set the clock", ahead=-HOUR)
    for day in range(tries):
        mine, later = _claimed(holder, day, LEASE_SECONDS), window_of(day + DAYS_AHEAD).start + NOON
        faults = [
            *_robbed(ahead, "its clock is an hour ahead", day, mine),
            *_robbed(behind, "its clock is an hour behind", day, mine),
            *_robbed(other, f"--now is {DAYS_AHEAD} days ahead", day, mine, now=later),
            *look(ledger, JOB, day).faults("running", 1, mine["owner"]),
        ]
        score.note(f"window {day + 1}", faults)
    first = 2 * tries
    claimed = [_claimed(ahead, day, SHORT_LEASE_SECONDS)["owner"] for day in range(first, first + tries)]
    over = max(each.lease.expires for each in ledger.store.leases(JOB) if each.lease.owner in claimed)
    stage.deadline.sleep(over - ledger.store.clock().now)
    for day in range(first, first + tries):
        faults = [] if (told := _wanted(other, day))["won"] else [f"still refused after the lease: {told['sentence']}"]
        score.note(f"window {day + 1}, claimed under a clock an hour ahead", faults)
    lease = f"{SHORT_LEASE_SECONDS:g} s"
    return f"nobody was robbed; what was claimed an hour ahead was held for its lease of {lease}, and no longer"


def _claimed(member: Member, day: int, lease: float) -> Answer:
    answer = settled(member, member.ask("claim", job=JOB, day=day, owner=new_owner(), lease=lease))
    if not answer["won"]:
        raise Broken(f"window {day + 1} was new, and could not be claimed: {answer['sentence']}")
    return answer


def _wanted(member: Member, day: int, **asked: object) -> Answer:
    return settled(member, member.ask("claim", job=JOB, day=day, owner=new_owner(), lease=LEASE_SECONDS, **asked))


def _robbed(member: Member, where: str, day: int, mine: Answer, **asked: object) -> Iterator[str]:
    answer = _wanted(member, day, **asked)
    if answer["won"]:
        yield f"taken over from one that lives (attempt {answer['attempt']}) where {where}"
    elif (answer["reason"], answer["holder"]) != ("busy", mine["owner"]):
        yield f"where {where}: refused as {answer['reason']}, not as busy: {answer['sentence']}"
