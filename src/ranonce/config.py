"""Where the configuration lies, and which ledger this invocation uses.

A command without a configuration file loads this module and nothing behind it; the file's own rules are in
`configread`, its editing in `configfile`.
"""

from __future__ import annotations

import os

from ranonce.errors import ConfigError, RanonceError
from ranonce.jobspec import JobSpec, VersionFile, check_job, resolve_version
from ranonce.names import check_job_name
from ranonce.record import Record
from ranonce.storeurl import (
    SQLITE,
    STORE_WAIT,
    StoreText,
    environment_store,
    expand_home,
    home_folder,
    option_store,
    same_place,
    store_url,
)
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = [
    "Config",
    "JobSpec",
    "LedgerSpec",
    "VersionFile",
    "check_job",
    "default_store",
    "find_config",
    "load",
    "resolve_version",
    "state_folder",
    "user_config",
]

FILE_NAME = "ranonce.toml"
SYSTEM_CONFIG = f"/etc/ranonce/{FILE_NAME}"
SYSTEM_STATE = "/var/lib/ranonce"


class LedgerSpec(Record):
    """Which ledger is used: the store's address in its normal form, the id it must have, and who said so."""

    store: str
    ledger_id: str | None = None
    store_wait: float = STORE_WAIT
    source: str = "default"


class Config(Record):
    """What this invocation works with. `path` is the file it was read from, if any.

    `jobs` holds every declared job, or only the one that was asked for; `broken` says why others could not be read,
    where that was asked for. `destinations` are kept as written, mistakes included, for those who ask about one
    (`delivery.spec`); `place` says where a key of the file stands.
    """

    path: str | None
    ledger: LedgerSpec
    jobs: dict[str, JobSpec]
    destinations: Mapping[str, Any]
    broken: Mapping[str, ConfigError] = {}
    place: Callable[[tuple[str, ...]], object] = ".".join

    @property
    def folder(self) -> str | None:
        """The folder that relative paths of the file are relative to."""
        return os.path.dirname(self.path) if self.path else None


def find_config(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of the configuration, or None where there is none.

    The order: `--config`, `$RANONCE_CONFIG`, the user's `$XDG_CONFIG_HOME/ranonce/ranonce.toml` (by default under
    `~/.config`), `/etc/ranonce/ranonce.toml`. Folders are never searched. Raises ConfigError for one that was named
    and is not there.
    """
    if explicit is not None:
        return _named_config(explicit, "--config", environ)
    if "RANONCE_CONFIG" in environ:
        named = environ["RANONCE_CONFIG"]
        if named and not named.startswith(("/", "~")):
            raise ConfigError(
                f"$RANONCE_CONFIG: {shown(named)} is relative, so the working directory would choose the jobs.",
                f"Write {os.path.abspath(named)}.",
            )
        return _named_config(named, "$RANONCE_CONFIG", environ)
    for path in (user_config(environ), SYSTEM_CONFIG):
        if path is not None and _may_exist(path):
            return path
    return None


def user_config(environ: Mapping[str, str]) -> str | None:
    """Return where this user's own configuration lies, there or not; None where the home folder is not known."""
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not folder.startswith("/"):  # the XDG specification: a relative one is ignored
        home = home_folder(environ)
        if home is None and os.geteuid() == 0:
            home = os.path.expanduser("~root")  # a system service of root's has no HOME, and still means the same file
        if home is None:
            return None
        folder = os.path.join(home, ".config")
    return os.path.join(folder, "ranonce", FILE_NAME)


def state_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of the default store, the journal and the attempts' lock files; it need not exist.

    `$XDG_STATE_HOME/ranonce` where that is set and absolute, else `/var/lib/ranonce` for root and
    `~/.local/state/ranonce` for others. Raises ConfigError where the home folder is not known.
    """
    folder = environ.get("XDG_STATE_HOME", "")
    if folder.startswith("/"):
        return os.path.join(os.path.normpath(folder), "ranonce")
    if os.geteuid() == 0:
        return SYSTEM_STATE
    home = home_folder(environ)
    if home is None:
        raise ConfigError(
            "HOME is not set, so the folder for the ledger and its journal is not known.",
            "Set HOME or XDG_STATE_HOME to an absolute path where the scheduler starts the job.",
        )
    return os.path.join(os.path.normpath(home), ".local", "state", "ranonce")


def load(
    path: str | None,
    environ: Mapping[str, str],
    *,
    store: str | None = None,
    job: str | None = None,
    pass_over: bool = False,
) -> Config:
    """Read the configuration and decide which ledger is used; `path` None is a configuration without a file.

    `store` is what `--store` says. With `job`, only that job is read: a neighbour's mistake must not stop it. With
    `pass_over`, jobs that cannot be read are passed over, and `broken` of the result says why. Raises ConfigError, or
    UsageError for a bad `store` or `job`.
    """
    if job is not None:
        check_job_name(job)
    if path is None:
        return Config(None, choose_ledger(environ, option=store), {}, {})
    from ranonce import configread

    document = configread.read_document(os.path.abspath(path), environ)
    written = configread.ledger_table(document)
    ledger = choose_ledger(environ, option=store, file_store=written.store, file_id=written.ledger_id)
    jobs, broken = configread.readable_jobs(document) if pass_over else (configread.job_specs(document, only=job), {})
    destinations = configread.destination_tables(document)
    ledger = ledger.replace(store_wait=written.store_wait)
    return Config(document.path, ledger, jobs, destinations, broken, document.place)


def choose_ledger(
    environ: Mapping[str, str],
    *,
    option: str | None = None,
    file_store: StoreText | None = None,
    file_id: str | None = None,
) -> LedgerSpec:
    """Return the ledger in use: `--store` before `$RANONCE_STORE` before the file before the default store.

    An id belongs to the store it was written beside: `$RANONCE_LEDGER` to `$RANONCE_STORE` (or, alone, to whichever
    store is used), the file's id to the file's store. Beside another address it is not applied. Raises ConfigError,
    or UsageError for a bad option.
    """
    in_environment = environment_store(environ["RANONCE_STORE"]) if "RANONCE_STORE" in environ else None
    environment_id = environ.get("RANONCE_LEDGER")
    if environment_id is not None and not environment_id.strip():
        raise ConfigError("$RANONCE_LEDGER is empty.", "Set it to the id that `ranonce init` printed, or unset it.")
    chosen = option_store(option) if option is not None else in_environment or file_store
    url = store_url(chosen, environ) if chosen else default_store(environ)

    def same(other: StoreText | None, otherwise: bool) -> bool:
        return otherwise if other is None else other is chosen or _resolves_to(other, url, environ)

    if environment_id is not None and not same(in_environment, otherwise=True):
        environment_id = None
    if file_id is not None and not same(file_store, otherwise=chosen is None or _is_default(url, environ)):
        file_id = None
    if environment_id and file_id and environment_id != file_id and chosen in (file_store, None):
        raise ConfigError(
            f"$RANONCE_LEDGER is {shown(environment_id)} and the configuration says {shown(file_id)}.",
            "One store has one id: unset RANONCE_LEDGER, or set RANONCE_STORE too.",
        )
    return LedgerSpec(url, environment_id or file_id, source=chosen.source if chosen else "default")


def default_store(environ: Mapping[str, str]) -> str:
    """Return the address of the store that is used where nobody names one. Raises ConfigError without a home."""
    try:
        return f"{SQLITE}{state_folder(environ)}/ledger.db"
    except ConfigError as error:
        raise ConfigError(
            error.sentence, f"{error.next_step} Or name the store: RANONCE_STORE=sqlite:////PATH."
        ) from None


def _named_config(path: str, place: str, environ: Mapping[str, str]) -> str:
    if not path.strip():
        raise ConfigError(f"{place} is empty.", f"Name a file, like {SYSTEM_CONFIG}, or leave it away.")
    absolute = os.path.abspath(expand_home(path, environ))
    if not _may_exist(absolute):
        raise ConfigError(
            f"{place} names {shown(absolute)}, and there is no such file.",
            f"Create it with `ranonce init --config {absolute}`, or correct the path.",
        )
    return absolute


def _may_exist(path: str) -> bool:
    """Say whether something is there; a file one may not look at is there, and reading it will say why not."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def _resolves_to(written: StoreText, url: str, environ: Mapping[str, str]) -> bool:
    try:
        return same_place(store_url(written, environ), url)
    except RanonceError:
        return False  # it is not the store in use, so its mistakes are not this invocation's


def _is_default(url: str, environ: Mapping[str, str]) -> bool:
    try:
        return default_store(environ) == url
    except ConfigError:
        return False
