"""The one rule for names of jobs, gates and destinations.

A name becomes part of keys, file names, environment variables and printed lines, so it can hold nothing that needs
quoting in any of them.
"""

from __future__ import annotations

from ranonce.errors import UsageError
from ranonce.timefmt import shown

MAX_NAME = 100
_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ALLOWED = _FIRST | frozenset("._-")


def check_job_name(name: str) -> str:
    """Return the name of a job unchanged, or refuse it.

    The rule is `[A-Za-z0-9][A-Za-z0-9._-]{0,99}`, ASCII, the whole text. Raises UsageError.
    """
    return check_name("job", name)


def check_name(kind: str, name: str) -> str:
    """Return a name unchanged, or refuse it; `kind` is the word for it ('job', 'gate', 'destination').

    Raises UsageError.
    """
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and name[0] in _FIRST and _ALLOWED.issuperset(name):
        return name
    raise UsageError(
        f"{shown(name)} is not a name for a {kind}.",
        f"A name has 1 to {MAX_NAME} of the characters A-Z a-z 0-9 . _ - and begins with a letter or a digit.",
    )


def shown_path(path: str) -> str:
    """Return a path for a sentence or a line to paste: as it is where that is safe, else its `repr`."""
    return path if path.isprintable() and " " not in path else repr(path)


def plain(text: str) -> str:
    """Return text on one line: characters that are not printed as themselves (controls, marks) are escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
