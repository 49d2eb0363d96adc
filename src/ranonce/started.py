"""How a job is started that is a Python program, or a function in one: the starts in its story say so.

No configuration has to declare such a job, so what stands there is all that can be told to who must start it again.
"""

from __future__ import annotations

from ranonce.names import plain
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.base import Store

#: What an event `start` calls them.
PROGRAM, FUNCTION = "program", "function"
#: So many of a job's newest runs are looked at: a person may have started one of them in another way.
RUNS_LOOKED_AT = 5


class Started(Record):
    """A Python job: the program that is its command line (the words of a shell), or else the function."""

    program: str = ""
    function: str = ""

    def again(self, window: str) -> str:
        """Say how a window is started once more."""
        if self.program:
            return f"{self.program} --window {window}"
        return f"call it from Python: {self.function}(window={window!r})"

    @property
    def command(self) -> str:
        """What stands after -- where `ranonce rerun` and `backfill` start it."""
        return self.program or f"PROGRAM (which calls {self.function}())"

    @property
    def way(self) -> str:
        """How it was started, for people."""
        return self.program or f"a call of {self.function}()"


def python_start(store: Store, job: str) -> Started | None:
    """Return how a job was started from Python at last; None for one that no Python program has started lately."""
    for run in store.latest(job, RUNS_LOOKED_AT):
        events = store.events(job, run.window_start, run.window_start + 1)
        for event in reversed([event for event in events if event.event == "start"]):
            program, function = (event.data.get(name) for name in (PROGRAM, FUNCTION))
            if program or function:
                return Started(plain(str(program or "")), plain(str(function or "")))
    return None
