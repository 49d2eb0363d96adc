"""`ranonce init`: create a ledger. Nothing else ever does."""

from __future__ import annotations

import os

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.options import Command, Option
from ranonce.config import find_config, load, state_folder, user_config
from ranonce.errors import ConfigError, NotThisLedger
from ranonce.ledger import OpenLedger, known_ledger, remember_ledger
from ranonce.record import Record
from ranonce.stores import open_store, site_of
from ranonce.storeurl import masked, public, same_place, server_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed
    from ranonce.config import LedgerSpec
    from ranonce.stores.base import Site

#: What would end the value of an assignment in a shell, or change it.
SPECIAL = set("&;|<>()$`'\"\\~#*!{} \t")

COMMAND = Command(
    "init",
    (),
    "Create a ledger.",
    (
        Option("accept-volatile", "Accept a place that may be lost or does not lock well; this is recorded."),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Creates the ledger, gives it an id, and writes both into the configuration. Prints RANONCE_STORE= and
    RANONCE_LEDGER= for places without a configuration file. Calling it again changes nothing, except that it brings the
    tables of an older version up to date; it refuses to create a second ledger where one is known to have been.

    A ledger in PostgreSQL is a schema of a database that exists; one in Redis or Valkey is a name space of keys. A
    password comes from the environment (RANONCE_STORE, or ${NAME} in the configuration) and is never written.""",
)


class Made(Record):
    """What `init` found or made. The address of the store is without its password; `named_by` says who named it."""

    store: str
    named_by: str
    ledger: str
    created: bool
    upgraded: bool
    config: str | None


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Create the ledger, or find that it is there."""
    path = _config_path(parsed, environ)
    exists = path is not None and os.path.lexists(path)
    config = load(path if exists else None, environ, store=parsed.get("store"))
    if exists and path is not None:
        _refuse_second(path, config.ledger, environ)
    states = state_folder(environ)
    ledger, created, upgraded = _ledger(config.ledger, states, parsed.flag("accept-volatile"))
    if (
        not created
    ):  # what this host's journal knows of it must be there: a copy of yesterday's is no ledger to go on with
        OpenLedger.open(config.ledger.store, ledger, state_folder=states, reading=True).close()
    remember_ledger(states, config.ledger.store, ledger)
    store = config.ledger.store
    problem = _write_config(path, store, ledger, environ)
    made = Made(public(store), config.ledger.source, ledger, created, upgraded, None if problem else path)
    if parsed.flag("json"):
        import json

        print(json.dumps(made.as_dict()))
    else:
        _tell(made, store, problem)
    return 0


def _config_path(parsed: Parsed, environ: Mapping[str, str]) -> str | None:
    """Return the configuration to write: the one that is named or in use, else the user's own."""
    if (named := parsed.get("config") or environ.get("RANONCE_CONFIG")) is not None:
        return os.path.abspath(os.path.expanduser(named))
    return find_config(None, environ) or user_config(environ)


def _refuse_second(path: str, wanted: LedgerSpec, environ: Mapping[str, str]) -> None:
    """Refuse to put another ledger into a configuration that has one: its finished windows would all run again."""
    bare = {name: value for name, value in environ.items() if not name.startswith("RANONCE_")}
    named = load(path, bare).ledger
    if named.ledger_id is not None and not same_place(named.store, wanted.store):
        raise ConfigError(
            f"{path} already names the ledger {named.ledger_id} at {masked(named.store)}.",
            "Nothing was changed: in another ledger every finished window would run again. "
            "For a second ledger name another --config.",
        )


def _ledger(spec: LedgerSpec, states: str, accept_volatile: bool) -> tuple[str, bool, bool]:
    """Return the id of the ledger at the store, whether it was created now, and whether its tables were upgraded."""
    site = site_of(spec.store, wait_seconds=spec.store_wait)
    expected = spec.ledger_id or known_ledger(states, spec.store)
    if site.stands():
        upgraded = site.upgrade(expected)
        return _found(spec, expected), False, upgraded
    if expected is not None:
        raise NotThisLedger(
            f"the ledger {expected} was at {masked(spec.store)}, and it is gone.",
            "Nothing was created, since finished windows would run again. Restore it from a backup, or go on with what "
            "this host remembers: ranonce accept-loss --reason TEXT",
        )
    try:
        return _create(spec.store, site, accept_volatile), True, False
    except NotThisLedger:
        if not site.stands():
            raise
        return _found(spec, expected), False, False  # another `init` was faster


def _found(spec: LedgerSpec, expected: str | None) -> str:
    found = open_store(spec.store, wait_seconds=spec.store_wait).identity().ledger
    if expected not in (None, found):
        raise NotThisLedger(
            f"the store {masked(spec.store)} is ledger {found}, and {expected} is expected there.",
            "Nothing was changed. Restore the right ledger, or name another store.",
        )
    return found


def _create(store: str, site: Site, accept_volatile: bool) -> str:
    risk = site.risk()
    if risk is not None and not accept_volatile:
        raise ConfigError(
            f"{masked(store)} is on {risk.kind}: {risk.problem}.",
            "Name a place that lives longer than the jobs (--store), or pass --accept-volatile."
            if server_of(store) is None
            else "Nothing was created. Change that setting, name another server (--store), or pass --accept-volatile.",
        )
    ledger = os.urandom(16).hex()
    site.create(ledger, volatile=f"{risk.kind}: {risk.problem}" if risk else None)
    return ledger


def _write_config(path: str | None, store: str, ledger: str, environ: Mapping[str, str]) -> str | None:
    """Write store and id into the configuration; return why that was not possible, or None."""
    from ranonce.configfile import write_ledger

    if path is None:
        return "HOME is not set, so there is no place for a configuration."
    try:
        write_ledger(path, store, ledger, environ)
    except ConfigError as error:
        return str(error)  # a read-only place: the printed variables serve instead
    return None


def _tell(made: Made, store: str, problem: str | None) -> None:
    print(f"{'Created' if made.created else 'Found'} the ledger {made.ledger} at {masked(store)}.")
    if made.upgraded:
        print("Its tables were those of an older version; now they are this one's.")
    if made.config:
        print(f"Written to {made.config}. Where there is no such file, set:")
    else:
        print(f"No configuration was written: {problem} Set instead:")
    if masked(store) == store:
        print(f"RANONCE_STORE={_for_a_shell(store)}")
    else:
        print(f"RANONCE_STORE=…   # the whole address with its password, which is written nowhere; {_whence(made)}")
    print(f"RANONCE_LEDGER={made.ledger}")
    if made.created:
        print('Next: ranonce add JOB --every "0 2 * * *" -- COMMAND')


def _for_a_shell(text: str) -> str:
    """Return a value as it is assigned in a shell, in quotes only where it needs them."""
    import shlex

    return shlex.quote(text) if set(text) & SPECIAL else text


def _whence(made: Made) -> str:
    """Say where the password came from, since jobs need it from there, too."""
    if made.named_by.startswith("$"):
        return f"here it came from {made.named_by}, which jobs need, too"
    return f"here it came from the variables that {made.named_by} names, which jobs need, too"
