"""May this file decide what is run? Only if nobody but its owner, who is the caller or root, can have written it."""

from __future__ import annotations

import os
import stat

from ranonce.errors import ConfigError
from ranonce.names import shown_path

MAX_BYTES = 1 << 20


def read_trusted(path: str) -> bytes:
    """Return the content of a file that nobody but its owner, who is the caller or root, may have written.

    Looks at the file, at a symbolic link that leads to it, and at the folder each of them lies in; a read-only mount
    excuses modes, because nobody may write there. Never waits for a pipe. Raises ConfigError.
    """
    try:
        _check_owner(path, os.lstat(path))
        real = os.path.realpath(path)
        found = os.stat(real)
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise ConfigError(f"{shown_path(path)} is {kind}.", "Name the configuration file itself.")
        with open(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            _check_owner(path, found)
            _check_writers(path, found)
            for folder in dict.fromkeys((os.path.dirname(path), os.path.dirname(real))):
                check_folder(folder)
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{shown_path(path)} cannot be read: {getattr(error, 'strerror', None) or error}.",
            "Make it readable for this user, or name another with --config.",
        ) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{shown_path(path)} is larger than 1 MiB.", "That is no configuration: name another with --config."
        )
    return data


def check_folder(folder: str) -> None:
    """Refuse a folder in which somebody else could put another file in place of this one.

    The sticky bit protects it, as in /tmp. Raises ConfigError, and OSError for a folder that is not there.
    """
    about = os.stat(folder)
    _check_owner(folder, about)
    if not about.st_mode & stat.S_ISVTX:
        _check_writers(folder, about)


def _check_owner(path: str, about: os.stat_result) -> None:
    if about.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{shown_path(path)} belongs to {_user(about.st_uid)}, who could choose what {_user(os.geteuid())} runs.",
            f"Run `chown {_user(os.geteuid())} {shown_path(path)}`, or use a file of your own with --config.",
        )


def _check_writers(path: str, about: os.stat_result) -> None:
    others = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others and not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise ConfigError(
            f"{shown_path(path)} belongs to {_user(about.st_uid)} and has mode {stat.S_IMODE(about.st_mode):04o}: "
            "others may write it, and so choose what is run.",
            f"Run `chmod go-w {shown_path(path)}`.",
        )


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
