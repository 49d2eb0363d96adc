"""Two hosts for real, on a store that both reach by an address: each with a network, a PID namespace and a state folder
of its own, and the same name. What happened when is told by the clock of the kernel they share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from ranonce.storeurl import server_of
from tests.clocks import clock_warnings, wrong_clock
from tests.conftest import SERVERS, wait_until
from tests.containers import ONE_TICK, TICKS, first_process, never_two_at_once, spans
from tests.delivery.outboxes import declare, fill, received, shell, states
from tests.networks import Host, Line, lines
from tests.servers import PostgresServer, Server, ValkeyServer, private_folder
from tests.world import World

#: A command that hears of no TERM, and has all the time in the world: only the end of its lease ends it.
DEAF = f"trap '' TERM; {TICKS}"
HOURS = 3 * 3600.0


@pytest.fixture(scope="module")
def wires() -> Iterator[list[Line]]:
    with lines(2) as laid:
        yield laid


@pytest.fixture(scope="module", params=SERVERS)
def server(request, tmp_path_factory, wires) -> Iterator[Server]:
    """A server that listens on both lines."""
    folder = private_folder(tmp_path_factory.mktemp("far") / request.param)
    listen = ["127.0.0.1", *(line.address for line in wires)]
    made: Server
    if request.param == "postgres":
        made = PostgresServer(folder, options=("-c", f"listen_addresses={','.join(listen)}"))
        with open(folder / "data" / "pg_hba.conf", "a") as rules:
            rules.write("host all all 10.0.0.0/8 trust\n")
    else:
        made = ValkeyServer(folder, options=("--bind", *listen, "--protected-mode", "no"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def world(server: Server, tmp_path) -> Iterator[World]:
    """A world with a ledger on that server, which the tests themselves ask over loopback."""
    with server.place() as url:
        made = World(tmp_path, url)
        made.init()
        yield made
        made.end()


@pytest.fixture
def hosts(world: World, wires: list[Line]) -> Iterator[list[Host]]:
    server = server_of(world.url)
    assert server is not None
    yield [Host(world, line, world.url.replace("127.0.0.1", line.address)) for line in wires]
    for line in wires:
        line.mend()


def taken_over(host: Host, *words: str, env: dict[str, str] | None = None):
    """Let triggers come to a host until one of them works; return that."""

    def comes():
        ran = host.start(*words, env=env).ends()
        assert ran.exit in (0, 75), ran.err
        return ran if ran.exit == 0 else None

    return wait_until(comes, 30)


def test_a_host_that_is_cut_off_ends_its_work_before_another_begins(world, hosts):
    """Although its command is deaf, with a grace of a minute; and the other host's clocks are wrong."""
    one, two = hosts
    lease = ("--lease", "3s")
    working = one.works(*lease, "--grace-kill", "1m", sh=DEAF)
    wrong = wrong_clock(world, HOURS)
    asked = two.start(*world.words(*lease), env=wrong).ends()
    assert asked.said() == (75, "skipped", "busy")
    assert "still works" not in asked.receipt["sentence"]  # nothing is known of a process 1 of another host
    one.line.cut()
    second = taken_over(two, *world.words(*lease, sh=ONE_TICK), env=wrong)
    assert second.said() == (0, "done", None)
    assert clock_warnings(second)
    assert list(spans(world)) == [1, 2]
    assert never_two_at_once(world)
    one.line.mend()
    lost = working.ends(60)
    assert lost.said() == (76, "lost", "lost")
    assert world.state() == ("done", 2)
    assert world.events()[-1] == ("lost", "failed", 1)
    assert [host for _, host in starts(world)] == ["box", "box"]


def starts(world: World) -> list[tuple[int, str]]:
    return [(fact.attempt, fact.host) for fact in world.facts() if fact.event == "start"]


def test_a_cut_that_is_shorter_than_the_lease_stops_nobody(world, hosts):
    one, two = hosts
    lease = ("--lease", "8s", "--grace-kill", "0.2s")
    working = one.works(*lease)
    one.line.cut()
    wait_until(lambda: world.left_of_the_lease() < 5.0)  # a beat and more were missed
    assert two.start(*world.words(*lease)).ends().said() == (75, "skipped", "busy")
    one.line.mend()
    wait_until(lambda: world.left_of_the_lease() > 6.0)
    world.let_go()
    assert working.ends().said() == (0, "done", None)
    assert list(spans(world)) == [1]


def test_a_host_that_dies_is_taken_over_when_its_lease_is_over_and_not_before(world, hosts, wires):
    """By the server's clock: the other host was booted days earlier."""
    one, url = hosts[0], hosts[1].env["RANONCE_STORE"]
    two = Host(world, wires[1], url, options="--time --boottime 1000000")
    lease = ("--lease", "3s")
    working = one.works(*lease)
    os.kill(first_process(working), signal.SIGKILL)
    working.ends()
    (left,) = world.leases()
    taken_over(two, *world.words(*lease, sh=ONE_TICK))
    start = next(fact for fact in world.facts() if (fact.event, fact.attempt) == ("start", 2))
    assert start.at >= left.expires  # both by the server's clock
    assert ("expired", "its lease is over", 1) in world.events()


def test_a_host_that_cannot_reach_the_store_starts_nothing(world, hosts):
    one, _ = hosts
    one.line.cut()
    impatient = one.state / "config" / "ranonce.toml"
    impatient.write_text('[ledger]\nstore_wait = "2s"\n')
    ran = one.start(*world.words(sh=ONE_TICK), env={"RANONCE_CONFIG": str(impatient)}).ends()
    assert (ran.exit, ran.receipt["event"]) == (69, "unavailable")
    assert world.effects() == []


def test_a_host_that_stays_cut_off_keeps_its_verdict_and_tells_it_when_it_is_back(world, hosts):
    one, two = hosts
    lease = ("--lease", "3s", "--grace-kill", "0.2s")
    impatient = one.state / "config" / "ranonce.toml"
    impatient.write_text('[ledger]\nstore_wait = "1s"\n')
    alone = {"RANONCE_CONFIG": str(impatient)}
    working = one.works(*lease, env=alone)
    one.line.cut()
    cut_off = working.ends()
    assert (cut_off.exit, cut_off.receipt["reason"]) == (74, "not-recorded")
    assert "waits on this host" in cut_off.receipt["sentence"]
    taken_over(two, *world.words(*lease, sh=ONE_TICK))
    one.line.mend()
    back = one.start(*world.words(*lease, sh=ONE_TICK)).ends()
    assert back.said() == (0, "skipped", "done")
    assert any("recorded first what an earlier run could not" in warning for warning in back.receipt["warnings"])
    assert ("lost", "failed", 1) in world.events()
    assert world.state() == ("done", 2)
    assert never_two_at_once(world)


# --- messages -------------------------------------------------------------------------------------------------------


def delivers(host: Host):
    """Start a deliverer on a host, with the destinations that all hosts have."""
    return host.start("deliver", env={"RANONCE_CONFIG": str(host.world.config)})


def put(world: World, destination: str, day: int, *keys: str) -> None:
    with world.opened() as store:
        fill(store, keys, destination=destination, day=day)


def standing(world: World, destination: str) -> dict[str, int]:
    with world.opened() as store:
        return states(store, destination)


def test_deliverers_on_two_hosts_send_each_message_once(world, hosts):
    """Three on each; the program that sends says which host it is on."""
    file = world.root / "received"
    say = f'cat > /dev/null; sleep 0.05; echo "$RANONCE_MESSAGE_KEY $(readlink /proc/self/ns/net)" >> "{file}"'
    shell(world, say, "bus", concurrency=2)
    put(world, "bus", 0, *(f"k{number:02}" for number in range(60)))
    ended = [deliverer.ends(60) for deliverer in [delivers(host) for host in (*hosts, *hosts, *hosts)]]
    assert {ran.exit for ran in ended} <= {0, 75}
    lines_of = [line.split() for line in received(file)]
    assert len(lines_of) == len({key for key, _ in lines_of}) == 60
    assert len({host for _, host in lines_of}) == 2
    assert standing(world, "bus") == {"sent": 60}


def test_what_a_host_had_begun_to_send_when_it_was_cut_off_is_sent_again_only_where_that_counts_once(world, hosts):
    """The other host waits for the lease, by the server's clock, although its own clock is wrong."""
    one, two = hosts
    for day, (name, others) in enumerate((("plain", {}), ("keyed", {"dedupes": "1h"}))):
        script = f'cat > /dev/null; echo "$RANONCE_MESSAGE_KEY" >> "{world.root / name}"; '
        declare(
            world,
            name,
            type="command",
            command=["/bin/sh", "-c", script + 'while test -e "$PIDS/hold"; do sleep 0.02; done'],
            timeout="5s",
            **others,
        )
        put(world, name, day, "a")
    (world.pids / "hold").touch()
    cut_off = delivers(one)
    wait_until(lambda: received(world.root / "plain") and received(world.root / "keyed"))
    one.line.cut()
    world.let_go()  # the programs end well, and the ledger cannot be told
    wrong = {"RANONCE_CONFIG": str(world.config), **wrong_clock(world, HOURS)}
    assert two.start("deliver", env=wrong).ends(60).exit == 75  # the other has them, until its lease is over
    wait_until(lambda: two.start("deliver", env=wrong).ends(60).exit == 80, 40)
    assert (standing(world, "plain"), standing(world, "keyed").keys() - {"sent", "pending"}) == ({"unsure": 1}, set())
    one.line.mend()
    assert "Traceback" not in cut_off.ends(90).err
    assert standing(world, "plain") == {"sent": 1}  # late proof counts
    wait_until(lambda: two.start("deliver").ends(60) and standing(world, "keyed") == {"sent": 1}, 40)
    assert len(received(world.root / "plain")) == 1
    assert len(set(received(world.root / "keyed"))) == 1
