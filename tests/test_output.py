"""A child's output: passed on byte for byte, kept at both ends, and never the reason why a verdict waits or changes."""

from __future__ import annotations

import _thread
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranonce import output
from ranonce.output import HEAD_BYTES, TAIL_BYTES, Keeper, Kept
from ranonce.process import Ending, run_child
from ranonce.signals import Signals
from tests.conftest import lives, wait_until

HERE = Path(__file__).parent.parent
PROGRAM = (sys.executable, "-m", "tests.programs.one_child")
PYTHON = sys.executable
#: 150,000 bytes with every value, no two lines alike.
PATTERN = b"".join(b"%06d " % number + bytes(range(256)) for number in range(570))[:150_000]


def run(*argv: str, stdout: int = 1, stderr: int = 2, **options: Any) -> Ending:
    with Signals() as signals:
        ending = run_child(argv, env=dict(os.environ), signals=signals, stdout=stdout, stderr=stderr, **options)
    assert isinstance(ending, Ending), ending
    return ending


def wrap(folder: Path, script: str, *, shell: str = "", **options: Any) -> tuple[list[str], Path]:
    """Return the command line of a wrapper in a process of its own, and its report; `shell` are redirections."""
    report = folder / "report"
    asked = json.dumps({"argv": ["/bin/sh", "-c", script], "report": str(report), "grace": 0.2, **options})
    if shell:
        return ["/bin/sh", "-c", f'exec "$@" {shell}', "sh", *PROGRAM, asked], report
    return [*PROGRAM, asked], report


def await_ending(report: Path, seconds: float = 20) -> None:
    wait_until(lambda: report.exists() and (text := report.read_text()).endswith("\n") and '"ended"' in text, seconds)


def ending_of(report: Path) -> dict[str, Any]:
    return next(line["ended"] for line in map(json.loads, report.read_text().splitlines()) if "ended" in line)


def check_kept(kept: Kept, data: bytes) -> None:
    assert kept.total == len(data)
    assert kept.head == data[:HEAD_BYTES]
    assert kept.tail == data[HEAD_BYTES:][-TAIL_BYTES:]
    assert kept.dropped == max(0, len(data) - HEAD_BYTES - TAIL_BYTES)


# --- what is kept ---


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=8), st.integers(1, 20_000)), max_size=12))
def test_both_ends_are_kept_however_the_output_comes_in_pieces(pieces):
    keeper, everything = Keeper(), b""
    for unit, count in pieces:
        chunk = unit * count
        everything += chunk
        for at in range(0, len(chunk), output.CHUNK_BYTES):
            keeper.add(memoryview(chunk)[at : at + output.CHUNK_BYTES])
    check_kept(keeper.kept(), everything)


def test_many_small_pieces_take_no_more_memory_than_few_large_ones():
    keeper = Keeper()
    for _ in range(10_000):
        keeper.add(memoryview(b"x" * 1000))
    assert sys.getsizeof(keeper._head) + sys.getsizeof(keeper._tail) < 4 * (HEAD_BYTES + TAIL_BYTES)
    assert keeper.kept().total == 10_000_000


def test_short_output_is_kept_whole():
    ending = run("/bin/sh", "-c", "printf 'a\\0b'; printf c")
    assert ending.output == Kept(b"a\0bc", b"", 4)


def test_no_output_is_no_output():
    assert run("/bin/true").output == Kept(b"", b"", 0)


def test_both_streams_are_kept_together_in_the_order_in_which_they_came(tmp_path):
    """The child says the next thing when the one before has come through."""
    said = tmp_path / "said"
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    script = "".join(
        f"echo {word} {'>&2' if number % 2 else ''}; until grep -q {word} {said}; do :; done; "
        for number, word in enumerate(("one", "two", "three", "four"))
    )
    ending = run("/bin/sh", "-c", script, stdout=out, stderr=out)
    os.close(out)
    assert ending.output == Kept(b"one\ntwo\nthree\nfour\n", b"", 19)


def test_nothing_is_kept_when_it_is_not_wanted_and_the_child_has_our_own_streams(tmp_path):
    command, report = wrap(tmp_path, "readlink /proc/$$/fd/1 /proc/$$/fd/2", keep_output=False)
    with open(tmp_path / "out", "w") as out:
        subprocess.run(command, cwd=HERE, stdout=out, stderr=out, check=True)
    assert (tmp_path / "out").read_text() == f"{tmp_path}/out\n" * 2
    assert ending_of(report)["output"] is None


# --- what is passed on ---


def test_both_streams_are_passed_on_byte_for_byte_and_apart(tmp_path):
    (tmp_path / "1").write_bytes(PATTERN * 20)
    (tmp_path / "2").write_bytes(PATTERN[::-1] * 20)
    command, report = wrap(tmp_path, f"cat {tmp_path}/1 & cat {tmp_path}/2 >&2; wait")
    done = subprocess.run(command, cwd=HERE, capture_output=True)
    assert done.stdout == PATTERN * 20
    assert done.stderr == PATTERN[::-1] * 20
    assert ending_of(report)["output"]["total"] == 2 * len(PATTERN) * 20


def test_what_the_child_says_is_passed_on_at_once(tmp_path):
    command, _ = wrap(tmp_path, f"printf prompt; until test -e {tmp_path}/go; do sleep 0.02; done")
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(6) == b"prompt"
    (tmp_path / "go").touch()
    process.communicate()
    assert process.returncode == 0


def test_300_mb_without_a_line_end_take_no_memory(tmp_path):
    command, report = wrap(tmp_path, "head -c 300000000 /dev/zero; printf end; exit 5")
    counted = subprocess.Popen(["wc", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    subprocess.run(command, cwd=HERE, stdout=counted.stdin, check=True)
    assert counted.communicate()[0].strip() == b"300000003"
    ending = ending_of(report)
    assert ending["exit"] == 5
    assert ending["output"]["total"] == 300_000_003
    assert ending["output"]["head"] == "\0" * HEAD_BYTES
    assert ending["output"]["tail"] == "\0" * (TAIL_BYTES - 3) + "end"
    assert ending["peak_kib"] < 40_000


def test_a_slow_reader_gets_everything(tmp_path):
    command, report = wrap(tmp_path, "head -c 150000 /dev/zero; printf end", stuck=0.5)
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    got = b""
    while piece := os.read(process.stdout.fileno(), 20_000):
        got += piece
        time.sleep(0.05)
    process.communicate()
    assert got == b"\0" * 150_000 + b"end"
    assert ending_of(report)["output"]["total"] == 150_003


def test_a_stdout_that_others_made_non_blocking_gets_everything(tmp_path):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command, _ = wrap(tmp_path, "head -c 1000000 /dev/zero; printf end")
    process = subprocess.Popen(command, cwd=HERE, stdout=writer)
    os.close(writer)
    got = 0
    while piece := os.read(reader, 1 << 16):
        got += len(piece)
    os.close(reader)
    assert (process.wait(), got) == (0, 1_000_003)


# --- trouble on our side is not the child's ---


@pytest.mark.parametrize("where", [">/dev/full", ">&-", "2>&- >&-", "| true", "2>&1 | true"])
def test_a_stdout_that_takes_nothing_changes_no_verdict(tmp_path, where):
    script = "echo error >&2; head -c 300000 /dev/zero && echo end; exit 3"
    command, report = wrap(tmp_path, script)
    line = " ".join(f"'{word}'" for word in command)
    subprocess.run(["/bin/sh", "-c", f"{line} {where}"], cwd=HERE, stdout=subprocess.DEVNULL, timeout=30)
    ending = ending_of(report)
    assert (ending["exit"], ending["signal"]) == (3, None)
    assert ending["output"]["total"] == 300_010
    assert "end\n" in ending["output"]["tail"]


def test_with_closed_standard_streams_no_file_of_ours_gets_the_output(tmp_path):
    """Otherwise the attempt's file would be descriptor 1, and what the child prints would be written into it."""
    owner = "a" * 32
    command, report = wrap(tmp_path, "echo printed", shell="<&- >&- 2>&-", attempt=[str(tmp_path), owner], hold=0.1)
    process = subprocess.Popen(command, cwd=HERE)
    wait_until(lambda: report.exists() and '"pid"' in report.read_text())
    assert process.wait() == 0
    assert ending_of(report)["output"]["head"] == "printed\n"
    assert not (tmp_path / "attempts" / owner).exists()


def test_a_stuck_reader_does_not_keep_the_time_limit_from_its_work(tmp_path):
    command, report = wrap(tmp_path, "yes", timeout=0.3, stuck=0.3)
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE)
    began = time.monotonic()
    await_ending(report)
    assert time.monotonic() - began < 3
    ending = ending_of(report)
    assert (ending["signal"], ending["timed_out"]) == (signal.SIGTERM, True)
    process.communicate()


def test_a_stuck_reader_does_not_keep_a_stop_from_its_work(tmp_path):
    command, report = wrap(tmp_path, "trap '' TERM; yes", stuck=0.3)
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE)
    wait_until(lambda: report.exists() and '"pid"' in report.read_text())
    os.kill(process.pid, signal.SIGTERM)
    await_ending(report, 5)
    assert ending_of(report)["stopped_by"] == signal.SIGTERM
    process.communicate()


def test_the_end_of_the_output_is_kept_even_when_our_reader_is_stuck(tmp_path):
    size = 64 * 1024 + 40_000  # fills our pipe, and some of the child's
    command, report = wrap(tmp_path, f"head -c {size} /dev/zero; printf end", stuck=0.3)
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE)
    await_ending(report)
    kept = ending_of(report)["output"]
    assert (kept["total"], kept["tail"][-3:]) == (size + 3, "end")
    process.communicate()


# --- what outlives the child ---


def test_a_daemon_that_holds_the_output_open_is_listened_to_for_a_bounded_time(tmp_path):
    daemon = tmp_path / "daemon"
    script = f"setsid -f sh -c 'echo $$ > {daemon}; exec sleep 60'; until test -s {daemon}; do :; done; echo ok"
    command, report = wrap(tmp_path, script, hold=0.2)
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE)
    await_ending(report)
    assert time.monotonic() - began < 3
    ending = ending_of(report)
    assert (ending["exit"], ending["leftovers"], ending["output"]["head"]) == (0, [], "ok\n")
    os.kill(int(daemon.read_text()), signal.SIGKILL)
    process.communicate()


def test_a_daemon_that_never_stops_talking_is_not_listened_to_for_ever(tmp_path):
    daemon = tmp_path / "daemon"
    script = f"setsid -f sh -c 'echo $$ > {daemon}; exec yes'; until test -s {daemon}; do :; done"
    command, report = wrap(tmp_path, script, hold=0.2)
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    give_up = time.monotonic() + 10
    while os.read(process.stdout.fileno(), 16_000):  # slower than the daemon: there is always more
        time.sleep(0.01)
        assert time.monotonic() < give_up
    process.communicate()
    assert ending_of(report)["exit"] == 0
    wait_until(lambda: not lives(int(daemon.read_text())))  # SIGPIPE: nobody listens any more


# --- threads ---


def test_a_silent_child_costs_no_thread(monkeypatch):
    started = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *call: started.append(call))
    assert run("/bin/true").exit == 0
    assert started == []


def test_when_there_is_no_thread_to_be_had_the_output_waits_until_there_is(monkeypatch, tmp_path):
    real, refusals = _thread.start_new_thread, [None] * 3

    def start(*call: Any) -> int:
        if refusals:
            refusals.pop()
            raise RuntimeError("can't start new thread")
        return real(*call)

    monkeypatch.setattr(_thread, "start_new_thread", start)
    with open(tmp_path / "out", "wb") as out:
        assert run("/bin/echo", "late", stdout=out.fileno()).output == Kept(b"late\n", b"", 5)
    assert (tmp_path / "out").read_bytes() == b"late\n"


def test_pipes_are_the_size_that_the_bounds_are_made_for():
    reader, writer = os.pipe()
    assert fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) <= output.PIPE_BYTES
    os.close(reader)
    os.close(writer)


def test_a_file_of_receipts_says_why_nothing_was_run(world):
    kept = world.root / "receipts"
    world.store.rename(world.root / "elsewhere")
    ran = world.run("--receipt", str(kept))
    assert ran.exit == 78
    [receipt] = [json.loads(line) for line in kept.read_text().splitlines()]
    assert receipt["event"] == "unavailable"
    assert f"ranonce: {receipt['sentence']}" in ran.err
