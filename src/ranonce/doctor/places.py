"""Where the ledger and this host's state lie: who else may write there, how long it lives, how much room there is."""

from __future__ import annotations

import os
import stat

from ranonce.doctor.finding import Check, few
from ranonce.filesystem import file_system_of
from ranonce.names import shown_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ranonce.doctor.finding import Finding
    from ranonce.filesystem import FileSystem

#: Below this a night of outputs may not fit any more; below the second, not even a verdict.
LITTLE_BYTES, NO_BYTES = 200 << 20, 5 << 20
LITTLE_FILES, NO_FILES = 1000, 20
MOVE = "keep it on a local disk that lives longer than the jobs"


def file_system(
    path: str, name: str, *, accepted: str | None = None, look: Callable[[str], FileSystem] = file_system_of
) -> Iterator[Finding]:
    """Say on which file system a path is, how long that lives, and how much room is left.

    `accepted` is why a place that may be lost was accepted at `init`: then it is only a note.
    """
    check = Check(name, f"looked where {shown_path(path)} lies")
    where = look(path)
    on = f"on {where.kind} (mounted at {where.mount})"
    if where.problem is None:
        lies = check.ok(f"{on}; {_room(path)}")
    elif accepted is not None:
        lies = check.note(f"{on}: {where.problem}, which was accepted ({accepted}); {_room(path)}")
    else:
        lies = check.problem(f"{on}: {where.problem}", MOVE)
    short = list(_short(check, path))
    if short:
        yield from short
        if lies.level == "ok":
            return
    yield lies


def _free(path: str) -> tuple[int, int | None]:
    """Return the bytes and the files for which there is room; None where the file system does not count files."""
    about = os.statvfs(path)
    return about.f_bavail * about.f_frsize, about.f_favail if about.f_files else None


def _room(path: str) -> str:
    try:
        free, files = _free(path)
    except OSError as error:
        return f"how full it is cannot be seen: {error.strerror}"
    return f"{_size(free)}{'' if files is None else f' and room for {files:,} files'} free"


def _short(check: Check, path: str) -> Iterator[Finding]:
    try:
        free, files = _free(path)
    except OSError:
        return
    if free < LITTLE_BYTES:
        level = check.problem if free < NO_BYTES else check.note
        yield level(f"only {_size(free)} free", "free some space there, before verdicts can be recorded no more")
    if files is not None and files < LITTLE_FILES:
        level = check.problem if files < NO_FILES else check.note
        yield level(f"only room for {few(files, 'file')}", "remove files there: inodes run out")


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count = count / 1024  # type: ignore[assignment]  # shown, not counted with
    return f"{count:.1f} TiB"


def owners(paths: list[str], name: str, *, private: bool) -> Iterator[Finding]:
    """Say who else may change what is at these paths, or put something else in their place.

    Looks at each of them and at every folder above. `private`: others should not even read them.
    """
    check = Check(name, f"looked at owner and mode of {shown_path(paths[0])} and what is above")
    found = []
    for path in paths:
        found += list(_of_one(check, path, private))
    for folder in _above(paths[0]):
        found += list(_of_folder(check, folder))
    if found:
        yield from found
    else:
        yield check.ok("nobody else may write there")


def _of_one(check: Check, path: str, private: bool) -> Iterator[Finding]:
    try:
        about = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield check.problem(f"{shown_path(path)} cannot be looked at: {error.strerror}", "look as who owns it")
        return
    mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISLNK(about.st_mode):
        yield check.problem(f"{shown_path(path)} is a symbolic link", "name what it leads to")
        return
    if about.st_uid != os.geteuid():
        owner, me = _user(about.st_uid), _user(os.geteuid())
        yield check.problem(
            f"{shown_path(path)} belongs to {owner}, and you are {me}",
            f"run this and the jobs as {owner}, or: chown {me} {shown_path(path)}",
        )
    if mode & 0o022:
        yield check.problem(f"others may write {shown_path(path)} (mode {mode:04o})", f"chmod go-w {shown_path(path)}")
    elif private and mode & 0o055:
        yield check.note(
            f"others may read {shown_path(path)} (mode {mode:04o}), and outputs of jobs stand there",
            f"chmod go-rwx {shown_path(path)}",
        )


def _of_folder(check: Check, folder: str) -> Iterator[Finding]:
    """A folder further up: who may write it may put another one in place of what is below."""
    try:
        about = os.stat(folder)
    except OSError:
        return
    if about.st_mode & stat.S_ISVTX:
        return  # as in /tmp: nobody may rename what belongs to others
    if about.st_uid not in (os.geteuid(), 0):
        yield check.problem(
            f"the folder {shown_path(folder)} above belongs to {_user(about.st_uid)}, who may replace it",
            "use a folder of your own, or run the jobs as that user",
        )
    elif about.st_mode & stat.S_IWOTH:
        yield check.problem(
            f"everybody may write the folder {shown_path(folder)} above it", f"chmod o-w {shown_path(folder)}"
        )


def _above(path: str) -> Iterator[str]:
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        yield folder


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
