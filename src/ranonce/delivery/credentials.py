"""Settings that are secrets: never written out, always taken from the environment."""

from __future__ import annotations

import re

from ranonce.errors import UsageError
from ranonce.settings import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: What is shorter would be found in any text.
SHORTEST_SECRET = 4  # characters
MASK = "***"
_VARIABLE = re.compile(r"\$\{\w+\}")


def credential(value: object) -> str:
    """Return a secret's `${NAME}`. What stands beside it would be read by whoever reads the file, so nothing may."""
    written = text(value)
    if not _VARIABLE.fullmatch(written):
        raise UsageError(
            "a secret stands in the file.",
            "Credentials come from the environment only: write ${NAME} in its place and set that variable.",
        )
    return written


def without_secrets(words: str, secrets: Iterable[str]) -> str:
    """Return words in which none of the secrets stands."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            words = words.replace(secret, MASK)
    return words
