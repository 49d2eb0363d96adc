"""How the records of a ledger stand in an export: one JSON object each, instants as RFC 3339 in UTC, output as base64.

Reading is strict: a field that is missing or of another type is refused with a sentence, so that nothing that was
edited by hand gets into a ledger half understood.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode

from ranonce.errors import UsageError
from ranonce.lifecycle import STATES, Event, Gate, Run, RunKey, ScheduleVersion
from ranonce.names import check_job_name, check_name
from ranonce.stores.base import Job, Tombstone
from ranonce.timefmt import checked, format_instant, parse_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FORMAT = 1
EVENTS = frozenset(
    ("start", "done", "failed", "stopped", "held", "skipped", "lost", "expired", "rerun", "released", "noted")
)
#: More than anybody makes; a larger number is damage.
MOST = 1 << 53


def job_form(job: Job) -> dict[str, Any]:
    """Return a job as it stands in an export."""
    return {
        "kind": "job",
        "job": job.name,
        "declared_at": instant_text(job.declared_at),
        "late_after": job.late_after,
        "max_attempts": job.max_attempts,
    }


def schedule_form(job: str, version: ScheduleVersion) -> dict[str, Any]:
    """Return a version of a schedule as it stands in an export."""
    told = {**version.as_dict(), "recorded_at": instant_text(version.recorded_at)}
    return {"kind": "schedule", "job": job, **told, "valid_from": instant_text(version.valid_from)}


def run_form(run: Run) -> dict[str, Any]:
    """Return a run as it stands in an export; what is not set is left away."""
    told = run.as_dict()
    del told["key"]
    for name in ("window_start", "window_end", "started_at", "finished_at", "resume_at"):
        told[name] = instant_text(told[name])
    return {"kind": "run", **key_form(run.key), **what_is_set(told)}


def event_form(event: Event) -> dict[str, Any]:
    """Return an event as it stands in an export."""
    told = event.as_dict()
    del told["key"]
    told["at"], told["window_start"] = instant_text(event.at), instant_text(event.window_start)
    told["data"] = dict(event.data) or None
    told["output"] = b64encode(event.output).decode() if event.output is not None else None
    return {"kind": "event", **key_form(event.key), **what_is_set(told)}


def tombstone_form(stone: Tombstone) -> dict[str, Any]:
    """Return a span of pruned windows as it stands in an export."""
    told = stone.as_dict()
    for name in ("since", "until", "pruned_at"):
        told[name] = instant_text(told[name])
    return {"kind": "tombstone", **told}


def gate_form(gate: Gate) -> dict[str, Any]:
    """Return a gate as it stands in an export."""
    return {
        "kind": "gate",
        **gate.as_dict(),
        "until": instant_text(gate.until),
        "closed_at": instant_text(gate.closed_at),
    }


def key_form(key: RunKey) -> dict[str, Any]:
    """Return which run something is about."""
    told = {"job": key.job, "window": key.window}
    return {**told, "input": key.input} if key.input else told


def what_is_set(told: dict[str, Any]) -> dict[str, Any]:
    """Return what an object tells; what is not set is left away."""
    return {name: value for name, value in told.items() if value is not None and value is not False}


def instant_text(instant: float | None) -> str | None:
    """Return an instant as it stands in an export."""
    return None if instant is None else format_instant(instant, precision="ms")


# --- reading --------------------------------------------------------------------------------------------------------


class Fields:
    """The fields of one object, asked for by name and type. UsageError for one that is not what it should be."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = told

    def text(self, name: str) -> str:
        """Return a text."""
        value = str(self._of(name, str))
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"{name} is {shown(value)}, which is no text.")
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return a text that may be absent."""
        return None if self.told.get(name) is None else self.text(name)

    def whole(self, name: str, least: int = 0) -> int:
        """Return a whole number."""
        value = self._of(name, int)
        if isinstance(value, bool) or not least <= value < MOST:
            raise UsageError(f"{name} is {shown(value)}.")
        return int(value)

    def number(self, name: str) -> float:
        """Return a number that is not negative."""
        value = self._of(name, (int, float))
        if isinstance(value, bool) or not 0 <= value < MOST:
            raise UsageError(f"{name} is {shown(value)}.")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a flag; it is not set where it is absent."""
        return bool(self._of(name, bool)) if name in self.told else False

    def instant(self, name: str) -> float:
        """Return an instant in unix seconds."""
        return float(parse_instant(self.text(name)))

    def instant_or_none(self, name: str) -> float | None:
        """Return an instant that may be absent."""
        return None if self.told.get(name) is None else self.instant(name)

    def second(self, name: str) -> int:
        """Return an instant that is a whole second."""
        value = self.instant(name)
        if value != int(value):
            raise UsageError(f"{name} is {shown(self.told[name])}, which is no whole second.")
        return int(value)

    def key(self) -> RunKey:
        """Return which run this is about."""
        window, digest = self.text("window"), self.told.get("input", "")
        if not 0 < len(window) <= 100 or not window.isprintable():
            raise UsageError(f"{shown(window)} is no key of a window.")
        if not isinstance(digest, str) or (digest and (len(digest) != 64 or digest.strip("0123456789abcdef"))):
            raise UsageError(f"input is {shown(digest)}.")
        return RunKey(check_job_name(self.text("job")), window, digest)

    def data(self, name: str) -> dict[str, Any]:
        """Return an object; empty where it is absent."""
        value = dict(self._of(name, dict)) if self.told.get(name) is not None else {}
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, RecursionError):
            raise UsageError(f"{name} holds what is no JSON.") from None
        return value

    def _of(self, name: str, kind: type | tuple[type, ...]) -> Any:
        if name not in self.told:
            raise UsageError(f"{name} is missing.")
        value = self.told[name]
        if not isinstance(value, kind):
            raise UsageError(f"{name} is {shown(value)}.")
        return value


def job_of(fields: Fields) -> Job:
    """Return the job that an object tells of."""
    name = check_job_name(fields.text("job"))
    return Job(name, 0, fields.instant("declared_at"), fields.number("late_after"), fields.whole("max_attempts", 1))


def schedule_of(fields: Fields) -> ScheduleVersion:
    """Return the version of a schedule that an object tells of."""
    begins = fields.second("valid_from") if fields.told.get("valid_from") is not None else None
    offset = fields.told.get("offset", 0)
    if not isinstance(offset, int) or isinstance(offset, bool) or abs(offset) > 10_000:
        raise UsageError(f"offset is {shown(offset)}.")
    rule = (fields.text("every"), fields.text("tz"), fields.text("dialect"))
    return ScheduleVersion(fields.whole("number", 1), *rule, offset, begins, fields.instant("recorded_at"))


def run_of(fields: Fields) -> Run:
    """Return the run that an object tells of."""
    status, start, end = fields.text("status"), fields.second("window_start"), fields.second("window_end")
    if status not in STATES:
        raise UsageError(f"status is {shown(status)}.")
    if end <= start:
        raise UsageError("its window ends before it begins.")
    return Run(
        fields.key(),
        start,
        end,
        status,
        fields.whole("generation", 1),
        fields.whole("attempt", 1),
        _not_empty(fields, "owner"),
        fields.whole("failures"),
        fields.whole("schedule", 1),
        fields.text("trigger"),
        fields.instant("started_at"),
        fields.text_or_none("version"),
        fields.text_or_none("fingerprint"),
        fields.instant_or_none("finished_at"),
        fields.instant_or_none("resume_at"),
        fields.text_or_none("reason"),
        fields.whole("exit") if "exit" in fields.told else None,
        fields.flag("late"),
        fields.flag("reconciling"),
        fields.flag("granted"),
    )


def event_of(fields: Fields) -> Event:
    """Return the event that an object tells of."""
    event = fields.text("event")
    if event not in EVENTS:
        raise UsageError(f"event is {shown(event)}.")
    data = fields.data("data")
    try:
        _check_state(event, Fields(data))
    except UsageError as error:
        raise UsageError(f"of its data, {error.sentence}") from None
    return Event(
        fields.instant("at"),
        fields.key(),
        fields.second("window_start"),
        event,
        fields.whole("attempt"),
        fields.whole("generation", 1),
        fields.text_or_none("reason"),
        fields.text("owner"),
        fields.text("trigger"),
        fields.text_or_none("version"),
        fields.text("host"),
        data,
        bytes_of(fields, "output"),
        fields.whole("seq", 1) if "seq" in fields.told else None,
    )


def _check_state(event: str, data: Fields) -> None:
    """Look at what of an event's data becomes part of its run's state."""
    if data.told.get("exit") is not None:
        data.whole("exit", -MOST)
    if data.told.get("resume_at") is not None:
        checked(data.number("resume_at"))
    if event == "released" and data.told.get("as") not in ("done", "not-done"):
        raise UsageError(f"as is {shown(data.told.get('as'))}.")


def bytes_of(fields: Fields, name: str) -> bytes | None:
    """Return bytes that stand in base64, or None where they are absent."""
    text = fields.text_or_none(name)
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise UsageError(f"{name} is no base64.") from None


def tombstone_of(fields: Fields) -> Tombstone:
    """Return the span of pruned windows that an object tells of."""
    since, until = fields.second("since"), fields.second("until")
    if until <= since:
        raise UsageError("its span ends before it begins.")
    job = check_job_name(fields.text("job"))
    return Tombstone(job, since, until, fields.whole("runs", 1), fields.whole("failed", 0), fields.instant("pruned_at"))


def gate_of(fields: Fields) -> Gate:
    """Return the gate that an object tells of."""
    name = check_name("gate", fields.text("name"))
    job = fields.text("job")
    return Gate(name, fields.instant("until"), fields.text("reason"), job, fields.instant("closed_at"))


def _not_empty(fields: Fields, name: str) -> str:
    value = fields.text(name)
    if not value:
        raise UsageError(f"{name} is empty.")
    return value
