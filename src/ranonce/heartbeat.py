"""Keep a lease while the work goes on, and stop the work in time when the lease cannot be kept.

An attempt that cannot renew must end before another may begin (*self-fencing*). It counts from the moment before the
last confirmed renewal was sent, by a clock that goes on while the machine sleeps, and leaves room for the child to
end. Where everybody who may claim sees that this attempt lives (`signs`), a renewal that fails stops nothing: only the
answer `lost` does.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread

from ranonce.errors import RanonceError
from ranonce.liveness import boot_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ranonce.lifecycle import Refusal

#: A beat costs a write; a lease so short that it would take more of them is renewed late, which is allowed.
SHORTEST_BEAT_SECONDS = 0.01
#: The longest sleep of the fence: after a suspended machine wakes, the clock is looked at again within this time.
FENCE_LOOK_SECONDS = 2.0


def beat_interval(lease_seconds: float) -> float:
    """Return the seconds between two renewals."""
    return min(max(lease_seconds / 5, SHORTEST_BEAT_SECONDS), 30.0)


def stop_margin(lease_seconds: float, grace_seconds: float) -> float:
    """Return how long before the end of the lease the child must be told to stop."""
    return min(grace_seconds, lease_seconds / 3) + kill_margin(lease_seconds)


def kill_margin(lease_seconds: float) -> float:
    """Return how long before the end of the lease a child that was told to stop, and did not, must be killed."""
    return min(5.0, lease_seconds / 6)


class Heartbeat:
    """Renews one claim in a thread of its own.

    `renew` asks the store (None: renewed; a refusal: lost; RanonceError: no answer). `stop` is told "lost" or "fenced",
    once, from another thread; when fenced also by which instant of the boot clock the work must have ended. `fence` is
    False where everybody who may claim sees that the attempt lives. `leave` is called last of all, in the thread that
    has renewed: what it has opened for itself is closed there.
    """

    def __init__(
        self,
        renew: Callable[[], Refusal | None],
        stop: Callable[[str, float | None], None],
        *,
        lease_seconds: float,
        grace_seconds: float,
        fence: bool,
        claimed_at: float,
        clock: Callable[[], float] = boot_clock,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._leave = leave
        self._renew = renew
        self._stop = stop
        self._clock = clock
        self._lease = lease_seconds
        self._margin = stop_margin(lease_seconds, grace_seconds)
        self._confirmed = claimed_at
        self._fence = fence
        # Locks for an event and a once: `threading` is not loaded before the child is forked.
        self._over = allocate_lock()
        self._over.acquire()  # released when it is over
        self._told = allocate_lock()
        self.running = False
        self.lost: Refusal | None = None
        self.last_error: RanonceError | None = None

    def start(self) -> None:
        """Begin to beat. Call it after the child was forked: the fork must come from a single thread."""
        self.running = True
        start_new_thread(self._beat, ())
        if self._fence:
            start_new_thread(self._watch, ())

    def end(self) -> None:
        """Stop beating. A renewal that hangs in a dead connection is left behind."""
        if self._over.locked():
            self._over.release()

    def _sleep(self, seconds: float) -> bool:
        """Sleep, and say whether it was ended meanwhile."""
        if self._over.acquire(timeout=seconds):
            self._over.release()
            return True
        return False

    def _beat(self) -> None:
        try:
            self._keep_up()
        finally:
            self._leave()

    def _keep_up(self) -> None:
        pause = beat_interval(self._lease)
        while not self._sleep(pause):
            sent = self._clock()
            try:
                refusal = self._renew()
            except RanonceError as error:
                self.last_error = error
                pause = min(beat_interval(self._lease), max(0.05, self._lease / 50))
                continue
            if refusal is not None:
                self.lost = refusal
                self._tell("lost")
                return
            self._confirmed = sent
            pause = beat_interval(self._lease)

    def _watch(self) -> None:
        while True:
            over = self._confirmed + self._lease
            left = over - self._margin - self._clock()
            if left <= 0:
                self._tell("fenced", over - kill_margin(self._lease))
                return
            if self._sleep(min(left, FENCE_LOOK_SECONDS)):
                return

    def _tell(self, why: str, end_by: float | None = None) -> None:
        if self._told.acquire(blocking=False) and self._over.locked():
            self._stop(why, end_by)
