"""`make example`: a job, deliverers and web workers are killed, and each comment is on the board once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_example_has_each_comment_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.side_effects"],
        cwd=ROOT,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The job was killed after" in done.stdout
    assert "The board has 41 comments on 41 things: each once." in done.stdout
    assert not list(tmp_path.iterdir())
