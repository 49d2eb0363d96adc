"""What a job's settings are, their defaults, and the rules between them.

Each rule is here once, whether a setting comes from the file, from an option or from Python.
"""

from __future__ import annotations

import os

from ranonce.errors import ConfigError, RanonceError, UsageError
from ranonce.names import shown_path
from ranonce.record import Record
from ranonce.storeurl import expand_home
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.checks import Check

CHOICES: dict[str, tuple[str, ...]] = {
    "dialect": ("debian", "systemd", "kubernetes"),
    "overlap": ("forbid", "allow"),
    "on_crash": ("retry", "hold", "reconcile"),
    "catch_up": ("stopped", "none", "unfinished", "all"),
    "input_mode": ("fingerprint", "identity"),
    "leftovers": ("wait", "kill", "leave"),
}
# Settings that are a time in seconds, and whether 0 is one.
DURATIONS: dict[str, bool] = {
    "timeout": False,
    "lease": False,
    "grace_kill": True,
    "retry_delay": True,
    "early": True,
    "late_after": True,
    "max_late": True,
}
# Settings that are a whole number, and the bounds of each, both included.
NUMBERS: dict[str, tuple[int, int]] = {
    "offset": (-1000, 0),
    "max_attempts": (1, 1_000_000),
    "catch_up_limit": (1, 100_000),
    "busy_exit": (0, 255),
}
RECEIPTS = ("all", "problems", "none")
LONGEST = 100 * 366 * 86400  # a longer time is a slip, and would overflow dates


class VersionFile(Record):
    """A file whose content is the job's version, such as the configuration of a model."""

    file: str


class JobSpec(Record):
    """How one job is run. Times are seconds, `since` is unix seconds UTC.

    `declared` says that the job stands in the configuration file. The folder `cwd` of a declared job is absolute:
    the file's own folder unless it names another, so that where one stands does not decide which command is run.
    """

    name: str
    every: str | None = None
    tz: str = "UTC"
    dialect: str = "debian"
    offset: int = 0
    command: tuple[str, ...] = ()
    timeout: float | None = None
    lease: float = 300.0
    grace_kill: float = 10.0
    max_attempts: int = 3
    retry_delay: float = 0.0
    early: float = 5.0
    late_after: float = 3600.0
    max_late: float | None = None
    overlap: str = "forbid"
    on_crash: str = "retry"
    reconcile: tuple[str, ...] = ()
    catch_up: str = "stopped"
    catch_up_limit: int = 10
    input_mode: str = "fingerprint"
    version: str | VersionFile | None = None
    uses: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    stop_exit_codes: tuple[int, ...] = ()
    leftovers: str = "wait"
    receipt: str = "all"
    busy_exit: int = 75
    since: float | None = None
    cwd: str | None = None
    keep_output: bool = True
    stdin: bool = False
    declared: bool = False


def broken_rule(spec: JobSpec) -> tuple[str, str, str] | None:
    """Return the first setting that cannot be used, as (field, sentence, next step), or None.

    The ranges and the rules between settings, for the file and for options alike; types are checked where they are
    read. The schedule itself is checked by `Schedule`.
    """
    values = spec.as_dict()
    for field, zero_allowed in DURATIONS.items():
        seconds = values[field]
        if seconds is not None and not (0 <= seconds <= LONGEST and (seconds or zero_allowed)):
            least = "0" if zero_allowed else "more than 0"
            return field, f"{seconds:g} seconds is out of range.", f"It is {least}, and at most 100 years."
    for field, (lowest, highest) in NUMBERS.items():
        if not lowest <= values[field] <= highest:
            return field, f"{values[field]} is out of range.", f"It is a whole number from {lowest} to {highest}."
    for field, choices in CHOICES.items():
        if values[field] not in choices:
            return field, f"{shown(values[field])} is not a choice.", f"It is one of {', '.join(choices)}."
    if not all(1 <= code <= 255 for code in spec.stop_exit_codes):
        return "stop_exit_codes", f"{list(spec.stop_exit_codes)} is out of range.", "Exit codes are from 1 to 255."
    if spec.receipt not in RECEIPTS and "/" not in spec.receipt:
        return (
            "receipt",
            f"{shown(spec.receipt)} is not a choice.",
            "It is all, problems, none, or a path with a slash.",
        )
    if spec.on_crash == "reconcile" and not spec.reconcile:
        return (
            "on_crash",
            "'reconcile' needs a command that finds out whether the crashed attempt did its work.",
            "Set reconcile to a command that exits 0 for yes and 1 for no.",
        )
    if spec.reconcile and spec.on_crash != "reconcile":
        return "reconcile", f"it is never run while on_crash is {shown(spec.on_crash)}.", "Set on_crash to reconcile."
    if spec.catch_up in ("unfinished", "all") and spec.command and not any("{window}" in a for a in spec.command):
        return (
            "catch_up",
            f"{shown(spec.catch_up)} runs earlier windows, and the command does not say which window it is for.",
            "Put {window} into an argument of the command, or choose stopped or none.",
        )
    return None


def check_job(spec: JobSpec) -> JobSpec:
    """Return the settings unchanged, or refuse them in the words of the command line.

    Ranges, rules between settings and the schedule. Raises UsageError.
    """
    broken = broken_rule(spec)
    if broken is not None:
        field, sentence, next_step = broken
        option = {"stop_exit_codes": "stop-exit-code"}.get(field, field.replace("_", "-"))
        raise UsageError(f"--{option}: {sentence}", next_step)
    broken_schedule = schedule_error(spec)
    if broken_schedule is not None:
        field, error = broken_schedule
        raise UsageError(f"--{field}: {error.sentence}", error.next_step)
    return spec


def schedule_error(spec: JobSpec) -> tuple[str, RanonceError] | None:
    """Return which of every and tz makes the schedule unusable, and why; None where it can be used."""
    from ranonce.calendars import NEVER
    from ranonce.windows import Schedule

    if spec.every is None:
        return None
    if spec.declared and spec.every.strip().lower() == NEVER:
        return "every", ConfigError("a job without windows is not declared.", f"Write: ranonce remove {spec.name}")
    try:
        Schedule(spec.every, spec.tz, spec.dialect)
    except RanonceError as error:
        try:
            Schedule(spec.every)
        except RanonceError:
            return "every", error
        return "tz", error
    return None


def resolve_version(spec: JobSpec, base_folder: str) -> str | None:
    """Return the job's version: its text, or the first 12 hex digits of the SHA-256 of its file.

    A relative path is relative to `base_folder`. Raises ConfigError for a file that is not there or cannot be read,
    because a run without its version could not be explained.
    """
    if not isinstance(spec.version, VersionFile):
        return spec.version
    import hashlib
    import stat

    path = os.path.join(base_folder, expand_home(spec.version.file, os.environ))
    digest = hashlib.sha256()
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise IsADirectoryError(0, "it is not a regular file")
            while block := file.read(1 << 20):
                digest.update(block)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The version of job {spec.name} comes from {shown_path(path)}, which cannot be read: "
            f"{getattr(error, 'strerror', None) or error}.",
            "Put the file there, or change the job's version.",
        ) from None
    return digest.hexdigest()[:12]
