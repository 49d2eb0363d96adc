"""The manifests that `add` prints, read by the schemas of Kubernetes and by its rules for what is in them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ranonce.cron import parse_cron
from ranonce.dialects import kubernetes_rule
from ranonce.errors import ConfigError
from ranonce.jobspec import JobSpec
from ranonce.schedulers import Wanted
from ranonce.schedulers.kubernetes import CLAIM, STORE, manifest, object_name, printed, schedule_text
from ranonce.timefmt import DAY, parse_instant
from ranonce.windows import Schedule, choose
from tests.manifests import read
from tests.test_cronlines import rules

NOW = parse_instant("2026-11-09T12:00:00Z")
SCHEMA = json.loads((Path(__file__).parent / "data" / "kubernetes-1.37.json").read_text(encoding="utf-8"))
KINDS = {"CronJob": "io.k8s.api.batch.v1.CronJob", "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim"}
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30)


def wanted(every="30 2 * * *", tz="UTC", *, job="job", words=("run", "job", "--", "true"), sqlite="/x.db", **about):
    settings = {name: about.pop(name) for name in list(about) if name in JobSpec._fields and name != "cwd"}
    spec = JobSpec(job, every, tz, "kubernetes", **settings)
    return Wanted(spec, Schedule(every, tz, "kubernetes"), NOW, alone=words, sqlite=sqlite, **about)


def cron_job(asked):
    """Return the CronJob as Kubernetes reads it; it is one by the schema."""
    (found,) = read(manifest(asked))
    valid(found)
    return found["spec"]


def valid(document):
    schema = {**SCHEMA, "$ref": f"#/$defs/{KINDS[document['kind']]}"}
    Draft202012Validator(schema).validate(document)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", document["metadata"]["name"])


def container(spec):
    (found,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return found


def expanded(text):
    """Return text as Kubernetes hands it on. Source: k8s.io/kubernetes/third_party/forked/golang/expansion."""
    handed, at = "", 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            if text[at + 1] == "$":
                handed, at = handed + "$", at + 2
                continue
            assert text[at + 1] != "(", f"{text!r} holds a variable"
        handed, at = handed + text[at], at + 1
    return handed


def test_the_manifest_says_all_there_is_to_say():
    spec = cron_job(wanted("30 2 * * mon-fri", "Europe/Berlin", image="registry.example/jobs:7"))
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == (
        "30 2 * * 1-5",
        "Europe/Berlin",
        "Forbid",
    )
    job = spec["jobTemplate"]["spec"]
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] == 70
    assert container(spec)["image"] == "registry.example/jobs:7"
    assert container(spec)["command"] == ["ranonce", "run", "job", "--", "true"]
    secrets = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container(spec)["env"][:2]}
    assert secrets == {name: {"name": "ranonce", "key": name} for name in ("RANONCE_STORE", "RANONCE_LEDGER")}


def test_a_ledger_in_a_file_gets_a_volume_that_one_pod_has_at_a_time():
    made = printed(wanted())
    assert [name for name, _ in made.files] == ["ranonce-ledger.yaml", "job.yaml"]
    (claim,) = read(made.files[0][1])
    valid(claim)
    assert claim["metadata"]["name"] == CLAIM
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    pod = cron_job(wanted())["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "ledger", "persistentVolumeClaim": {"claimName": CLAIM}}]
    mount = pod["containers"][0]["volumeMounts"][0]["mountPath"]
    state = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}["XDG_STATE_HOME"]
    assert state.startswith(f"{mount}/") and STORE.startswith(f"sqlite:///{mount}/")


def test_a_ledger_elsewhere_needs_no_volume():
    made = printed(wanted(sqlite=None))
    assert [name for name, _ in made.files] == ["job.yaml"]
    pod = cron_job(wanted(sqlite=None))["jobTemplate"]["spec"]["template"]["spec"]
    assert "volumes" not in pod
    assert [each["name"] for each in pod["containers"][0]["env"]] == ["RANONCE_STORE", "RANONCE_LEDGER"]


def test_a_ledger_on_a_server_comes_from_a_secret_and_no_password_from_a_command_line():
    made = printed(wanted(sqlite=None, server="postgresql://app@db.example/x"))
    assert made.then[1] == "kubectl create secret generic ranonce --from-env-file=ranonce.env"
    assert made.notes[-1].startswith("Say --image IMAGE, with ranonce[postgres] and the command in it")
    assert "The journal ends with the pod" in made.files[0][1]
    assert "which is this host only" in printed(wanted(sqlite=None, server="redis://127.0.0.1:6379/0")).notes[-1]


def test_the_commands_that_make_the_ledger_can_be_pasted():
    image = "registry.example/it's:7"
    (line,) = [step for step in printed(wanted(image=image)).then if step.startswith("kubectl run ")]
    words = shlex.split(line)
    assert f"--image={image}" in words
    (overrides,) = [json.loads(word.partition("=")[2]) for word in words if word.startswith("--overrides=")]
    (made,) = overrides["spec"]["containers"]
    assert made["name"] == words[2]
    pod = cron_job(wanted())["jobTemplate"]["spec"]["template"]["spec"]
    assert made["volumeMounts"] == pod["containers"][0]["volumeMounts"]
    assert overrides["spec"]["volumes"] == pod["volumes"]
    Draft202012Validator({**SCHEMA, "$ref": "#/$defs/io.k8s.api.core.v1.PodSpec"}).validate(overrides["spec"])


def test_try_later_neither_fails_the_job_nor_finishes_it():
    first, second = cron_job(wanted())["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert first == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert second["onExitCodes"] == {"containerName": "ranonce", "operator": "In", "values": [75]}
    assert cron_job(wanted(busy_exit=99))["jobTemplate"]["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"][
        "values"
    ] == [99]
    assert len(cron_job(wanted(busy_exit=0))["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]) == 1


@pytest.mark.parametrize(
    ("every", "about", "seconds"),
    [("30 2 * * *", {}, DAY), ("hour", {}, 3600), ("* * * * *", {}, 60), ("30 2 * * *", {"max_late": 900.5}, 901)],
)
def test_a_late_start_counts_as_long_as_the_window_lasts(every, about, seconds):
    assert cron_job(wanted(every, **about))["startingDeadlineSeconds"] == seconds


def test_jobs_that_may_overlap_may_do_so_here():
    assert cron_job(wanted(overlap="allow"))["concurrencyPolicy"] == "Allow"


@settings(max_examples=25, deadline=None)
@given(st.lists(TEXT, max_size=5), TEXT.filter(bool), TEXT.filter(bool))
def test_whatever_the_command_is_it_arrives_as_it_was(words, image, folder):
    spec = cron_job(wanted(words=("run", "job", "--", *words), image=image, cwd=folder))
    assert [expanded(word) for word in container(spec)["command"]] == ["ranonce", "run", "job", "--", *words]
    assert (container(spec)["image"], container(spec)["workingDir"]) == (image, folder)


YAML_WORDS = (
    "yes",
    "No",
    "~",
    "null",
    "1",
    "0x1f",
    "1e3",
    "1:30",
    "2026-11-09",
    "on",
    "=",
    "<<",
    "'",
    '"',
    "-",
    "?",
    ",",
)
YAML_SIGNS = ("!x", "&x", "*x", "%", "{{x}}", "[a]", "{a}", "$(HOME)", "$$", "$", "${X}", "ü", "😀")
TEXTS = ("a: b", "# x", "a #b", "- a", "{{ x }}", "\t", "a\nb\n", " a ", "", "\u2028", "\x07", "\ufeff", "\x85")


@pytest.mark.parametrize("word", [*YAML_WORDS, *YAML_SIGNS, *TEXTS])
def test_hostile_words_arrive_as_they_were(word):
    assert expanded(container(cron_job(wanted(words=("run", "job", "--", word))))["command"][-1]) == word


def test_what_is_not_utf_8_is_refused():
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        printed(wanted(words=("run", "job", "--", "\udcff")))


@pytest.mark.parametrize("job", ["a", "job", "nightly-report", "a-1"])
def test_a_name_that_kubernetes_takes_stays(job):
    assert object_name(job) == job


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True))
def test_every_name_becomes_one_that_kubernetes_takes(job):
    name = object_name(job)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
    assert len(f"{name}-29700000-abcde") <= 63  # a pod's name is cut off behind that


def test_names_that_differ_stay_different():
    names = ["job.a", "job_a", "job-a", "Job-a", "job-", "x" * 49, "x" * 50]
    assert len({object_name(name) for name in names}) == len(names)
    assert "job_a is called job-a-" in printed(wanted(job="job_a")).notes[0]


def test_the_pods_name_says_which_window_it_is_for():
    schedule = Schedule("30 2 * * *", "Europe/Berlin", "kubernetes")
    tick = schedule.window_at(NOW)
    for job in ("job", "Nightly_Report." * 6):
        pod = f"{object_name(job)}-{tick.start // 60}-x7k2p"
        chosen = choose(schedule, now=NOW, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": pod})
        assert (chosen.window, chosen.chosen_by) == (tick, "kubernetes")


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("@daily", "0 0 * * *"),
        ("30 2 * * 7", "30 2 * * 0"),
        ("30 2 * * fri-7", "30 2 * * 0,5,6"),
        ("30 2 1-31 * mon", "30 2 * * *"),  # either may match on Debian, so each day does; robfig/cron would want both
        ("30 2 13 * fri", "30 2 13 * 5"),
        ("30 2 */2 * *", "30 2 */2 * *"),
        ("30 2 */2 * mon", "30 2 * * 1"),  # both must match on Debian, either on robfig/cron
        ("30 2 1 * */2", "30 2 1 * *"),
        ("30 2 */2 feb *", "30 2 */2 2 *"),
    ],
)
def test_rules_that_robfig_reads_otherwise_are_written_for_it(every, expected):
    assert schedule_text(parse_cron(every)) == expected


@settings(max_examples=80, deadline=None)
@given(rules(), st.integers(0, 330))
def test_kubernetes_fires_whenever_a_window_begins(every, days):
    rule = parse_cron(every)
    written = schedule_text(rule)
    assert re.fullmatch(r"[0-9*,/ -]+", written) and "7" not in written.split()[4]
    since = int(NOW + days * DAY) // DAY * DAY
    fires = set(kubernetes_rule(parse_cron(written)).slots(since, since + 45 * DAY))
    ticks = set(Schedule(every).starts(since, since + 45 * DAY))
    assert ticks <= fires
    if rule.either_day or len(rule.days) == 31 or len(rule.weekdays) == 7:
        assert ticks == fires


def test_one_field_too_few_in_kubernetes_is_said():
    assert "cannot say that both day fields" in printed(wanted("30 2 */2 * mon", image="x")).notes[0]
    assert printed(wanted("30 2 13 * fri", image="x")).notes == ()
    assert "--image IMAGE" in printed(wanted()).notes[0]
