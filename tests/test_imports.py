"""What is loaded when: importing opens nothing, and nothing joins the start of `ranonce run` unnoticed.

Every module here is paid for at each start of a job. One that is new belongs into the list only if a plain run needs
it; otherwise it is imported inside the function that does.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import NOON

#: What a plain run on SQLite may import from the standard library (and what these bring along).
STANDARD = """__future__ _json _signal binascii collections datetime errno fcntl functools gc itertools os select
sqlite3 sys time""".split()  # noqa: SIM905

#: Our own modules of a run whose store is named by the environment.
PLAIN = {
    "ranonce",
    "ranonce.attempt",
    "ranonce.calendars",
    "ranonce.catchup",
    "ranonce.claimant",
    "ranonce.cli",
    "ranonce.cli.invoking",
    "ranonce.cli.joboptions",
    "ranonce.cli.opening",
    "ranonce.cli.options",
    "ranonce.cli.run",
    "ranonce.config",
    "ranonce.errors",
    "ranonce.failpoints",
    "ranonce.heartbeat",
    "ranonce.invocation",
    "ranonce.jobspec",
    "ranonce.journal",
    "ranonce.jsontext",
    "ranonce.ledger",
    "ranonce.lifecycle",
    "ranonce.liveness",
    "ranonce.names",
    "ranonce.output",
    "ranonce.process",
    "ranonce.receipts",
    "ranonce.record",
    "ranonce.settings",
    "ranonce.sight",
    "ranonce.signals",
    "ranonce.signs",
    "ranonce.spawn",
    "ranonce.stores",
    "ranonce.stores.base",
    "ranonce.stores.sqlite",
    "ranonce.stores.sqlite.file",
    "ranonce.stores.sqlite.line",
    "ranonce.stores.sqlite.rows",
    "ranonce.stores.sqlite.store",
    "ranonce.stores.statements",
    "ranonce.storeurl",
    "ranonce.terms",
    "ranonce.timefmt",
    "ranonce.windows",
    "ranonce.wrap",
}
#: What reading a configuration file adds.
CONFIGURED = {"ranonce.configread", "ranonce.tomlplain", "ranonce.trust"}
#: What a cron rule in a named zone adds.
ZONED = {"ranonce.cron", "ranonce.dialects", "ranonce.zones"}

#: What only a window that is to be worked on needs.
WORKING = {
    "ranonce.attempt",
    "ranonce.claimant",
    "ranonce.heartbeat",
    "ranonce.output",
    "ranonce.process",
    "ranonce.sight",
    "ranonce.signs",
    "ranonce.spawn",
}

ENTRY = "from ranonce.cli import entry; entry()"


def imported(code, *arguments, env):
    """Return the modules that a program imports, from the interpreter's own report."""
    words = [sys.executable, "-X", "importtime", "-c", code, *arguments]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    report = [line.split("|")[-1].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")]
    return set(report) - {"imported package"}


def of_a_run(world, *words, env=None):
    arguments = ("run", "job", "--now", NOON, *words, "--", "true")
    return imported(ENTRY, *arguments, env=env or world.env)


def split(modules):
    ours = {name for name in modules if name.split(".")[0] == "ranonce"}
    return ours, modules - ours


def test_a_plain_run_loads_what_is_listed_here_and_no_more(world):
    store = {"RANONCE_STORE": f"sqlite:///{world.store}", "RANONCE_LEDGER": world.ledger}
    env = {**world.env, **store, "XDG_CONFIG_HOME": str(world.root / "no config")}
    ours, others = split(of_a_run(world, "--every", "day", env=env))
    assert ours == PLAIN
    allowed = imported(f"import {', '.join(STANDARD)}, _ctypes", env=world.env)
    assert others - allowed == set()


def test_a_declared_job_loads_the_reader_of_its_file_besides(world):
    ours, others = split(of_a_run(world, "--every", "day"))
    assert ours == PLAIN | CONFIGURED
    allowed = imported(f"import {', '.join(STANDARD)}, _ctypes", env=world.env)
    assert others - allowed == set()


def test_a_trigger_for_a_window_that_is_done_loads_nothing_to_work_with(world):
    of_a_run(world, "--every", "day")
    ours, _ = split(of_a_run(world, "--every", "day"))
    assert ours == (PLAIN | CONFIGURED) - WORKING


def test_a_named_zone_is_loaded_only_by_those_who_name_one(world):
    ours, others = split(of_a_run(world, "--every", "0 2 * * *", "--tz", "Europe/Berlin"))
    assert ours <= PLAIN | CONFIGURED | ZONED
    assert "zoneinfo" in others


@pytest.mark.parametrize(
    ("store_kind", "other"), [("postgres", "redis"), ("redis", "postgres")], indirect=["store_kind"]
)
def test_a_run_on_a_server_loads_that_store_and_nothing_that_only_its_owner_needs(world, other):
    store = {"RANONCE_STORE": world.url, "RANONCE_LEDGER": world.ledger}
    env = {**world.env, **store, "XDG_CONFIG_HOME": str(world.root / "no config")}
    ours, others = split(of_a_run(world, "--every", "day", env=env))
    assert not {name for name in ours if f"stores.{other}" in name or "stores.sqlite" in name}
    rare = ("site", "recovery", "upkeep", "intake", "check", "problems", "pruning")
    assert not {name for name in ours if name.endswith(rare) and ".stores." in name}
    assert "sqlite3" not in others
    assert {"ranonce.serverurl", "ranonce.stores.values"} <= ours


def test_importing_the_package_opens_nothing(tmp_path):
    code = (
        "import os, sys\n"
        "seen = []\n"
        "def hook(event, arguments):\n"
        "    if event == 'open' and not str(arguments[0]).endswith(('.py', '.pyc')):\n"
        "        seen.append((event, arguments[0]))\n"
        "    doing = event in ('os.fork', 'os.mkdir', 'os.exec')\n"
        "    if doing or event.split('.')[0] in ('sqlite3', 'socket', 'subprocess'):\n"
        "        seen.append((event, arguments))\n"
        "sys.addaudithook(hook)\n"
        "import ranonce, ranonce.cli, ranonce.ledger, ranonce.wrap, ranonce.stores\n"
        "print(seen)\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("RANONCE_")}
    env |= {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    words = [sys.executable, "-B", "-c", code]
    ran = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n", ran.stderr
    assert list(tmp_path.iterdir()) == []
