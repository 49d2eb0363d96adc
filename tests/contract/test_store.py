"""What every store promises, one fact each. `ranonce.stores.base` is this page in words."""

from __future__ import annotations

import threading

import pytest

from ranonce import lifecycle
from ranonce.errors import StoreUnavailable
from ranonce.lifecycle import Claim, Event, Gate, Run, RunKey, ScheduleVersion
from ranonce.stores.base import Job, LostReply
from ranonce.windows import Schedule
from tests.contract.acting import START, ask, claim, ledger_over, refused, verdict


@pytest.fixture
def ledger(kind):
    return ledger_over(kind.open())


def test_the_identity_is_the_one_given_at_birth(kind):
    assert kind.open().identity().ledger == kind.open().identity().ledger


def test_a_claim_is_read_back_whole(kind, ledger):
    held = claim(ledger, version="v1", fingerprint="f" * 64, data={"chosen_by": "clock"}, host="here")
    snap = kind.open().read(held.key, held.window.start)
    run = snap.run
    assert (run.status, run.attempt, run.owner, run.version, run.fingerprint) == (
        "running",
        1,
        held.owner,
        "v1",
        "f" * 64,
    )
    assert (snap.lease.owner, snap.lease.attempt, snap.lease.seconds) == (held.owner, 1, 300.0)
    assert kind.open().witnessed(held.key, held.window.start, None)
    assert not kind.open().witnessed(held.key, held.window.start, 1)
    start = kind.open().events("job", START, START + 1)[0]
    assert (start.event, start.host, dict(start.data)) == ("start", "here", {"chosen_by": "clock"})


def test_a_verdict_is_read_back_whole(kind, ledger):
    held = claim(ledger)
    ended = round(kind.open().clock().wall, 3)
    told = verdict("failed", reason="because", exit=7, data={"killed": True}, output=b"\x00\xff tail", at=ended)
    ledger.finish(held, told)
    run = kind.open().runs("job", START, START + 1)[0]
    assert (run.status, run.reason, run.exit, run.failures) == ("failed", "because", 7, 1)
    assert run.finished_at == pytest.approx(ended, abs=0.005)
    failed = kind.open().events("job", START, START + 1)[-1]
    assert failed.data["killed"] is True
    assert kind.open().output(failed.seq) == b"\x00\xff tail"
    assert kind.open().leases("job") == []


#: What an attempt is, from its claim on; no verdict changes it.
ATTEMPT = """key window_start window_end generation attempt owner schedule trigger started_at version
fingerprint""".split()  # noqa: SIM905


def test_all_that_a_verdict_can_change_is_read_back(kind, ledger):
    held = claim(ledger)
    store = kind.open()
    snap = store.read(held.key, held.window.start)
    changed = snap.run.replace(
        status="failed",
        failures=2,
        finished_at=START + 1.5,
        resume_at=START + 2.5,
        reason="because",
        exit=3,
        late=True,
        reconciling=True,
        granted=True,
    )
    same = [name for name in Run._fields if getattr(changed, name) == getattr(snap.run, name)]
    assert sorted(same) == sorted(ATTEMPT), "a new field: does a verdict change it?"
    decision = lifecycle.Decision(lifecycle.SETTLE, run=changed, drop_lease=True)
    assert store.commit(decision, held.key, snap.version) is not None
    assert store.read(held.key, held.window.start).run == changed


def test_a_commit_after_another_version_writes_nothing(kind, ledger):
    store = kind.open()
    first, second = ask(), ask()
    snap = store.read(first.key, first.window.start)
    won = lifecycle.claim(snap, first)
    lost = lifecycle.claim(snap, second)
    assert store.commit(won, first.key, snap.version) is not None
    assert store.commit(lost, second.key, snap.version) is None
    assert store.read(first.key, first.window.start).run.owner == first.owner
    assert len(list(store.events("job", START, START + 1))) == 1


def test_a_take_over_fails_if_the_lease_was_renewed_since(kind, ledger):
    store = kind.open()
    held = claim(ledger)
    kind.pass_time(store, 301)
    taking = ask()
    snap = store.read(taking.key, taking.window.start)
    decision = lifecycle.claim(snap, taking)
    assert decision.move == lifecycle.TAKE_OVER
    assert ledger.renew(held, "forbid") is None
    assert store.commit(decision, taking.key, snap.version) is None
    assert store.read(held.key, held.window.start).run.attempt == 1


def test_a_lease_begins_when_it_is_written_not_when_it_was_decided(kind, ledger):
    store, asking = kind.open(), ask()
    snap = store.read(asking.key, asking.window.start)
    old = snap.replace(now=snap.now - 100, wall=snap.wall - 100)  # it waited that long for the write lock
    store.commit(lifecycle.claim(old, asking), asking.key, snap.version)
    written = store.read(asking.key, asking.window.start)
    assert written.lease.expires >= snap.now + 300
    assert written.run.started_at >= snap.wall - 1
    assert next(iter(store.events("job", START, START + 1))).at >= snap.wall - 1


def test_a_live_renewal_moves_no_version(kind, ledger):
    held = claim(ledger)
    before = kind.open().read(held.key, held.window.start)
    kind.pass_time(kind.open(), 10)
    assert ledger.renew(held, "forbid") is None
    after = kind.open().read(held.key, held.window.start)
    assert after.version == before.version
    assert after.lease.expires > before.lease.expires - 10


def test_a_stale_holder_coming_back_late_is_refused_everything(kind, ledger):
    slow = claim(ledger)
    kind.pass_time(kind.open(), 301)
    second = claim(ledger)
    assert ledger.renew(slow, "forbid").reason == "lost"
    assert ledger.finish(slow, verdict()).reason == "lost"
    assert ledger.finish(second, verdict()) is None
    assert ledger.finish(slow, verdict("failed")).reason == "lost"
    run = kind.open().runs("job", START, START + 1)[0]
    assert (run.status, run.attempt, run.owner) == ("done", 2, second.owner)
    assert [e.event for e in kind.open().events("job", START, START + 1)].count("lost") == 2


def test_a_lost_reply_to_a_claim_is_looked_up_not_repeated(kind, ledger, monkeypatch):
    store = ledger.store
    real = type(store).commit
    broken = []

    def commit(self, decision, key, after):
        written = real(self, decision, key, after)
        if not broken:
            broken.append(written)
            raise LostReply("the connection broke after the commit")
        return written

    monkeypatch.setattr(type(store), "commit", commit)
    held = claim(ledger)
    assert held.attempt == 1
    assert [e.event for e in store.events("job", START, START + 1)] == ["start"]


def test_a_lost_reply_to_a_finish_is_looked_up_not_repeated(kind, ledger, monkeypatch):
    store = ledger.store
    held = claim(ledger)
    real = type(store).commit
    broken = []

    def commit(self, decision, key, after):
        written = real(self, decision, key, after)
        if not broken:
            broken.append(written)
            raise LostReply("the connection broke after the commit")
        return written

    monkeypatch.setattr(type(store), "commit", commit)
    assert ledger.finish(held, verdict()) is None
    assert [e.event for e in store.events("job", START, START + 1)] == ["start", "done"]


def test_a_claim_that_never_arrived_is_made_again(kind, ledger, monkeypatch):
    store = ledger.store
    real = type(store).commit
    broken = []

    def commit(self, decision, key, after):
        if not broken:
            broken.append(1)
            raise LostReply("the connection broke before the commit")
        return real(self, decision, key, after)

    monkeypatch.setattr(type(store), "commit", commit)
    assert claim(ledger).attempt == 1


def test_a_commit_whose_fate_cannot_be_seen_in_time_is_told_from_one_that_did_not_happen(kind, ledger, monkeypatch):
    store = ledger.store
    real_read, real_commit = type(store).read, type(store).commit
    broken = []

    def read(self, key, window_start):
        if broken:
            raise StoreUnavailable("it is gone", "Try again later.")
        return real_read(self, key, window_start)

    def commit(self, decision, key, after):
        broken.append(real_commit(self, decision, key, after))
        raise LostReply("the connection broke after the commit")

    monkeypatch.setattr(type(store), "commit", commit)
    monkeypatch.setattr(type(store), "read", read)
    with pytest.raises(LostReply):
        ledger.claim(ask())
    with pytest.raises(StoreUnavailable) as plain:
        ledger.claim(ask())
    assert not isinstance(plain.value, LostReply)


def test_a_verdict_whose_fate_cannot_be_seen_in_time_is_told_so_right_after_its_claim_too(ledger, monkeypatch):
    store = ledger.store
    held = claim(ledger)

    def read(self, key, window_start):
        raise StoreUnavailable("it is gone", "Try again later.")

    def commit(self, decision, key, after):
        raise LostReply("the connection broke after the commit")

    monkeypatch.setattr(type(store), "commit", commit)
    monkeypatch.setattr(type(store), "read", read)
    with pytest.raises(LostReply):
        ledger.finish(held, verdict())


@pytest.mark.parametrize("arrives", [True, False])
def test_a_lost_reply_to_a_schedule_is_looked_up_and_not_told_as_a_failure(ledger, monkeypatch, arrives):
    store = ledger.store
    real = type(store).record_schedule
    broken = []

    def record_schedule(self, job, schedule, after):
        if not broken:
            broken.append(1)
            if arrives:
                real(self, job, schedule, after)
            raise LostReply("the connection broke")
        return real(self, job, schedule, after)

    monkeypatch.setattr(type(store), "record_schedule", record_schedule)
    new, every = Job("new", 0, START, 3600.0, 3), Schedule("hour")
    assert ledger.declare(new, Schedule("day"), 0, now=START, change=False)[1] is False
    assert len(store.schedules("new")) == 1
    broken.clear()
    declared, changed = ledger.declare(new, every, 0, now=START, change=True)
    assert (declared.schedule, changed, len(store.schedules("new"))) == (every, True, 2)


def test_a_schedule_whose_fate_cannot_be_seen_in_time_is_told_so(ledger, monkeypatch):
    def record_schedule(self, job, schedule, after):
        raise LostReply("the connection broke")

    ledger.wait_seconds = 0.05
    monkeypatch.setattr(type(ledger.store), "record_schedule", record_schedule)
    with pytest.raises(LostReply):
        ledger.declare(Job("new", 0, START, 3600.0, 3), Schedule("day"), 0, now=START, change=False)


def test_jobs_do_not_know_each_other(kind, ledger):
    ledger_over(kind.open(), "other")
    claim(ledger)
    claim(ledger, job="other")
    assert refused(ledger).reason == "busy"
    assert [run.key.job for run in kind.open().runs("other", START, START + 1)] == ["other"]


def test_another_input_as_identity_is_another_run(kind, ledger):
    # 64-bit digests of these two texts are equal; the full ones are not.
    import hashlib

    one, two = (hashlib.sha256(t).hexdigest() for t in (b"issue c5a33747e220da6c", b"issue a6a2e7ab897891cf"))
    assert one[:16] == two[:16]
    for digest in (one, two):
        held = claim(ledger, key=RunKey("job", ask().window.key, digest))
        ledger.finish(held, verdict())
    assert len(kind.open().runs("job", START, START + 1)) == 2


def test_event_numbers_rise_and_events_stay(kind, ledger):
    for day in range(3):
        ledger.finish(claim(ledger, day), verdict())
    events = kind.open().newest_events(10)
    assert [e.seq for e in events] == sorted((e.seq for e in events), reverse=True)
    assert kind.open().event(events[-1].seq) == events[-1]
    assert kind.open().event(10_000) is None


def test_a_gate_is_closed_with_the_outcome_and_the_later_end_wins(kind, ledger):
    for day, until in ((0, START + 900), (1, START + 300)):
        ledger.finish(
            claim(ledger, day), verdict("stopped", gates=(Gate("api", float(until), "429", "job", float(START)),))
        )
    assert kind.open().gates() == (Gate("api", float(START + 900), "429", "job", float(START)),)


def test_schedules_keep_their_versions_in_order(kind, ledger):
    store = kind.open()
    job = store.job("job")
    second = ScheduleVersion(2, "hour", "Europe/Berlin", "systemd", -1, START, float(START))
    assert store.record_schedule(job.replace(late_after=60.0), second, job.version)
    assert not store.record_schedule(job, second.replace(number=3), job.version)
    assert store.schedules("job")[-1] == second
    assert [v.number for v in store.schedules("job")] == [1, 2]
    assert kind.open().job("job").late_after == 60.0
    assert store.job("nobody") is None
    assert [j.name for j in store.jobs()] == ["job"]


def test_a_job_nobody_declared_cannot_be_claimed(kind):
    from ranonce.errors import NotThisLedger

    ledger = ledger_over(kind.open())
    with pytest.raises(NotThisLedger, match="stranger"):
        ledger.claim(ask(job="stranger"))


def test_questions_see_the_right_spans(kind, ledger):
    for day in range(4):
        ledger.finish(claim(ledger, day), verdict("failed" if day == 2 else "stopped" if day == 3 else "done"))
    store = kind.open()
    day = 86400
    outline = store.outline("job", START, START + 10 * day)
    assert sorted(outline.starts) == [START + n * day for n in range(4)]
    assert sorted(outline.notable) == [START + 2 * day, START + 3 * day]
    assert [r.status for r in store.notable("job", START, START + 10 * day)] == ["failed", "stopped"]
    assert [r.window_start for r in store.latest("job", 2)] == [START + 3 * day, START + 2 * day]
    assert [r.status for r in store.stopped("job", START + 4 * day)] == ["stopped"]
    assert store.stopped("job", START + 3 * day) == []
    assert store.last_started_end("job", 1, START + 2 * day) == START + 3 * day
    assert store.last_started_end("job", 2, START + 2 * day) is None
    notable = store.notable_events("job", START, START + 10 * day)
    assert [e.event for e in notable] == ["failed", "stopped"]


def test_skips_are_recorded_without_disturbing_anyone(kind, ledger):
    claim(ledger)
    version = kind.open().job("job").version
    refused(ledger)
    assert kind.open().job("job").version == version
    events = list(kind.open().events("job", START, START + 1))
    assert [(e.event, e.reason) for e in events] == [("start", "start"), ("skipped", "busy")]


def test_hostile_text_comes_back_as_it_went_in(kind, ledger):
    nasty = 'A","event":"done"\n\u2028\x1b[31m\x00 \U0001f600'
    held = claim(ledger, version=nasty)
    ledger.finish(held, verdict("failed", reason=nasty, data={"note": nasty}))
    run = kind.open().runs("job", START, START + 1)[0]
    assert (run.version, run.reason) == (nasty, nasty)
    assert kind.open().events("job", START, START + 1)[-1].data["note"] == nasty


def test_threads_racing_for_one_window_have_one_winner(kind):
    ledger_over(kind.open())
    results: list[object] = []
    barrier = threading.Barrier(8)

    def race() -> None:
        ledger = ledger_over(kind.open())
        barrier.wait()
        results.append(ledger.claim(ask()))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 8
    assert sum(isinstance(answer, Claim) for answer in results) == 1
    assert len({e.seq for e in kind.open().events("job", START, START + 1)}) == 8


def test_events_are_immutable_values():
    event = Event(0.0, RunKey("a", "b"), 0, "start", 1, 1)
    with pytest.raises(AttributeError):
        event.reason = "other"


def test_a_run_that_was_allowed_one_more_attempt_is_not_spent(kind, ledger):
    held = claim(ledger)
    ledger.finish(held, verdict("failed"))
    store, after = kind.open(), held.window.end
    assert [waits.spent for waits in store.backlog("job", after, 1, START)] == [True]
    assert ledger.release(held.key, held.window.start, "not-done", "mended", by="anna@host") is None
    assert [waits.spent for waits in store.backlog("job", after, 1, START)] == [False]
