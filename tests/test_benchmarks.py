"""Every benchmark, with tiny sizes: whether it measures what it says. How fast anything is, is not asked here."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import claims, commands, contention, delivery, importing, passthrough, peers, planted, questions
from benchmarks.__main__ import BENCHMARKS, about, main
from benchmarks.measure import A_SECOND, MILLISECONDS, Benchmark, Figure, Line, Sizes, Skipped, beside, in_turn, within

from ranonce.stores.sqlite.store import SqliteStore
from ranonce.windows import Schedule

TINY = Sizes(
    rounds=2,
    runs=4,
    peer_runs=2,
    checks=20,
    renewals=3,
    processes=2,
    seconds=0.1,
    starts=1,
    crowd=4,
    crowds=1,
    questions=1,
    few_runs=1_000,
    many_runs=2_000,
    probed_jobs=4,
    probed_days=2,
    probed_runs=400,
    probes=1,
    output_bytes=3_000_000,
    imported_lines=3_000,
    imports=1,
    messages=12,
)


@pytest.fixture
def figures(tmp_path: Path) -> Callable[[Benchmark], list[Line]]:
    return lambda benchmark: list(benchmark(str(tmp_path), TINY))


def names(lines: list[Line]) -> list[str]:
    return [line.name for line in lines]


def exact(lines: list[Line], name: str) -> float:
    """Return our value of the figure whose name ends so."""
    return next(line.ours for line in lines if isinstance(line, Figure) and line.name.endswith(name))


def test_a_ratio_is_the_median_of_the_ratios_within_each_round() -> None:
    figure = beside("rate", A_SECOND, [10, 60, 100], [10, 20, 200], at_least=0.75)
    assert (figure.ours, figure.limit, figure.ratio) == (60, 20, 1.0)


@pytest.mark.parametrize(("ratio", "met"), [(0.74, False), (0.75, True), (2.0, True)])
def test_a_rate_must_be_at_least_its_budget(ratio: float, met: bool) -> None:
    figure = beside("rate", A_SECOND, [ratio], [1.0], at_least=0.75)
    assert figure.met == met
    assert str(figure).endswith("ok" if met else "MISSED")


@pytest.mark.parametrize(("ratio", "met"), [(1.0, True), (1.8, True), (1.81, False)])
def test_a_duration_must_be_at_most_its_budget(ratio: float, met: bool) -> None:
    assert beside("duration", MILLISECONDS, [ratio], [1.0], at_most=1.8).met == met


@pytest.mark.parametrize(("errors", "met"), [(0, True), (1, False)])
def test_nothing_is_allowed_where_the_limit_is_nothing(errors: int, met: bool) -> None:
    assert within("errors", A_SECOND, errors, 0).met == met


def test_both_sides_are_measured_in_turn() -> None:
    order: list[str] = []

    def a() -> float:
        order.append("a")
        return len(order)

    def b() -> float:
        order.append("b")
        return len(order)

    assert in_turn(2, a, b) == [[1, 3], [2, 4]]
    assert order == ["a", "b", "a", "b"]


def test_claim_and_finish_leaves_done_runs_on_both_sides(
    figures: Callable[[Benchmark], list[Line]], tmp_path: Path
) -> None:
    lines = figures(claims.claim_and_finish)
    with sqlite3.connect(tmp_path / "ledger" / "ledger.db") as ledger, sqlite3.connect(tmp_path / "raw.db") as raw:
        ours = ledger.execute(
            "SELECT count(*), count(DISTINCT window_start) FROM runs WHERE status = 'done'"
        ).fetchone()
        events = ledger.execute("SELECT count(*) FROM events").fetchone()[0]
        emitted = ledger.execute("SELECT count(*) FROM outbox").fetchone()[0]
        its = raw.execute("SELECT count(*) FROM runs WHERE status = 'done'").fetchone()[0]
    ledger.close()
    raw.close()
    runs = TINY.rounds * TINY.runs
    more = TINY.rounds * TINY.peer_runs if peers.has_dbos() else 0
    assert (ours, events, its) == ((2 * runs + more, 2 * runs + more), 2 * (2 * runs + more), runs)
    assert emitted == runs + more
    journal = (tmp_path / "state" / "journal.jsonl").read_text().splitlines()
    assert len(journal) == events
    assert len(lines) == 3


def test_a_duplicate_check_records_nothing(figures: Callable[[Benchmark], list[Line]], tmp_path: Path) -> None:
    assert len(figures(claims.duplicate_check)) == 2
    with sqlite3.connect(tmp_path / "ledger" / "ledger.db") as ledger:
        assert ledger.execute("SELECT count(*) FROM events WHERE event NOT IN ('start', 'done')").fetchone() == (0,)
    ledger.close()


def test_a_peer_that_is_not_installed_is_skipped_and_said(
    figures: Callable[[Benchmark], list[Line]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "has_dbos", lambda: False)
    skipped = figures(claims.claim_and_finish)[-1]
    assert isinstance(skipped, Skipped)
    assert "the package dbos is not installed" in str(skipped)


def test_the_heartbeat_renews_every_claim(figures: Callable[[Benchmark], list[Line]], tmp_path: Path) -> None:
    figures(claims.heartbeat)
    store = SqliteStore(str(tmp_path / "ledger" / "ledger.db"))
    assert len(store.jobs()) == TINY.renewals
    for job in store.jobs():
        (held,) = store.leases(job.name)
        assert held.lease.expires > store.clock().now + claims.LEASE_SECONDS - 60
    store.close()


def test_processes_that_write_at_once_get_all_their_answers(figures: Callable[[Benchmark], list[Line]]) -> None:
    lines = figures(contention.many_at_once)
    assert exact(lines, "locked, or no answer in time") == 0
    assert len(lines) == 3


def test_whole_processes_do_their_work_once(figures: Callable[[Benchmark], list[Line]], tmp_path: Path) -> None:
    assert len(figures(commands.whole_process)) == 3
    with sqlite3.connect(tmp_path / "ledger" / "ledger.db") as ledger:
        events = ledger.execute("SELECT event, reason, count(*) FROM events GROUP BY 1, 2 ORDER BY 1").fetchall()
    assert events == [("done", None, 4), ("skipped", "done", 1), ("start", "start", 4)]
    ledger.close()


def test_a_crowd_on_one_key_starts_one(figures: Callable[[Benchmark], list[Line]]) -> None:
    assert exact(figures(commands.many_on_one_key), "started more than once") == 0


def test_what_is_planted_reads_as_if_it_had_been_run(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    planted.plant(path, jobs=2, runs=200)
    store = SqliteStore(path)
    (version,) = store.schedules(planted.job_name(1))
    schedule = Schedule(version.every, version.tz, version.dialect)
    now = int(time.time())
    runs = store.runs(planted.job_name(1), 0, now)
    assert len(runs) == 99  # one window of the hundred is missing
    assert schedule.window_at(now).key in {runs[-1].key.window, schedule.before(schedule.window_at(now)).key}
    for run in runs:
        window = schedule.window_at(run.window_start)
        assert (run.key.window, run.window_start, run.window_end) == (window.key, window.start, window.end)
        told = [
            event.event for event in store.events(run.key.job, window.start, window.end) if event.event != "skipped"
        ]
        assert told == ["start", "failed", "start", "done"][-2 * run.attempt :]
    assert [event.reason for event in store.notable_events(planted.job_name(1), 0, now)] == [None, "done"]
    store.close()


def test_questions_are_answered_in_planted_ledgers(figures: Callable[[Benchmark], list[Line]]) -> None:
    assert len(figures(questions.ledger_size)) == 3


def test_a_probe_is_measured_with_its_memory(figures: Callable[[Benchmark], list[Line]]) -> None:
    assert exact(figures(questions.probe), "memory") > 1_000_000


def test_every_byte_of_the_output_passes(figures: Callable[[Benchmark], list[Line]]) -> None:
    assert len(figures(passthrough.output)) == 2


def test_a_name_that_no_benchmark_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["clam"])
    assert left.value.code == 2
    assert "there is no benchmark 'clam'" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "status"), [([], 1), (["--report"], 0)])
def test_a_missed_budget_ends_with_1_unless_only_a_report_is_wanted(
    options: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missed = beside("slow", A_SECOND, [1.0], [2.0], at_least=0.75)
    monkeypatch.setitem(BENCHMARKS, "claim", lambda folder, sizes: iter([missed]))
    assert main(["claim", "--folder", str(tmp_path), *options]) == status
    assert "MISSED" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


def test_a_disk_that_forgets_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ranonce.filesystem import FileSystem

    place = FileSystem("tmpfs", "/", "it is kept in memory")
    monkeypatch.setattr("benchmarks.__main__.file_system_of", lambda folder: place)
    assert "is no place for a ledger" in about(str(tmp_path))


def test_a_hand_made_ledger_is_read_and_imported_beside_the_published_way(figures) -> None:
    lines = figures(importing.hand_made)
    assert [line.name.partition(" JSON lines ")[2].partition(",")[0] for line in lines] == [
        "read and probed",
        "read and probed",
        "imported",
        "imported again",
    ]
    assert all(isinstance(line, Figure) and line.ours > 0 and line.limit > 0 for line in lines)


def test_messages_are_delivered_over_http_beside_the_plain_client(figures, tmp_path: Path) -> None:
    lines = figures(delivery.http)
    assert [line.name.rpartition(", ")[2] for line in lines[:2]] == ["SQLite", "PostgreSQL"]
    assert len(lines) == 3
    assert delivered(tmp_path / "at-once") == [("sent", TINY.rounds * TINY.messages)]


def test_messages_are_delivered_to_nats_beside_its_own_client(figures, tmp_path: Path) -> None:
    lines = figures(delivery.nats)
    assert [line.name.rpartition(" / ")[2] for line in lines] == ["windowed publishing", "ack by ack"]
    assert delivered(tmp_path / "nats") == [("sent", TINY.rounds * TINY.messages)]


def delivered(folder: Path) -> list[tuple[str, int]]:
    """Count the messages of a ledger by state."""
    with sqlite3.connect(folder / "ledger.db") as ledger:
        found = ledger.execute("SELECT state, count(*) FROM outbox GROUP BY 1").fetchall()
    ledger.close()
    return found
