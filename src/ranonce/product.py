"""Look at a file that a job was to make: is it there, large and young enough, JSON, and does it say what it should?

Everything that can be wrong with a file is an answer here, not an error, and memory is bounded whatever its size.
JSON: RFC 8259, strictly (UTF-8, no NaN, no name twice); JSON Pointer: RFC 6901; JSON Lines: https://jsonlines.org.
"""

from __future__ import annotations

import os
import stat

from ranonce.errors import UsageError
from ranonce.timefmt import format_duration, format_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from ranonce.checks import Check

    Scalar = str | int | float | bool

LARGEST_JSON = 64 << 20  # a JSON document is parsed in memory
LONGEST_LINE = 16 << 20
# The kernel stamps files with its coarse clock, up to one tick (10 ms at 100 Hz) behind the one processes read.
COARSE_CLOCK = 0.010
# A product stamped further ahead than this was dated by hand or by a wrong clock: it would stay fresh for ever.
FUTURE = 86400.0


def look(path: str, check: Check, started_at: float, now: float) -> tuple[bool, str]:
    """Return whether a file is what the check wants, and what was seen. Instants are unix seconds, real clock."""
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            return False, "it is a folder" if stat.S_ISDIR(about.st_mode) else "it is not a regular file"
        if not (check.json or check.jsonl):
            return _look_at_size_and_age(check, about, started_at, now)
        # O_NONBLOCK: if it became a pipe meanwhile, opening it must not wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            held, seen = _look_at_size_and_age(check, about, started_at, now)
            if not held or not about.st_size:
                return held and check.jsonl, seen
            wrong = _look_inside(check, file)
            return (False, wrong) if wrong else (True, seen)
    except FileNotFoundError:
        return False, "there is no such file"
    except (OSError, ValueError) as error:  # ValueError: a NUL or a character no file name can have
        return False, f"it cannot be read: {getattr(error, 'strerror', None) or error}"


def _look_at_size_and_age(check: Check, about: os.stat_result, started_at: float, now: float) -> tuple[bool, str]:
    size = f"{about.st_size} bytes"
    if about.st_size < check.min_bytes:
        return False, f"{size}, fewer than {check.min_bytes}" if about.st_size else "it is empty"
    seen = f"{size}, written {_when(about.st_mtime)}"
    if check.fresh or check.max_age is not None:
        if about.st_mtime > now + FUTURE:
            return False, f"{seen}, which is in the future"
        if check.fresh and not _written_since(about, started_at):
            return False, f"{seen}, before the attempt began at {_when(started_at)}"
        if check.max_age is not None and now - about.st_mtime > check.max_age:
            return False, f"{seen}, longer ago than {format_duration(check.max_age)}"
    return True, seen


def _written_since(about: os.stat_result, started_at: float) -> bool:
    """Say whether a file's time of modification can be at or after an instant, given how coarse such times are.

    A time with a fraction comes from the kernel's coarse clock. One without has been cut to the second by the file
    system (ext3, HFS+, NFSv2), or to two (FAT); on a finer one it is set by hand, or is a chance in a billion.
    """
    fraction = about.st_mtime_ns % 1_000_000_000
    even = about.st_mtime_ns // 1_000_000_000 % 2 == 0
    step = COARSE_CLOCK if fraction else 2.0 if even else 1.0
    return about.st_mtime + step > started_at


def _when(instant: float) -> str:
    try:
        return format_instant(instant, precision="ms")
    except (UsageError, ValueError, OverflowError):
        return f"{instant:g}"  # file systems can hold times that no calendar has


def _look_inside(check: Check, file: BinaryIO) -> str:
    """Return what is wrong with a file of JSON or JSON Lines, or "" where nothing is."""
    if check.json and os.fstat(file.fileno()).st_size > LARGEST_JSON:
        return f"it is larger than {LARGEST_JSON >> 20} MiB, too large to be parsed as one JSON document"
    decode = _strict_decoder()
    for number, piece in enumerate(_pieces(check, file), start=1):
        place = f"line {number}: " if check.jsonl else ""
        if len(piece) > (LONGEST_LINE if check.jsonl else LARGEST_JSON):
            return f"{place}it is too long to be parsed"
        wrong = _wrong_with(piece, check, decode)
        if wrong:
            return place + wrong
    return ""


def _pieces(check: Check, file: BinaryIO) -> Iterator[bytes]:
    if check.json:
        yield file.read(LARGEST_JSON + 1)
        return
    while line := file.readline(LONGEST_LINE + 1):
        yield line


def _wrong_with(piece: bytes, check: Check, decode: Callable[[str], object]) -> str:
    try:
        value = decode(piece.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except RecursionError:
        return "not JSON we read: nested too deeply"
    except (ValueError, MemoryError) as error:
        return f"not JSON: {str(error) or 'it does not fit into memory'}"
    for pointer, expected in check.equals:
        found, actual = _at_pointer(value, pointer)
        if not found:
            return f"it has no {pointer}, which should be {shown(expected)}"
        if isinstance(actual, bool) != isinstance(expected, bool) or actual != expected:
            return f"{pointer or 'it'} is {shown(actual)}, not {shown(expected)}"
    return ""


def _strict_decoder() -> Callable[[str], object]:
    """Return a function from JSON text to its value; it raises ValueError, also for NaN and for a name given twice."""
    import json

    def refuse_constant(name: str) -> object:
        raise ValueError(f"{name} is no JSON number")

    def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result: dict[str, object] = {}
        for name, value in pairs:
            if name in result:
                raise ValueError(f"the name {shown(name)} stands twice in one object")
            result[name] = value
        return result

    return json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=once_each).decode


def pointer_steps(pointer: str) -> list[str]:
    """Return the steps of a JSON Pointer, unescaped. Raises UsageError for a text that is none."""
    if pointer and not pointer.startswith("/"):
        raise UsageError(f"{shown(pointer)} is not a JSON Pointer.", f"Write {shown('/' + pointer)}.")
    steps = pointer.split("/")[1:]
    for step in steps:
        if "~" in step.replace("~0", "").replace("~1", ""):
            raise UsageError(f"{shown(pointer)} is not a JSON Pointer.", "Write ~0 for ~ and ~1 for / in a name.")
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]


def _at_pointer(value: object, pointer: str) -> tuple[bool, object]:
    """Return whether the pointer leads to a value, and that value (RFC 6901, section 4)."""
    for step in pointer_steps(pointer):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isascii() and step.isdigit() and (step == "0" or step[0] != "0"):
            if len(step) > 9 or int(step) >= len(value):
                return False, None
            value = value[int(step)]
        else:
            return False, None
    return True, value
