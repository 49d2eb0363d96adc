"""Several workers of a real web server before one database, some of them killed."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import free_port

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60


@contextmanager
def workers(folder: Path, count: int):
    """Run the example's receiver; yield its port and the ids of its workers."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    server = subprocess.Popen(
        [*command, "--workers", str(count), "examples.side_effects.receiver:application"],
        cwd=ROOT,
        env={**os.environ, "RECEIVER_DB": str(folder / "board.db")},
        start_new_session=True,
    )
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                if ask(port, "GET", None)[0] == 200:
                    break
            except OSError:
                assert server.poll() is None
                time.sleep(0.05)
        yield port, server.pid
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(20)


def ask(port: int, method: str, issue: int | None, key: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        body = None if issue is None else json.dumps({"issue": issue, "body": "seen"})
        connection.request(method, "/comments", body, {"Idempotency-Key": f'"{key}"'} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def send_until_taken(port: int, issue: int, deadline: float) -> None:
    """Send one comment under its key until it is taken, as a deliverer would."""
    while time.monotonic() < deadline:
        try:
            status, _ = ask(port, "POST", issue, f"issue-{issue}")
            if status == 201:
                return
            assert status in (409, 500, 503), status
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(random.random() / 20)
    raise AssertionError(f"issue {issue} was not taken")


@pytest.mark.parametrize("killed", [False, True])
def test_each_comment_is_there_once_whoever_sends_it_how_often_and_whichever_worker_dies(tmp_path, killed):
    with workers(tmp_path, 3) as (port, server):
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
        _, board = ask(port, "GET", None)
    assert [issue for issue, _ in json.loads(board)] == list(range(25))
