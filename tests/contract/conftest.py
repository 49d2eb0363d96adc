from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import stores

SHARED = ["sqlite", "postgres", "redis"]


def _kind(request: pytest.FixtureRequest, folder: Path) -> stores.Kind:
    match request.param:
        case "memory":
            return stores.memory()
        case "sqlite":
            return stores.sqlite(folder)
        case "postgres":
            return stores.postgres(request.getfixturevalue("postgres"))
        case "redis":
            return stores.redis(request.getfixturevalue("valkey"))
    raise AssertionError(request.param)


@pytest.fixture(params=["memory", *SHARED])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Kind:
    return _kind(request, tmp_path)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Kind:
    """A store that several processes can open at once."""
    return _kind(request, tmp_path)
