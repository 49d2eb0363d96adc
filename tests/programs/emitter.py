"""A process that runs one window and emits a message for each key with its verdict.

Usage: emitter URL DAY SCOPE BODY START_AT KEY...
"""

from __future__ import annotations

import sys
import time

from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Policy
from ranonce.stores import open_store
from tests.contract.acting import claim, verdict
from tests.contract.emitting import message


def main() -> None:
    url, day, scope, body, start_at, *keys = sys.argv[1:]
    ledger = OpenLedger(open_store(url, wait_seconds=20), folder=None, wait_seconds=20)
    held = claim(ledger, int(day), policy=Policy(overlap="allow"))
    told = tuple(message(ledger, held, key, scope=scope, body=body.encode()) for key in keys)
    while time.monotonic() < float(start_at):
        pass
    assert ledger.finish(held, verdict(messages=told)) is None


if __name__ == "__main__":
    main()
