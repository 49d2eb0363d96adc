"""Could the declared jobs be started? Their commands, folders and files, looked at without starting anything."""

from __future__ import annotations

import os
import stat
import time

from ranonce.calendars import NEVER
from ranonce.doctor.finding import Check, few, step_of
from ranonce.errors import RanonceError
from ranonce.jobspec import resolve_version
from ranonce.names import shown_path
from ranonce.windows import Schedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ranonce.config import Config
    from ranonce.doctor.finding import Finding
    from ranonce.jobspec import JobSpec

#: What a command gets to search for its program under cron. Source: crontab(5).
CRON_PATH = "/usr/bin:/bin"
#: How much of a script is read to find the program that its first line names. Source: execve(2), BINPRM_BUF_SIZE.
FIRST_LINE_BYTES = 256


def declared(config: Config, names: list[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the jobs of the configuration: all, or those that are named."""
    check = Check("job", "looked for its schedule, command, folder and files")
    fine = 0
    for name in sorted(config.jobs.keys() | config.broken.keys()):
        if names and name not in names:
            continue
        if name in config.broken:
            error = config.broken[name]
            yield check.of(name).problem(error.sentence, step_of(error.next_step))
            continue
        found = list(_job(check.of(name), config.jobs[name], environ))
        fine += not found
        yield from found
    if fine:
        yield check.ok(f"{few(fine, 'declared job')} could be started")


def _job(check: Check, spec: JobSpec, environ: Mapping[str, str]) -> Iterator[Finding]:
    yield from _schedule(check, spec)
    folder = spec.cwd or "/"
    if not os.path.isdir(folder) or not os.access(folder, os.X_OK):
        wrong = "cannot be entered" if os.path.isdir(folder) else "is not there"
        yield check.problem(f"its folder {shown_path(folder)} {wrong}", "make it, or change the job's cwd")
        return
    if not spec.command:
        yield check.note("it has no command", "whoever triggers it must give one after --")
    for words in (spec.command, spec.reconcile):
        if words:
            yield from program(check, words[0], folder, environ)
    try:
        resolve_version(spec, folder)
    except RanonceError as error:
        yield check.problem(error.sentence, step_of(error.next_step))
    if "/" in spec.receipt and not os.access(os.path.dirname(spec.receipt), os.W_OK | os.X_OK):
        where = shown_path(os.path.dirname(spec.receipt))
        yield check.problem(f"its receipts go to {where}, where nothing can be written", "make that folder writable")


def _schedule(check: Check, spec: JobSpec) -> Iterator[Finding]:
    assert spec.every is not None, "a declared job has a schedule"
    if spec.every == NEVER:
        return
    try:
        Schedule(spec.every, spec.tz, spec.dialect).window_at(time.time())
    except RanonceError as error:
        yield check.problem(error.sentence, step_of(error.next_step))


# --- programs -------------------------------------------------------------------------------------------------------


def program(check: Check, word: str, folder: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Say what would keep the first word of a command from being executed."""
    if "{window}" in word:
        return  # another program for each window
    path = os.path.join(folder, word) if "/" in word else _found(word, environ.get("PATH", os.defpath))
    if path is None:
        yield check.problem(f"its command {word!r} is nowhere in PATH", "install it, or give its full path")
        return
    yield from _file(check, path)
    if "/" not in word and _found(word, CRON_PATH) is None:
        yield check.note(
            f"its command {word!r} is found as {shown_path(path)} here, and not in cron's PATH ({CRON_PATH})",
            "give its full path",
        )


def _file(check: Check, path: str) -> Iterator[Finding]:
    shown = shown_path(path)
    try:
        about = os.stat(path)
    except OSError as error:
        yield check.problem(f"its command {shown} is not there: {error.strerror}", "put it there, or name another")
        return
    if not stat.S_ISREG(about.st_mode):
        yield check.problem(f"its command {shown} is no file", "name the program itself")
    elif not os.access(path, os.X_OK):
        step = (
            f"chmod +x {shown}" if not about.st_mode & 0o111 else "let this user execute it, on a mount without noexec"
        )
        yield check.problem(f"its command {shown} may not be executed", step)
    else:
        yield from _first_line(check, path)


def _first_line(check: Check, path: str) -> Iterator[Finding]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            begin = file.read(FIRST_LINE_BYTES)
    except OSError:
        return  # executable and not readable: allowed, and nothing more can be seen
    if not begin.startswith(b"#!"):
        if not begin.startswith(b"\x7fELF"):
            yield check.note(
                f"its command {shown_path(path)} is neither a program nor a script with a first line like #!/bin/sh",
                "give it one: no shell reads commands here",
            )
        return
    line = begin[2:].partition(b"\n")[0]
    words = os.fsdecode(line).split(maxsplit=1)
    interpreter = words[0] if words else ""
    if interpreter.endswith("\r") or line.endswith(b"\r"):
        yield check.problem(
            f"the first line of {shown_path(path)} ends as on Windows (CR LF), so its interpreter is not found",
            f"sed -i 's/\\r$//' {shown_path(path)}",
        )
    elif not os.access(interpreter, os.X_OK):
        yield check.problem(
            f"the first line of {shown_path(path)} names {interpreter!r}, which is not there",
            "install it, or correct it",
        )


def _found(word: str, path: str) -> str | None:
    import shutil

    return shutil.which(word, path=path)
