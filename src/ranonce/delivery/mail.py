"""What a message of a destination of type smtp looks like as a mail: one recipient, one mail. Pure.

A payload is one of

    application/json   {"to": "ann@example.org", "subject": "…", "text": "…", "html": "…"}; only `text` must be there
    text/*             the text; recipient and subject are the destination's
    message/rfc822     a whole mail, sent as it is; what it lacks of From, To, Date and Message-ID is put in front

The same message makes the same mail for ever, byte by byte, `Message-ID` and `Date` included: a receiver that gets it
twice can see that. Sources: RFC 5322 (headers, msg-id), RFC 2047 (words that are not ASCII), RFC 3834 (Auto-Submitted),
RFC 6532 (addresses that are not ASCII).
"""

from __future__ import annotations

import re
from email import policy
from email.header import Header
from email.message import EmailMessage
from email.parser import HeaderParser
from email.utils import formatdate
from hashlib import sha256
from json import loads
from urllib.parse import quote

from ranonce.errors import UsageError
from ranonce.record import Record
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranonce.messages import Message

#: A part of an address before the @ that needs no quotes (RFC 5322 dot-atom, RFC 6531 for what is not ASCII).
_LOCAL = re.compile(r"[\w!#$%&'*+/=?^`{|}~-]+(?:\.[\w!#$%&'*+/=?^`{|}~-]+)*")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")
#: An address alone, or behind a name; a name with a comma in it needs its quotes, since commas separate addresses.
_ADDRESS = re.compile(
    r"""(?P<alone>[^\s<>"(),:;]+)|(?:"(?P<quoted>[^"\\]*)"|(?P<name>[^"\\<>@(),:;]*))\s*<(?P<inside>[^\s<>]+)>"""
)
_LINE_END = re.compile(rb"\r\n|\r|\n")
#: The header of a mail that its message's key stands in.
KEY_HEADER = "X-Ranonce-Key"
_FIELDS = frozenset({"to", "subject", "text", "html"})
#: A subject up to this length stands as it is on one line (RFC 5322 permits 998).
_LONGEST_LINE = 200
_LONGEST_ADDRESS = 320  # characters: 64 before the @, 254 in all, and a name
_BODY = policy.SMTP.clone(cte_type="7bit")


class NoMail(Exception):
    """A payload that no mail can be made of; its words say why."""


class Address(Record):
    """Somebody's address: how he is called, and where the mail goes."""

    name: str
    local: str
    domain: str

    @property
    def spec(self) -> str:
        """The address alone, as in an envelope."""
        return f"{self.local}@{self.domain}"

    @property
    def header(self) -> str:
        """The address with its name, as in a header."""
        if not self.name:
            return self.spec
        if self.name.isascii() and "=?" not in self.name:
            name = self.name.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{name}" <{self.spec}>'
        return f"{Header(self.name, 'utf-8').encode(linesep=_EOL)}{_EOL} <{self.spec}>"


_EOL = "\r\n"


class Mail(Record):
    """A mail on its way: the envelope, and all that stands in it, with lines that end in CR LF."""

    sender: Address
    recipient: Address
    raw: bytes

    @property
    def utf8(self) -> bool:
        """Whether an address or a header is not ASCII, so that a server must know of that (RFC 6531)."""
        headers = self.raw.partition(b"\r\n\r\n")[0]
        return not (self.sender.spec.isascii() and self.recipient.spec.isascii() and headers.isascii())

    @property
    def eight_bit(self) -> bool:
        """Whether it holds anything but ASCII."""
        return not self.raw.isascii()


class Letterhead(Record):
    """What a destination says of its mails: from whom, to whom unless a message says otherwise, and what about."""

    sender: Address
    recipient: Address | None
    subject: str


def address(value: str) -> Address:
    """Return the one address in a text like `ann@example.org` or `Ann <ann@example.org>`. Raises UsageError."""
    found = _ADDRESS.fullmatch(value.strip()) if value.isprintable() and len(value) <= _LONGEST_ADDRESS else None
    if found:
        local, _, domain = (found["alone"] or found["inside"]).rpartition("@")
        domain = domain if domain.isascii() else _ascii_domain(domain)
        if _LOCAL.fullmatch(local) and _DOMAIN.fullmatch(domain):
            return Address((found["name"] or found["quoted"] or "").strip(), local, domain)
    if re.search(r"@[^<>]*>?\s*[,;].*@", value):
        raise UsageError(f"{shown(value)} is more than one address.", "Write one; each message has one recipient.")
    raise UsageError(f"{shown(value)} is no mail address.", "Write one like ann@example.org.")


def _ascii_domain(domain: str) -> str:
    try:
        return domain.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


def mail_of(message: Message, key: str, head: Letterhead) -> Mail:
    """Return the mail that a message is; `key` is the one by which the destination knows it. Raises NoMail."""
    assert message.body is not None
    kind = message.content_type.partition(";")[0].strip().lower()
    if kind == "message/rfc822":
        return _whole(message, key, head)
    if kind == "application/json":
        fields = _fields(message.body)
    elif kind.startswith("text/"):
        body = _decoded(message.body, message.content_type)
        fields = {"text": body} if kind != "text/html" else {"html": body}
    else:
        raise NoMail(f"{shown(kind)} is no mail: emit application/json, text/plain or message/rfc822")
    recipient = _recipient(fields.get("to"), head)
    subject = _subject(fields.get("subject"), message, head)
    subtype = kind.partition("/")[2] if kind.startswith("text/") else "plain"
    content = EmailMessage(policy=_BODY)
    if "text" in fields:
        content.set_content(fields["text"], subtype=subtype)
        if "html" in fields:
            content.add_alternative(fields["html"], subtype="html")
            content.set_boundary(f"=_{_digest(key)}")  # drawn by lot, else
    else:
        content.set_content(fields["html"], subtype="html")
    headers = [
        ("From", head.sender.header),
        ("To", recipient.header),
        ("Subject", subject),
        *_stable(message, key, head),
    ]
    return Mail(head.sender, recipient, _lines(headers) + content.as_bytes(policy=_BODY))


def _stable(message: Message, key: str, head: Letterhead) -> list[tuple[str, str]]:
    """Return the headers that are the same for every try, and tell one message from all others."""
    return [
        ("Date", formatdate(message.created_at)),
        ("Message-ID", message_id(key, head)),
        ("Auto-Submitted", "auto-generated"),
        (KEY_HEADER, key_header(key)),
    ]


def message_id(key: str, head: Letterhead) -> str:
    """Return the Message-ID of a mail that does not bring its own."""
    return f"<ranonce.{_digest(key)}@{head.sender.domain}>"


def key_header(key: str) -> str:
    """Return a message's key as it stands in a header of its mail."""
    return quote(key, safe="._~:@/+=,-%#")


def headers_of(raw: bytes) -> dict[str, str]:
    """Return what the headers of a mail say by their names in small letters, the first of each name."""
    found = HeaderParser(policy=policy.compat32).parsestr(raw.partition(b"\r\n\r\n")[0].decode())
    return {name.lower(): " ".join(str(value).split()) for name, value in reversed(found.items())}


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _lines(headers: Iterable[tuple[str, str]]) -> bytes:
    return "".join(f"{name}: {value}{_EOL}" for name, value in headers).encode()


def _fields(body: bytes) -> dict[str, str]:
    try:
        fields = loads(body)
    except (ValueError, RecursionError) as error:
        raise NoMail(f"its body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise NoMail('its body is no object like {"to": "ann@example.org", "subject": "…", "text": "…"}')
    if isinstance(fields.get("to"), list):
        raise NoMail("`to` is a list, and each message has one recipient: emit one message for each")
    strange = sorted(set(fields) - _FIELDS)
    if strange:
        raise NoMail(f"it has {shown(strange[0])}, and a mail is made of to, subject, text and html")
    for name, value in fields.items():
        if not isinstance(value, str):
            raise NoMail(f"`{name}` is not text")
        if any("\ud800" <= each <= "\udfff" for each in value):
            raise NoMail(f"`{name}` holds half a character")
    if "text" not in fields:
        raise NoMail("it has no `text`")
    return fields


def _decoded(body: bytes, content_type: str) -> str:
    parameters = EmailMessage()
    parameters["Content-Type"] = content_type
    charset = parameters.get_content_charset("utf-8")
    try:
        written = body.decode(charset)
        written.encode()  # some make half characters, which no mail can hold
    except UnicodeError:
        raise NoMail(f"its text is not in {charset}") from None
    except (LookupError, ValueError):
        raise NoMail(f"no characters are called {shown(charset)}") from None
    return written


def _recipient(written: str | None, head: Letterhead) -> Address:
    if written is None:
        if head.recipient is None:
            raise NoMail("it has no recipient: give it one, or the destination (to)")
        return head.recipient
    try:
        return address(written)
    except UsageError as error:
        raise NoMail(f"`to`: {error.sentence}") from None


def _subject(written: str | None, message: Message, head: Letterhead) -> str:
    """Return a subject as it stands in a header: what is not plain ASCII as words of RFC 2047, none over its line."""
    if written is None:
        written = head.subject.replace("{window}", message.run.window).replace("{job}", message.run.job)
    if not written.isprintable():
        raise NoMail(f"its subject {shown(written)} holds line breaks or control characters")
    if written.isascii() and "=?" not in written and len(written) <= _LONGEST_LINE:
        return written
    return Header(written, "utf-8", header_name="Subject").encode(linesep=_EOL)


def _whole(message: Message, key: str, head: Letterhead) -> Mail:
    """Return a mail that is one already. Nothing in it is changed but the ends of its lines: it may be signed."""
    raw = _LINE_END.sub(b"\r\n", message.body or b"")
    if b"\0" in raw:
        raise NoMail("it holds NUL bytes, which no mail can")
    if not raw.endswith(b"\r\n"):
        raw += b"\r\n"
    try:
        found = HeaderParser(policy=policy.compat32).parsestr(raw.partition(b"\r\n\r\n")[0].decode())
    except UnicodeDecodeError:
        raise NoMail("its headers are not UTF-8") from None
    if not found.keys() or found.defects or found.get_unixfrom():
        raise NoMail("it does not begin with the headers of a mail")
    to = [" ".join(str(value).split()) for value in found.get_all("To", [])]
    if len(to) > 1 or any(name in found for name in ("Cc", "Bcc", "Resent-To")):
        raise NoMail("it has more recipients than one To, and each message has one: emit one message for each")
    recipient = _recipient(to[0] if to else None, head)
    needed = [("From", head.sender.header), ("To", recipient.header), *_stable(message, key, head)]
    return Mail(head.sender, recipient, _lines(pair for pair in needed if pair[0] not in found) + raw)
