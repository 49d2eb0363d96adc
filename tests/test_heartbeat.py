"""Beats, losses and fences, on a clock that moves only when told to."""

from __future__ import annotations

import threading

import pytest

from ranonce.errors import StoreUnavailable
from ranonce.heartbeat import Heartbeat, beat_interval, stop_margin
from ranonce.lifecycle import Refusal
from ranonce.receipts import Receipt


class Told:
    """Collects what the heartbeat tells the supervisor."""

    def __init__(self) -> None:
        self.why: list[str] = []
        self.end_by: float | None = None
        self.event = threading.Event()

    def __call__(self, why: str, end_by: float | None) -> None:
        self.why.append(why)
        self.end_by = end_by
        self.event.set()


def heartbeat(renew, told, *, lease=0.5, fence=True, clock=None, grace=10.0) -> Heartbeat:
    clock = clock or __import__("time").monotonic
    return Heartbeat(
        renew, told, lease_seconds=lease, grace_seconds=grace, fence=fence, claimed_at=clock(), clock=clock
    )


@pytest.mark.parametrize(("lease", "interval"), [(300.0, 30.0), (150.0, 30.0), (100.0, 20.0), (1.0, 0.2)])
def test_it_beats_five_times_a_lease_and_at_least_every_half_minute(lease, interval):
    assert beat_interval(lease) == pytest.approx(interval)


@pytest.mark.parametrize(("lease", "grace", "margin"), [(300, 10, 15), (30, 10, 15), (6, 10, 3), (0.6, 10, 0.3)])
def test_the_child_has_its_grace_before_the_lease_ends_and_a_short_lease_is_not_refused(lease, grace, margin):
    assert stop_margin(lease, grace) == pytest.approx(margin)
    assert margin < lease


def test_a_lost_claim_stops_the_child_once():
    told = Told()
    beat = heartbeat(lambda: Refusal("lost", "another took it"), told, lease=0.1)
    beat.start()
    assert told.event.wait(5)
    beat.end()
    assert told.why == ["lost"]
    assert beat.lost is not None


def test_renewals_that_succeed_keep_the_fence_away():
    told, beats = Told(), threading.Semaphore(0)

    def renew() -> None:
        beats.release()

    beat = heartbeat(renew, told, lease=0.4)
    beat.start()
    for _ in range(8):  # well past the lease
        assert beats.acquire(timeout=5)
    beat.end()
    assert told.why == []


def test_without_an_answer_the_child_is_stopped_before_the_lease_ends():
    told, now = Told(), [0.0]

    def renew() -> None:
        now[0] += 0.03  # each try takes its time
        raise StoreUnavailable("no answer")

    beat = heartbeat(renew, told, lease=0.3, clock=lambda: now[0])
    beat.start()
    assert told.event.wait(10)
    beat.end()
    assert told.why == ["fenced"]
    assert now[0] < told.end_by < 0.3


def test_one_that_wakes_long_after_its_lease_has_no_grace_left():
    told, now = Told(), [1000.0]
    beat = heartbeat(lambda: threading.Event().wait(1) and None, told, lease=300, clock=lambda: now[0])
    now[0] += 3600  # the machine was suspended
    beat.start()
    assert told.event.wait(10)
    beat.end()
    assert told.why == ["fenced"]
    assert told.end_by == 1000.0 + 300 - 5


def test_a_renewal_that_hangs_does_not_keep_the_fence_from_closing():
    told, hang = Told(), threading.Event()
    beat = heartbeat(lambda: hang.wait(20) and None, told, lease=0.3)
    beat.start()
    assert told.event.wait(10)
    hang.set()
    beat.end()
    assert told.why == ["fenced"]


def test_where_a_sign_proves_life_a_failed_renewal_stops_nothing():
    told, tries = Told(), threading.Semaphore(0)

    def renew() -> None:
        tries.release()
        raise StoreUnavailable("the disk is full")

    beat = heartbeat(renew, told, lease=0.2, fence=False)
    beat.start()
    for _ in range(10):
        assert tries.acquire(timeout=5)
    beat.end()
    assert told.why == []
    assert beat.last_error is not None


def test_what_fenced_means_is_said_where_it_is_told_to_a_person():
    assert Receipt("failed", "job", 76, reason="fenced").as_sentence() == (
        "job: failed: fenced: the ledger was out of reach, and the lease was running out"
    )
