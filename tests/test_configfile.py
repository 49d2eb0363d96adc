"""Editing the configuration file: what `init` and `add` write, and what they leave alone."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from ranonce import configfile
from ranonce.checks import Check
from ranonce.config import JobSpec, VersionFile, load
from ranonce.configfile import write_job, write_ledger
from ranonce.errors import ConfigError, UsageError

STORE = "sqlite:////var/lib/x/ledger.db"
BY_HAND = """\
# The ledger of this host.
[ledger]
store = "sqlite:////var/lib/x/ledger.db"   # local disk
id = "old"

# Nightly, please.
[jobs.a]
every = "day"    # at midnight
command = ["/bin/a",
           "{window}"]   # two lines
lease = "1m"

[jobs."b.c"]
every = "hour"

[destinations.slack]
type = "http"   # the only one
url = "${SLACK}"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path / "ranonce.toml")


def by_hand(path: str, content: str = BY_HAND, mode: int = 0o600) -> None:
    Path(path).write_text(content)
    os.chmod(path, mode)


def add(path: str, name: str = "j", **settings: object) -> JobSpec:
    write_job(path, name, {"every": "day", **settings}, {})
    return load(path, {"XDG_STATE_HOME": "/s"}).jobs[name]


@pytest.mark.parametrize(
    "written",
    ["postgresql://app:${DB_PASSWORD}@db/x", "${STORE_URL}", "postgresql://owner@db/x", "postgresql://app@db/x"],
)
def test_a_store_that_is_written_with_variables_stays_as_it_is_written(path: str, written: str) -> None:
    by_hand(path, f'[ledger]\nstore = "{written}"\n')
    url = "postgresql://app:hunter2@db/x"
    write_ledger(path, url, "new", {"DB_PASSWORD": "hunter2", "STORE_URL": url})
    assert Path(path).read_text() == f'[ledger]\nstore = "{written}"\nid = "new"\n'


def test_a_password_is_never_written_into_the_file(path: str) -> None:
    write_ledger(path, "postgresql://app:hunter2@db/x?schema=s", "new", {})
    assert Path(path).read_text() == '[ledger]\nstore = "postgresql://app@db/x?schema=s"\nid = "new"\n'
    write_ledger(path, "redis://u:hunter2@r:6379/0", "newer", {})
    assert Path(path).read_text() == '[ledger]\nstore = "redis://u:@r:6379/0"\nid = "newer"\n'


def test_a_new_file_is_private_and_so_are_its_folders(path: str) -> None:
    deep = f"{os.path.dirname(path)}/a/b/ranonce.toml"
    old = os.umask(0)
    try:
        write_ledger(deep, STORE, "0198c7", {})
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(deep).st_mode) == 0o600
    for folder in (f"{os.path.dirname(path)}/a", f"{os.path.dirname(path)}/a/b"):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    ledger = load(deep, {}).ledger
    assert (ledger.store, ledger.ledger_id) == (STORE, "0198c7")


def test_comments_order_and_all_else_stay(path: str) -> None:
    by_hand(path)
    write_ledger(path, STORE, "new", {})
    write_job(path, "a", {"every": "day", "command": ("/bin/a", "{window}"), "lease": 120.0}, {})
    assert Path(path).read_text() == BY_HAND.replace('"old"', '"new"').replace('"1m"', '"2m"')


def test_what_is_not_set_any_more_goes(path: str) -> None:
    by_hand(path)
    write_job(path, "a", {"every": "hour"}, {})
    assert load(path, {}).jobs["a"] == JobSpec("a", every="hour", cwd=os.path.dirname(path), declared=True)
    assert "# at midnight" in Path(path).read_text()


def test_a_new_job_comes_beside_the_old_ones(path: str) -> None:
    by_hand(path)
    write_job(path, "d.e", {"every": "week"}, {})
    assert list(load(path, {}).jobs) == ["a", "b.c", "d.e"]
    assert Path(path).read_text().startswith(BY_HAND.rpartition("[destinations")[0])


def test_an_address_written_in_other_words_stays(path: str) -> None:
    for written, environ in (("sqlite:///ledger.db", {}), ("sqlite:///${D}/ledger.db", {"D": os.path.dirname(path)})):
        by_hand(path, f'[ledger]\nstore = "{written}"\n')
        write_ledger(path, f"sqlite:///{os.path.dirname(path)}/ledger.db", "0198c7", environ)
        assert Path(path).read_text() == f'[ledger]\nstore = "{written}"\nid = "0198c7"\n'


def test_another_address_replaces_the_old_one(path: str) -> None:
    by_hand(path)
    write_ledger(path, "sqlite:////other.db", "new", {})
    assert load(path, {}).ledger.store == "sqlite:////other.db"


def test_every_setting_is_written_so_that_it_is_read_back_the_same(path: str) -> None:
    spec = JobSpec(
        "j",
        every="0 2 * * *",
        tz="Europe/Berlin",
        dialect="systemd",
        offset=-1,
        command=("/bin/x", "{window}", 'a "quoted" \\ line\nand another'),
        timeout=5400.0,
        lease=0.25,
        grace_kill=0.0,
        max_attempts=1,
        retry_delay=90.0,
        early=86400.0,
        late_after=1234567.5,
        max_late=7200.0,
        overlap="allow",
        on_crash="reconcile",
        reconcile=("/bin/sh", "-c", "true"),
        catch_up="all",
        catch_up_limit=2,
        input_mode="identity",
        version=VersionFile("model.yaml"),
        uses=("model-api",),
        checks=(
            Check(file="out.json", fresh=True, json=True, max_age=60.0, equals=(("/date", "{window}"), ("/n", 3))),
            Check(command=("/bin/sh", "-c", "test -s out")),
        ),
        stop_exit_codes=(75, 79),
        leftovers="kill",
        receipt="problems",
        busy_exit=0,
        since=1794018600,
        cwd="/srv/job",
        keep_output=False,
        stdin=True,
        declared=True,
    )
    settings = {field: value for field, value in spec.as_dict().items() if field not in ("name", "declared")}
    assert add(path, **settings) == spec
    text = Path(path).read_text()
    assert 'timeout = "90m"' in text
    assert 'version = {file = "model.yaml"}' in text
    assert text.count("[jobs") == 1, "checks stand in one line, not in tables of their own"


def test_writing_the_same_again_changes_nothing(path: str) -> None:
    add(path, checks=(Check(file="x"),), timeout=7200.0)
    before = os.stat(path)
    add(path, checks=(Check(file="x"),), timeout=7200.0)
    assert (os.stat(path).st_ino, os.stat(path).st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_mode_of_an_existing_file_stays(path: str) -> None:
    by_hand(path, mode=0o644)
    write_ledger(path, STORE, "new", {})
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644


@pytest.mark.parametrize(
    "settings", [{"lease": -1.0}, {"overlap": "no"}, {"every": "fortnight"}, {"on_crash": "reconcile"}]
)
def test_a_file_that_could_not_be_read_back_is_never_written(path: str, settings: dict[str, object]) -> None:
    by_hand(path)
    with pytest.raises(ConfigError):
        add(path, **settings)
    assert Path(path).read_text() == BY_HAND
    assert os.listdir(os.path.dirname(path)) == ["ranonce.toml"]


def test_a_broken_file_is_not_touched(path: str) -> None:
    by_hand(path, "[jobs.a\n")
    with pytest.raises(ConfigError, match=":1: not TOML"):
        add(path)
    assert Path(path).read_text() == "[jobs.a\n"


def test_a_broken_job_can_be_replaced(path: str) -> None:
    by_hand(path, '[jobs.j]\nevery = "day"\nlease = "soon"\n')
    assert add(path).lease == 300.0


@pytest.mark.parametrize(
    "content",
    [
        'jobs.a.every = "day"\n',
        'jobs = { a = { every = "day" } }\n',
        '[jobs]\na = { every = "day" }\nb.every = "hour"\n',
        '[jobs.a]\nevery = "day"\n[ledger]\nid = "x"\n[jobs.b]\nevery = "hour"\n[jobs.c]\nevery = "hour"\n',
        '[jobs.a]\nevery = "day"\n\n# the end, without a newline',
        "# only a comment\n",
        '[ledger]\r\nid = "x"\r\n\r\n[jobs.a]\r\nevery = "day"\r\n',
    ],
)
def test_a_job_can_be_added_to_tables_in_any_form(path: str, content: str) -> None:
    by_hand(path, content)
    before = load(path, {"XDG_STATE_HOME": "/s"})
    spec = add(path, "new", every="week", command=("/bin/x",))
    assert (spec.every, spec.command) == ("week", ("/bin/x",))
    after = load(path, {"XDG_STATE_HOME": "/s"})
    assert after == before.replace(jobs={**before.jobs, "new": spec}, place=after.place)


def test_an_edit_that_would_damage_another_table_is_left_to_the_user(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand(path)
    monkeypatch.setattr("tomlkit.dumps", lambda _: '[jobs.j]\nevery = "day"\n')
    with pytest.raises(ConfigError, match="could not be edited") as refusal:
        add(path)
    assert "by hand" in refusal.value.next_step
    assert Path(path).read_text() == BY_HAND


def test_a_name_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(UsageError):
        add(path, 'x"]\n[jobs.y')
    assert not os.path.exists(path)


def test_an_argument_that_is_not_utf8_cannot_stand_in_the_file(path: str) -> None:
    with pytest.raises(ConfigError, match="is not UTF-8") as refusal:
        add(path, command=("/bin/x", "caf\udce9"))
    assert refusal.value.sentence.isprintable()
    assert refusal.value.sentence.startswith("'command = ")  # the line, not the file's beginning
    assert not os.path.exists(path)


def test_a_file_others_may_write_is_not_edited(path: str) -> None:
    by_hand(path, mode=0o666)
    with pytest.raises(ConfigError, match="mode 0666"):
        add(path)


def test_no_file_is_made_in_a_folder_others_may_write(path: str) -> None:
    os.chmod(os.path.dirname(path), 0o777)
    with pytest.raises(ConfigError, match="mode 0777"):
        add(path)
    assert not os.path.exists(path)


def test_a_link_stays_a_link_and_its_target_is_written(path: str, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir(mode=0o700)
    by_hand(f"{tmp_path}/dotfiles/mine.toml")
    os.symlink("dotfiles/mine.toml", path)
    assert add(path).every == "day"
    assert os.path.islink(path)
    assert "[jobs.j]" in (tmp_path / "dotfiles" / "mine.toml").read_text()


def test_a_link_to_nothing_is_refused(path: str) -> None:
    os.symlink("/nowhere/at/all", path)
    with pytest.raises(ConfigError, match="link to nothing"):
        add(path)


def test_what_a_crash_left_behind_is_in_nobodys_way(path: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("safe")
    os.symlink("victim", f"{tmp_path}/.ranonce.toml.new")
    assert add(path).every == "day"
    assert (tmp_path / "victim").read_text() == "safe"
    assert sorted(os.listdir(tmp_path)) == ["ranonce.toml", "victim"]


def test_a_change_by_an_editor_in_the_same_moment_is_not_lost(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(path)
    fsync = os.fsync

    def meanwhile(descriptor: int) -> None:
        fsync(descriptor)
        by_hand(path, BY_HAND + "# mine\n")

    monkeypatch.setattr(configfile.os, "fsync", meanwhile)
    with pytest.raises(ConfigError, match="changed by somebody else"):
        add(path)
    assert Path(path).read_text() == BY_HAND + "# mine\n"
    assert os.listdir(os.path.dirname(path)) == ["ranonce.toml"]


def test_a_folder_that_is_locked_for_long_is_a_sentence(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configfile, "LOCK_WAIT", 0.0)
    holder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="has been editing"):
            add(path)
    finally:
        os.close(holder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_one_may_not_write_is_a_sentence(path: str) -> None:
    os.chmod(os.path.dirname(path), 0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        add(path)


def test_a_file_where_a_folder_should_be_is_a_sentence(path: str) -> None:
    by_hand(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        add(f"{path}/ranonce.toml")


def _add_many(path: str, who: int) -> None:
    for number in range(4):
        write_job(path, f"job-{who}-{number}", {"every": "day"}, {})


def test_adds_at_the_same_time_lose_nothing(path: str) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add_many, args=(path, who)) for who in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert len(load(path, {"XDG_STATE_HOME": "/s"}).jobs) == 16
