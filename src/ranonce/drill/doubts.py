"""A receiver that takes a message and hangs up: nobody can know, so it is sent again only where that is no second
effect."""

from __future__ import annotations

from ranonce.drill.invoking import ended
from ranonce.drill.outboxes import emit, key_at, let_time_pass, messages_to
from ranonce.drill.outcome import Broken, count
from ranonce.drill.receiver import HANG_UP, WAIT_AND_ANSWER, WAIT_AND_HANG_UP, Receiver
from ranonce.errors import EX_DONE, EX_PERSON_NEEDED, EX_TRY_LATER
from ranonce.messages import SENT, UNSURE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.drill.invoking import Host
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage
    from ranonce.ledger import OpenLedger

JOB = "doubts"
DEDUPES, FORGETS = "keyed", "unkeyed"
DESTINATIONS = (DEDUPES, FORGETS)
MOST_MESSAGES = 10
AT_NIGHT, LATE = 0, 1  # the windows of those that are hung up on, and of those whose answer comes too late
LATE_KEYS = ("l1", "l2")
COMES_SECONDS = 20.0
EXPECTED = (EX_DONE, EX_TRY_LATER, EX_PERSON_NEEDED)


def unknown_outcome(stage: Stage, score: Score) -> str:
    """Let a receiver take messages and hang up, and answer others when their deliverer has been given up."""
    keys = [f"m{number}" for number in range(min(stage.rounds, MOST_MESSAGES))]
    score.begin(2 * (len(keys) + len(LATE_KEYS)), "a receiver took messages and hung up, or answered too late")
    ledger = stage.declared(JOB)
    with Receiver() as receiver:
        host = stage.host("doubts", destinations="".join(_declared(name, receiver.url) for name in DESTINATIONS))
        host = host.but(no_proxy="127.0.0.1", NO_PROXY="127.0.0.1")
        _hung_up(stage, host, ledger, receiver, keys)
        for name in DESTINATIONS:
            for key in keys:
                score.note(f"hung up on by `{name}`", _judged(ledger, receiver, AT_NIGHT, name, key))
        faults = _late(stage, host, ledger, receiver)
        for name in DESTINATIONS:
            for key in LATE_KEYS:
                score.note(f"late answer of `{name}`", [*faults, *_judged(ledger, receiver, LATE, name, key)])
                faults = []
    return (
        "where it dedupes each was sent again under the same key, and counts as sent; where it does not each was "
        "unsure and not sent again; a late answer counted where it was proof, and undid nothing"
    )


def _declared(name: str, url: str) -> str:
    dedupes = "true" if name == DEDUPES else "false"
    return f'[destinations.{name}]\ntype = "http"\nurl = "{url}"\ndedupes = {dedupes}\nconcurrency = 4\ntimeout = 20\n'


def _deliver(stage: Stage, host: Host) -> None:
    """Deliver what is due. Raises Broken."""
    run = stage.trigger(host, "deliver", *DESTINATIONS)
    if run.ends() not in EXPECTED:
        raise Broken(f"a deliverer did not go well: {run.said}")


def _hung_up(stage: Stage, host: Host, ledger: OpenLedger, receiver: Receiver, keys: list[str]) -> None:
    """Deliver to a receiver that hangs up once on each message, and again as often as anybody would."""
    emit(ledger, JOB, AT_NIGHT, DESTINATIONS, keys)
    for name in DESTINATIONS:
        for key in keys:
            receiver.expect(key_at(JOB, AT_NIGHT, name, key), HANG_UP)
    for _ in range(3):
        _deliver(stage, host)
        for name in DESTINATIONS:
            let_time_pass(ledger, name)


def _late(stage: Stage, host: Host, ledger: OpenLedger, receiver: Receiver) -> list[str]:
    """Give up a deliverer while its receiver makes it wait: others go on, and then it gets its answers."""
    emit(ledger, JOB, LATE, DESTINATIONS, LATE_KEYS)
    keys = {name: [key_at(JOB, LATE, name, key) for key in LATE_KEYS] for name in DESTINATIONS}
    for key in keys[DEDUPES]:
        receiver.expect(key, WAIT_AND_HANG_UP)
    for key in keys[FORGETS]:
        receiver.expect(key, WAIT_AND_ANSWER)
    first = stage.trigger(host, "deliver", *DESTINATIONS)
    everything = [key for some in keys.values() for key in some]
    if not stage.deadline.wait_until(lambda: all(receiver.came[key] for key in everything), COMES_SECONDS):
        return [f"a deliverer sent not all that was due in {COMES_SECONDS:g} s: {first.said}"]
    for _ in range(2):
        for name in DESTINATIONS:
            let_time_pass(ledger, name)
        _deliver(stage, host)
    faults = [
        f"{key} is {state}, and not {right}, when its first deliverer was given up"
        for name, right in ((DEDUPES, SENT), (FORGETS, UNSURE))
        for key, state in _states(ledger, name).items()
        if key in keys[name] and state != right
    ]
    receiver.let_go.set()
    if ended([first])[0] not in EXPECTED:
        faults.append(f"a deliverer whose answers came late did not go well: {first.said}")
    return faults


def _states(ledger: OpenLedger, name: str) -> dict[str, str]:
    return {key: message.state for key, message in messages_to(ledger, name).items()}


def _judged(ledger: OpenLedger, receiver: Receiver, day: int, name: str, own_key: str) -> Iterator[str]:
    """Say what is wrong with one message."""
    key = key_at(JOB, day, name, own_key)
    message, times = messages_to(ledger, name).get(key), receiver.came[key]
    if message is None:
        yield f"{key} has vanished from the outbox"
        return
    right = SENT if name == DEDUPES or day == LATE else UNSURE
    if message.state != right:
        yield f"{key} is {message.state}, and not {right}: {message.error}"
    if name == FORGETS and times != 1:
        yield f"{key} was received {count(times, 'time')} by a destination that does not dedupe"
    if name == DEDUPES and times != 2:
        yield f"{key} was received {count(times, 'time')}, and not twice, after the receiver had hung up"
