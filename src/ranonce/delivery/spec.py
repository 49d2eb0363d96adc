"""Declared destinations: `[destinations.NAME]` of the configuration, read key by key.

Only what sends or asks about destinations reads them: a mistake in one stops no job. Credentials are written as
`${NAME}` and taken from the environment when a sender is opened.
"""

from __future__ import annotations

import re
from importlib import import_module

from ranonce.delivery.base import Spec
from ranonce.errors import ConfigError, RanonceError, UsageError
from ranonce.messages import Route
from ranonce.names import check_name
from ranonce.record import Record
from ranonce.serverurl import literal_secret
from ranonce.settings import duration, nearest, text, whole
from ranonce.storeurl import StoreText, expand, masked
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ranonce.delivery.base import Sender

#: The kinds of destinations, and the module of each.
TYPES = ("http", "smtp", "nats", "command", "sql", "github")

FOREVER = float("inf")
#: Where the variables of destinations are taken from.
DELIVERER = "where ranonce deliver is started"
_VARIABLE = re.compile(r"\$\{(\w+)\}")
#: A rate beyond this is none.
MOST_A_SECOND = 1e9


def dedupe_time(value: object) -> float:
    """Return for how many seconds a destination dedupes: false is 0, true for ever."""
    if isinstance(value, bool):
        return FOREVER if value else 0.0
    return duration(value)


def rate(value: object) -> float:
    """Return how many messages a second: a number, or a text like 100/h."""
    if isinstance(value, str):
        count, slash, unit = value.partition("/")
        seconds = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(unit.strip())
        if slash and seconds and count.strip().isascii() and count.strip().isdigit() and int(count):
            return int(count) / seconds
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MOST_A_SECOND:
        return float(value)
    raise UsageError(f"{shown(value)} is no rate.", 'Write messages a second, or text like "100/h".')


#: The settings that every destination has.
KEYS: Mapping[str, Callable[[object], object]] = {
    "type": text,
    "dedupes": dedupe_time,
    "max_attempts": whole,
    "concurrency": whole,
    "rate": rate,
    "timeout": duration,
    "late_after": duration,
    "prefix": text,
}
_ROUTE = ("max_attempts", "concurrency", "rate", "timeout", "late_after")
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "dedupes": (0, FOREVER),
    "max_attempts": (1, 10_000),
    "concurrency": (1, 256),
    "timeout": (0.1, 3600.0),
    "late_after": (0.0, 366 * 86400.0),
}


def kind_of(type_: str) -> Any:
    """Return the module of a kind of destination. Raises UsageError."""
    if type_ not in TYPES:
        raise UsageError(f"{shown(type_)} is no type of destination.", nearest(type_, TYPES))
    return import_module(f"ranonce.delivery.{type_}")


def read_spec(name: str, table: object, place: Callable[[tuple[str, ...]], object], folder: str | None) -> Spec:
    """Return what a destination's table says. `place` gives what stands before a complaint about keys of the table.

    Raises ConfigError.
    """

    def refuse(keys: tuple[str, ...], error: RanonceError) -> ConfigError:
        return ConfigError(f"{place(keys)}: {error.sentence}", error.next_step)

    try:
        check_name("destination", name)
    except RanonceError as error:
        raise refuse((), error) from None
    if not isinstance(table, dict):
        raise refuse((), UsageError(f"{shown(table)} is not a table.", f"Write it as [destinations.{name}]."))
    written = table.get("type")
    if written is None:
        raise refuse((), UsageError("it has no type.", 'Say what it is: type = "http".'))
    try:
        kind = kind_of(text(written))
    except RanonceError as error:
        raise refuse(("type",), error) from None
    values: dict[str, Any] = {}
    known = {**KEYS, **kind.KEYS}
    for key, value in table.items():
        if key not in known:
            raise refuse((key,), UsageError("this key is not known.", nearest(key, known)))
        try:
            if isinstance(value, str):
                _refuse_password(value)
            values[key] = known[key](value)
            lowest, highest = _BOUNDS.get(key, (0, FOREVER))
            if key in _BOUNDS and not lowest <= values[key] <= highest:
                raise UsageError(f"{shown(value)} is out of range.", f"It is from {lowest:g} to {highest:g}.")
        except RanonceError as error:
            raise refuse((key,), error) from None
    for key in kind.REQUIRED:
        if key not in values:
            raise refuse((), UsageError(f"it has no {key}.", f"Every destination of type {written} needs one."))
    settings = {key: value for key, value in values.items() if key in kind.KEYS}
    dedupes = values.get("dedupes")
    route = Route(
        name,
        dedupes=kind.dedupes(settings) if dedupes is None else dedupes,
        **{key: values[key] for key in _ROUTE if key in values},
    )
    return Spec(name, str(written), route, settings, place(()), folder, values.get("prefix", ""))


def _refuse_password(value: str) -> None:
    if "://" in value and literal_secret(value):
        raise UsageError(
            f"{shown(masked(value))} holds a password.",
            "Credentials come from the environment only: write ${NAME} in its place and set that variable.",
        )


def open_sender(spec: Spec, environ: Mapping[str, str]) -> Sender:
    """Return what sends to a destination. Raises ConfigError for what is missing in the environment or installed."""
    sender: Sender = kind_of(spec.type).open_sender(spec, environ)
    return sender


def from_environment(spec: Spec, key: str, environ: Mapping[str, str]) -> str | None:
    """Return a text setting with each `${NAME}` replaced; None if it is not set. Raises ConfigError."""
    value = spec.settings.get(key)
    if value is None:
        return None
    return expand(StoreText(str(value), spec.name, f"{spec.place}.{key}", needed=DELIVERER), environ)


class Unusable(Record):
    """Why nothing can be sent to a destination from here. `elsewhere`: what it lacks may be there where messages are
    delivered, a variable or a driver; else it can never work as it is written."""

    sentence: str
    next_step: str
    elsewhere: bool

    @classmethod
    def of(cls, error: ConfigError, *, elsewhere: bool = False) -> Unusable:
        """Return what an error says."""
        return cls(error.sentence, error.next_step, elsewhere)


def unusable(spec: Spec, environ: Mapping[str, str]) -> Unusable | None:
    """Say why nothing can be sent to a destination with these variables; None where it can. Connects to nothing."""
    try:
        open_sender(spec, environ).close()
    except ConfigError as error:
        lacking = not variables(spec.settings) <= environ.keys() or isinstance(error.__cause__, ImportError)
        return Unusable.of(error, elsewhere=lacking)
    return None


def variables(value: object) -> set[str]:
    """Return the names of the environment variables that stand in settings."""
    if isinstance(value, str):
        return set(_VARIABLE.findall(value))
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return set().union(*map(variables, parts)) if isinstance(parts, (list, tuple)) else set()
