"""A real web server with several workers before one database, as a receiver has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from tests.inbox.databases import Receiver
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60


@contextmanager
def workers(receiver: Receiver, count: int) -> Iterator[tuple[int, int]]:
    """Run a board on a database; yield its port, and the id of the process whose children the workers are."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    server = subprocess.Popen(
        [*command, "--lifespan", "off", "--workers", str(count), "tests.programs.board:application"],
        cwd=ROOT,
        env={**os.environ, "RECEIVER_URL": receiver.url, "RECEIVER_SCHEMA": receiver.schema},
        start_new_session=True,
    )
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                if ask(port, "GET")[0] == 200:
                    break
            except OSError:
                assert server.poll() is None
                time.sleep(0.05)
        yield port, server.pid
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(20)


def ask(port: int, method: str, body: bytes | None = None, key: str | None = None) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, "/comments", body, {"Idempotency-Key": f'"{key}"'} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
