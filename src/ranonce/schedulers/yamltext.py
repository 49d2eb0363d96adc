"""Text as a YAML scalar that every parser reads back as the same text, whatever is in it.

Plain only where no parser, of YAML 1.1 or 1.2, could take it for anything but text; else in double quotes, with
everything escaped that is not printed as itself. Source: YAML 1.2.2, chapters 5 and 7.
"""

from __future__ import annotations

_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz/")
_PLAIN = _FIRST | frozenset("0123456789_.-=")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


def scalar(text: str) -> str:
    """Return text as a scalar on one line."""
    if text and text[0] in _FIRST and _PLAIN.issuperset(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(_ESCAPES.get(each) or _escaped(each) for each in text) + '"'


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
