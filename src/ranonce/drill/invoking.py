"""`ranonce run` itself, as a scheduler would start it, on hosts that a drill makes up: a state folder for each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time

from ranonce.drill.asking import window_of
from ranonce.drill.outcome import Broken
from ranonce.drill.processes import Started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ranonce.drill.crew import Deadline

#: The effect that must happen once: one line in a file, saying which attempt of which window made it.
EFFECT = 'echo "$RANONCE_JOB $RANONCE_WINDOW $RANONCE_ATTEMPT" >> "$0"'
#: The same, and then work that goes on until a file is taken away.
HELD_EFFECT = f'{EFFECT}; while test -e "$1"; do sleep 0.05; done'


class Host:
    """A host of the drill's own: what it remembers lies in `state`, and its environment names the scratch ledger."""

    def __init__(
        self,
        folder: str,
        name: str,
        wait: float,
        environ: Mapping[str, str],
        url: str,
        ledger: str,
        destinations: str = "",
    ) -> None:
        self.home = os.path.join(folder, name)
        self.ledger = ledger
        self.effects_file = os.path.join(folder, f"{name}.effects")
        config = os.path.join(folder, f"{name}.toml")
        # Whatever the umask: a file that others may write is refused.
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(f"[ledger]\nstore_wait = {wait}\n{destinations}")
        self.env = {
            **{key: value for key, value in environ.items() if not key.startswith("RANONCE_")},
            "XDG_STATE_HOME": self.home,
            "RANONCE_CONFIG": config,
            "RANONCE_STORE": url,
            "RANONCE_LEDGER": ledger,
        }

    @property
    def state(self) -> str:
        """Where it keeps its journal and the lock files of attempts."""
        return os.path.join(self.home, "ranonce", self.ledger)

    def but(self, **env: str) -> Host:
        """Return the same host with some of its environment changed."""
        other = object.__new__(Host)
        other.__dict__.update(self.__dict__)
        other.env = {**self.env, **env}
        return other

    def wipe(self) -> None:
        """Take all away that it remembers."""
        shutil.rmtree(self.home)

    def run_words(self, job: str, day: int, *options: str, held: str | None = None) -> tuple[str, ...]:
        """Return the words of a run whose effect is a line in a file; with `held` it works until that file is gone."""
        window = ("--window", window_of(day).key, "--every", "day", "--overlap", "allow", "--receipt", "all")
        command = ("/bin/sh", "-c", EFFECT if held is None else HELD_EFFECT, self.effects_file)
        return ("run", job, *window, *options, "--", *command, *([held] if held else []))

    def effects(self, job: str, day: int) -> list[int]:
        """Return which attempts of a window had their effect, in order."""
        try:
            with open(self.effects_file, encoding="utf-8") as file:
                lines = [line.split() for line in file]
        except FileNotFoundError:
            return []
        return [int(attempt) for of, window, attempt in lines if (of, window) == (job, window_of(day).key)]


class Triggered:
    """One `ranonce` that was started."""

    def __init__(self, started: Started, deadline: Deadline, command: str = "run") -> None:
        self.started = started
        self._command = f"`ranonce {command}`"
        self._deadline = deadline
        self._since = time.monotonic()
        self.seconds = 0.0

    def ends(self) -> int:
        """Wait for its end and return its exit status. Raises Broken for one that hangs or that ends in a traceback."""
        left = min(self._deadline.patience, self._deadline.left())
        try:
            status = self.started.process.wait(max(left, 0.01))
        except subprocess.TimeoutExpired:
            self._deadline.check()
            raise Broken(f"{self._command} did not end in {left:.0f} seconds: it hangs") from None
        self.seconds = time.monotonic() - self._since
        if "Traceback" in self.started.words:
            raise Broken(f"{self._command} died ({self.started.how}): {self.started.last_words}", dead=1)
        return status

    @property
    def receipt(self) -> dict[str, Any]:
        """The last receipt it wrote; empty where it wrote none."""
        found: dict[str, Any] = {}
        for line in self.started.words.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
        return found

    @property
    def said(self) -> str:
        """What became of it, for evidence."""
        told = self.receipt
        if not told and self._command != "`ranonce run`":  # of the others only their words tell
            return f"{self.started.how}: {self.started.last_words}"
        reason = f" {told['reason']}" if told.get("reason") else ""
        return f"{self.started.how}, {told.get('event', 'no receipt')}{reason}"


def killed(triggered: Triggered) -> bool:
    """Say whether it was killed by SIGKILL. Raises what `ends` does."""
    return triggered.ends() == -9


def ended(triggers: Iterable[Triggered]) -> list[int]:
    """Wait for all of them and return their exit statuses."""
    return [triggered.ends() for triggered in triggers]
