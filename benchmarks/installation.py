"""`ranonce` and the least wrapper as a user has them: console scripts of a fresh virtual environment, compiled.

Nothing is downloaded: the package that runs here is copied. The scripts have the form that pip gives them.
"""

from __future__ import annotations

import compileall
import glob
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import time
import venv

import benchmarks
import ranonce
from benchmarks.measure import subfolder

SCRIPT = """#!{python}
import sys
from {module} import {function}
if __name__ == '__main__':
    if sys.argv[0].endswith('.exe'):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit({function}())
"""

#: What a process had before it became the command counts as the command's. This one has less than any of them.
WATCH_MEMORY = """
import os, sys
nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=nowhere)
print(os.wait4(pid, 0)[2].ru_maxrss * 1024)
"""


#: What the stores on servers load.
DRIVERS = ("psycopg", "psycopg_binary", "redis", "typing_extensions")


class Installation:
    """A virtual environment with both programs, and a home for them."""

    def __init__(self, folder: str, *, with_drivers: bool = False) -> None:
        self.folder = folder
        root = os.path.join(folder, "venv")
        venv.EnvBuilder(symlinks=True).create(root)
        places = {"base": root, "platbase": root}
        self._scripts = sysconfig.get_path("scripts", "venv", places)
        self._library = sysconfig.get_path("purelib", "venv", places)
        package = os.path.dirname(os.path.abspath(ranonce.__file__))
        shutil.copytree(package, os.path.join(self._library, "ranonce"), ignore=shutil.ignore_patterns("__pycache__"))
        here = os.path.dirname(os.path.abspath(benchmarks.__file__))
        for least in ("least_wrapper.py", "least_server_wrapper.py"):
            shutil.copy(os.path.join(here, least), self._library)
        for driver in DRIVERS if with_drivers else ():
            found = importlib.util.find_spec(driver)
            if found is None or found.origin is None:
                raise SystemExit(f"{driver} is not installed: make bench installs it")
            if found.submodule_search_locations:
                shutil.copytree(found.submodule_search_locations[0], os.path.join(self._library, driver))
            else:
                shutil.copy(found.origin, self._library)
        if with_drivers:  # the libraries that a wheel brings lie beside its package
            for libraries in glob.glob(os.path.join(sysconfig.get_path("purelib"), "psycopg*.libs")):
                shutil.copytree(libraries, os.path.join(self._library, os.path.basename(libraries)))
        compileall.compile_dir(self._library, quiet=1)
        self.python = os.path.join(self._scripts, "python")
        self.ranonce = self._script("ranonce", "ranonce.cli", "entry")
        self.least_wrapper = self._script("least-wrapper", "least_wrapper", "main")
        self.least_server_wrapper = self._script("least-server-wrapper", "least_server_wrapper", "main")
        self._home = subfolder(folder, "home")

    def _script(self, name: str, module: str, function: str) -> str:
        path = os.path.join(self._scripts, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(SCRIPT.format(python=self.python, module=module, function=function))
        os.chmod(path, 0o700)
        return path

    def peak_memory(self, command: list[str], environment: dict[str, str]) -> int:
        """Return the most memory, in bytes, that a command or its children had at any time."""
        watched = [self.python, "-ISc", WATCH_MEMORY, *command]
        told = subprocess.run(watched, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        return int(told.stdout)

    def environment(self, **more: str) -> dict[str, str]:
        """Return what a scheduler gives a job: a path, a home, a locale; and what is named here."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": self._home,
            "XDG_STATE_HOME": os.path.join(self._home, "state"),  # root's would lie outside
            "LC_ALL": "C.UTF-8",
            **more,
        }


class Finished:
    """How a process ended: its exit status, and the seconds from its start to its end."""

    def __init__(self, pid: int, began: float) -> None:
        status = os.waitpid(pid, 0)[1]
        self.seconds = time.perf_counter() - began
        self.exit = os.waitstatus_to_exitcode(status)


def start(command: list[str], environment: dict[str, str], *, output: int | None = None) -> int:
    """Start a command with nothing to read, and nowhere to print but `output`; return its process id."""
    nowhere = os.devnull
    actions: list[tuple[object, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, nowhere, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, nowhere, os.O_WRONLY, 0),
    ]
    if output is None:
        actions.append((os.POSIX_SPAWN_OPEN, 1, nowhere, os.O_WRONLY, 0))
    else:
        actions.append((os.POSIX_SPAWN_DUP2, output, 1))
    return os.posix_spawn(command[0], command, environment, file_actions=actions)


def finished(command: list[str], environment: dict[str, str], *exits: int) -> Finished:
    """Run a command to its end, which must be one of the exit statuses (0 if none is named)."""
    began = time.perf_counter()
    ended = Finished(start(command, environment), began)
    assert ended.exit in (exits or (0,)), (command, ended.exit)
    return ended
