"""Do locks hold in a folder? Two real processes want the same ones there: never may both have them."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time

from ranonce.doctor import contender
from ranonce.doctor.finding import Check
from ranonce.readable import readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from ranonce.doctor.finding import Finding

#: An answer that takes longer does not come: a lock server is away, or a disk hangs.
DEADLINE_SECONDS = 10.0
PREFIX = ".ranonce-doctor-"
LOCAL_DISK = "put it on a local disk (ext4, xfs, btrfs, zfs)"


def contest(folder: str, name: str, *, database: bool, program: str = contender.__file__) -> Finding:
    """Let two processes take the same locks in a scratch folder inside `folder`, which is removed again.

    `database`: SQLite's lock as well as flock. `program` is what contends.
    """
    what = "the same flock and the same SQLite file" if database else "the same flock"
    check = Check(name, f"let two processes take {what} in {folder}")
    try:
        _sweep(folder)
        scratch = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
    except OSError as error:
        return check.problem(
            f"nothing can be written there: {error.strerror}", "make the folder writable for this user"
        )
    try:
        return _between_two(check, scratch, database, program)
    except _NoAnswer as error:
        return check.problem(str(error), LOCAL_DISK)
    except OSError as error:
        return check.problem(f"the two could not be started: {error.strerror}", "look at memory and process limits")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(folder: str) -> None:
    """Remove the scratch folders of doctors that were killed: none is at work for so long."""
    over = time.time() - 6 * DEADLINE_SECONDS
    for left in glob.glob(os.path.join(glob.escape(folder), f"{PREFIX}*")):
        if os.lstat(left).st_mtime < over:
            shutil.rmtree(left, ignore_errors=True)


def _between_two(check: Check, scratch: str, database: bool, program: str) -> Finding:
    wanted = "flock database" if database else "flock"
    give_up = time.monotonic() + DEADLINE_SECONDS
    with _Contender(program, scratch, database, give_up) as one, _Contender(program, scratch, database, give_up) as two:
        first = one.asked("take")
        if first != wanted:
            return check.problem(f"the first got {first} while nobody else wanted it", LOCAL_DISK)
        second = two.asked("take")
        if second != "nothing":
            return check.problem(f"both had them at once ({second})", LOCAL_DISK)
        if database and two.asked("look") != "1":
            return check.problem("the second did not see what the first had committed", LOCAL_DISK)
        one.kill()
        third = two.asked("take")
        if third != wanted:
            return check.problem(f"after the first was killed, the second got {third}", LOCAL_DISK)
    return check.ok("one had them, the other did not, and got them when the first was killed")


class _NoAnswer(Exception):
    """A process did not answer; the text says so."""


class _Contender:
    """One of the two processes."""

    def __init__(self, program: str, scratch: str, database: bool, give_up: float) -> None:
        self._give_up = give_up
        words = [sys.executable, "-I", program, scratch, *(["database"] if database else [])]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)

    def __enter__(self) -> Self:
        return self

    def asked(self, request: str) -> str:
        """Return the answer to a request. Raises _NoAnswer."""
        assert self._process.stdin and self._process.stdout and self._process.stderr
        with contextlib.suppress(BrokenPipeError):  # it has ended: what it said is read below
            self._process.stdin.write(f"{request}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            left = max(0.0, self._give_up - time.monotonic())
            if not readable([self._process.stdout.fileno()], left):
                raise _NoAnswer(f"no answer in {DEADLINE_SECONDS:g} seconds: a lock there hangs")
            piece = os.read(self._process.stdout.fileno(), 4096)
            if not piece:
                said = self._process.stderr.read().decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
                raise _NoAnswer(f"a process could not work there: {said or 'it ended without a word'}")
            answer += piece
        return answer.decode().strip()

    def kill(self) -> None:
        """End it without a warning, and see it gone."""
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream:
                stream.close()
