"""`ranonce drill` as a person calls it: on every store everything holds, and whatever ends it, nothing is left."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranonce.cli import main
from ranonce.drill import SCENARIOS, stage
from ranonce.errors import StoreUnavailable
from ranonce.signals import STOP_SIGNALS
from ranonce.stores import open_store
from ranonce.stores.sqlite.site import SqliteSite
from tests.conftest import RANONCE, lives, wait_until
from tests.programs import faulty


@pytest.fixture
def place(world):
    """Let the drills of a world keep their folders in it, and return where."""
    folder = world.root / "temporary"
    folder.mkdir()
    world.env["TMPDIR"] = str(folder)
    return folder


def drill_processes(world):
    """Return everything of this world's drills that still works: their hosts share a mark of its environment."""
    mark = f"TMPDIR={world.env['TMPDIR']}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if mark in environment.split(b"\0") and lives(int(entry)):
                found.append(int(entry))
    return found


def beside(world):
    """Return what stands beside the ledger in its folder."""
    return sorted(path.name for path in world.store.parent.iterdir() if path.name.startswith("ranonce-scratch"))


def started(world, place, *words):
    """Start a drill, and return it once it has a scratch ledger and processes at work."""
    drill = world.start("drill", "--rounds", "50", *words)
    wait_until(lambda: list(place.glob("*/scratch")) and len(drill_processes(world)) > 4)
    return drill


def drilled_here(world, monkeypatch):
    """Run a drill in this process, which may be patched; return its exit status."""
    monkeypatch.setattr(os, "environ", {**world.env, "RANONCE_STORE": world.url})
    monkeypatch.setattr("tempfile.tempdir", world.env["TMPDIR"])
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        return main(["drill", "--rounds", "2"])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# --- what it says ---------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@pytest.mark.every_store
def test_everything_holds_and_the_ledger_beside_it_is_not_touched(world, place, store_kind):
    world.run()
    before = list(open_store(world.url, wait_seconds=20).upkeep().all_events()), world.journal.read_bytes()
    ran = world.ranonce("drill", "--rounds", "2", "--json", seconds=280)
    told = [json.loads(line) for line in ran.out.decode().splitlines()]
    assert (ran.exit, ran.err) == (0, ""), ran.out.decode()
    assert [each["scenario"] for each in told] == list(SCENARIOS)
    untried = [each["scenario"] for each in told if each["result"] == "untried"]
    assert untried == (["locked-store"] if store_kind == "redis" else [])
    assert all(each["held"] == each["of"] > 0 and each["dead"] == 0 for each in told if each["result"] == "held")
    assert (list(open_store(world.url, wait_seconds=20).upkeep().all_events()), world.journal.read_bytes()) == before
    assert list(place.iterdir()) == []
    assert drill_processes(world) == []
    if store_kind == "sqlite":
        assert beside(world) == []


def test_a_fault_exits_1_and_its_evidence_follows_its_line(world, place, monkeypatch, capsys):
    monkeypatch.setattr(stage, "program", lambda: (sys.executable, faulty.__file__, "dies"))
    monkeypatch.setattr("ranonce.drill.SCENARIOS", {name: SCENARIOS[name] for name in ("single-winner", "wiped-host")})
    assert drilled_here(world, monkeypatch) == 1
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"drill on {world.url}"
    assert re.match(r"BROKEN  1/2 single-winner: 8 processes wanted .*; 8 dead$", lines[0])
    assert lines[1] == "        process 1 died (exit 1) while it was to claim: RuntimeError: the disk fell off"
    assert lines[-2].startswith("held    4/4 wiped-host: ")
    assert lines[-1] == "held=1 broken=1 untried=0"


def test_a_scratch_ledger_that_stays_is_named_and_the_store_is_unavailable(world, place, monkeypatch, capfd):
    def away(site):
        raise StoreUnavailable("the server is away.")

    monkeypatch.setattr("ranonce.drill.SCENARIOS", {"single-winner": SCENARIOS["single-winner"]})
    monkeypatch.setattr(SqliteSite, "destroy", away)
    assert drilled_here(world, monkeypatch) == 69
    said = capfd.readouterr()
    assert said.out.endswith("held=1 broken=0 untried=0\n")
    (scratch,) = beside(world)
    assert said.err == (
        f"ranonce: the scratch ledger sqlite:///{world.store.parent}/{scratch}/ledger.db could not be removed:"
        " the server is away. The next drill on this store removes it.\n"
    )


def test_it_stops_at_its_deadline_and_does_not_call_held_what_it_had_no_time_for(world, place):
    began = time.monotonic()
    ran = world.ranonce("drill", "--deadline", "4s")
    assert time.monotonic() - began < 40
    assert ran.exit == 1
    first, *lines = ran.out.decode().splitlines()
    assert first == f"drill on {world.url}"
    assert lines[-2] == "untried one-story: not tried: the drill's time is over"
    assert len(lines) == len(SCENARIOS) + 1
    assert beside(world) == []


def test_progress_is_shown_on_a_terminal_and_taken_away_again(world, place):
    controller, terminal = pty.openpty()
    words = (*RANONCE, "drill", "--rounds", "2", "--deadline", "6s")
    with subprocess.Popen(words, env=world.env, stdout=subprocess.PIPE, stderr=terminal) as drill:
        os.close(terminal)
        shown = b""
        while select.select([controller], [], [], 60)[0]:
            try:
                shown += os.read(controller, 65536)
            except OSError:
                break  # the drill has ended
        out = drill.stdout.read()
    os.close(controller)
    assert b"single-winner 1/2" in shown
    assert shown.endswith(b"\r\x1b[K")
    assert b"\x1b" not in out


# --- whatever ends it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_drill_that_is_told_to_end_leaves_nothing_and_ends_by_the_signal(world, place, number):
    drill = started(world, place)
    assert len(beside(world)) == 1
    drill.signal(number)
    ran = drill.ends()
    assert (ran.exit, ran.err) == (-number, "")
    assert drill_processes(world) == []
    assert beside(world) == []
    assert list(place.iterdir()) == []


def test_a_second_signal_does_not_disturb_the_tidying_up(world, place):
    drill = started(world, place)
    for _ in range(5):
        drill.signal(signal.SIGINT)
        drill.signal(signal.SIGTERM)
    assert drill.ends().exit in (-signal.SIGINT, -signal.SIGTERM)
    assert drill_processes(world) == []
    assert beside(world) == []
    assert list(place.iterdir()) == []


def test_the_processes_of_a_killed_drill_end_and_the_next_one_removes_what_it_left(world, place):
    drill = started(world, place)
    drill.signal(signal.SIGKILL)
    drill.ends()
    wait_until(lambda: drill_processes(world) == [])
    (folder,) = place.iterdir()
    (scratch,) = beside(world)
    assert re.fullmatch(r"ranonce-scratch-drill_[0-9]{8}t[0-9]{6}_[0-9a-f]{8}", scratch)
    an_hour_ago = time.time() - 3600
    os.utime(folder, (an_hour_ago, an_hour_ago))
    assert world.ranonce("drill", "--rounds", "1", "--deadline", "2s").exit == 1
    assert beside(world) == []
    assert list(place.iterdir()) == []


def test_a_reader_who_has_seen_enough_ends_it(world, place):
    drill = started(world, place)
    drill.process.stdout.close()
    drill.process.stdout = None
    assert drill.ends(seconds=60).exit == 141
    assert drill_processes(world) == []
    assert beside(world) == []


# --- what it cannot use ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("--rounds", "0"), 64, "--rounds: 0 is out of range."),
        (("--rounds", "1001"), 64, "--rounds: 1001 is out of range."),
        (("--deadline", "0"), 64, "--deadline: 0 is no time."),
        (("--store", "memory:"), 78, "cannot be kept."),
        (("--store", "sqlite:////proc/nowhere/ledger.db"), 69, "No such file or directory"),
        (("extra",), 64, "'extra' is one argument too many."),
    ],
)
def test_what_cannot_be_used_is_one_sentence(world, place, words, status, sentence):
    ran = world.ranonce("drill", *words)
    assert ran.exit == status
    assert sentence in ran.sentence
    assert list(place.iterdir()) == []


def test_no_ledger_and_no_configuration_are_needed(bare, place):
    where = bare.root / "elsewhere" / "ledger.db"
    where.parent.mkdir()
    ran = bare.ranonce("drill", "--rounds", "1", "--deadline", "3s", "--store", f"sqlite:///{where}")
    assert ran.out.startswith(f"drill on sqlite:///{where}\nheld    1/1 single-winner".encode())
    assert list(where.parent.iterdir()) == []


def test_the_jobs_of_the_configuration_play_no_part(world, place):
    world.config.write_text(world.config.read_text() + '\n[jobs.race]\nevery = "never ever"\n')
    ran = world.ranonce("drill", "--rounds", "1", "--deadline", "3s")
    assert b"\nheld    1/1 single-winner" in ran.out
