"""Run one command in a process group of its own, and see it to its end.

TERM, INT, HUP and QUIT go to the whole group, and after the grace KILL; the end of the time limit and an interrupt from
the heartbeat send TERM, then KILL, for which an interrupt may name an earlier instant. USR1 and USR2 are passed on.
What is left of the group after the child's own end is still work; what has left the group is not.

Signals are acted upon in one place, the supervising loop. All deadlines are by the boot clock: time in suspend counts.
"""

from __future__ import annotations

import os

from ranonce.errors import EX_NOT_EXECUTABLE
from ranonce.liveness import boot_clock, group_exists, group_members
from ranonce.output import Kept, Output
from ranonce.record import Record
from ranonce.signals import STOP_SIGNALS
from ranonce.spawn import Launch, program
from ranonce.spawn import SpawnFailed as SpawnFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence

    from ranonce.signals import Signals
else:
    import _signal as signal  # `signal` turns its numbers into enumerations, which takes 2 ms

LONGEST_SLEEP_SECONDS = 5.0  # poll() does not count time in suspend: look at the boot clock this often
# Nothing tells us when a process that is not our child ends: look, with naps from the first to the longest.
FIRST_NAP_SECONDS, LONGEST_NAP_SECONDS = 0.005, 0.1
KILL_SETTLE_SECONDS = 2.0  # for the rest of a group to disappear after KILL; what sleeps in the kernel may take longer

PR_GET_CHILD_SUBREAPER = 37  # Source: prctl(2)


class Leftover(Record):
    """A process of the child's group that outlived it."""

    pid: int
    name: str


class Ending(Record):
    """How a child ended. Neither exit nor signal: it was never started, since a stop was asked for before."""

    exit: int | None = None
    signal: int | None = None
    timed_out: bool = False
    stopped_by: int | None = None
    interrupted: str | None = None
    killed: bool = False
    leftovers: tuple[Leftover, ...] = ()
    output: Kept | None = None


def run_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    signals: Signals,
    cwd: str | None = None,
    stdin: bool = False,
    keep_output: bool = True,
    timeout: float | None = None,
    grace: float = 10.0,
    leftovers: str = "wait",
    leftover_wait: float = 30.0,
    inherit: tuple[int, ...] = (),
    on_started: Callable[[int], object] = lambda pid: None,
    stdout: int = 1,
    stderr: int = 2,
) -> Ending | SpawnFailed:
    """Run a command to its end, without a shell, and say how it ended.

    Durations are seconds. Call it from the main thread, inside `with signals`, and best before other threads run: it
    forks. `env` is the child's whole environment; the command is looked for in its PATH. `inherit` names descriptors
    that the child gets besides 0, 1 and 2 (and those that our own caller left inheritable). `on_started(pid)` is called
    when the child exists but before it may do anything; if it raises, the command is not started. `leftovers` says what
    is done about members of the group that outlive the child: "wait" `leftover_wait` seconds, "kill" or "leave".
    """
    assert leftovers in ("wait", "kill", "leave"), leftovers
    if signals.first is not None or signals.interrupted is not None:
        return Ending(stopped_by=signals.first, interrupted=signals.interrupted)
    signals.take()  # USR1 or USR2 that came earlier were not meant for this child
    command = program(argv, env, cwd, stdin, inherit)
    if isinstance(command, SpawnFailed):
        return command
    output = None
    try:
        output = Output(stdout, stderr) if keep_output else None
        launch = Launch(command, output.child_ends if output else (), signals.handled)
    except OSError as error:
        if output:
            output.discard()
        return SpawnFailed(EX_NOT_EXECUTABLE, f"No process could be started for {argv[0]!r}: {error.strerror}.")
    terminal = _Terminal(stdin)
    opened = False
    try:
        try:
            if output:
                output.start(signals)
            terminal.lend(launch.pid)
            on_started(launch.pid)
            opened = signals.first is None and signals.interrupted is None
        finally:
            launch.decide(opened)
        child = _Child(launch.pid, signals, grace, timeout, terminal)
        left = child.supervise(leftovers, leftover_wait) if opened else ()
    finally:
        terminal.take_back()
        kept = output.finish() if output else None
    if not opened:
        return Ending(stopped_by=signals.first, interrupted=signals.interrupted)
    return launch.failure() or child.ending(left, kept)


# ---------------------------------------------------------------------------------------------- supervision


class _Terminal:
    """The terminal on our stdin, lent to the child's group: a group in the background may not read from it."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted and os.isatty(0)
        self.lent = False

    def lend(self, group: int) -> None:
        """Put the group in front, if we are."""
        try:
            if self.wanted and os.tcgetpgrp(0) == os.getpgrp():
                os.tcsetpgrp(0, group)
                self.lent = True
        except OSError:
            self.wanted = False  # not our controlling terminal: anybody may read from it

    def take_back(self) -> None:
        """Come to the front again, so that we can be read and stopped from it."""
        if not self.lent:
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))  # we are in the background now
        try:
            os.tcsetpgrp(0, os.getpgrp())
        except OSError:
            self.wanted = False  # it was hung up
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Child:
    """The running child: what became of it, what it was sent and why, and until when it may go on."""

    def __init__(self, pid: int, signals: Signals, grace: float, timeout: float | None, terminal: _Terminal) -> None:
        self._pid = pid
        self._signals = signals
        self._grace = grace
        self._terminal = terminal
        self._status: int | None = None
        self._given_orphans: bool | None = None  # not asked yet
        self._timed_out = False
        self._stopped_by: int | None = None
        self._interrupted: str | None = None
        # The stages of the end, each an instant of the boot clock once it is known.
        self._limit_at = None if timeout is None else boot_clock() + timeout
        self._ended_at: float | None = None
        self._kill_at: float | None = None
        self._killed_at: float | None = None

    def supervise(self, leftovers: str, leftover_wait: float) -> tuple[Leftover, ...]:
        """Return at the verdict, with the members of the group that still live then."""
        nap = FIRST_NAP_SECONDS
        while True:
            # Signals first: while the child is not reaped, its number cannot be anybody else's.
            for number in self._signals.take():
                self._pass_on(number)
            self._reap()
            left = self._left()
            if self._ended_at is not None and not left:
                return ()
            now = boot_clock()
            self._press(now)
            if self._ended_at is None:
                self._signals.wait(self._patience(now))
                continue
            if leftovers == "kill":
                self._stop(signal.SIGTERM)
            if self._verdict_is_due(now, leftovers, leftover_wait):
                return tuple(Leftover(pid, name) for pid, name in left)
            self._signals.wait(nap)
            nap = min(nap * 1.5, LONGEST_NAP_SECONDS)

    def ending(self, left: tuple[Leftover, ...], kept: Kept | None) -> Ending:
        """Say how it ended."""
        self._reap()  # the last of the group may have become zombies since
        assert self._status is not None
        died_by = os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else None
        # A service manager signals the whole group at once: the child may be gone before we hear of it. And with the
        # terminal lent, Ctrl-C reaches the child only.
        from_keyboard = self._terminal.lent and died_by in (signal.SIGINT, signal.SIGQUIT)
        if died_by in STOP_SIGNALS and (died_by == self._signals.first or from_keyboard):
            self._stopped_by = self._stopped_by or died_by
        return Ending(
            exit=None if died_by else os.WEXITSTATUS(self._status),
            signal=died_by,
            timed_out=self._timed_out,
            stopped_by=self._stopped_by,
            interrupted=self._interrupted,
            killed=self._killed_at is not None,
            leftovers=left,
            output=kept,
        )

    def _pass_on(self, number: int) -> None:
        if number not in STOP_SIGNALS:
            self._send(number)
            return
        self._stopped_by = self._stopped_by or number
        self._stop(number, again=True)

    def _press(self, now: float) -> None:
        """Do what the clock and the heartbeat ask for."""
        if self._signals.interrupted and not self._interrupted:
            self._interrupted = self._signals.interrupted
            self._stop(signal.SIGTERM)
            if self._kill_at is not None and self._signals.end_by is not None:
                self._kill_at = min(self._kill_at, self._signals.end_by)
        if self._limit_at is not None and now >= self._limit_at and self._kill_at is None:
            self._timed_out = True
            self._stop(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at and self._killed_at is None:
            self._killed_at = now
            self._send(signal.SIGKILL)

    def _stop(self, number: int, *, again: bool = False) -> None:
        """Ask the group to end, and start its grace. A stopped group is continued, or it could not hear us."""
        if self._kill_at is None:
            self._kill_at = boot_clock() + self._grace
        elif not again:
            return
        self._send(number)
        if not self._interrupted:  # but what lost its claim while it was paused must not go on
            self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError:
            pass  # another user's now (sudo): it cannot be stopped by us, only awaited
        if self._status is None:  # not reaped, so the number is still the child's
            try:
                if os.getpgid(self._pid) != self._pid:  # it has left the group, and is our child all the same
                    os.kill(self._pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # as above

    def _reap(self) -> None:
        """Collect our child when it has ended, and the orphans that are given to us as PID 1 or as a subreaper.

        Each by its own number, so that no status can be lost, and other children of this process are left to others.
        """
        if self._status is None:
            options = os.WNOHANG | (os.WUNTRACED if self._terminal.wanted else 0)
            pid, status = os.waitpid(self._pid, options)
            if pid and os.WIFSTOPPED(status):
                self._refuse_to_pause()
            elif pid:
                self._status, self._ended_at = status, boot_clock()
        while (orphan := _zombie()) not in (None, self._pid) and self._is_given_orphans():
            os.waitpid(orphan, 0)

    def _is_given_orphans(self) -> bool:
        if self._given_orphans is None:
            self._given_orphans = os.getpid() == 1 or _is_subreaper()
        return self._given_orphans

    def _refuse_to_pause(self) -> None:
        """Continue a child that Ctrl-Z stopped: its lease would go on, and nobody could reach it to continue it.

        Stopped for reading in the background, it is continued when we have come to the front; otherwise it would only
        be stopped again.
        """
        self._terminal.lend(self._pid)
        if self._terminal.lent:
            self._send(signal.SIGCONT)

    def _left(self) -> list[tuple[int, str]]:
        """Return who of the group lives on after the child; where there is no /proc, the group as such."""
        if self._ended_at is None or not group_exists(self._pid):
            return []
        if not os.path.exists("/proc/self/stat"):
            return [(self._pid, "")]
        return [(process.pid, process.name) for process in group_members(self._pid)]

    def _verdict_is_due(self, now: float, leftovers: str, leftover_wait: float) -> bool:
        assert self._ended_at is not None
        if self._killed_at is not None:
            return now >= self._killed_at + KILL_SETTLE_SECONDS
        if self._kill_at is not None:
            return False
        return leftovers == "leave" or (leftovers == "wait" and now >= self._ended_at + leftover_wait)

    def _patience(self, now: float) -> float | None:
        """Return how long the loop may sleep while the child lives; None: until something happens."""
        due = self._limit_at if self._kill_at is None else self._kill_at
        if due is None or self._killed_at is not None:
            return None
        return min(due - now, LONGEST_SLEEP_SECONDS)


def _zombie() -> int | None:
    """Return a child of ours that has ended and was not collected."""
    if not hasattr(os, "waitid"):
        return None
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended else None


def _is_subreaper() -> bool:
    import ctypes  # rare: asked only when a child that is not ours has ended

    answer = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)
