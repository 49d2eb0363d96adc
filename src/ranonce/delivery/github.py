"""Destinations of type github: a comment on an issue or a pull request, once.

GitHub knows no key, so each comment carries its own: a *marker*, hidden in it as an HTML comment. A message that may
have been received is looked for before it is sent again, by its marker, among the comments since it was emitted. Two
tries of a message are never made at the same time (the lease), so nothing of ours comes between the look and the send.

What remains: a comment that the interface does not show yet, or whose request was still on its way when the look was
made. The waits between tries are far longer than either usually takes.

Sources: docs.github.com/en/rest, "Issue comments", "Best practices" (rate limits, pages) and RFC 8288 (Link).
"""

from __future__ import annotations

import re
import time

from ranonce import __version__
from ranonce.delivery.base import Spec
from ranonce.delivery.credentials import credential
from ranonce.delivery.httpanswers import masked, parsed, quoted, wait_of
from ranonce.delivery.httpline import NotSentError, header_problem, request
from ranonce.delivery.httppeer import address_of, url
from ranonce.delivery.httpwire import UnansweredError, Wire
from ranonce.delivery.pool import Pool
from ranonce.delivery.spec import FOREVER, from_environment
from ranonce.errors import ConfigError, UsageError
from ranonce.jsontext import compact
from ranonce.messages import DELIVERED, NOT_RECEIVED, REFUSED, THROTTLED, UNFIT, UNKNOWN, Answer
from ranonce.record import Record
from ranonce.settings import http_date, text
from ranonce.timefmt import format_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ranonce.delivery.base import Sender
    from ranonce.delivery.httppeer import Address
    from ranonce.delivery.httpwire import Reply
    from ranonce.messages import Message

PUBLIC_API = "https://api.github.com"
API_VERSION = "2022-11-28"
#: The beginning of every marker of ours; a body that holds it is refused.
MARKER = "<!-- ranonce-message "
#: Comments are looked through from so long before the message was emitted, by the clock there: clocks differ.
CLOCKS_DIFFER_SECONDS = 86400.0
PAGE = 100  # comments
MOST_PAGES = 50
MOST_BYTES = 32 * 1024 * 1024  # of one page: a hundred comments of the longest
#: For how long nothing is sent where a limit was met and nobody said until when. Source: the documentation of limits.
LIMITED_SECONDS = 60.0

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")


def repo(value: object) -> str:
    """Return the name of a repository, with its owner's."""
    written = text(value)
    if not _REPO.fullmatch(written) or written.endswith(("/.", "/..")):
        raise UsageError(f"{shown(value)} is no repository.", "Write it like octo/hello: OWNER/NAME.")
    return written


KEYS: Mapping[str, Callable[[object], object]] = {"repo": repo, "token": credential, "api": url, "ca": text}
REQUIRED = ("token",)


def dedupes(settings: Mapping[str, object]) -> float:
    """For ever: what may have been received is looked for before it is sent again."""
    return FOREVER


def open_sender(spec: Spec, environ: Mapping[str, str]) -> Sender:
    """Return what sends to a destination. Raises ConfigError for what its settings and the environment do not have."""
    site = site_of(spec, environ)
    return Pool(lambda: GithubCarrier(site), spec.route.concurrency)


class Site(Record):
    """Where comments are written, and as whom."""

    spec: Spec
    address: Address
    token: str

    def target(self, path: str) -> str:
        """Return the first line's address of something in the interface."""
        return f"{self.address.target.rstrip('/')}{path}"


def site_of(spec: Spec, environ: Mapping[str, str]) -> Site:
    """Return where a destination's comments are written. Raises ConfigError."""
    token = (from_environment(spec, "token", environ) or "").strip()
    problem = header_problem(token) if token else "it is empty"
    if problem is not None:
        raise ConfigError(f"{spec.place}.token: with its variables put in, {problem}.", "Set it to a token.")
    authority = spec.settings.get("ca")
    address = address_of(
        from_environment(spec, "api", environ) or PUBLIC_API,
        environ,
        spec.place,
        authority=None if authority is None else str(authority),
        folder=spec.folder,
    )
    return Site(spec, address, token)


class Comment(Record):
    """What a message asks for."""

    repo: str
    issue: int
    body: str

    @property
    def path(self) -> str:
        """Where the comments of its issue are."""
        return f"/repos/{self.repo}/issues/{self.issue}/comments"


def comment_of(message: Message, default_repo: str | None) -> Comment:
    """Return what a message asks for. Raises UsageError for what is no comment."""
    wanted = 'Emit JSON like {"issue": 12, "body": "text"}, with "repo" where the destination has none.'
    told = parsed(message.body or b"")
    if not isinstance(told, dict):
        raise UsageError("the message is no JSON object.", wanted)
    unknown = sorted(set(told) - {"repo", "issue", "body"})
    if unknown:
        raise UsageError(f"the message has {shown(unknown[0])}, which is not known.", wanted)
    issue, body, where = told.get("issue"), told.get("body"), told.get("repo", default_repo)
    if isinstance(issue, bool) or not isinstance(issue, int) or not 0 < issue < 10**12:
        raise UsageError("the message names no issue by its number.", wanted)
    if not isinstance(body, str) or not body.strip():
        raise UsageError("the message has no body.", wanted)
    if where is None:
        raise UsageError("neither the message nor the destination names a repository.", wanted)
    if MARKER.strip().lower() in body.lower():
        raise UsageError("the body holds a marker of ours.", "Take the HTML comment with ranonce-message out of it.")
    return Comment(repo(where), issue, body)


def marker(key: str) -> str:
    """Return the hidden text by which a message's comment is known. Two hyphens would end it early, so they, and all
    else that means something in HTML or in a key, are percent-encoded; what is encoded in the key already is once more.
    """
    encoded = "".join(
        each if each.isascii() and (each.isalnum() or each in "/:.=_") else _escaped(each) for each in key
    )
    return f"{MARKER}{encoded} -->"


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


class _NoAnswerError(Exception):
    """Something was asked, and what became of it stands in the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.words)
        self.answer = answer


class GithubCarrier:
    """Writes one comment at a time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._wire = Wire(site.address.peer)
        self._login: str | None = None
        self._ahead: float | None = None  # seconds by which the clock here is ahead; None until somebody has asked

    def carry(self, message: Message) -> Answer:
        """Send a message and return what became of it. One that may have been received is looked for first."""
        default = self._site.spec.settings.get("repo")
        try:
            comment = comment_of(message, None if default is None else str(default))
        except UsageError as error:
            return Answer(REFUSED, f"{UNFIT}{error}")
        mark = marker(self._site.spec.key(message))
        deadline = time.monotonic() + self._site.spec.route.timeout
        if message.doubt_since is not None or message.tries > 1:
            try:
                found = self._found(message, comment, mark, deadline)
            except _NoAnswerError as error:
                return error.answer
            if found is not None:
                return Answer(DELIVERED, f"found: {_receipt(found)}")
        body = compact({"body": f"{comment.body.rstrip()}\n\n{mark}"}).encode("ascii")
        try:
            return _written(self._asked("POST", comment.path, body, deadline))
        except NotSentError as error:
            return Answer(NOT_RECEIVED, str(error))
        except UnansweredError as error:
            return Answer(UNKNOWN, str(error))

    def close(self) -> None:
        """Let go of the connection."""
        self._wire.close()

    # --- looking ---

    def _found(self, message: Message, comment: Comment, mark: str, deadline: float) -> Any:
        """Return the comment that an earlier try has left, or None. Raises _NoAnswerError where that is not known."""
        login, ahead = self._met(deadline)
        began = min(message.created_at, message.doubt_since or message.created_at) - CLOCKS_DIFFER_SECONDS
        since = format_instant(max(began - ahead, 0.0))
        seen: set[object] = set()
        for page in range(1, MOST_PAGES + 1):
            path = f"{comment.path}?since={since}&per_page={PAGE}&page={page}"
            reply = self._looked(path, deadline)
            comments = parsed(reply.body)
            if not isinstance(comments, list) or not all(isinstance(one, dict) for one in comments):
                raise _NoAnswerError(_not_looked("what it answered is no list of comments"))
            for one in comments:
                if mark in str(one.get("body")) and login in (None, _login_of(one)):
                    return one
            new = {one.get("id") for one in comments} - seen
            seen |= new
            if not new or not _has_next(reply, len(comments)):
                return None
        raise _NoAnswerError(_not_looked(f"there are more than {MOST_PAGES * PAGE} comments since then"))

    def _met(self, deadline: float) -> tuple[str | None, float]:
        """Return who we are there, and by how many seconds our clock is ahead. Nobody, where that is not told (to an
        app, say)."""
        if self._ahead is None:
            reply = self._looked("/user", deadline, may_be_refused=True)
            self._login = _login_of({"user": parsed(reply.body)})
            there = http_date((reply.head.get("date") or "").strip())
            self._ahead = 0.0 if there is None else max(time.time() - there, 0.0)
        return self._login, self._ahead

    def _looked(self, path: str, deadline: float, *, may_be_refused: bool = False) -> Reply:
        """Return the answer to a question. Raises _NoAnswerError where it says nothing."""
        try:
            reply = self._asked("GET", path, b"", deadline)
        except (NotSentError, UnansweredError) as error:
            raise _NoAnswerError(_not_looked(str(error))) from None
        limited = _limited(reply)
        if limited is not None:
            raise _NoAnswerError(limited)
        refused = may_be_refused and reply.status in (403, 404)
        if (reply.status != 200 and not refused) or reply.broken:
            why = f"it answered {quoted(reply)}{f', but {reply.broken}' if reply.broken else ''}"
            raise _NoAnswerError(_not_looked(why, wait_of(reply)))
        return reply

    def _asked(self, method: str, path: str, body: bytes, deadline: float) -> Reply:
        site = self._site
        headers = {
            "Host": site.address.host,
            "User-Agent": f"ranonce/{__version__}",
            "Accept": "application/vnd.github+json",
            "Accept-Encoding": "identity",
            "X-GitHub-Api-Version": API_VERSION,
            "Authorization": f"Bearer {site.token}",
            **({"Content-Type": "application/json"} if body else {}),
        }
        written = request(method, site.target(path), headers, body)
        reply = self._wire.exchange(method, written, max(deadline - time.monotonic(), 0.001), most=MOST_BYTES)
        return masked(reply, (site.token, *site.address.secrets))


def _not_looked(why: str, retry_after: float | None = None) -> Answer:
    """Nothing was sent this time: whether it was before is not known, and stays in doubt as it was."""
    return Answer(NOT_RECEIVED, f"it was not sent, since an earlier try could not be looked for: {why}", retry_after)


def _has_next(reply: Reply, count: int) -> bool:
    """Whether there are more pages: as the answer says, or by the full page where it says nothing."""
    link = reply.head.get("link")
    return 'rel="next"' in link if link is not None else count >= PAGE


def _login_of(comment: dict[str, Any]) -> str | None:
    user = comment.get("user")
    login = user.get("login") if isinstance(user, dict) else None
    return login if isinstance(login, str) else None


def _written(reply: Reply) -> Answer:
    """Return what the answer to a new comment means."""
    limited = _limited(reply)
    if limited is not None:
        return limited
    status, words = reply.status, f"it answered {quoted(reply)}"
    if 200 <= status < 300:
        made = parsed(reply.body)
        if reply.broken is None and isinstance(made, dict) and made.get("id") is not None:
            return Answer(DELIVERED, _receipt(made, status))
        return Answer(UNKNOWN, f"{words}, but no comment: {reply.broken or 'it has no id'}", answered=True)
    if status in (408, 409, 425) or status >= 500 or status < 200:
        return Answer(UNKNOWN, words, wait_of(reply), answered=True)
    if status in (401, 403):
        return Answer(REFUSED, f"it refused the token, see the setting token: {words}", answered=True)
    if status < 400:
        return Answer(REFUSED, f"{words}: the repository has moved; name it as it is called now", answered=True)
    return Answer(REFUSED, words, answered=True)


def _receipt(made: dict[str, Any], status: int | None = None) -> str:
    begin = "" if status is None else f"{status}; "
    return f"{begin}id={made.get('id')}; {made.get('html_url') or made.get('url') or 'it has no address'}"


def _limited(reply: Reply) -> Answer | None:
    """Return the answer for a reply that says no more than: not now. Such a request was not looked at."""
    head = reply.head
    spent = (head.get("x-ratelimit-remaining") or "").strip() == "0"
    told = parsed(reply.body)
    said = str(told.get("message") if isinstance(told, dict) else "").lower()
    secondary = "secondary rate limit" in said or "abuse detection" in said
    if reply.status != 429 and not (reply.status == 403 and (spent or secondary or head.get("retry-after"))):
        return None
    wait = wait_of(reply)
    reset = (head.get("x-ratelimit-reset") or "").strip()
    if wait is None and spent and reset.isascii() and reset.isdigit() and len(reset) < 12:
        wait = max(int(reset) - time.time(), 1.0)
    return Answer(THROTTLED, f"a rate limit: {quoted(reply)}", LIMITED_SECONDS if wait is None else wait, answered=True)
