"""Deliverers whose server goes away in the middle of it, or whose line to it is cut: nothing is lost or sent twice."""

from __future__ import annotations

import signal

import pytest

from ranonce.delivery.orders import Orders
from ranonce.delivery.worker import Worker
from ranonce.errors import StoreUnavailable
from ranonce.messages import DELIVERED, NOT_BEGUN, Answer, Route
from ranonce.stores import open_store
from tests.acceptance.test_server_faults import ENDS, kept, kind, own, through, world
from tests.delivery.outboxes import fill, messages, received, shell, states
from tests.proxies import ANSWERED, SENT, Cut, Proxy
from tests.world import wait_until

__all__ = ["kept", "kind", "own", "world"]  # fixtures

ROUTE = Route("web")
CUTS = 14
HOLD = 'cat > /dev/null; echo "$RANONCE_MESSAGE_KEY" >> "$PIDS/begun"; while test -e "$PIDS/hold"; do sleep 0.02; done'


class Counts:
    """A sender that takes everything, and a listener that hears nothing."""

    def __init__(self) -> None:
        self.came: list[str] = []

    def send(self, taken, may_begin):
        for message in taken:
            if may_begin(message):
                self.came.append(message.key)
                yield message, Answer(DELIVERED, "thanks")
            else:
                yield message, Answer(NOT_BEGUN)

    def close(self):
        pass

    settled = trouble = lambda self, *_: None


def test_a_server_that_is_killed_while_a_message_is_on_its_way_learns_of_it_when_it_is_back(world, own, kind):
    shell(world, HOLD)
    (world.pids / "hold").touch()
    with world.opened() as store:
        fill(store, ["a", "b"])
    watcher = world.start("deliver", "--watch", "--poll", "0.1s")
    wait_until(lambda: len(received(world.pids / "begun")) == 2)
    own.stop(ENDS[kind][-1])
    world.let_go()
    own.start()
    with world.opened() as store:
        wait_until(lambda: states(store) == {"sent": 2}, 40)
    watcher.signal(signal.SIGTERM)
    ran = watcher.ends()
    assert (ran.exit, "Traceback" in ran.err) == (-signal.SIGTERM, False)
    assert len(received(world.pids / "begun")) == 2


@pytest.mark.parametrize("direction", [SENT, ANSWERED])
def test_a_line_that_is_cut_anywhere_makes_no_message_go_out_twice(world, own, direction):
    """Whichever exchange is broken, before or after the server has heard it."""
    with world.opened() as store:
        fill(store, ["whole"])
    with Proxy(own.port) as proxy:
        opened = open_store(through(world, own, proxy), wait_seconds=5)
        begin = proxy.passed[direction]
        Worker(ROUTE, opened, Counts, Orders(outage=10), Counts()).run()
        opened.close()
        end = proxy.passed[direction]
    counts = Counts()
    for number in range(CUTS):
        with world.opened() as store:
            fill(store, [f"k{number}"], day=number + 1)
        with Proxy(own.port, Cut(begin + (end - begin) * number // CUTS, direction)) as proxy:
            opened = open_store(through(world, own, proxy), wait_seconds=5)
            try:
                Worker(ROUTE, opened, lambda: counts, Orders(outage=10), counts).run()
            except StoreUnavailable:
                assert not any(key.endswith(f"/k{number}") for key in counts.came)  # nothing was on its way
            finally:
                opened.close()
        with world.opened() as store:
            Worker(ROUTE, store, lambda: counts, Orders(), counts).run()  # what could not be taken through the line
    with world.opened() as store:
        told = {message.key: message.state for message in messages(store) if not message.key.endswith("/whole")}
    assert len(counts.came) == len(set(counts.came))
    assert set(told.values()) == {"sent"}  # what a lost take had taken was given back, not left in doubt
    assert told.keys() == set(counts.came)
