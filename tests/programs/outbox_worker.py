"""Emits or delivers, whatever happens to the server meanwhile: `URL emit NUMBER WINDOWS` or `URL deliver NUMBER FILE`.

An emitter runs windows of its own job and leaves three messages with each verdict. A deliverer writes the key of each
message that it takes into a file, and settles it; it ends when its standard input does and nothing is left.
"""

from __future__ import annotations

import os
import select
import sys
import time

from ranonce import messages as rules
from ranonce.emission import Emission, message_of
from ranonce.errors import StoreUnavailable
from ranonce.lifecycle import Claim
from ranonce.messages import DELIVERED, Answer, Message, Move, Route
from ranonce.stores import open_store
from ranonce.stores.base import Store
from tests.contract.acting import ask, ledger_over, verdict

ROUTE = Route("web", dedupes=3600.0, timeout=600.0)


def emit(url: str, number: int, windows: int) -> None:
    ledger = ledger_over(open_store(url, wait_seconds=5), f"job{number}")
    for day in range(windows):
        asking = ask(day, job=f"job{number}")
        held = until_it_answers(lambda asking=asking: ledger.claim(asking))
        assert isinstance(held, Claim), held
        told = tuple(
            message_of(Emission("web", f"{number} {day} {each}".encode(), key=str(each)), held, 1.0)
            for each in range(3)
        )
        until_it_answers(lambda held=held, told=told: ledger.finish(held, verdict(messages=told)))


def deliver(url: str, number: int, file: int) -> None:
    store = open_store(url, wait_seconds=5)
    sender, done, going_on = f"taker {number}", set(), True
    while going_on or store_has_some(store):
        going_on = going_on and not select.select([0], [], [], 0)[0]
        until_it_answers(lambda: one_round(store, sender, done, file))


def one_round(store: Store, sender: str, done: set[str], file: int) -> None:
    """Take some, and settle all that are ours: those, too, whose taking or settling got no answer."""
    outbox = store.outbox()
    queue = outbox.queue("web", 7)
    taking = rules.take(queue, ROUTE, sender, 7)
    taken: list[Message] = []
    if taking is not None and outbox.exchange("web", take=taking).taken:
        taken = [move.now for move in taking.moves]
    settled: list[Move] = []
    for message in [*taken, *(message for message in queue.sending if message.sender == sender)]:
        if message.key not in done:
            os.write(file, f"{message.key}\n".encode())
            done.add(message.key)
        move = rules.settle(message, message, Answer(DELIVERED, "200"), ROUTE, queue.wall, 0.5)
        assert move is not None
        settled.append(move)
    outbox.exchange("web", settled)


def store_has_some(store: Store) -> bool:
    return bool(until_it_answers(lambda: store.outbox().destinations()))


def until_it_answers(ask):  # type: ignore[no-untyped-def]
    give_up = time.monotonic() + 60
    while True:
        try:
            return ask()
        except StoreUnavailable:
            assert time.monotonic() < give_up


if __name__ == "__main__":
    url, role, number, last = sys.argv[1:]
    print("ready", flush=True)
    if role == "emit":
        emit(url, int(number), int(last))
    else:
        deliver(url, int(number), os.open(last, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
