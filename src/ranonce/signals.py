"""The signals of this process while it works: noted by their handlers, acted upon in one place.

So none is lost between a look and a sleep. Apart from the child's own story (`process`), since a trigger that has
nothing to do never gets so far.
"""

from __future__ import annotations

import _thread
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn, Self
else:
    import _signal as signal  # `signal` turns its numbers into enumerations, which takes 2 ms

STOP_SIGNALS = tuple(
    int(getattr(signal, name)) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)
PASSED_ON = tuple(int(getattr(signal, name)) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))


class Signals:
    """Notes the signals of this process while it works; a context manager for the main thread.

    A signal that was ignored at the start (nohup, a background job) stays ignored and is not passed on.
    """

    def __init__(self) -> None:
        self.first: int | None = None  # the first of TERM INT HUP QUIT that came
        self.interrupted: str | None = None  # why this attempt's children must be stopped
        self.end_by: float | None = None  # and by when they must have ended
        self.handled: tuple[int, ...] = ()  # those that are noted and passed on
        self._received: list[int] = []
        self._before: dict[int, Any] = {}
        self._once_readable: dict[int, Callable[[], None]] = {}
        self._lock = _thread.allocate_lock()

    def __enter__(self) -> Self:
        hold_standard_streams()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._poll = select.poll()
        self._poll.register(self._read_end, select.POLLIN)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, *PASSED_ON):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        self.handled = tuple(self._before)
        # Were CHLD ignored, the kernel would throw the child's status away.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._note)
        # A careless parent may have left us with CHLD or TERM blocked: we would never hear of them.
        self._mask_before = signal.pthread_sigmask(signal.SIG_UNBLOCK, tuple(self._before))
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
        for number, handler in self._before.items():
            if handler is not None:  # None: not installed by Python, and not ours to restore
                signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        with self._lock:  # a thread that is late must not write into whatever gets this number next
            os.close(self._read_end)
            os.close(self._write_end)
            self._write_end = -1

    def interrupt(self, why: str, end_by: float | None = None) -> None:
        """Demand, from any thread, that the child be stopped and no other started: its claim is `lost` or `fenced`.

        `end_by` is the instant of the boot clock by which it must have ended, whatever grace it has.
        """
        if self.interrupted is None:
            self.end_by = end_by
            self.interrupted = why
        self.wake()

    def new_attempt(self) -> None:
        """Forget an interrupt: it was meant for an attempt that is over."""
        self.interrupted = self.end_by = None

    def wake(self) -> None:
        """End a wait, from any thread."""
        with self._lock:
            if self._write_end >= 0:
                try:
                    os.write(self._write_end, b"\0")
                except BlockingIOError:
                    return  # full of wakes: it is awake

    def take(self) -> list[int]:
        """Return the stop signals, USR1 and USR2 that came since the last call, in order."""
        taken, self._received = self._received, []
        return taken

    def wait(self, seconds: float | None) -> None:
        """Sleep until a signal, a wake, something to read, or the end of the time; None: as long as it takes."""
        for fd, _ in self._poll.poll(None if seconds is None else max(seconds, 0) * 1000):
            if fd == self._read_end:
                os.read(fd, 4096)
            elif begin := self.forget(fd):
                begin()

    def when_readable(self, fd: int, begin: Callable[[], None]) -> None:
        """Let `wait` call `begin`, once, when `fd` has something to read or has come to its end."""
        self._once_readable[fd] = begin
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> Callable[[], None] | None:
        """Wait for `fd` no longer; return what was to be called, if it was waited for."""
        begin = self._once_readable.pop(fd, None)
        if begin:
            self._poll.unregister(fd)
        return begin

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            return  # its byte in the pipe is all it is for
        self._received.append(number)
        if self.first is None and number in STOP_SIGNALS:
            self.first = number


def hold_standard_streams() -> None:
    """Open /dev/null where 0, 1 or 2 is closed, so that no file of ours gets that number and the output of a child."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one


def die_by(number: int) -> NoReturn:
    """End this process as the signal would have, without a core dump; as PID 1, or if it does not kill: exit 128+n."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream:
                stream.flush()
        except (OSError, ValueError):
            continue  # broken or closed: there is nobody to tell
    try:
        if os.getpid() != 1:  # the kernel shields PID 1 from signals without a handler
            _no_core_dump()
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
            os.kill(os.getpid(), number)
    finally:  # no signal of this system: the exit status still tells
        os._exit(128 + number)


def _no_core_dump() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    # Not 0: a core pattern that starts a program is obeyed at 0, and only at 1 is it not. Source: core(5), Linux
    resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))
