"""Hand over what a scheduler needs: printed for somebody to paste, or written into a folder."""

from __future__ import annotations

import os
import shlex
import sys

from ranonce.errors import ConfigError
from ranonce.names import shown_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.schedulers import Printed


def refuse_foreign(printed: Printed, folder: str) -> None:
    """Refuse a folder in which a file would be written over that `ranonce add` did not write. Raises ConfigError."""
    from ranonce.schedulers import WRITTEN_BY

    for name, _ in printed.files:
        path = os.path.join(folder, name)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                written_by = file.readline().rstrip("\n")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(
                f"{shown_path(path)} cannot be read: {error.strerror or error}.", "Nothing was declared."
            ) from None
        if written_by != WRITTEN_BY:
            raise ConfigError(
                f"{shown_path(path)} is there already, and `ranonce add` did not write it.",
                "Nothing was declared; move that file away, or name another folder.",
            )


def write(printed: Printed, folder: str, *, declared: bool) -> None:
    """Write the files into a folder, each in one step. Raises ConfigError, which says if the job is `declared`."""
    for name, text in printed.files:
        path = os.path.abspath(os.path.join(folder, name))
        building = f"{path}.{os.getpid()}.new"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                with open(building, "x", encoding="utf-8") as file:
                    file.write(text)
                os.replace(building, path)
            finally:
                if os.path.lexists(building):
                    os.unlink(building)
        except OSError as error:
            raise ConfigError(
                f"{shown_path(path)} cannot be written: {error.strerror or error}.",
                f"The job is {'' if declared else 'not '}declared; name another folder, or print it (without --into).",
            ) from None


def show(printed: Printed, folder: str | None) -> None:
    """Print what to paste on standard output, unless it is in a folder now; what else to do on standard error."""
    if folder is not None:
        written = [os.path.join(folder, name) for name, _ in printed.files]
        print(f"Written: {', '.join(written)}.", file=sys.stderr)
        there = None if printed.folder is None else os.path.realpath(os.path.expanduser(printed.folder))
        if there not in (None, os.path.realpath(folder)):
            copy = f"cp {' '.join(map(shlex.quote, written))} {printed.folder}/"
            printed = printed.replace(then=(f"mkdir -p {printed.folder}", copy, *printed.then))
    else:
        print(printed.where, file=sys.stderr)
        sys.stderr.flush()
        print(_as_one(printed.files), end="")
        sys.stdout.flush()
    for number, step in enumerate(printed.then):
        print(f"{'Then:' if number == 0 else '     '} {step}", file=sys.stderr)


def _as_one(files: tuple[tuple[str, str], ...]) -> str:
    """Return the files as one text: several have their names above them, and manifests `---` between them."""
    if len(files) == 1:
        return files[0][1]
    between = "---\n" if files[0][0].endswith(".yaml") else "\n"
    return between.join(f"# {name}\n{text}" for name, text in files)
