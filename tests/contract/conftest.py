from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import server_of_kind
from tests.contract import stores
from tests.servers import forget

SHARED = ["sqlite", "postgres", "redis"]


def _kind(request: pytest.FixtureRequest, folder: Path) -> stores.Kind:
    match request.param:
        case "memory":
            return stores.memory()
        case "sqlite":
            return stores.sqlite(folder)
    make = {"postgres": stores.postgres, "redis": stores.redis}[request.param]
    made = make(server_of_kind(request, request.param, anybodys=True))
    assert made.url is not None
    request.addfinalizer(lambda: forget(made.url))
    return made


@pytest.fixture(params=["memory", *SHARED])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Kind:
    return _kind(request, tmp_path)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Kind:
    """A store that several processes can open at once."""
    return _kind(request, tmp_path)
