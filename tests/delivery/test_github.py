"""Comments, once: what is looked for, where, and what each thing that the interface does means."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ranonce.delivery.github import CLOCKS_DIFFER_SECONDS, PAGE, marker, open_sender
from ranonce.delivery.spec import FOREVER, read_spec
from ranonce.errors import ConfigError
from ranonce.lifecycle import RunKey
from ranonce.messages import (
    DELIVERED,
    NOT_RECEIVED,
    PENDING,
    REFUSED,
    THROTTLED,
    UNKNOWN,
    Answer,
    Message,
    message_key,
    settle,
)
from ranonce.timefmt import format_instant, parse_instant
from tests.delivery.sending import EMITTED, TAKEN, emitted
from tests.receivers import RESET, SILENT, Received, Receiver, answer
from tests.servers import free_port

RUN = RunKey("report", "2026-11-07")
KEY = message_key("window", RUN, "issues", "--a--")


def message(told: object = None, key: str = KEY, **changes: object) -> Message:
    body = told if isinstance(told, bytes) else json.dumps(told or {"issue": 12, "body": "Done."}).encode()
    return emitted("issues", body, "application/json", key=key, run=RUN, **{**TAKEN, **changes})


def again(told: object = None, **changes: object) -> Message:
    return message(told, **{"tries": 2, "doubt_since": EMITTED + 5, **changes})


class Github(Receiver):
    """Keeps comments and shows them, a page at a time. `instead` answers what it is given one for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.act = self._answered
        self.comments: list[dict[str, object]] = []
        self.login: str | None = "robot"
        self.links = True
        self.instead: Callable[[Received], bytes | str | None] = lambda _: None
        self.after_commit: bytes | str | None = None

    @property
    def api(self) -> str:
        return self.url.removesuffix("/hook")

    @property
    def bodies(self) -> list[str]:
        return [str(one["body"]) for one in self.comments]

    def asked(self, method: str) -> list[str]:
        return [one.target for one in self.requests if one.method == method]

    def comment(self, body: str, login: str = "robot", at: float = EMITTED) -> None:
        """Leave a comment, as somebody."""
        number = len(self.comments) + 1
        self.comments.append(
            {
                "id": number,
                "body": body,
                "html_url": f"https://github.example/octo/hello/issues/12#issuecomment-{number}",
                "user": {"login": login},
                "updated_at": format_instant(at),
            }
        )

    def _answered(self, request: Received) -> bytes | str:
        instead = self.instead(request)
        if instead is not None:
            return instead
        parts = urlsplit(request.target)
        if parts.path == "/user":
            return answer(403, {"message": "no"}) if self.login is None else answer(200, {"login": self.login})
        if request.method == "POST":
            self.comment(json.loads(request.body)["body"], self.login or "robot", at=EMITTED + 6)
            return self.after_commit or answer(201, self.comments[-1])
        return self._page(parts.path, {name: value[0] for name, value in parse_qs(parts.query).items()})

    def _page(self, path: str, asked: dict[str, str]) -> bytes:
        since = parse_instant(asked["since"])
        all_ = [one for one in self.comments if parse_instant(str(one["updated_at"])) >= since]
        number, size = int(asked["page"]), int(asked["per_page"])
        shown = all_[(number - 1) * size : number * size]
        more = number * size < len(all_)
        link = {"Link": f'<{self.api}{path}?page={number + 1}>; rel="next"' if more else '<x>; rel="first"'}
        return answer(200, shown, link if self.links else None)


@pytest.fixture
def github() -> Iterator[Github]:
    with Github() as github:
        yield github


class Opened:
    def __init__(self, table: dict[str, object], environ: dict[str, str], folder: Path) -> None:
        written = {"type": "github", "token": "${GITHUB_TOKEN}", "timeout": 10, **table}
        self.spec = read_spec("issues", written, lambda keys: ".".join(["here", *keys]), str(folder))
        self.sender = open_sender(self.spec, {"GITHUB_TOKEN": "hunter2hunter2", **environ})

    def send(self, sent: Message | None = None) -> Answer:
        (answered,) = [one[1] for one in self.sender.send([sent or message()], lambda _: True) if one is not None]
        return answered

    def state_after(self, answered: Answer, sent: Message) -> str:
        move = settle(sent, sent, answered, self.spec.route, EMITTED + 10, 0.0)
        assert move is not None
        return move.now.state


@pytest.fixture
def to(tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    opened = []

    def open_(api: str, *, environ: dict[str, str] | None = None, **table: object) -> Opened:
        opened.append(Opened({"api": api, "repo": "octo/hello", **table}, environ or {}, tmp_path))
        return opened[-1]

    yield open_
    for one in opened:
        one.sender.close()
    for thread in threading.enumerate():
        if thread.name == "ranonce carrier":
            thread.join(10)


To = Callable[..., Opened]


# --- sending --------------------------------------------------------------------------------------------------------


def test_a_comment_carries_its_hidden_marker_and_comes_back_with_its_address(to: To, github: Github) -> None:
    answered = to(github.api).send()
    assert answered == Answer(DELIVERED, "201; id=1; https://github.example/octo/hello/issues/12#issuecomment-1")
    (request,) = github.requests
    assert (request.method, request.target) == ("POST", "/repos/octo/hello/issues/12/comments")
    assert request.headers["authorization"] == "Bearer hunter2hunter2"
    assert github.bodies == [f"Done.\n\n{marker(KEY)}"]


def test_the_first_try_looks_for_nothing(to: To, github: Github) -> None:
    to(github.api).send()
    assert github.asked("GET") == []


def test_a_message_may_name_its_repository(to: To, github: Github) -> None:
    to(github.api).send(message({"repo": "other/one", "issue": 3, "body": "x"}))
    assert github.asked("POST") == ["/repos/other/one/issues/3/comments"]


def test_an_interface_may_lie_below_a_path(to: To, github: Github) -> None:
    github.instead = lambda _: answer(201, {"id": 1})
    assert to(f"{github.api}/api/v3/").send().kind == DELIVERED
    assert github.asked("POST") == ["/api/v3/repos/octo/hello/issues/12/comments"]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (b"hello", "no JSON object"),
        ([1], "no JSON object"),
        ({"issue": "12", "body": "x"}, "no issue"),
        ({"issue": True, "body": "x"}, "no issue"),
        ({"issue": 0, "body": "x"}, "no issue"),
        ({"issue": 1}, "no body"),
        ({"issue": 1, "body": "  "}, "no body"),
        ({"issue": 1, "body": "x", "title": "y"}, "title"),
        ({"issue": 1, "body": "x", "repo": "../user"}, "no repository"),
        ({"issue": 1, "body": "x", "repo": "a/b/c"}, "no repository"),
        ({"issue": 1, "body": "x", "repo": "a/.."}, "no repository"),
        ({"issue": 1, "body": f"x {marker('other')}"}, "marker of ours"),
        ({"issue": 1, "body": "x <!-- RANONCE-message y"}, "marker of ours"),
    ],
)
def test_what_is_no_comment_is_refused_and_not_sent(to: To, github: Github, told: object, says: str) -> None:
    answered = to(github.api).send(message(told))
    assert answered.kind == REFUSED and says in answered.words
    assert github.accepted == 0


def test_without_a_repository_nothing_is_sent(tmp_path: Path, github: Github) -> None:
    opened = Opened({"api": github.api}, {}, tmp_path)
    assert "names a repository" in opened.send().words
    opened.sender.close()


# --- markers --------------------------------------------------------------------------------------------------------

KEYS = [
    KEY,
    message_key("window", RUN, "issues", "-"),
    message_key("window", RUN, "issues", ""),
    message_key("window", RUN, "issues", "%2D"),
    message_key("window", RUN, "issues", "--> <b>", generation=2),
    message_key("ledger", RUN, "issues", "ü"),
    'a b "c" <!-- -->',
]


@pytest.mark.parametrize("key", KEYS)
def test_a_marker_is_one_html_comment_whatever_the_key(key: str) -> None:
    within = marker(key).removeprefix("<!-- ").removesuffix(" -->")
    assert "--" not in within and ">" not in within and "<" not in within and within.isascii()


def test_no_two_keys_have_the_same_marker_or_one_that_begins_so() -> None:
    marks = [marker(key) for key in KEYS]
    assert not any(one in other for at, one in enumerate(marks) for other in marks[at + 1 :] + marks[:at])


# --- looking before sending again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [RESET, SILENT, answer(502), answer(200, {}), b"nonsense\r\n"])
def test_what_was_written_and_not_confirmed_is_found_and_not_written_again(
    to: To, github: Github, how: bytes | str
) -> None:
    github.after_commit = how
    destination = to(github.api, timeout=1 if how == SILENT else 10)
    first = message()
    answered = destination.send(first)
    assert answered.kind == UNKNOWN and destination.state_after(answered, first) == PENDING
    github.after_commit = None
    second = destination.send(again())
    assert second.kind == DELIVERED and second.words.startswith("found: id=1; https://github.example/")
    assert len(github.comments) == 1


def test_what_was_not_written_is_written_after_the_look(to: To, github: Github) -> None:
    github.comment("something else")
    github.comment(f"another message\n\n{marker(KEY + 'x')}")
    assert to(github.api).send(again()).words.startswith("201; id=3;")
    assert [one.partition("?")[0] for one in github.asked("GET")] == ["/user", "/repos/octo/hello/issues/12/comments"]


@pytest.mark.parametrize("changes", [{"tries": 2, "doubt_since": None}, {"tries": 1, "doubt_since": EMITTED}])
def test_each_sign_of_an_earlier_try_is_enough_to_look(to: To, github: Github, changes: dict[str, object]) -> None:
    github.comment(f"Done.\n\n{marker(KEY)}")
    assert to(github.api).send(message(**changes)).words.startswith("found: id=1;")


def test_only_comments_since_the_message_was_emitted_are_looked_through(to: To, github: Github) -> None:
    to(github.api).send(again())
    asked = parse_qs(urlsplit(github.asked("GET")[-1]).query)
    assert parse_instant(asked["since"][0]) == EMITTED - CLOCKS_DIFFER_SECONDS


def test_a_clock_here_that_is_days_ahead_hides_no_comment(to: To, github: Github) -> None:
    there = time.time() - 10 * 86400
    user = answer(200, {"login": "robot"}, {"Date": formatdate(there, usegmt=True)})
    github.instead = lambda request: user if request.target == "/user" else None
    github.comment(f"Done.\n\n{marker(KEY)}", at=there)
    sent = again(created_at=time.time(), doubt_since=time.time())
    assert to(github.api).send(sent).words.startswith("found: id=1;")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("before", [0, PAGE - 1, PAGE, 3 * PAGE - 1])
def test_the_comment_is_found_on_whatever_page_it_stands(to: To, github: Github, before: int, links: bool) -> None:
    github.links = links
    for _ in range(before):
        github.comment("noise")
    github.comment(f"Done.\n\n{marker(KEY)}")
    assert to(github.api).send(again()).words.startswith(f"found: id={before + 1};")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("there", [0, PAGE, 2 * PAGE + 1])
def test_where_it_is_on_no_page_the_look_ends(to: To, github: Github, there: int, links: bool) -> None:
    github.links = links
    for _ in range(there):
        github.comment("noise")
    assert to(github.api).send(again()).words.startswith(f"201; id={there + 1};")


def test_an_interface_that_shows_everything_on_every_page_is_looked_through_once(to: To, github: Github) -> None:
    everything = [{"id": number, "body": "noise", "user": {"login": "ann"}} for number in range(PAGE + 5)]
    github.instead = lambda request: answer(200, everything) if "?since" in request.target else None
    assert to(github.api).send(again()).kind == DELIVERED
    assert len(github.asked("GET")) == 3  # who we are, the page, and one that brings nothing new


def test_more_comments_than_anybody_looks_through_are_not_taken_for_none(
    to: To, github: Github, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ranonce.delivery.github.MOST_PAGES", 2)
    for _ in range(2 * PAGE + 1):
        github.comment("noise")
    answered = to(github.api).send(again())
    assert answered.kind == NOT_RECEIVED and "more than" in answered.words
    assert github.asked("POST") == []


def test_a_marker_that_somebody_else_has_copied_is_not_ours(to: To, github: Github) -> None:
    github.comment(f"> Done.\n\n{marker(KEY)}", login="mallory")
    assert to(github.api).send(again()).words.startswith("201; id=2;")


def test_where_nobody_says_who_we_are_the_marker_is_enough(to: To, github: Github) -> None:
    github.login = None
    github.comment(f"Done.\r\n\r\n{marker(KEY)}\r\nedited", login="app[bot]")
    assert to(github.api).send(again()).words.startswith("found: id=1;")


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        *(("/user", instead) for instead in (RESET, answer(500), answer(401))),
        *(("?since=", instead) for instead in (RESET, answer(500), answer(404), answer(401), answer(301))),
        *(("?since=", instead) for instead in (answer(200, {}), answer(200, b"[{]"), answer(200, [1]), b"x\r\n")),
    ],
)
def test_a_look_that_fails_sends_nothing_and_is_made_again(
    to: To, github: Github, what: str, instead: bytes | str
) -> None:
    github.instead = lambda request: instead if what in request.target else None
    destination, sent = to(github.api), again()
    answered = destination.send(sent)
    assert answered.kind == NOT_RECEIVED and "could not be looked for" in answered.words
    assert destination.state_after(answered, sent) == PENDING
    assert github.asked("POST") == []


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, REFUSED) for status in (301, 401, 403, 404, 410, 422)),
        *((status, UNKNOWN) for status in (408, 500, 503)),
        (429, THROTTLED),
    ],
)
def test_what_each_status_means(to: To, github: Github, status: int, kind: str) -> None:
    github.instead = lambda _: answer(status, {"message": "so"})
    answered = to(github.api).send()
    assert answered.kind == kind and "so" in answered.words


SOON = "soon, by the clock"  # ten minutes from when it is asked


@pytest.mark.parametrize(
    ("status", "headers", "told", "least", "most"),
    [
        (429, {"Retry-After": "30"}, "slow", 30, 30),
        (403, {"Retry-After": "30"}, "slow", 30, 30),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": SOON}, "API rate limit exceeded", 300, 600),
        (429, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": SOON}, "API rate limit exceeded", 300, 600),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon"}, "API rate limit exceeded", 60, 60),
        (403, {}, "You have exceeded a secondary rate limit. Please wait.", 60, 60),
        (429, {}, "", 60, 60),
    ],
)
@pytest.mark.parametrize("looking", [False, True])
def test_every_kind_of_limit_is_waited_for(
    to: To, github: Github, status: int, headers: dict[str, str], told: str, least: int, most: int, looking: bool
) -> None:
    soon = str(int(time.time()) + 600)
    said = {name: soon if value is SOON else value for name, value in headers.items()}
    github.instead = lambda _: answer(status, {"message": told}, said)
    answered = to(github.api).send(again() if looking else message())
    assert answered.kind == THROTTLED
    assert answered.retry_after is not None and least <= answered.retry_after <= most


def test_nobody_there_means_not_received(to: To) -> None:
    assert to(f"http://127.0.0.1:{free_port()}").send().kind == NOT_RECEIVED


def test_the_token_never_comes_back(to: To, github: Github) -> None:
    github.instead = lambda request: answer(422, {"message": f"bad {request.headers['authorization']}"})
    words = to(github.api).send().words
    assert "***" in words and "hunter2" not in words


# --- settings -------------------------------------------------------------------------------------------------------


def test_it_dedupes_for_ever(to: To, github: Github) -> None:
    assert to(github.api).spec.route.dedupes == FOREVER


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"token": "hunter2hunter2"}, "a secret stands in the file"),
        ({"repo": "hello"}, "OWNER/NAME"),
        ({"repo": "https://github.com/octo/hello"}, "OWNER/NAME"),
        ({"api": "github.com"}, "https://"),
        ({"token": "${MISSING}"}, "MISSING"),
        ({"token": "${EMPTY}"}, "empty"),
    ],
)
def test_a_mistake_in_the_settings_is_named(to: To, table: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        to(**{"api": "https://api.example", "environ": {"EMPTY": ""}, **table})
    assert "hunter2" not in str(refused.value)
