"""A commit that happened and whose answer never came: whoever asks again finds what it has, and nothing twice."""

from __future__ import annotations

from ranonce.drill.asking import new_owner
from ranonce.drill.crew import settled
from ranonce.drill.looking import look
from ranonce.drill.outcome import Untried, count
from ranonce.drill.stage import WAIT_SECONDS
from ranonce.storeurl import server_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.drill.crew import Answer, Member
    from ranonce.drill.outcome import Score
    from ranonce.drill.relay import Relay
    from ranonce.drill.stage import Stage
    from ranonce.ledger import OpenLedger

JOB = "replies"
LEASE_SECONDS = 300.0
#: Each costs three processes.
MOST_KILLS = 4
#: A claim takes fewer answers of any server than this; all of them are lost so many times.
MOST_ANSWERS = 30
MOST_SWEEPS = 5


def lost_reply(stage: Stage, score: Score) -> str:
    """Lose the answers to commits, in the way in which that can happen to this kind of store."""
    if server_of(stage.url) is None:
        return _killed_after_commits(stage, score)
    from ranonce.drill.relay import Relay

    with Relay(stage.url, stage.asked.environ) as relay:
        return _answers_lost(stage, score, relay)


def _answers_lost(stage: Stage, score: Score, relay: Relay) -> str:
    """Lose the first answer of the server to a claim, the second to another, and so on; the same with verdicts."""
    ledger = stage.declared(JOB)
    host = stage.host("replies")
    other = stage.member(host)
    (member,) = stage.unopened(1, host)
    opened = _by_way_of(relay, member, "open", url=relay.url, ledger=stage.ledger_id, wait=WAIT_SECONDS)
    if "error" in opened:
        raise Untried(f"the server cannot be reached by way of this host: {opened['sentence']}")
    score.begin(0, "the server's answers to a claim and to its verdict were lost, each in turn, with its connection")
    commits, day = 0, -1
    for do in ("claim", "finish") * min(stage.rounds, MOST_SWEEPS):
        before = commits
        for number in range(1, MOST_ANSWERS):
            stage.deadline.check()
            owner, day = new_owner(), day + 1
            lost, faults, commits = _one_lost(relay, member, do, number, day, owner)
            if not lost:
                break
            score.of += 1
            theirs = settled(other, other.ask("claim", job=JOB, day=day, owner=new_owner(), lease=LEASE_SECONDS))
            if theirs["won"] or theirs["reason"] not in ("busy", "done"):
                faults.append(f"another who asked meanwhile was not refused: {theirs}")
            faults += look(ledger, JOB, day).faults("done" if do == "finish" else "running", 1, owner)
            score.note(f"answer {number} to a {do}", faults)
        if commits == before:
            raise Untried(f"no answer to the commit of a {do} could be caught")
    return f"{count(commits, 'commit')} among them: each asker found what it had, once, and nobody else got the window"


def _one_lost(relay: Relay, member: Member, do: str, number: int, day: int, owner: str) -> tuple[bool, list[str], int]:
    """Claim a window, and finish it if that is what is to be disturbed; lose one answer of the server meanwhile.

    Returns whether there was such an answer, what is wrong with what the asker was told, and how many answers to
    commits it has missed so far.
    """
    relay.lose(number if do == "claim" else None)
    claimed = _by_way_of(relay, member, "claim", job=JOB, day=day, owner=owner, lease=LEASE_SECONDS)
    told, right = claimed, "won"
    if do == "finish" and "error" not in claimed:
        relay.lose(number)
        told, right = _by_way_of(relay, member, "finish", job=JOB, day=day), "finished"
    lost = relay.lost
    relay.lose(None)
    return lost, [] if told.get(right) else [f"its asker was told: {told}"], int(told.get("lost_replies", 0))


def _by_way_of(relay: Relay, member: Member, do: str, **asked: object) -> Answer:
    """Ask a worker whose server is behind the relay."""
    member.send(do, **asked)
    relay.carry_until(member.answers, member.give_up)
    return member.answer()


def _killed_after_commits(stage: Stage, score: Score) -> str:
    """A file gives no answers that could get lost: what is lost is the process, right after its commit."""
    tries = min(stage.rounds, MOST_KILLS)
    tried = "a process was killed right after its claim was committed, and one right after its verdict"
    score.begin(tries, tried)
    ledger = stage.declared(JOB)
    host = stage.host("replies")
    claiming = stage.members(tries, host, failpoint="commit:after-commit")
    finishing = stage.members(tries, host, failpoint="commit:after-commit")
    other = stage.member(host)
    for day in range(tries):
        score.note(f"window {day + 1}", _asked_again(ledger, day, claiming[day], finishing[day], other))
    return "asked again, each found what it had, once; nobody else got the window meanwhile"


def _asked_again(ledger: OpenLedger, day: int, claiming: Member, finishing: Member, other: Member) -> Iterator[str]:
    owner = new_owner()
    mine = {"job": JOB, "day": day, "owner": owner, "lease": LEASE_SECONDS}
    claiming.send("claim", **mine)
    if claiming.answer_or_death() is not None:
        raise Untried("this kind of store has no place right after its commit at which a process can be killed")
    yield from look(ledger, JOB, day).faults("running", 1, owner)
    theirs = settled(other, other.ask("claim", **{**mine, "owner": new_owner()}))
    if theirs["won"] or theirs["reason"] != "busy":
        yield f"another who asked meanwhile was not refused as busy: {theirs}"
    finishing.send("claim", **mine)
    again = finishing.answer_or_death()
    if again is None:
        yield "its owner asked again, and what it has was written a second time"
        return
    if not settled(finishing, again)["won"] or again["attempt"] != 1:
        yield f"its owner asked again and did not find its claim: {again}"
        return
    finishing.send("finish", job=JOB, day=day)
    if finishing.answer_or_death() is not None:
        yield "the one that was to be killed after its verdict was not"
        return
    if not settled(other, other.ask("finish", kept=again["kept"])).get("finished"):
        yield "its owner said its verdict again, and was told that it does not stand"
    seen = look(ledger, JOB, day)
    yield from seen.faults("done", 1, owner)
    if len(seen.named("done")) != 1:
        yield f"the ledger tells of {len(seen.named('done'))} verdicts"
