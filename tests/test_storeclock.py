"""A server's clock as its clients tell it, and a ledger that goes by it; on clocks that move only when told to."""

from __future__ import annotations

import pytest

from ranonce import storeclock
from ranonce.config import Config, LedgerSpec
from ranonce.invocation import Asked, Invocation
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, Verdict
from ranonce.liveness import boot_clock
from ranonce.storeclock import StoreClock
from ranonce.stores.memory.store import MemoryStore
from ranonce.windows import Schedule
from tests.contract.acting import DAILY, START, ask, claim, ledger_over

HOUR = 3600.0


class Clocks:
    """The clocks of a host, and a server's."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.boot = 1000.0
        self.there = float(START)
        self.here = self.there + ahead
        self.clock = StoreClock(wall=lambda: self.here, boot=lambda: self.boot)

    def pass_time(self, seconds: float) -> None:
        self.boot += seconds
        self.here += seconds
        self.there += seconds

    def look(self, took: float = 0.0) -> None:
        asked_at = self.boot
        told = self.there
        self.pass_time(took)
        self.clock.seen(told, asked_at)


@pytest.mark.parametrize("ahead", [0.0, 0.9, -0.9])
def test_as_long_as_both_agree_the_hosts_own_clock_is_used(ahead):
    clocks = Clocks(ahead)
    clocks.look()
    clocks.pass_time(86400)
    assert clocks.clock.ahead() == 0
    assert clocks.clock.now() == clocks.here


@pytest.mark.parametrize("ahead", [3 * HOUR, -3 * HOUR, 2.0])
def test_where_they_differ_the_servers_clock_counts_and_goes_on(ahead):
    clocks = Clocks(ahead)
    clocks.look()
    clocks.pass_time(86400)
    assert clocks.clock.ahead() == pytest.approx(ahead)
    assert clocks.clock.now() == pytest.approx(clocks.there)


def test_a_clock_that_is_set_between_two_looks_moves_nothing():
    clocks = Clocks()
    clocks.look()
    clocks.here += 3 * HOUR
    clocks.pass_time(60)
    assert clocks.clock.now() == pytest.approx(clocks.there)
    clocks.here -= 3 * HOUR
    assert (clocks.clock.ahead(), clocks.clock.now()) == (0, clocks.here)


def test_a_slow_answer_is_not_taken_for_a_wrong_clock():
    clocks = Clocks()
    clocks.look(took=20)
    assert clocks.clock.ahead() == 0


def test_before_the_first_look_nothing_is_known():
    clocks = Clocks()
    assert not clocks.clock.known
    assert clocks.clock.ahead() == 0


# --- a ledger on a server -------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    """A store with a clock of its own, which reads noon of the first day; the host's is three hours ahead."""
    began = boot_clock()
    there = float(START + 12 * HOUR)
    monkeypatch.setattr(storeclock.time, "time", lambda: there + 3 * HOUR + boot_clock() - began)
    return MemoryStore(wall=lambda: there + boot_clock() - began)


def present(store):
    return pytest.approx(store.clock().wall, abs=1)


def over(store):
    """Open a ledger whose clock is compared with the host's as it is now."""
    ledger = ledger_over(store)
    ledger._clock = StoreClock(wall=storeclock.time.time)
    return ledger


def test_the_present_of_a_ledger_is_its_stores(server):
    ledger = over(server)
    assert ledger.now() == present(server)
    ledger.warn_of_the_clock()
    ledger.warn_of_the_clock()
    assert ledger.warnings == ["this host's clock is 3h ahead of the store's, which counts"]
    assert ledger.reopen(wait_seconds=1).now() == present(server)


def test_a_call_that_names_no_instant_is_about_the_window_that_is_now_in_the_store(server):
    ledger = over(server)
    config = Config(path=None, ledger=LedgerSpec(store="memory:"), jobs={}, destinations={})
    invocation = Invocation("job", Asked(settings={"command": ("true",)}), {}, config, ledger)
    assert invocation.now == present(server)
    assert invocation.orders(invocation.declared())[0].window == DAILY.window_at(START)
    assert ledger.warnings == ["this host's clock is 3h ahead of the store's, which counts"]
    named = Invocation("job", Asked(now=START - HOUR, settings={"command": ("true",)}), {}, config, ledger)
    assert named.now == START - HOUR


def test_a_schedule_is_recorded_by_the_stores_clock_and_counts_at_once(server):
    ledger = over(server)
    job = server.job("job")
    declared, changed = ledger.declare(job, Schedule("hour"), 0, now=ledger.now(), change=True)
    assert changed
    assert declared.version.recorded_at == present(server)
    assert declared.schedule == Schedule("hour")


def test_a_verdict_is_dated_between_its_start_and_now_whatever_a_host_says(server):
    ledger = over(server)
    for day, at in enumerate((-3 * HOUR, 3 * HOUR, 365 * 86400.0)):
        held = claim(ledger, day, now=START + day * 86400.0)
        assert ledger.finish(held, Verdict("done", server.clock().wall + at)) is None
        run = server.runs("job", held.window.start, held.window.start + 1)[0]
        assert run.finished_at == present(server)
        assert run.started_at <= run.finished_at


def test_what_was_lost_is_dated_between_its_start_and_now_as_well(server):
    ledger = over(server)
    held = claim(ledger)
    assert ledger.finish(held, Verdict("done", server.clock().wall)) is None
    assert ledger.finish(held, Verdict("failed", server.clock().wall + 3 * HOUR)).reason == "lost"
    lost = server.newest_events(1)[0]
    assert (lost.event, lost.at) == ("lost", present(server))


def test_a_claim_is_a_look_at_the_clock(server):
    ledger_over(server)
    ledger = OpenLedger(server, folder=None)
    assert isinstance(ledger.claim(ask()), Claim)
    server.clock = None  # nobody looks once more
    assert ledger.now() > 0
