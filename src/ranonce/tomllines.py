"""On which line of a TOML text does a key stand? For error messages only: `tomllib` does not say.

The text has been parsed by `tomllib` already, so this scanner need not judge it, only walk it: table headers, keys,
and the beginnings of values. Source: the grammar of https://toml.io/en/v1.0.0.
"""

from __future__ import annotations

from bisect import bisect_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    Keys = tuple[str | int, ...]


def key_lines(text: str) -> dict[Keys, int]:
    """Return the line, from 1, of each key; an element of an array is its index, a table its header."""
    return _Scanner(text.replace("\r\n", "\n")).walk()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line_ends = [at for at, character in enumerate(text) if character == "\n"]
        self.lines: dict[Keys, int] = {}
        self.table: Keys = ()
        self.counts: dict[Keys, int] = {}  # how many [[tables]] each array has so far

    def walk(self) -> dict[Keys, int]:
        while self._skip(" \t\n"):
            if self._peek("["):
                self._header()
            else:
                self._pair(self.table)
        return self.lines

    def _header(self) -> None:
        array = self._peek("[[")
        self.at += 2 if array else 1
        start = self.at
        *outer, last = self._dotted()
        keys: Keys = ()
        for key in outer:
            keys = (*keys, key)
            if keys in self.counts:
                keys = (*keys, self.counts[keys] - 1)
            self._note(keys, start)
        keys = (*keys, last)
        self._note(keys, start)
        if array:
            self.counts[keys] = self.counts.get(keys, 0) + 1
            keys = (*keys, self.counts[keys] - 1)
            self._note(keys, start)
        self.at += 2 if array else 1
        self.table = keys

    def _pair(self, table: Keys) -> None:
        start = self.at
        keys = table
        for key in self._dotted():
            keys = (*keys, key)
            self._note(keys, start)
        self.at += 1  # the equals sign
        self._value(keys)

    def _value(self, keys: Keys) -> None:
        self._skip(" \t\n")
        self._note(keys, self.at)
        if self._peek("["):
            self.at += 1
            index = 0
            while self._skip(" \t\n,") and not self._peek("]"):
                self._value((*keys, index))
                index += 1
            self.at += 1
        elif self._peek("{"):
            self.at += 1
            while self._skip(" \t\n,") and not self._peek("}"):
                self._pair(keys)
            self.at += 1
        elif self._peek('"') or self._peek("'"):
            self._string()
        else:
            self._until(",]}#\n")

    def _dotted(self) -> list[str]:
        keys = []
        while True:
            self._skip(" \t")
            if self._peek('"') or self._peek("'"):
                keys.append(self._string())
            else:
                start = self.at
                self._until(" \t.=]")
                keys.append(self.text[start : self.at])
            self._skip(" \t")
            if not self._peek("."):
                return keys
            self.at += 1

    def _string(self) -> str:
        quote = self.text[self.at]
        closing = quote * 3 if self._peek(quote * 3) else quote
        start = self.at
        self.at += len(closing)
        while not self._peek(closing) and self.at < len(self.text):
            self.at += 2 if quote == '"' and self._peek("\\") else 1
        self.at += len(closing)
        while len(closing) == 3 and self._peek(quote):  # up to two quotes may stand before the closing three
            self.at += 1
        return self._plain(self.text[start : self.at])

    def _plain(self, quoted: str) -> str:
        if quoted[0] == '"' and "\\" in quoted:
            import tomllib

            return str(tomllib.loads(f"key = {quoted}")["key"])
        return quoted.strip(quoted[0])

    def _skip(self, blanks: str) -> bool:
        """Go on to what is neither blank nor comment; False at the end of the text."""
        while self.at < len(self.text):
            if self._peek("#"):
                self._until("\n")
            elif self.text[self.at] in blanks:
                self.at += 1
            else:
                return True
        return False

    def _until(self, stops: str) -> None:
        while self.at < len(self.text) and self.text[self.at] not in stops:
            self.at += 1

    def _peek(self, expected: str) -> bool:
        return self.text.startswith(expected, self.at)

    def _note(self, keys: Keys, position: int) -> None:
        self.lines.setdefault(keys, bisect_left(self.line_ends, position) + 1)
