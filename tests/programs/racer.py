"""A process that races for windows of one job: told rounds on stdin, answers one line each on stdout."""

from __future__ import annotations

import sys
import time

from ranonce.errors import RanonceError
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim
from ranonce.stores import open_store
from tests.contract.acting import ask


def main() -> None:
    ledger = OpenLedger(open_store(sys.argv[1], wait_seconds=20), folder=None, wait_seconds=20)
    print("ready", flush=True)
    for line in sys.stdin:
        day, start_at = line.split()
        while time.monotonic() < float(start_at):
            pass
        try:
            answer = ledger.claim(ask(int(day)))
        except RanonceError as error:
            print(f"error {error}", flush=True)
            continue
        print("won" if isinstance(answer, Claim) else f"lost {answer.reason}", flush=True)


if __name__ == "__main__":
    main()
