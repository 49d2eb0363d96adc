"""The configuration: where it lies, who may have written it, what stands in it, and which ledger is used."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranonce import config, trust
from ranonce.checks import Check
from ranonce.config import (
    Config,
    JobSpec,
    VersionFile,
    check_job,
    find_config,
    load,
    resolve_version,
    state_folder,
)
from ranonce.errors import ConfigError, UsageError
from ranonce.tomllines import key_lines

JOB = '[jobs.j]\nevery = "day"\n'
LEDGER = '[ledger]\nstore = "sqlite:////var/lib/x/ledger.db"\nid = "0198c7"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)  # whatever the umask of whoever runs the tests
    return tmp_path


def write(folder: Path, content: str | bytes) -> str:
    file = folder / "ranonce.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    file.chmod(0o600)
    return str(file)


def loaded(folder: Path, content: str, environ: dict[str, str] | None = None, **more: str) -> Config:
    return load(write(folder, content), {"HOME": "/home/me"} if environ is None else environ, **more)


def job(folder: Path, lines: str) -> JobSpec:
    return loaded(folder, LEDGER + JOB + lines).jobs["j"]


def refused(folder: Path, content: str | bytes, **more: str) -> ConfigError:
    with pytest.raises(ConfigError) as refusal:
        load(write(folder, content), {"HOME": "/home/me"}, **more)
    assert refusal.value.exit_status == 78
    assert refusal.value.next_step, "an error without a remedy"
    assert "\n" not in str(refusal.value)
    return refusal.value


# --- where it lies ---


def test_the_option_wins_over_everything(folder: Path) -> None:
    path = write(folder, LEDGER)
    assert find_config(path, {"RANONCE_CONFIG": "/nowhere", "HOME": "/nowhere"}) == path


def test_the_environment_wins_over_the_users_file(folder: Path) -> None:
    path = write(folder, LEDGER)
    assert find_config(None, {"RANONCE_CONFIG": path, "HOME": str(folder)}) == path


def test_the_users_file_lies_under_xdg_config_home_or_dot_config(folder: Path) -> None:
    for base in (folder / "xdg", folder / ".config"):
        (base / "ranonce").mkdir(parents=True)
        (base / "ranonce" / "ranonce.toml").write_text("")
    assert find_config(None, {"XDG_CONFIG_HOME": f"{folder}/xdg", "HOME": str(folder)}) == (
        f"{folder}/xdg/ranonce/ranonce.toml"
    )
    assert find_config(None, {"HOME": str(folder)}) == f"{folder}/.config/ranonce/ranonce.toml"
    assert find_config(None, {"XDG_CONFIG_HOME": "xdg", "HOME": str(folder)}) == (
        f"{folder}/.config/ranonce/ranonce.toml"
    )


def test_the_systems_file_comes_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SYSTEM_CONFIG", write(folder, LEDGER))
    assert find_config(None, {"HOME": "/nowhere"}) == f"{folder}/ranonce.toml"


def test_no_folder_is_searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, LEDGER)
    monkeypatch.setattr(config, "SYSTEM_CONFIG", "/nowhere/ranonce.toml")
    monkeypatch.chdir(folder)
    assert find_config(None, {"HOME": "/nowhere"}) is None


@pytest.mark.parametrize("environ", [{}, {"RANONCE_CONFIG": "/nowhere/at all.toml"}])
def test_a_named_file_that_is_missing_is_an_error_with_the_way_to_make_it(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no such file") as refusal:
        find_config(None if environ else "/nowhere/at all.toml", environ)
    assert "ranonce init --config" in refusal.value.next_step
    assert refusal.value.exit_status == 78


@pytest.mark.parametrize("environ", [{"RANONCE_CONFIG": ""}, {"RANONCE_CONFIG": "etc/ranonce.toml"}])
def test_an_empty_or_relative_path_in_the_environment_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="RANONCE_CONFIG"):
        find_config(None, environ)


def test_an_empty_config_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="--config is empty"):
        find_config("", {})


def test_a_user_without_home_has_no_file_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert config.user_config({}) is None


def test_root_without_home_has_the_file_of_roots_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert config.user_config({}) == f"{pwd.getpwnam('root').pw_dir}/.config/ranonce/ranonce.toml"


def test_the_state_folder_follows_xdg_then_root_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert state_folder({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == "/s/ranonce"
    assert state_folder({"HOME": "/h"}) == "/h/.local/state/ranonce"
    assert state_folder({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == "/h/.local/state/ranonce"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_folder({"HOME": "/root"}) == "/var/lib/ranonce"


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_home_the_state_folder_is_an_error_with_a_next_step(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ConfigError, match="HOME is not set") as refusal:
        load(None, environ)
    assert "RANONCE_STORE" in refusal.value.next_step


# --- which ledger ---


def test_without_a_file_the_default_store_is_in_the_state_folder() -> None:
    found = load(None, {"XDG_STATE_HOME": "/s"})
    assert found.ledger.store == "sqlite:////s/ranonce/ledger.db"
    assert (found.ledger.ledger_id, found.ledger.source, found.path, found.jobs) == (None, "default", None, {})


def test_the_store_of_the_option_beats_the_environment_beats_the_file_beats_the_default(folder: Path) -> None:
    content = LEDGER
    environ = {"XDG_STATE_HOME": "/s", "RANONCE_STORE": "sqlite:////e.db"}
    assert loaded(folder, content, environ, store="sqlite:////o.db").ledger.store == "sqlite:////o.db"
    assert loaded(folder, content, environ).ledger.store == "sqlite:////e.db"
    assert loaded(folder, content, {}).ledger.store == "sqlite:////var/lib/x/ledger.db"
    assert loaded(folder, JOB, {"XDG_STATE_HOME": "/s"}).ledger.store == "sqlite:////s/ranonce/ledger.db"


def test_the_source_says_who_named_the_store(folder: Path) -> None:
    assert loaded(folder, LEDGER, {}).ledger.source == f"{folder}/ranonce.toml"
    assert load(None, {"RANONCE_STORE": "memory:"}).ledger.source == "$RANONCE_STORE"
    assert load(None, {}, store="memory:").ledger.source == "--store"


def test_the_files_id_belongs_to_the_files_store_only(folder: Path) -> None:
    assert loaded(folder, LEDGER, {}).ledger.ledger_id == "0198c7"
    assert loaded(folder, LEDGER, {}, store="sqlite:////other.db").ledger.ledger_id is None
    assert loaded(folder, LEDGER, {"RANONCE_STORE": "sqlite:////other.db"}).ledger.ledger_id is None


def test_the_files_id_holds_when_its_store_is_named_again_in_other_words(folder: Path) -> None:
    content = '[ledger]\nstore = "sqlite:///ledger.db"\nid = "0198c7"\n'
    assert loaded(folder, content, {}, store=f"sqlite:///{folder}/./ledger.db").ledger.ledger_id == "0198c7"


def test_the_files_id_without_a_store_belongs_to_the_default_store(folder: Path) -> None:
    content = '[ledger]\nid = "0198c7"\n'
    environ = {"XDG_STATE_HOME": "/s"}
    assert loaded(folder, content, environ).ledger.ledger_id == "0198c7"
    assert loaded(folder, content, environ, store="sqlite:////s/ranonce/ledger.db").ledger.ledger_id == "0198c7"
    assert loaded(folder, content, environ, store="sqlite:////other.db").ledger.ledger_id is None


def test_the_environments_id_belongs_to_the_environments_store() -> None:
    environ = {"RANONCE_STORE": "sqlite:////e.db", "RANONCE_LEDGER": "E"}
    assert load(None, environ).ledger.ledger_id == "E"
    assert load(None, environ, store="sqlite:////e.db").ledger.ledger_id == "E"
    assert load(None, environ, store="sqlite:////o.db").ledger.ledger_id is None


def test_an_id_alone_in_the_environment_pins_whichever_store_is_used(folder: Path) -> None:
    assert load(None, {"RANONCE_LEDGER": "E"}, store="sqlite:////o.db").ledger.ledger_id == "E"
    assert loaded(folder, '[ledger]\nstore = "sqlite:////x.db"\n', {"RANONCE_LEDGER": "E"}).ledger.ledger_id == "E"


def test_two_ids_for_the_files_store_contradict_each_other(folder: Path) -> None:
    with pytest.raises(ConfigError, match="'E' and the configuration says '0198c7'"):
        loaded(folder, LEDGER, {"RANONCE_LEDGER": "E"})


def test_the_environments_id_beats_the_files_where_the_environment_names_the_store(folder: Path) -> None:
    environ = {"RANONCE_STORE": "sqlite:////var/lib/x/ledger.db", "RANONCE_LEDGER": "E"}
    assert loaded(folder, LEDGER, environ).ledger.ledger_id == "E"


@pytest.mark.parametrize("environ", [{"RANONCE_LEDGER": ""}, {"RANONCE_STORE": ""}, {"RANONCE_STORE": "  "}])
def test_an_empty_variable_is_refused_not_skipped(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        load(None, {"XDG_STATE_HOME": "/s", **environ})


# --- addresses of stores ---


def test_three_slashes_in_the_file_are_relative_to_the_file_whatever_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    content = '[ledger]\nstore = "sqlite:///state/ledger.db"\n'
    assert loaded(folder, content).ledger.store == f"sqlite:///{folder}/state/ledger.db"


def test_a_tilde_is_the_callers_home(folder: Path) -> None:
    content = '[ledger]\nstore = "sqlite:///~/ledger.db"\n'
    assert loaded(folder, content, {"HOME": "/home/me"}).ledger.store == "sqlite:////home/me/ledger.db"
    with pytest.raises(ConfigError, match="home folder"):
        loaded(folder, content, {})


def test_a_relative_store_outside_the_file_is_refused_with_the_absolute_address(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match="--store") as refusal:
        load(None, {}, store="sqlite:///x.db")
    assert f"sqlite:///{folder}/x.db" in refusal.value.next_step
    with pytest.raises(ConfigError, match=r"\$RANONCE_STORE"):
        load(None, {"RANONCE_STORE": "sqlite:///x.db"})


@pytest.mark.parametrize("path", ["/var/lib/x.db", "x.db", "~/x.db"])
def test_a_bare_path_is_refused_with_the_address_to_write(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/var/lib")
    with pytest.raises(UsageError, match="is a path, not an address") as refusal:
        load(None, {"HOME": "/home/me"}, store=path)
    assert refusal.value.next_step.startswith("Write sqlite:////")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("", "is empty"),
        (":memory:", "forget every run"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite://", "not the address"),
        ("sqlite:x.db", "not the address"),
        ("sqlite://host/x.db", "not the address"),
        ("sqlite:////var/lib/", "names a folder"),
        ("sqlite:////var/lib/..", "names a folder"),
        ("sqlite:////x.db?mode=ro", "has options"),
        ("sqlite:////x\n.db", "control characters"),
        ("sqlite:////x\0.db", "control characters"),
        ("mysql://h/db", "no store is called 'mysql'"),
        ("postgresql://h", "names no database"),
        ("redis://h/ledger", "has a number"),
        ("file:///x.db", "no store is called 'file'"),
    ],
)
def test_an_address_that_is_no_store_is_refused_with_what_there_is(address: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        load(None, {"HOME": "/h"}, store=address)
    assert sentence in refusal.value.sentence
    assert refusal.value.sentence.isprintable()
    assert refusal.value.next_step


def test_the_normal_form_has_no_dots_and_one_leading_slash() -> None:
    assert load(None, {}, store="sqlite://///a//b/../ledger.db").ledger.store == "sqlite:////a/ledger.db"
    assert load(None, {}, store="memory:").ledger.store == "memory:"


def test_a_variable_in_the_files_store_comes_from_the_environment(folder: Path) -> None:
    content = '[ledger]\nstore = "sqlite:///${DATA}/ledger.db"\n'
    assert loaded(folder, content, {"DATA": "/data"}).ledger.store == "sqlite:////data/ledger.db"


def test_a_variable_that_is_not_set_is_named_with_its_line(folder: Path) -> None:
    error = refused(folder, '# here\n[ledger]\nstore = "${STORE_URL}"\n')
    assert error.sentence.startswith(f"{folder}/ranonce.toml:3: ledger.store uses ${{STORE_URL}}")
    assert "Set STORE_URL" in error.next_step


def test_a_broken_variable_is_refused(folder: Path) -> None:
    assert "is not a variable" in refused(folder, '[ledger]\nstore = "${a-b}"\n').sentence
    assert "is not a variable" in refused(folder, '[ledger]\nstore = "sqlite:////${HOME"\n').sentence


def test_a_variable_is_replaced_once_and_only_in_the_file(folder: Path) -> None:
    content = '[ledger]\nstore = "sqlite:////${A}"\n'
    assert loaded(folder, content, {"A": "${B}", "B": "no"}).ledger.store == "sqlite:////${B}"
    assert load(None, {"A": "no"}, store="sqlite:////${A}").ledger.store == "sqlite:////${A}"


def test_the_files_store_is_not_resolved_where_another_is_used(folder: Path) -> None:
    content = '[ledger]\nstore = "${NOT_SET}"\nid = "0198c7"\n'
    ledger = loaded(folder, content, {}, store="sqlite:////o.db").ledger
    assert (ledger.store, ledger.ledger_id) == ("sqlite:////o.db", None)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:hunter2@db/ledger",
        "postgresql://me:hun/ter2@db/ledger",
        "postgresql://db/ledger?user=me&password=hunter2",
        "redis://:hunter2@r/0",
    ],
)
def test_a_literal_password_is_refused_and_not_repeated(folder: Path, address: str) -> None:
    error = refused(folder, f'[ledger]\nstore = "{address}"\n')
    assert "holds a password" in error.sentence
    assert "hun" not in str(error)
    assert "environment" in error.next_step
    with pytest.raises(UsageError, match="holds a password") as refusal:
        load(None, {}, store=address)
    assert "hun" not in str(refusal.value)


def test_a_password_from_the_environment_is_not_shown_either() -> None:
    with pytest.raises(ConfigError, match="names no database") as refusal:
        load(None, {"RANONCE_STORE": "postgresql://me:hunter2@db/"})
    assert "hunter2" not in str(refusal.value)
    assert "me:***@db" in str(refusal.value)


def test_the_files_id_holds_whoever_asks_its_server_and_with_which_password(folder: Path) -> None:
    content = '[ledger]\nstore = "postgresql://owner@db/ledger"\nid = "0198c7"\n'
    found = loaded(folder, content, {"RANONCE_STORE": "postgresql://app:hunter2@db/ledger"}).ledger
    assert (found.store, found.ledger_id) == ("postgresql://app:hunter2@db/ledger", "0198c7")
    other = loaded(folder, content, {"RANONCE_STORE": "postgresql://app:hunter2@db/ledger?schema=other"}).ledger
    assert other.ledger_id is None


# --- who may have written it ---


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused_with_the_chmod_to_run(folder: Path, mode: int) -> None:
    path = write(folder, LEDGER)
    os.chmod(path, mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}") as refusal:
        load(path, {})
    assert pwd.getpwuid(os.geteuid()).pw_name in refusal.value.sentence
    assert f"chmod go-w {path}" in refusal.value.next_step


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o644])
def test_a_file_that_others_may_only_read_is_taken(folder: Path, mode: int) -> None:
    path = write(folder, LEDGER)
    os.chmod(path, mode)
    assert load(path, {}).ledger.ledger_id == "0198c7"


def test_a_folder_that_others_may_write_is_refused_unless_it_is_sticky(folder: Path) -> None:
    path = write(folder, LEDGER)
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="has mode 0777"):
        load(path, {})
    folder.chmod(0o1777)
    assert load(path, {}).ledger.ledger_id == "0198c7"


def test_a_read_only_mount_excuses_modes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder, LEDGER)
    folder.chmod(0o777)

    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(trust.os, "statvfs", lambda _: ReadOnly)  # as a Kubernetes ConfigMap is mounted
    assert load(path, {}).ledger.ledger_id == "0198c7"


def test_a_link_is_followed_to_a_file_that_is_trusted(folder: Path) -> None:
    (folder / "a").mkdir(mode=0o700)
    write(folder / "a", '[ledger]\nstore = "sqlite:///ledger.db"\n')
    (folder / "link.toml").symlink_to("a/ranonce.toml")
    found = load(f"{folder}/link.toml", {})
    assert found.ledger.store == f"sqlite:///{folder}/ledger.db", "relative to where the file is named"
    os.chmod(f"{folder}/a/ranonce.toml", 0o666)
    with pytest.raises(ConfigError, match="mode 0666"):
        load(f"{folder}/link.toml", {})


def test_a_link_into_a_folder_that_others_may_write_is_refused(folder: Path) -> None:
    (folder / "a").mkdir()
    write(folder / "a", LEDGER)
    (folder / "a").chmod(0o777)
    (folder / "link.toml").symlink_to("a/ranonce.toml")
    with pytest.raises(ConfigError, match="mode 0777"):
        load(f"{folder}/link.toml", {})


def test_a_file_of_another_user_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder, LEDGER)
    other = next(user for user in pwd.getpwall() if user.pw_uid not in (0, os.geteuid()))
    about = list(os.lstat(path))
    about[4] = other.pw_uid
    monkeypatch.setattr(trust.os, "lstat", lambda _: os.stat_result(about))
    with pytest.raises(ConfigError, match=f"belongs to {other.pw_name}") as refusal:
        load(path, {})
    assert "chown" in refusal.value.next_step


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("which", ["file", "folder", "link"])
def test_root_does_not_take_its_jobs_from_another_user(folder: Path, which: str) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    (folder / "a").mkdir(mode=0o700)
    path = write(folder / "a", LEDGER)
    (folder / "link.toml").symlink_to("a/ranonce.toml")
    given = {"file": path, "folder": str(folder / "a"), "link": str(folder / "link.toml")}[which]
    os.chown(given, nobody, -1, follow_symlinks=False)
    with pytest.raises(ConfigError, match="belongs to nobody"):
        load(f"{folder}/link.toml", {})


def test_a_folder_a_pipe_and_a_missing_file_are_a_sentence_each_and_none_is_waited_for(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        load(str(folder), {})
    os.mkfifo(folder / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        load(str(folder / "pipe"), {})
    with pytest.raises(ConfigError, match="No such file"):
        load(str(folder / "missing"), {})
    (folder / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(folder / "loop"), {})


# --- TOML ---


def test_a_file_that_is_not_utf8_is_named_with_its_line(folder: Path) -> None:
    error = refused(folder, b"# fine\n# caf\xe9\n")
    assert error.sentence == f"{folder}/ranonce.toml:2: the byte 0xe9 is not UTF-8."


def test_a_byte_order_mark_is_named(folder: Path) -> None:
    assert "byte order mark" in refused(folder, b"\xef\xbb\xbf[ledger]\n").sentence
    assert "not UTF-8" in refused(folder, "[ledger]\n".encode("utf-16")).sentence


def test_a_huge_file_is_refused(folder: Path) -> None:
    assert "larger than 1 MiB" in refused(folder, b"#" * (1 << 20) + b"\n").sentence


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('[ledger]\nstore "x"\n', 2),
        ('[ledger]\nstore = "x\n', 2),
        ('[ledger]\nid = "a"\nid = "b"\n', 3),
        ("[ledger]\n\n[ledger]\n", 3),
        ("a = [1,\n2,", 2),
    ],
)
def test_a_syntax_error_is_named_with_file_and_line(folder: Path, content: str, line: int) -> None:
    assert refused(folder, content).sentence.startswith(f"{folder}/ranonce.toml:{line}: not TOML: ")


def test_a_table_that_is_there_twice_is_named_as_it_is_written(folder):
    content = "[destinations.good]\ntype = 'command'\n[destinations.good]\n"
    said = refused(folder, content).sentence
    assert said == f"{folder}/ranonce.toml:3: not TOML: the table [destinations.good] is there twice."


@pytest.mark.parametrize("content", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "9" * 5000])
def test_a_hostile_file_is_a_sentence_not_a_traceback(folder: Path, content: str) -> None:
    assert str(folder) in refused(folder, content).sentence


def test_windows_line_ends_are_read(folder: Path) -> None:
    assert loaded(folder, LEDGER.replace("\n", "\r\n")).ledger.ledger_id == "0198c7"


# --- what stands in it ---


def test_a_job_that_says_only_when_has_every_default(folder: Path) -> None:
    assert job(folder, "") == JobSpec("j", every="day", cwd=str(folder), declared=True)
    spec = JobSpec("j")
    assert (spec.lease, spec.grace_kill, spec.max_attempts, spec.retry_delay, spec.early) == (300, 10, 3, 0, 5)
    assert (spec.late_after, spec.max_late, spec.timeout, spec.stop_exit_codes) == (3600, None, None, ())
    assert (spec.overlap, spec.on_crash, spec.receipt, spec.catch_up) == ("forbid", "retry", "all", "stopped")
    assert not spec.declared


def test_the_example_of_the_documentation_is_read(folder: Path) -> None:
    spec = loaded(
        folder,
        LEDGER
        + """
[jobs.nightly-report]
every = "0 2 * * *"
tz = "Europe/Berlin"
command = ["./report.sh", "{window}"]
timeout = "2h"
late_after = "1h"
on_crash = "retry"
version = { file = "config/model.yaml" }
uses = ["model-api"]
checks = [{ file = "out/{window}.json", min_bytes = 2, fresh = true, json = true, equals = { "/date" = "{window}" } }]

[destinations.slack]
type = "http"
url = "${SLACK_WEBHOOK}"
dedupes = "24h"          # or false
""",
    ).jobs["nightly-report"]
    assert spec == JobSpec(
        "nightly-report",
        every="0 2 * * *",
        tz="Europe/Berlin",
        command=("./report.sh", "{window}"),
        timeout=7200.0,
        version=VersionFile("config/model.yaml"),
        uses=("model-api",),
        checks=(Check(file="out/{window}.json", min_bytes=2, fresh=True, json=True, equals=(("/date", "{window}"),)),),
        cwd=str(folder),
        declared=True,
    )


def test_every_setting_of_a_job_can_stand_in_the_file() -> None:
    from ranonce.configread import JOB_KEYS

    assert set(JOB_KEYS) == set(JobSpec._fields) - {"name", "declared"}


def test_times_are_text_or_seconds(folder: Path) -> None:
    spec = job(folder, 'timeout = "1h30m"\nlease = 2\nearly = 0.5\nretry_delay = "0"\n')
    assert (spec.timeout, spec.lease, spec.early, spec.retry_delay) == (5400.0, 2.0, 0.5, 0.0)


@pytest.mark.parametrize("written", ['"2026-11-07T02:30:00Z"', "2026-11-07T03:30:00+01:00"])
def test_since_is_rfc_3339_text_or_a_toml_date_time(folder: Path, written: str) -> None:
    assert job(folder, f"since = {written}\n").since == 1794018600


@pytest.mark.parametrize("written", ['"2026-11-07T02:30:00"', "2026-11-07T02:30:00", "2026-11-07", "5", '"now"'])
def test_a_naive_since_is_refused(folder: Path, written: str) -> None:
    error = refused(folder, LEDGER + JOB + f"since = {written}\n")
    assert error.sentence.startswith(f"{folder}/ranonce.toml:6: jobs.j.since: ")


def test_relative_paths_of_a_job_are_relative_to_the_file(folder: Path) -> None:
    spec = job(folder, 'cwd = "work"\nreceipt = "./receipts.jsonl"\n')
    assert (spec.cwd, spec.receipt) == (f"{folder}/work", f"{folder}/receipts.jsonl")
    assert job(folder, 'cwd = "~/work"\n').cwd == "/home/me/work"
    assert job(folder, 'cwd = "/srv"\n').cwd == "/srv"


@pytest.mark.parametrize(
    ("line", "sentence", "next_step"),
    [
        ("evry = 1", "jobs.j.evry: this key is not known.", "Did you mean every?"),
        ("zzz = 1", "jobs.j.zzz: this key is not known.", "Known are busy_exit, "),
        ("tz = 5", "jobs.j.tz: 5 is not text.", "quotes"),
        ('tz = "Europe/Berlim"', "jobs.j.tz: ", ""),
        ('lease = "soon"', "jobs.j.lease: 'soon' is not a duration.", "5m"),
        ("lease = true", "jobs.j.lease: True is not a duration.", "5m"),
        ("lease = inf", "jobs.j.lease: inf is not a duration.", "5m"),
        ("lease = nan", "jobs.j.lease: nan is not a duration.", "5m"),
        ("lease = 0", "jobs.j.lease: 0 seconds is out of range.", "more than 0"),
        ("lease = -1", "jobs.j.lease: -1 seconds is out of range.", "more than 0"),
        ("early = -1", "jobs.j.early: -1 seconds is out of range.", "100 years"),
        ("timeout = 1e300", "jobs.j.timeout: 1e+300 seconds is out of range.", "100 years"),
        ("max_attempts = 0", "jobs.j.max_attempts: 0 is out of range.", "1 to"),
        ("max_attempts = true", "jobs.j.max_attempts: True is not a whole number.", "digits"),
        ("max_attempts = 1.0", "jobs.j.max_attempts: 1.0 is not a whole number.", "digits"),
        ('max_attempts = "3"', "jobs.j.max_attempts: '3' is not a whole number.", "without quotes"),
        ("offset = 1", "jobs.j.offset: 1 is out of range.", "to 0"),
        ("busy_exit = 256", "jobs.j.busy_exit: 256 is out of range.", "255"),
        ("stop_exit_codes = [0]", "jobs.j.stop_exit_codes: [0] is out of range.", "1 to 255"),
        ("stop_exit_codes = 75", "jobs.j.stop_exit_codes: 75 is not a list of exit codes.", "[75]"),
        ('overlap = "no"', "jobs.j.overlap: 'no' is not a choice.", "forbid, allow"),
        ('dialect = "cron"', "jobs.j.dialect: 'cron' is not a choice.", "debian, systemd, kubernetes"),
        ('receipt = "some"', "jobs.j.receipt: 'some' is not a choice.", "problems"),
        ("stdin = 1", "jobs.j.stdin: 1 is neither true nor false.", "without quotes"),
        ('command = "./report.sh {window}"', "jobs.j.command: './report.sh {window}' is one text", "/bin/sh"),
        ("command = []", "jobs.j.command: [] is not a command.", "list"),
        ('command = [""]', "jobs.j.command: The program of the command is empty.", "first argument"),
        ('command = ["x", 1]', "jobs.j.command: 1 is not text.", "quotes"),
        ('command = ["x", "\\u0000"]', "jobs.j.command: '\\x00' holds a NUL", "Take it out"),
        ('uses = ["a b"]', "jobs.j.uses: 'a b' is not a name for a gate.", "A-Z"),
        ('uses = "model-api"', "jobs.j.uses: 'model-api' is not a list of gates.", "list"),
        ('on_crash = "reconcile"', "jobs.j.on_crash: 'reconcile' needs a command", "reconcile"),
        ('reconcile = ["x"]', "jobs.j.reconcile: it is never run while on_crash is 'retry'.", "on_crash"),
        ("version = 5", "jobs.j.version: 5 is not text.", "file"),
        ('version = ""', "jobs.j.version: '' is empty.", "file"),
        ("version = {}", "jobs.j.version: it names no file.", "file"),
        ('version = { path = "x" }', "jobs.j.version.path: this key is not known.", "Known are file."),
        ('checks = { file = "x" }', "jobs.j.checks: {'file': 'x'} is not a list of tables.", "{window}"),
        ("checks = [{}]", "jobs.j.checks[0]: A check looks at one file or runs one command.", "file ="),
        ('checks = [{ file = "x", min_byte = 1 }]', "jobs.j.checks[0].min_byte: this key", "Did you mean min_bytes?"),
        ('checks = [{ file = "x", max_age = 0 }]', "jobs.j.checks[0]: max_age is 0 seconds.", "more than 0"),
        (
            'checks = [{ file = "x", equals = { date = 1 } }]',
            "jobs.j.checks[0].equals: 'date' is not a JSON",
            "'/date'",
        ),
        ('keep_output = "no"', "jobs.j.keep_output: 'no' is neither true nor false.", "true or false"),
    ],
)
def test_a_bad_value_is_named_with_file_line_and_remedy(folder: Path, line: str, sentence: str, next_step: str) -> None:
    error = refused(folder, LEDGER + JOB + "# a comment\n" + line + "\n")
    assert error.sentence.startswith(f"{folder}/ranonce.toml:7: {sentence}")
    assert next_step in error.next_step


def test_the_line_is_that_of_the_bad_element_of_a_long_list(folder: Path) -> None:
    checks = 'checks = [\n  { file = "a" }, # ]\n  { file = "b", min_bytes = "2" },\n]\n'
    assert refused(folder, LEDGER + JOB + checks).sentence.startswith(
        f"{folder}/ranonce.toml:8: jobs.j.checks[1].min_bytes: '2' is not a whole number."
    )


@pytest.mark.parametrize(
    ("content", "line", "sentence"),
    [
        ("[leger]\n", 1, "leger: this key is not known."),
        ("ledger = 5\n", 1, "ledger: 5 is not a table."),
        ("destinations = 5\n", 1, "destinations: 5 is not a table."),
        ("[ledger]\nurl = 1\n", 2, "ledger.url: this key is not known."),
        ("[ledger]\nstore = 1\n", 2, "ledger.store: 1 is not text."),
        ("[ledger]\nstore = ''\n", 2, "ledger.store: '' is empty."),
        ('[ledger]\nstore_wait = "-5s"\n', 2, "ledger.store_wait: "),
        ("[ledger]\nstore_wait = -5\n", 2, "ledger.store_wait: -5 seconds is out of range."),
        ("\n[jobs]\nj = 1\n", 3, "jobs.j: 1 is not a table."),
        ("[jobs.j]\n", 1, "jobs.j: it has no schedule."),
        ('[jobs.j]\nevery = "fortnight"\n', 2, "jobs.j.every: "),
        ('[jobs."a b"]\nevery = "day"\n', 1, "jobs.\"a b\": 'a b' is not a name for a job."),
        ('[jobs."a\\nb"]\nevery = "day"\n', 1, 'jobs."a\\nb": '),
        ('[jobs.db.backup]\nevery = "day"\n', 1, "jobs.db.backup: a job holds no such table."),
    ],
)
def test_a_table_that_is_wrong_is_named_with_its_line(folder: Path, content: str, line: int, sentence: str) -> None:
    assert refused(folder, content).sentence.startswith(f"{folder}/ranonce.toml:{line}: {sentence}")


def test_a_job_name_with_a_dot_gets_the_remedy(folder: Path) -> None:
    assert '[jobs."db.backup"]' in refused(folder, '[jobs.db.backup]\nevery = "day"\n').next_step
    assert list(loaded(folder, '[jobs."db.backup"]\nevery = "day"\n').jobs) == ["db.backup"]


def test_a_catch_up_that_needs_the_window_wants_it_in_the_command(folder: Path) -> None:
    content = LEDGER + JOB + 'catch_up = "all"\ncommand = ["x", "%s"]\n'
    assert "jobs.j.catch_up: 'all' runs earlier windows" in refused(folder, content % "y").sentence
    assert loaded(folder, content % "{window}").jobs["j"].catch_up == "all"


def test_a_neighbours_mistake_does_not_stop_a_job(folder: Path) -> None:
    content = LEDGER + JOB + '[jobs.other]\nevery = "day"\nlease = "soon"\n'
    assert list(loaded(folder, content, job="j").jobs) == ["j"]
    assert "jobs.other.lease" in refused(folder, content).sentence
    assert "jobs.other.lease" in refused(folder, content, job="other").sentence


def test_a_job_that_is_not_declared_is_not_an_error_here(folder: Path) -> None:
    assert loaded(folder, LEDGER + JOB, job="other").jobs == {}


def test_destinations_are_kept_as_written(folder: Path) -> None:
    content = '[destinations.slack]\ntype = "http"\nurl = "${NOT_SET}"\nheaders = { a = "b" }\ndedupes = false\n'
    assert loaded(folder, content, {"XDG_STATE_HOME": "/s"}).destinations == {
        "slack": {"type": "http", "url": "${NOT_SET}", "headers": {"a": "b"}, "dedupes": False}
    }


@pytest.mark.parametrize("wrong", ["[destinations.x]\n", "[destinations]\nx = 1\n", '[destinations."a b"]\ntype = 1\n'])
def test_a_mistake_in_a_destination_stops_no_job(folder: Path, wrong: str) -> None:
    assert list(loaded(folder, LEDGER + JOB + wrong).jobs) == ["j"]


def test_where_a_key_of_a_destination_stands_can_be_asked(folder: Path) -> None:
    config = loaded(folder, '[destinations.slack]\ntype = "http"\nurl = 5\n', {"XDG_STATE_HOME": "/s"})
    place = str(config.place(("destinations", "slack", "url")))
    assert place == f"{folder}/ranonce.toml:3: destinations.slack.url"


# --- rules for options ---


def test_the_same_rules_speak_the_command_lines_words() -> None:
    spec = JobSpec("j", every="day")
    assert check_job(spec) is spec
    with pytest.raises(UsageError, match="--max-attempts: 0 is out of range"):
        check_job(spec.replace(max_attempts=0))
    with pytest.raises(UsageError, match="--stop-exit-code: "):
        check_job(spec.replace(stop_exit_codes=(300,)))
    with pytest.raises(UsageError, match="--every: "):
        check_job(spec.replace(every="fortnight"))
    with pytest.raises(UsageError, match="--tz: "):
        check_job(spec.replace(tz="Mars/Olympus"))


# --- version ---


def test_a_version_is_its_text_or_the_first_twelve_digits_of_its_files_sha256(folder: Path) -> None:
    (folder / "model.yaml").write_bytes(b"abc")
    assert resolve_version(JobSpec("j"), "/") is None
    assert resolve_version(JobSpec("j", version="4f2a"), "/") == "4f2a"
    assert resolve_version(JobSpec("j", version=VersionFile("model.yaml")), str(folder)) == "ba7816bf8f01"
    assert resolve_version(JobSpec("j", version=VersionFile(f"{folder}/model.yaml")), "/") == "ba7816bf8f01"


def test_a_version_file_that_cannot_be_read_stops_the_job(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for name in ("missing", ".", "pipe", "a\0b"):
        with pytest.raises(ConfigError, match="The version of job j") as refusal:
            resolve_version(JobSpec("j", version=VersionFile(name)), str(folder))
        assert refusal.value.sentence.isprintable()


# --- lines of keys ---


def test_the_lines_of_keys_survive_everything_toml_allows() -> None:
    text = (
        "# c\n[ledger] # [x]\nstore = \"a#]\" # x\n'i d'=5\n"  # lines 1 to 4
        '[jobs . "a.\\u0062"]\ntext = """\n[not.a.table]\nx = 1\\"""\n"""\n'  # 5 to 9
        "raw = '''\n[nor.this]\n''''\nlist = [ # ]\n  { a = { b = 1 } },\n\n  [1,\n   2], ]\n"  # 10 to 17
        "dotted . key = 2026-11-07 02:30:00Z\n[[many]]\nn = 1\n[[many]]\nn = 2\n[many.inner]\nm = 3\nend = true"  # 25
    )
    lines = key_lines(text)
    job_keys = ("jobs", "a.b")
    assert lines["ledger", "store"] == 3
    assert lines["ledger", "i d"] == 4
    assert lines[job_keys] == 5
    assert lines[(*job_keys, "text")] == 6
    assert (*job_keys, "x") not in lines
    assert lines[(*job_keys, "raw")] == 10
    assert lines[(*job_keys, "list", 0, "a", "b")] == 14
    assert lines[(*job_keys, "list", 1, 1)] == 17
    assert lines[(*job_keys, "dotted", "key")] == 18
    assert (lines["many", 0, "n"], lines["many", 1, "n"], lines["many", 1, "inner", "m"]) == (20, 22, 24)
    assert lines["many", 1, "inner", "end"] == 25


def test_the_lines_of_a_text_of_many_keys_are_found_quickly() -> None:
    text = "".join(f"[jobs.j{number}]\nevery = 'day'\n" for number in range(10_000))
    began = time.process_time()
    assert key_lines(text)["jobs", "j9999", "every"] == 20_000
    assert time.process_time() - began < 5


# --- start-up ---


def test_without_a_file_nothing_of_the_files_rules_is_loaded() -> None:
    program = "import sys, ranonce.config; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"tomllib", "tomlkit", "typing", "dataclasses", "pathlib", "subprocess", "hashlib", "pwd", "difflib"}
    site = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True)
    assert not (heavy | {"ranonce.configread", "ranonce.configfile", "ranonce.checks"}) & (
        set(found) - set(site.stdout.split())
    )


def test_a_file_of_a_hundred_jobs_is_read_quickly(folder: Path) -> None:
    jobs = "".join(
        f'[jobs.j{number}]\nevery = "0 2 * * *"\ncommand = ["/x", "{{window}}"]\ntimeout = "2h"\n'
        for number in range(100)
    )
    path = write(folder, LEDGER + jobs)
    load(path, {}, job="j7")
    times = []
    for _ in range(5):
        began = time.process_time()
        load(path, {}, job="j7")
        times.append(time.process_time() - began)
    assert min(times) < 0.05, "a tenth of that is normal; this catches a scan that grows with the square"
