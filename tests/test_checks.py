"""Checks of the product: what holds, what does not, and what is seen."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ranonce import product
from ranonce.checks import Check, CheckResult, check_from_option, run_checks, whole_check
from ranonce.errors import UsageError

START = 1_794_018_600.5  # 2026-11-07T02:30:00.500Z
WINDOW = "2026-11-07T02:30Z"


def never(_: list[str]) -> int:
    raise AssertionError("no command was to be run")


def made(folder: Path, content: str | bytes, *, name: str = "out.json", at: float = START + 1) -> None:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(file, ns=(round(at * 1e9), round(at * 1e9)))


def result(folder: Path, check: Check, *, now: float = START + 10) -> CheckResult:
    (only,) = run_checks(
        [check],
        window_key=WINDOW,
        started_at=START,
        cwd=str(folder),
        env={"HOME": str(folder)},
        run_command=never,
        now=now,
    )
    assert only.seen
    assert only.seen.isprintable()
    assert len(only.seen) < 300
    return only


def holds(folder: Path, check: Check) -> bool:
    return result(folder, check).held


def as_json(folder: Path, content: str | bytes, **more: object) -> CheckResult:
    made(folder, content)
    return result(folder, Check(file="out.json", json=True, **more))  # type: ignore[arg-type]


def as_lines(folder: Path, content: str | bytes, **more: object) -> CheckResult:
    made(folder, content)
    return result(folder, Check(file="out.json", jsonl=True, **more))  # type: ignore[arg-type]


# --- a file is there ---


def test_a_file_that_is_there_holds_and_says_what_was_seen(tmp_path: Path) -> None:
    made(tmp_path, "abc")
    assert result(tmp_path, Check(file="out.json")) == CheckResult(
        "file out.json", True, "3 bytes, written 2026-11-07T02:30:01.500Z"
    )


def test_a_missing_file_does_not_hold(tmp_path: Path) -> None:
    assert result(tmp_path, Check(file="out.json")) == CheckResult("file out.json", False, "there is no such file")


def test_an_empty_file_does_not_hold_unless_it_may_be_empty(tmp_path: Path) -> None:
    made(tmp_path, "")
    assert result(tmp_path, Check(file="out.json")).seen == "it is empty"
    assert holds(tmp_path, Check(file="out.json", min_bytes=0))
    assert not holds(tmp_path, Check(file="out.json", min_bytes=0, json=True)), "nothing is no JSON document"
    assert holds(tmp_path, Check(file="out.json", min_bytes=0, jsonl=True)), "no lines are JSON Lines"


def test_a_short_file_does_not_hold(tmp_path: Path) -> None:
    made(tmp_path, "abc")
    assert holds(tmp_path, Check(file="out.json", min_bytes=3))
    assert result(tmp_path, Check(file="out.json", min_bytes=4)).seen == "3 bytes, fewer than 4"


def test_the_window_is_replaced_in_the_path(tmp_path: Path) -> None:
    made(tmp_path, "abc", name=f"{WINDOW}.json")
    assert result(tmp_path, Check(file="{window}.json")).name == f"file {WINDOW}.json"
    assert holds(tmp_path, Check(file="{window}.json"))


def test_a_path_is_relative_to_the_jobs_folder_and_a_tilde_is_its_home(tmp_path: Path) -> None:
    made(tmp_path, "abc")
    assert holds(tmp_path, Check(file="~/out.json"))
    assert holds(Path("/"), Check(file=f"{tmp_path}/out.json"))
    assert not holds(Path("/"), Check(file="out.json"))


def test_a_link_to_a_file_is_followed_and_a_folder_is_none(tmp_path: Path) -> None:
    made(tmp_path, "abc")
    (tmp_path / "link").symlink_to("out.json")
    (tmp_path / "loop").symlink_to("loop")
    assert holds(tmp_path, Check(file="link"))
    assert result(tmp_path, Check(file=".")).seen == "it is a folder"
    assert not holds(tmp_path, Check(file="loop"))
    assert not holds(tmp_path, Check(file="out.json/x"))


@pytest.mark.timeout(5)
def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for check in (Check(file="pipe"), Check(file="pipe", json=True), Check(file="pipe", jsonl=True)):
        assert result(tmp_path, check).seen == "it is not a regular file"


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "caf\udce9", "a\nb\x1b[2J"])
def test_a_name_no_file_has_is_a_sentence(tmp_path: Path, name: str) -> None:
    seen = result(tmp_path, Check(file=name, json=True))
    assert not seen.held
    assert seen.name.isprintable()


# --- its age ---


def test_a_file_written_before_the_attempt_began_is_not_fresh(tmp_path: Path) -> None:
    check = Check(file="out.json", fresh=True)
    made(tmp_path, "abc", at=START + 0.3)
    assert holds(tmp_path, check)
    made(tmp_path, "abc", at=START - 0.3)
    assert result(tmp_path, check).seen.endswith("before the attempt began at 2026-11-07T02:30:00.500Z")


@pytest.mark.parametrize(
    ("at", "fresh"),
    [
        (START - 0.009, True),  # the kernel's coarse clock lags by a tick
        (START - 0.011, False),
        (1_794_018_600, True),  # a whole, even second: cut by FAT from up to two seconds later
        (1_794_018_599, False),  # a whole, odd second: cut from at most one second later
        (1_794_018_598, False),
        (1_794_018_601, True),
    ],
)
def test_freshness_allows_for_how_coarse_file_times_are(tmp_path: Path, at: float, fresh: bool) -> None:
    made(tmp_path, "abc", at=at)
    assert holds(tmp_path, Check(file="out.json", fresh=True)) is fresh


def test_a_file_that_is_written_now_is_fresh(tmp_path: Path) -> None:
    for _ in range(200):
        began = time.time()
        (tmp_path / "out.json").write_bytes(b"x")
        (seen,) = run_checks(
            [Check(file="out.json", fresh=True)],
            window_key=WINDOW,
            started_at=began,
            cwd=str(tmp_path),
            env={},
            run_command=never,
        )
        assert seen.held, seen


def test_a_file_older_than_its_greatest_age_does_not_hold(tmp_path: Path) -> None:
    made(tmp_path, "abc", at=START - 90_000)
    assert holds(tmp_path, Check(file="out.json", max_age=100_000))
    assert result(tmp_path, Check(file="out.json", max_age=86_400)).seen.endswith("longer ago than 1d")


def test_a_file_from_the_future_would_stay_fresh_for_ever(tmp_path: Path) -> None:
    made(tmp_path, "abc", at=START + 100_000)
    assert holds(tmp_path, Check(file="out.json")), "nobody asked for its age"
    for check in (Check(file="out.json", fresh=True), Check(file="out.json", max_age=60)):
        assert result(tmp_path, check).seen.endswith("which is in the future")


def test_a_time_no_calendar_has_is_no_traceback(tmp_path: Path) -> None:
    made(tmp_path, "abc", at=-70_000_000_000.0)
    assert not holds(tmp_path, Check(file="out.json", fresh=True))


# --- JSON ---


@pytest.mark.parametrize("content", ["{}", "[]", "0", ' "x" \n', '{"a": {"b": [1, null]}}', '"\\ud83d\\ude00"'])
def test_json_holds(tmp_path: Path, content: str) -> None:
    assert as_json(tmp_path, content).held


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ('{"a": 1', "not JSON: "),
        ("", "it is empty"),
        ("\n", "not JSON: "),
        ("{} {}", "not JSON: Extra data"),
        ("<html>502 Bad Gateway</html>", "not JSON: "),
        ("[NaN]", "not JSON: NaN is no JSON number"),
        ("[-Infinity]", "not JSON: -Infinity is no JSON number"),
        ('{"a": 1, "a": 2}', "not JSON: the name 'a' stands twice"),
        ("[" * 100_000, "not JSON we read: nested too deeply"),
        ("9" * 5000, "not JSON: "),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (b"\xef\xbb\xbf{}", "not JSON: "),
        ("{}".encode("utf-16"), "not UTF-8 at byte 0"),
        ('"a\nb"', "not JSON: Invalid control character"),
        ("\0" * 100, "not JSON: "),
    ],
)
def test_what_is_not_json_is_a_sentence(tmp_path: Path, content: str | bytes, seen: str) -> None:
    found = as_json(tmp_path, content)
    assert not found.held
    assert found.seen.startswith(seen)


def test_a_json_document_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    made(tmp_path, "")
    os.truncate(tmp_path / "out.json", 2 << 30)
    assert "larger than 64 MiB" in result(tmp_path, Check(file="out.json", json=True)).seen


def test_json_lines_hold_line_by_line(tmp_path: Path) -> None:
    assert as_lines(tmp_path, '{"a": 1}\n[2]\r\n"x\u2028y"\n').held
    assert as_lines(tmp_path, '{"a": 1}\n{"a": 2}').held, "the last newline may be missing"


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ('{"a": 1}\n{"a": \n', "line 2: not JSON: "),
        ('{"a": 1}\n\n{"a": 2}\n', "line 2: not JSON: "),
        ('{"a": 1}\n\0\0\0\n', "line 2: not JSON: "),
        (b"1\n2\n\xff\n", "line 3: not UTF-8 at byte 0"),
        ('{"a": 1}\n{"b": 1, "b": 2}\n', "line 2: not JSON: the name 'b' stands twice"),
        ("\n", "line 1: not JSON: "),
    ],
)
def test_a_line_that_is_not_json_is_named(tmp_path: Path, content: str | bytes, seen: str) -> None:
    found = as_lines(tmp_path, content)
    assert not found.held
    assert found.seen.startswith(seen)


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "LONGEST_LINE", 1000)
    assert as_lines(tmp_path, f'{{"a": "{"x" * 2000}"}}\n').seen == "line 1: it is too long to be parsed"
    assert as_lines(tmp_path, "1\n" * 5000).held, "the file may be longer than a line"


# --- fields ---


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("/date", WINDOW),
        ("/date", "{window}"),
        ("/a~1b", 1),
        ("/m~0n", 2),
        ("/list/1/x", True),
        ("/", "empty name"),
        ("/n", 3),
        ("/n", 3.0),
        ("/~01", "tilde one"),
    ],
)
def test_a_field_equals_what_it_should(tmp_path: Path, pointer: str, expected: str | float) -> None:
    document = {
        "date": WINDOW,
        "a/b": 1,
        "m~n": 2,
        "list": [0, {"x": True}],
        "": "empty name",
        "n": 3,
        "~1": "tilde one",
    }
    assert as_json(tmp_path, json.dumps(document), equals=((pointer, expected),)).held


def test_the_empty_pointer_is_the_whole_document(tmp_path: Path) -> None:
    assert as_json(tmp_path, '"ok"', equals=(("", "ok"),)).held


@pytest.mark.parametrize(
    ("pointer", "expected", "seen"),
    [
        ("/date", "{window}", "/date is '2026-11-06', not '2026-11-07T02:30Z'"),
        ("/missing", 1, "it has no /missing, which should be 1"),
        ("/date/0", "2", "it has no /date/0, which should be '2'"),
        ("/list/3", 1, "it has no /list/3, which should be 1"),
        ("/list/01", 1, "it has no /list/01, which should be 1"),
        ("/list/-", 1, "it has no /list/-, which should be 1"),
        ("/list/²", 1, "it has no /list/²"),
        ("/list/" + "9" * 5000, 1, "it has no /list/"),
        ("/ok", 1, "/ok is True, not 1"),
        ("/one", True, "/one is 1, not True"),
        ("/one", "1", "/one is 1, not '1'"),
        ("/null", "", "/null is None, not ''"),
        ("/long", "x", "/long is "),
    ],
)
def test_a_field_that_differs_is_shown(tmp_path: Path, pointer: str, expected: str | float, seen: str) -> None:
    document = {"date": "2026-11-06", "list": [1, 2, 3], "ok": True, "one": 1, "null": None, "long": "y\n" * 5000}
    made(tmp_path, json.dumps(document))
    check = Check(file="out.json", json=True, equals=((pointer, expected),))
    (found,) = run_checks(
        [check], window_key=WINDOW, started_at=START, cwd=str(tmp_path), env={}, run_command=never, now=START
    )
    assert not found.held
    assert found.seen.startswith(seen)


def test_every_line_must_have_the_field(tmp_path: Path) -> None:
    equals = (("/date", "{window}"),)
    right = json.dumps({"date": WINDOW}) + "\n"
    assert as_lines(tmp_path, right * 3, equals=equals).held
    assert as_lines(tmp_path, right + '{"date": "x"}\n', equals=equals).seen.startswith("line 2: /date is 'x'")


# --- commands ---


def test_a_command_holds_when_it_exits_0_and_its_arguments_are_not_in_the_result() -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> int:
        commands.append(command)
        return len(commands) - 1

    results = run_checks(
        [Check(command=("test", "{window}", "-H token:secret")), Check(command=("/bin/sh", "-c", "x {window}"))],
        window_key=WINDOW,
        started_at=START,
        cwd=None,
        env={},
        run_command=run,
    )
    assert commands == [["test", WINDOW, "-H token:secret"], ["/bin/sh", "-c", f"x {WINDOW}"]]
    assert results == [
        CheckResult("command 1", True, "exit status 0"),
        CheckResult("command 2", False, "exit status 1"),
    ]


def test_a_command_that_cannot_be_started_does_not_hold() -> None:
    def run(command: list[str]) -> int:
        raise FileNotFoundError(2, "No such file or directory", command[0])

    (found,) = run_checks(
        [Check(command=("nosuchtool",))], window_key=WINDOW, started_at=START, cwd=None, env={}, run_command=run
    )
    assert found == CheckResult("command 1", False, "could not be started: No such file or directory")


def test_every_check_is_made_even_after_one_that_does_not_hold(tmp_path: Path) -> None:
    made(tmp_path, "abc")
    results = run_checks(
        [Check(file="missing"), Check(file="out.json")],
        window_key=WINDOW,
        started_at=START,
        cwd=str(tmp_path),
        env={},
        run_command=never,
    )
    assert [each.held for each in results] == [False, True]


# --- how a check is written ---


@pytest.mark.parametrize(
    ("written", "check"),
    [
        ("file=out.json", Check(file="out.json")),
        ("file=out.json,min_bytes=2,fresh,json", Check(file="out.json", min_bytes=2, fresh=True, json=True)),
        ("json=a=b.json", Check(file="a=b.json", json=True)),
        ("jsonl=x,max_age=1d", Check(file="x", jsonl=True, max_age=86400.0)),
        ("file=x,equals=/date={window}", Check(file="x", json=True, equals=(("/date", "{window}"),))),
        ("file=x,jsonl,equals=/a=1,equals=/b=2", Check(file="x", jsonl=True, equals=(("/a", "1"), ("/b", "2")))),
        ("command=test -s a,b && x=1", Check(command=("/bin/sh", "-c", "test -s a,b && x=1"))),
    ],
)
def test_an_option_becomes_a_check(written: str, check: Check) -> None:
    assert check_from_option(written) == check


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("", "is not a check"),
        ("out.json", "is not a check"),
        ("path=out.json", "is not a check"),
        ("file=", "is empty"),
        ("command=", "is empty"),
        ("file=x,frehs", "is not a part of a check"),
        ("file=a,b.json", "is not a part of a check"),
        ("file=x,fresh=yes", "is not a part of a check"),
        ("file=x,min_bytes", "is not a part of a check"),
        ("file=x,min_bytes=18M", "is not a whole number"),
        ("file=x,min_bytes=-1", "min_bytes is -1"),
        ("file=x,max_age=soon", "is not a duration"),
        ("file=x,equals=date=1", "is not a JSON Pointer"),
        ("file=x,equals=/a~2=1", "is not a JSON Pointer"),
        ("json=x,jsonl", "JSON or JSON Lines"),
    ],
)
def test_an_option_that_is_no_check_is_refused(written: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check_from_option(written)
    assert sentence in refusal.value.sentence
    assert refusal.value.next_step


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "one file or runs one command"),
        ({"file": "x", "command": ("y",)}, "one file or runs one command"),
        ({"command": ("y",), "fresh": True}, "decides alone, without fresh"),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        whole_check(values)
