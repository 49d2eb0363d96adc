"""What this host remembers of takes, so that a restored ledger sends nothing twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ranonce.delivery.witness import Witness
from tests.delivery.outboxes import receiver
from tests.world import World


def test_what_was_seen_is_remembered_by_the_next_process(tmp_path: Path) -> None:
    assert Witness(str(tmp_path)).note("web", 7) is None
    assert Witness(str(tmp_path)).seen("web") == 7
    assert Witness(str(tmp_path)).seen("other") == 0


def test_only_a_higher_version_is_noted(tmp_path: Path) -> None:
    witness = Witness(str(tmp_path))
    witness.note("web", 7)
    witness.note("web", 6)
    assert Witness(str(tmp_path)).seen("web") == 7


def test_a_version_that_was_dealt_with_is_put_down(tmp_path: Path) -> None:
    Witness(str(tmp_path)).note("web", 1000)
    Witness(str(tmp_path)).put("web", 3)
    assert Witness(str(tmp_path)).seen("web") == 3


def test_an_accepted_loss_begins_anew(tmp_path: Path) -> None:
    Witness(str(tmp_path), epoch=1).note("web", 7)
    assert Witness(str(tmp_path), epoch=2).seen("web") == 0


@pytest.mark.parametrize("content", [b"", b"\0" * 42, b"7", b"one two\n", b"1 2 3\n"])
def test_a_file_that_was_torn_says_nothing(tmp_path: Path, content: bytes) -> None:
    Witness(str(tmp_path)).note("web", 7)
    (tmp_path / "taken" / "web").write_bytes(content)
    assert Witness(str(tmp_path)).seen("web") == 0


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("in the way")
    assert "could not be written" in (Witness(str(tmp_path)).note("web", 1) or "")


@pytest.mark.parametrize("dedupes", [False, "24h"])
def test_a_ledger_that_was_restored_sends_nothing_twice_where_that_would_count(world: World, dedupes: object) -> None:
    """The copy is from after the run and before its delivery: the journal has nothing against it."""
    file = receiver(world, "web", dedupes=dedupes)
    done = world.run("--window", "2025-11-10", sh="echo hi | $RANONCE emit web")
    assert done.exit == 0, done.err
    copy = world.root / "older.db"
    assert world.ranonce("backup", str(copy)).exit == 0
    assert world.ranonce("deliver").exit == 0
    for beside in ("-wal", "-shm"):
        Path(f"{world.store}{beside}").unlink(missing_ok=True)
    shutil.copy(copy, world.store)
    again = world.ranonce("deliver")
    received = file.read_text().splitlines()
    if dedupes:
        assert (again.exit, len(received), len(set(received))) == (0, 2, 1)
    else:
        assert (again.exit, len(received)) == (80, 1)
        assert "an older copy was restored" in again.err
        assert "unsure=1" in again.err
