"""The rules of a run, one fact each; then long random stories against the promises of the design."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ranonce import lifecycle as rules
from ranonce.lifecycle import Ask, Claim, Gate, Policy, Refusal, RunKey, ScheduleVersion, Sighting, Verdict
from ranonce.stores.base import Job, LostReply
from ranonce.stores.memory.store import MemoryStore
from ranonce.windows import Window

DAY = 86400
MONDAY = 1_762_732_800  # 2025-11-10T00:00Z
LEASE = 300.0


class World:
    """A memory ledger whose clocks move only when told to."""

    def __init__(self) -> None:
        self.boot = 1000.0
        self.wall = float(MONDAY)
        self.store = MemoryStore(now=lambda: self.boot, wall=lambda: self.wall)
        schedule = ScheduleVersion(1, "day", "UTC", "debian", 0, None, self.wall)
        self.store.record_schedule(Job("job", 0, self.wall, 3600.0, 3), schedule, -1)
        self.asked = 0

    def window(self, day: int = 0) -> Window:
        return Window(f"day-{day}", MONDAY + day * DAY, MONDAY + (day + 1) * DAY)

    def ask(self, day: int = 0, **changes: object) -> Ask:
        self.asked += 1
        window = self.window(day)
        ask = Ask(
            key=RunKey("job", window.key),
            window=window,
            schedule=1,
            owner=f"owner-{self.asked}",
            lease_seconds=LEASE,
            now=self.wall + day * DAY,
            served_from=window.start,
            trigger="schedule",
        )
        return ask.replace(**changes)

    def claim(self, ask: Ask, sightings: dict[str, Sighting] | None = None) -> Claim | Refusal:
        snap = self.store.read(ask.key, ask.window.start)
        decision = rules.claim(snap, ask, sightings or {})
        if decision.writes:
            assert self.store.commit(decision, ask.key, snap.version) is not None
        return decision.refusal or rules.claim_of(decision, snap, ask)

    def won(self, day: int = 0, **changes: object) -> Claim:
        answer = self.claim(self.ask(day, **changes))
        assert isinstance(answer, Claim), answer
        return answer

    def refused(self, day: int = 0, sightings: dict[str, Sighting] | None = None, **changes: object) -> Refusal:
        answer = self.claim(self.ask(day, **changes), sightings)
        assert isinstance(answer, Refusal), answer
        return answer

    def finish(self, held: Claim, outcome: str = "done", **more: object) -> Refusal | None:
        snap = self.store.read(held.key, held.window.start)
        decision = rules.finish(snap, held, Verdict(outcome, self.wall, **more))
        if decision.writes:
            assert self.store.commit(decision, held.key, snap.version) is not None
        return decision.refusal

    def renew(self, held: Claim) -> Refusal | None:
        snap = self.store.read(held.key, held.window.start)
        decision = rules.renew(snap, held)
        if decision.writes:
            assert self.store.commit(decision, held.key, snap.version) is not None
        return decision.refusal

    def release(self, held: Claim, as_: str) -> Refusal | None:
        snap = self.store.read(held.key, held.window.start)
        decision = rules.release(snap, as_, "looked")
        if decision.writes:
            assert self.store.commit(decision, held.key, snap.version) is not None
        return decision.refusal

    def story(self, day: int = 0) -> list[str]:
        key = RunKey("job", f"day-{day}")
        return [event.event for event in self.store.events("job", 0, 2**40) if event.key == key]

    def run(self, day: int = 0) -> rules.Run:
        found = self.store.read(RunKey("job", f"day-{day}"), self.window(day).start).run
        assert found is not None
        return found

    def lease_over(self) -> None:
        self.boot += LEASE + 1
        self.wall += LEASE + 1


@pytest.fixture
def world() -> World:
    return World()


def test_every_situation_answers_everything_that_can_be_asked():
    asks = {rules.CLAIM, rules.RENEW, rules.FINISH, rules.RERUN, rules.RELEASE}
    situations = {"none", "mine", "busy", "lapsed", "zombie", "failed", "stopped", "held", "done"}
    assert set(rules.TABLE) == situations
    assert all(set(row) == asks for row in rules.TABLE.values())


def test_the_first_claim_wins_and_the_second_is_told_who_holds_it(world):
    first = world.won()
    second = world.refused()
    assert (first.attempt, first.generation) == (1, 1)
    assert (second.reason, second.holder) == ("busy", first.owner)
    assert second.until == world.wall + LEASE


def test_the_same_owner_asking_again_has_the_same_claim(world):
    ask = world.ask()
    assert world.claim(ask) == world.claim(ask)
    assert world.story() == ["start"]


def test_done_is_final_for_its_generation(world):
    held = world.won()
    assert world.finish(held) is None
    assert world.refused().reason == "done"
    assert world.finish(held, "failed").reason == "lost"
    assert world.run().status == "done"


def test_a_lost_reply_to_finish_is_found_not_repeated(world):
    held = world.won()
    assert world.finish(held) is None
    assert world.finish(held) is None
    assert world.story() == ["start", "done"]


def test_a_crashed_attempt_is_taken_over_when_its_lease_ends(world):
    world.won()
    world.lease_over()
    again = world.won()
    assert again.attempt == 2
    assert world.story() == ["start", "expired", "start"]


def test_a_dead_process_is_taken_over_at_once(world):
    first = world.won()
    ask = world.ask()
    again = world.claim(ask, {first.owner: Sighting("dead")})
    assert isinstance(again, Claim)
    assert again.attempt == 2


def test_a_living_orphan_blocks_even_after_the_lease_and_is_named(world):
    first = world.won()
    world.lease_over()
    refusal = world.refused(sightings={first.owner: Sighting("alive", 4711, "sleep")})
    assert (refusal.reason, refusal.pid) == ("busy", 4711)
    assert "4711" in refusal.sentence


def test_a_held_lock_alone_blocks_only_until_the_lease_ends(world):
    first = world.won()
    locked = {first.owner: Sighting("locked")}
    assert world.refused(sightings=locked).reason == "busy"
    world.lease_over()
    assert isinstance(world.claim(world.ask(), locked), Claim)


def test_a_stale_attempt_changes_nothing_and_is_seen(world):
    slow = world.won()
    world.lease_over()
    second = world.won()
    assert world.finish(slow).reason == "lost"
    assert world.renew(slow).reason == "lost"
    assert world.finish(second) is None
    assert world.finish(slow, "failed").reason == "lost"
    assert world.run().status == "done"
    assert world.run().attempt == 2
    assert world.story().count("lost") == 2


def test_an_owner_whose_lease_ran_out_unnoticed_may_renew(world):
    held = world.won()
    world.lease_over()
    assert world.renew(held) is None
    assert world.refused().reason == "busy"
    assert "noted" in world.story()
    assert world.finish(held) is None


def test_a_late_renewal_checks_its_rivals_again(world):
    held = world.won(0)
    world.lease_over()
    world.won(1)
    assert world.renew(held).reason == "lost"


def test_an_outcome_after_the_lease_is_accepted_and_marked_late(world):
    held = world.won()
    world.lease_over()
    assert world.finish(held) is None
    assert world.run().late


def test_attempts_end_after_max_attempts(world):
    for number in (1, 2, 3):
        held = world.won()
        assert held.attempt == number
        world.finish(held, "failed", exit=1)
    assert world.refused().reason == "exhausted"


def test_crashes_count_as_attempts(world):
    for _ in range(3):
        world.won()
        world.lease_over()
    assert world.refused().reason == "exhausted"
    assert world.run().status == "failed"
    assert world.story()[-3:] == ["expired", "failed", "skipped"]


def test_a_failed_run_waits_for_its_delay(world):
    patient = Policy(retry_delay=600.0)
    world.finish(world.won(policy=patient), "failed")
    refusal = world.refused(policy=patient)
    assert (refusal.reason, refusal.until) == ("waiting", world.wall + 600)
    world.wall += 601
    world.won(policy=patient)


def test_a_stopped_run_costs_no_attempt_and_resumes_at_its_time(world):
    for _ in range(5):
        world.finish(world.won(), "stopped", reason="429", resume_at=world.wall + 100)
        assert world.refused().reason == "waiting"
        world.wall += 101
    assert world.run().failures == 0
    assert world.won().attempt == 6


def test_hold_waits_for_a_person(world):
    careful = Policy(on_crash="hold")
    held = world.won(policy=careful)
    world.lease_over()
    assert world.refused(policy=careful).reason == "held"
    assert world.refused(policy=careful).reason == "held"
    assert world.release(held, "not-done") is None
    assert world.won(policy=careful).attempt == 2


def test_released_as_done_is_done(world):
    careful = Policy(on_crash="hold")
    held = world.won(policy=careful)
    world.lease_over()
    world.refused(policy=careful)
    assert world.release(held, "done") is None
    assert world.refused().reason == "done"


def test_the_owner_of_a_held_run_may_still_say_what_became_of_it(world):
    careful = Policy(on_crash="hold")
    held = world.won(policy=careful)
    world.lease_over()
    world.refused(policy=careful)
    assert world.finish(held) is None
    assert (world.run().status, world.run().late) == ("done", True)


def test_an_exhausted_run_released_as_not_done_has_one_more_attempt(world):
    for _ in range(3):
        held = world.won()
        world.finish(held, "failed")
    assert world.release(held, "not-done") is None
    world.finish(world.won(), "failed")
    assert world.refused().reason == "exhausted"


def test_a_release_allows_one_more_attempt_whatever_the_limit_is_by_then(world):
    for _ in range(3):
        held = world.won()
        world.finish(held, "failed")
    assert world.release(held, "not-done") is None
    strict = Policy(max_attempts=1)
    world.finish(world.won(policy=strict), "failed")
    assert world.refused(policy=strict).reason == "exhausted"


def test_a_record_of_a_clock_that_was_ahead_does_not_block_the_present(world):
    world.wall += 4 * 365 * DAY
    held = world.won()
    gate = Gate("model-api", world.wall + 60, "429", "job", world.wall)
    world.finish(held, "stopped", reason="429", resume_at=world.wall + 60, gates=(gate,))
    world.wall -= 4 * 365 * DAY
    world.won(policy=Policy(uses=("model-api",)))


def test_a_failure_of_a_clock_that_was_ahead_is_not_waited_for(world):
    patient = Policy(retry_delay=60.0)
    world.wall += 4 * 365 * DAY
    world.finish(world.won(policy=patient), "failed")
    world.wall -= 4 * 365 * DAY
    world.won(policy=patient)


def test_a_schedule_recorded_under_a_clock_that_was_ahead_does_not_count_yet():
    first = ScheduleVersion(1, "hour", "UTC", "debian", 0, None, 0.0)
    ahead = ScheduleVersion(2, "day", "UTC", "debian", 0, MONDAY + 4 * 365 * DAY, MONDAY + 4 * 365 * DAY)
    mended = ScheduleVersion(3, "day", "UTC", "debian", 0, MONDAY, float(MONDAY))
    assert rules.present_schedules((first, ahead), MONDAY) == (first,)
    assert rules.present_schedules((first, ahead, mended), MONDAY) == (first, mended)
    assert rules.present_schedules((first, ahead, mended), MONDAY + 5 * 365 * DAY) == (first, mended)


def test_watchers_that_each_have_a_clock_of_their_own_wait_one_lease_all_the_same(world):
    world.won()
    for number in range(3):
        world.store.domain = f"sandbox-{number}"
        world.boot = 1e6 * (number + 1)
        assert world.refused().reason == "busy"
        world.wall += LEASE / 2 - 1
    world.store.domain = "sandbox-last"
    assert world.won().attempt == 2


def test_a_short_lapse_is_not_worth_an_event(world):
    held = world.won()
    world.boot += LEASE + 0.5
    assert world.renew(held) is None
    assert world.story() == ["start"]


def test_a_release_says_who_gave_it(world):
    careful = Policy(on_crash="hold")
    held = world.won(policy=careful)
    world.lease_over()
    world.refused(policy=careful)
    snap = world.store.read(held.key, held.window.start)
    released = rules.release(snap, "done", "looked", by="anna@host").events[-1]
    assert (released.event, released.reason, dict(released.data)) == (
        "released",
        "looked",
        {"as": "done", "by": "anna@host"},
    )


def test_reconcile_looks_under_the_next_attempt(world):
    curious = Policy(on_crash="reconcile", max_attempts=1)
    world.won(policy=curious)
    world.lease_over()
    looking = world.won(policy=curious)
    assert looking.reconciling
    assert looking.attempt == 2
    snap = world.store.read(looking.key, looking.window.start)
    decision = rules.reconciled(snap, looking, max_attempts=1)
    assert decision.refusal is not None
    assert decision.refusal.reason == "exhausted"
    assert decision.run is not None
    assert decision.run.failures == 1


def test_a_rerun_is_the_next_generation_and_the_next_attempt(world):
    world.finish(world.won())
    again = world.won(rerun_reason="wrong data")
    assert (again.generation, again.attempt) == (2, 2)
    assert world.story() == ["start", "done", "rerun", "start"]
    assert world.refused(rerun_reason="me too").reason == "busy"


def test_a_rerun_needs_a_run(world):
    assert world.refused(rerun_reason="why not").reason == "unknown"


def test_windows_of_one_job_do_not_overlap_unless_allowed(world):
    first = world.won(0)
    refusal = world.refused(1)
    assert (refusal.reason, refusal.holder) == ("overlap", first.owner)
    assert isinstance(world.claim(world.ask(1, policy=Policy(overlap="allow"))), Claim)


def test_a_dead_rival_does_not_stand_in_the_way(world):
    first = world.won(0)
    assert isinstance(world.claim(world.ask(1), {first.owner: Sighting("dead")}), Claim)


def test_another_input_for_a_done_window_is_a_conflict(world):
    world.finish(world.won(fingerprint="aa"))
    assert world.refused(fingerprint="bb").reason == "conflict"
    assert world.refused(fingerprint="aa").reason == "done"


def test_a_window_not_yet_done_records_its_new_input(world):
    world.finish(world.won(fingerprint="aa"), "failed")
    world.won(fingerprint="bb")
    assert world.run().fingerprint == "bb"


def test_a_window_that_has_not_begun_is_early_unless_nearly(world):
    assert world.refused(1, now=world.window(1).start - 6.0).reason == "early"
    assert isinstance(world.claim(world.ask(1, now=world.window(1).start - 5.0)), Claim)


def test_only_a_schedule_can_be_too_late(world):
    late = Policy(max_late=60.0)
    assert world.refused(policy=late, now=world.window().start + 61.0).reason == "late"
    world.won(policy=late, now=world.window().start + 61.0, trigger="manual")


def test_a_closed_gate_refuses_everyone_who_uses_it(world):
    held = world.won()
    gate = Gate("model-api", world.wall + 600, "429", "job", world.wall)
    world.finish(held, "stopped", reason="429", gates=(gate,))
    refusal = world.refused(1, policy=Policy(uses=("model-api",)))
    assert (refusal.reason, refusal.until) == ("gate", gate.until)
    world.wall += 601
    world.won(1, policy=Policy(uses=("model-api",)))


def test_a_window_of_an_older_schedule_is_superseded(world):
    newer = ScheduleVersion(2, "hour", "UTC", "debian", 0, MONDAY + DAY, world.wall)
    job = world.store.job("job")
    world.store.record_schedule(job, newer, job.version)
    assert world.refused(1, schedule=1).reason == "superseded"
    assert world.refused(0, schedule=2).reason == "superseded"


def test_a_lease_of_another_boot_waits_one_full_lease_from_first_sight(world):
    world.won()
    world.store.domain = "after-reboot"
    world.boot = 5.0
    assert world.refused().reason == "busy"
    world.boot += LEASE - 1
    assert world.refused().reason == "busy"
    world.boot += 2
    assert world.won().attempt == 2


def test_a_rival_of_another_boot_blocks_for_one_full_lease_not_for_ever(world):
    world.won(0)
    world.store.domain = "after-reboot"
    world.boot = 5.0
    assert world.refused(1).reason == "overlap"
    world.boot += LEASE - 1
    assert world.refused(1, record_skip=False).reason == "overlap"
    world.boot += 2
    world.won(1)


def test_an_owner_whose_clock_cannot_read_its_lease_is_told_of_the_rival_that_came(world):
    """Found by a story: two reboots, and a real clock that goes on and comes back."""
    held = world.won(1)
    world.store.domain = "after-reboot"
    assert world.refused(0).reason == "overlap"
    world.store.domain = "after-another"
    world.wall += LEASE
    world.won(0)
    world.wall -= 1
    assert world.renew(held).reason == "lost"


def test_an_expiry_absurdly_far_ahead_blocks_for_one_lease(world):
    held = world.won()
    key, start = held.key, held.window.start
    lease = world.store.read(key, start).lease
    world.store._leases[key, start] = lease.replace(expires=world.boot + 10 * 365 * DAY)
    assert world.refused().reason == "busy"
    world.boot += LEASE + 1
    assert world.won().attempt == 2


def test_moving_the_wall_clock_neither_robs_nor_blocks(world):
    world.won()
    world.wall += 20 * 60
    assert world.refused().reason == "busy"
    world.wall -= 10 * 365 * DAY
    assert world.refused(now=float(MONDAY)).reason == "busy"
    world.boot += LEASE + 1
    assert world.won(now=float(MONDAY)).attempt == 2


class Stories(RuleBasedStateMachine):
    """Commands in any order, clocks that jump, replies that are lost, leases that end: the promises hold."""

    OUTCOMES = st.sampled_from(["done", "failed", "stopped"])
    DAYS = st.integers(0, 2)

    @initialize(policy=st.sampled_from(["retry", "hold"]), overlap=st.sampled_from(["forbid", "allow"]))
    def begin(self, policy: str, overlap: str) -> None:
        self.world = World()
        self.policy = Policy(on_crash=policy, overlap=overlap)
        self.claims: list[Claim] = []
        self.attempts: dict[RunKey, int] = {}
        self.finished: dict[tuple[RunKey, int], int] = {}

    def _decide(self, key, start, decide, *, lose_reply: bool):
        """The loop of the ledger, with a reply that may be lost after the commit has happened."""
        for turn in range(5):
            snap = self.world.store.read(key, start)
            decision = decide(snap)
            if not decision.writes:
                return snap, decision
            try:
                written = self.world.store.commit(decision, key, snap.version)
                if turn == 0 and lose_reply:
                    raise LostReply("the connection broke")
            except LostReply:
                continue
            assert written is not None
            return snap, decision
        raise AssertionError("no end")

    @rule(day=DAYS, lose_reply=st.booleans(), rerun=st.booleans())
    def claim(self, day: int, lose_reply: bool, rerun: bool) -> None:
        ask = self.world.ask(day, policy=self.policy, rerun_reason="again" if rerun else None)
        before = self.world.store.read(ask.key, ask.window.start)
        snap, decision = self._decide(
            ask.key, ask.window.start, lambda snap: rules.claim(snap, ask), lose_reply=lose_reply
        )
        if decision.refusal:
            return
        held = rules.claim_of(decision, snap, ask)
        assert held.owner == ask.owner
        assert held.attempt == self.attempts.get(ask.key, 0) + 1, "attempts rise by exactly one"
        self.attempts[ask.key] = held.attempt
        if before.run is not None and before.run.status == "done":
            assert rerun, "done is final for its generation"
        self.claims.append(held)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), outcome=OUTCOMES, lose_reply=st.booleans())
    def finish(self, data, outcome: str, lose_reply: bool) -> None:
        held = data.draw(st.sampled_from(self.claims))
        before = self.world.store.read(held.key, held.window.start).run
        verdict = Verdict(outcome, self.world.wall)
        _, decision = self._decide(
            held.key, held.window.start, lambda snap: rules.finish(snap, held, verdict), lose_reply=lose_reply
        )
        after = self.world.store.read(held.key, held.window.start).run
        if (before.owner, before.attempt) != (held.owner, held.attempt):
            assert decision.refusal is not None
            assert after == before, "a stale attempt writes nothing"
        if decision.refusal is None and outcome == "done" and before.status != "done":
            generation = (held.key, held.generation)
            self.finished[generation] = self.finished.get(generation, 0) + 1

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), lose_reply=st.booleans())
    def renew(self, data, lose_reply: bool) -> None:
        held = data.draw(st.sampled_from(self.claims))
        _, decision = self._decide(
            held.key,
            held.window.start,
            lambda snap: rules.renew(snap, held, self.policy.overlap),
            lose_reply=lose_reply,
        )
        if decision.refusal is None:
            run = self.world.store.read(held.key, held.window.start).run
            assert (run.owner, run.attempt, run.status) == (held.owner, held.attempt, "running")

    @rule(seconds=st.floats(0, 2 * LEASE))
    def time_passes(self, seconds: float) -> None:
        self.world.boot += seconds
        self.world.wall += seconds

    @rule(seconds=st.floats(-1e6, 1e6))
    def the_wall_clock_jumps(self, seconds: float) -> None:
        self.world.wall += seconds

    @rule()
    def the_host_restarts(self) -> None:
        self.world.store.domain += "+"
        self.world.boot = 1.0

    @invariant()
    def live_claims_are_single(self) -> None:
        if not hasattr(self, "world"):
            return
        store = self.world.store
        clock = store.clock()
        live = [
            held for held in store.leases("job") if held.lease.domain == clock.domain and clock.now < held.lease.expires
        ]
        runs = {held.key for held in live}
        assert len(runs) == len(live)
        if self.policy.overlap == "forbid":
            assert len(live) <= 1

    @invariant()
    def each_generation_is_done_once(self) -> None:
        if hasattr(self, "world"):
            assert all(count == 1 for count in self.finished.values())

    @invariant()
    def the_events_tell_the_state(self) -> None:
        if not hasattr(self, "world"):
            return
        for key, attempt in self.attempts.items():
            events = [e for e in self.world.store.events("job", 0, 2**40) if e.key == key]
            starts = [e.attempt for e in events if e.event == "start"]
            assert starts == list(range(1, attempt + 1))
            run = next(r for r in self.world.store.runs("job", 0, 2**40) if r.key == key)
            told = [e for e in events if e.event in ("start", "done", "failed", "stopped", "held")]
            assert run.status == ("running" if told[-1].event == "start" else told[-1].event)


TestStories = Stories.TestCase
TestStories.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
