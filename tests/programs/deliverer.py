"""A process that takes messages, beside others that do the same. It says which it took, one key on each line.

Usage: deliverer URL DESTINATION START_AT MOST
"""

from __future__ import annotations

import os
import sys
import time

from ranonce.messages import Route
from ranonce.stores import open_store
from tests.contract.emitting import settled, take


def main() -> None:
    url, destination, start_at, most = sys.argv[1:]
    store, route = open_store(url, wait_seconds=20), Route(destination, dedupes=3600.0)
    while time.monotonic() < float(start_at):
        pass
    while store.outbox().queue(destination, 1).due:
        taken = take(store, int(most), route=route, sender=str(os.getpid()))
        for message in taken:
            print(message.key, flush=True)
        moves = [move for message in taken if (move := settled(store, message, route=route))]
        assert len(store.outbox().exchange(destination, moves).moved) == len(taken)


if __name__ == "__main__":
    main()
