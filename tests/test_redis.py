"""What is particular to a ledger in Redis or Valkey: its keys, its one script, and what its server is asked for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator

import pytest

from ranonce import lifecycle
from ranonce.emission import Emission, message_of
from ranonce.errors import NotThisLedger, StoreUnavailable, UsageError
from ranonce.exchange.salvage import nobody, stories
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, Decision, Event, Refusal, Retention, RunKey
from ranonce.merging import folded
from ranonce.messages import STATES, Move
from ranonce.stores import open_store, site_of
from ranonce.stores.base import FIRST, Intake, Scope
from ranonce.stores.redis import chapters, pruning
from ranonce.stores.redis.keys import KINDS
from ranonce.stores.redis.plan import Plan, decided
from ranonce.stores.redis.site import RedisSite
from ranonce.stores.redis.store import RedisStore
from ranonce.storeurl import in_namespace
from tests.contract.acting import START, ask, claim, ledger_over, verdict
from tests.contract.stores import LEDGER
from tests.contract.test_intake import DONE, told
from tests.planted import Planted
from tests.servers import Places

DAY = 86400


@pytest.fixture
def url(valkey: Places) -> Iterator[str]:
    with valkey.place() as address:
        site_of(address, wait_seconds=20).create(LEDGER)
        yield address


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    store = RedisStore(url, wait_seconds=20)
    yield store
    store.close()


@pytest.fixture
def ledger(store: RedisStore) -> OpenLedger:
    return ledger_over(store)


def keys_of(store: RedisStore) -> list[bytes]:
    return sorted(store.connection.ask(("KEYS", f"{store.keys.prefix}*"))[0])


def all_of(store: RedisStore) -> dict[bytes, object]:
    """Everything that stands in the ledger's keys."""
    reading = {b"hash": ("HGETALL",), b"zset": ("ZRANGE", 0, -1, "WITHSCORES"), b"list": ("LRANGE", 0, -1)}
    found: dict[bytes, object] = {}
    for key in keys_of(store):
        verb, *more = reading[store.connection.ask(("TYPE", key))[0]]
        answer = store.connection.ask((verb, key, *more))[0]
        found[key] = sorted(answer) if verb == "HGETALL" else answer
    return found


#: What comes with the first message or step.
OF_MESSAGES = (
    *("messages", "message_keys", "bodies", "numbers", "destinations", "emitted", "undelivered"),
    *("steps", "results", "pending", "sending", "aside"),
)


def names_of(store: RedisStore) -> set[str]:
    """What the ledger's keys hold, by the words of their names."""
    return {key.decode().partition("}:")[2].partition(":")[0] for key in keys_of(store)}


def leave_messages(ledger: OpenLedger, held: Claim) -> None:
    """Leave a step of an attempt with a message in each state."""
    made = [message_of(Emission("web", b"x", key=state), held, START, item="i") for state in sorted(STATES)]
    step = lifecycle.Step(held.key, held.window.start, 1, "i", 1, float(START), b"result")
    assert ledger.mark(held, step, made) is None
    outbox = ledger.store.outbox()
    there = outbox.known([each.key for each in made])
    moves = [
        Move(there[each.key], there[each.key].replace(state=state))
        for each, state in zip(made, sorted(STATES), strict=True)
    ]
    assert len(outbox.exchange("web", moves).moved) == len(STATES)


# --- the keys -------------------------------------------------------------------------------------------------------


def test_all_keys_lie_together_and_none_ends_by_itself(store, ledger):
    claim(ledger, 1, policy=ask().policy.replace(overlap="allow"))
    held = claim(ledger, policy=ask().policy.replace(overlap="allow"))
    ledger.finish(held, verdict("failed", output=b"said", gates=(lifecycle.Gate("g", START, "429", "job", START),)))
    store.upkeep().accept_loss("a test", "ann@host")
    ledger.finish(claim(ledger, 3, policy=ask().policy.replace(overlap="allow")), verdict())
    ledger.finish(claim(ledger, 4, policy=ask().policy.replace(overlap="allow")), verdict())
    store.upkeep().prune("job", Retention(4e9, 0))
    assert not names_of(store) & set(OF_MESSAGES)
    leave_messages(ledger, held=claim(ledger, 5, policy=ask().policy.replace(overlap="allow")))
    names = [key.decode() for key in keys_of(store)]
    assert names_of(store) == set(KINDS)
    assert [store.connection.ask(("TTL", name))[0] for name in names] == [-1] * len(names)
    assert {name.partition("}")[0] for name in names} == {store.keys.prefix.partition("}")[0]}


def test_two_name_spaces_of_a_server_know_nothing_of_each_other(valkey, url, ledger):
    with valkey.place() as other:
        site_of(other, wait_seconds=20).create("d" * 32)
        elsewhere = ledger_over(open_store(other, wait_seconds=20))
        held = claim(ledger)
        assert claim(elsewhere).attempt == held.attempt == 1
        assert open_store(other, wait_seconds=20).identity().ledger == "d" * 32


def test_pruning_everything_that_may_go_leaves_nothing_behind_but_tombstones(store, ledger):
    before = {b"events", b"pages", b"fill", b"output", b"order", b"work", b"besides", b"notable", b"waiting", b"runs"}
    for day in range(300):
        held = claim(ledger, day)
        ledger.finish(held, verdict(output=b"said"))
        ledger.claim(ask(day))
    assert {key.partition(b"}:")[2].partition(b":")[0] for key in keys_of(store)} >= before - {b"notable", b"waiting"}
    store.upkeep().prune("job", Retention(4e9, 4e9))
    assert [run.window_start for run in store.runs("job", 0, 1 << 60)] == [START + 299 * DAY]
    assert len(list(store.upkeep().all_events())) == 3
    counted = {what: store.connection.ask(("HLEN", store.keys(what)))[0] for what in ("events", "fill", "output")}
    assert counted == {"events": 3, "fill": 1, "output": 1}
    assert store.connection.ask(("ZCARD", store.keys("pages")))[0] == 1
    assert store.upkeep().problems(deep=True) == []


# --- a duplicate, a refused write -----------------------------------------------------------------------------------


def test_a_duplicate_that_is_not_recorded_writes_nothing(store, ledger):
    ledger.finish(claim(ledger), verdict())

    def log() -> bytes:
        (info,) = store.connection.ask(("INFO", "persistence"))
        return next(line for line in info.splitlines() if line.startswith(b"aof_current_size"))

    before, kept = log(), all_of(store)
    for _ in range(20):
        assert isinstance(ledger.claim(ask(record_skip=False)), Refusal)
        store.read(ask().key, START)
    assert (log(), all_of(store)) == (before, kept)


def test_a_write_that_lost_its_race_changes_nothing(store, ledger):
    held = claim(ledger)
    snap = store.read(held.key, START)
    assert ledger.renew(held, "forbid") is None
    before = all_of(store)
    stale = Decision("x", run=snap.run, unchanged=(lifecycle.Held(held.key, START, snap.lease),), guarded=False)
    assert store.commit(stale, held.key, 0) is None
    assert store.commit(Decision("x", run=snap.run), held.key, snap.version - 1) is None
    taken = snap.run.replace(owner="b" * 32)
    assert store.commit(Decision("x", run=taken, drop_lease=True), held.key, snap.version) is None
    assert all_of(store) == before


def test_an_event_is_never_written_over_even_where_the_counter_has_gone_back(store, ledger):
    ledger.finish(claim(ledger), verdict())
    store.connection.ask(("HSET", store.keys("ledger"), "seq", 0))
    before = all_of(store)
    with pytest.raises(NotThisLedger, match="there are events after 0"):
        claim(ledger, 1)
    assert all_of(store) == before
    store.connection.ask(("HDEL", store.keys("events"), "1"))
    before = all_of(store)
    with pytest.raises(NotThisLedger, match="there are events after 0"):
        claim(ledger, rerun_reason="again")  # the first of two numbers is free
    assert all_of(store) == before


def test_another_ledger_under_our_hands_is_not_written_to(url, store, ledger):
    held = claim(ledger)
    for key in keys_of(store):
        store.connection.ask(("DEL", key))
    site_of(url, wait_seconds=20).create("d" * 32)
    before = all_of(store)
    with pytest.raises(NotThisLedger, match=f"holds the ledger {'d' * 32} now"):
        ledger.finish(held, verdict())
    assert all_of(store) == before


def test_a_key_of_another_kind_is_damage_that_is_found(store, ledger):
    store.connection.ask(("SET", store.keys("waiting", "job"), "x"))
    assert store.upkeep().problems(deep=False) == [f"{store.keys('waiting', 'job')!r} is a string"]
    held = claim(ledger)
    with pytest.raises(NotThisLedger, match="damaged"):
        ledger.finish(held, verdict("failed"))


# --- texts and numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", ["a b", "2025-11-10\0x", "\udcff", "ü \u202e", "x" * 500])
def test_a_window_may_be_called_anything(store, ledger, window):
    key = RunKey("job", window, "a" * 64)
    held = claim(ledger, key=key)
    ledger.finish(held, verdict("failed", reason=window))
    assert [run.key for run in store.runs_named("job", window)] == [key]
    assert store.read(key, START).run.reason == window
    assert [event.key for event in store.events("job", START, START + 1)] == [key, key]


def test_instants_of_the_write_are_those_of_the_server_and_told_as_they_stand(store, ledger):
    asking = ask()
    snap = store.read(asking.key, START)
    written = store.commit(lifecycle.claim(snap, asking), asking.key, snap.version)
    after = store.read(asking.key, START)
    (start,) = store.events("job", START, START + 1)
    assert written == (start,)
    assert start.at == after.run.started_at
    assert snap.now <= start.at + 0.001 <= after.now + 0.002
    assert after.lease.expires * 1e6 == pytest.approx(round(after.lease.expires * 1e6), abs=1e-3)


def test_a_verdict_does_not_move_the_start_of_its_attempt(store, ledger):
    held = claim(ledger)
    began = store.read(held.key, START).run.started_at
    left = ledger._left.snap  # what the claim has left, as its decision supposed: the write came later
    ledger._left = ledger._left.replace(snap=left.replace(run=left.run.replace(started_at=began - 1)))
    ledger.finish(held, verdict())
    run = store.read(held.key, START).run
    assert (run.status, run.started_at) == ("done", began)


def test_a_lease_that_changed_by_a_microsecond_is_not_as_it_was_read(store, ledger):
    held = claim(ledger)
    lease = store.read(held.key, START).lease
    seen = lifecycle.Held(held.key, START, lease)
    later = lease.replace(expires=lease.expires + 0.000_001)
    plan = Plan(store.keys)
    plan.lease(held.key, START, later)
    assert store.write(plan) is not None
    assert store.read(held.key, START).lease.expires > lease.expires
    assert store.commit(Decision("x", guarded=False, unchanged=(seen,), lease=lease), held.key, 0) is None


# --- many -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch):
    """Everything is read in the smallest pieces, so that few rows have many borders."""
    monkeypatch.setattr("ranonce.stores.redis.rows.PIECE", 3)
    monkeypatch.setattr("ranonce.stores.redis.rows.WINDOWS", 2)
    monkeypatch.setattr(chapters, "WINDOWS", 2)
    monkeypatch.setattr(chapters, "WINDOWS_WITH_OUTPUT", 2)
    monkeypatch.setattr(pruning, "MOST_EVENTS", 5)


def crowded(store: RedisStore) -> Planted:
    """A daily job with several inputs in some windows, many refused triggers in others, and windows without a run."""
    planted = Planted("day", store=store)
    for day in (10, 11, 13, 14, 18):
        run = planted.recorded(planted.run(f"2025-11-{day}", "failed" if day == 13 else "done"))
        for number in range(day % 5):
            other = RunKey("j", run.key.window, f"{number:064x}")
            planted.commit(other, run=run.replace(key=other))
            planted.event("start", run.replace(key=other), at=run.started_at)
            planted.event(run.status, run.replace(key=other), at=run.finished_at)
        for _ in range(day % 4 * 3):
            planted.event("skipped", run, at=run.finished_at + 1, reason="done")
    for day in (12, 16):
        for _ in range(7):
            planted.skip(f"2025-11-{day}", "late")
    return planted


def test_whole_windows_are_read_however_small_the_pieces(store, small_pieces):
    plain = Planted("day")
    crowded(plain.store)
    crowded(store)
    for since, until in ((0, 1 << 60), (START, START + 5 * DAY), (START + DAY, START + 4 * DAY)):
        assert store.runs("j", since, until) == plain.store.runs("j", since, until)
        assert store.notable("j", since, until) == plain.store.notable("j", since, until)
        assert store.events("j", since, until) == plain.store.events("j", since, until)
        outline, wanted = store.outline("j", since, until), plain.store.outline("j", since, until)
        assert list(outline.starts) == list(wanted.starts)
        assert outline.replace(starts=[]) == wanted.replace(starts=[])
    for upkeep, wanted in ((store.upkeep(), plain.store.upkeep()),):
        assert list(upkeep.all_runs()) == list(wanted.all_runs())
        assert list(upkeep.all_events()) == list(wanted.all_events())
        assert list(upkeep.events_by_window()) == list(wanted.events_by_window())
        with upkeep.view():
            assert list(stories(store)) == list(stories(plain.store))
    assert store.last_started_end("j", 1, START + 20 * DAY) == plain.store.last_started_end("j", 1, START + 20 * DAY)
    assert store.upkeep().problems(deep=True) == []


@pytest.mark.parametrize("limit", [1, 2, 500])
def test_pruning_in_the_smallest_batches_lets_go_of_the_same(store, small_pieces, limit):
    planted, plain = crowded(store), crowded(Planted("day").store)
    for each in (planted, plain):
        each.run("2025-12-24")
    keep = Retention(START + 20 * DAY, START + 20 * DAY)
    for each in (planted, plain):
        place = FIRST
        for _ in range(60):
            pruned = each.store.upkeep().prune("j", keep, after=place, limit=limit)
            place = pruned.upto
            if place is None:
                break
        each.store.upkeep().prune("j", keep)
        assert place is None
    assert store.runs("j", 0, 1 << 60) == plain.store.runs("j", 0, 1 << 60)
    assert store.events("j", 0, 1 << 60) == plain.store.events("j", 0, 1 << 60)
    found, wanted = (each.store.tombstones("j", 0, 1 << 60) for each in (planted, plain))
    assert [stone.replace(pruned_at=0.0) for stone in found] == [stone.replace(pruned_at=0.0) for stone in wanted]
    assert store.upkeep().pruned_seq() == plain.store.upkeep().pruned_seq()
    assert store.upkeep().problems(deep=True) == []


def test_numbers_far_apart_are_gone_through_at_once(store, ledger):
    one = told(*DONE)
    far = (1 << 52, (1 << 52) + 1000)
    events = tuple(event.replace(seq=seq) for event, seq in zip(one.events, far, strict=True))
    store.upkeep().take_in(Intake([one.replace(events=events)], keep_numbers=True), nobody)
    assert [event.seq for event in store.upkeep().all_events()] == [*far]
    assert [event.seq for event in store.newest_events(5)] == [*far[::-1]]
    ledger.finish(claim(ledger, 1), verdict())
    assert store.newest_events(1)[0].seq == far[1] + 2


def test_however_many_attempts_a_window_had_its_events_are_asked_before_it_is_started(store, ledger):
    for _ in range(105):
        ledger.finish(claim(ledger), verdict("failed"))
    store.read(ask().key, START)
    assert store.witnessed(ask().key, START, None)
    store.read(ask().key, START)
    assert not store.witnessed(ask().key, START, 1)
    ledger.finish(claim(ledger), verdict())
    store.read(ask().key, START)
    assert store.witnessed(ask().key, START, 1)
    assert not store.witnessed(ask().key, START, 2)


def test_a_done_run_whose_record_says_otherwise_is_not_started_again(store, ledger):
    held = claim(ledger)
    ledger.finish(held, verdict())
    key, place = store.keys("runs", "job"), store.connection.ask(("ZRANGE", store.keys("order", "job"), 0, 0))[0][0]
    (value,) = store.connection.ask(("HGET", key, place))
    store.connection.ask(("HSET", key, place, value.replace(b'"done"', b'"failed"')))
    with pytest.raises(NotThisLedger, match="tell different stories"):
        claim(ledger)
    store.connection.ask(("HSET", key, place, value.replace(b'"done"', b'"dome"')))
    with pytest.raises(NotThisLedger, match="damaged"):
        claim(ledger)


def test_what_is_too_much_for_a_glance_is_told_in_pieces(store, small_pieces, monkeypatch):
    crowded(store)
    scope = Scope(START + DAY, START + 6 * DAY, START + 7 * DAY, 3, float(START + 30 * DAY))
    at_once = store.glance("j", scope)
    monkeypatch.setattr("ranonce.stores.redis.questions.MOST_AT_A_GLANCE", 1)
    in_pieces = store.glance("j", scope)
    assert list(at_once.outline.starts) == list(in_pieces.outline.starts)
    for part in ("events", "held", "backlog", "tombstones", "later"):
        assert getattr(at_once, part) == getattr(in_pieces, part), part
    assert set(at_once.notable) <= set(in_pieces.notable)


def test_the_newest_events_are_found_behind_pruned_ones(store, ledger):
    for day in range(4):
        ledger.finish(claim(ledger, day), verdict())
    store.upkeep().prune("job", Retention(4e9, 0))
    assert [event.seq for event in store.newest_events(2)] == [8, 7]
    assert [event.seq for event in store.newest_events(5)] == [8, 7]
    assert store.newest_events(0) == []


# --- while others work ----------------------------------------------------------------------------------------------


def test_in_a_view_each_window_is_of_one_state_while_jobs_go_on(url, store, small_pieces):
    ledger = ledger_over(store)
    for day in range(40):
        held = claim(ledger, day, policy=ask().policy.replace(overlap="allow"))
        if day % 2:
            ledger.finish(held, verdict())
    over = threading.Event()

    def work() -> None:
        there = OpenLedger(open_store(url, wait_seconds=20), folder=None)
        day = 40
        while not over.is_set():
            ledger_claim = there.claim(ask(day, policy=ask().policy.replace(overlap="allow")))
            there.finish(ledger_claim, verdict("failed"))
            again = there.claim(ask(day % 40, rerun_reason="again", policy=ask().policy.replace(overlap="allow")))
            if isinstance(again, Claim):
                there.finish(again, verdict())
            day += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(5):
            with store.upkeep().view():
                for run, events in stories(store):
                    story = folded(events)
                    assert run is not None
                    assert (story.fault, story.status, story.attempt) == (None, run.status, run.attempt)
            assert store.upkeep().problems(deep=True) == []
    finally:
        over.set()
        worker.join(20)


@pytest.mark.parametrize("change", ["prune", "schedule", "import"])
def test_a_view_ends_where_more_than_a_window_changes(store, ledger, small_pieces, change):
    for day in range(8):
        ledger.finish(claim(ledger, day), verdict())
    upkeep = store.upkeep()
    with upkeep.view():
        runs, events = upkeep.all_runs(), upkeep.events_by_window()
        assert next(runs).window_start == next(events).window_start == START
        if change == "prune":
            store.upkeep().prune("job", Retention(4e9, 0), limit=2)
        elif change == "schedule":
            job = store.job("job")
            assert store.record_schedule(job, store.schedules("job")[0].replace(number=2), job.version)
        else:
            store.upkeep().take_in(Intake([told(*DONE, day=20)]), nobody)
        with pytest.raises(StoreUnavailable, match="meanwhile"):
            list(runs)
    assert len(list(upkeep.all_runs())) >= 6


def test_a_job_that_is_declared_during_a_view_disturbs_nobody(store, ledger):
    ledger.finish(claim(ledger), verdict())
    upkeep = store.upkeep()
    with upkeep.view():
        ledger_over(store, "another")
        claim(ledger, job="another")
        assert [run.key.job for run in upkeep.all_runs()] == ["job"]


def test_pruning_and_claiming_at_once_lose_and_double_nothing(url, store):
    ledger = ledger_over(store)
    policy = ask().policy.replace(overlap="allow")
    for day in range(60):
        ledger.finish(claim(ledger, day, policy=policy), verdict())
    done: list[int] = []

    def work() -> None:
        there = OpenLedger(open_store(url, wait_seconds=20), folder=None)
        for day in range(60, 120):
            there.finish(there.claim(ask(day, policy=policy)), verdict())
            done.append(day)
            assert isinstance(there.claim(ask(day - 60, policy=policy)), Refusal)

    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        store.upkeep().prune("job", Retention(4e9, 4e9), limit=7)
    worker.join()
    assert len(done) == 60
    (stone,) = store.tombstones("job", 0, 1 << 60)
    kept = store.runs("job", 0, 1 << 60)
    assert stone.runs + len(kept) == 120
    assert store.upkeep().problems(deep=True) == []
    assert all(isinstance(ledger.claim(ask(day, policy=policy)), Refusal) for day in range(0, 120, 9))


@pytest.mark.parametrize(
    "damage",
    [
        ("ZREM", "order", "job", "runs as places"),
        ("HDEL", "runs", "job", "runs as places"),
        ("ZREM", "work", "job", "in the indexes"),
        ("ZREM", "notable", "job", "not notable"),
        ("ZREM", "waiting", "job", "not waiting"),
        ("DEL", "pages", None, "0 pages"),
        ("DEL", "versions", None, "0 versions"),
    ],
    ids=lambda damage: f"{damage[0]} {damage[1]}",
)
def test_an_index_that_has_lost_something_is_found(store, ledger, damage):
    ledger.finish(claim(ledger), verdict("failed"))
    verb, what, job, sentence = damage
    key = store.keys(what, job)
    member = () if verb == "DEL" else store.connection.ask(("ZRANGE", store.keys("order", "job"), 0, 0))[0]
    if what == "work":
        member = ["1"]
    store.connection.ask((verb, key, *member))
    (problem, *_) = store.upkeep().problems(deep=True)
    assert sentence in problem


# --- processes and places -------------------------------------------------------------------------------------------


def _claims_in_a_child(store: RedisStore, answers: multiprocessing.Queue[object]) -> None:
    ledger = OpenLedger(store, folder=None)
    answers.put([type(ledger.claim(ask(day))).__name__ for day in (1, 2)])


def test_after_a_fork_the_child_has_a_connection_of_its_own(store, ledger):
    claim(ledger)
    wire = store.connection._wire
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    child = fork.Process(target=_claims_in_a_child, args=(store, answers))
    child.start()
    assert answers.get(timeout=20) == ["Refusal", "Refusal"]  # the parent's claim is live
    child.join(20)
    assert child.exitcode == 0
    assert store.connection._wire is wire
    assert store.read(ask().key, START).run.status == "running"


def test_an_interrupted_question_leaves_no_answer_for_the_next(store, ledger, monkeypatch):
    claim(ledger)
    wire = store.connection._wire
    monkeypatch.setattr(type(wire), "_answer", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.jobs()
    monkeypatch.undo()
    assert [job.name for job in store.jobs()] == ["job"]
    assert store.connection._wire is not wire


def test_a_site_is_made_once_and_found_again(url, store):
    site = site_of(url, wait_seconds=20)
    assert site.stands()
    assert site.upgrade(None) is False
    assert site.upgrade(LEDGER) is False
    with pytest.raises(NotThisLedger, match="is expected there"):
        site.upgrade("d" * 32)
    with pytest.raises(NotThisLedger, match="holds something already"):
        site.create("d" * 32)
    assert open_store(url, wait_seconds=20).identity().ledger == LEDGER


def test_only_one_of_many_that_make_it_at_once_has_made_it(valkey):
    with valkey.place() as url:
        made: list[str] = []
        barrier = threading.Barrier(8)

        def make(name: str) -> None:
            site = site_of(url, wait_seconds=20)
            barrier.wait()
            try:
                site.create(name)
                made.append(name)
            except NotThisLedger:
                pass

        threads = [threading.Thread(target=make, args=(f"{number:032x}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        (ledger,) = made
        assert open_store(url, wait_seconds=20).identity().ledger == ledger


def test_what_is_left_of_a_lost_ledger_is_not_made_new(url, store, ledger):
    claim(ledger)
    store.connection.ask(("DEL", store.keys("ledger")))
    assert site_of(url, wait_seconds=20).stands()
    with pytest.raises(NotThisLedger, match="there is no ledger"):
        open_store(url, wait_seconds=20)
    with pytest.raises(NotThisLedger, match="holds something already"):
        site_of(url, wait_seconds=20).create(LEDGER)


def test_a_format_of_another_version_is_not_touched(url, store):
    store.connection.ask(("HSET", store.keys("ledger"), "format", 2))
    with pytest.raises(NotThisLedger, match="has format 2; this ranonce knows format 1"):
        open_store(url, wait_seconds=20)


def test_only_a_scratch_ledger_is_destroyed_and_nothing_else_goes_with_it(valkey, url, store, ledger):
    claim(ledger)
    site = site_of(url, wait_seconds=20)
    with pytest.raises(UsageError, match="no scratch ledger"):
        site.destroy()
    name = f"n{os.urandom(4).hex()}"
    there = site.scratch(name)
    assert there == in_namespace(url, f"scratch_{name}")
    scratch = site_of(there, wait_seconds=20)
    assert isinstance(scratch, RedisSite)
    scratch.create("e" * 32)
    neighbour = site_of(site.scratch(f"{name}2"), wait_seconds=20)
    neighbour.create("f" * 32)
    for number in range(30):
        ledger_over(open_store(there, wait_seconds=20), f"job-{number}")
    before = all_of(store)
    scratch.destroy()
    assert not scratch.stands()
    assert scratch._connection.ask(("KEYS", f"{scratch.keys.prefix}*")) == [[]]
    assert neighbour.stands()
    assert all_of(store) == before
    neighbour.destroy()


def test_a_plan_names_every_key_it_touches(store, ledger):
    held = claim(ledger)
    snap = store.read(held.key, START)
    decision = lifecycle.finish(snap, held, verdict("stopped", gates=(lifecycle.Gate("g", 1.0, "429", "job", 0.0),)))
    plan = decided(store.keys, decision, held.key, snap.version)
    watched = store.keys.prefix
    assert all(key.startswith(watched) for key in plan.keys)
    before = all_of(store)
    assert store.write(plan) is not None
    after = all_of(store)
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert changed <= {key.encode() for key in plan.keys}


def test_events_that_share_a_window_but_not_a_job_are_told_apart(store):
    for name in ("job", "job-2", "jo"):
        ledger = ledger_over(store, name)
        ledger.finish(claim(ledger, job=name), verdict())
    assert [event.key.job for event in store.events("jo", 0, 1 << 60)] == ["jo", "jo"]
    assert [run.key.job for run in store.upkeep().all_runs()] == ["jo", "job", "job-2"]


def test_an_event_is_a_value_of_its_own(store, ledger):
    claim(ledger)
    event = store.event(1)
    assert isinstance(event, Event)
    assert store.event(2) is None
