"""Run one command as `ranonce run` does, and say in a file how it ended. Tests signal, starve and kill this process.

The only argument is a JSON object: `argv` and the options of `run_child`, and
  report       the file for JSON lines: {"pid": …} when the child exists, then {"ended": …}
  attempt      [state folder, owner]: keep an attempt's file, and let the child inherit it
  hang         do not open the gate: sleep in `on_started`
  stuck, hold  the bounds of the output in seconds
  subreaper    become one, and report the zombies that are left
  repeat       run the command so often
  die          end as `ranonce run` does: by the signal that stopped us
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

from ranonce import output
from ranonce.liveness import AttemptFile, look_at, this_host
from ranonce.process import Ending, SpawnFailed, run_child
from ranonce.signals import Signals, die_by, hold_standard_streams

PR_SET_CHILD_SUBREAPER = 36


def told(ending: Ending | SpawnFailed) -> dict[str, object]:
    if isinstance(ending, SpawnFailed):
        return {"spawn_failed": ending.exit, "sentence": ending.sentence}
    kept = ending.output
    return {
        **ending.as_dict(),
        "leftovers": [left.as_dict() for left in ending.leftovers],
        "output": kept
        and {"head": kept.head.decode("latin-1"), "tail": kept.tail.decode("latin-1"), "total": kept.total},
        "peak_kib": peak_kib(),
    }


def peak_kib() -> int:
    """The most memory this program had. (The resource usage of a process begins with that of the one it came from.)"""
    if not os.path.exists("/proc/self"):
        return 0
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def zombies() -> int:
    """How many of the processes we see are dead and not collected."""
    if not os.path.exists("/proc/self"):
        return 0
    seen = (look_at(int(entry)) for entry in os.listdir("/proc") if entry.isdecimal())
    return sum(process is not None and process.dead and os.getpid() in (1, parent(process.pid)) for process in seen)


def parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except FileNotFoundError:  # collected by its parent while we looked
        return 0


def main() -> None:
    hold_standard_streams()
    options = json.loads(sys.argv[1])
    report = os.open(options.pop("report"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    argv, attempt, hang = options.pop("argv"), options.pop("attempt", None), options.pop("hang", False)
    repeat, die = options.pop("repeat", 1), options.pop("die", False)
    output.STUCK_SECONDS = options.pop("stuck", output.STUCK_SECONDS)
    output.HOLD_SECONDS = options.pop("hold", output.HOLD_SECONDS)
    if options.pop("subreaper", False):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def tell(**what: object) -> None:
        os.write(report, json.dumps(what).encode() + b"\n")

    with Signals() as signals:
        file = AttemptFile.create(*attempt, this_host()) if attempt else None

        def started(pid: int) -> None:
            if file:
                file.child_started(pid)
            tell(pid=pid)
            if hang:
                time.sleep(60)

        tell(ready=os.getpid())
        for _ in range(repeat):
            inherit = (file.fd,) if file else ()
            ending = run_child(
                argv, env=dict(os.environ), signals=signals, inherit=inherit, on_started=started, **options
            )
            tell(ended=told(ending), zombies=zombies(), first=signals.first)
        if file:
            file.remove()
    if die and signals.first:
        die_by(signals.first)


if __name__ == "__main__":
    main()
