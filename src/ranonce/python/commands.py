"""Commands that the configuration declares for a job which is a function: its checks, and its look after a crash."""

from __future__ import annotations

import subprocess

from ranonce.errors import EX_NOT_EXECUTABLE, EX_NOT_FOUND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def exit_status(argv: Sequence[str], cwd: str | None, environment: Mapping[str, str]) -> int:
    """Run a command to its end and return its exit status: 128+n for a signal, 126 and 127 as a shell has them."""
    try:
        ended = subprocess.run(argv, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        return EX_NOT_FOUND
    except OSError:
        return EX_NOT_EXECUTABLE
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode


def did_it(argv: Sequence[str], window: str, cwd: str | None, environment: Mapping[str, str]) -> bool | None:
    """Ask a command whether a crashed attempt did its work: exit 0 it did, 1 it did not, anything else nobody knows."""
    status = exit_status([argument.replace("{window}", window) for argument in argv], cwd, environment)
    return {0: True, 1: False}.get(status)
