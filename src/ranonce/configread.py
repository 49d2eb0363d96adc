"""Read the configuration file: may it be trusted, is it TOML, and is each key one we know with a value that fits?

Every complaint names the file, the line and the remedy. Loaded only where a file exists.
"""

from __future__ import annotations

import os

from ranonce.errors import ConfigError, RanonceError
from ranonce.jobspec import JobSpec, VersionFile, broken_rule, schedule_error
from ranonce.names import check_job_name, check_name, shown_path
from ranonce.record import Record
from ranonce.settings import argv, duration, exit_codes, flag, gates, instant, nearest, text, whole
from ranonce.storeurl import STORE_WAIT, StoreText, expand_home
from ranonce.timefmt import shown
from ranonce.tomlplain import read_plain
from ranonce.trust import read_trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from ranonce.checks import Check
    from ranonce.tomllines import Keys

    Kinds = Mapping[str, Callable[[object], object]]


def _as_written(value: object) -> object:
    return value  # a table or list that is read key by key


TOP_KEYS: Kinds = {"ledger": _as_written, "jobs": _as_written, "destinations": _as_written}
LEDGER_KEYS: Kinds = {"store": text, "id": text, "store_wait": duration}
VERSION_KEYS: Kinds = {"file": text}
JOB_KEYS: Kinds = {
    "every": text,
    "tz": text,
    "dialect": text,
    "offset": whole,
    "command": argv,
    "timeout": duration,
    "lease": duration,
    "grace_kill": duration,
    "max_attempts": whole,
    "retry_delay": duration,
    "early": duration,
    "late_after": duration,
    "max_late": duration,
    "overlap": text,
    "on_crash": text,
    "reconcile": argv,
    "catch_up": text,
    "catch_up_limit": whole,
    "input_mode": text,
    "version": _as_written,
    "uses": gates,
    "checks": _as_written,
    "stop_exit_codes": exit_codes,
    "leftovers": text,
    "receipt": text,
    "busy_exit": whole,
    "since": instant,
    "cwd": text,
    "keep_output": flag,
    "stdin": flag,
}


class LedgerTable(Record):
    """The `[ledger]` table as written; the address of the store is resolved only where it is used."""

    store: StoreText | None
    ledger_id: str | None
    store_wait: float


class Place(Record):
    """Where a key stands: `FILE:LINE: table.key`. The line is looked for only when somebody reads it."""

    path: str
    text: str
    keys: Keys

    def __str__(self) -> str:
        from ranonce.tomllines import key_lines

        lines = key_lines(self.text)
        known = next((self.keys[:end] for end in range(len(self.keys), 0, -1) if self.keys[:end] in lines), ())
        where = f"{shown_path(self.path)}:{lines[known]}" if known else shown_path(self.path)
        return f"{where}: {dotted(self.keys)}"


class Document(Record):
    """A configuration file that is TOML: its absolute path, its text, its tables, and the environment it meets."""

    path: str
    text: str
    tables: dict[str, object]
    environ: Mapping[str, str]

    def place(self, keys: Keys) -> Place:
        """Return where a key stands, for the front of a complaint."""
        return Place(self.path, self.text, keys)

    def refuse(self, keys: Keys, sentence: str, next_step: str) -> NoReturn:
        """Raise ConfigError about the value of a key."""
        raise ConfigError(f"{self.place(keys)}: {sentence}", next_step) from None

    def absolute(self, keys: Keys, path: str) -> str:
        """Return the path that the value of a key means: relative to the file, `~` the caller's home."""
        expanded = expand_home(path, self.environ)
        if expanded.startswith("~"):
            self.refuse(keys, f"the home folder in {shown(path)} is not known.", "Set HOME, or write an absolute path.")
        return os.path.normpath(os.path.join(os.path.dirname(self.path), expanded))


def read_document(path: str, environ: Mapping[str, str]) -> Document:
    """Return the file's tables with their names checked. Raises ConfigError."""
    return parse_document(path, read_trusted(path), environ)


def parse_document(path: str, data: bytes, environ: Mapping[str, str]) -> Document:
    """Return the tables that stand in `data`, which is or will be the content of `path`. Raises ConfigError."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(
            f"{shown_path(path)} begins with a byte order mark, which TOML does not have.", "Save it as plain UTF-8."
        )
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{shown_path(path)}:{line}: the byte 0x{data[error.start]:02x} is not UTF-8.", "Save the file as UTF-8."
        ) from None
    try:
        tables = read_plain(content)
        if tables is None:
            import tomllib

            tables = tomllib.loads(content)
    except RecursionError:
        raise ConfigError(f"{shown_path(path)} is nested too deeply.", "Write it flatter.") from None
    except ValueError as error:  # TOMLDecodeError is one; a number of 5000 digits raises another
        raise _syntax_error(path, content, str(error)) from None
    document = Document(path, content, tables, environ)
    _read_table(document, (), tables, TOP_KEYS)
    for top in TOP_KEYS:
        if not isinstance(tables.get(top, {}), dict):
            document.refuse((top,), f"{shown(tables[top])} is not a table.", f"Write it as [{top}].")
    return document


def ledger_table(document: Document) -> LedgerTable:
    """Return the `[ledger]` table. Raises ConfigError."""
    values = _read_table(document, ("ledger",), document.tables.get("ledger", {}), LEDGER_KEYS)
    store, ledger_id, wait = values.get("store"), values.get("id"), values.get("store_wait", STORE_WAIT)
    assert isinstance(wait, float)
    if wait < 0:
        document.refuse(("ledger", "store_wait"), f"{wait:g} seconds is out of range.", "It is 0 or more.")
    return LedgerTable(
        None
        if store is None
        else StoreText(
            str(store), document.path, document.place(("ledger", "store")), base=os.path.dirname(document.path)
        ),
        None if ledger_id is None else str(ledger_id),
        wait,
    )


def job_specs(document: Document, *, only: str | None = None) -> dict[str, JobSpec]:
    """Return the declared jobs, or only one of them (if it is declared). Raises ConfigError."""
    jobs = document.tables.get("jobs", {})
    assert isinstance(jobs, dict)
    names = jobs if only is None else [only] if only in jobs else []
    return {name: _job_spec(document, name, jobs[name]) for name in names}


def readable_jobs(document: Document) -> tuple[dict[str, JobSpec], dict[str, ConfigError]]:
    """Return the declared jobs that can be read, and why the others cannot: one mistake hides no other job."""
    read: dict[str, JobSpec] = {}
    broken: dict[str, ConfigError] = {}
    jobs = document.tables.get("jobs", {})
    assert isinstance(jobs, dict)
    for name in jobs:
        try:
            read[name] = _job_spec(document, name, jobs[name])
        except ConfigError as error:
            broken[name] = error
    return read, broken


def destination_tables(document: Document) -> Mapping[str, Any]:
    """Return the `[destinations]` as written. Nobody who runs a job reads them: a mistake in one stops no job."""
    destinations = document.tables.get("destinations", {})
    assert isinstance(destinations, dict)
    return destinations


def dotted(keys: Keys) -> str:
    """Return keys as people write them: `jobs.nightly.checks[1].file`; a name with a dot in quotes."""
    words = ""
    for key in keys:
        if isinstance(key, int):
            words += f"[{key}]"
        else:
            plain = key.replace("-", "").replace("_", "").isalnum() and key.isascii()
            words += ("." if words else "") + (key if plain else shown(key).replace("'", '"'))
    return words


def _job_spec(document: Document, name: str, table: object) -> JobSpec:
    keys: Keys = ("jobs", name)
    _named(document, keys, "job")
    values = _read_table(document, keys, table, JOB_KEYS)
    if "every" not in values:
        document.refuse(keys, "it has no schedule.", 'Say how often it runs: every = "day", or a cron expression.')
    if "version" in values:
        values["version"] = _version(document, (*keys, "version"), values["version"])
    if "checks" in values:
        values["checks"] = _checks(document, (*keys, "checks"), values["checks"])
    values["cwd"] = document.absolute((*keys, "cwd"), str(values.get("cwd", ".")))
    receipt = values.get("receipt")
    if isinstance(receipt, str) and "/" in receipt:
        values["receipt"] = document.absolute((*keys, "receipt"), receipt)
    spec = JobSpec(name=name, declared=True, **values)  # type: ignore[arg-type]  # each was read by its own kind
    broken = broken_rule(spec)
    if broken is not None:
        field, sentence, next_step = broken
        document.refuse((*keys, field), sentence, next_step)
    broken_schedule = schedule_error(spec)
    if broken_schedule is not None:
        field, error = broken_schedule
        document.refuse((*keys, field), error.sentence, error.next_step)
    return spec


def _checks(document: Document, keys: Keys, tables: object) -> tuple[Check, ...]:
    from ranonce.checks import CHECK_KEYS, whole_check

    if not isinstance(tables, list):
        document.refuse(keys, f"{shown(tables)} is not a list of tables.", 'Write [{ file = "out/{window}.json" }].')
    checks = []
    for index, table in enumerate(tables):
        values = _read_table(document, (*keys, index), table, CHECK_KEYS)
        try:
            checks.append(whole_check(values))
        except RanonceError as error:
            document.refuse((*keys, index), error.sentence, error.next_step)
    return tuple(checks)


def _version(document: Document, keys: Keys, written: object) -> str | VersionFile:
    if isinstance(written, dict):
        values = _read_table(document, keys, written, VERSION_KEYS)
        if "file" not in values:
            document.refuse(keys, "it names no file.", 'Write { file = "config/model.yaml" }.')
        return VersionFile(str(values["file"]))
    try:
        return text(written)
    except RanonceError as error:
        document.refuse(keys, error.sentence, 'Write text, or { file = "config/model.yaml" }.')


def _named(document: Document, keys: Keys, kind: str) -> None:
    name = keys[-1]
    try:
        check_job_name(str(name)) if kind == "job" else check_name(kind, str(name))
    except RanonceError as error:
        document.refuse(keys, error.sentence, error.next_step)


def _read_table(document: Document, keys: Keys, table: object, kinds: Kinds) -> dict[str, object]:
    """Return the values of a table, each by the kind its key has. Raises ConfigError for an unknown key."""
    if not isinstance(table, dict):
        document.refuse(keys, f"{shown(table)} is not a table.", "Write keys and values.")
    values: dict[str, object] = {}
    for key, written in table.items():
        kind = kinds.get(key)
        if kind is None:
            if isinstance(written, dict) and keys[:1] == ("jobs",) and len(keys) == 2:
                document.refuse((*keys, key), "a job holds no such table.", _quoted(keys, key, kinds))
            document.refuse((*keys, key), "this key is not known.", nearest(key, kinds))
        try:
            values[key] = kind(written)
        except RanonceError as error:
            document.refuse((*keys, key), error.sentence, error.next_step)
    return values


def _quoted(keys: Keys, key: str, kinds: Kinds) -> str:
    return f'{nearest(key, kinds)} A name with a dot is written in quotes: [jobs."{keys[1]}.{key}"].'


def _syntax_error(path: str, content: str, message: str) -> ConfigError:
    """Put the line that `tomllib` names at the end of its message where editors look for it."""
    reason, found, position = message.rpartition(" (at ")
    if not found:
        return ConfigError(f"{shown_path(path)} is not TOML: {message}.", "Correct it.")
    line = position.removeprefix("line ").partition(",")[0]
    number = int(line) if line.isdigit() else content.count("\n") + 1
    if reason.startswith("Cannot declare ") and reason.endswith(" twice"):
        table = ".".join(reason.split("'")[1::2])
        return ConfigError(
            f"{shown_path(path)}:{number}: not TOML: the table [{table}] is there twice.",
            "Make one of both, or rename one.",
        )
    return ConfigError(f"{shown_path(path)}:{number}: not TOML: {reason} ({position}.", f"Correct line {number}.")
