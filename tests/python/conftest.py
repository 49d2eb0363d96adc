"""Python jobs in a world of their own: called in this process, or as programs that a scheduler would start."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conftest import Invocation, Ran, World

NOON = datetime(2026, 11, 9, 12, tzinfo=UTC)

#: What every program of these tests begins with.
HEAD = """
import os, sys, time, signal, sqlite3, asyncio, threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from ranonce import *
from ranonce import job

NOON = datetime(2026, 11, 9, 12, tzinfo=UTC)

def effect(run):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{run.job} {run.window} {run.attempt}\\n")

def mark(name):
    Path(os.environ["PIDS"], name).touch()

def wait_for(name):
    while not Path(os.environ["PIDS"], name).exists():
        time.sleep(0.01)
"""


class Programs:
    """Starts Python programs in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.count = 0

    def start(self, code: str, *words: str, env: dict[str, str] | None = None, **popen: Any) -> Invocation:
        """Start a program; it is killed with all its descendants when the test ends."""
        self.count += 1
        path = self.world.root / "work" / f"program{self.count}.py"
        path.write_text(HEAD + textwrap.dedent(code))
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [sys.executable, str(path), *words],
            env={**self.world.env, **(env or {})},
            cwd=self.world.root / "work",
            **{**streams, **popen},
        )
        self.world._started.append(Invocation(process))
        return self.world._started[-1]

    def run(self, code: str, *words: str, env: dict[str, str] | None = None, **popen: Any) -> Ran:
        """Run a program to its end."""
        return self.start(code, *words, env=env, **popen).ends()

    def mark(self, name: str) -> None:
        """Let programs go on that wait for it."""
        (self.world.pids / name).touch()

    def marked(self, name: str) -> Callable[[], bool]:
        """Return the fact that a program has come to a mark."""
        return (self.world.pids / name).exists


@pytest.fixture
def programs(world: World) -> Programs:
    return Programs(world)


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """This process is in the world: what it calls finds the world's ledger."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "EFFECTS", "PIDS"):
        monkeypatch.setenv(name, world.env[name])
    for name in ("RANONCE_STORE", "RANONCE_LEDGER", "RANONCE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return world
