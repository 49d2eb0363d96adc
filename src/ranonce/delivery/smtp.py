"""Destinations of type smtp: one mail to one recipient for each message.

A mail is taken in by the server's answer to the lone dot at its end, and by nothing before it (RFC 5321, 4.1.1.4 and
4.2.5): what is lost before the dot was sent was not received; what is lost after it may have been. No server dedupes,
so what may have been received is left to a person.

    lost, refused connection, 4xx before the dot      not received
    4xx after the dot                                 not received: the server says that it has not taken it
    5xx to MAIL, RCPT, DATA or after the dot          refused
    encryption or login that do not work, 530, 535    the destination is closed for a while: a person must mend that,
                                                      and no message is given up meanwhile
    nothing after the dot, or no answer of SMTP       unknown
    2xx after the dot                                 delivered; the receipt is the answer, with its queue id
"""

from __future__ import annotations

import re
import smtplib
import ssl
import time

from ranonce.delivery.authority import trusting
from ranonce.delivery.base import Spec
from ranonce.delivery.credentials import credential, without_secrets
from ranonce.delivery.mail import Letterhead, NoMail, address, mail_of
from ranonce.delivery.pool import Pool
from ranonce.delivery.smtpline import PLAIN, STARTTLS, TLS, Line, Lost, Refusal, Session, said, to_be_mended
from ranonce.delivery.spec import from_environment
from ranonce.errors import ConfigError, UsageError
from ranonce.messages import NOT_RECEIVED, REFUSED, UNFIT, UNKNOWN, Answer
from ranonce.names import shown_path
from ranonce.settings import nearest, text, whole
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.messages import Message

PORTS = {STARTTLS: 587, TLS: 465, PLAIN: 25}
#: A kept connection that does not answer this long is made again.
_RSET_SECONDS = 5.0


def encryption(value: object) -> str:
    """Return how a connection is encrypted."""
    written = text(value)
    if written not in PORTS:
        raise UsageError(f"{shown(written)} is no way to encrypt.", nearest(written, PORTS))
    return written


def port(value: object) -> int:
    """Return a port."""
    number = whole(value)
    if not 0 < number < 65536:
        raise UsageError(f"{number} is no port.", "A port is from 1 to 65535.")
    return number


def mail_address(value: object) -> str:
    """Return an address, with a name or without, unless it is yet to be taken from the environment."""
    written = text(value)
    if "${" not in written:
        address(written)
    return written


def subject(value: object) -> str:
    """Return the template of a subject; {job} and {window} are all that is replaced in it."""
    written = text(value)
    for name in re.findall(r"\{([^{}]*)\}", written):
        if name not in ("job", "window"):
            raise UsageError(f"nothing is put in for {{{name}}} in a subject.", "Write {job} and {window}.")
    return written


KEYS = {
    "host": text,
    "port": port,
    "tls": encryption,
    "ca": text,
    "user": text,
    "password": credential,
    "from": mail_address,
    "to": mail_address,
    "subject": subject,
}
REQUIRED = ("host", "from")


def dedupes(settings: Mapping[str, object]) -> float:
    """No mail server dedupes."""
    return 0.0


def open_sender(spec: Spec, environ: Mapping[str, str]) -> Pool:
    """Return what sends mails. Raises ConfigError."""
    host = from_environment(spec, "host", environ) or ""
    user = from_environment(spec, "user", environ)
    password = from_environment(spec, "password", environ)
    if (user is None) != (password is None):
        raise ConfigError(f"{spec.place}: a user or a password is missing.", "A login needs both, or neither.")
    login = (user, password) if user is not None and password is not None else None
    tls = str(spec.settings.get("tls") or (STARTTLS if login else PLAIN))
    number = spec.settings.get("port")
    line = Line(
        host,
        number if isinstance(number, int) else PORTS[tls],
        tls,
        None if tls == PLAIN else _context(spec, environ),
        login,
        spec.route.timeout,
    )
    head = letterhead(spec, environ)
    return Pool(lambda: MailCarrier(spec, line, head), spec.route.concurrency)


def letterhead(spec: Spec, environ: Mapping[str, str]) -> Letterhead:
    """Return what a destination says of its mails. Raises ConfigError."""
    addresses = {}
    for key in ("from", "to"):
        written = from_environment(spec, key, environ)
        try:
            addresses[key] = address(written) if written is not None else None
        except UsageError as error:
            raise ConfigError(f"{spec.place}.{key}: {error.sentence}", error.next_step) from None
    sender = addresses["from"]
    assert sender is not None
    return Letterhead(sender, addresses["to"], str(spec.settings.get("subject", "{job} {window}")))


def _context(spec: Spec, environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return how connections are encrypted, and who vouches for a server."""
    import os

    authority = from_environment(spec, "ca", environ)
    if authority is None:
        return trusting(None)
    path = os.path.join(spec.folder or "/", authority)
    try:
        return trusting(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{spec.place}.ca: {shown_path(path)} cannot be used: {error.strerror or error}.",
            "Name a file of certificates in PEM.",
        ) from None


class MailCarrier:
    """Sends one mail after the other over one connection, which is made again when the server has closed it."""

    def __init__(self, spec: Spec, line: Line, head: Letterhead) -> None:
        self._spec = spec
        self._line = line
        self._head = head
        self._session: Session | None = None

    def carry(self, message: Message) -> Answer:
        """Send a message as a mail. What the server says may repeat what it was told, and nobody may see a password."""
        answer = self._carry(message)
        return answer.replace(words=without_secrets(answer.words, self._line.secrets))

    def _carry(self, message: Message) -> Answer:
        try:
            mail = mail_of(message, self._spec.key(message), self._head)
        except NoMail as error:
            return Answer(REFUSED, f"{UNFIT}{error}")
        give_up = time.monotonic() + self._line.timeout
        try:
            session = self._connected(give_up)
            session.hand_over(mail)
            return session.end_mail()
        except Refusal as refusal:
            return refusal.answer
        except ssl.SSLCertVerificationError as error:
            return to_be_mended(f"{self._line.host} does not prove who it is: {error.verify_message}")
        except (OSError, smtplib.SMTPException) as error:  # before the dot: nothing was received
            self.close()
            return Answer(NOT_RECEIVED, f"{self._line.host}:{self._line.port}: {said(error)}")
        except Lost as lost:
            self.close()
            return Answer(UNKNOWN, f"no answer came after the end of the mail was sent: {lost}")

    def close(self) -> None:
        """Let go of the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.leave()

    def _connected(self, give_up: float) -> Session:
        """Return a session at whose start a mail may begin: the one that there is, if the server still knows it."""
        if self._session is not None:
            self._session.give_up = min(give_up, time.monotonic() + _RSET_SECONDS)
            try:
                if self._session.rset()[0] == 250:
                    self._session.give_up = give_up
                    return self._session
            except (OSError, smtplib.SMTPException):
                pass  # closed meanwhile, as servers do: nothing has been sent yet
            self.close()
        session = Session(self._line, give_up)
        try:
            session.begin()
        except Refusal as refusal:  # of all mails, so of none for good
            session.leave()
            if refusal.answer.kind == REFUSED:
                raise Refusal(refusal.answer.replace(kind=NOT_RECEIVED)) from refusal
            raise
        except BaseException:
            session.close()
            raise
        self._session = session
        return session
