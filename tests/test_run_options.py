"""The options of `ranonce run` that say what a configuration says, and are read back as the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranonce.checks import Check
from ranonce.cli import run
from ranonce.cli.joboptions import job_settings, run_options, with_settings
from ranonce.cli.options import parse
from ranonce.errors import UsageError
from ranonce.jobspec import CHOICES, JobSpec, VersionFile

SECONDS = st.one_of(st.integers(1, 10**9), st.floats(0.001, 10**6).map(lambda seconds: round(seconds, 6)))
NAMES = st.from_regex(r"[a-z0-9][a-z.-]{0,9}", fullmatch=True)
LINE = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20).filter(str.strip)
PATH = LINE.filter(lambda path: "," not in path)
CHECKS = st.one_of(
    st.builds(
        Check,
        file=PATH,
        min_bytes=st.integers(0, 10**9),
        max_age=st.none() | SECONDS.map(float),
        fresh=st.booleans(),
        json=st.booleans(),
    ),
    st.just(Check(file="out/{window}.jsonl", jsonl=True, equals=(("/date", "{window}"), ("/a", "c=d")))),
    LINE.map(lambda command: Check(command=("/bin/sh", "-c", command))),
)


def read_back(spec):
    parsed = parse(run.COMMAND, [spec.name, *run_options(spec), "--", "true"])
    return with_settings(JobSpec(spec.name), job_settings(run.COMMAND, parsed))


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {"every": st.sampled_from(("hour", "0 2 * * *"))},
        optional={
            "tz": st.just("Europe/Berlin"),
            **{name: SECONDS.map(float) for name in ("timeout", "lease", "grace_kill", "retry_delay", "max_late")},
            **{name: st.sampled_from(CHOICES[name]) for name in ("dialect", "overlap", "input_mode", "leftovers")},
            "offset": st.integers(-9, 0),
            "max_attempts": st.integers(1, 9),
            "busy_exit": st.integers(0, 255),
            "version": LINE,
            "uses": st.lists(NAMES, unique=True, max_size=3).map(tuple),
            "stop_exit_codes": st.lists(st.integers(1, 63), unique=True, max_size=3).map(tuple),
            "checks": st.lists(CHECKS, max_size=3).map(tuple),
            "receipt": st.sampled_from(("all", "problems", "none", "/var/log/receipts")),
            "keep_output": st.booleans(),
            "stdin": st.booleans(),
        },
    )
)
def test_settings_become_options_and_settings_again(about):
    spec = JobSpec("job", **about)
    assert read_back(spec) == spec


def test_a_reconciling_command_of_several_words_becomes_one_for_the_shell():
    spec = JobSpec("job", "day", on_crash="reconcile", reconcile=("look", "a b"))
    assert read_back(spec).reconcile == ("/bin/sh", "-c", "look 'a b'")
    in_shell = spec.replace(reconcile=("/bin/sh", "-c", "look 'a b'"))
    assert read_back(in_shell) == in_shell


@pytest.mark.parametrize(
    "about",
    [
        {"version": VersionFile("model.yaml")},
        {"checks": (Check(file="a,b"),)},
        {"checks": (Check(file="a", json=True, equals=(("/a=b", "c"),)),)},
        {"checks": (Check(file="a", json=True, equals=(("/n", 1),)),)},
        {"checks": (Check(command=("/bin/sh", "-c", "a\nb")),)},
        {"on_crash": "reconcile", "reconcile": ("/bin/sh", "-c", "a\nb")},
    ],
)
def test_what_no_option_can_say_is_refused(about):
    with pytest.raises(UsageError):
        run_options(JobSpec("job", "day", **about))
