"""Edit the configuration file: `init` writes `[ledger]`, `add` writes `[jobs.NAME]`; all else stays as it is.

Comments, order and spacing are kept (tomlkit, loaded here and nowhere else). A change is read, made, checked and
renamed into place under a lock on the folder, so two of them never lose one another, a crash leaves the old file or
the new one, and a file that could not be read back is never written.
"""

from __future__ import annotations

import fcntl
import os
import time

from ranonce import configread
from ranonce.errors import ConfigError
from ranonce.jobspec import DURATIONS, VersionFile
from ranonce.names import check_job_name, shown_path
from ranonce.record import Record
from ranonce.storeurl import StoreText, public, same_place, store_url
from ranonce.timefmt import format_instant, shown
from ranonce.trust import check_folder, read_trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Fit = Callable[[object], object]
    Change = Callable[[Any, Fit], None]  # the same change is made to plain tables and to tomlkit's

LOCK_WAIT = 10.0  # seconds; an edit takes milliseconds


class _Seen(Record):
    """The file as it was read: what tells whether somebody else has changed it since."""

    data: bytes
    about: tuple[int, int, int] | None


def write_ledger(path: str, store: str, ledger_id: str, environ: Mapping[str, str]) -> None:
    """Write the address and the id of the ledger into the file, which is created if it is not there.

    An address that is already written in another way (relative, with `${NAME}`) stays; a password is never written.
    Raises ConfigError.
    """

    def change(tables: Any, fit: Fit) -> None:
        ledger = _subtable(tables, "ledger")
        written = ledger.get("store")
        if not (isinstance(written, str) and _means(written, store, path, environ)):
            ledger["store"] = public(store)
        ledger["id"] = ledger_id

    edit(path, change, environ)


def write_job(path: str, name: str, settings: Mapping[str, object], environ: Mapping[str, str]) -> None:
    """Write one job into the file, in place of what stood there for it; other jobs stay as they are.

    `settings` are fields of `JobSpec` in its types. Raises ConfigError, and UsageError for the name.
    """
    check_job_name(name)
    wanted = {field: toml_value(field, value) for field, value in settings.items() if value is not None}

    def change(tables: Any, fit: Fit) -> None:
        jobs = _subtable(tables, "jobs")
        if name not in jobs:  # whole, because tomlkit loses sight of an empty table between others
            jobs[name] = {key: fit(value) for key, value in wanted.items()}
            return
        job = jobs[name]
        for key in [key for key in job if key not in wanted]:
            del job[key]
        for key, value in wanted.items():
            if key not in job or job[key] != value:
                job[key] = fit(value)

    edit(path, change, environ)


def drop_job(path: str, name: str, environ: Mapping[str, str]) -> None:
    """Take one job out of the file; all else stays as it is. Raises ConfigError."""

    def change(tables: Any, _: Fit) -> None:
        jobs = tables.get("jobs", {})
        if name in jobs:
            del jobs[name]
        if "jobs" in tables and not jobs:
            del tables["jobs"]

    edit(path, change, environ)


def toml_value(field: str, value: object) -> object:
    """Return the value of a setting as it is written in the file: times like "2h", tuples as lists."""
    if field in DURATIONS and isinstance(value, (int, float)):
        return _time(value)
    if field == "since" and isinstance(value, (int, float)):
        return format_instant(value)
    if isinstance(value, VersionFile):
        return {"file": value.file}
    if field == "checks" and isinstance(value, tuple):
        return [_check_table(check) for check in value]
    return list(value) if isinstance(value, tuple) else value


def edit(path: str, change: Change, environ: Mapping[str, str]) -> None:
    """Change the tables of the file with `change`, and put the result in its place. Raises ConfigError."""
    path = os.path.abspath(path)
    real = os.path.realpath(path)
    if os.path.islink(path) and not os.path.exists(real):
        raise ConfigError(f"{shown_path(path)} is a link to nothing.", "Remove it, or create what it names.")
    folder = os.path.dirname(real)
    try:
        _make_folders(folder)
        check_folder(folder)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(lock, folder)
            seen = _read(path, real)
            data = _changed(path, seen.data, change, environ)
            if data != seen.data or seen.about is None:
                _replace(real, data, seen, lock)
        finally:
            os.close(lock)
    except OSError as error:
        raise ConfigError(
            f"{shown_path(path)} cannot be written: {error.strerror or error}.",
            "Make its folder writable for this user, or name another file with --config.",
        ) from None


def _changed(path: str, data: bytes, change: Change, environ: Mapping[str, str]) -> bytes:
    """Return the new content, after making sure that it says what was wanted and nothing else."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    before = configread.parse_document(path, data, environ)
    wanted = tomlkit.parse(before.text).unwrap()
    try:
        change(wanted, lambda value: value)
        tables = tomlkit.parse(before.text)
        change(tables, _inline)
        result = tomlkit.dumps(tables).encode("utf-8")
    except UnicodeEncodeError as error:
        line = error.object[: error.start].rpartition("\n")[2] + error.object[error.start :].partition("\n")[0]
        raise ConfigError(
            f"{shown(line)} is not UTF-8, so it cannot stand in {shown_path(path)}.",
            "Put the command into a script with a plain name.",
        ) from None
    except (TOMLKitError, TypeError, ValueError, AttributeError) as error:
        raise _by_hand(path, str(error)) from None
    after = configread.parse_document(path, result, environ)
    if after.tables != wanted:
        raise _by_hand(path, "its tables are written in a way we cannot edit")
    configread.ledger_table(after)
    configread.job_specs(after)
    return result


def _by_hand(path: str, reason: str) -> ConfigError:
    return ConfigError(f"{shown_path(path)} could not be edited: {reason}.", "Edit it by hand.")


def _read(path: str, real: str) -> _Seen:
    about = _about(real)
    return _Seen(b"" if about is None else read_trusted(path), about)


def _about(real: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(real)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _replace(real: str, data: bytes, seen: _Seen, folder: int) -> None:
    """Put the new content in place of the old, with its mode and owner, durably and at once."""
    new = f"{os.path.dirname(real)}/.{os.path.basename(real)}.new"
    if os.path.lexists(new):
        os.unlink(new)  # left by a crash: whoever writes one holds the lock, and we do
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            if seen.about is not None:
                old = os.stat(real)
                if old.st_uid != os.geteuid():
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, old.st_mode & 0o777)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if _about(real) != seen.about:
            raise ConfigError(f"{shown_path(real)} was changed by somebody else meanwhile.", "Run the command again.")
        os.rename(new, real)
    except BaseException:
        os.unlink(new)
        raise
    os.fsync(folder)


def _lock(descriptor: int, folder: str) -> None:
    deadline = time.monotonic() + LOCK_WAIT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"Somebody else has been editing in {shown_path(folder)} for {LOCK_WAIT:g} seconds.",
                    f"See who holds it with `fuser {shown_path(folder)}`, and run the command again.",
                ) from None
            time.sleep(0.01)
        else:
            return


def _make_folders(folder: str) -> None:
    """Make the folders that are missing, for this user alone whatever the umask."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)
        except FileExistsError:
            continue  # another invocation made it in this moment, or a file of that name says so when it is opened
        parent = os.open(os.path.dirname(each), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def _means(written: str, url: str, path: str, environ: Mapping[str, str]) -> bool:
    base = os.path.dirname(os.path.abspath(path))
    try:
        return same_place(store_url(StoreText(written, path, shown_path(path), base=base), environ), url)
    except ConfigError:
        return False


def _subtable(tables: Any, name: str) -> Any:
    if name not in tables:
        tables[name] = {}
    return tables[name]


def _inline(value: object) -> object:
    """Return a value as tomlkit writes it on one line, tables within lists too."""
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        for key, inner in value.items():
            table[key] = _inline(inner)
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        for inner in value:
            array.append(_inline(inner))
        return array
    return value


def _time(seconds: float) -> str:
    """Return a time exactly, in the largest unit that holds a whole number of them."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s" if seconds else "0"


def _check_table(check: Any) -> dict[str, object]:
    """Return a check as a table, without what is its default."""
    table: dict[str, object] = {}
    defaults = type(check)().as_dict()
    for key, value in check.as_dict().items():
        if value == defaults[key]:
            continue
        if key == "equals":
            table[key] = dict(value)
        elif key == "max_age":
            table[key] = _time(value)
        else:
            table[key] = list(value) if isinstance(value, tuple) else value
    return table
