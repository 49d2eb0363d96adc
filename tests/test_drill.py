"""A drill finds what is broken, each fault by the scenario that is there for it, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ranonce.drill import SCENARIOS, Asked, Stage, crashes, deliverers, emissions, leases, play, races
from ranonce.drill.crew import Deadline, OutOfTime, most_in_flight
from ranonce.drill.outcome import BROKEN, HELD, SHOWN, UNTRIED, Outcome, Score, Untried
from ranonce.drill.processes import program
from ranonce.drill.relay import Relay
from ranonce.errors import StoreUnavailable
from ranonce.stores import site_of
from ranonce.stores.base import Risk
from ranonce.stores.sqlite.site import SqliteSite
from ranonce.storeurl import masked
from tests.acceptance.test_failpoints import OF_A_RUN
from tests.programs import faulty
from tests.servers import free_port

FAULTY = faulty.__file__
#: Places at which a run is killed, where it would take too long to kill it everywhere.
PLACES = ["run:lock-taken:1", "run:child-ended:1", "finish:outcome-kept:1"]


EMISSION_PLACES = [
    ("step", "commit:before-writes:1"),
    ("step", "commit:after-commit:1"),
    ("run", "commit:after-commit:2"),
]
DELIVERER_PLACES = ["exchange:before-commit:1", "deliver:before-send:1", "deliver:sent:1", "deliver:before-settle:1"]


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Return the folder that temporary folders are made in."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def asked(tmp_path, *, fault="none", **how):
    url = f"sqlite:///{tmp_path}/ledger/ledger.db"
    how = {"rounds": 4, "patience": 20.0, "words": (sys.executable, FAULTY, fault), **how}
    return Asked(url, dict(os.environ), **how)


def played(tmp_path, name, **how):
    """Return what becomes of one scenario."""
    with Stage(asked(tmp_path, **how)) as stage:
        outcome = play(stage, name)
    assert stage.left == []
    assert list(tmp_path.glob("ledger/*")) == []
    return outcome


# --- it finds what is broken ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "name", "evidence"),
    [
        ("no_version_guard", "single-winner", "winners of 8"),
        ("early", "single-winner", "winners of 8"),
        ("done_is_not_final", "single-winner", "round 1, once it was done: one more won it, as attempt 2"),
        ("verdict_not_written", "single-winner", "the ledger has it running at attempt 1, not done at attempt 1"),
        ("early", "no-early-take-over", "s before the lease was over"),
        ("never_over", "take-over", "round 1: 0 winners of 8"),
        ("stale", "stale-finish", "the first, whose lease was over, could still finish"),
        ("revived", "stale-finish", "the first, whose lease was over, could still renew"),
        ("forgotten_owner", "lost-reply", "its owner asked again, and what it has was written a second time"),
        ("outcomes_not_settled", "crash-anywhere", "it was known to be done, and was worked on again"),
        ("hold_is_forgotten", "crash-anywhere", "(on_crash hold): it had its effect 2 times, by the attempts [1, 2]"),
        ("missing_file_is_death", "wiped-host", "`ranonce run` was to exit 75 (skipped)"),
        ("any_ledger", "foreign-store", "`ranonce run` was to exit 78 (unavailable), and it was: exit 0, done"),
        ("bare_error", "locked-store", "OperationalError: database is locked"),
        ("wall_clock", "clock-jump", "taken over from one that lives (attempt 2) where its clock is an hour ahead"),
        ("messages_apart", "atomic-emit", "its step is done by attempt 1, with messages of []"),
        ("messages_apart", "atomic-emit", "it is done at attempt 1, with messages of its attempts [] and not [1, 1]"),
        ("messages_first", "atomic-emit", "its step is not done, with messages of [1]"),
        ("failed_messages_go_out", "atomic-emit", "whose attempt failed: there are messages of the attempts [1, 1]"),
        ("stale_messages_go_out", "atomic-emit", "messages of the attempts [1, 1], and not [2, 2]"),
        ("marks_without_a_claim", "atomic-emit", "an attempt that had lost its run could still mark an item"),
        ("sends_before_it_takes", "two-deliverers", "times by a destination that does not dedupe"),
        ("takes_what_others_have", "two-deliverers", "was taken from a dead deliverer while its lease ran"),
        ("dead_means_not_begun", "two-deliverers", "times by a destination that does not dedupe"),
        ("dead_means_sent", "two-deliverers", "counts as sent, and was never received"),
        ("key_of_the_try", "two-deliverers", "was received, and nobody has emitted it"),
        ("never_unsure", "unknown-outcome", "was received 2 times by a destination that does not dedupe"),
        ("gives_up_after_one_try", "unknown-outcome", "keyed/m0 is unsure, and not sent"),
        ("settles_any_state", "unknown-outcome", "keyed/l1 is pending, and not sent"),
        ("no_late_proof", "unknown-outcome", "unkeyed/l1 is unsure, and not sent"),
    ],
)
def test_a_fault_is_found_by_the_scenario_that_is_there_for_it(tmp_path, monkeypatch, fault, name, evidence):
    monkeypatch.setattr(crashes, "_places", lambda stage, host: PLACES)
    monkeypatch.setattr(emissions, "_places", lambda stage, host: EMISSION_PLACES)
    monkeypatch.setattr(deliverers._Plan, "places", lambda plan: DELIVERER_PLACES)
    outcome = played(tmp_path, name, fault=fault, rounds=10 if name == "single-winner" else 2)
    assert outcome.state == BROKEN
    assert evidence in "\n".join(outcome.evidence)
    assert outcome.held < outcome.of


def test_events_that_do_not_tell_what_the_rows_say_are_found(tmp_path):
    with Stage(asked(tmp_path, fault="lost_event")) as stage:
        play(stage, "single-winner")
        outcome = play(stage, "one-story")
    assert outcome.state == BROKEN
    assert "its row has status 'done', its events say 'running'" in outcome.evidence[0]


def test_a_worker_that_dies_is_counted_and_its_last_words_are_the_evidence(tmp_path):
    outcome = played(tmp_path, "single-winner", fault="dies")
    assert (outcome.state, outcome.held, outcome.dead) == (BROKEN, 1, 8)
    assert outcome.evidence[0] == "process 1 died (exit 1) while it was to claim: RuntimeError: the disk fell off"


def test_a_worker_that_hangs_is_named_and_the_drill_does_not_hang_with_it(tmp_path):
    began = time.monotonic()
    outcome = played(tmp_path, "single-winner", fault="hangs", patience=6.0)
    assert time.monotonic() - began < 40
    assert outcome.state == BROKEN
    assert outcome.evidence[0].startswith("process 1 gave no answer to `claim` in ")


def test_a_worker_that_hangs_until_the_drills_time_is_over_is_named_too(tmp_path):
    outcome = played(tmp_path, "single-winner", fault="hangs", patience=60.0, deadline=9.0)
    assert outcome.state == BROKEN
    assert "it hangs" in outcome.evidence[0]


def test_a_scenario_that_there_is_no_time_for_is_not_called_held(tmp_path):
    outcome = played(tmp_path, "no-early-take-over", deadline=0.0)
    assert (outcome.state, outcome.in_time) == (UNTRIED, False)
    assert outcome.lines == ["untried no-early-take-over: not tried: the drill's time is over"]


def test_a_lease_that_was_over_before_it_was_looked_at_says_nothing_and_a_longer_one_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "LEASES_SECONDS", (0.01, 3.0))
    outcome = played(tmp_path, "no-early-take-over")
    assert (outcome.state, outcome.held, outcome.of) == (HELD, 4, 4)
    assert outcome.seen.endswith("(leases of 3 s)")
    monkeypatch.setattr(leases, "LEASES_SECONDS", (0.01,))
    outcome = played(tmp_path, "no-early-take-over")
    assert (outcome.state, outcome.in_time) == (UNTRIED, True)
    assert outcome.seen == "this host is so slow that leases of 0.01 s are over before they are looked at"


def test_a_race_in_which_no_two_claims_met_is_not_called_held(tmp_path, monkeypatch):
    monkeypatch.setattr(races, "most_in_flight", lambda answers: 1)
    outcome = played(tmp_path, "single-winner")
    assert outcome.state == UNTRIED
    assert outcome.seen.startswith("no two claims were ever in flight at once")


def test_a_run_is_killed_at_every_place_that_it_passes(tmp_path):
    with Stage(asked(tmp_path)) as stage:
        places = crashes._places(stage, stage.host("host"))
    assert places[0] == "schedule:before-commit:1"
    assert sorted(places) == sorted(place if re.search(":[0-9]+$", place) else f"{place}:1" for place in OF_A_RUN)


def test_a_run_and_its_step_are_killed_at_every_place_of_their_commits(tmp_path):
    with Stage(asked(tmp_path)) as stage:
        places = emissions._places(stage, stage.host("host"))
    of_step = [place for of, place in places if of == "step"]
    of_run = [place for of, place in places if of == "run"]
    assert (of_step[0], of_step[-1]) == ("step:command-ended:1", "step:marked:1")
    assert [place for place in of_run if "messages" in place or "verdict" in place or "kept" in place] == [
        "run:verdict-known:1",
        "finish:outcome-kept:1",
        "commit:after-messages:1",
    ]
    assert {"commit:before-commit:1", "commit:after-messages:1", "commit:after-commit:1"} < set(of_step)
    assert {"commit:before-commit:2", "commit:after-commit:2"} < set(of_run)


def test_a_deliverer_is_killed_at_every_place_that_it_passes_and_when_it_brings_answers(tmp_path):
    with Stage(asked(tmp_path)) as stage:
        places = deliverers._Plan(stage).places()
    assert places == [
        "exchange:after-moves:1",
        "exchange:before-commit:1",
        "exchange:after-commit:1",
        "deliver:taken:1",
        "deliver:before-send:1",
        "deliver:sent:1",
        "deliver:before-settle:1",
        "exchange:after-moves:2",
        "exchange:before-commit:2",
        "exchange:after-commit:2",
        "deliver:settled:1",
    ]


def test_an_armed_process_that_was_not_killed_where_it_should_be_is_evidence(tmp_path, monkeypatch):
    monkeypatch.setattr(emissions, "_places", lambda stage, host: [("run", "nowhere:1")])
    monkeypatch.setattr(deliverers._Plan, "places", lambda plan: ["nowhere:1"])
    for name in ("atomic-emit", "two-deliverers"):
        outcome = played(tmp_path, name, rounds=1)
        assert outcome.state == BROKEN
        assert "nowhere:1: it passed there when nobody killed it, and now it did not" in outcome.evidence[0]


@pytest.mark.parametrize("name", ["atomic-emit", "two-deliverers", "unknown-outcome"])
def test_destinations_and_a_proxy_of_the_users_play_no_part(tmp_path, monkeypatch, name):
    monkeypatch.setattr(emissions, "_places", lambda stage, host: EMISSION_PLACES[:1])
    monkeypatch.setattr(deliverers._Plan, "places", lambda plan: DELIVERER_PLACES[:1])
    mine = tmp_path / "config.toml"
    mine.write_text("[destinations.mine]\ntype = 'command'\ncommand = ['false']\n[destinations.forgets]\ntype = 'x'\n")
    away = f"http://127.0.0.1:{free_port()}"
    environ = {
        **os.environ,
        "RANONCE_CONFIG": str(mine),
        "http_proxy": away,
        "HTTP_PROXY": away,
        "no_proxy": "elsewhere",
    }
    with Stage(asked(tmp_path, rounds=1).replace(environ=environ)) as stage:
        outcome = play(stage, name)
    assert outcome.state == HELD, outcome.lines


# --- what it says ---------------------------------------------------------------------------------------------------


def test_a_race_says_how_often_claims_were_really_in_flight_together(tmp_path):
    outcome = played(tmp_path, "single-winner")
    assert (outcome.state, outcome.held, outcome.of, outcome.dead) == (HELD, 4, 4, 0)
    assert 0 < outcome.overlapping <= 4
    assert outcome.lines[0].startswith("held    4/4 single-winner: 8 processes wanted one new window at once")
    assert outcome.lines[0].endswith("with overlapping claims; 0 dead")


def test_claims_are_in_flight_together_only_where_their_times_overlap():
    def answers(*spans):
        return [{"began": began, "ended": ended} for began, ended in spans]

    assert most_in_flight(answers((0, 1), (1, 2), (2, 3))) == 1
    assert most_in_flight(answers((0, 3), (1, 2), (2.5, 4))) == 2
    assert most_in_flight(answers((0, 3), (1, 4), (2, 5))) == 3


def test_evidence_is_no_more_than_a_screenful():
    score = Score(lambda done, of: None)
    score.begin(100, "tried")
    for number in range(100):
        score.note(f"window {number}", ["wrong"])
    assert len(score.evidence) == SHOWN + 1
    assert score.evidence[-1] == "and 90 more like these"


def test_what_is_told_to_machines_says_the_same():
    outcome = Outcome("a", BROKEN, 1, 2, "tried", "seen", ("why",), dead=1, seconds=0.12345)
    told = {"scenario": "a", "result": "broken", "held": 1, "of": 2, "dead": 1, "tried": "tried", "seen": "seen"}
    assert outcome.as_told() == {**told, "seconds": 0.123, "evidence": ["why"]}
    assert json.loads(json.dumps(outcome.as_told()))


def test_a_wait_for_a_fact_ends_with_the_drills_time():
    with pytest.raises(OutOfTime):
        Deadline(0.05).wait_until(lambda: False, 60.0)
    with pytest.raises(OutOfTime):
        Deadline(1.0).sleep(2.0)
    assert Deadline(60.0).wait_until(lambda: False, 0.0) is False


# --- what it leaves behind ------------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_scenario_that_ends_by_an_error_of_the_drills_own(tmp_path, temporary, monkeypatch):
    def wrong(stage, score):
        stage.member(stage.host("host"))
        raise ZeroDivisionError

    monkeypatch.setitem(SCENARIOS, "single-winner", wrong)
    with pytest.raises(ZeroDivisionError), Stage(asked(tmp_path)) as stage:
        play(stage, "single-winner")
    assert list(temporary.iterdir()) == []
    assert list(tmp_path.glob("ledger/*")) == []


def left_by_a_killed_drill(temporary, site, url, *, age=3600.0):
    """Make what a drill leaves that was killed outright; return its folder and its scratch ledger's."""
    folder = temporary / "ranonce-drill-killed"
    folder.mkdir(mode=0o700)
    (folder / "alive").touch()
    (folder / "scratch").write_text(f"drill_20261130t115200_0a1b2c3d {url}\n")
    scratch = site.scratch("drill_20261130t115200_0a1b2c3d")
    site_of(scratch, wait_seconds=1).create("c0ffee" + "0" * 26)
    long_ago = time.time() - age
    os.utime(folder, (long_ago, long_ago))
    return folder, Path(scratch.removeprefix("sqlite://")).parent


def test_what_a_killed_drill_left_is_removed_by_the_next_on_the_same_store(tmp_path, temporary):
    how = asked(tmp_path)
    folder, scratch = left_by_a_killed_drill(temporary, site_of(how.url, wait_seconds=1), how.url)
    assert scratch.is_dir()
    with Stage(how):
        assert not scratch.exists()
        assert not folder.exists()


def test_the_folder_of_another_drill_is_left_alone_while_it_lives_and_shortly_after(tmp_path, temporary):
    how = asked(tmp_path)
    folder, scratch = left_by_a_killed_drill(temporary, site_of(how.url, wait_seconds=1), how.url)
    with open(folder / "alive") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        with Stage(how):
            assert scratch.is_dir()
    os.utime(folder)
    with Stage(how):
        assert scratch.is_dir()


def test_what_was_left_beside_another_store_or_under_another_name_is_left_alone(tmp_path, temporary):
    how = asked(tmp_path)
    folder, scratch = left_by_a_killed_drill(temporary, site_of(how.url, wait_seconds=1), "sqlite:////elsewhere/x.db")
    with Stage(how):
        assert scratch.is_dir()
    (folder / "scratch").write_text(f"../../ledger {how.url}\n")
    long_ago = time.time() - 3600
    os.utime(folder, (long_ago, long_ago))
    with Stage(how):
        assert folder.is_dir()


def test_a_drill_that_was_killed_before_it_had_made_anything_leaves_no_folder_for_ever(tmp_path, temporary):
    how = asked(tmp_path)
    folder, _ = left_by_a_killed_drill(temporary, site_of(how.url, wait_seconds=1), how.url)
    (folder / "scratch").unlink()
    long_ago = time.time() - 3600
    os.utime(folder, (long_ago, long_ago))
    with Stage(how):
        assert not folder.exists()


def test_a_server_that_is_away_is_waited_for_once_and_leaves_nothing(temporary):
    url = f"redis://127.0.0.1:{free_port()}/0"
    began = time.monotonic()
    with pytest.raises(StoreUnavailable), Stage(Asked(url, dict(os.environ), deadline=1.0)):
        pass
    assert time.monotonic() - began < 10
    assert list(temporary.iterdir()) == []


def test_a_scratch_ledger_that_could_not_be_made_leaves_nothing(tmp_path, temporary, monkeypatch):
    def full(path, ledger, volatile, epoch):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("ranonce.stores.sqlite.create._build", full)
    with pytest.raises(StoreUnavailable), Stage(asked(tmp_path)):
        pass
    assert list(temporary.iterdir()) == []
    assert list(tmp_path.glob("ledger/*")) == []


def test_a_folder_that_is_not_there_yet_is_not_made(tmp_path, temporary):
    url = f"sqlite:///{tmp_path}/none/deep/ledger.db"
    with Stage(asked(tmp_path).replace(url=url)) as stage:
        stage.declared("job")
        assert list(tmp_path.glob("ranonce-scratch*")) != []
    assert not (tmp_path / "none").exists()
    assert list(tmp_path.glob("ranonce-scratch*")) == []


def test_a_place_that_may_be_lost_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr("ranonce.stores.sqlite.site.SqliteSite.risk", lambda self: Risk("tmpfs", "it is in memory"))
    with Stage(asked(tmp_path)) as stage:
        assert stage.notes == ["the store is on tmpfs: it is in memory. A drill does not show what that costs."]


def test_a_scratch_ledger_that_cannot_be_removed_is_named_and_found_again(tmp_path, temporary, monkeypatch):
    def away(self):
        raise StoreUnavailable("the server is away.")

    with monkeypatch.context() as patch, Stage(asked(tmp_path)) as stage:
        patch.setattr(SqliteSite, "destroy", away)
        stage.close()
    assert "could not be removed: the server is away." in stage.left[0]
    (folder,) = temporary.iterdir()
    long_ago = time.time() - 3600
    os.utime(folder, (long_ago, long_ago))
    with Stage(asked(tmp_path)):
        assert not folder.exists()


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_nothing_is_left_on_a_server(server, request):
    with request.getfixturevalue(server).place() as url:
        with Stage(Asked(url, dict(os.environ), rounds=2)) as stage:
            places = [stage.url, stage.scratch()]
            site_of(places[1], wait_seconds=20).create("c0ffee" + "0" * 26)
            assert play(stage, "single-winner").state == HELD
        assert stage.left == []
        assert [site_of(place, wait_seconds=20).stands() for place in places] == [False, False]
        assert not site_of(url, wait_seconds=20).stands()


def test_a_password_stands_in_no_file_and_in_no_argument(postgres, tmp_path, monkeypatch):
    arguments = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: arguments.extend(words) or popen(words, **how))
    with postgres.place() as url, contextlib.ExitStack() as stack:
        if masked(url) != url:
            pytest.skip("this server's own password is none that a test may look for")
        secret = url.replace("@", ":sesame@", 1)
        stage = stack.enter_context(Stage(Asked(secret, dict(os.environ), rounds=1)))
        for name in ("single-winner", "lost-reply", "wiped-host", "foreign-store"):
            assert play(stage, name).state == HELD
        written = b"".join(path.read_bytes() for path in Path(stage.folder).rglob("*") if path.is_file())
    assert b"drill_" in written
    assert b"sesame" not in written
    assert "sesame" not in "".join(arguments)


# --- answers that get lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_each_answer_of_a_server_is_lost_once(server, request):
    with request.getfixturevalue(server).place() as url, Stage(Asked(url, dict(os.environ), rounds=1)) as stage:
        outcome = play(stage, "lost-reply")
    assert (outcome.state, outcome.held) == (HELD, outcome.of), outcome.lines
    assert outcome.of >= 3  # of a claim what was read and what was written, and of a verdict what was written
    assert outcome.seen.startswith("2 commits among them")


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_who_asks_again_after_a_lost_answer_and_does_not_find_its_claim_is_found_out(server, request):
    words = (sys.executable, FAULTY, "forgotten_owner")
    with (
        request.getfixturevalue(server).place() as url,
        Stage(Asked(url, dict(os.environ), rounds=1, words=words)) as stage,
    ):
        outcome = play(stage, "lost-reply")
    assert outcome.state == BROKEN
    assert outcome.evidence[0].startswith("answer 2 to a claim: its asker was told: ")


@pytest.mark.parametrize(
    ("url", "leads_to", "way"),
    [
        ("redis://:secret@cache:7000/2", ("cache", 7000), r"redis://:secret@127\.0\.0\.1:\d+/2"),
        ("postgresql://u:p@db/x", ("db", 5432), r"postgresql://u:p@db:\d+/x\?hostaddr=127\.0\.0\.1"),
        (
            "postgresql://u@[::1]:5433/x?sslmode=verify-full&schema=mine",
            ("::1", 5433),
            r"postgresql://u@\[::1\]:\d+/x\?hostaddr=127\.0\.0\.1&sslmode=verify-full&schema=mine",
        ),
    ],
)
def test_a_server_is_reached_by_way_of_loopback_under_its_own_name(url, leads_to, way):
    with Relay(url, {}) as relay:
        assert re.fullmatch(way, relay.url)
        assert relay._server == leads_to


@pytest.mark.parametrize(
    "url",
    [
        "rediss://cache:7000/0",
        "postgresql://u@db,other/x",
        "postgresql://u@%2Fvar%2Frun%2Fpostgresql/x",
        "postgresql://u@/x",
        "postgresql://u@db/x?hostaddr=10.0.0.1",
        "postgresql:///x?host=/tmp",
    ],
)
def test_a_server_that_nothing_can_stand_before_is_not_tried(url):
    with pytest.raises(Untried):
        Relay(url, {})


# --- its processes --------------------------------------------------------------------------------------------------


def test_its_processes_are_of_this_package_wherever_they_stand(tmp_path):
    decoy = tmp_path / "ranonce"
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise SystemExit('the wrong one')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "nowhere"}
    ran = subprocess.run([*program(), "ranonce", "--version"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("ranonce ")
