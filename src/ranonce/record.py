"""Immutable records: what `dataclasses` does for us elsewhere, at a tenth of its import time.

`ranonce run` is started every minute on busy hosts, and importing `dataclasses` (with `inspect` behind it) costs
more than a durable claim. A record has annotated fields with optional defaults, refuses assignment, and compares,
hashes, prints and copies by value. Type checkers see an ordinary frozen dataclass.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_: object):
        """Stand in for what only type checkers need."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Record:
    """Base of every immutable value in the core. Fields are the annotations of the class itself, in order."""

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(name for name in cls.__annotations__ if not name.startswith("_"))
        cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}

    if not TYPE_CHECKING:

        def __init__(self, *values: object, **named: object) -> None:
            fields, state = self._fields, self.__dict__
            state.update(self._defaults)
            if values:
                state.update(zip(fields, values))  # noqa: B905 - to say `strict` takes a third of the time of all this
            if named:
                state.update(named)
            if len(state) != len(fields) or len(values) > len(fields):
                self._refuse(values, named)

    def _refuse(self, values: tuple[object, ...], named: dict[str, object]) -> None:
        unknown = sorted(set(named) - set(self._fields))
        missing = [name for name in self._fields if name not in self.__dict__]
        raise TypeError(
            f"{type(self).__name__}: {len(values)} values for {len(self._fields)} fields, "
            f"missing {missing}, unknown {unknown}"
        )

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        copy = object.__new__(type(self))
        state = copy.__dict__
        state.update(self.__dict__)
        state.update(changes)
        if len(state) != len(self._fields):
            copy._refuse((), changes)
        return copy

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a new dictionary, in order."""
        return {name: self.__dict__[name] for name in self._fields}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: use replace({name}=…)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(self.__dict__[name] for name in self._fields)))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._fields)
        return f"{type(self).__name__}({inside})"
