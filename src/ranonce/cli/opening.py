"""Open the ledger a command works with: configuration, store, id, and this host's state folder."""

from __future__ import annotations

from ranonce.config import find_config, load, state_folder
from ranonce.errors import ConfigError
from ranonce.ledger import OpenLedger
from ranonce.names import plain
from ranonce.receipts import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed
    from ranonce.config import Config


def open_ledger(
    parsed: Parsed,
    environ: Mapping[str, str],
    *,
    job: str | None = None,
    reading: bool = False,
    bringing: bool = False,
) -> tuple[Config, OpenLedger]:
    """Return the configuration and the ledger it names. With `job`, only that job's settings are read.

    `reading`: nothing is created on this host; `bringing`: what this host remembers more may be brought in. Raises
    ConfigError, NotThisLedger or StoreUnavailable.
    """
    config = read_config(parsed, environ, job=job)
    return config, ledger_of(config, environ, reading=reading, bringing=bringing)


def read_config(
    parsed: Parsed, environ: Mapping[str, str], *, job: str | None = None, pass_over: bool = False
) -> Config:
    """Return the configuration that the options and the environment name. Raises ConfigError."""
    path = find_config(parsed.get("config"), environ)
    return load(path, environ, store=parsed.get("store"), job=job, pass_over=pass_over)


def ledger_of(
    config: Config, environ: Mapping[str, str], *, reading: bool = False, bringing: bool = False
) -> OpenLedger:
    """Open the ledger that the configuration names. Raises ConfigError, NotThisLedger or StoreUnavailable."""
    ledger = config.ledger
    return OpenLedger.open(
        ledger.store,
        ledger.ledger_id,
        state_folder=_state_folder(environ),
        wait_seconds=ledger.store_wait,
        reading=reading,
        bringing=bringing,
    )


def tell_warnings(ledger: OpenLedger) -> None:
    """Say what was noticed while the ledger was opened: a clock that jumped, a state folder that is not there."""
    for warning in ledger.warnings:
        say(f"ranonce: {plain(warning)}")


def _state_folder(environ: Mapping[str, str]) -> str | None:
    """Return the folder for journals and attempts; None in a place without a home, where there can be no witness."""
    try:
        return state_folder(environ)
    except ConfigError:
        return None
