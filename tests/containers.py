"""Containers, as far as a ledger is concerned: a host name, a process 1 and a state folder of its own for each.

They share one kernel and, where a test wants it, a folder. Made of namespaces, so they need no image and no daemon.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.servers import missing
from tests.world import RANONCE, Invocation, World, wait_until

ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--uts")
#: A command that says once which attempt works, and when by the clock of this boot.
ONE_TICK = 'read up rest < /proc/uptime; echo "$RANONCE_ATTEMPT $up" >> "$EFFECTS"'
#: A command that says every 20 ms, until `let_go`, which attempt works, and when by the clock of this boot.
TICKS = (
    'while read up rest < /proc/uptime; echo "$RANONCE_ATTEMPT $up" >> "$EFFECTS"; test -e "$PIDS/hold"; '
    "do sleep 0.02; done"
)


@cache
def alone() -> tuple[str, ...]:
    """Return the words that start a command in namespaces of its own."""
    for prefix in (ALONE, (*ALONE, "--map-root-user")):
        try:
            if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                return prefix
        except FileNotFoundError:
            break
    missing("unshare(1), or the permission to make namespaces")
    raise AssertionError


class Container:
    """Runs commands of a world, each as process 1 of a PID namespace, with the state folder that is the container's."""

    def __init__(self, world: World, name: str, host: str, *, around: tuple[str, ...] = (), options: str = "") -> None:
        self.world = world
        self.state = world.root / f"state of {name}"
        self.env = {"XDG_STATE_HOME": str(self.state)}
        (self.state / "ranonce" / world.ledger).mkdir(parents=True, mode=0o700, exist_ok=True)
        named = ("/bin/sh", "-c", f'hostname {host} && exec "$@"', "sh")
        self._prefix = (*around, *alone(), *options.split(), *named)

    def start(self, *words: str, env: dict[str, str] | None = None) -> Invocation:
        """Start `ranonce WORDS…` in it; it is killed with all its descendants when the test ends."""
        process = subprocess.Popen(
            (*self._prefix, *RANONCE, *words),
            env={**self.world.env, **self.env, **(env or {})},
            cwd=self.world.root / "work",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.world._started.append(Invocation(process))
        return self.world._started[-1]

    def works(self, *options: str, env: dict[str, str] | None = None, sh: str = TICKS) -> Invocation:
        """Start a run whose command ticks until `let_go`, and wait until it works."""
        (self.world.pids / "hold").touch()
        began = len(self.world.effects())
        working = self.start(*self.world.words(*options, sh=sh), env=env)
        wait_until(lambda: len(self.world.effects()) > began or working.process.poll() is not None)
        return working


def first_process(invocation: Invocation) -> int:
    """Return the number, on this side, of the process 1 of what was started in a container."""
    return wait_until(lambda: next(_children(invocation.pid, lambda name: name != "unshare"), None))


def _children(parent: int, wanted: Callable[[str], bool]):
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            name, _, rest = Path(f"/proc/{entry}/stat").read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest.split()[1]) == parent and wanted(name):
            yield int(entry)


def spans(world: World) -> dict[int, tuple[float, float]]:
    """Return from when to when the command of each attempt worked, by the clock of this boot."""
    found: dict[int, tuple[float, float]] = {}
    for line in world.effects():
        attempt, up = int(line.split()[0]), float(line.split()[1])
        first, last = found.get(attempt, (up, up))
        found[attempt] = (min(first, up), max(last, up))
    return found


def never_two_at_once(world: World) -> bool:
    """Say whether each attempt's command had ended when the next began."""
    ordered = [span for _, span in sorted(spans(world).items())]
    return all(before[1] <= after[0] for before, after in pairwise(ordered))
