"""What this installation is, which configuration it reads, and where this host keeps its state."""

from __future__ import annotations

import os
import platform
import sqlite3

from ranonce import __version__
from ranonce.config import Config, choose_ledger, find_config, load, state_folder
from ranonce.doctor.finding import Check, few, step_of
from ranonce.errors import RanonceError
from ranonce.names import shown_path
from ranonce.storeurl import masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ranonce.doctor.finding import Finding

#: STRICT tables. Source: sqlite.org/stricttables.html.
OLDEST_SQLITE = (3, 37, 0)
#: Two processes that write and checkpoint at the same instant can, very rarely, lose a commit in a WAL file: mended in
#: these, and in all from the last on. Source: sqlite.org/wal.html#walresetbug.
WAL_RESET_MENDED = ((3, 44, 6), (3, 50, 7), (3, 51, 3))


def versions(sqlite: tuple[int, ...] = sqlite3.sqlite_version_info) -> Iterator[Finding]:
    """Tell which versions are at work, and what is known of them."""
    check = Check("versions", "looked at what is installed")
    told = f"ranonce {__version__}, Python {platform.python_version()}, SQLite {'.'.join(map(str, sqlite[:3]))}"
    if sqlite < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield check.problem(f"{told}: ledgers need SQLite {oldest}", "install a Python with a newer SQLite")
    elif not _wal_reset_mended(sqlite):
        yield check.note(
            f"{told}: this SQLite has the WAL-reset bug, which can very rarely damage a file, unless your system's"
            " packagers have mended it",
            "when you can, use SQLite 3.51.3 or newer; keep backups (ranonce backup)",
        )
    else:
        yield check.ok(told)


def _wal_reset_mended(sqlite: tuple[int, ...]) -> bool:
    return sqlite >= WAL_RESET_MENDED[-1] or any(
        sqlite[:2] == mended[:2] and sqlite >= mended for mended in WAL_RESET_MENDED
    )


def configuration(
    named: str | None, store: str | None, environ: Mapping[str, str]
) -> tuple[Config | None, Iterator[Finding]]:
    """Read the configuration as `ranonce run` would; return it (None: which ledger is meant is not known) and findings.

    `named` is what `--config` says, `store` what `--store` says.
    """
    check = Check("configuration", "read the configuration")
    try:
        path = find_config(named, environ)
        config = load(path, environ, store=store, pass_over=True)
    except RanonceError as error:
        problem = check.problem(error.sentence, step_of(error.next_step))
        return _without_file(store, environ), iter((problem,))
    if config.path is None:
        step = "" if config.ledger.source != "default" else "make one with: ranonce init"
        seen = f"there is no file; the store is {masked(config.ledger.store)} ({config.ledger.source})"
        return config, iter((check.note(seen, step),))
    jobs = few(len(config.jobs) + len(config.broken), "job")
    seen = f"{shown_path(config.path)} declares {jobs}; the store is {masked(config.ledger.store)}"
    return config, iter((check.ok(f"{seen} ({config.ledger.source})"),))


def _without_file(store: str | None, environ: Mapping[str, str]) -> Config | None:
    """Return what the options and the environment alone say, if they name a store: nothing is guessed."""
    if store is None and "RANONCE_STORE" not in environ:
        return None
    try:
        return Config(None, choose_ledger(environ, option=store), {}, {})
    except RanonceError:
        return None


def states(environ: Mapping[str, str]) -> tuple[str | None, Iterator[Finding]]:
    """Return the folder of this host's state, if there can be one, and what is to be said where there cannot."""
    try:
        return state_folder(environ), iter(())
    except RanonceError as error:
        check = Check("state-folder", "looked for this host's state folder")
        seen = f"{error.sentence} So there is no journal, and no proof of death"
        return None, iter((check.note(seen, step_of(error.next_step)),))


def writable(folder: str) -> Iterator[Finding]:
    """Say whether this user can keep a journal and attempts there."""
    check = Check("state-folder", f"looked at this host's state in {shown_path(folder)}")
    if not os.path.isdir(folder):
        seen = "there is none yet: no job of this ledger ran here as this user"
        yield check.note(seen, "if jobs did run here, run this as their user, with their HOME and XDG_STATE_HOME")
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield check.problem("this user may not write there", "run this as the user who runs the jobs")
    else:
        yield check.ok("it can be read and written")
