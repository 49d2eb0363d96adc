from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import stores


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Kind:
    return stores.memory() if request.param == "memory" else stores.sqlite(tmp_path)


@pytest.fixture
def shared(tmp_path: Path) -> stores.Kind:
    """A store that several processes can open at once."""
    return stores.sqlite(tmp_path)
