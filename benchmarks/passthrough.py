"""The output of a child on its way through `ranonce run`, beside its way through `cat`.

On both sides a pipe goes in and a pipe comes out, and we read at the end of it. The rate counts from the first byte to
the last, so that neither start counts.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator

from benchmarks.claims import FIRST_START, LEDGER_ID
from benchmarks.installation import Finished, Installation, start
from benchmarks.measure import MEGABYTES, MEGABYTES_A_SECOND, Line, Sizes, beside, in_turn, subfolder
from ranonce.stores.sqlite.create import create
from ranonce.timefmt import DAY, format_instant

SHORTER = 30  # the shorter output is a thirtieth of the longer
READ_BYTES = 256 * 1024
ALLOWED_GROWTH = 1.1


class Passing:
    """Programs that print, and what passes their output on."""

    def __init__(self, folder: str) -> None:
        self._installed = Installation(folder)
        path = os.path.join(subfolder(folder, "ledger"), "ledger.db")
        create(path, LEDGER_ID)
        self._environment = self._installed.environment(RANONCE_STORE=f"sqlite:///{path}", RANONCE_LEDGER=LEDGER_ID)
        self._days = itertools.count()

    def through_ranonce(self, size: int) -> float:
        """Return bytes a second of a run whose command prints `size` bytes."""
        return self._read(self._run(size), size)

    def memory(self, size: int) -> float:
        """Return the peak memory, in bytes, of such a run."""
        return self._installed.peak_memory(self._run(size), self._environment)

    def through_cat(self, size: int) -> float:
        """Return bytes a second of `head -c SIZE /dev/zero | cat`."""
        return self._read(["/bin/sh", "-c", f"head -c {size} /dev/zero | cat"], size)

    def _run(self, size: int) -> list[str]:
        day = format_instant(FIRST_START + next(self._days) * DAY)
        run = [self._installed.ranonce, "run", "talker", "--every", "day", "--now", day, "--"]
        return [*run, "head", "-c", str(size), "/dev/zero"]

    def _read(self, command: list[str], size: int) -> float:
        source, target = os.pipe()
        began = time.perf_counter()
        pid = start(command, self._environment, output=target)
        os.close(target)
        buffer = memoryview(bytearray(READ_BYTES))
        total = os.readv(source, [buffer])
        first = last = time.perf_counter()
        while count := os.readv(source, [buffer]):
            total += count
            last = time.perf_counter()
        os.close(source)
        ended = Finished(pid, began)
        assert (ended.exit, total) == (0, size), (ended.exit, total, size)
        return total / (last - first)


def output(folder: str, sizes: Sizes) -> Iterator[Line]:
    """A long output and a short one: the rate of the long one, and the memory of both."""
    passing = Passing(folder)
    long, short = sizes.output_bytes, sizes.output_bytes // SHORTER
    rates = in_turn(3, lambda: passing.through_ranonce(long), lambda: passing.through_cat(long))
    yield beside("output of a child, beside cat", MEGABYTES_A_SECOND, *rates, at_least=0.5)
    peaks = in_turn(1, lambda: passing.memory(long), lambda: passing.memory(short))
    told = f"memory, with {long / 1e6:,.0f} MB of output, beside {short / 1e6:,.0f} MB"
    yield beside(told, MEGABYTES, *peaks, at_most=ALLOWED_GROWTH)
