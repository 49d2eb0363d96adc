"""A nightly job in Python: one comment an issue, each emitted with its item, and a summary with the outcome."""

from __future__ import annotations

import time

from ranonce import Run, job

ISSUES = range(1, 41)


@job("comments", every="day")
def comments(run: Run) -> None:
    """Look at every issue and comment on it."""
    for issue in run.items(ISSUES):
        time.sleep(0.05)  # what a model needs to think
        run.emit("board", {"issue": issue, "body": f"seen in the night of {run.window}"})
    run.emit("board", {"issue": 0, "body": f"{len(ISSUES)} issues were looked at"})


if __name__ == "__main__":
    comments.main()
