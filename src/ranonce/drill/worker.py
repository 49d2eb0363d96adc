"""One process of a drill: it claims, renews and finishes what it is told to, and says what it saw.

A program of its own, so that claims are those of several processes. Each line on its input is a request (JSON), and is
answered by one line. It ends when its input does, which is also when the drill is killed. Its argument is the
descriptor of the start gate: one that is to claim together with others says that it is ready, and waits there for one
byte.
"""

from __future__ import annotations

import json
import os
import sys
import time

from ranonce.drill.asking import ask
from ranonce.drill.locking import take_lock
from ranonce.emission import Emission, message_of
from ranonce.errors import RanonceError
from ranonce.ledger import OpenLedger, outcome_of, outcome_text
from ranonce.lifecycle import Claim, Refusal, Step, Verdict
from ranonce.stores.base import LostReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ranonce.lifecycle import Decision, Event, RunKey
    from ranonce.messages import Message

    Request = dict[str, Any]


def main(gate: int) -> None:
    """Answer until the input ends."""
    worker = _Worker(gate)
    while line := sys.stdin.readline():
        _say(worker.does(json.loads(line)))


def _say(answer: Request) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class _Worker:
    def __init__(self, gate: int) -> None:
        self._gate = gate
        self._claims: dict[tuple[str, int], Claim] = {}
        self._lost_replies = 0
        self._let_go: Callable[[], None] | None = None

    def does(self, request: Request) -> Request:
        """Do what is asked, and return what came of it; an error that was foreseen is an answer, too."""
        what = {
            "open": self._open,
            "claim": self._claim,
            "renew": self._renew,
            "mark": self._mark,
            "finish": self._finish,
            "set the clock": self._set_clock,
            "lock": self._lock,
            "unlock": self._unlock,
        }[request.pop("do")]
        try:
            return what(request)
        except RanonceError as error:
            return {"error": error.code, "sentence": str(error)}

    def _open(self, asked: Request) -> Request:
        self._ledger = OpenLedger.open(
            asked["url"], asked["ledger"], state_folder=asked.get("folder"), wait_seconds=asked["wait"]
        )
        self._count_lost_replies()
        return {"warnings": self._ledger.warnings}

    def _count_lost_replies(self) -> None:
        store = self._ledger.store
        commit = store.commit

        def counted(decision: Decision, key: RunKey, after: int) -> tuple[Event, ...] | None:
            try:
                return commit(decision, key, after)
            except LostReply:
                self._lost_replies += 1
                raise

        setattr(store, "commit", counted)  # noqa: B010 - it is a method to the type checker

    def _claim(self, asked: Request) -> Request:
        job, day = asked["job"], asked["day"]
        request = ask(
            job, day, asked["owner"], asked["lease"], now=asked.get("now"), process=f"drill pid {os.getpid()}"
        )
        if asked.get("together"):
            _say({"ready": True})
            os.read(self._gate, 1)
        before = self._ledger.store.clock().now if asked.get("clock") else None
        began = time.monotonic()
        answer = self._ledger.claim(request)
        ended = time.monotonic()
        told: Request = {"owner": request.owner, "began": began, "ended": ended, "before": before}
        if asked.get("clock"):
            told["after"] = self._ledger.store.clock().now
        if isinstance(answer, Refusal):
            return told | _refusal(answer)
        self._claims[job, day] = answer
        kept = outcome_text(answer, Verdict("done", time.time()))
        return told | {"won": True, "attempt": answer.attempt, "kept": kept, "lost_replies": self._lost_replies}

    def _renew(self, asked: Request) -> Request:
        refusal = self._ledger.renew(self._claims[asked["job"], asked["day"]], "allow")
        return _refusal(refusal) if refusal else {"renewed": True}

    def _finish(self, asked: Request) -> Request:
        """Finish a claim of this process with its messages, or one that was `kept` as text by another."""
        kept = outcome_of(asked["kept"]) if "kept" in asked else None
        claim, verdict = kept or self._verdict(asked)
        refusal = self._ledger.finish(claim, verdict)
        return (_refusal(refusal) if refusal else {"finished": True}) | {"lost_replies": self._lost_replies}

    def _verdict(self, asked: Request) -> tuple[Claim, Verdict]:
        claim = self._claims[asked["job"], asked["day"]]
        return claim, Verdict(asked.get("outcome", "done"), time.time(), messages=self._messages(claim, asked))

    def _mark(self, asked: Request) -> Request:
        """Mark an item of a claim as done, with the messages that were emitted in it."""
        claim, item = self._claims[asked["job"], asked["day"]], asked["item"]
        step = Step(claim.key, claim.window.start, claim.generation, item, claim.attempt, self._ledger.now())
        refusal = self._ledger.mark(claim, step, self._messages(claim, asked, item))
        return _refusal(refusal) if refusal else {"marked": True}

    def _messages(self, claim: Claim, asked: Request, item: str = "") -> tuple[Message, ...]:
        """Return what the attempt emits: a message for each key, which tells of the attempt."""
        body, now = f"attempt {claim.attempt}".encode(), self._ledger.now()
        return tuple(
            message_of(Emission(asked["destination"], body, key=key), claim, now, item=item)
            for key in asked.get("emits", ())
        )

    def _set_clock(self, asked: Request) -> Request:
        """Set the real clock, as this process sees it, `ahead` by so many seconds."""
        ahead, real = asked["ahead"], time.time
        setattr(time, "time", lambda: real() + ahead)  # noqa: B010 - it is a function to the type checker
        return {"ahead": ahead}

    def _lock(self, asked: Request) -> Request:
        """Take what every writer of the job must wait for; `reason` says why that cannot be done here."""
        taken = take_lock(self._ledger.store, asked["job"])
        if isinstance(taken, str):
            return {"reason": taken}
        self._let_go = taken
        return {"locked": True}

    def _unlock(self, _: Request) -> Request:
        if self._let_go:
            self._let_go()
        return {"locked": False}


def _refusal(refusal: Refusal) -> Request:
    return {"won": False, "reason": refusal.reason, "holder": refusal.holder, "sentence": refusal.sentence}


if __name__ == "__main__":
    main(int(sys.argv[1]))
