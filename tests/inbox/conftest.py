from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.inbox.databases import Receiver, prepared


@pytest.fixture(params=["sqlite", "postgresql"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Receiver:
    """A database of a receiver's, with a table of keys and one of effects."""
    if request.param == "sqlite":
        path = tmp_path / "receiver.db"
        path.touch()
        return prepared(Receiver(f"sqlite:///{path}"))
    url = request.getfixturevalue("postgres").url("unused").partition("?")[0]
    return prepared(Receiver(url, schema=f"r{os.urandom(6).hex()}."))
