"""Pass a child's output through unchanged, and keep its two ends.

Each stream has a pipe and a thread of its own: bytes go to our descriptor as they come, and into one bounded record.
Whatever happens on our side (closed, full, broken, stuck) is not the child's business: it never sees an error, never
waits longer than our reader makes it wait, and its verdict does not depend on it.

Nothing here waits for ever once the child is gone:
- what the child has written is still passed on, as long as our reader takes something every 5 s;
- a process that left the group and keeps the pipe open is listened to for 2 s, then left alone;
- when our reader is stuck, the rest is taken for the record only.
"""

from __future__ import annotations

import _thread
import os
import select
import time

from ranonce.liveness import boot_clock
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Events(Protocol):
        """What `process.Signals` offers to one who waits in its loop."""

        def wait(self, seconds: float | None) -> None: ...
        def wake(self) -> None: ...
        def when_readable(self, fd: int, begin: Callable[[], None]) -> None: ...
        def forget(self, fd: int) -> Callable[[], None] | None: ...


HEAD_BYTES = 4 * 1024
TAIL_BYTES = 60 * 1024
CHUNK_BYTES = 64 * 1024
PIPE_BYTES = 64 * 1024  # the kernel's default size of a pipe, and the most that can be left in it
HOLD_SECONDS = 2.0  # for a pipe that something outside the group keeps open
STUCK_SECONDS = 5.0  # for a reader of ours that takes nothing


class Kept(Record):
    """The first 4 KiB and the last 60 KiB of both streams together, in the order in which they arrived."""

    head: bytes
    tail: bytes
    total: int

    @property
    def dropped(self) -> int:
        """Bytes between head and tail that were passed through, but not kept."""
        return self.total - len(self.head) - len(self.tail)


class Keeper:
    """Collects what is kept, in memory that does not grow with the output."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self._lock = _thread.allocate_lock()

    def add(self, chunk: memoryview) -> None:
        """Take one chunk, from any thread."""
        with self._lock:
            self._total += len(chunk)
            room = HEAD_BYTES - len(self._head)
            if room:
                self._head += chunk[:room]
                chunk = chunk[room:]
            if len(chunk) >= TAIL_BYTES:
                self._tail[:] = chunk[-TAIL_BYTES:]
                return
            self._tail += chunk
            if len(self._tail) > 2 * TAIL_BYTES:
                del self._tail[:-TAIL_BYTES]

    def kept(self) -> Kept:
        """Return what is kept so far."""
        with self._lock:
            return Kept(bytes(self._head), bytes(self._tail[-TAIL_BYTES:]), self._total)


class Output:
    """The two streams of one child. A stream gets its thread when it has something to say: few jobs use both."""

    def __init__(self, stdout: int, stderr: int) -> None:
        self._keeper = Keeper()
        self._ended, self._end = os.pipe()  # closing the second wakes the threads: the child is gone
        self._pumps: list[_Pump] = []
        self.child_ends: list[int] = []
        try:
            for target in (stdout, stderr):
                source, child_end = os.pipe()
                self._pumps.append(_Pump(source, target, self._keeper, self._ended))
                self.child_ends.append(child_end)
        except OSError:
            self.discard()
            raise

    def start(self, events: Events) -> None:
        """Close our copies of the child's ends, and begin to listen to ours."""
        self._close_child_ends()
        self._events = events
        for pump in self._pumps:
            pump.listen(events)

    def discard(self) -> None:
        """Close everything: nothing was started."""
        self._close_child_ends()
        for pump in self._pumps:
            os.close(pump.source)
        os.close(self._ended)
        os.close(self._end)

    def finish(self) -> Kept:
        """Collect the rest now that the child and its group are gone or given up, and return what is kept."""
        for pump in self._pumps:
            pump.child_is_gone(self._events)
        os.close(self._end)
        while working := [pump for pump in self._pumps if pump.working]:
            patience = max(pump.last_step for pump in working) + STUCK_SECONDS - boot_clock()
            if patience <= 0:
                break
            self._events.wait(patience)
        for pump in working:
            pump.abandon(self._events)
        if not working:
            os.close(self._ended)  # otherwise a stuck thread may still look at it, and the number must not be reused
        return self._keeper.kept()

    def _close_child_ends(self) -> None:
        while self.child_ends:
            os.close(self.child_ends.pop())


class _Pump:
    """Moves one stream from the child's pipe to our descriptor."""

    def __init__(self, source: int, target: int, keeper: Keeper, ended: int) -> None:
        self.source = source
        self.working = True
        self.last_step = 0.0  # boot clock
        self._target: int | None = target
        self._keeper = keeper
        self._ended = ended
        self._listen_until: float | None = None  # boot clock; set when the child is gone
        self._abandoned = False
        self._closing = _thread.allocate_lock()

    def listen(self, events: Events) -> None:
        """Wait in the main thread for the stream to speak, then give it a thread."""
        os.set_blocking(self.source, False)  # our end only: the child's end is a description of its own
        events.when_readable(self.source, lambda: self._begin(events))

    def child_is_gone(self, events: Events) -> None:
        """Set the time by which it must come to its end; close it if there is nothing to wait for."""
        self.last_step = boot_clock()
        self._listen_until = self.last_step + HOLD_SECONDS
        if events.forget(self.source):
            self._begin(events)

    def abandon(self, events: Events) -> None:
        """Leave a stuck thread behind, and take for the record what the child left in the pipe."""
        self._abandoned = True
        events.forget(self.source)
        buffer = memoryview(bytearray(PIPE_BYTES))
        taken = 0
        with self._closing:
            while self.working and taken < PIPE_BYTES and (count := self._read(buffer)):
                self._keeper.add(buffer[:count])
                taken += count

    def _begin(self, events: Events) -> None:
        if _has_ended(self.source):
            return self._close()
        try:
            _thread.start_new_thread(self._run, (events.wake,))
        except RuntimeError:  # no thread to be had now: the child waits at its pipe until there is
            time.sleep(0.05)
            self.listen(events)

    def _run(self, wake: Callable[[], None]) -> None:
        try:
            self._pump()
        finally:
            self._close()
            wake()

    def _close(self) -> None:
        with self._closing:
            os.close(self.source)
            self.working = False

    def _pump(self) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while_it_lives, after = select.poll(), select.poll()
        while_it_lives.register(self.source, select.POLLIN)
        while_it_lives.register(self._ended, 0)  # POLLHUP comes unasked
        after.register(self.source, select.POLLIN)
        left = PIPE_BYTES  # what the child itself may have left in the pipe
        while not self._abandoned:
            count = self._read(buffer)
            if count == 0:
                return
            if count is None:
                if self._listen_until is None:
                    while_it_lives.poll()
                elif not after.poll(max(self._listen_until - boot_clock(), 0) * 1000):
                    return  # empty, and held open by something that left the group
                continue
            self._keeper.add(buffer[:count])
            self._forward(buffer[:count])
            self.last_step = boot_clock()
            if self._listen_until is not None:
                left -= count
                if left <= 0 and self.last_step >= self._listen_until:
                    return  # a daemon that never stops talking

    def _read(self, buffer: memoryview) -> int | None:
        try:
            return os.readv(self.source, [buffer])
        except BlockingIOError:
            return None

    def _forward(self, chunk: memoryview) -> None:
        """Write all of it to our descriptor. After an error (closed, full, gone) the stream is kept, not forwarded."""
        while chunk and self._target is not None:
            try:
                chunk = chunk[os.write(self._target, chunk) :]
            except BlockingIOError:  # somebody who shares our stdout made it non-blocking
                writable = select.poll()
                writable.register(self._target, select.POLLOUT)
                writable.poll(1000)
                if self._abandoned:
                    return
            except OSError:
                self._target = None


def _has_ended(pipe: int) -> bool:
    """Tell whether a pipe is empty and nobody can write into it any more."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return poll.poll(0) == [(pipe, select.POLLHUP)]
