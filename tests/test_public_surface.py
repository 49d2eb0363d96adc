"""What the package shows to the outside: its names, what importing it does, a docstring on everything public."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import ranonce
from ranonce.stores.base import Outbox, Recovery, Site, Store, Upkeep

ROOT = Path(__file__).resolve().parent.parent
MODULES = ["ranonce", *(info.name for info in pkgutil.walk_packages(ranonce.__path__, "ranonce."))]
MODULES.remove("ranonce.__main__")
FILES = (".py", ".sql", ".lua", ".typed")
PORTS = (Store, Upkeep, Site, Recovery, Outbox)
#: What the ports say of the classes whose names end like this.
PROMISED = {
    "Store": {**vars(Store), **vars(Upkeep)},
    "Upkeep": {**vars(Store), **vars(Upkeep)},
    "Site": vars(Site),
    "Recovery": vars(Recovery),
    "Outbox": vars(Outbox),
}


def test_the_public_names_are_these() -> None:
    public = {
        name for name in vars(ranonce) if not name.startswith("_") and not inspect.ismodule(getattr(ranonce, name))
    }
    assert public - {"TYPE_CHECKING"} <= set(ranonce.__all__)
    assert all(getattr(ranonce, name) for name in ranonce.__all__)
    assert set(ranonce.__all__) <= set(dir(ranonce))
    assert ranonce.__all__ == sorted(ranonce.__all__)


def test_every_public_error_is_a_ranonce_error_with_a_code_and_a_status() -> None:
    public = [getattr(ranonce, name) for name in ranonce.__all__]
    errors = [thing for thing in public if inspect.isclass(thing) and issubclass(thing, Exception)]
    errors.remove(ranonce.Stop)  # what a job raises on purpose
    assert all(issubclass(error, ranonce.RanonceError) for error in errors)
    assert len({error.code for error in errors}) == len(errors)
    assert all(0 < error.exit_status < 128 for error in errors)


def test_importing_opens_nothing_and_loads_only_the_errors() -> None:
    program = """
import builtins, os, socket, sqlite3, subprocess, sys

import __future__

before = set(sys.modules)
opened = []
builtins.open = os.open = socket.socket = sqlite3.connect = subprocess.Popen = lambda *a, **k: opened.append(a)
import ranonce

print(opened, sorted(name for name in set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] ['ranonce', 'ranonce.errors']\n"


def test_the_program_says_the_version_of_the_package() -> None:
    ranonce_program = Path(sys.executable).with_name("ranonce")
    said = subprocess.run([ranonce_program, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"ranonce {ranonce.__version__}\n"


def test_it_runs_as_a_module_where_no_program_is_installed() -> None:
    said = subprocess.run([sys.executable, "-m", "ranonce", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"ranonce {ranonce.__version__}\n"


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"ranonce-{ranonce.__version__}-py3-none-any.whl"
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("ranonce/")}
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in FILES}
    assert packed == files
    assert {"ranonce/py.typed", "ranonce/stores/sqlite/store.sql", "ranonce/stores/sqlite/schema.sql"} <= packed


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, name
    silent = [where for where, thing in _public(module.__name__, vars(module)) if not inspect.getdoc(thing)]
    assert not silent


def test_a_store_is_documented_by_its_protocol() -> None:
    named = {port.__name__: port for port in PORTS}
    assert all(inspect.getdoc(thing) for _, thing in _public(Store.__module__, named))


def _public(module: str, names: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the public classes, functions, methods and properties that are defined in a module.

    What a store does stands in the protocol, so its methods of the same name need no words of their own.
    """
    for name, thing in names.items():
        if name.startswith("_") or getattr(thing, "__module__", module) != module:
            continue
        if inspect.isclass(thing):
            yield f"{module}.{name}", thing
            told = {} if thing in PORTS else _promised(name)
            for attribute, value in vars(thing).items():
                if attribute in told:
                    continue
                inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not attribute.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)):
                    yield f"{module}.{name}.{attribute}", inner
        elif inspect.isfunction(thing):
            yield f"{module}.{name}", thing


def _promised(name: str) -> Mapping[str, object]:
    """Return what the port says of the methods of a store or a site: it is said once, there."""
    return next((promised for ending, promised in PROMISED.items() if name.endswith(ending)), {})
