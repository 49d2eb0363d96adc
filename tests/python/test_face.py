"""Importing the Python face and declaring jobs opens nothing, starts nothing and touches no file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DECLARING = """
import sys
seen = []
def hook(event, arguments):
    if event == "open" and not str(arguments[0]).endswith((".py", ".pyc", ".so")):
        seen.append((event, arguments[0]))
    if event in ("os.fork", "os.mkdir", "os.exec", "_thread.start_new_thread") or event.split(".")[0] in (
        "sqlite3", "socket", "subprocess"
    ):
        seen.append((event, arguments))
sys.addaudithook(hook)
from ranonce import Job, Ledger, Receipt, Refusal, Run, Stop, job

@job("nightly", every="0 2 * * *", uses="model-api")
def nightly(run): ...

@job("later", every="day")
async def later(run): ...

print(seen, *(name for name in ("sqlite3", "psycopg", "asyncio") if name in sys.modules))
"""


def test_declaring_jobs_opens_nothing_and_loads_no_driver(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RANONCE_", "XDG_"))}
    env |= {"HOME": str(tmp_path)}
    words = [sys.executable, "-B", "-c", DECLARING]
    ran = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n", ran.stderr
    assert list(tmp_path.iterdir()) == []
