"""Is the product really there? Checks that must hold before an exit status 0 may be called done.

A check looks at a file (there, not empty, young enough, written since the attempt began, JSON, a field with the right
value) or runs a command of its own. A check that cannot be made does not hold; nothing here raises because of what a
product looks like.
"""

from __future__ import annotations

import os
import time

from ranonce.errors import UsageError
from ranonce.names import shown_path
from ranonce.record import Record
from ranonce.settings import SHELL, argv, duration, flag, nearest, text, whole, whole_from_text
from ranonce.timefmt import duration_text, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ranonce.product import Scalar

    RunCommand = Callable[[list[str]], int]

WINDOW = "{window}"


class Check(Record):
    """What must hold. `file` is relative to the job's folder; `command` is a list of arguments.

    `max_age` is seconds. `equals` pairs JSON Pointers with the value each must have, in every line for JSON Lines;
    `{window}` is replaced in the path, the arguments and in text values. An empty file never holds unless
    `min_bytes` is 0.
    """

    file: str | None = None
    command: tuple[str, ...] = ()
    min_bytes: int = 1
    max_age: float | None = None
    fresh: bool = False
    json: bool = False
    jsonl: bool = False
    equals: tuple[tuple[str, Scalar], ...] = ()


class CheckResult(Record):
    """Whether a check held, and what was seen: both are texts for a receipt. A command's arguments are not in it."""

    name: str
    held: bool
    seen: str


def _command(value: object) -> tuple[str, ...]:
    return (*SHELL, text(value)) if isinstance(value, str) else argv(value)


def _equals(value: object) -> tuple[tuple[str, Scalar], ...]:
    from ranonce.product import pointer_steps

    if not isinstance(value, dict) or not value:
        raise UsageError(f"{shown(value)} is not a table of fields.", 'Write { "/date" = "{window}" }.')
    pairs: list[tuple[str, Scalar]] = []
    for pointer, expected in value.items():
        pointer_steps(pointer)
        if not isinstance(expected, (str, int, float)):
            raise UsageError(
                f"{shown(pointer)} is compared with {shown(expected)}.", "Compare it with text, a number or true/false."
            )
        pairs.append((pointer, expected))
    return tuple(pairs)


CHECK_KEYS: Mapping[str, Callable[[object], object]] = {
    "file": text,
    "command": _command,
    "min_bytes": whole,
    "max_age": duration,
    "fresh": flag,
    "json": flag,
    "jsonl": flag,
    "equals": _equals,
}


def whole_check(values: Mapping[str, object]) -> Check:
    """Return a check from values that are right one by one, or refuse what they are together. Raises UsageError."""
    check = Check(**values)  # type: ignore[arg-type]  # each value was read by its kind in CHECK_KEYS
    if bool(check.command) == (check.file is not None):
        raise UsageError(
            "A check looks at one file or runs one command.", 'Write file = "out/{window}.json" or command = […].'
        )
    if check.command:
        if len(values) > 1:
            extra = ", ".join(sorted(set(values) - {"command"}))
            raise UsageError(f"A command decides alone, without {extra}.", "Leave the rest away, or make two checks.")
        return check
    if check.json and check.jsonl:
        raise UsageError("A file is JSON or JSON Lines, not both.", "Leave one of json and jsonl away.")
    if check.min_bytes < 0:
        raise UsageError(f"min_bytes is {check.min_bytes}.", "It is 0 or more; 0 allows an empty file.")
    if check.max_age is not None and check.max_age <= 0:
        raise UsageError(f"max_age is {check.max_age:g} seconds.", "It is more than 0.")
    return check.replace(json=True) if check.equals and not check.jsonl else check


def check_from_option(written: str) -> Check:
    """Return the check that `--check` describes: `file=PATH[,min_bytes=2,fresh,json]`, `json=PATH`, `command=CMD`.

    A command is the whole rest of the text, for `/bin/sh`. `equals=POINTER=VALUE` may be repeated. Raises UsageError.
    """
    kind, found, rest = written.partition("=")
    if not found or kind not in ("file", "json", "jsonl", "command"):
        raise UsageError(f"{shown(written)} is not a check.", "Write file=PATH, json=PATH, jsonl=PATH or command=CMD.")
    if kind == "command":
        return whole_check({"command": _command(rest)})
    path, *parts = rest.split(",")
    values: dict[str, object] = {"file": text(path)}
    if kind != "file":
        values[kind] = True
    pairs: dict[str, object] = {}
    for part in parts:
        key, found, value = part.partition("=")
        if key in ("fresh", "json", "jsonl") and not found:
            values[key] = True
        elif key == "min_bytes" and found:
            values[key] = whole_from_text(value)
        elif key == "max_age" and found:
            values[key] = duration(value)
        elif key == "equals" and found:
            pointer, _, expected = value.partition("=")
            pairs[pointer] = expected
        else:
            known = ("fresh", "json", "jsonl", "min_bytes=", "max_age=", "equals=")
            raise UsageError(
                f"{shown(part)} is not a part of a check.",
                f"{nearest(key, known)} A path with a comma can stand in the configuration file.",
            )
    if pairs:
        values["equals"] = _equals(pairs)
    return whole_check(values)


def check_as_option(check: Check) -> str:
    """Return the text from which `check_from_option` reads this check. UsageError where no text says it."""
    if check.command:
        from shlex import join

        in_shell = check.command[:-1] == SHELL
        check = check.replace(command=check.command if in_shell else (*SHELL, join(check.command)))
        parts = [f"command={check.command[-1]}"]
    else:
        parts = [f"file={check.file}"]
        if check.min_bytes != 1:
            parts.append(f"min_bytes={check.min_bytes}")
        if check.max_age is not None:
            parts.append(f"max_age={duration_text(check.max_age)}")
        parts += [flag for flag in ("fresh", "json", "jsonl") if getattr(check, flag)]
        parts += [f"equals={pointer}={value}" for pointer, value in check.equals]
    written = ",".join(parts)
    try:
        same = check_from_option(written) == check
    except UsageError:
        same = False
    if not same:  # a comma in a path or value, a value that is not text, a line break in a command
        raise UsageError(
            f"the check of {shown(check.file or check.command[-1])} can stand in a configuration file only.",
            "Make it a script: --check command=SCRIPT.",
        )
    return written


def run_checks(
    checks: Sequence[Check],
    *,
    window_key: str,
    started_at: float,
    cwd: str | None,
    env: Mapping[str, str],
    run_command: RunCommand,
    now: float | None = None,
) -> list[CheckResult]:
    """Make each check and say what was seen; all of them are made, so that one receipt tells the whole story.

    `started_at` and `now` are unix seconds by the real clock; `cwd` and `env` are those of the job. `run_command` gets
    the arguments and returns the exit status (folder, environment, time limit and signals are its own business).
    """
    from ranonce.product import look

    moment = time.time() if now is None else now
    results = []
    for number, check in enumerate(checks, start=1):
        if check.command:
            command = [argument.replace(WINDOW, window_key) for argument in check.command]
            results.append(_command_result(f"command {number}", command, run_command))
        else:
            path = (check.file or "").replace(WINDOW, window_key)
            wanted = check.replace(
                equals=tuple((pointer, _filled(value, window_key)) for pointer, value in check.equals)
            )
            held, seen = look(_located(path, cwd, env), wanted, started_at, moment)
            results.append(CheckResult(f"file {shown_path(path)}", held, seen))
    return results


def _command_result(name: str, command: list[str], run_command: RunCommand) -> CheckResult:
    try:
        status = run_command(command)
    except OSError as error:
        return CheckResult(name, False, f"could not be started: {error.strerror or error}")
    return CheckResult(name, status == 0, f"exit status {status}")


def _located(path: str, cwd: str | None, env: Mapping[str, str]) -> str:
    home = env.get("HOME", "")
    if path.startswith("~/") and home.startswith("/"):
        return home + path[1:]
    return os.path.join(cwd or "", path)


def _filled(value: Scalar, window_key: str) -> Scalar:
    return value.replace(WINDOW, window_key) if isinstance(value, str) else value
