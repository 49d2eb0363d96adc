"""What is asked of every server: how long it takes to answer, and what its own check finds."""

from __future__ import annotations

import time

from ranonce.doctor.finding import NOTE, OK, RESTORE, Check
from ranonce.names import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ranonce.doctor.finding import Finding
    from ranonce.stores.base import Store

#: So often a server is asked for nothing but the time.
TIMES = 5
#: A trigger asks a server some four times; an answer that takes this long is felt.
SLOW_SECONDS = 0.1


def round_trip(store: Store, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """See how long the server takes to answer."""
    check = Check("round-trip", f"asked the server for the time, {TIMES} times")
    took = []
    for _ in range(TIMES):
        began = clock()
        store.clock()
        took.append(clock() - began)
    seen = f"it answers in {min(took) * 1000:.1f} ms (at worst {max(took) * 1000:.1f})"
    if min(took) > SLOW_SECONDS:
        yield check.note(seen, "a trigger asks about four times: let the jobs run nearer to it")
    else:
        yield check.ok(seen)


def told(
    check: Check,
    promised: Iterable[tuple[str, str]],
    todo: Callable[[str], str],
    hint: Callable[[str], str] = lambda seen: "",
) -> Iterator[Finding]:
    """Return what a server's promise is, level and sentence each, as findings; `todo` says what helps with a problem,
    and `hint` what may be done about a note."""
    for level, sentence in promised:
        seen = plain(sentence)
        if level == OK:
            yield check.ok(seen)
        elif level == NOTE:
            yield check.note(seen, hint(seen))
        else:
            yield check.problem(seen, todo(seen))


def integrity(store: Store, *, deep: bool, todo: Callable[[str], str] = lambda seen: RESTORE) -> Iterator[Finding]:
    """Let the store check itself; `deep` reads all of it."""
    check = Check("integrity", "let the store check itself" + (", all of it" if deep else ""))
    found = store.upkeep().problems(deep=deep)
    for line in found:
        yield check.problem(plain(line), todo(line))
    if not found:
        yield check.ok("nothing is wrong" + ("" if deep else "; --deep reads all of it"))
