"""A connection to Redis or Valkey in which nothing waits for ever, and nothing that writes is sent twice.

The driver (redis-py) connects: addresses, passwords, encryption. It tries nothing again by itself: whether that may be
done depends on what was asked, so it is decided here. A question is asked again on a new connection; a script that
writes is sent once, and when its answer does not come, nobody knows whether it was carried out.
"""

from __future__ import annotations

import os
import time
from hashlib import sha1

from ranonce.errors import ConfigError, StoreUnavailable
from ranonce.names import plain
from ranonce.record import Record
from ranonce.stores.base import LostReply
from ranonce.stores.redis_answers import NO_SERVER, NO_TLS, UNTRUSTED, Answer, passes, translated
from ranonce.storeurl import Server, masked, server_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

try:
    from redis import exceptions as driver
    from redis.connection import Connection as PlainConnection
    from redis.connection import SSLConnection, parse_url
except ImportError as error:
    raise ConfigError(
        "a ledger in Redis or Valkey needs the driver redis-py, which is not installed here.",
        "Install it: pip install 'ranonce[redis]'",
    ) from error

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0
#: No single answer is waited for longer than a third of the whole wait: a connection that went silent leaves time for
#: another one. But never less than this.
LEAST_PATIENCE_SECONDS = 0.2
#: What an address may say besides the server, the number of its database and the name space.
OPTIONS = ("client_name", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
#: Errors of the driver that are answers of the server, by the word that the answer began with.
ANSWERS: tuple[tuple[type[Exception], str], ...] = (
    (driver.NoScriptError, "NOSCRIPT"),
    (driver.ReadOnlyError, "READONLY"),
    (driver.OutOfMemoryError, "OOM"),
    (driver.NoPermissionError, "NOPERM"),
    (driver.BusyLoadingError, "LOADING"),
    (driver.MovedError, "MOVED"),
    (driver.AskError, "ASK"),
    (driver.TryAgainError, "TRYAGAIN"),
    (driver.ClusterCrossSlotError, "CROSSSLOT"),
    (driver.MasterDownError, "MASTERDOWN"),
    (driver.ClusterDownError, "CLUSTERDOWN"),
    (driver.AuthenticationError, "WRONGPASS"),
    (driver.AuthorizationError, "NOPERM"),
)

Command = tuple["str | bytes | int", ...]
Keys = list[str]


class Broken(Exception):
    """The connection is of no use any more. What was sent may have been carried out."""


class Script(Record):
    """A script, and the digest by which a server that has seen it knows it."""

    text: str
    digest: str


def script(text: str) -> Script:
    """Return a script."""
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


class Connection:
    """A connection that is made when it is needed, and made again when it has broken. For one thread."""

    def __init__(self, url: str, wait_seconds: float) -> None:
        server = server_of(url)
        assert server is not None
        self.server: Server = server
        self.shown = masked(url)
        self.wait_seconds = wait_seconds
        self._options = _options(server.address, self.shown, max(wait_seconds / 3, LEAST_PATIENCE_SECONDS))
        self._driver: Any = None
        self._process = 0

    # --- questions ---

    def ask(self, *commands: Command) -> list[Any]:
        """Return the answers to commands that only read, sent in one go.

        A connection that breaks is made again, and all are asked again, until the wait is over.
        """
        answers = self.look(*commands)
        for answer in answers:
            if isinstance(answer, Answer):
                raise translated(answer, self.shown) from answer
        return answers

    def look(self, *commands: Command) -> list[Any]:
        """Return the same, with an `Answer` in the place of what was refused for good."""
        give_up = time.monotonic() + self.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                answers = self._exchange(self._connected(give_up), commands)
            except Broken as error:
                if time.monotonic() + pause > give_up:
                    raise self.unavailable(str(error)) from error
            else:
                passing = next((answer for answer in answers if isinstance(answer, Answer) and passes(answer)), None)
                if passing is None:
                    return answers
                self._wait_or_refuse(passing, give_up, pause)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def ask_script(self, asked: Script, keys: Keys, *values: str | bytes | int) -> Any:
        """Return the answer of a script that only reads."""
        (answer,) = self.look(("EVALSHA", asked.digest, len(keys), *keys, *values))
        if isinstance(answer, Answer) and answer.code == "NOSCRIPT":
            (answer,) = self.look(("EVAL", asked.text, len(keys), *keys, *values))
        if isinstance(answer, Answer):
            raise translated(answer, self.shown) from answer
        return answer

    # --- what writes ---

    def tell_script(self, told: Script, keys: Keys, *values: str | bytes | int) -> Any:
        """Carry out a script that writes, and return its answer.

        Raises LostReply where nobody knows what became of it. A server that refuses it for now is waited for: what was
        refused was not carried out.
        """
        give_up = time.monotonic() + self.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        command: Command = ("EVALSHA", told.digest, len(keys), *keys, *values)
        while True:
            connected = self._connected(give_up)
            try:
                (answer,) = self._exchange(connected, (command,))
            except (Broken, ConfigError) as error:
                raise LostReply(
                    f"the connection to {self.shown} broke before the answer came: {error}.", "Try again later."
                ) from error
            if not isinstance(answer, Answer):
                return answer
            if answer.code == "NOSCRIPT" and command[0] == "EVALSHA":
                command = ("EVAL", told.text, *command[2:])
                continue
            self._wait_or_refuse(answer, give_up, pause)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _wait_or_refuse(self, answer: Answer, give_up: float, pause: float) -> None:
        """Raise what an answer means, unless it may be another one in a moment."""
        if passes(answer) and time.monotonic() + pause <= give_up:
            self.close()  # another server may take over under this name
            return
        raise translated(answer, self.shown) from answer

    # --- the connection ---

    def _connected(self, give_up: float) -> Any:
        """Return a connection that was usable when it was used last; the parent's is none after a fork."""
        if self._driver is not None and self._process == os.getpid():
            return self._driver
        self._driver = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                self._driver, self._process = self._connect(), os.getpid()
                return self._driver
            except Broken as error:
                if time.monotonic() + pause > give_up:
                    raise self.unavailable(str(error)) from error
            except Answer as answer:
                self._wait_or_refuse(answer, give_up, pause)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _connect(self) -> Any:
        """Connect once. Raises Broken, Answer, ConfigError."""
        made: Any = SSLConnection if self.server.scheme == "rediss" else PlainConnection
        try:
            try:
                connection = made(**self._options, driver_info=None)
            except TypeError:  # older drivers name it otherwise; it would cost two round trips at each start
                connection = made(**self._options, lib_name=None, lib_version=None)
            connection.connect()
        except driver.RedisError as error:
            raise self._said(error) from error
        except OSError as error:
            raise Broken(_words(error)) from error
        return connection

    def _exchange(self, connected: Any, commands: Sequence[Command]) -> list[Any]:
        """Send commands and return their answers, an `Answer` for each that is refused. Raises Broken."""
        answers: list[Any] = []
        try:
            connected.send_packed_command([_packed(commands)], check_health=False)
            while len(answers) < len(commands):
                try:
                    answers.append(connected.read_response())
                except driver.ResponseError as error:
                    answers.append(_answer(error))
        except driver.RedisError as error:
            self.close()
            said = self._said(error)
            if isinstance(said, Answer):
                return [*answers, *[said] * (len(commands) - len(answers))]
            raise said from error
        except BaseException:  # interrupted: nobody may take a late answer for that to the next question
            self.close()
            raise
        return answers

    def _said(self, error: driver.RedisError) -> Exception:
        """Return what an error of the driver is: an answer, a broken connection, or something a person must mend."""
        if isinstance(error, driver.InvalidResponse):
            return ConfigError(NO_SERVER.format(shown=self.shown), "Nothing was run; name the right host and port.")
        words = _words(error)
        if "CERTIFICATE_VERIFY_FAILED" in words:
            return ConfigError(UNTRUSTED.format(shown=self.shown), "Name its authority: &ssl_ca_certs=/PATH")
        if "WRONG_VERSION_NUMBER" in words:
            return ConfigError(NO_TLS.format(shown=self.shown), "Write redis://, or name its encrypted port.")
        if "max number of clients" in words:
            return Answer("ERR", words)
        if isinstance(error, driver.ResponseError) or any(isinstance(error, kind) for kind, _ in ANSWERS):
            return _answer(error)
        return Broken(words)

    def unavailable(self, why: str) -> StoreUnavailable:
        """Return the error for a server that gave no answer in time."""
        return StoreUnavailable(f"{self.shown} could not be reached in time: {why}.", "Nothing was started.")

    def close(self) -> None:
        """Let go of the connection; the next question makes another."""
        connection, self._driver = self._driver, None
        if connection is not None and self._process == os.getpid():
            connection.disconnect()


def _options(address: str, shown: str, patience: float) -> dict[str, Any]:
    """Return what the driver is to be made with, from an address."""
    try:
        told: dict[str, Any] = parse_url(address)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigError(f"{shown} is not an address of Redis: {_words(error)}.", "Mend it.") from error
    told.pop("connection_class", None)
    known = {"host", "port", "db", "username", "password", *OPTIONS}
    if strange := sorted(set(told) - known):
        raise ConfigError(
            f"{shown}: the option {plain(strange[0])!r} is not known.", f"An address may have {', '.join(OPTIONS)}."
        )
    told.setdefault("host", "localhost")
    secure = {"ssl_check_hostname": told.get("ssl_cert_reqs") != "none"} if address.startswith("rediss:") else {}
    limits = {"socket_timeout": patience, "socket_connect_timeout": patience, "socket_keepalive": True}
    return {**told, **secure, **limits, "protocol": 2}


def _packed(commands: Sequence[Command]) -> bytes:
    """Return commands as they are sent. The driver could do it, too, in several times the time.

    Source: the manual of Redis, "Redis serialization protocol", "Sending commands to a Redis server".
    """
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for word in command:
            told = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
            parts.append(b"$%d\r\n%b\r\n" % (len(told), told))
    return b"".join(parts)


def _answer(error: Exception) -> Answer:
    """Return the answer that the driver has made an error of: it keeps the first word to itself where it knows it."""
    words = _words(error)
    for kind, code in ANSWERS:
        if isinstance(error, kind):
            return Answer(code, words)
    code, _, rest = words.partition(" ")
    return Answer(code, rest) if code.isupper() else Answer("ERR", words)


def _words(error: Exception) -> str:
    return plain(" ".join(str(error).split())).rstrip(".") or type(error).__name__
