"""Servers that go away in the middle of it: no command starts without a committed claim, and nothing is done twice,
lost, or said wrongly."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ALL_COMPLETED, ThreadPoolExecutor, wait

import pytest

from ranonce.errors import StoreUnavailable
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim
from ranonce.liveness import boot_clock
from ranonce.storeurl import server_of
from tests.conftest import NOON, SERVERS, TODAY, Invocation, Ran, World, lives, wait_until
from tests.contract.acting import ask, ledger_over, verdict
from tests.proxies import ANSWERED, SENT, Cut, Proxy
from tests.servers import PostgresServer, Server, ValkeyServer, private_folder

KINDS: dict[str, type[Server]] = {"postgres": PostgresServer, "redis": ValkeyServer}
#: Ways in which a server ends: tidily, at once (its own recovery follows), and killed outright.
ENDS = {
    "postgres": (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL),
    "redis": (signal.SIGTERM, signal.SIGKILL),
}
#: A line is cut after every so many bytes of a claim and its verdict; and in so many places of a whole command.
STEP_BYTES = 3
CUTS = 12
#: An effect that says which claim made it, and in which invocation.
CLAIMED_EFFECT = 'echo "$RANONCE_JOB $RANONCE_WINDOW $RANONCE_ATTEMPT $RANONCE_OWNER $INVOCATION" >> "$EFFECTS"'


@pytest.fixture(scope="module", params=SERVERS)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module."""
    server = KINDS[request.param](private_folder(tmp_path_factory.mktemp("own") / request.param))
    yield server
    server.stop()


@pytest.fixture
def own(kept: Server) -> Server:
    """A server that a test may stop; it works, whatever the test before has left."""
    if kept.process is None or not kept.answers():
        kept.stop()
        kept.start()
    return kept


@pytest.fixture
def kind(own: Server) -> str:
    return next(name for name, made in KINDS.items() if isinstance(own, made))


@pytest.fixture
def world(own: Server, tmp_path) -> Iterator[World]:
    """A world with a ledger on that server."""
    with own.place() as url:
        made = World(tmp_path, url)
        made.init()
        yield made
        made.end()


def through(world: World, own: Server, proxy: Proxy) -> str:
    """Return the address of the world's ledger behind a proxy."""
    server = server_of(world.url)
    assert server is not None
    return own.url(server.namespace, port=proxy.port)


def trigger(world: World, *options: str, job: str = "job", url: str | None = None, mark: str = "-") -> Invocation:
    """Start a run whose effect says by which claim it was made; `url` is where it finds the ledger."""
    there = {"RANONCE_STORE": url, "RANONCE_LEDGER": world.ledger} if url else {}
    return world.start(*world.words(*options, job=job, sh=CLAIMED_EFFECT), env={**there, "INVOCATION": mark})


def effects_of(world: World, job: str = "job") -> list[tuple[str, ...]]:
    """Return (window, attempt, owner, mark) of each effect of a job."""
    told = [tuple(line.split()) for line in world.effects()]
    return [tuple(effect) for name, *effect in told if name == job]


def starts_of(world: World, job: str = "job") -> list[tuple[str, ...]]:
    """Return (window, attempt, owner) of each claim of a job that stands in the ledger."""
    return [(fact.key.window, str(fact.attempt), fact.owner) for fact in world.facts(job) if fact.event == "start"]


# --- cut after any byte ---------------------------------------------------------------------------------------------


def a_night(url: str, ledger: str, job: str) -> tuple[Claim | None, bool]:
    """Claim a run and finish it; return the claim, if it was confirmed, and whether its verdict was."""
    held = None
    try:
        opened = OpenLedger.open(url, ledger, state_folder=None, wait_seconds=2)
        answer = opened.claim(ask(job=job))
        assert isinstance(answer, Claim), answer
        held = answer
        refusal = opened.finish(held, verdict())
        assert refusal is None, refusal
        opened.close()
    except StoreUnavailable:
        return held, False
    return held, True


@pytest.mark.parametrize("direction", [SENT, ANSWERED])
def test_whichever_byte_is_the_last_a_claim_and_a_verdict_are_written_once_and_confirmed_only_then(
    world, own, direction
):
    with Proxy(own.port) as proxy, world.opened() as store:
        for job in ("first", "whole"):  # the first brings the server scripts that it does not know yet
            ledger_over(store, job)
        assert a_night(world.url, world.ledger, "first")[1]
        assert a_night(through(world, own, proxy), world.ledger, "whole")[1]
        whole = proxy.passed[direction]
        for after in range(1, whole, STEP_BYTES):
            ledger_over(store, f"job-{after}")
    assert whole > 100 * STEP_BYTES

    def cut(after: int) -> None:
        job = f"job-{after}"
        with Proxy(own.port, Cut(after, direction)) as proxy:
            held, finished = a_night(through(world, own, proxy), world.ledger, job)
            assert proxy.was_cut
        assert held is not None and finished, after  # the next connection got through
        facts = world.facts(job)
        assert [(fact.event, fact.attempt, fact.owner) for fact in facts] == [
            ("start", 1, held.owner),
            ("done", 1, held.owner),
        ], after

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(cut, range(1, whole, STEP_BYTES)))


@pytest.mark.parametrize("direction", [SENT, ANSWERED])
@pytest.mark.parametrize("silent", [False, True], ids=["reset", "silence"])
def test_a_command_never_starts_without_a_committed_claim(world, own, direction, silent):
    """The server is gone for good after so many bytes of a run. What becomes of it, and of the next trigger?"""
    world.wait_for_the_store(1)
    assert trigger(world, job="first").ends().exit == 0
    with Proxy(own.port) as proxy:
        assert trigger(world, job="whole", url=through(world, own, proxy)).ends().said() == (0, "done", None)
        length = proxy.passed[direction]
    cuts = CUTS // 2 if silent else CUTS
    places = [1 + length * number // cuts for number in range(cuts)] + [length - back for back in (90, 60, 30, 8)]
    said = Counter()
    for batch in (places[::2], places[1::2]):
        with contextlib.ExitStack() as lines:
            cut_at = [Cut(after, direction, silent=silent, for_good=True) for after in batch]
            proxies = [lines.enter_context(Proxy(own.port, cut)) for cut in cut_at]
            urls = [through(world, own, proxy) for proxy in proxies]
            started = [trigger(world, job=f"job-{at}", url=url) for at, url in zip(batch, urls, strict=True)]
            for after, invocation in zip(batch, started, strict=True):
                ran = invocation.ends()
                said[ran.exit] += 1
                assert "Traceback" not in ran.err
                made = effects_of(world, f"job-{after}")
                assert len(made) == {69: 0, 74: 1, 0: 1}[ran.exit], ran.err
                assert [effect[:3] for effect in made] == starts_of(world, f"job-{after}")[: len(made)]
    assert said[69] > 0
    assert said[74] > 0 or direction == ANSWERED  # how much is answered depends on what the ledger holds by then
    for after in places:
        again = trigger(world, job=f"job-{after}").ends()
        assert again.exit == 0, again.err
        assert world.state(f"job-{after}")[0] == "done"
        assert len(effects_of(world, f"job-{after}")) == 1


# --- stopped and started again and again ----------------------------------------------------------------------------

WINDOWS = [f"2026-{month:02}-{day:02}" for month in (9, 10) for day in range(1, 26)]
WORKERS = 4
#: Exit statuses of a trigger that is to come again.
TRY_AGAIN = {69, 74, 75}


def one_worker(world: World, seed: int) -> list[tuple[str, str, Ran]]:
    """Trigger every window until it is settled; return (window, mark, what it said) of every try."""
    tries, windows = [], list(WINDOWS)
    random.Random(seed).shuffle(windows)
    give_up = time.monotonic() + 200
    while windows and time.monotonic() < give_up:
        window = windows.pop(0)
        mark = f"{seed}.{len(tries)}"
        ran = trigger(world, "--window", window, "--overlap", "allow", "--max-attempts", "1000", mark=mark).ends()
        tries.append((window, mark, ran))
        if ran.exit in TRY_AGAIN:
            windows.append(window)
    return tries


@pytest.mark.timeout(300)
def test_a_server_that_is_stopped_and_started_every_second_doubles_nothing_and_loses_nothing(world, own, kind):
    world.wait_for_the_store(1)
    assert trigger(world, "--window", "2026-08-31").ends().exit == 0  # the job is known
    with ThreadPoolExecutor(WORKERS) as pool:
        workers = [pool.submit(one_worker, world, seed) for seed in range(WORKERS)]
        strikes = 0
        while not wait(workers, timeout=1.0, return_when=ALL_COMPLETED).done >= set(workers):
            own.stop(ENDS[kind][strikes % len(ENDS[kind])])
            own.start()
            strikes += 1
    tries = [each for worker in workers for each in worker.result()]
    assert strikes >= 5
    effects = {mark: effect for *effect, mark in effects_of(world)}
    assert len(effects) == len(effects_of(world))  # no invocation works twice
    for window, mark, ran in tries:
        assert "Traceback" not in ran.err, ran.err
        event = ran.receipt["event"]
        assert (ran.exit, event, ran.receipt.get("reason")) in EXPECTED, ran.err
        assert (mark in effects) == (event == "done"), (window, mark, ran)
    assert len(tries) >= WORKERS * len(WINDOWS)
    claimed = set(starts_of(world))
    for effect in effects.values():
        assert tuple(effect) in claimed
    assert sorted(window for window, *_ in effects.values()) == ["2026-08-31", *sorted(WINDOWS)]
    last = trigger(world, "--window", WINDOWS[0]).ends()  # records what still waits on this host
    assert last.exit == 0
    assert world.states() == [("2026-08-31", "done"), *((window, "done") for window in sorted(WINDOWS))]
    unheard = [ran for *_, ran in tries if ran.receipt.get("reason") == "lost-reply"]
    left = world.attempt_files()  # of claims that never came to the server: they go after a day
    assert len(left) <= len(unheard)
    assert all(b'{"left": true}' in file.read_bytes() for file in left)
    assert world.leases() == []
    done = [fact.key.window for fact in world.facts() if fact.event == "done"]
    assert sorted(done) == ["2026-08-31", *sorted(WINDOWS)]


#: What a trigger may say while its server comes and goes.
EXPECTED = {
    (0, "done", None),
    (0, "skipped", "done"),
    (69, "unavailable", "store-unavailable"),
    (69, "unavailable", "lost-reply"),
    (74, "done", "not-recorded"),
    (75, "skipped", "busy"),
}


# --- gone for a while -----------------------------------------------------------------------------------------------


def test_a_server_that_is_away_for_a_part_of_the_lease_kills_no_healthy_job(world, own):
    working, child = world.hold("--lease", "12s", "--grace-kill", "0.4s")  # as five minutes and ten seconds
    own.stop(signal.SIGKILL)
    back = boot_clock() + 5
    wait_until(lambda: boot_clock() > back)
    assert lives(child)
    own.start()
    over = boot_clock() + 8  # longer than the lease would have lasted
    wait_until(lambda: boot_clock() > over)
    assert lives(child)
    assert world.left_of_the_lease() > 0
    world.let_go()
    assert working.ends().said() == (0, "done", None)
    assert world.events() == [("start", "start", 1), ("done", None, 1)]


@pytest.mark.parametrize("over", [False, True], ids=["while its lease is good", "when its lease is over"])
def test_what_waits_on_this_host_to_be_recorded_is_told_there(world, own, over):
    lease = "3s" if over else "60s"
    with Proxy(own.port) as proxy:
        there = {"RANONCE_STORE": through(world, own, proxy), "RANONCE_LEDGER": world.ledger}
        world.wait_for_the_store(1)
        working, _ = world.hold("--lease", lease, "--grace-kill", "0.2s", env=there)
        proxy.cut()
        world.let_go()
        assert working.ends().said() == (74, "done", "not-recorded")
    if over:
        wait_until(lambda: world.left_of_the_lease() < 0)
    waits = "its outcome (done) waits on this host to be recorded: ranonce run"
    probe = world.ranonce("probe", "--since", NOON, "--now", NOON)
    assert (probe.exit, waits in probe.out.decode()) == (1, True)
    assert waits in world.ranonce("show", "job", TODAY).out.decode()
    assert b"zombie" in world.ranonce("status", "job", "--since", TODAY, "--until", "2026-11-12").out
    assert world.run().said() == (0, "skipped", "done")
    assert waits not in world.ranonce("show", "job", TODAY).out.decode()


def test_a_server_that_stays_away_ends_the_job_before_its_lease_is_over(world, own):
    with Proxy(own.port) as proxy:
        there = {"RANONCE_STORE": through(world, own, proxy), "RANONCE_LEDGER": world.ledger}
        world.wait_for_the_store(1)
        working, child = world.hold("--lease", "3s", "--grace-kill", "0.2s", env=there)
        proxy.cut()
        wait_until(lambda: not lives(child))
        assert world.left_of_the_lease() > 0  # before another may begin
        ran = working.ends()
    assert (ran.exit, ran.receipt["event"]) == (74, "failed")  # and that could not be recorded, either
    wait_until(lambda: world.run(env=world.another_host()).exit == 0)
    assert world.run().said() == (0, "skipped", "done")
    assert [event for event in world.events() if event[0] != "skipped"] == [
        ("start", "start", 1),
        ("expired", "its lease is over", 1),
        ("start", "take-over", 2),
        ("done", None, 2),
        ("lost", "failed", 1),
    ]


def test_an_outcome_waits_for_a_server_that_restarts(world, own):
    working, _ = world.hold()
    own.stop(signal.SIGKILL)
    world.let_go()
    with pytest.raises(subprocess.TimeoutExpired):
        working.process.wait(0.7)
    own.start()
    assert working.ends().said() == (0, "done", None)


def test_a_server_that_is_not_there_runs_nothing_and_says_so(world, own):
    world.wait_for_the_store(0.5)
    own.stop()
    try:
        ran = world.run()
        probe = world.ranonce("probe", "job")
    finally:
        own.start()
    assert ran.said()[:2] == (69, "unavailable")
    assert "could not be reached in time" in ran.sentence
    assert world.effects() == []
    assert "Traceback" not in probe.err
    assert probe.exit not in (0, 1) or b"missing" in probe.out
    assert world.run().said() == (0, "done", None)
