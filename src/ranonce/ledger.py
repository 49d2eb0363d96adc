"""The ledger: the use cases over a store. Read, decide, commit, and the one loop for lost races and lost replies.

The rules stand in `lifecycle`, the keeping in `stores`. Here is what joins them: which store this is, what this host
can prove about other attempts, the journal, and outcomes that an earlier invocation could not commit.
"""

from __future__ import annotations

import os
import time

from ranonce import jsontext as json
from ranonce import lifecycle
from ranonce.calendars import NEVER
from ranonce.errors import ConfigError, NotThisLedger, OutcomeNotRecorded, StoreUnavailable, UsageError
from ranonce.failpoints import failpoint
from ranonce.journal import Journal, MoreRemembered
from ranonce.lifecycle import CLOCK_SLACK_SECONDS as CLOCK_SLACK_SECONDS
from ranonce.lifecycle import Claim, Decision, Refusal, RunKey, ScheduleVersion, Sighting, Verdict
from ranonce.liveness import HostIdentity, boot_clock, examine, forget, others_may_write, this_host, unrecorded
from ranonce.record import Record
from ranonce.stores import open_store
from ranonce.stores.base import Job, LostReply
from ranonce.storeurl import masked, public, same_place
from ranonce.timefmt import format_duration
from ranonce.windows import Schedule, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ranonce.lifecycle import Ask, Event, Run, Snapshot, Step
    from ranonce.messages import Message, Move, No
    from ranonce.storeclock import StoreClock
    from ranonce.stores.base import Store

#: A commit that loses its race is tried again at once; only a store that never lets go ends this.
FIRST_PAUSE_SECONDS = 0.002
#: A real clock that leaves the boot clock by more than this was set, or stands still; slewing is far slower.
CLOCK_JUMP_SECONDS = 60.0


class Declared(Record):
    """A job's schedule as the ledger has it: the version in force, its rule, and all versions."""

    version: ScheduleVersion
    schedule: Schedule
    versions: tuple[ScheduleVersion, ...]

    def named(self, text: str) -> tuple[ScheduleVersion, Window]:
        """Return the window a key or a date names, and the version it belongs to. UsageError where that is not one."""
        from ranonce.naming import one_named

        named = one_named(self.versions, text)
        return named.version, named.window


def schedule_of(version: ScheduleVersion) -> Schedule:
    """Return the rule of a recorded version."""
    return Schedule(version.every, version.tz, version.dialect)


class _Left(Record):
    """What a claim left in the store when it was committed, and when that was by the boot clock, before it was asked
    for. Whoever has changed anything since has moved the job's version, so a decision on it fails at its commit."""

    snap: Snapshot
    at: float


class OpenLedger:
    """An open ledger. `folder` is this ledger's state folder on this host, or None where there is none."""

    def __init__(
        self, store: Store, *, folder: str | None, wait_seconds: float = 30.0, clock: StoreClock | None = None
    ) -> None:
        self.store = store
        self.folder = folder
        self.wait_seconds = wait_seconds
        self.host: HostIdentity = this_host()
        self.warnings: list[str] = []
        self._clock = clock or _clock_of(store)
        self.journal = Journal(folder, store.identity().epoch, present=self.now) if folder else None
        self.sent = 0  # how many messages go out with the verdict that was recorded last
        self._left: _Left | None = None
        self._unsettled: dict[str, ConfigError] = {}  # why outcomes kept on this host cannot be recorded, by owner
        self._unmet: list[dict[str, Any]] = []  # the journal's end, while it says what the ledger does not know
        self._unmet_said = ""

    @classmethod
    def open(
        cls,
        url: str,
        ledger: str | None,
        *,
        state_folder: str | None,
        wait_seconds: float = 30.0,
        reading: bool = False,
        bringing: bool = False,
    ) -> OpenLedger:
        """Open the ledger at a store's URL, and make sure it is the one that is meant.

        `ledger` is the id it must have; without one, this host must have seen the ledger at that URL before. With
        `reading` nothing is created on this host. Raises NotThisLedger for any other ledger, or for one that has gone
        back in time; StoreUnavailable if it cannot be reached. That this host remembers more since another one accepted
        a loss keeps nobody from reading, or from `bringing` in what is remembered: it is a warning then.
        """
        expected = ledger or (known_ledger(state_folder, url) if state_folder else None)
        folder = os.path.join(state_folder, expected) if state_folder and expected else None
        seen = Journal(folder).tail() if folder else []
        store = open_store(url, wait_seconds=wait_seconds)
        identity = store.identity()
        if expected is None:
            raise NotThisLedger(
                f"nothing says which ledger {masked(url)} should be.",
                f"Set RANONCE_LEDGER={identity.ledger} if it is this one, or put its `id` into [ledger] of the file.",
            )
        if identity.ledger != expected:
            raise NotThisLedger(
                f"the store {masked(url)} is ledger {identity.ledger}, not {expected}.",
                "Nothing was run. Name the right store, or restore this one.",
            )
        now = time.time()
        if now < identity.created_at - CLOCK_SLACK_SECONDS:
            raise ConfigError(
                f"this host's clock is before the ledger's birth ({identity.created_at - now:.0f} seconds).",
                "Nothing was run; set the clock.",
            )
        opened = cls(store, folder=folder, wait_seconds=wait_seconds)
        if opened.journal:
            opened._compare(seen, warn=reading or bringing)
            opened._look_at_the_clock(opened.journal.clock_jump(seen, opened.now()))
        opened.warn_of_the_clock()
        if folder and not (os.path.isdir(folder) if reading else _usable(folder)):
            opened.folder = opened.journal = None
            if not reading:
                opened.warnings.append(f"no state folder {folder!r}: no journal and no proof of death on this host")
        return opened

    def _compare(self, seen: list[dict[str, Any]], *, warn: bool) -> None:
        """Compare the end of the journal with the store."""
        assert self.journal is not None
        try:
            self.journal.check(seen, self.store)
        except MoreRemembered as error:
            if not warn:
                raise
            self._unmet, self._unmet_said = seen, str(error)
            self.warnings.append(self._unmet_said)

    def remembers_more(self) -> bool:
        """Whether this host still remembers what the ledger does not know, since another one accepted a loss.

        Until it is brought in nothing may be noted in the journal: that would make this host forget.
        """
        if self._unmet and self.journal is not None:
            try:
                self.journal.check(self._unmet, self.store)
            except MoreRemembered:
                return True
            self._unmet = []
            self.warnings = [each for each in self.warnings if each != self._unmet_said]
        return False

    def _look_at_the_clock(self, jump: float) -> None:
        """Say when the real clock reads earlier than the ledger's last event, or has jumped since this host's last."""
        whose = "this host's clock" if self._clock is None else "the store's clock"
        last, now = self.store.newest_events(1), self.now()
        if last and last[0].at > now + CLOCK_SLACK_SECONDS:
            self.warnings.append(f"{whose} is {format_duration(last[0].at - now)} behind the ledger's last event")
        if abs(jump) > CLOCK_JUMP_SECONDS:
            way = "forward" if jump > 0 else "back, or stands still,"
            self.warnings.append(f"{whose} has gone {way} by {format_duration(abs(jump))} since this host's last event")

    def warn_of_the_clock(self) -> None:
        """Say, once, that this host's clock differs from the store's, which is the one that counts."""
        if self._clock is None:
            return
        self.now()  # which looks, if nobody has yet
        ahead = self._clock.ahead()
        if ahead:
            way = "ahead of" if ahead > 0 else "behind"
            said = f"this host's clock is {format_duration(abs(ahead))} {way} the store's, which counts"
            if said not in self.warnings:
                self.warnings.append(said)

    def now(self) -> float:
        """Return the present, in unix seconds, by the store's real clock. Of a ledger on this host that is our own.

        Whatever is recorded, and whatever is chosen by the time of day, is told by it.
        """
        if self._clock is None:
            return time.time()
        if not self._clock.known:
            asked_at = boot_clock()
            self._clock.seen(self.store.clock().wall, asked_at)
        return self._clock.now()

    def reopen(self, *, wait_seconds: float) -> OpenLedger:
        """Return the same ledger for another thread."""
        store = self.store.reopen(wait_seconds)
        return OpenLedger(store, folder=self.folder, wait_seconds=wait_seconds, clock=self._clock)

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()

    # --- read, decide, commit ---

    def _settle(
        self, key: RunKey, window_start: int, decide: Callable[[Snapshot], Decision], *, unknown: bool = False
    ) -> tuple[Snapshot, Decision]:
        """Decide on a fresh snapshot until a decision is committed or needs no writing.

        A race lost is decided anew. After a lost reply the next snapshot shows whether the commit happened: the
        decision then finds the asker's own owner id (and keeps what it has), or decides again. Raises LostReply where
        that could not be seen in time; `unknown`: one was lost already.
        """
        give_up = time.monotonic() + self.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                asked_at = boot_clock()
                snap = self.store.read(key, window_start)
                if self._clock is not None:
                    self._clock.seen(snap.wall, asked_at)
                decision = decide(snap)
                if not decision.writes:
                    return snap, decision
                written = self.store.commit(decision, key, snap.version)
            except LostReply:
                if time.monotonic() > give_up:
                    raise
                unknown = True
                time.sleep(pause)
                pause = min(pause * 2, 1.0)
                continue
            except StoreUnavailable as error:
                if not unknown:
                    raise
                raise LostReply(error.sentence, error.next_step) from error
            if written is not None:
                self._note(written, decision.messages)
                return snap, decision
            if time.monotonic() > give_up:
                raise StoreUnavailable(f"{key} changed faster than it could be decided on.", "Try again later.")

    def _note(self, events: tuple[Event, ...], messages: Sequence[Message] = ()) -> None:
        if self.journal is None or self.remembers_more():
            return
        try:
            self.journal.append(events, messages)
        except OSError as error:
            self.warnings.append(f"the journal {self.journal.path!r} could not be written: {error.strerror}")
        failpoint("journal:written")

    # --- claims ---

    def claim(self, ask: Ask, *, before_start: Callable[[], None] | None = None) -> Claim | Refusal:
        """Claim a run, or learn why not. `before_start` is called when a claim is about to be committed.

        Raises NotThisLedger where the store contradicts itself, StoreUnavailable where no answer came in time: then
        nothing may be started.
        """
        if not ask.record_skip and ask.rerun_reason is None:
            done = self.store.done(ask.key, ask.window.start)
            if done is not None:
                return lifecycle.already_done(done, ask)

        def decide(snap: Snapshot) -> Decision:
            if snap.version < 0:
                raise NotThisLedger(f"the ledger does not know the job {ask.key.job!r}.", "Declare it: ranonce add")
            decision = lifecycle.claim(snap, ask, self._sightings(snap, ask.owner))
            if decision.move in lifecycle.STARTS and decision.accepted:
                self._ask_the_events(snap, ask)
            if decision.move == lifecycle.TAKE_OVER and decision.writes:
                # It may have left its outcome here in this very moment. Then the job's version has moved on, this
                # decision is not committed, and the next one knows.
                self.settle_unrecorded()
                if snap.run is not None and (trouble := self._unsettled.get(snap.run.owner)) is not None:
                    raise trouble
            if decision.accepted and decision.writes and before_start:
                before_start()
            return self._signed(decision)

        asked_at = boot_clock()
        snap, decision = self._settle(ask.key, ask.window.start, decide)
        left = lifecycle.left_behind(snap, decision)
        self._left = _Left(left, asked_at) if left else None
        if decision.move == lifecycle.TAKE_OVER and snap.run is not None:
            self._bury(snap.run.owner)
        if decision.refusal:
            return decision.refusal
        return lifecycle.claim_of(decision, snap, ask)

    def _signed(self, decision: Decision) -> Decision:
        """Return a decision whose lease says who holds it. Looked up only for a claim that is about to be committed: a
        trigger with nothing to do is spared the look."""
        if decision.lease is None or decision.lease.process:
            return decision
        from ranonce.sight import ourselves

        return decision.replace(lease=decision.lease.replace(process=ourselves(self.host, self.folder)))

    def _ask_the_events(self, snap: Snapshot, ask: Ask) -> None:
        """Refuse to start what the events know to be done: then the run's row is damaged or was changed by hand."""
        generation = snap.run.generation if snap.run else None
        if ask.rerun_reason is not None or not self.store.witnessed(ask.key, ask.window.start, generation):
            return
        if self.store.read(ask.key, ask.window.start).version == snap.version:  # else it happened just now
            raise NotThisLedger(
                f"the ledger is damaged: its events and its runs tell different stories of {ask.key}.",
                "Nothing was run. Look at it (ranonce doctor --deep), and restore it from a backup, or go on with what "
                "is still known: ranonce accept-loss --reason TEXT",
            )

    def _sightings(self, snap: Snapshot, asker: str) -> dict[str, Sighting]:
        """Look at the processes of the attempts that stand in the way, as far as this host can."""
        holders = {rival.lease.owner: rival.lease.process for rival in snap.rivals}
        if snap.run is not None and snap.run.status == lifecycle.RUNNING:
            holders[snap.run.owner] = snap.lease.process if snap.lease else ""
        holders.pop(asker, None)
        return {owner: self.sighting(owner, process) for owner, process in holders.items()}

    def sighting(self, owner: str, process: str = "") -> Sighting:
        """Return what can be proved here of the attempt behind a claim; `process` is what its lease says of it."""
        from ranonce.sight import sighting_of

        return sighting_of(owner, process, folder=self.folder, beside=self.store.beside, here=self.host)

    def _bury(self, owner: str) -> None:
        """Remove the file of an attempt that is dead and left no outcome."""
        if self.folder is None or examine(self.folder, owner, self.host).state != "dead":
            return
        if all(left != owner for left, _ in unrecorded(self.folder)):
            forget(self.folder, owner)

    def crashed(self, key: RunKey, window_start: int) -> Run | None:
        """Return a run that is running by its record with nobody behind it, as far as this host can tell; else None."""
        snap = self.store.read(key, window_start)
        zombie = lifecycle.situation(snap, "", None, self._sightings(snap, "")) == lifecycle.ZOMBIE
        return snap.run if zombie else None

    def renew(self, held: Claim, overlap: str) -> Refusal | None:
        """Renew a claim for another lease. A refusal means the claim is lost."""
        _, decision = self._settle(held.key, held.window.start, lambda snap: lifecycle.renew(snap, held, overlap))
        return decision.refusal

    def finish(self, held: Claim, verdict: Verdict) -> Refusal | None:
        """Record a verdict. A refusal means that another attempt holds the run; the verdict is kept as `lost`."""
        unknown = False
        try:
            if self._finished_at_once(held, verdict):
                return None
        except LostReply:
            unknown = True

        def decide(snap: Snapshot) -> Decision:
            return lifecycle.finish(snap, held, verdict, self._known(verdict.messages))

        _, decision = self._settle(held.key, held.window.start, decide, unknown=unknown)
        self._tell_of_messages(held, verdict, decision)
        return decision.refusal

    def _tell_of_messages(self, held: Claim, verdict: Verdict, decision: Decision) -> None:
        """Note for the receipt how many messages go out with a verdict, and warn of those that contradict others."""
        self.sent = len(decision.messages)
        if decision.refusal is None and not decision.writes:  # it was committed, and the reply was lost
            ours = (held.key, held.generation, held.attempt, "")
            known = self._known(verdict.messages).values()
            self.sent = sum((each.run, each.generation, each.attempt, each.item) == ours for each in known)
        self.warn_of_conflicts(decision)
        self.warnings += [f"{event.key}: {event.reason}" for event in decision.events if decision.move == "note"]

    def warn_of_conflicts(self, decision: Decision) -> None:
        """Warn of messages that do not go out, since their keys stand for other bodies."""
        self.warnings += [str(event.reason) for event in decision.events if "message" in event.data]

    def _known(self, messages: Sequence[Message]) -> dict[str, Message]:
        """Return the messages that stand in the outbox under the keys of these."""
        return self.store.outbox().known([message.key for message in messages]) if messages else {}

    def mark(self, held: Claim, step: Step, messages: Sequence[Message] = ()) -> Refusal | None:
        """Commit a step of an attempt: its mark, its result and its messages, at once or not at all.

        A step that is marked already stays as it is, and nothing of this is written: it was done before. A refusal
        means that another attempt has the run. A message whose key stands for another body is noted, and does not go
        out. Raises LostReply where it could not be seen in time whether it was committed, StoreUnavailable.
        """
        give_up = time.monotonic() + self.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        known: dict[str, Message] = {}
        unknown = False
        place = (held.key, held.window.start)
        while True:
            try:
                decision = lifecycle.mark(held, step, messages, known)
                written = self.store.commit(decision, held.key, -1)
                if written is not None:
                    failpoint("mark:committed")
                    self._note(written, decision.messages)
                    self.warn_of_conflicts(decision)
                    return None
                snap = self.store.read(*place)
                if (refusal := lifecycle.fenced_off(snap, held)) is not None:
                    return refusal
                known = self._known(messages)
                if self.store.step(*place, held.generation, step.name) is not None:
                    if missing := sum(message.key not in known for message in messages):  # so this was not our commit
                        which = step.name.replace("\t", " / ")
                        self.warnings.append(
                            f"{which!r} was done by somebody else meanwhile: messages not sent: {missing}"
                        )
                    return None
            except LostReply:
                unknown = True
                if time.monotonic() > give_up:
                    raise
                time.sleep(pause)
                pause = min(pause * 2, 1.0)
            except StoreUnavailable as error:
                if not unknown:
                    raise
                raise LostReply(error.sentence, error.next_step) from error
            if time.monotonic() > give_up:
                raise StoreUnavailable(f"{held.key} changed faster than {step.name} could be marked.", "Try again.")

    def _finished_at_once(self, held: Claim, verdict: Verdict) -> bool:
        """Record the verdict of a short attempt on what its claim is known to have left, without reading it again.

        Raises LostReply, too.
        """
        left, self._left = self._left, None
        passed = boot_clock() - left.at if left else 0.0
        if left is None or left.snap.run is None or left.snap.run.key != held.key or passed > held.lease_seconds / 2:
            return False
        snap = left.snap.replace(now=left.snap.now + passed, wall=left.snap.wall + passed)
        decision = lifecycle.finish(snap, held, verdict)
        if decision.refusal is not None:
            return False
        written = self.store.commit(decision, held.key, snap.version)
        if written is None:
            return False
        self._note(written, decision.messages)
        self._tell_of_messages(held, verdict, decision)
        return True

    def reconciled(self, held: Claim, max_attempts: int) -> Refusal | None:
        """Go on after a look found the crashed work undone. A refusal means it was the last attempt, or is lost."""
        _, decision = self._settle(
            held.key, held.window.start, lambda snap: lifecycle.reconciled(snap, held, max_attempts)
        )
        return decision.refusal

    def release(self, key: RunKey, window_start: int, as_: str, reason: str, *, by: str) -> Refusal | None:
        """Let a person say what became of a run: `done` or `not-done`."""

        def decide(snap: Snapshot) -> Decision:
            return lifecycle.release(snap, as_, reason, self._sightings(snap, ""), by=by)

        return self._settle(key, window_start, decide)[1].refusal

    def note(
        self, key: RunKey, window_start: int, text: str, *, by: str, held: tuple[str, int] | None = None
    ) -> Refusal | None:
        """Note something about a window. `held` are owner and attempt of a job that notes it about its own run."""

        def decide(snap: Snapshot) -> Decision:
            if snap.version < 0:
                raise NotThisLedger(f"the ledger does not know the job {key.job!r}.", "Declare it: ranonce add")
            return lifecycle.note(snap, key, window_start, text, by=by, host=self.host.host, held=held)

        return self._settle(key, window_start, decide)[1].refusal

    def settle_messages(
        self,
        key: RunKey,
        window_start: int,
        names: Sequence[str],
        decide: Callable[[Message, Snapshot], Move | No],
        told: Callable[[Sequence[Move]], str],
        *,
        by: str,
    ) -> dict[str, Move | No]:
        """Let a person say what becomes of messages of one run, by their keys; return what was decided of each.

        The moves are committed at once, together with a note in the story of the run's window: what `told` makes of
        them. That needs neither the run nor its schedule any more.
        """
        from ranonce.messages import Move, stands

        answers: dict[str, Move | No] = {}

        def decision(snap: Snapshot) -> Decision:
            known = self.store.outbox().known(names)
            tried = [answer for answer in answers.values() if isinstance(answer, Move)]
            if tried and all(stands(move, known.get(move.was.key)) for move in tried):
                return Decision("keep")  # the reply to this very commit was lost
            answers.clear()
            answers.update({name: decide(known[name], snap) for name in names if name in known})
            moves = [answer for answer in answers.values() if isinstance(answer, Move)]
            if not moves:
                return Decision("refuse")
            noted = lifecycle.note(snap, key, window_start, told(moves), by=by, host=self.host.host)
            data = {"outbox": [move.was.seq for move in moves]}
            events = tuple(event.replace(data={**event.data, **data}) for event in noted.events)
            return noted.replace(moves=tuple(moves), events=events)

        self._settle(key, window_start, decision)
        return answers

    def resends(self, held: Claim) -> bool:
        """Say whether the rerun that began a claim's generation asked for what it sends to be sent again."""
        start = held.window.start
        return any(
            event.event == "rerun"
            and event.key == held.key
            and event.generation == held.generation
            and bool(event.data.get("resend"))
            for event in self.store.notable_events(held.key.job, start, start + 1)
        )

    # --- outcomes that could not be recorded ---

    def finish_or_keep(self, held: Claim, verdict: Verdict, keep: Callable[[str, bool], None] | None) -> Refusal | None:
        """Record a verdict; keep trying while the store is away, then leave it with this host.

        `keep(text, sync)` puts the outcome into the attempt's file: before the commit, so that a kill between the
        child's end and the commit loses nothing, and once more with fsync if it cannot be committed. Raises
        OutcomeNotRecorded then.
        """
        text = outcome_text(held, verdict)
        _kept(keep, text, sync=False)
        failpoint("finish:outcome-kept")
        give_up = time.monotonic() + self.wait_seconds
        pause = 0.05
        while True:
            began = time.monotonic()
            try:
                return self.finish(held, verdict)
            except (StoreUnavailable, NotThisLedger, ConfigError) as error:
                tried = time.monotonic()
                waited = tried - began > self.wait_seconds / 2  # by the store itself, and it would wait as long again
                if waited or tried + pause > give_up or not isinstance(error, StoreUnavailable):
                    raise OutcomeNotRecorded(
                        f"{held.key} ended ({verdict.outcome}), but that could not be recorded: {error.sentence}",
                        "The outcome waits on this host; the next run here records it before anything else."
                        if _kept(keep, text, sync=True)
                        else f"Nor could it be kept on this host: say it yourself (ranonce release {held.key.job} …).",
                    ) from error
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def settle_unrecorded(self) -> list[tuple[RunKey, str]]:
        """Commit the outcomes that earlier invocations on this host could not; say which.

        Comes before anything else, so that work that was done is not done again. One that may not be recorded (by a
        role without the rights to write messages, say) stands in the way of its own run, and of no other.
        """
        if self.folder is None:
            return []
        settled = []
        for owner, text in unrecorded(self.folder):
            outcome = outcome_of(text)
            if outcome is None:
                self.warnings.append(f"the outcome kept for attempt {owner} cannot be read")
                continue
            held, verdict = outcome
            try:
                refusal = self.finish(held, verdict)
            except NotThisLedger as error:
                self.warnings.append(f"the outcome kept for attempt {owner} does not fit this ledger: {error.sentence}")
                continue
            except ConfigError as error:
                self._unsettled[owner] = error
                said = f"the outcome of {held.key} waits on this host, and cannot be recorded: {error.sentence}"
                self.warnings += [said] if said not in self.warnings else []
                continue
            failpoint("unrecorded:committed")
            forget(self.folder, owner)
            settled.append((held.key, "lost" if refusal else verdict.outcome))
        return settled

    # --- schedules ---

    def declared(self, job: str) -> Declared | None:
        """Return the schedule the ledger has for a job, or None."""
        versions = lifecycle.present_schedules(self.store.schedules(job), self.now())
        return Declared(versions[-1], schedule_of(versions[-1]), versions) if versions else None

    def declare(
        self,
        job: Job,
        every: Schedule,
        offset: int,
        *,
        now: float,
        change: bool,
        still: Callable[[], bool] | None = None,
    ) -> tuple[Declared, bool]:
        """Record a job's schedule if it is new or, with `change`, differs; return it, and whether it was changed.

        Without `change` a schedule that contradicts the recorded one is refused (ConfigError). `still` is asked about a
        job that the ledger knows as removed: a caller that read its configuration before must not bring the job back.
        After a lost reply it is looked up what the ledger has. Raises LostReply where that could not be seen in time.
        """
        give_up = time.monotonic() + self.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        changing = False  # as far as is known, by us
        while True:
            known = self.store.job(job.name)
            recorded = self.declared(job.name)
            version = None
            if recorded is None:
                version = ScheduleVersion(1, every.every, every.tz, every.dialect, offset, None, self.now())
            elif recorded.schedule != every or recorded.version.offset != offset:
                if not change:
                    raise _contradiction(job.name, recorded, every, offset)
                if recorded.schedule.every == NEVER and still is not None and not still():
                    raise UsageError(f"the job {job.name!r} was removed.", f"Declare it again: ranonce add {job.name}")
                start = self._begins(job.name, recorded, every, now)
                number = self.store.schedules(job.name)[-1].number + 1
                version = ScheduleVersion(number, every.every, every.tz, every.dialect, offset, start, self.now())
            same = known and (known.late_after, known.max_attempts) == (job.late_after, job.max_attempts)
            if recorded is not None and version is None and same:
                return recorded, changing
            try:
                done = self.store.record_schedule(job, version, known.version if known else -1)
            except LostReply:
                if time.monotonic() > give_up:
                    raise
                changing = version is not None and recorded is not None
                time.sleep(pause)
                pause = min(pause * 2, 1.0)
                continue
            if done:
                declared = self.declared(job.name)
                assert declared is not None
                return declared, version is not None and recorded is not None
            if time.monotonic() > give_up:
                raise StoreUnavailable(
                    f"the schedule of {job.name!r} could not be recorded in time.", "Try again later."
                )

    def _begins(self, job: str, recorded: Declared, every: Schedule, now: float) -> int:
        """Where a new version begins: the end of the last started window; without one, the window that is now.

        Never in a future that is only supposed (`--now`): the windows until then would belong to nobody. Nor in a
        supposed past: what has run since then ran under the schedule it had, and is done.
        """
        wall = self.now()
        now = min(now, wall)
        if (end := self.store.last_started_end(job, recorded.version.number, wall)) is not None:
            return end
        earlier = self.store.last_started_end(job, 0, wall)
        begin = int(now) if every.every == NEVER else every.window_at(now).start
        return begin if earlier is None else max(begin, earlier)


def _clock_of(store: Store) -> StoreClock | None:
    """Return what tells the clock of a server; None for a ledger that is a file: its clock is this host's."""
    if store.beside is not None:
        return None
    from ranonce.storeclock import StoreClock

    return StoreClock()


def _kept(keep: Callable[[str, bool], None] | None, text: str, *, sync: bool) -> bool:
    """Keep an outcome with this host, and say whether that went well; the store may still take it if not."""
    if keep is None:
        return False
    try:
        keep(text, sync)
    except OSError:
        return False
    return True


def _contradiction(job: str, recorded: Declared, every: Schedule, offset: int) -> ConfigError:
    def told(schedule: Schedule, shift: int) -> str:
        return f"{schedule.every!r} in {schedule.tz}" + (f" with offset {shift}" if shift else "")

    return ConfigError(
        f"{job!r} is recorded as {told(recorded.schedule, recorded.version.offset)}, not {told(every, offset)}.",
        f"Nothing was run. Change it on purpose: ranonce add {job} --every …",
    )


# --- outcomes as text -----------------------------------------------------------------------------------------------


def outcome_text(held: Claim, verdict: Verdict) -> str:
    """Return claim and verdict as JSON, for the attempt's file. The child's output is left out: it may be large."""
    return json.dumps(
        {
            "claim": {
                **held.as_dict(),
                "key": [held.key.job, held.key.window, held.key.input],
                "window": [held.window.key, held.window.start, held.window.end],
            },
            "verdict": {
                **verdict.as_dict(),
                "output": None,
                "data": dict(verdict.data),
                "gates": [list(gate.as_dict().values()) for gate in verdict.gates],
                "messages": _messages_text(verdict.messages),
            },
        }
    )


def outcome_of(text: str) -> tuple[Claim, Verdict] | None:
    """Return what `outcome_text` wrote, or None if it is not that."""
    try:
        told = json.loads(text)
        claim, verdict = told["claim"], told["verdict"]
        gates = tuple(lifecycle.Gate(*gate) for gate in verdict["gates"])
        messages = _messages_of(verdict.get("messages", ()))
        held = Claim(**{**claim, "key": RunKey(*claim["key"]), "window": Window(*claim["window"])})
        return held, Verdict(**{**verdict, "gates": gates, "messages": messages})
    except (ValueError, KeyError, TypeError, NotThisLedger):
        return None


def _messages_text(messages: Sequence[Message]) -> list[object]:
    """Return messages as what JSON holds."""
    if not messages:
        return []
    from binascii import b2a_base64

    from ranonce.stores.values import message_values

    return [[message_values(message), b2a_base64(message.body or b"", newline=False).decode()] for message in messages]


def _messages_of(told: Sequence[Any]) -> tuple[Message, ...]:
    if not told:
        return ()
    from binascii import a2b_base64

    from ranonce.stores.values import message_of

    return tuple(message_of(values, a2b_base64(body), None) for values, body in told)


# --- the state folder of this host ----------------------------------------------------------------------------------


def remember_ledger(state_folder: str, url: str, ledger: str) -> str:
    """Note on this host that the ledger `ledger` lives at `url` (no password is kept); return its state folder."""
    folder = os.path.join(state_folder, ledger)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, "store")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(public(url) + "\n")
    return folder


def known_ledger(state_folder: str, url: str) -> str | None:
    """Return the id of the ledger that this host last knew at a URL, whoever asks there."""
    found: list[tuple[float, str]] = []
    try:
        with os.scandir(state_folder) as entries:
            for entry in entries:
                path = os.path.join(entry.path, "store")
                try:
                    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe there hangs nobody
                    with open(fd, encoding="utf-8", errors="surrogateescape") as file:
                        if same_place(url, file.read().rstrip("\n")):
                            found.append((os.stat(path).st_mtime, entry.name))
                except (FileNotFoundError, NotADirectoryError):
                    continue
    except FileNotFoundError:
        return None
    return max(found)[1] if found else None


def _usable(folder: str) -> bool:
    """Make sure of this host's folder. ConfigError where somebody else could write it: it would be no witness."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        seen = os.lstat(folder)
    except OSError:
        return False
    if others_may_write(seen):
        raise ConfigError(
            f"others may write this host's state folder {folder!r}.",
            f"Nothing was run. It belongs to uid {seen.st_uid}; make it yours, mode 0700.",
        )
    return os.access(folder, os.W_OK | os.X_OK)
