"""The same work done by others, where they are installed. They are no dependency: `pip install dbos` brings it in."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from typing import Any, Self


def has_dbos() -> bool:
    """Say whether DBOS can be measured here."""
    return importlib.util.find_spec("dbos") is not None


class Dbos:
    """DBOS over a new SQLite file, all settings as they come: workflows with a given id and an empty body.

    A workflow that was completed under an id is not run again: that is its duplicate check.
    """

    def __init__(self, path: str) -> None:
        dbos: Any = importlib.import_module("dbos")
        url = f"sqlite:///{path}"
        dbos.DBOS(
            config={
                "name": "benchmark",
                "system_database_url": url,
                "run_admin_server": False,
                "log_level": "ERROR",
            }
        )
        self._under_id = dbos.SetWorkflowID
        self._workflow = dbos.DBOS.workflow()(_nothing)
        self._destroy = dbos.DBOS.destroy
        dbos.DBOS.launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._destroy()

    def claim_and_finish(self, runs: int) -> float:
        """Return completed workflows a second, each under an id of its own."""
        return self._rate([os.urandom(16).hex() for _ in range(runs)])

    def check_again(self, checks: int) -> float:
        """Return a second's answers for an id whose workflow is complete."""
        name = os.urandom(16).hex()
        self._rate([name])
        return self._rate([name] * checks)

    def _rate(self, names: list[str]) -> float:
        began = time.perf_counter()
        for name in names:
            with self._under_id(name):
                self._workflow()
        return len(names) / (time.perf_counter() - began)


def _nothing() -> None:
    """The work of a workflow whose keeping is to be measured."""
