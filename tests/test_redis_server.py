"""Servers of Redis and Valkey as they may be met: stopped, silent, cut off, full, evicting, replicas, others."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ranonce import lifecycle
from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable
from ranonce.exchange.salvage import nobody
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim
from ranonce.stores import open_store, site_of
from ranonce.stores.base import Intake, Job, LostReply
from ranonce.stores.redis.connection import Connection
from ranonce.stores.redis.store import RedisStore
from ranonce.stores.redis.wire import target_of
from ranonce.storeurl import in_namespace, server_of
from tests.contract.acting import START, ask, claim, ledger_over, verdict
from tests.contract.stores import LEDGER
from tests.contract.test_intake import DONE, told
from tests.proxies import ANSWERED, SENT, Cut, Proxy
from tests.servers import Places, ValkeyServer, free_port, missing, private_folder, started
from tests.world import World


@pytest.fixture
def url(valkey: Places) -> Iterator[str]:
    with valkey.place() as address:
        site_of(address, wait_seconds=20).create(LEDGER)
        yield address


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server that the test may do anything to."""
    yield from started(lambda: ValkeyServer(private_folder(tmp_path / "own")))  # type: ignore[misc]


@contextlib.contextmanager
def a_server(folder: Path, *options: str) -> Iterator[ValkeyServer]:
    """A server with other settings."""
    make: Callable[[], ValkeyServer] = lambda: ValkeyServer(private_folder(folder), options=options)  # noqa: E731
    with contextlib.contextmanager(started)(make) as server:  # type: ignore[arg-type]
        yield server  # type: ignore[misc]


def with_a_ledger(server: ValkeyServer, **how: str) -> str:
    url = server.url("ledger")
    site_of(url, wait_seconds=20).create(LEDGER, **how)
    return url


def port_of(url: str) -> int:
    server = server_of(url)
    assert server is not None
    return target_of(server.address, url).port


def through(proxy: Proxy, url: str) -> str:
    return url.replace(f":{port_of(url)}/", f":{proxy.port}/")


def counted(proxy: Proxy, direction: str) -> int:
    """Return how many bytes have passed, once all of them are counted: they are passed on first."""
    before = -1
    while before != proxy.passed[direction]:
        before = proxy.passed[direction]
        time.sleep(0.005)
    return before


# --- cut, silent, stopped -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [SENT, ANSWERED])
def test_cut_after_any_byte_of_its_writing_a_claim_is_found_or_made_and_never_twice(url, direction):
    """Every byte of the one exchange in which a claim is written; tests/acceptance cuts whole runs."""
    store = RedisStore(url, wait_seconds=20)
    ledger = ledger_over(store)
    policy = ask().policy.replace(overlap="allow")
    with Proxy(port_of(url)) as proxy:
        there = RedisStore(through(proxy, url), wait_seconds=20)
        asking = ask(policy=policy)
        snap = there.read(asking.key, START)
        before = counted(proxy, direction)
        assert there.commit(lifecycle.claim(snap, asking), asking.key, snap.version)
        length = counted(proxy, direction) - before
        there.close()
    assert length > 20
    seen = {"written": 0, "not written": 0}
    for after in range(0, length, 1 if direction == ANSWERED else 7):
        asking = ask(after + 1, policy=policy)
        with Proxy(port_of(url)) as proxy:
            there = RedisStore(through(proxy, url), wait_seconds=2)
            snap = there.read(asking.key, asking.window.start)
            proxy._cut = Cut(counted(proxy, direction) + after, direction)
            if after == 0:
                proxy.cut()
            with pytest.raises(LostReply):
                there.commit(lifecycle.claim(snap, asking), asking.key, snap.version)
            proxy.mend()
            found = there.read(asking.key, asking.window.start).run
            seen["written" if found else "not written"] += 1
            answer = OpenLedger(there, folder=None, wait_seconds=2).claim(asking)
            there.close()
        assert isinstance(answer, Claim)
        assert (answer.owner, answer.attempt) == (asking.owner, 1)
        events = store.events("job", asking.window.start, asking.window.start + 1)
        assert [(event.event, event.owner) for event in events] == [("start", asking.owner)]
        assert ledger.claim(ask(after + 1, policy=policy)).reason == "busy"
    assert seen["written" if direction == ANSWERED else "not written"] > 0


@pytest.mark.parametrize("stop", ["silent line", "stopped server"])
def test_what_does_not_answer_is_not_waited_for_longer_than_said(own, stop):
    url = with_a_ledger(own)
    with Proxy(own.port) as proxy:
        ledger = ledger_over(RedisStore(through(proxy, url), wait_seconds=1))
        ledger.wait_seconds = 1
        held = claim(ledger)
        snap = ledger.store.read(held.key, START)
        decision = lifecycle.finish(snap, held, verdict())
        if stop == "silent line":
            proxy.cut(silent=True)
        else:
            own.process.send_signal(signal.SIGSTOP)
        try:
            for asked, error in (
                (lambda: ledger.store.commit(decision, held.key, snap.version), LostReply),
                (lambda: ledger.store.read(held.key, START), StoreUnavailable),
                (lambda: ledger.renew(held, "forbid"), StoreUnavailable),
                (lambda: open_store(through(proxy, url), wait_seconds=1), StoreUnavailable),
            ):
                began = time.monotonic()
                with pytest.raises(error, match="did not answer in time"):
                    asked()
                assert time.monotonic() - began < 4
        finally:
            own.process.send_signal(signal.SIGCONT)
            proxy.mend()
        assert OpenLedger(RedisStore(url, wait_seconds=20), folder=None).finish(held, verdict()) is None


def test_a_line_that_went_silent_leaves_time_for_another_one(url):
    with Proxy(port_of(url)) as proxy:
        store = RedisStore(through(proxy, url), wait_seconds=2)
        ledger_over(store)
        proxy.cut(silent=True)
        began = time.monotonic()
        mending = threading.Timer(0.3, proxy.mend)
        mending.start()
        assert [job.name for job in store.jobs()] == ["job"]
        assert time.monotonic() - began < 2
        mending.join()


def test_killed_and_started_again_while_200_runs_go_through_it_loses_and_doubles_nothing(own):
    ledger = ledger_over(open_store(with_a_ledger(own), wait_seconds=20))
    claimed: dict[int, Claim] = {}
    unsure: set[int] = set()

    def work() -> None:
        for day in range(200):
            try:
                claimed[day] = claim(ledger, day)
                assert ledger.finish(claimed[day], verdict()) is None
            except StoreUnavailable:
                unsure.add(day)

    worker, strikes = threading.Thread(target=work), 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.2)
        own.stop(signal.SIGKILL)
        own.start()
        strikes += 1
    worker.join()
    assert strikes >= 3
    assert len(unsure) < 20
    again = open_store(own.url("ledger"), wait_seconds=20)
    runs = {run.window_start: run for run in again.runs("job", 0, 1 << 60)}
    for day, held in claimed.items():
        run = runs[held.window.start]
        assert (run.owner, run.attempt) == (held.owner, 1)
        if day not in unsure:
            assert run.status == "done"
            events = again.events("job", held.window.start, held.window.start + 1)
            assert [event.event for event in events] == ["start", "done"]
    assert len({*claimed, *unsure}) == 200
    assert again.upkeep().problems(deep=True) == []


# --- emptied, full, evicting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["FLUSHDB", "FLUSHALL"])
def test_an_emptied_server_is_not_written_to(own, empty):
    url = with_a_ledger(own)
    ledger = ledger_over(open_store(url, wait_seconds=20))
    store = ledger.store
    held = claim(ledger)
    decision = lifecycle.finish(store.read(held.key, START), held, verdict())
    store.connection.ask((empty,))
    for asked in (
        lambda: store.commit(decision, held.key, 1),
        lambda: ledger.claim(ask(1)),
        lambda: ledger.renew(held, "forbid"),
        lambda: store.record_schedule(Job("job", 0, START, 3600.0, 3), None, -1),
        lambda: store.upkeep().take_in(Intake([told(*DONE)]), nobody),
        lambda: store.upkeep().accept_loss("x", "y"),
        lambda: store.outline("job", 0, 1),
        lambda: store.reopen(1),
    ):
        with pytest.raises(NotThisLedger, match=r"is gone|there is no ledger"):
            asked()
    assert store.done(held.key, START) is None
    assert store.connection.ask(("DBSIZE",)) == [0]


def test_keys_that_are_evicted_are_refused_unless_that_was_accepted(own):
    url = with_a_ledger(own)
    admin = RedisStore(url, wait_seconds=20).connection
    admin.ask(("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"))
    assert site_of(url, wait_seconds=1).risk() is None  # without a limit nothing is evicted
    open_store(url, wait_seconds=1)
    admin.ask(("CONFIG", "SET", "maxmemory", "1gb"))
    risk = site_of(url, wait_seconds=1).risk()
    assert risk.kind == "a server that evicts keys"
    with pytest.raises(ConfigError, match="may evict keys") as caught:
        open_store(url, wait_seconds=1)
    assert "noeviction" in caught.value.next_step
    accepted = own.url("accepted")
    site_of(accepted, wait_seconds=1).create(LEDGER, volatile=f"{risk.kind}: {risk.problem}")
    level, sentence = next(each for each in open_store(accepted, wait_seconds=1).promise() if "evict" in each[1])
    assert (level, "that was accepted" in sentence) == ("note", True)
    admin.ask(("CONFIG", "SET", "maxmemory-policy", "volatile-lru"))  # our keys have no time to live
    open_store(url, wait_seconds=1)


def test_a_full_server_refuses_a_write_whole(own):
    url = with_a_ledger(own)
    ledger = ledger_over(RedisStore(url, wait_seconds=1))
    ledger.wait_seconds = 1
    store = ledger.store
    held = claim(ledger)
    store.connection.ask(("CONFIG", "SET", "maxmemory", "1mb"))
    with pytest.raises(StoreUnavailable, match="has no memory left") as caught:
        claim(ledger, 1, policy=ask().policy.replace(overlap="allow"))
    assert "ranonce prune" in caught.value.next_step
    store.connection.ask(("CONFIG", "SET", "maxmemory", "0"))
    assert store.upkeep().problems(deep=True) == []
    assert len(store.runs("job", 0, 1 << 60)) == 1
    assert ledger.finish(held, verdict()) is None


# --- what is promised -----------------------------------------------------------------------------------------------

SETTINGS = {
    ("--appendonly", "no"): ("a server that keeps its data in memory", "problem"),
    ("--appendfsync", "everysec"): ("a server with appendfsync everysec", "problem"),
    ("--appendfsync", "no"): ("a server with appendfsync no", "problem"),
    ("--no-appendfsync-on-rewrite", "yes"): ("a server with no-appendfsync-on-rewrite yes", "problem"),
}


@pytest.mark.parametrize("setting", SETTINGS, ids=" ".join)
def test_what_may_be_lost_is_said_before_a_ledger_is_made_and_asked_for_ever_after(tmp_path, setting):
    kind, level = SETTINGS[setting]
    with a_server(tmp_path / "own", *setting) as server:
        risk = site_of(server.url("ledger"), wait_seconds=5).risk()
        assert risk.kind == kind
        assert "may lose" in risk.problem
        store = open_store(with_a_ledger(server, volatile="x"), wait_seconds=5)
        told = [each for each in store.promise() if each[1].startswith(kind)]
        assert [each[0] for each in told] == ["note"]
        plain = server.url("plain")
        site_of(plain, wait_seconds=5).create(LEDGER)
        assert open_store(plain, wait_seconds=5).promise()[0][0] == level


def test_all_settings_that_keep_too_little_are_named_at_once(tmp_path):
    with a_server(tmp_path / "own", "--appendonly", "no", "--appendfsync", "everysec") as server:
        risk = site_of(server.url("ledger"), wait_seconds=5).risk()
        assert "appendonly yes" in risk.problem
        assert "appendfsync is everysec" in risk.problem


def test_init_asks_for_what_may_be_lost_and_records_that_it_was_accepted(tmp_path):
    (tmp_path / "world").mkdir()
    with a_server(tmp_path / "own", "--appendfsync", "everysec") as server:
        world = World(tmp_path / "world", server.url("ledger"))
        refused = world.ranonce("init", "--store", world.url)
        assert refused.exit == 78
        assert "appendfsync everysec: a power cut may lose the last second" in refused.sentence
        assert not site_of(world.url, wait_seconds=5).stands()
        world.init()
        identity = open_store(world.url, wait_seconds=5).identity()
        assert identity.volatile.startswith("a server with appendfsync everysec")
        world.end()


def test_all_that_is_as_it_should_be_is_said_too(own):
    store = open_store(with_a_ledger(own), wait_seconds=5)
    assert {level for level, _ in store.promise()} == {"ok"}
    assert any(sentence.startswith("Valkey ") for _, sentence in store.promise())
    assert site_of(own.url("other"), wait_seconds=5).risk() is None


def test_a_replica_writes_nothing_and_says_so_and_its_primary_says_that_it_has_one(own, tmp_path):
    url = with_a_ledger(own)
    ledger = ledger_over(open_store(url, wait_seconds=20))
    ledger.finish(claim(ledger), verdict())
    with a_server(tmp_path / "replica", "--replicaof", f"127.0.0.1 {own.port}") as replica:
        here = replica.url("ledger")
        give_up = time.monotonic() + 20
        while True:
            with contextlib.suppress(RanonceError):
                if RedisStore(here, wait_seconds=1).latest("job", 1):
                    break
            assert time.monotonic() < give_up
        there = OpenLedger(RedisStore(here, wait_seconds=1), folder=None, wait_seconds=1)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="is a replica") as caught:
            there.claim(ask(1))
        assert time.monotonic() - began < 4
        assert "Name the server that writes" in caught.value.next_step
        assert there.store.done(ask().key, START) is not None  # it may be read
        assert ("problem", "it is a replica of 127.0.0.1") in [
            (level, sentence[:28]) for level, sentence in there.store.promise()
        ]
        (said,) = [each for each in ledger.store.promise() if "failover" in each[1]]
        assert said[0] == "note"
        with pytest.raises(StoreUnavailable, match="is a replica"):
            site_of(replica.url("new"), wait_seconds=0.5).create(LEDGER)


# --- who may do what ------------------------------------------------------------------------------------------------

#: As the documentation has it.
RIGHTS = (
    "~{ledger}:*",
    "+@hash",
    "+@sortedset",
    "+@list",
    "+@connection",
    "+eval",
    "+evalsha",
    "+exists",
    "+type",
    "+time",
    "+info",
    "+config|get",
)


def test_with_the_documented_rights_jobs_run_and_are_looked_after(own):
    admin = RedisStore(with_a_ledger(own), wait_seconds=20)
    admin.connection.ask(("ACL", "SETUSER", "runner", "on", ">hunter2", *RIGHTS))
    ledger = ledger_over(open_store(as_user(admin.url, "runner:hunter2"), wait_seconds=1))
    ledger.finish(claim(ledger), verdict("failed", output=b"x"))
    ledger.finish(claim(ledger), verdict())
    ledger.finish(claim(ledger, 1), verdict())
    store = ledger.store
    assert [level for level, _ in store.promise()] == ["ok"] * len(store.promise())
    store.upkeep().prune("job", lifecycle.Retention(4e9, 4e9))
    assert len(list(store.upkeep().all_events())) == 2
    assert store.upkeep().problems(deep=True) == []
    with pytest.raises(ConfigError, match="not do this"):
        site_of(site_of(store.url, wait_seconds=1).scratch("x"), wait_seconds=1).create(LEDGER)
    admin.connection.ask(("ACL", "SETUSER", "runner", "+scan", "+unlink", "~{scratch_*}:*"))
    scratch = site_of(site_of(store.url, wait_seconds=1).scratch("x"), wait_seconds=1)
    scratch.create(LEDGER)
    scratch.destroy()
    for refused in (("FLUSHALL",), ("CONFIG", "SET", "maxmemory", "1"), ("GET", "other")):
        with pytest.raises(ConfigError, match="does not let us in, or not do this"):
            store.connection.ask(refused)


def test_what_a_user_may_not_ask_is_not_known_and_said(own):
    admin = RedisStore(with_a_ledger(own), wait_seconds=20)
    admin.connection.ask(("ACL", "SETUSER", "blind", "on", ">p", *RIGHTS, "-config", "-info"))
    blind = as_user(admin.url, "blind:p")
    assert site_of(blind, wait_seconds=1).risk().kind == "a server whose settings are not known"
    store = open_store(blind, wait_seconds=1)
    assert [level for level, _ in store.promise()] == ["problem", "note", "note"]


@pytest.mark.parametrize("right", ["hset", "hincrby", "zadd", "zrem", "rpush", "hdel", "hsetnx", "eval", "@write"])
def test_whoever_may_not_write_all_of_it_writes_nothing(own, right):
    admin = RedisStore(with_a_ledger(own), wait_seconds=20)
    claim(ledger_over(admin), 1, policy=ask().policy.replace(overlap="allow"))
    admin.connection.ask(("ACL", "SETUSER", "reader", "on", ">p", *RIGHTS, f"-{right}"))
    admin.connection.ask(("SCRIPT", "FLUSH"))
    before = admin.connection.ask(("DUMP", admin.keys("events")), ("DUMP", admin.keys("ledger")))
    reader = OpenLedger(open_store(as_user(admin.url, "reader:p"), wait_seconds=1), folder=None, wait_seconds=1)
    with pytest.raises(ConfigError, match="not do this"):
        claim(reader, policy=ask().policy.replace(overlap="allow"))
    assert admin.connection.ask(("DUMP", admin.keys("events")), ("DUMP", admin.keys("ledger"))) == before
    assert admin.upkeep().problems(deep=True) == []


def as_user(url: str, user: str) -> str:
    return url.replace("://", f"://{user}@")


def test_a_password_is_asked_for_and_never_told(own):
    url = with_a_ledger(own)
    RedisStore(url, wait_seconds=20).connection.ask(("CONFIG", "SET", "requirepass", "hun ter2@:/"))
    right = as_user(url, ":hun%20ter2%40%3A%2F")
    assert open_store(right, wait_seconds=1).identity().ledger == LEDGER
    assert open_store(as_user(url, "default:hun%20ter2%40%3A%2F"), wait_seconds=1).identity().ledger == LEDGER
    for wrong in (url, as_user(url, ":hunter3"), as_user(url, "somebody:hunter3")):
        for asked in (open_store, site_of):
            with pytest.raises(ConfigError, match="does not let us in") as caught:
                asked(wrong, wait_seconds=1).risk() if asked is site_of else asked(wrong, wait_seconds=1)
            assert "hunter3" not in str(caught.value)
            assert "RANONCE_STORE" in caught.value.next_step
    with pytest.raises(ConfigError, match="user without a password") as caught:
        open_store(as_user(url, "hunter3"), wait_seconds=1)
    assert "hunter3" not in str(caught.value)


# --- others than they should be -------------------------------------------------------------------------------------


class Fake:
    """Listens on loopback, and says the same to everybody who has said something."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.heard: list[bytes] = []
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError):
                    client.settimeout(5)
                    self.heard.append(client.recv(65536))
                    client.sendall(self._answer)
                    time.sleep(0.05)

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


#: What a server answers to everything, and the sentence that comes of it.
ANSWERS = [
    ("LOADING Valkey is loading the dataset in memory", StoreUnavailable, "is still reading its data"),
    ("MASTERDOWN Link with MASTER is down", StoreUnavailable, "has lost its primary"),
    ("BUSY Valkey is busy running a script", StoreUnavailable, "is busy with a script"),
    ("CLUSTERDOWN Hash slot not served", StoreUnavailable, "is a cluster that is down"),
    ("MISCONF Errors writing to the AOF file: No space left", StoreUnavailable, "cannot write to its disk"),
    ("NOREPLICAS Not enough good replicas to write.", StoreUnavailable, "has fewer replicas than it must have"),
    ("ERR max number of clients reached", StoreUnavailable, "has no connection left"),
    (
        "ERR Error running script (call to f_ab): @user_script:9: @user_script: 9: -READONLY You can't write",
        StoreUnavailable,
        "is a replica",
    ),
    ("MOVED 3999 127.0.0.1:6381", ConfigError, "is one of a cluster"),
    ("CROSSSLOT Keys in request don't hash to the same slot", ConfigError, "is one of a cluster"),
    ("DENIED Valkey is running in protected mode", ConfigError, "does not let us in"),
    ("NOAUTH Authentication required.", ConfigError, "does not let us in"),
    ("ERR DB index is out of range", ConfigError, "cannot hold a ledger"),
    ("ERR unknown command 'EVALSHA'", ConfigError, "cannot hold a ledger"),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", NotThisLedger, "is damaged"),
    (
        "ERR Error running script (call to f_ab): @user_script:9: WRONGTYPE Operation against a key",
        NotThisLedger,
        "is damaged",
    ),
    ("ERR something new", StoreUnavailable, "cannot be used: something new"),
]


@pytest.mark.parametrize(("answer", "error", "sentence"), ANSWERS, ids=[answer[:12] for answer, _, _ in ANSWERS])
def test_whatever_a_server_refuses_with_is_one_sentence_and_the_right_status(answer, error, sentence):
    with Fake(f"-{answer}\r\n".encode() * 2) as fake:
        began = time.monotonic()
        with pytest.raises(error, match=sentence) as caught:
            open_store(fake.url, wait_seconds=0.3)
        assert time.monotonic() - began < 3
        assert caught.value.next_step


@pytest.mark.parametrize("said", [b"", b"S", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x01", b"$x\r\n", b"*-2\r\n"])
def test_what_speaks_another_protocol_is_no_ledger(said):
    with Fake(said) as fake:
        with pytest.raises((ConfigError, StoreUnavailable)) as caught:
            open_store(fake.url, wait_seconds=0.5)
        assert ("no Redis or Valkey server" in caught.value.sentence) == said.endswith(b"\r\n")


def test_what_drips_is_not_waited_for_longer_than_said():
    class Dripping(Fake):
        def _work(self) -> None:
            client, _ = self._listener.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(b"+")
                for _ in range(200):
                    client.sendall(b"x")
                    time.sleep(0.02)

    with Dripping(b"") as fake:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            open_store(fake.url, wait_seconds=0.4)
        assert time.monotonic() - began < 2


def test_a_web_server_and_a_database_are_not_taken_for_a_ledger(postgres):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web:
        threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        with pytest.raises(
            (ConfigError, StoreUnavailable), match=r"no Redis or Valkey|closed the conn|Connection reset"
        ):
            open_store(f"redis://127.0.0.1:{web.server_port}/0", wait_seconds=1)
        web.shutdown()
    with pytest.raises(StoreUnavailable, match=r"closed the connection before its first answer \(is it a Redis"):
        open_store(f"redis://127.0.0.1:{postgres.port}/0", wait_seconds=0.5)


def test_nobody_there_is_said_after_the_wait():
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="could not be reached in time: Connection refused"):
        open_store(f"redis://127.0.0.1:{free_port()}/0", wait_seconds=0.5)
    assert 0.3 < time.monotonic() - began < 3
    with pytest.raises(StoreUnavailable, match="could not be reached in time"):
        open_store("redis://no-such-host.invalid:6379/0", wait_seconds=0.1)


def test_a_cluster_that_has_the_keys_will_do(tmp_path):
    with a_server(tmp_path / "own", "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        url = server.url("ledger")
        with pytest.raises(StoreUnavailable, match="is a cluster that is down"):
            site_of(url, wait_seconds=0.3).create(LEDGER)
        Connection(url, 5).ask(("CLUSTER", "ADDSLOTSRANGE", 0, 16383))
        site_of(url, wait_seconds=20).create(LEDGER)
        ledger = ledger_over(open_store(url, wait_seconds=20))
        ledger.finish(claim(ledger), verdict())
        assert len(list(ledger.store.upkeep().all_events())) == 2
        with pytest.raises(ConfigError, match=r"cannot hold a ledger|is one of a cluster"):
            open_store(url.replace("/0?", "/1?"), wait_seconds=1)


# --- addresses and encryption ---------------------------------------------------------------------------------------


def test_an_address_says_where_and_as_whom():
    target = target_of("rediss://u:p%40@[2001:db8::1]:7000/3?ssl_ca_certs=/x.pem", "")
    assert (target.host, target.port, target.database, target.user, target.password) == (
        "2001:db8::1",
        7000,
        3,
        "u",
        "p@",
    )
    assert target.tls == {"ssl_ca_certs": "/x.pem"}
    assert target_of("redis://h:1/0?username=u&password=p", "").user == "u"
    for address in ("redis://h:1/0?protocol=3", "redis://h:1/0?ssl_ca_certs=/x", "rediss://h:1/0?ssl_cert_reqs=none"):
        with pytest.raises(ConfigError):
            target_of(address, "")


def test_a_user_whose_password_is_kept_elsewhere_is_told_where_it_comes_from():
    with pytest.raises(ConfigError, match="names the user jobs with an empty password") as refused:
        target_of("redis://jobs:@h:1/0", "redis://jobs:@h:1/0")
    assert "Set RANONCE_STORE" in refused.value.next_step


def test_a_misspelt_option_is_answered_with_all_there_are():
    with pytest.raises(ConfigError, match="'namespce' is not known") as refused:
        target_of("redis://h:1/0?namespce=x", "")
    assert "namespace" in refused.value.next_step


def test_two_databases_of_a_server_are_two_places(url):
    other = url.replace("/0?", "/1?")
    assert not site_of(other, wait_seconds=5).stands()
    site_of(other, wait_seconds=5).create("d" * 32)
    assert open_store(other, wait_seconds=5).identity().ledger == "d" * 32
    assert open_store(url, wait_seconds=5).identity().ledger == LEDGER


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority and a certificate of `localhost` from it."""
    made = tmp_path / "certificates"
    made.mkdir()
    script = (
        'openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=test authority" -keyout ca.key -out ca.pem'
        ' && openssl req -newkey rsa:2048 -nodes -subj "/CN=localhost" -keyout key.pem -out csr.pem'
        " && printf 'subjectAltName=DNS:localhost' > ext"
        " && openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem"
    )
    if subprocess.run(["/bin/sh", "-c", script], cwd=made, capture_output=True).returncode:
        missing("openssl(1)")
    return made


class Encrypting:
    """Listens with a certificate, and passes on to a server that speaks plainly."""

    def __init__(self, port: int, certificates: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
        self._listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self._server = port
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while self._listener.fileno() >= 0:
            with contextlib.suppress(OSError):
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError), one, other:
            while chunk := one.recv(65536):
                other.sendall(chunk)

    def close(self) -> None:
        self._listener.close()


def test_an_encrypted_line_is_used_only_to_a_server_that_is_trusted(url, certificates):
    server = Encrypting(port_of(url), certificates)
    name = server_of(url).namespace
    address = f"rediss://localhost:{server.port}/0"
    known = in_namespace(f"{address}?ssl_ca_certs={certificates / 'ca.pem'}", name)
    ledger = ledger_over(open_store(known, wait_seconds=5))
    ledger.finish(claim(ledger), verdict())
    assert open_store(url, wait_seconds=5).done(ask().key, START) is not None
    silent = Fake(b"-ERR unknown command\r\n")
    for wrong, sentence in (
        (in_namespace(address, name), "certificate is not trusted here"),
        (known.replace("localhost", "127.0.0.1"), "certificate is not trusted here"),
        (known.replace("ca.pem", "no.pem"), "a file of the address cannot be used"),
        (silent.url.replace("redis:", "rediss:"), "does not answer encrypted"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            open_store(wrong, wait_seconds=5)
    with pytest.raises((ConfigError, StoreUnavailable)):
        open_store(url.replace(f":{port_of(url)}/", f":{server.port}/"), wait_seconds=0.5)
    server.close()


# --- whole runs -----------------------------------------------------------------------------------------------------


def test_a_run_from_its_start_to_its_end(valkey, tmp_path):
    with valkey.place() as place:
        world = World(tmp_path, place)
        world.init()
        there = {
            "RANONCE_STORE": world.url,
            "RANONCE_LEDGER": world.ledger,
            "XDG_CONFIG_HOME": str(tmp_path / "none"),
        }
        assert world.run(env=there).said() == (0, "done", None)
        assert world.run(env=there).said() == (0, "skipped", "done")
        assert world.run(env={**there, "RANONCE_LEDGER": "d" * 32}).exit == 78
        assert len(world.effects()) == 1
        assert world.ranonce("status", "job", env=there).exit == 0
        world.end()


def test_a_run_waits_for_a_server_that_is_being_started(own, tmp_path):
    (tmp_path / "world").mkdir()
    world = World(tmp_path / "world", own.url("ledger"))
    world.init()
    own.stop()
    run = world.start(*world.words())
    time.sleep(0.5)  # by then it has met nobody
    own.start()
    assert run.ends().said() == (0, "done", None)
    world.end()


def test_nothing_is_loaded_that_a_run_does_not_need(valkey, tmp_path):
    with valkey.place() as place:
        world = World(tmp_path, place)
        world.init()
        code = (
            "import os, sys; from ranonce.stores import open_store\n"
            "store = open_store(os.environ['STORE'], wait_seconds=5); store.jobs()\n"
            "print(sorted({'redis', 'ssl', 'asyncio', 'urllib.parse', 'sqlite3', 'psycopg'} & set(sys.modules)))"
        )
        ran = subprocess.run(
            [os.sys.executable, "-c", code], env={**world.env, "STORE": place}, capture_output=True, text=True
        )
        assert ran.stdout == "[]\n", ran.stderr
        world.end()
