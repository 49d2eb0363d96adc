"""The wire to a Redis or Valkey server: connect, send commands, read answers; and every wait has an end.

Spoken here, and not through a driver, for three reasons. What can be said at a cut depends on exactly what was sent and
never sent again. A deadline is one for a whole exchange, not for each read of it. And the usual driver takes a hundred
times as long to load as its answer to come, at every start of a job. The protocol is RESP, version 2, which every
server speaks: five kinds of answers. Source: the manual of Redis, "Redis serialization protocol specification".
"""

from __future__ import annotations

import re
import socket
import time

from ranonce.errors import ConfigError
from ranonce.names import plain
from ranonce.record import Record
from ranonce.serverurl import parts_of
from ranonce.stores.redis.answers import Answer, Broken, Foreign, Untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

Command = tuple["str | bytes | int", ...]

#: What an address may say besides its server, the number of its database and the name space.
OPTIONS = ("username", "password", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
#: A peer that vanished is noticed while we wait for nothing, too.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
READ_AT_ONCE = 1 << 16
#: More than any server sends in one line; what does not end a line by then is no such server.
LONGEST_LINE = 1 << 16
#: The same of a value, in bytes or items (`proto-max-bulk-len`), and of lists in lists.
LONGEST_ANSWER = 1 << 29
MOST_NESTED = 4


class Target(Record):
    """Where to connect, and as whom. `tls` has the files to be used, where it is encrypted at all."""

    host: str
    port: int
    database: int
    user: str | None
    password: str | None
    tls: dict[str, str] | None


def target_of(address: str, shown: str) -> Target:
    """Return where an address leads. Raises ConfigError for one that cannot be used."""
    parts = parts_of(address)
    assert parts is not None, "not in its normal form"
    told = {name: _decoded(value) for name, value in parts.options}
    if strange := sorted(set(told) - set(OPTIONS)):
        raise ConfigError(
            f"{shown}: the option {strange[0]!r} is not known.", f"An address may have namespace, {', '.join(OPTIONS)}."
        )
    user = told.pop("username", None) or (_decoded(parts.user) if parts.user else None)
    password = told.pop("password", None) or (_decoded(parts.password) if parts.password else None)
    if user is not None and password is None and parts.password is not None:  # as `init` writes it
        raise ConfigError(
            f"{shown} names the user {plain(user)} with an empty password.",
            "Nothing was run. Set RANONCE_STORE to the whole address, or write ${NAME} as the password in the"
            " configuration.",
        )
    if user is not None and password is None:
        raise ConfigError(
            f"{shown} names a user without a password, or a password without its colon.",
            "Write redis://:PASSWORD@HOST, or redis://USER:PASSWORD@HOST.",
        )
    if told and parts.scheme != "rediss":
        raise ConfigError(f"{shown}: {min(told)} is for rediss:// only.", "Write rediss://, or leave it away.")
    host, _, port = parts.hosts.rpartition(":")
    tls = told if parts.scheme == "rediss" else None
    return Target(_decoded(host.strip("[]")), int(port), int(parts.database or 0), user, password, tls)


def _decoded(text: str) -> str:
    return re.sub(r"(?:%[0-9A-Fa-f]{2})+", lambda found: bytes.fromhex(found[0].replace("%", "")).decode(), text)


class Wire:
    """One connection, made when it is opened. Any error ends its use."""

    def __init__(self, target: Target, give_up: float) -> None:
        """Connect and log in until an instant of the monotonic clock. Raises Broken, Answer, Foreign, Untrusted."""
        self._read = b""
        self._at = 0
        self._heard = False
        try:
            self._sock = _connected(target, give_up)
        except OSError as error:
            raise Broken(said(error)) from error
        try:
            self._log_in(target, give_up)
        except BaseException:
            self.close()
            raise

    def _log_in(self, target: Target, give_up: float) -> None:
        commands: list[Command] = []
        if target.password is not None:
            commands.append(("AUTH", *((target.user,) if target.user else ()), target.password))
        if target.database:
            commands.append(("SELECT", target.database))
        for answer in self.exchange(commands, give_up):
            if isinstance(answer, Answer):
                raise answer

    def exchange(self, commands: Sequence[Command], give_up: float) -> list[Any]:
        """Send commands and return their answers, an `Answer` for each that is refused.

        Raises Broken for a connection that ended or did not answer in time, Foreign for what is no such server's.
        """
        try:
            self._sock.settimeout(_left(give_up))
            self._sock.sendall(packed(commands))
            answers = [self._answer(give_up) for _ in commands]
        except OSError as error:
            raise Broken(said(error)) from error
        if self._at < len(self._read):  # it would be taken for the answer to the next question
            raise Broken("it said more than it was asked")
        return answers

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def __del__(self) -> None:
        """Say nothing of one that nobody has closed: what was answered is durable."""
        if hasattr(self, "_sock"):
            self._sock.close()

    # --- answers ---

    def _answer(self, give_up: float, depth: int = 0) -> Any:
        line = self._line(give_up)
        kind, rest = line[:1], line[1:]
        try:
            if kind == b"+":
                return rest
            if kind == b"-":
                code, _, words = rest.decode("utf-8", "replace").partition(" ")
                return Answer(code, words)
            if kind == b":":
                return _whole(rest)
            length = -2 if kind not in (b"$", b"*") else _whole(rest)
        except ValueError:
            length = -2
        if length == -1:
            return None
        if 0 <= length <= LONGEST_ANSWER and depth <= MOST_NESTED:
            return self._bytes(length, give_up) if kind == b"$" else self._list(length, give_up, depth)
        raise Foreign(f"it said {plain(line[:40].decode('utf-8', 'replace'))!r}")

    def _list(self, length: int, give_up: float, depth: int) -> list[Any]:
        return [self._answer(give_up, depth + 1) for _ in range(length)]

    def _line(self, give_up: float) -> bytes:
        while (end := self._read.find(b"\r\n", self._at)) < 0:
            if len(self._read) - self._at > LONGEST_LINE:
                raise Foreign("its first line does not end")
            self._more(give_up)
        line = self._read[self._at : end]
        self._at = end + 2
        return line

    def _bytes(self, length: int, give_up: float) -> bytes:
        missing = self._at + length + 2 - len(self._read)
        if missing > 0:
            self._more(give_up, missing)
        found = self._read[self._at : self._at + length]
        self._at += length + 2
        if self._read[self._at - 2 : self._at] != b"\r\n":
            raise Foreign("a value does not end where it should")
        return found

    def _more(self, give_up: float, least: int = 1) -> None:
        """Read at least so many bytes more."""
        parts = [self._read[self._at :]]
        while least > 0:
            self._sock.settimeout(_left(give_up))
            part = self._sock.recv(max(READ_AT_ONCE, min(least, 1 << 20)))
            if not part:
                first = "" if self._heard else " before its first answer (is it a Redis or Valkey server?)"
                raise Broken(f"the server closed the connection{first}")
            self._heard = True
            parts.append(part)
            least -= len(part)
        self._read, self._at = b"".join(parts), 0


def packed(commands: Sequence[Command]) -> bytes:
    """Return commands as they are sent: each a list of strings, each with its length before it."""
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for word in command:
            told = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
            parts.append(b"$%d\r\n%b\r\n" % (len(told), told))
    return b"".join(parts)


def _whole(told: bytes) -> int:
    """Return the number that a line tells. ValueError for what is none."""
    if not told.removeprefix(b"-").isdigit():
        raise ValueError(told)
    return int(told)


def said(error: Exception) -> str:
    """Return what the operating system says, on one line."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return plain(" ".join(words.split())).rstrip(".")


def _left(give_up: float) -> float:
    left = give_up - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connected(target: Target, give_up: float) -> socket.socket:
    sock = socket.create_connection((target.host, target.port), _left(give_up))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if target.tls is None:
            return sock
        sock.settimeout(_left(give_up))
        return _encrypted(sock, target.host, target.tls)
    except BaseException:
        sock.close()
        raise


def _encrypted(sock: socket.socket, host: str, files: dict[str, str]) -> socket.socket:
    """Return the socket encrypted, after its server has shown a certificate for its name that is trusted here."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca_certs"))
        if "ssl_ca_certs" in files:  # a house's own authority may lack extensions that Python asks for since 3.13
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if "ssl_certfile" in files:
            context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"))
    except OSError as error:
        named = ", ".join(files.values())
        raise Untrusted(f"a file of the address cannot be used ({named}): {said(error)}") from error
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except TimeoutError as error:
        raise Broken("it did not begin to encrypt in time (is this its port for rediss://?)") from error
    except ssl.SSLCertVerificationError as error:
        raise Untrusted(f"its certificate is not trusted here: {plain(error.verify_message)}") from error
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"):
            raise Untrusted("it does not answer encrypted (rediss://)") from error
        raise
