"""Real processes, one key, all at once: over fresh, failed, expired and done runs there is 1, 1, 1 and 0 winner."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.contract.acting import START, claim, ledger_over, verdict

DAY = 86400


class Racers:
    """Processes that wait for the next round."""

    def __init__(self, url: str, count: int) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.programs.racer", url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        for process in self.processes:
            assert process.stdout.readline() == "ready\n"

    def race(self, day: int) -> Counter[str]:
        start_at = time.monotonic() + 0.02
        for process in self.processes:
            process.stdin.write(f"{day} {start_at}\n")
            process.stdin.flush()
        return Counter(process.stdout.readline().strip() for process in self.processes)

    def end(self) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            assert process.wait(20) == 0
            process.stdout.close()


@pytest.mark.parametrize(("count", "rounds"), [(8, 50), (40, 50)])
def test_racing_processes_have_one_winner_or_none(shared, count, rounds):
    ledger = ledger_over(shared.open())
    racers = Racers(shared.url, count)
    day = 0
    for number in range(rounds):
        state = ("fresh", "failed", "expired", "done")[number % 4]
        day += 1
        if state != "fresh":
            held = claim(ledger, day)
            if state == "expired":
                shared.pass_time(ledger.store, 301)
            else:
                ledger.finish(held, verdict(state))
        answers = racers.race(day)
        expected = Counter({"won": 0 if state == "done" else 1})
        expected["lost done" if state == "done" else "lost busy"] = count - expected["won"]
        assert answers == +expected, (state, answers)
        if state != "done":
            winner = ledger.store.runs("job", START + day * DAY, START + day * DAY + 1)[0]
            assert winner.attempt == (1 if state == "fresh" else 2)
            shared.pass_time(ledger.store, 301)  # the winner of this round holds nothing up
            assert ledger.release(winner.key, winner.window_start, "done", "the race is over", by="a test") is None
    racers.end()
    starts = [e for d in range(day + 1) for e in ledger.store.events("job", START + d * DAY, START + d * DAY + 1)]
    assert len({e.seq for e in starts}) == len(starts)
