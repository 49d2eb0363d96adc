"""Several workers of a real web server before one database, some of them killed."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.inbox.workers import PATIENCE_SECONDS, ask, workers


def send_until_taken(port: int, issue: int, deadline: float) -> None:
    """Send one comment under its key until it is taken, as a deliverer would."""
    while time.monotonic() < deadline:
        try:
            status, _ = ask(port, "POST", json.dumps({"issue": issue}).encode(), f"issue-{issue}")
            if status == 201:
                return
            assert status in (409, 500, 503), status
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(random.random() / 20)
    raise AssertionError(f"issue {issue} was not taken")


@pytest.mark.parametrize("killed", [False, True])
def test_each_comment_is_there_once_whoever_sends_it_how_often_and_whichever_worker_dies(receiver, killed):
    with workers(receiver, 3) as (port, server):
        deadline = time.monotonic() + PATIENCE_SECONDS
        failed = []

        def sender(seed):
            issues = list(range(25))
            random.Random(seed).shuffle(issues)
            try:
                for issue in issues:
                    send_until_taken(port, issue, deadline)
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=sender, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        kills = 0
        for _ in range(3 if killed else 0):
            time.sleep(0.3)
            children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
            serving = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            if serving:
                os.kill(int(random.choice(serving)), signal.SIGKILL)
                kills += 1
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert not failed
        assert (kills > 0) == killed
    assert sorted(json.loads(text)["issue"] for text in receiver.effects()) == list(range(25))
