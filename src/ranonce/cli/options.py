"""Read a command's arguments against a table of its options; print its help from the same table.

The table is also the source of the reference documentation. `argparse` would do more and cost 8 ms at each start.
An option may stand before or after the positional arguments, up to `--`; it is written `--name=value` or
`--name value`, in full: a script must not depend on a prefix that a later version makes ambiguous. A value of its
own argument never begins with `--`, so that a forgotten one is not filled with the next option.
"""

from __future__ import annotations

import sys

from ranonce.errors import UsageError
from ranonce.record import Record
from ranonce.settings import duration, nearest, whole_from_text
from ranonce.timefmt import parse_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

HELP_COLUMN = 28


class Option(Record):
    """One option: a flag where `metavar` is None, else with a value of some `kind`.

    Kinds are `text`, `path`, `number` (whole), `duration` (seconds), `instant` (unix seconds), and `choice` of
    `choices`. `field` is the setting of a job that it overrides, `value` what a flag sets that to.
    """

    name: str
    help: str
    metavar: str | None = None
    kind: str = "text"
    choices: tuple[str, ...] = ()
    short: str | None = None
    repeat: bool = False
    default: str = ""
    field: str | None = None
    value: bool = True


class Command(Record):
    """One command of `ranonce`: its positional arguments as the usage line shows them, and its options.

    An argument is `JOB`, `[WINDOW]` (may be left away) or `[JOB…]` (any number, last). `takes_command` says that
    `-- COMMAND…` may follow. `program` is what is called, where that is not `ranonce` and the command's name.
    """

    name: str
    arguments: tuple[str, ...]
    summary: str
    options: tuple[Option, ...]
    description: str = ""
    takes_command: bool = False
    program: str | None = None

    @property
    def called(self) -> str:
        """What is written to call it."""
        return self.program or f"ranonce {self.name}"


class Parsed(Record):
    """What was written: positional arguments, options by their long names, and the command after `--` (or None).

    A flag is True, a repeatable option a list, every other value is of its kind's type. Text is valid UTF-8, except
    in `rest`, where each byte of an argument is kept (as surrogates) for the command.
    """

    arguments: list[str]
    options: dict[str, Any]
    rest: list[str] | None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an option, or `default` where it was not given."""
        return self.options.get(name, default)

    def flag(self, name: str) -> bool:
        """Say whether a flag was given."""
        return name in self.options

    def settings(self, command: Command) -> dict[str, Any]:
        """Return the settings of a job that were given as options, by their names in `JobSpec`."""
        return {
            option.field: self.options[option.name] if option.metavar else option.value
            for option in command.options
            if option.field is not None and option.name in self.options
        }


HELP = Option("help", "Print this help and exit.", short="h")


def parse(command: Command, argv: list[str]) -> Parsed:
    """Read the arguments that follow the command's name.

    `--help` anywhere before `--` prints the help and exits 0. Raises UsageError, naming the option, for everything
    that is unknown, missing, too many, given twice, not UTF-8 or not of its kind.
    """
    before, rest = _split(command, argv)
    if "--help" in before or "-h" in before:
        sys.stdout.write(help_text(command))
        raise SystemExit(0)
    by_name = {f"--{option.name}": option for option in command.options}
    by_name |= {f"-{option.short}": option for option in command.options if option.short}
    arguments: list[str] = []
    options: dict[str, Any] = {}
    queue = iter(before)
    for word in queue:
        if word == "-" or not word.startswith("-") or word.startswith("-/"):  # the key of a message begins so
            arguments.append(_positional(command, word, len(arguments)))
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = by_name.get(name)
        if option is None:
            raise _unknown(command, name, by_name)
        if option.metavar is None:
            if equals:
                raise UsageError(f"{name} is a flag and takes no value, not {shown(value)}.", f"Write {name} alone.")
            options[option.name] = True
            continue
        if not equals:
            value = _following(name, option, next(queue, None))
        if option.name in options and not option.repeat:
            raise UsageError(f"{name} is given twice.", "Give it once.")
        converted = _converted(name, option, value)
        if option.repeat:
            options.setdefault(option.name, []).append(converted)
        else:
            options[option.name] = converted
    _enough(command, arguments)
    return Parsed(arguments, options, rest)


def usage_line(command: Command) -> str:
    """Return the usage line, as help and errors show it."""
    words = [command.called, *command.arguments]
    if command.options:
        words.append("[options]")
    if command.takes_command:
        words.append("[-- COMMAND…]")
    return " ".join(words)


def help_text(command: Command) -> str:
    """Return the help of a command, lines of at most 100 columns, with a final newline."""
    import textwrap

    parts = [f"usage: {usage_line(command)}", "", *textwrap.wrap(command.summary, 100)]
    if command.description:
        for paragraph in command.description.split("\n\n"):
            parts += ["", *textwrap.wrap(" ".join(paragraph.split()), 100)]
    parts += ["", "options:"]
    for option in (*command.options, HELP):
        left = f"  {option_words(option)}"
        lines = textwrap.wrap(option_help(option), 100 - HELP_COLUMN)
        if len(left) <= HELP_COLUMN - 2:
            parts.append(f"{left:<{HELP_COLUMN}}{lines.pop(0)}")
        else:
            parts.append(left)
        parts += [" " * HELP_COLUMN + line for line in lines]
    return "\n".join(parts) + "\n"


def option_words(option: Option) -> str:
    """Return an option as it is written: `-q, --quiet`, `--lease TIME`, `--overlap forbid|allow`."""
    words = f"-{option.short}, --{option.name}" if option.short else f"--{option.name}"
    if option.metavar is None:
        return words
    return f"{words} {'|'.join(option.choices) if option.choices else option.metavar}"


def option_help(option: Option) -> str:
    """Return what an option is for, whether it may be repeated, and its default."""
    notes = ["repeatable"] if option.repeat else []
    notes += [f"default: {option.default}"] if option.default else []
    return f"{option.help} ({'; '.join(notes)})" if notes else option.help


def _split(command: Command, argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Cut the arguments at `--`. Where no command may follow, what stands there are positional arguments."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    before, rest = argv[:at], argv[at + 1 :]
    if not command.takes_command:
        if any(word.startswith("-") for word in rest):
            raise UsageError(f"`{command.called}` runs no command after --.", f"Usage: {usage_line(command)}.")
        return before + rest, None
    if not rest or not rest[0]:
        raise UsageError("No command follows --.", f"Usage: {usage_line(command)}.")
    return before, rest


def _positional(command: Command, word: str, count: int) -> str:
    last = command.arguments[-1] if command.arguments else ""
    if count >= len(command.arguments) and not last.endswith("…]"):
        help_with_command = "Put the command after --. " if command.takes_command else ""
        raise UsageError(
            f"{shown(word)} is one argument too many.", f"{help_with_command}Usage: {usage_line(command)}."
        )
    kind = command.arguments[min(count, len(command.arguments) - 1)].strip("[]…")
    if not word:
        raise UsageError(f"{kind} is empty (a variable that is not set?).", f"Usage: {usage_line(command)}.")
    return _utf8(kind, word)


def _enough(command: Command, arguments: list[str]) -> None:
    required = [argument for argument in command.arguments if not argument.startswith("[")]
    if len(arguments) < len(required):
        raise UsageError(f"{required[len(arguments)]} is missing.", f"Usage: {usage_line(command)}.")


def _following(name: str, option: Option, value: str | None) -> str:
    if value is None:
        raise UsageError(f"{name} needs a value.", f"Write {name} {option.metavar}.")
    if value.startswith("--"):
        raise UsageError(f"{name} needs a value, and {shown(value)} follows.", f"Write {name}={option.metavar}.")
    return value


def _converted(name: str, option: Option, value: str) -> object:
    """Return the value of an option in its kind's type. Raises UsageError that begins with the option's name."""
    if not value.strip():
        raise UsageError(f"{name} is given an empty value (a variable that is not set?).", f"Write {name} VALUE.")
    value = _utf8(name, value)
    if option.kind in ("text", "path"):
        if "\0" in value:
            raise UsageError(f"{name}: {shown(value)} holds a NUL character.", "Take it out.")
        return value
    if option.kind == "choice":
        if value not in option.choices:
            raise UsageError(f"{name}: {shown(value)} is not a choice.", f"It is one of {', '.join(option.choices)}.")
        return value
    read = {"number": whole_from_text, "duration": duration, "instant": parse_instant}[option.kind]
    try:
        return read(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error.sentence}", error.next_step) from None


def _utf8(name: str, value: str) -> str:
    """Refuse what the command line held that is not UTF-8: it could be neither recorded nor shown."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{name}: {shown(value)} is not valid UTF-8.", "Only the command after -- may be.") from None
    return value


def _unknown(command: Command, name: str, known: Mapping[str, Option]) -> UsageError:
    if name.startswith("--"):
        step = nearest(name, [each for each in known if each.startswith("--")])
    else:
        step = f"Usage: {usage_line(command)}."
    return UsageError(f"`{command.called}` has no option {shown(name)}.", step)
