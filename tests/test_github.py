"""The workflows that `add` prints, read by GitHub's schema and run as a runner runs their step."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from check_jsonschema.builtin_schemas import get_builtin_schema
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from ranonce.errors import ConfigError, UsageError
from ranonce.jobspec import JobSpec
from ranonce.schedulers import Wanted
from ranonce.schedulers.github import printed, utc_lines, workflow
from ranonce.timefmt import parse_instant
from ranonce.windows import Schedule
from tests.manifests import read

NOW = parse_instant("2026-11-09T12:00:00Z")
SCHEMA = Draft7Validator(get_builtin_schema("vendor.github-workflows"))
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30)


def wanted(every="30 2 * * *", tz="UTC", *, job="job", words=("--every", "day", "--", "true"), **about):
    spec = JobSpec(job, every, tz)
    return Wanted(spec, Schedule(every, tz), NOW, alone=("run", job, *words), **about)


def read_workflow(asked):
    (found,) = read(workflow(asked))
    SCHEMA.validate(found)
    return found


def step(found):
    """Return the step that runs the job."""
    return found["jobs"]["run"]["steps"][-1]


def evaluated(text):
    """Return text as GitHub hands it to the shell; an expression is a literal, or is not expected here."""

    def value(expression):
        literal = re.fullmatch(r"'((?:[^']|'')*)'", expression[1].strip())
        assert literal, f"an expression: {expression[0]}"
        return literal[1].replace("''", "'")

    return re.sub(r"\$\{\{(.*?)\}\}", value, text, flags=re.DOTALL)


def given_to_ranonce(asked, tmp_path, **environment):
    """Return the arguments that the step gives to ranonce."""
    program = tmp_path / "ranonce" / "bin" / "ranonce"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    script = evaluated(step(read_workflow(asked))["run"])
    told = {"RUNNER_TEMP": str(tmp_path), "PATH": "/usr/bin:/bin", "TRIGGER": "schedule", "WINDOW": "", **environment}
    return json.loads(subprocess.run(["bash", "-e", "-c", script], env=told, capture_output=True, check=True).stdout)


def test_the_workflow_says_all_there_is_to_say():
    found = read_workflow(wanted("30 2 * * *", "Europe/Berlin"))
    assert found["on"]["schedule"] == [{"cron": "30 0,1 * * *"}]
    assert found["on"]["workflow_dispatch"]["inputs"]["window"]["required"] is False
    assert found["permissions"] == {"contents": "read"}
    assert found["concurrency"] == {"group": "ranonce-job", "cancel-in-progress": False}
    assert found["jobs"]["run"]["runs-on"] == "ubuntu-latest"
    environment = step(found)["env"]
    assert environment["RANONCE_STORE"] == "${{ secrets.RANONCE_STORE }}"
    assert environment["RANONCE_LEDGER"] == "${{ secrets.RANONCE_LEDGER }}"
    assert environment["WINDOW"] == "${{ inputs.window }}"


@pytest.mark.parametrize("every", ["hour", "day", "week", "month", "*/15 9-17 * * mon-fri", "0 0 13 * fri"])
@pytest.mark.parametrize("tz", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
def test_every_schedule_passes_githubs_schema(every, tz):
    found = read_workflow(wanted(every, tz))
    assert [each["cron"] for each in found["on"]["schedule"]] == utc_lines(Schedule(every, tz), NOW)


@pytest.mark.parametrize("job", ["job", "Nightly.report_2", "1", "2026-11-09", "0x1f", "1.5", "true", "x" * 100])
def test_every_name_of_a_job_stays_text(job):
    found = read_workflow(wanted(job=job))
    assert found["name"] == job
    assert step(found)["name"] == f"Run {job}"


def test_a_window_can_be_asked_for_by_hand(tmp_path):
    words = ["--every", "day", "--", "true"]
    assert given_to_ranonce(wanted(), tmp_path) == ["run", "job", "--trigger", "schedule", *words]
    window = "2026-11-07'; echo $(id) \"`"
    by_hand = given_to_ranonce(wanted(), tmp_path, TRIGGER="manual", WINDOW=window)
    assert by_hand == ["run", "job", "--trigger", "manual", "--window", window, *words]


@pytest.mark.parametrize(
    "word",
    [
        "${{ secrets.X }}",
        "${{",
        "}}",
        "$HOME",
        "`id`",
        "$(id)",
        "it's",
        '"',
        "a\nb\n",
        " a: #b ",
        "50%",
        "\\",
        "",
        "~",
        "ü😀",
        "\t",
        "*",
    ],
)
def test_hostile_words_arrive_as_they_were(word, tmp_path):
    assert given_to_ranonce(wanted(words=("--", word)), tmp_path)[-1] == word


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(TEXT, st.text("${ }'\"\\\n", max_size=9)), max_size=4), TEXT.filter(bool))
def test_whatever_the_command_is_it_arrives_as_it_was(words, folder):
    import shlex

    found = step(read_workflow(wanted(words=("--", *words), cwd=folder)))
    assert evaluated(found["working-directory"]) == folder
    assert shlex.split(evaluated(found["run"]))[-1 - len(words) :] == ["--", *words]


def test_a_file_on_a_disk_that_is_gone_afterwards_is_no_ledger():
    for label in ("ubuntu-latest", "Ubuntu-24.04-arm"):
        with pytest.raises(ConfigError, match=r"the ledger is the file /srv/ledger\.db, and the disk of .* is gone"):
            printed(wanted(sqlite="/srv/ledger.db", runs_on=label))


def test_a_runner_of_ones_own_keeps_its_disk():
    asked = wanted(sqlite="/srv/ledger.db", runs_on="self-hosted", user="you", state_home="/srv/state")
    assert step(read_workflow(asked))["env"]["XDG_STATE_HOME"] == "/srv/state"
    assert "must be on this host and work as this user (you)" in printed(asked).notes[0]
    SCHEMA.validate(read(workflow(wanted(sqlite="/a\nb: #", runs_on="self-hosted")))[0])


@pytest.mark.parametrize(
    ("server", "package"),
    [("postgresql://app@db.example/x", "ranonce[postgres]=="), ("rediss://cache.example:6379/0", "ranonce==")],
)
def test_a_hosted_runner_works_with_a_ledger_on_a_server(server, package):
    asked = wanted(server=server)
    found = read_workflow(asked)
    assert found["jobs"]["run"]["runs-on"] == "ubuntu-latest"
    assert package in found["jobs"]["run"]["steps"][1]["run"]
    assert "XDG_STATE_HOME" not in step(found)["env"]
    made = printed(asked)
    assert made.then[0].endswith("with its password")
    assert made.notes == ()
    assert "the journal\n# that would notice an old copy of it" in made.files[0][1]


def test_a_server_of_this_host_only_is_said_to_be_out_of_reach():
    assert "which is this host only" in printed(wanted(server="postgresql://app@localhost/x")).notes[0]


def test_a_runner_without_linux_is_refused():
    with pytest.raises(UsageError, match="is not Linux"):
        printed(wanted(runs_on="windows-latest"))


def test_a_schedule_that_github_is_too_slow_for_is_said():
    assert "every 5 minutes at most" in printed(wanted("* * * * *")).notes[0]
    assert printed(wanted("*/5 * * * *")).notes == ()
