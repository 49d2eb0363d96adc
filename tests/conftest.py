"""A world per test, on each store that the test is about; and the servers that some of those stores are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledgers import TODAY
from tests.servers import (
    NatsServer,
    OtherNats,
    OtherServer,
    Places,
    PostgresServer,
    Server,
    ValkeyServer,
    private_folder,
    started,
)
from tests.world import (
    EFFECT,
    HELD_EFFECT,
    NOON,
    RANONCE,
    Invocation,
    Ran,
    World,
    instant_in,
    lives,
    wait_until,
)

__all__ = [
    "EFFECT",
    "HELD_EFFECT",
    "NOON",
    "RANONCE",
    "TODAY",
    "Invocation",
    "Ran",
    "World",
    "instant_in",
    "lives",
    "wait_until",
]

#: The stores that a ledger for several processes may lie on.
STORES = ("sqlite", "postgres", "redis")
SERVERS = STORES[1:]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "every_store(cases=None): its world is made on every store; a server is given the first `cases` of a test's"
        " cases only",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_kind" in metafunc.fixturenames and metafunc.definition.get_closest_marker("every_store"):
        metafunc.parametrize("store_kind", STORES, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the servers those cases of a test that its mark gives them; the file has them all."""
    given: Counter[tuple[str, str]] = Counter()

    def wanted(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("every_store")
        if mark is None or not isinstance(item, pytest.Function) or mark.kwargs.get("cases") is None:
            return True
        kind = item.callspec.params["store_kind"]
        given[item.nodeid.partition("[")[0], kind] += 1
        return kind == "sqlite" or given[item.nodeid.partition("[")[0], kind] <= mark.kwargs["cases"]

    items[:] = [item for item in items if wanted(item)]


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> str:
    """The kind of store a world lies on: a file, unless the test is marked `every_store`."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
def bare(tmp_path: Path, store_kind: str, request: pytest.FixtureRequest) -> Iterator[World]:
    """A world without a ledger."""
    if store_kind == "sqlite":
        world = World(tmp_path)
        yield world
        world.end()
        return
    anybodys = request.node.get_closest_marker("every_store") is not None
    with server_of_kind(request, store_kind, anybodys=anybodys).place() as url:
        world = World(tmp_path, url)
        yield world
        world.end()


@pytest.fixture
def world(bare: World) -> World:
    """A world with a fresh ledger."""
    bare.init()
    return bare


def server_of_kind(request: pytest.FixtureRequest, kind: str, *, anybodys: bool) -> Places:
    """Return a server for a ledger: one of ours or, where that is enough for the test, the one that we were given."""
    variable = {"postgres": "RANONCE_TEST_POSTGRES", "redis": "RANONCE_TEST_REDIS"}[kind]
    if anybodys and os.environ.get(variable):
        return OtherServer(os.environ[variable])
    return request.getfixturevalue({"postgres": "postgres", "redis": "valkey"}[kind])


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A PostgreSQL server of ours, that every test of this process may use, and none may stop."""
    folder = tmp_path_factory.mktemp("servers") / "postgres"
    yield from started(lambda: PostgresServer(private_folder(folder)))


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Valkey server of ours, that every test of this process may use, and none may stop."""
    folder = tmp_path_factory.mktemp("servers") / "valkey"
    yield from started(lambda: ValkeyServer(private_folder(folder)))


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer | OtherNats]:
    """A NATS server with JetStream that every test of this process may use, and none may stop: give each stream and
    subject a name of its own."""
    if os.environ.get("RANONCE_TEST_NATS"):
        yield OtherNats(os.environ["RANONCE_TEST_NATS"])
        return
    folder = tmp_path_factory.mktemp("servers") / "nats"
    yield from started(lambda: NatsServer(private_folder(folder)))  # type: ignore[misc]
