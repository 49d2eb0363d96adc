"""Fork a child that does nothing until its gate is opened, and turn it into the command.

Between fork and exec everything about the child is put in place: its process group, a parent-death signal (TERM, should
this process be killed), its descriptors and signal dispositions. Then it waits. The parent records who the child is and
opens the gate; if the parent dies first, the gate is shut for good and the child ends without having done anything.
"""

from __future__ import annotations

import errno
import os
import sys

from ranonce.errors import EX_NOT_EXECUTABLE, EX_NOT_FOUND
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn
else:
    import _signal as signal  # `signal` turns its numbers into enumerations, which takes 2 ms

PR_SET_PDEATHSIG = 1  # Source: prctl(2)


class SpawnFailed(Record):
    """The command was not started: exit 126 (not executable) or 127 (not found), and why."""

    exit: int
    sentence: str


class Program(Record):
    """What is to be executed, as the kernel takes it."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: str | None
    stdin: bool
    inherit: tuple[int, ...]


def program(
    argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdin: bool, inherit: tuple[int, ...]
) -> Program | SpawnFailed:
    """Encode a command and its environment; bytes that came undecodable from the system go back as they were."""
    try:
        return Program([_encode(part) for part in argv], _encode_environment(env), cwd, stdin, inherit)
    except ValueError as error:
        return SpawnFailed(EX_NOT_EXECUTABLE, f"The command {argv[0]!r} cannot be started: {error}.")


def _encode(text: str) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} has characters that no encoding of this system has") from None
    if b"\0" in data:
        raise ValueError(f"{text!r} contains a NUL character")
    return data


def _encode_environment(env: Mapping[str, str]) -> dict[bytes, bytes]:
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"{name!r} is no name for an environment variable")
    return {_encode(name): _encode(value) for name, value in env.items()}


class Launch:
    """A forked child behind its gate."""

    def __init__(self, program: Program, outputs: Sequence[int], handled: tuple[int, ...]) -> None:
        """Fork. `outputs` become the child's 1 and 2; `handled` are the signals that this process handles."""
        self._program = program
        pipes: list[tuple[int, int]] = []
        try:
            pipes += [os.pipe(), os.pipe()]
            gate, failure = pipes
            self.pid = self._fork(outputs, handled, gate, failure)
        except OSError:
            for pipe in pipes:
                os.close(pipe[0])
                os.close(pipe[1])
            raise
        os.close(gate[0])
        os.close(failure[1])
        self._gate, self._failure = gate[1], failure[0]
        try:
            os.setpgid(self.pid, self.pid)
        except ProcessLookupError:
            return  # killed already

    def decide(self, opened: bool) -> None:
        """Let the child through the gate, or see it end in front of it."""
        try:
            if opened:
                os.write(self._gate, b"!")
        except BrokenPipeError:
            pass  # somebody has killed it: the supervisor will see that
        finally:
            os.close(self._gate)
        if not opened:
            os.waitpid(self.pid, 0)
            os.close(self._failure)

    def failure(self) -> SpawnFailed | None:
        """Say why the command was not executed; None when it was. Call it once, after the child's end."""
        step, _, number = os.read(self._failure, 64).decode("ascii").partition(" ")
        os.close(self._failure)
        if not step:
            return None
        return _spawn_failed(self._program, step, int(number))

    def _fork(
        self, outputs: Sequence[int], handled: tuple[int, ...], gate: tuple[int, int], failure: tuple[int, int]
    ) -> int:
        prctl = _prctl()
        parent = os.getpid()
        # A signal that came between fork and exec would be noted by the child's copy of our handlers, and lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(outputs, handled, gate, failure[1], parent, prctl)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        return pid

    def _become(
        self,
        outputs: Sequence[int],
        handled: tuple[int, ...],
        gate: tuple[int, int],
        failure: int,
        parent: int,
        prctl: Callable[[int, int], int] | None,
    ) -> NoReturn:
        """In the child: wait for the gate to open, then turn into the command."""
        step = b"start"
        try:
            os.close(gate[1])
            if prctl:
                prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            # 0: the parent is outside of our PID namespace. Its death also shuts the gate.
            if os.getppid() not in (parent, 0) or not os.read(gate[0], 1):
                os._exit(EX_NOT_EXECUTABLE)
            for number in (*handled, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            for fd in self._program.inherit:
                os.set_inheritable(fd, True)
            if not self._program.stdin:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, end in enumerate(outputs, 1):
                os.dup2(end, number)
            if self._program.cwd is not None:
                step = b"folder"
                os.chdir(self._program.cwd)
            step = b"command"
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _execute(self._program)
        except BaseException as error:  # noqa: BLE001 - this is a copy of the parent: nothing may escape into its code
            os.write(failure, b"%s %d" % (step, getattr(error, "errno", None) or 0))
        finally:
            os._exit(EX_NOT_EXECUTABLE)


def _execute(program: Program) -> NoReturn:
    """Replace this process; the errors of a search along PATH are those of execvp(3)."""
    name = program.argv[0]
    if b"/" in name or not name:
        os.execve(name, program.argv, program.env)  # noqa: S606 - no shell is the point
    found: OSError | None = None
    for folder in program.env.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        try:
            os.execve(os.path.join(folder, name), program.argv, program.env)  # noqa: S606
        except PermissionError as error:
            found = error
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT):
                raise
    raise found or FileNotFoundError(errno.ENOENT, "not in PATH")


def _spawn_failed(program: Program, step: str, number: int) -> SpawnFailed:
    name = os.fsdecode(program.argv[0])
    why = os.strerror(number)
    if step == "folder":
        return SpawnFailed(EX_NOT_EXECUTABLE, f"The folder {program.cwd!r} for {name!r} cannot be entered: {why}.")
    if step == "start":
        return SpawnFailed(EX_NOT_EXECUTABLE, f"No process could be set up for {name!r}: {why}.")
    if number == errno.ENOENT and "/" in name:
        if os.path.exists(os.path.join(program.cwd or "", name)):
            return SpawnFailed(
                EX_NOT_EXECUTABLE, f"{name!r} is there, but the interpreter it names (its first line, '#!…') is not."
            )
        return SpawnFailed(EX_NOT_FOUND, f"The command {name!r} was not found.")
    if number == errno.ENOENT:
        path = os.fsdecode(program.env.get(b"PATH", os.fsencode(os.defpath)))
        return SpawnFailed(EX_NOT_FOUND, f"The command {name!r} was not found in PATH={path!r}: give its full path.")
    if number == errno.E2BIG:
        why = "its arguments and environment together are longer than this system allows"
    elif number == errno.ENOEXEC:
        why = "it is neither a program for this machine nor a script that begins with '#!'"
    return SpawnFailed(EX_NOT_EXECUTABLE, f"The command {name!r} cannot be executed: {why}.")


def die_with(parent: int) -> None:
    """Have TERM sent to this process, a child, when its parent is killed; end it at once where that has happened."""
    prctl = _prctl()
    if prctl:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() not in (parent, 0):
        os._exit(EX_NOT_EXECUTABLE)


def _prctl() -> Callable[[int, int], int] | None:
    """Return prctl(2), where there is one.

    Through the C half of ctypes alone: importing all of it would cost every run 1.5 ms. Where a later Python moves
    these names, the whole is imported.
    """
    if sys.platform != "linux":
        return None
    try:
        import _ctypes

        call, address = _ctypes.call_function, _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        return lambda option, value: int(call(address, (option, int(value), 0, 0, 0)))
    except (ImportError, AttributeError, OSError):
        return _prctl_by_ctypes()


def _prctl_by_ctypes() -> Callable[[int, int], int] | None:
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, AttributeError, OSError):
        return None  # a static interpreter: the gate alone protects the start
    return lambda option, value: int(prctl(option, int(value), 0, 0, 0))
