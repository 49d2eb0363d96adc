"""Options of the command line: one table, strict reading, help from the same table."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ranonce.checks import Check
from ranonce.cli.joboptions import (
    DECLARE_OPTIONS,
    JSON,
    LEDGER_OPTIONS,
    RUN_OPTIONS,
    SCHEDULE_OPTIONS,
    job_settings,
    with_settings,
)
from ranonce.cli.options import Command, Option, Parsed, help_text, parse
from ranonce.errors import UsageError
from ranonce.jobspec import JobSpec

RUN = Command(
    "run",
    ("JOB",),
    "Run the job once for its window.",
    (
        Option("window", "The window to run for.", "KEY"),
        Option("now", "Choose the window as of this instant.", "INSTANT", "instant"),
        Option("quiet", "Print nothing.", short="q"),
        *SCHEDULE_OPTIONS,
        *RUN_OPTIONS,
        *DECLARE_OPTIONS,
        *LEDGER_OPTIONS,
    ),
    takes_command=True,
)
SHOW = Command("show", ("JOB", "[WINDOW]"), "Tell a run's story.", (JSON,))
PROBE = Command("probe", ("[JOB…]",), "Compare.", (JSON, Option("since", "From.", "TIME", "duration", default="48h")))


def run(*words: str) -> Parsed:
    return parse(RUN, list(words))


def refused(command: Command, *words: str) -> UsageError:
    with pytest.raises(UsageError) as refusal:
        parse(command, list(words))
    assert refusal.value.exit_status == 64
    assert refusal.value.next_step
    assert str(refusal.value).isprintable()
    return refusal.value


# --- where words may stand ---


@pytest.mark.parametrize(
    "words",
    [
        ("j", "--window", "w", "--quiet"),
        ("--window", "w", "--quiet", "j"),
        ("--window=w", "j", "-q"),
        ("-q", "j", "--window=w"),
    ],
)
def test_options_stand_before_or_after_the_arguments(words: tuple[str, ...]) -> None:
    assert run(*words, "--", "true") == Parsed(["j"], {"window": "w", "quiet": True}, ["true"])


def test_everything_after_the_dashes_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("j", "--", "x", "--help", "--", "--window=y").rest == ["x", "--help", "--", "--window=y"]
    assert capsys.readouterr().out == ""


def test_without_the_dashes_there_is_no_command() -> None:
    assert run("j").rest is None


@pytest.mark.parametrize("words", [("j", "--"), ("j", "--", ""), ("j", "--", "", "x")])
def test_dashes_without_a_command_are_refused(words: tuple[str, ...]) -> None:
    assert refused(RUN, *words).sentence == "No command follows --."


def test_a_command_without_the_dashes_gets_the_hint_even_when_it_has_options() -> None:
    error = refused(RUN, "j", "rsync", "-a", "x")
    assert error.sentence == "'rsync' is one argument too many."
    assert error.next_step.startswith("Put the command after --. Usage: ranonce run JOB [options] [-- COMMAND…]")


def test_a_command_that_runs_nothing_takes_arguments_after_the_dashes_but_no_options() -> None:
    assert parse(SHOW, ["--", "j"]) == Parsed(["j"], {}, None)
    assert "runs no command" in refused(SHOW, "j", "--", "rm", "-rf").sentence


def test_arguments_may_be_left_away_or_many_as_the_table_says() -> None:
    assert parse(SHOW, ["j"]).arguments == ["j"]
    assert parse(SHOW, ["j", "w"]).arguments == ["j", "w"]
    assert "too many" in refused(SHOW, "j", "w", "x").sentence
    assert refused(SHOW).sentence == "JOB is missing."
    assert parse(PROBE, []).arguments == []
    assert parse(PROBE, ["a", "b", "c"]).arguments == ["a", "b", "c"]


@pytest.mark.parametrize("command", [RUN, SHOW, PROBE])
def test_an_empty_argument_is_a_variable_that_was_not_set(command: Command) -> None:
    assert refused(command, "").sentence.startswith("JOB is empty")


def test_a_single_dash_is_an_argument() -> None:
    assert parse(SHOW, ["-"]).arguments == ["-"]


# --- options ---


@pytest.mark.parametrize(
    ("words", "sentence", "next_step"),
    [
        (("--windw=x",), "`ranonce run` has no option '--windw'.", "Did you mean --window?"),
        (("--wind", "x"), "`ranonce run` has no option '--wind'.", "Did you mean --window?"),
        (("--zzzzzzzz",), "`ranonce run` has no option '--zzzzzzzz'.", "Known are "),
        (("-x",), "`ranonce run` has no option '-x'.", "Usage: "),
        (("-qq",), "`ranonce run` has no option '-qq'.", "Usage: "),
        (("--\x1b[2J",), "`ranonce run` has no option '--\\x1b[2J'.", ""),
        (("--window",), "--window needs a value.", "Write --window KEY."),
        (("--window", "--quiet"), "--window needs a value, and '--quiet' follows.", "Write --window=KEY."),
        (("--window", "--", "x"), "--window needs a value.", "Write --window KEY."),
        (("--window=",), "--window is given an empty value", ""),
        (("--window", ""), "--window is given an empty value", ""),
        (("--window", "  "), "--window is given an empty value", ""),
        (("--window", "a", "--window", "a"), "--window is given twice.", "Give it once."),
        (("--quiet=yes",), "--quiet is a flag and takes no value, not 'yes'.", "Write --quiet alone."),
        (("--window", "a\0b"), "--window: 'a\\x00b' holds a NUL", ""),
        (("--window", "caf\udce9"), "--window: 'caf\\udce9' is not valid UTF-8.", ""),
        (("--lease", "soon"), "--lease: 'soon' is not a duration.", "5m"),
        (("--lease", "5"), "--lease: '5' is not a duration.", "5m"),
        (("--now", "2026-11-07T02:30"), "--now: ", "offset"),
        (("--now", "tomorrow"), "--now: 'tomorrow' is not", ""),
        (("--max-attempts", "three"), "--max-attempts: 'three' is not a whole number.", "digits"),
        (("--max-attempts", "٣"), "--max-attempts: '٣' is not a whole number.", "digits"),
        (("--max-attempts", "1_0"), "--max-attempts: '1_0' is not a whole number.", "digits"),
        (("--max-attempts", "9" * 5000), "--max-attempts: ", "digits"),
        (("--overlap", "no"), "--overlap: 'no' is not a choice.", "It is one of forbid, allow."),
    ],
)
def test_a_wrong_option_is_named_with_the_way_out(words: tuple[str, ...], sentence: str, next_step: str) -> None:
    error = refused(RUN, "j", *words)
    assert error.sentence.startswith(sentence)
    assert next_step in error.next_step


def test_a_job_name_that_is_not_utf8_is_refused_and_its_command_is_kept() -> None:
    assert "is not valid UTF-8" in refused(RUN, "caf\udce9").sentence
    assert run("j", "--", "x", "caf\udce9").rest == ["x", "caf\udce9"]


def test_bytes_that_are_not_utf8_go_through_a_real_command_line_unchanged() -> None:
    program = (
        "import os, sys; from ranonce.cli.options import parse; from tests.test_options import RUN; "
        "os.write(1, os.fsencode(parse(RUN, sys.argv[1:]).rest[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "j", "--", b"caf\xe9\xff"],
        capture_output=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert (done.stdout, done.stderr) == (b"caf\xe9\xff", b"")


def test_values_have_the_types_of_their_kinds() -> None:
    parsed = run(
        *("j", "--lease", "1m30s", "--now", "2026-11-07T03:30:00+01:00", "--offset", "-1"),
        *("--uses", "a", "--uses=b", "--overlap", "allow", "--window=a=b"),
    )
    assert parsed.options == {
        "lease": 90.0,
        "now": 1794018600,
        "offset": -1,
        "uses": ["a", "b"],
        "overlap": "allow",
        "window": "a=b",
    }
    assert parsed.get("lease") == 90.0
    assert parsed.get("timeout") is None
    assert parsed.get("receipt", "all") == "all"
    assert not parsed.flag("quiet")


# --- settings of a job ---


def test_options_become_settings_of_the_job() -> None:
    parsed = run(
        *("j", "--timeout", "2h", "--no-output", "--stdin", "--stop-exit-code", "75", "--stop-exit-code=79"),
        *("--check", "file=x,fresh", "--check", "command=test -s y", "--reconcile", "did-it {window}"),
        *("--uses", "model-api", "--receipt", "out/receipts.jsonl", "--cwd", "work", "--quiet", "--window", "w"),
    )
    assert job_settings(RUN, parsed) == {
        "timeout": 7200.0,
        "keep_output": False,
        "stdin": True,
        "stop_exit_codes": (75, 79),
        "checks": (Check(file="x", fresh=True), Check(command=("/bin/sh", "-c", "test -s y"))),
        "reconcile": ("/bin/sh", "-c", "did-it {window}"),
        "uses": ("model-api",),
        "receipt": os.path.abspath("out/receipts.jsonl"),
        "cwd": os.path.abspath("work"),
    }


def test_settings_of_the_command_line_win_over_those_of_the_job() -> None:
    spec = JobSpec("j", every="day", lease=60.0, timeout=10.0)
    assert with_settings(spec, job_settings(RUN, run("j"))) is spec
    assert with_settings(spec, job_settings(RUN, run("j", "--lease", "2m"))) == spec.replace(lease=120.0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--uses", "a b"), "--uses: 'a b' is not a name for a gate."),
        (("--check", "x"), "--check: 'x' is not a check."),
        (("--lease", "0"), "--lease: 0 seconds is out of range."),
        (("--max-attempts", "0"), "--max-attempts: 0 is out of range."),
        (("--stop-exit-code", "0"), "--stop-exit-code: [0] is out of range."),
        (("--receipt", "some"), "--receipt: 'some' is not a choice."),
        (("--every", "fortnight"), "--every: "),
        (("--version", "a\nb"), "--version: 'a\\nb' holds the control character"),
        (("--on-crash", "reconcile"), "--on-crash: 'reconcile' needs a command"),
    ],
)
def test_a_setting_that_does_not_fit_is_named_by_its_option(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        with_settings(JobSpec("j", every="day"), job_settings(RUN, run("j", *words)))
    assert refusal.value.sentence.startswith(sentence)


def test_every_default_in_the_help_is_the_default_of_the_job() -> None:
    from ranonce.settings import duration

    spec = JobSpec("j")
    for option in (*SCHEDULE_OPTIONS, *RUN_OPTIONS):
        assert option.field in JobSpec._fields
        if option.default:
            actual = spec.as_dict()[option.field]
            written = {"none": None}.get(option.default, option.default)
            if option.kind == "duration" and written is not None:
                assert actual == duration(written), option.name
            else:
                assert actual == written or str(actual) == written, option.name


def test_every_setting_of_a_job_has_an_option_or_is_the_command() -> None:
    fields = {option.field for option in (*SCHEDULE_OPTIONS, *RUN_OPTIONS, *DECLARE_OPTIONS)}
    assert fields == set(JobSpec._fields) - {"name", "command", "declared"}


# --- help ---


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["j", "--bogus", "--help"], ["j", "--help", "--", "x"]])
def test_help_is_printed_and_exits_0(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        parse(RUN, words)
    assert done.value.code == 0
    assert capsys.readouterr().out == help_text(RUN)


def test_the_help_names_every_option_within_100_columns() -> None:
    text = help_text(RUN)
    assert text.startswith("usage: ranonce run JOB [options] [-- COMMAND…]\n\nRun the job once for its window.\n")
    assert text.endswith("\n")
    assert max(map(len, text.splitlines())) <= 100
    for option in RUN.options:
        assert f"--{option.name}" in text
    assert "  --overlap forbid|allow    May two windows of the job run at once? (default: forbid)\n" in text
    assert "  -q, --quiet               Print nothing.\n" in text
    assert "  -h, --help                Print this help and exit.\n" in text
    assert "(repeatable)" in text


def test_a_description_is_wrapped_by_paragraph() -> None:
    command = SHOW.replace(description="One.\n\n" + "word " * 50)
    assert "\n\nOne.\n\nword word" in help_text(command)


def test_reading_options_loads_no_parser_of_the_standard_library() -> None:
    program = "import sys, ranonce.cli.joboptions; print(*sys.modules)"
    bare = "import sys; print(*sys.modules)"
    loaded, before = (
        set(subprocess.run([sys.executable, "-c", each], capture_output=True, text=True, check=True).stdout.split())
        for each in (program, bare)
    )
    heavy = {"argparse", "getopt", "gettext", "textwrap", "difflib", "typing", "ranonce.checks", "tomllib", "zoneinfo"}
    assert not heavy & (loaded - before)
