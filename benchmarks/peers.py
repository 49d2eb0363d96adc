"""The same work done by others, where they are installed. They are no dependency: `pip install dbos` brings it in.

DBOS: a workflow with a given id and an empty body, SQLite as its system database, all settings as they come. A workflow
that was completed under an id is not run again: that is its duplicate check.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_dbos: dict[str, Any] = {}  # the module and the one workflow, while it is launched


def has_dbos() -> bool:
    """Say whether DBOS can be measured here."""
    return importlib.util.find_spec("dbos") is not None


@contextmanager
def dbos_on_sqlite(path: str) -> Iterator[None]:
    """Launch DBOS over a new SQLite file, and end it afterwards."""
    dbos: Any = importlib.import_module("dbos")
    dbos.DBOS(
        config={
            "name": "benchmark",
            "system_database_url": f"sqlite:///{path}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    _dbos.update(module=dbos, workflow=dbos.DBOS.workflow()(_nothing))
    dbos.DBOS.launch()
    try:
        yield
    finally:
        dbos.DBOS.destroy()
        _dbos.clear()


def _nothing() -> None:
    """The work of a workflow whose keeping is to be measured."""


def dbos_runs(runs: int) -> float:
    """Return completed runs a second, each under an id of its own."""
    names = [os.urandom(16).hex() for _ in range(runs)]
    return _workflows(names)


def dbos_duplicates(checks: int) -> float:
    """Return a second's answers for an id whose run is complete."""
    name = os.urandom(16).hex()
    _workflows([name])
    return _workflows([name] * checks)


def _workflows(names: list[str]) -> float:
    with_id, workflow = _dbos["module"].SetWorkflowID, _dbos["workflow"]
    began = time.perf_counter()
    for name in names:
        with with_id(name):
            workflow()
    return len(names) / (time.perf_counter() - began)
