"""Draw the lifecycle's diagram and table in docs/lifecycle.md from the one table that the code obeys."""

from __future__ import annotations

import sys

from ranonce import lifecycle as rules
from tools.regions import ROOT, write_or_check

OVER = "over"  # running, but the lease has ended or the process was proved dead

#: Where each situation is drawn.
NODES = {
    rules.NONE: "[*]",
    rules.MINE: rules.RUNNING,
    rules.BUSY: rules.RUNNING,
    rules.LAPSED: OVER,
    rules.ZOMBIE: OVER,
    rules.FAILED: rules.FAILED,
    rules.STOPPED: rules.STOPPED,
    rules.HELD: rules.HELD,
    rules.DONE: rules.DONE,
}
#: What each move means in a cell of the table, and the states it can lead to. A refusal leads nowhere.
MOVES: dict[str, tuple[str, tuple[str, ...]]] = {
    rules.START: ("running, attempt 1", (rules.RUNNING,)),
    rules.RETRY: ("running, next attempt; or refused: waiting, exhausted", (rules.RUNNING,)),
    rules.RESUME: ("running, next attempt; or refused: waiting", (rules.RUNNING,)),
    rules.TAKE_OVER: (
        "`expired`, then by `on_crash`: running, next attempt (`reconcile` looks first); held; or exhausted",
        (rules.RUNNING, rules.HELD, rules.FAILED),
    ),
    rules.REGENERATE: ("running, next generation", (rules.RUNNING,)),
    rules.KEEP: ("the same claim", ()),
    rules.EXTEND: ("the lease is extended", ()),
    rules.RECLAIM: ("the same attempt, if no other window of the job has begun meanwhile", (rules.RUNNING,)),
    rules.SETTLE: ("the outcome", (rules.DONE, rules.FAILED, rules.STOPPED, rules.HELD)),
    rules.SETTLE_LATE: (
        "the outcome, marked late (the same attempt only)",
        (rules.DONE, rules.FAILED, rules.STOPPED, rules.HELD),
    ),
    rules.FREE: ("done, or failed with one more attempt", (rules.DONE, rules.FAILED)),
    rules.NO_RUN: ("refused: never ran", ()),
    rules.REFUSE_BUSY: ("refused: busy", ()),
    rules.REFUSE_HELD: ("refused: held", ()),
    rules.REFUSE_DONE: ("refused: done", ()),
    rules.REFUSE_LOST: ("refused: lost", ()),
    rules.REFUSE_NOT_HELD: ("refused: nothing to release", ()),
}
SITUATIONS = {
    rules.NONE: "nothing recorded",
    rules.MINE: "running, the lease lives, the asker's own",
    rules.BUSY: "running, the lease lives, another's",
    rules.LAPSED: "running, the lease is over, the asker's own",
    rules.ZOMBIE: "running, the lease is over or its process is proved dead, another's",
    rules.FAILED: "failed",
    rules.STOPPED: "stopped",
    rules.HELD: "held",
    rules.DONE: "done",
}
ASKED = (rules.CLAIM, rules.RENEW, rules.FINISH, rules.RERUN, rules.RELEASE)


def diagram() -> str:
    """Return the diagram as Mermaid text."""
    edges: dict[tuple[str, str], list[str]] = {(rules.RUNNING, OVER): ["the lease ends, or death is proved"]}
    for situation, row in rules.TABLE.items():
        for asked, move in row.items():
            for state in MOVES[move][1]:
                label = f"{asked}, late" if move == rules.SETTLE_LATE else asked
                labels = edges.setdefault((NODES[situation], state), [])
                if label not in labels and NODES[situation] != state:
                    labels.append(label)
    lines = ["stateDiagram-v2", f"    {OVER}: running, lease over"]
    lines += [f"    {start} --> {end}: {' / '.join(labels)}" for (start, end), labels in edges.items() if labels]
    return "```mermaid\n" + "\n".join(lines) + "\n```"


def table() -> str:
    """Return the table of situations and what can be asked, as Markdown."""
    lines = [f"| the run is \\ asked | {' | '.join(ASKED)} |", "| --- |" + " --- |" * len(ASKED)]
    for situation, row in rules.TABLE.items():
        cells = " | ".join(MOVES[row[asked]][0] for asked in ASKED)
        lines.append(f"| {SITUATIONS[situation]} | {cells} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is up to date; return the exit status."""
    page = ROOT / "docs" / "lifecycle.md"
    return write_or_check(page, {"diagram": diagram(), "table": table()}, check=arguments == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
