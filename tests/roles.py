"""Roles of a PostgreSQL server, for as long as a test needs them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tests.behind import postgres_behind
from tests.world import World


@contextlib.contextmanager
def role(world: World, what: str) -> Iterator[str]:
    """Give the name of a role that may log in, and nothing else; it ends with all it was given."""
    name = f"{what.replace(' ', '_')}_{os.urandom(4).hex()}"
    with postgres_behind(world) as db:
        db.execute(f'CREATE ROLE "{name}" LOGIN')
    try:
        yield name
    finally:
        with postgres_behind(world) as db:
            db.execute(f'REASSIGN OWNED BY "{name}" TO CURRENT_USER; DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def as_role(world: World, name: str) -> dict[str, str]:
    """Return an environment in which that role asks."""
    _, at, rest = world.url.partition("@")
    assert at, "the address names its user"
    return {"RANONCE_STORE": f"postgresql://{name}@{rest}", "RANONCE_LEDGER": world.ledger}
