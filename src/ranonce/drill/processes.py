"""The processes of a drill: this very package, found where it was found, in an environment of the drill's own.

Each leads a process group, so that a Ctrl-C at the terminal comes to the drill alone, which ends them: these, and no
others. What they write to stderr goes into a file, since a pipe that nobody reads would hang them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

from ranonce.record import Record
from ranonce.signals import STOP_SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO

#: Starts a module of this package in a process that finds its modules where this one does, and nowhere else: neither
#: the folder it stands in nor PYTHON… variables have a say.
BOOT = """\
import json, runpy, sys
sys.path[:], sys.argv[:] = json.loads(sys.argv[1]), sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
#: A process that was killed is gone after this time, unless a disk hangs.
GONE_SECONDS = 5.0


def program() -> tuple[str, ...]:
    """Return the words that start a module of this package, before its name."""
    return (sys.executable, "-I", "-c", BOOT, json.dumps([os.path.abspath(place) for place in sys.path]))


class Started(Record):
    """A process that was started, and the file its errors go to."""

    process: subprocess.Popen[bytes]
    errors: str

    @property
    def words(self) -> str:
        """What it has written to stderr so far."""
        with open(self.errors, "rb") as file:
            return file.read().decode("utf-8", "backslashreplace")

    @property
    def last_words(self) -> str:
        """The last line of that, which in a traceback says what happened."""
        return self.words.strip().rpartition("\n")[2] or "it said nothing"

    @property
    def how(self) -> str:
        """How it ended."""
        code = self.process.returncode
        if code is None:
            return "still works"
        return f"exit {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"

    def kill(self) -> None:
        """End it without a warning, and see it gone."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GONE_SECONDS)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put a signal that tells the drill to end off: one between two steps here would leave what nobody knows of.

    A process that is started within inherits that. `ranonce run` undoes it for itself and its command, and a worker has
    no use for such signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Processes:
    """All that a drill has started; a context manager that ends them."""

    def __init__(self, folder: str, words: tuple[str, ...]) -> None:
        self._folder = folder
        self.words = words  # start a module of this package
        self._started: list[Started] = []
        self._count = 0

    def start(
        self, *words: str, env: Mapping[str, str], stdin: int | IO[bytes], stdout: int, inherit: tuple[int, ...] = ()
    ) -> Started:
        """Start a module of this package (its name and its arguments)."""
        self._count += 1
        errors = os.path.join(self._folder, f"errors-{self._count}")
        with open(errors, "wb") as file, uninterrupted():
            process = subprocess.Popen(
                [*self.words, *words],
                env=env,
                cwd=self._folder,
                stdin=stdin,
                stdout=stdout,
                stderr=file,
                pass_fds=inherit,
                process_group=0,
                bufsize=0,
            )
            self._started.append(Started(process, errors))
        return self._started[-1]

    def end(self) -> None:
        """End those that still work, and forget them all."""
        for started in self._started:
            started.process.kill()
        while self._started:
            started = self._started.pop()
            started.kill()
            for stream in (started.process.stdin, started.process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            with contextlib.suppress(OSError):
                os.unlink(started.errors)
