"""From the job that emits to the receiver's own database: jobs, deliverers, gateways and receivers as processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import select
import signal
import time
from collections import Counter
from itertools import pairwise

import pytest

from tests.conftest import NOON, TODAY, wait_until
from tests.delivery.outboxes import declare, fill, let_leases_end, shell, states
from tests.delivery.test_github import Github
from tests.inbox.databases import Receiver as Database
from tests.inbox.databases import prepared
from tests.inbox.workers import workers
from tests.python.conftest import Programs
from tests.receivers import RESET, Receiver, answer


def put(world, *keys, destination="web", day=0):
    with world.opened() as store:
        fill(store, keys, day=day, destination=destination, body=b"{}")


def standing(world, destination="web"):
    with world.opened() as store:
        return states(store, destination)


def deliver_until_sent(world, destination="web"):
    """Deliver, and let time pass, until everything is sent."""
    for _ in range(30):
        with world.opened() as store:
            let_leases_end(store, destination)
        ran = world.ranonce("deliver")
        assert "Traceback" not in ran.err, ran.err
        if standing(world, destination).keys() == {"sent"}:
            return
    pytest.fail(f"it does not come to an end: {standing(world, destination)}")


# --- a batch of comments --------------------------------------------------------------------------------------------


class Comments(Github):
    """Comments of today. Of every seventh one the answer is lost: it is there, and its connection is reset."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lost = 0

        def loses(request):
            if request.method != "POST" or len(self.comments) % 7 != 6:
                return None
            self.lost += 1
            self.comment(json.loads(request.body)["body"])
            return RESET

        self.instead = loses

    def comment(self, body: str, login: str = "robot", at: float = 0.0) -> None:
        super().comment(body, login, time.time())


#: Comments on each of a hundred items, and dies in the sixtieth where it is told to.
BATCH = """
@job("job", every="day", max_attempts=20)
def work(run):
    for item in run.items(range(100)):
        time.sleep(0.01)
        run.emit("issues", {"issue": 12, "body": f"item {item}"})
        if f"{run.attempt}:{item}" == os.environ.get("DIE"):
            os.kill(os.getpid(), signal.SIGKILL)

work.main()
"""


@pytest.mark.every_store
def test_killed_at_item_60_of_100_with_its_deliverers_every_comment_is_there_once_in_the_end(world):
    programs = Programs(world)
    with Comments() as github:
        api = {"type": "github", "api": github.api, "repo": "octo/hello", "token": "${TOKEN}"}
        declare(world, "issues", **api, timeout="5s", max_attempts=100)
        world.env["TOKEN"] = "hunter2hunter2"
        watch = ("deliver", "--watch", "--quiet")
        deliverers = [
            world.start(*watch, env={"RANONCE_FAILPOINT": point}) for point in ("deliver:sent:10", "deliver:settled:2")
        ]
        assert programs.run(BATCH, "--now", NOON, env={"DIE": "1:60"}).exit == -signal.SIGKILL
        assert programs.run(BATCH, "--now", NOON).said() == (0, "done", None)
        deliverers.append(world.start(*watch))
        assert [deliverer.ends().exit for deliverer in deliverers[:2]] == [-signal.SIGKILL] * 2
        deliverers[2].signal(signal.SIGTERM)
        assert deliverers[2].ends().exit == -signal.SIGTERM
        deliver_until_sent(world, "issues")
        assert github.lost > 3
        assert Counter(body.partition("\n")[0] for body in github.bodies) == {f"item {item}": 1 for item in range(100)}
    assert standing(world, "issues") == {"sent": 100}


# --- a gateway before a receiver ------------------------------------------------------------------------------------


class Gateway(Receiver):
    """Hands each request on to whoever stands behind it, and says 503 to the first of each key all the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.behind = 0
        self.act = self._hand_on

    def _hand_on(self, request):
        connection = http.client.HTTPConnection("127.0.0.1", self.behind, timeout=20)
        with contextlib.closing(connection):
            connection.request(
                "POST", "/comments", request.body, {"Idempotency-Key": request.headers["idempotency-key"]}
            )
            told = connection.getresponse()
            body, replayed = told.read(), told.getheader("Idempotency-Replayed", "")
        if self.arrived[request.key] == 1:
            return answer(503, b"upstream timed out")
        return answer(told.status, body, {"Idempotency-Replayed": replayed})


@pytest.fixture(params=["sqlite", "postgresql"])
def board(request, tmp_path):
    """The database of a receiver."""
    if request.param == "sqlite":
        (tmp_path / "board.db").touch()
        return prepared(Database(f"sqlite:///{tmp_path}/board.db"))
    url = request.getfixturevalue("postgres").url("unused").partition("?")[0]
    return prepared(Database(url, schema=f"r{os.urandom(6).hex()}."))


def test_a_gateway_that_answers_503_after_forwarding_makes_nothing_happen_twice(world, board):
    with workers(board, 2) as (port, _), Gateway() as gateway:
        gateway.behind = port
        declare(world, type="http", url=gateway.url, dedupes="1h", max_attempts=5)
        world.run(sh="for i in 1 2 3; do echo '{\"issue\": '$i'}' | $RANONCE emit web --key $i; done")
        assert world.ranonce("deliver").exit == 75
        assert standing(world) == {"pending": 3}
        deliver_until_sent(world)
        assert set(gateway.arrived.values()) == {2}
    assert board.effects() == [json.dumps({"issue": issue}) for issue in (1, 2, 3)]


def test_a_gateway_that_answers_503_before_somebody_who_does_not_dedupe_is_asked_once(world, board):
    with workers(board, 2) as (port, _), Gateway() as gateway:
        gateway.behind = port
        declare(world, type="http", url=gateway.url)
        world.run(sh="echo '{\"issue\": 1}' | $RANONCE emit web")
        assert [world.ranonce("deliver").exit for _ in range(3)] == [80] * 3
        assert set(gateway.arrived.values()) == {1}
    assert standing(world) == {"unsure": 1}
    assert len(board.effects()) == 1


# --- a stream and a mail server -------------------------------------------------------------------------------------


def test_a_deliverer_that_dies_before_its_answers_are_written_leaves_each_key_once_in_a_stream(world, nats_server):
    streams_of = pytest.importorskip("tests.delivery.test_nats").Streams
    with streams_of(nats_server.address) as streams:
        streams.make()
        declare(world, "bus", type="nats", url=nats_server.address, subject=streams.subject)
        world.run(sh="for i in 1 2 3; do echo $i | $RANONCE emit bus --key $i; done")
        died = world.ranonce("deliver", env={"RANONCE_FAILPOINT": "deliver:before-settle"})
        assert died.exit == -signal.SIGKILL
        assert standing(world, "bus") == {"sending": 3}
        deliver_until_sent(world, "bus")
        assert sorted(streams.keys()) == [f"job:{TODAY}/bus/{key}" for key in "123"]


def test_a_deliverer_that_dies_before_its_answer_is_written_sends_no_mail_twice(world):
    with pytest.importorskip("tests.mailserver").MailServer() as server:
        declare(world, "mail", type="smtp", host="127.0.0.1", port=server.port, **{"from": "jobs@example.org"})
        mail = json.dumps({"to": ["ann@example.org", "bo@example.org"], "subject": "s", "text": "done"})
        assert world.run(sh=f"echo '{mail}' | $RANONCE emit mail --json").receipt["messages"] == 2
        died = world.ranonce("deliver", env={"RANONCE_FAILPOINT": "deliver:before-settle"})
        assert died.exit == -signal.SIGKILL
        wait_until(lambda: server.kept)
        with world.opened() as store:
            let_leases_end(store, "mail")
        assert [world.ranonce("deliver").exit for _ in range(2)] == [80, 80]
        came = Counter(recipient for kept in server.kept for recipient in kept.recipients)
        assert set(came.values()) == {1}
        assert {len(kept.recipients) for kept in server.kept} == {1}
        assert set(came) <= {"ann@example.org", "bo@example.org"}
        assert standing(world, "mail") == {"unsure": 2}


# --- how much, and when ---------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_retry_after_longer_than_the_run_is_kept_to_by_the_runs_after_it(world):
    seconds, came = 4, []

    def act(_):
        came.append(time.time())
        return answer(429, headers={"Retry-After": str(seconds)}) if len(came) == 1 else answer(200)

    with Receiver(act=act) as web:
        declare(world, type="http", url=web.url, concurrency=1)
        put(world, "a", "b", "c")
        assert [world.ranonce("deliver").exit for _ in range(2)] == [75, 75]
        assert time.time() - came[0] < seconds, "the machine was too slow for this test"
        assert len(came) == 1
        wait_until(lambda: world.ranonce("deliver").exit == 0, 30)
    assert came[1] - came[0] >= seconds - 0.05
    assert (len(came), standing(world)) == (4, {"sent": 3})


@pytest.mark.every_store
def test_three_deliverers_keep_to_one_rate_together(world):
    came = []

    def act(_):
        came.append(time.monotonic())
        return answer(200)

    with Receiver(act=act) as web:
        declare(world, type="http", url=web.url, rate="4/s")
        put(world, *(f"k{number:02}" for number in range(16)))
        deliverers = [world.start("deliver", "--watch", "--quiet") for _ in range(3)]
        wait_until(lambda: len(came) >= 16, 30)
        for deliverer in deliverers:
            deliverer.signal(signal.SIGTERM)
        assert {deliverer.ends().exit for deliverer in deliverers} == {-signal.SIGTERM}
    assert set(web.arrived.values()) == {1}
    came.sort()
    for number, at in enumerate(came):  # no more than a second's worth at once, then four a second
        assert at - came[0] >= (number - 4) / 4 - 0.1


@pytest.mark.parametrize("dedupes", [False, "1h"], ids=["none", "an hour"])
def test_no_more_are_on_their_way_at_a_destination_than_it_allows(world, dedupes):
    def act(_):
        time.sleep(0.1)
        return answer(200)

    with Receiver(act=act) as narrow, Receiver(act=act) as wide:
        for day, (name, web, concurrency) in enumerate((("narrow", narrow, 1), ("wide", wide, 6))):
            declare(world, name, type="http", url=web.url, concurrency=concurrency, dedupes=dedupes)
            put(world, *(f"k{number:02}" for number in range(12)), destination=name, day=day)
        assert world.ranonce("deliver").exit == 0
    assert narrow.at_once == 1
    assert 1 < wide.at_once <= 6


def test_how_much_is_sent_is_shown_on_a_terminal_and_taken_away_again(world):
    shell(world, "sleep 0.2", concurrency=1)
    put(world, *(f"k{number}" for number in range(12)))
    controller, terminal = pty.openpty()
    deliverer = world.start("deliver", stderr=terminal)
    os.close(terminal)
    shown = b""
    while select.select([controller], [], [], 60)[0]:
        try:
            shown += os.read(controller, 65536)
        except OSError:
            break  # the deliverer has ended
    os.close(controller)
    assert deliverer.ends().exit == 0
    counts = [int(line.split()[1]) for line in shown.decode().split("\r") if line.startswith("sent ")]
    assert len(counts) >= 2
    assert all(before <= after for before, after in pairwise(counts))
    assert b"\r\x1b[K" in shown
