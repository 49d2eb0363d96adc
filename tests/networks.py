"""Hosts of their own on one machine: a network namespace for each, and a line to the machine that can be cut.

Needs root and iproute2. Everything is named after this process, and what a killed one has left is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

from tests.containers import Container
from tests.servers import missing
from tests.world import World

PREFIX = "rt-"  # names of interfaces are short


class Line:
    """The line between this machine, where a server is, and one host."""

    def __init__(self, number: int) -> None:
        self.namespace = f"{PREFIX}{os.getpid()}-{number}"
        self._far = "line"
        net = f"10.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}"
        #: Where the server is, for this host.
        self.address = f"{net}.{number * 4 + 1}"
        self._here = f"{net}.{number * 4 + 2}"

    def lay(self) -> None:
        """Make the host's network and its line."""
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.namespace, "type", "veth", "peer", "name", self._far, "netns", self.namespace)
        _ip("address", "add", f"{self.address}/30", "dev", self.namespace)
        _ip("link", "set", self.namespace, "up")
        _ip("-n", self.namespace, "address", "add", f"{self._here}/30", "dev", self._far)
        _ip("-n", self.namespace, "link", "set", "lo", "up")
        self.mend()

    def cut(self) -> None:
        """Cut it: what was sent is lost, and nobody is told."""
        _ip("link", "set", self.namespace, "down")

    def mend(self) -> None:
        """Let it work again."""
        _ip("link", "set", self.namespace, "up")
        _ip("-n", self.namespace, "link", "set", self._far, "up")

    def remove(self) -> None:
        """Remove the host's network, and with it the line."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", self.namespace)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "delete", self.namespace)


class Host(Container):
    """A host: a container with a network of its own, which knows the ledger by an address on its own line."""

    def __init__(self, world: World, line: Line, url: str, *, name: str = "box", options: str = "") -> None:
        super().__init__(world, line.namespace, name, around=("ip", "netns", "exec", line.namespace), options=options)
        config = self.state / "config"
        config.mkdir(exist_ok=True)
        self.line = line
        self.env |= {"XDG_CONFIG_HOME": str(config), "RANONCE_STORE": url, "RANONCE_LEDGER": world.ledger}


@contextlib.contextmanager
def lines(count: int) -> Iterator[list[Line]]:
    """Lay lines to so many hosts; they are removed at the end, however the tests end."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        missing("iproute2, or root to use it")
    _sweep()
    laid = [Line(number) for number in range(count)]
    try:
        for line in laid:
            line.lay()
        yield laid
    finally:
        for line in laid:
            line.remove()


def _sweep() -> None:
    """Remove what tests that were killed have left."""
    for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else []:
        pid = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and not os.path.exists(f"/proc/{pid}"):
            _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)
