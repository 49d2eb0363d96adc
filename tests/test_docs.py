"""The documentation is true: its commands are run, its configuration is read, its links lead somewhere.

A block fenced as `console` holds commands after `$ ` (continued after `> `) and what they print, on a terminal as a
reader has one. `…` or `...` stands for anything within a line, and alone on a line for any lines; columns may be as
wide as they like. The blocks of one
page are one session, in a home folder and a `/usr/local/bin` of its own. What the reader need not see stands between
them: `<!-- $ command -->` is run too, and `<!-- clock: INSTANT -->` is the `--now` of the commands that follow, so that
a page can tell of several nights. A block fenced as `python` that begins with `# NAME.py` is that file in the home
folder. What cannot be run is fenced as `text`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import sqlite3
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from ranonce.configread import destination_tables, job_specs, ledger_table, parse_document
from ranonce.delivery.spec import read_spec
from ranonce.stores import site_of
from tests.servers import PostgresServer

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
PYTHON_FILE = re.compile(r"# (\w+\.py)\n")
UNSEEN = re.compile(r"^<!-- (?:\$ (?P<command>.*)|clock: (?P<clock>\S+)) -->$", re.MULTILINE)
LANGUAGES = {"console", "text", "toml", "json", "mermaid", "yaml", "sql", "python"}
#: Folders that a page may name and that are another place in its world.
#: Pages whose statements are for a ledger in PostgreSQL.
POSTGRESQL = ["docs/how-to/postgresql.md"]
PLACES = re.compile(r"/(?=(?:usr/local/bin|home/you|srv)\b)")
CLOCK = "/srv/clock"
MARK = "\x1e"
SESSION_SECONDS = 100.0


#: The program as the pages have it: a disk that forgets is accepted, since tests may have no other, and the page's
#: clock is put in place of the real one.
WRAPPER = """\
command=$1
[ $# -gt 0 ] && shift
case "$command" in
init) set -- --accept-volatile "$@" ;;
add | run | rerun | backfill | probe | status | show)
    case " $*" in
    *" --now"*) ;;
    *) [ -e "{clock}" ] && set -- --now "$(cat "{clock}")" "$@" ;;
    esac ;;
esac
[ "$command" = add ] && exec "{python}" -c "$IN_UTC" "$command" "$@"
exec "{ranonce}" "$command" "$@"
"""
#: `ranonce add` on a machine whose cron counts in UTC, as the pages' does.
IN_UTC = """\
import sys
import ranonce.schedulers.crontab
ranonce.schedulers.crontab.host_zone = lambda: "UTC"
sys.argv[0] = "{ranonce}"
from ranonce.cli import entry
entry()
"""


class Block(NamedTuple):
    language: str
    text: str
    line: int


class Command(NamedTuple):
    written: str
    expected: list[str]
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["text"], text.count("\n", 0, match.start()) + 2)
        for match in FENCE.finditer(text)
    ]


def commands(page: Path) -> list[Command]:
    text = page.read_text(encoding="utf-8")
    found = [
        Command(match["command"] or f"echo {match['clock']} > {CLOCK}", [], text.count("\n", 0, match.start()) + 1)
        for match in UNSEEN.finditer(text)
    ]
    for block in blocks(page):
        if block.language != "console":
            continue
        assert block.text.startswith("$ "), f"{page.name}:{block.line}: a console block begins with a command"
        for number, line in enumerate(block.text.splitlines(), block.line):
            if line.startswith("$ "):
                found.append(Command(line[2:], [], number))
            elif line.startswith("> ") and not found[-1].expected:
                found[-1] = found[-1]._replace(written=f"{found[-1].written}\n{line[2:]}")
            else:
                found[-1].expected.append(line)
    return sorted(found, key=lambda command: command.line)


def pattern(expected: list[str]) -> str:
    """Return the regular expression for the lines a command should print, in single spaces."""
    lines = []
    for line in expected:
        if line.strip() in ("…", "..."):
            lines.append(r"(?:[^\n]*\n)*")
        else:
            lines.append(re.sub(r"…|(?:\\\.){3}", r"[^\\n]*", re.escape(single_spaced(line))) + r"\n")
    return "".join(lines)


def as_seen(text: str) -> str:
    """Return what a terminal shows of it: what comes after a carriage return stands over what came before."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for piece in line.split("\r"):
            shown = piece + shown[len(piece) :]
        lines.append(shown)
    return "\n".join(lines)


def single_spaced(text: str) -> str:
    return re.sub(r" +$", "", re.sub(r" +", " ", text), flags=re.MULTILINE)


class World:
    """A machine for one page: a home folder, programs in /usr/local/bin, a terminal."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home" / "you"
        programs = root / "usr" / "local" / "bin"
        programs.mkdir(parents=True)
        # An empty configuration of its own: one that the machine has for all users must not be found.
        (self.home / ".config" / "ranonce").mkdir(parents=True, mode=0o700)
        (self.home / ".config" / "ranonce" / "ranonce.toml").touch(0o600)
        (root / "srv").mkdir()
        self.ranonce = Path(sys.executable).with_name("ranonce")
        assert self.ranonce.exists(), "the package is installed beside this Python"
        self._program(
            programs / "ranonce", WRAPPER.format(clock=f"{root}{CLOCK}", ranonce=self.ranonce, python=sys.executable)
        )
        work = "import time; time.sleep(3); print('1342 files saved')"
        self._program(programs / "backup.sh", f'exec "{sys.executable}" -c "{work}"')
        for name in ("sync.sh", "poll.sh", "invoices.sh"):
            self._program(programs / name, "exit 0")
        self._program(programs / "report.sh", f"""echo '{{"date": "2026-11-09"}}' > {root}/srv/report.json""")
        self.environment = {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / ".local" / "state"),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "IN_UTC": IN_UTC.format(ranonce=self.ranonce),
            "TERM": "dumb",
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
        }

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def session(self, written: list[str]) -> list[str]:
        """Run commands one after the other in one shell on a terminal; return what each of them printed."""
        script = [f'mark() {{ status=$?; printf "{MARK}%s\\n" "$1"; return $status; }}']
        for number, command in enumerate(written):
            script += [f"mark {number}", PLACES.sub(f"{self.root}/", command)]
        script += [f"mark {len(written)}"]
        path = self.root / "session.sh"
        path.write_text("\n".join(script) + "\n")
        printed = self._on_terminal(["/bin/sh", str(path)])
        printed = printed.replace(str(self.ranonce.parent), "/usr/local/bin").replace(str(self.root), "")
        # Set above to what it is for everybody but root, who may run these tests too.
        printed = printed.replace("XDG_STATE_HOME=/home/you/.local/state ", "")
        # Nor would cron look elsewhere for a real user's files: here HOME is not the home folder of who runs the tests.
        printed = printed.replace(" --config /home/you/.config/ranonce/ranonce.toml", "")
        pieces = printed.split(MARK)[1:]
        assert len(pieces) == len(written) + 1, f"the session broke off:\n{printed}"
        return [piece.partition("\n")[2] for piece in pieces[:-1]]

    def _on_terminal(self, argv: list[str]) -> str:
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.home,
            env=self.environment,
            start_new_session=True,
        ) as shell:
            os.close(theirs)
            chunks: list[bytes] = []
            give_up = time.monotonic() + SESSION_SECONDS
            while time.monotonic() < give_up:
                if not select.select([ours], [], [], 0.2)[0]:
                    if shell.poll() is not None:
                        break  # a background child may keep the terminal open
                    continue
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # Linux says EIO when nobody has the terminal any more
                    break
                if not chunk:
                    break
                chunks.append(chunk)
            else:
                shell.kill()
            os.close(ours)
        return as_seen(b"".join(chunks).decode())


@pytest.mark.parametrize("name", NAMES)
def test_commands_print_what_the_page_says(name: str, tmp_path: Path) -> None:
    page = commands(ROOT / name)
    if not page:
        return
    world = World(tmp_path)
    for block in blocks(ROOT / name):
        if block.language == "python" and (file := PYTHON_FILE.match(block.text)):
            (world.home / file[1]).write_text(block.text)
    printed = world.session([command.written for command in page])
    wrong = [
        f"{name}:{command.line}: $ {command.written}\n--- the page says\n"
        + "\n".join(command.expected)
        + f"\n--- it is\n{was}"
        for command, was in zip(page, printed, strict=True)
        if not re.fullmatch(pattern(command.expected), single_spaced(was))
    ]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_of_a_kind_that_is_checked_here(name: str) -> None:
    page = ROOT / name
    assert {block.language for block in blocks(page)} <= LANGUAGES
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(blocks(page))


@pytest.mark.parametrize("name", NAMES)
def test_configuration_examples_can_be_read(name: str) -> None:
    for block in blocks(ROOT / name):
        if block.language == "toml":
            document = parse_document("/etc/ranonce/ranonce.toml", block.text.encode(), {"HOME": "/root"})
            ledger_table(document)
            assert job_specs(document).keys() == document.tables.get("jobs", {}).keys()
            for destination, table in destination_tables(document).items():
                read_spec(destination, table, document.place, "/etc/ranonce")
        elif block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("name", NAMES)
def test_queries_fit_the_tables(name: str) -> None:
    schema = (ROOT / "src" / "ranonce" / "stores" / "sqlite" / "schema.sql").read_text(encoding="utf-8")
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema)
        for block in blocks(ROOT / name):
            if block.language == "sql" and name not in POSTGRESQL:
                db.executescript(block.text)


@pytest.mark.parametrize("name", POSTGRESQL)
def test_statements_for_postgresql_are_taken_by_one(name: str, postgres: PostgresServer) -> None:
    schema = f"ranonce_scratch_{os.urandom(6).hex()}"
    site = site_of(postgres.url(schema), wait_seconds=20)
    site.create("d0c5" * 8)
    statements = [block.text for block in blocks(ROOT / name) if block.language == "sql"]
    assert statements
    with psycopg.connect(postgres.url(schema).partition("?")[0]) as db:
        for role in ("jobs", "ledger"):
            db.execute(f"CREATE ROLE {role}")
        for statement in statements:
            db.execute(re.sub(r"\branonce(?=\.| TO)", schema, statement))
        db.rollback()
    site.destroy()


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{name} links to {target}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_environment_variable_of_the_code_is_in_the_reference() -> None:
    in_code: set[str] = set()
    for source in (ROOT / "src").rglob("*.py"):
        in_code |= set(re.findall(r"RANONCE_[A-Z_]*[A-Z]", source.read_text(encoding="utf-8")))
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert set(re.findall(r"RANONCE_[A-Z_]*[A-Z]", reference)) == in_code


def test_generated_parts_are_up_to_date() -> None:
    for tool in ("tools.reference", "tools.lifecycle_diagram"):
        done = subprocess.run([sys.executable, "-m", tool, "--check"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_changelog_knows_the_version() -> None:
    from ranonce import __version__

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[(?:Unreleased|{re.escape(__version__)})\]", changelog, re.MULTILINE)


def test_nothing_in_the_repository_names_a_package_index() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "urls" not in told["project"]
    constraints = (ROOT / "constraints-dev.txt").read_text(encoding="utf-8")
    pins = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line) for line in pins)
