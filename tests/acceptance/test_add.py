"""`ranonce add`: what it prints runs the job from where its scheduler stands."""

from __future__ import annotations

import json
import os
import pwd
import subprocess

import pytest

from ranonce.schedulers.crontab import host_zone
from tests.conftest import EFFECT
from tests.manifests import read

BERLIN = ("--every", "30 2 * * *", "--tz", "Europe/Berlin")
SH = ("--", "/bin/sh", "-c", EFFECT)
#: What cron and systemd give to a job, and what the job itself needs here.
BARE = {"HOME": pwd.getpwuid(os.getuid()).pw_dir, "PATH": "/usr/bin:/bin"}


def bare_environment(world):
    passed_on = ("EFFECTS", "PIDS", "RANONCE_TEST_WORLD", "RANONCE_STORE")  # the last is there only for a password
    return {**BARE, **{name: world.env[name] for name in passed_on if name in world.env}}


def declared(world, job="job"):
    return [(version.every, version.tz, version.dialect) for version in world.schedules(job)]


@pytest.mark.every_store
def test_the_crontab_line_runs_the_job_from_crons_environment(world):
    added = world.ranonce("add", "job", "--every", "day", *SH)
    assert added.exit == 0, added.err
    command = added.out.decode().split(" ", 5)[5].strip()
    for _ in range(2):
        assert subprocess.run(["/bin/sh", "-c", command], env=bare_environment(world), cwd="/").returncode == 0
    assert len(world.effects()) == 1


@pytest.mark.skipif(host_zone() != "UTC", reason="this machine's cron does not count in UTC")
def test_the_lines_of_another_zone_run_each_window_once(world):
    added = world.ranonce("add", "job", *BERLIN, "--now", "2026-11-01T12:00:00Z", *SH)
    assert added.out.decode().startswith("30 0,1 * * * ")
    assert (
        "Where cron is cronie you can write CRON_TZ=Europe/Berlin on a line of its own and then: 30 2 * * *"
        in added.err
    )
    said = []
    for day in ("2026-11-08", "2026-11-09"):
        for time in ("00:30:00", "01:30:00"):
            ran = world.ranonce("run", "job", "--receipt", "all", "--now", f"{day}T{time}Z")
            said.append((ran.exit, ran.receipt["event"], ran.receipt.get("reason"), ran.receipt["window"]))
    assert said == [
        (0, "done", None, "2026-11-07T01:30Z"),  # nobody had done the window that was open when the job was added
        (0, "done", None, "2026-11-08T01:30Z"),
        (0, "skipped", "done", "2026-11-08T01:30Z"),  # an hour too early: the window before, which is done
        (0, "done", None, "2026-11-09T01:30Z"),
    ]
    assert len(world.effects()) == 3


def test_systemd_fires_the_job_by_units_that_say_so(world):
    added = world.ranonce("add", "job", *BERLIN, "--for", "systemd", *SH)
    assert added.exit == 0, added.err
    text = added.out.decode()
    assert "OnCalendar=*-*-* 02:30:00 Europe/Berlin\n" in text
    assert f"--config {world.config}" in text and f"XDG_STATE_HOME={world.root}/state" in text
    assert "enable --now ranonce-job.timer" in added.err
    assert declared(world) == [("30 2 * * *", "Europe/Berlin", "systemd")]
    assert 'dialect = "systemd"' in world.config.read_text()


def test_a_dialect_that_is_named_is_kept(world):
    world.ranonce("add", "job", *BERLIN, "--for", "systemd", "--dialect", "debian", *SH)
    assert declared(world) == [("30 2 * * *", "Europe/Berlin", "debian")]


def test_a_job_that_is_declared_again_keeps_its_scheduler(world):
    world.ranonce("add", "job", *BERLIN, "--for", "systemd", *SH)
    again = world.ranonce("add", "job", "--timeout", "1h")
    assert b"OnCalendar=" in again.out
    assert declared(world) == [("30 2 * * *", "Europe/Berlin", "systemd")]
    assert b"OnCalendar=" not in world.ranonce("add", "job", "--for", "crontab").out


@pytest.mark.every_store
def test_a_pod_runs_the_job_without_a_configuration(world):
    words = ("--image", "registry.example/jobs:7", "--timeout", "90m", "--check", f"file={world.effects_file}")
    added = world.ranonce("add", "job", *BERLIN, "--for", "kubernetes", *words, *SH)
    assert added.exit == 0, added.err
    (manifest,) = [each for each in read(added.out.decode()) if each["kind"] == "CronJob"]
    (container,) = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    command = [word.replace("$$", "$") for word in container["command"][1:]]
    secret = {"RANONCE_STORE": world.url, "RANONCE_LEDGER": world.ledger}
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "job-29728830-x7k2p"}
    nowhere = {"XDG_CONFIG_HOME": str(world.root / "nowhere")}
    command[2:2] = ["--now", "2026-07-11T00:31:00Z"]
    ran = world.ranonce(*command, env={**secret, **pod, **nowhere})
    assert ran.said() == (0, "done", None), ran.err
    assert (ran.receipt["chosen_by"], ran.receipt["window"]) == ("kubernetes", "2026-07-11T00:30Z")
    assert declared(world) == [("30 2 * * *", "Europe/Berlin", "kubernetes")]


def test_a_ledger_that_no_pod_can_reach_expects_nothing_of_the_job(world):
    added = world.ranonce("add", "job", *BERLIN, "--for", "kubernetes", "--json", *SH)
    told = json.loads(added.out)
    assert [each["name"] for each in told["files"]] == ["ranonce-ledger.yaml", "job.yaml"]
    assert told["schedule_version"] is None
    assert declared(world) == [] and "jobs" not in world.config.read_text()


def test_in_a_pod_the_schedule_is_changed(world):
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    for every, now in (("30 2 * * *", "2026-11-09T12:00:00Z"), ("30 3 * * *", "2026-11-10T12:00:00Z")):
        added = world.ranonce("add", "job", "--every", every, "--for", "kubernetes", "--now", now, *SH, env=pod)
        assert added.exit == 0, added.err
        ran = world.ranonce("run", "job", "--every", every, "--dialect", "kubernetes", "--now", now, *SH)
        assert ran.exit == 0, ran.err
    assert declared(world) == [("30 2 * * *", "UTC", "kubernetes"), ("30 3 * * *", "UTC", "kubernetes")]


def test_a_runner_that_loses_the_ledger_is_refused_before_anything_is_declared(world):
    refused = world.ranonce("add", "job", *BERLIN, "--for", "github", *SH)
    assert refused.exit == 78
    assert "is gone after each job" in refused.sentence and "--runs-on self-hosted" in refused.sentence
    assert declared(world) == [] and "jobs" not in world.config.read_text()


def test_a_workflow_for_a_runner_of_ones_own(world):
    added = world.ranonce(
        "add", "job", *BERLIN, "--for", "github", "--runs-on", "self-hosted", "--", "./report.sh", "{window}"
    )
    (workflow,) = read(added.out.decode())
    assert workflow["on"]["schedule"] == [{"cron": "30 0,1 * * *"}]
    script = workflow["jobs"]["run"]["steps"][-1]["run"]
    assert script.endswith("--every '30 2 * * *' --tz Europe/Berlin -- ./report.sh '{window}'\n")
    assert declared(world) == [("30 2 * * *", "Europe/Berlin", "debian")]


@pytest.mark.parametrize(
    "words",
    [
        ("--image", "x"),
        ("--for", "systemd", "--image", "x"),
        ("--for", "kubernetes", "--runs-on", "self-hosted"),
        ("--into", "units"),
    ],
)
def test_an_option_of_another_scheduler_is_refused(world, words):
    refused = world.ranonce("add", "job", "--every", "day", *words, "--", "true")
    assert refused.exit == 64
    assert "says nothing to" in refused.sentence


def test_files_are_written_where_they_are_wanted(world):
    folder = world.root / "work" / "units"
    written = world.ranonce("add", "job", "--every", "day", "--for", "systemd", "--into", "units", *SH)
    assert written.exit == 0 and written.out == b"", written.err
    assert sorted(path.name for path in folder.iterdir()) == ["ranonce-job.service", "ranonce-job.timer"]
    assert world.ranonce("add", "job", "--every", "hour", "--into", "units").exit == 0
    assert "OnCalendar=*-*-* *:00:00 UTC" in (folder / "ranonce-job.timer").read_text()


def test_a_file_of_somebody_elses_is_not_written_over(world):
    folder = world.root / "work" / "units"
    folder.mkdir()
    (folder / "ranonce-job.timer").write_text("[Timer]\n")
    refused = world.ranonce("add", "job", "--every", "day", "--for", "systemd", "--into", "units", *SH)
    assert refused.exit == 78
    assert "did not write it" in refused.sentence
    assert [path.name for path in folder.iterdir()] == ["ranonce-job.timer"]
    assert (folder / "ranonce-job.timer").read_text() == "[Timer]\n"


def test_what_only_a_file_can_say_is_refused_where_there_is_none(world):
    with world.config.open("a") as file:
        file.write('[jobs.job]\nevery = "day"\ncommand = ["true"]\nchecks = [{ file = "a,b" }]\n')
    refused = world.ranonce("add", "job", "--for", "kubernetes")
    assert refused.exit == 64
    assert "can stand in a configuration file only" in refused.sentence


def test_a_command_and_its_folder_are_what_they_are_to_who_declares_them(bare, tmp_path):
    bare.init()
    place = tmp_path / "srv"
    place.mkdir()
    (place / "report.sh").write_text("#!/bin/sh\npwd\n")
    (place / "report.sh").chmod(0o755)
    added = bare.ranonce("add", "j", "--every", "day", "--cwd", "srv", "--", "./report.sh", cwd=tmp_path)
    assert (added.exit, "not there" in added.err) == (0, False)
    ran = bare.ranonce("run", "j", cwd="/")
    assert (ran.exit, ran.out.decode()) == (0, f"{place}\n")


@pytest.mark.parametrize(("scheduler", "declared"), [("systemd", "declared"), ("kubernetes", "not declared")])
def test_a_folder_that_takes_no_files_is_a_sentence_that_says_what_was_declared(world, scheduler, declared):
    ran = world.ranonce("add", "job", "--every", "day", "--for", scheduler, "--into", "/proc", *SH)
    assert ran.exit == 78
    assert f"cannot be written: No such file or directory. The job is {declared};" in ran.sentence
    assert ("[jobs.job]" in world.config.read_text()) == (declared == "declared")


# --- what a person meets --------------------------------------------------------------------------------------------


def test_declaring_a_job_again_says_when_its_line_stays_as_it_is(world):
    first = world.ranonce("add", "j", "--every", "day", "--", "true")
    assert "Paste this" in first.err
    again = world.ranonce("add", "j", "--timeout", "1h")
    assert "stays as it is" in again.err
    assert again.out == first.out
    moved = world.ranonce("add", "j", "--every", "0 3 * * *")
    assert "Paste this" in moved.err


@pytest.mark.parametrize("word", ["&&", "|", ">>", "2>&1", r"100\%"])
def test_words_for_a_shell_are_noticed(world, word):
    added = world.ranonce("add", "j", "--every", "day", "--", "echo", "a", word, "b")
    assert added.exit == 0
    assert "No shell and no cron reads the command" in added.err
    assert "No shell and no cron" not in world.ranonce("add", "k", "--every", "day", "--", "echo", "100%").err


def test_units_written_elsewhere_come_with_the_way_to_their_folder(world, tmp_path):
    added = world.ranonce("add", "j", "--every", "day", "--for", "systemd", "--into", str(tmp_path / "u"), "--", "true")
    steps = added.err.partition("Then: ")[2]
    assert f"cp {tmp_path}/u/ranonce-j.service {tmp_path}/u/ranonce-j.timer /etc/systemd/system/" in steps
    assert steps.index("cp ") < steps.index("daemon-reload")
