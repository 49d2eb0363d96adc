"""What a benchmark is made of: sizes, measuring in turn, and figures beside their budgets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Sizes:
    """How much is done for each figure. The tests use tiny ones, whose figures say nothing."""

    rounds: int  # how often both sides of most figures are measured
    runs: int  # claims and finishes in one measurement of them
    peer_runs: int  # the same for a peer that is far slower
    checks: int  # duplicate checks in one measurement of them
    renewals: int
    processes: int  # that write at once
    seconds: float  # for which they do, in all rounds together
    starts: int  # of each command
    crowd: int  # processes on one key
    crowds: int
    questions: int  # how often status, show and probe are asked
    few_runs: int
    many_runs: int  # in the ledgers they are asked in
    probed_jobs: int
    probed_days: int
    probed_runs: int  # in the whole ledger
    probes: int
    output_bytes: int  # the longer output; the shorter is a thirtieth of it
    imported_lines: int  # of a hand-made ledger
    imports: int
    messages: int  # delivered in one measurement


FULL = Sizes(
    rounds=10,
    runs=500,
    peer_runs=50,
    checks=20_000,
    renewals=1_000,
    processes=8,
    seconds=15.0,
    starts=40,
    crowd=40,
    crowds=5,
    questions=15,
    few_runs=1_000,
    many_runs=1_000_000,
    probed_jobs=1_000,
    probed_days=30,
    probed_runs=10_000_000,
    probes=5,
    output_bytes=1_000_000_000,
    imported_lines=1_000_000,
    imports=5,
    messages=5_000,
)
QUICK = Sizes(
    rounds=5,
    runs=200,
    peer_runs=20,
    checks=5_000,
    renewals=200,
    processes=8,
    seconds=5.0,
    starts=15,
    crowd=40,
    crowds=2,
    questions=5,
    few_runs=1_000,
    many_runs=200_000,
    probed_jobs=1_000,
    probed_days=30,
    probed_runs=2_000_000,
    probes=3,
    output_bytes=300_000_000,
    imported_lines=200_000,
    imports=3,
    messages=2_000,
)


@dataclass(frozen=True)
class Unit:
    """How a value is printed: `scale` times the value, with so many digits, and a name."""

    name: str
    scale: float = 1.0
    digits: int = 0

    def told(self, value: float) -> str:
        """Return a value as text."""
        return f"{value * self.scale:,.{self.digits}f} {self.name}"


A_SECOND = Unit("/s")
MILLISECONDS = Unit("ms", 1e3, 1)
SECONDS = Unit("s", 1.0, 3)
MEGABYTES = Unit("MB", 1e-6, 1)
MEGABYTES_A_SECOND = Unit("MB/s", 1e-6)
PERCENT_OF_A_CORE = Unit("% of a core", 100, 2)
TIMES = Unit("×")


@dataclass(frozen=True)
class Figure:
    """One figure beside its limit. The budget is a bound of the ratio: at least for rates, at most for durations."""

    name: str
    unit: Unit
    ours: float
    limit: float
    ratio: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the budget is kept."""
        low = self.at_least is None or self.ratio >= self.at_least
        return low and (self.at_most is None or self.ratio <= self.at_most)

    def __str__(self) -> str:
        budget = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        verdict = "ok" if self.met else "MISSED"
        ours, limit = self.unit.told(self.ours), self.unit.told(self.limit)
        return f"{self.name:<66} {ours:>18} {limit:>18} {self.ratio:>8.2f}  {budget:<7} {verdict}"


@dataclass(frozen=True)
class Skipped:
    """A figure that cannot be measured here, and why."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name:<66} skipped: {self.why}"


Line = Figure | Skipped
Benchmark = Callable[[str, Sizes], Iterator[Line]]  # gets an empty folder for its files


def beside(
    name: str,
    unit: Unit,
    ours: Sequence[float],
    limit: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Figure:
    """Return the medians of both sides, and the median of the ratios within each round."""
    ratio = median(our / its for our, its in zip(ours, limit, strict=True))
    return Figure(name, unit, median(ours), median(limit), ratio, at_least, at_most)


def within(name: str, unit: Unit, ours: float, limit: float) -> Figure:
    """Return a figure whose limit is a fixed number: it must not be larger."""
    return Figure(name, unit, ours, limit, ours / limit if limit else ours, at_most=1.0 if limit else 0.0)


def in_turn(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Call the measures A B C A B C …; return what each has found, round by round."""
    found: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for each, measure in zip(found, measures, strict=True):
            each.append(measure())
    return found


def subfolder(folder: str, name: str) -> str:
    """Make a private folder and return its path."""
    path = os.path.join(folder, name)
    os.mkdir(path, 0o700)
    return path
