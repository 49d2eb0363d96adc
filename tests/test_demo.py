"""`make demo` shows what it says, leaves nothing behind, and notices when something else happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def demo(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo.first_night", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_the_demo_shows_a_bad_night_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one trigger did the work, seven were refused" in done.stdout
    assert "taken over at once and done as attempt 2" in done.stdout
    assert "the probe is clean" in done.stdout
    assert done.stdout.rstrip().endswith("seconds.")
    assert not list(tmp_path.iterdir())


def test_the_demo_fails_when_what_happens_is_not_what_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from demo import first_night

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(first_night.Nights, "started", lambda *_: ["started twice", "by its own count"])
    assert first_night.main([]) == 1
    assert "NOT as it was meant to be" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_demo_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    done = demo(tmp_path, "--fast")
    assert done.returncode == 64
    assert "usage" in done.stderr
