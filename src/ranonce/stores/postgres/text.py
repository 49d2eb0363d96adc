"""Values as PostgreSQL can hold them: all of JSON, and in it the one character that its text cannot have.

U+0000 is written as U+001A and `0`, and so that nothing else reads like that, U+001A as U+001A and `1`.
"""

from __future__ import annotations

from ranonce import jsontext as json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "\x1a"


def dumps(value: Any) -> str:
    """Return a value as JSON that PostgreSQL takes."""
    text = json.dumps(value)
    if "\\u0000" in text or "\\u001a" in text:
        return json.dumps(_each(value, escaped))
    return text


def loads(text: str | None) -> Any:
    """Return what `dumps` wrote, as PostgreSQL gave it back; None for NULL."""
    if text is None:
        return None
    value = json.loads(text)
    return _each(value, _plain) if "\\u001a" in text else value


def escaped(text: str) -> str:
    """Return a text that PostgreSQL can hold."""
    return text.replace(MARK, MARK + "1").replace("\0", MARK + "0")


def _plain(text: str) -> str:
    return text.replace(MARK + "0", "\0").replace(MARK + "1", MARK)


def _each(value: Any, change: Any) -> Any:
    """Return a value with each text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _each(one, change) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_each(one, change) for one in value]
    return value
