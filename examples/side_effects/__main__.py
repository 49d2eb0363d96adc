"""Each comment once: a job that is killed, deliverers that are killed, and a web receiver whose workers are killed.

    make example                       or: python -m examples.side_effects

A nightly job comments on forty issues. It is killed in the middle and started again. Two deliverers send what it emits
to a real web server with two workers, over loopback; one deliverer and one worker are killed meanwhile. In the end the
board is asked what it has. The exit status is 0 if every comment is there exactly once, and only then.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.side_effects.comments import ISSUES

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("comments.py")
RANONCE = str(Path(sys.executable).with_name("ranonce"))
WINDOW = "2026-11-09"
PATIENCE_SECONDS = 60.0
CONFIGURATION = """
[jobs.comments]
every = "day"

[destinations.board]
type = "http"
url = "http://127.0.0.1:{port}/comments"
dedupes = "24h"
concurrency = 2
timeout = "5s"          # a deliverer that was killed is waited for twice as long
"""


def say(text: str) -> None:
    """Print what happens."""
    print(text, flush=True)


class World:
    """One folder with a ledger, a configuration and a board."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.environ = {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(ROOT),
            "RECEIVER_DB": str(folder / "board.db"),
        }
        self.config = folder / "config" / "ranonce" / "ranonce.toml"

    def ranonce(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call `ranonce`, and return what it printed."""
        return subprocess.run(
            [RANONCE, *words], env=self.environ, cwd=self.folder, text=True, capture_output=True, check=False
        )

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own."""
        return subprocess.Popen(command, env=self.environ, cwd=ROOT, start_new_session=True)

    def board(self) -> list[tuple[int, str]]:
        """Return what the receiver has."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/comments")
            return [(issue, body) for issue, body in json.loads(connection.getresponse().read())]
        finally:
            connection.close()

    def emitted(self) -> int:
        """Return how many messages the ledger has."""
        told = self.ranonce("outbox", "list", "--all", "--limit", "1000", "--json").stdout
        return len(json.loads(told)["messages"])


@contextmanager
def receiver(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """Run the web server with two workers."""
    uvicorn = (sys.executable, "-m", "uvicorn", "--log-level", "critical", "--workers", "2")
    server = world.start(*uvicorn, "--port", str(world.port), "examples.side_effects.receiver:application")
    try:
        wait_until(lambda: _answers(world), "the receiver answers")
        yield server
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_until(fact: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not fact():
        if time.monotonic() > until:
            raise SystemExit(f"It did not come about that {what}.")
        time.sleep(0.05)


def kill_a_worker(server: subprocess.Popen[bytes]) -> None:
    """Kill one worker of the web server; the server starts another."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for child in children:
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)
            return


def main() -> int:
    """Play it, and count."""
    with tempfile.TemporaryDirectory(prefix="ranonce-example-") as name:
        world = World(Path(name))
        world.ranonce("init")
        with world.config.open("a") as file:
            file.write(CONFIGURATION.format(port=world.port))
        with receiver(world) as server:
            return play(world, server)


def play(world: World, server: subprocess.Popen[bytes]) -> int:
    """The night."""
    run = (sys.executable, str(JOB), "--window", WINDOW)
    deliverers = [world.start(RANONCE, "deliver", "--watch", "--quiet") for _ in range(2)]
    try:
        first = world.start(*run)
        wait_until(lambda: world.emitted() >= 12, "twelve comments are emitted")
        first.kill()
        first.wait()
        say(f"The job was killed after {world.emitted()} of {len(ISSUES)} comments.")
        deliverers[0].kill()
        kill_a_worker(server)
        say("So were one of two deliverers, and one of the receiver's two workers.")
        if world.start(*run).wait() != 0:
            raise SystemExit("The second attempt did not end well.")
        say("The second attempt did what was left.")
        wait_until(lambda: len(world.board()) >= len(ISSUES) + 1, "all comments are on the board")
    finally:
        for deliverer in deliverers:
            deliverer.terminate()
            deliverer.wait()
    say(world.ranonce("deliver").stderr.strip())  # nothing is left
    found = [issue for issue, _ in world.board()]
    once = sorted(found) == [0, *ISSUES]
    say(f"The board has {len(found)} comments on {len(set(found))} things: {'each once' if once else 'NOT each once'}.")
    return 0 if once else 1


def _answers(world: World) -> bool:
    try:
        return world.board() == []
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
