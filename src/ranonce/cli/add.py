"""`ranonce add`: declare a job, and print what its scheduler needs."""

from __future__ import annotations

import os
import pwd
import sys

from ranonce.cli import pasting
from ranonce.cli.joboptions import (
    DECLARE_OPTIONS,
    JSON,
    LEDGER_OPTIONS,
    RUN_OPTIONS,
    SCHEDULE_OPTIONS,
    job_settings,
    run_options,
    with_settings,
)
from ranonce.cli.opening import open_ledger, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.config import find_config, state_folder
from ranonce.errors import ConfigError, StoreUnavailable, UsageError
from ranonce.jobspec import JobSpec
from ranonce.names import check_job_name
from ranonce.stores.base import Job
from ranonce.storeurl import masked, public, server_of, sqlite_path
from ranonce.timefmt import format_instant
from ranonce.windows import Schedule, due

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed
    from ranonce.config import Config
    from ranonce.ledger import Declared
    from ranonce.schedulers import Printed, Wanted

#: Each is a module of `ranonce.schedulers`.
SCHEDULERS = ("crontab", "systemd", "kubernetes", "github")
#: Words that mean something to a shell only.
SHELL_WORDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "2>", "&>"})
#: Those that run the job where this host's configuration and programs are not.
ELSEWHERE = ("kubernetes", "github")
#: What fires the job, where that is not Debian's cron or as good as that.
DIALECTS = {"systemd": "systemd", "kubernetes": "kubernetes"}

#: How a scheduler of this host hands a variable on, where only its owner can read it.
HAND_ON = {
    "crontab": "from a line NAME=value above this one",
    "systemd": "by EnvironmentFile= in a drop-in of the service",
}

COMMAND = Command(
    "add",
    ("JOB",),
    "Declare a job and print what its scheduler needs.",
    (
        *SCHEDULE_OPTIONS,
        Option("for", "Which scheduler fires it.", "SCHEDULER", "choice", SCHEDULERS, default="crontab"),
        Option("image", "For kubernetes: the image, with ranonce and the command in it.", "IMAGE"),
        Option("runs-on", "For github: the label of the runner.", "LABEL", default="ubuntu-latest"),
        Option("into", "Write the files into this folder instead of printing them.", "FOLDER", "path"),
        *RUN_OPTIONS,
        *DECLARE_OPTIONS,
        Option("now", "Declare it as if it were this instant.", "INSTANT", "instant"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Writes the job into the configuration and a version of its schedule into the ledger. Declaring it
    again changes it: a new schedule begins where the last started window of the old one ends.

    Prints a line for the crontab, or with --for the units of a systemd timer, the manifest of a Kubernetes CronJob or
    a GitHub workflow. These last two run the job without a configuration, and their ledger comes from a secret.

    Where the ledger is a SQLite file, a job for Kubernetes is declared in a pod only: its ledger is on a volume of the
    cluster. The first run declares it there too.""",
    takes_command=True,
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Declare the job; print what to paste on standard output, and what to know on standard error."""
    from ranonce.configfile import write_job

    name = check_job_name(parsed.arguments[0])
    path = find_config(parsed.get("config"), environ)
    if path is None:
        raise ConfigError("there is no configuration to add the job to.", "Create the ledger first: ranonce init")
    config, ledger = open_ledger(parsed, environ, job=name)
    tell_warnings(ledger)
    before = config.jobs.get(name, JobSpec(name, declared=True))
    scheduler = _scheduler(parsed, before)
    spec = _spec(parsed, before, scheduler)
    now = parsed.get("now", ledger.now())
    wanted = _wanted(parsed, environ, spec, scheduler, path, config, now)
    printed = _printed(scheduler, wanted)  # before anything is written: what cannot be fired is not declared
    if name in config.jobs and before.every is not None and scheduler == _scheduler(parsed, before):
        earlier = _wanted(parsed, environ, before, scheduler, path, config, now)
        if _printed(scheduler, earlier).files == printed.files:
            printed = printed.replace(where="What its scheduler has stays as it is:", then=())
    if parsed.get("into") is not None:
        pasting.refuse_foreign(printed, parsed.get("into"))
    declared = None
    in_pod = "KUBERNETES_SERVICE_HOST" in environ
    if scheduler == "kubernetes" and wanted.sqlite is not None and not in_pod:
        said, changed = f"{name} is not declared in the ledger of this host, which no pod can reach.", False
    else:
        write_job(path, name, _own_settings(spec, config.folder), environ)
        job = Job(name, 0, now, spec.late_after, spec.max_attempts)
        try:
            declared, changed = ledger.declare(job, wanted.schedule, spec.offset, now=now, change=True)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{name!r} stands in the configuration, but the ledger could not be told: {error.sentence}",
                f"Say it once more: ranonce add {name} …",
            ) from error
        said = _said(spec, config.jobs.get(name), path)
    printed = printed.replace(notes=(*printed.notes, *_password(config, scheduler)))
    _tell(parsed, wanted, printed, declared, said=said, changed=changed)
    return 0


def _password(config: Config, scheduler: str) -> tuple[str, ...]:
    """Return what is to be said of a store's password, which this host's scheduler must hand on."""
    if scheduler not in HAND_ON or masked(config.ledger.store) == config.ledger.store:
        return ()
    source = config.ledger.source
    which = "RANONCE_STORE" if source.startswith("$") else f"the variables that {source} names for the store"
    return (f"The store has a password: {scheduler} must hand on {which}, {HAND_ON[scheduler]}.",)


def _spec(parsed: Parsed, before: JobSpec, scheduler: str) -> JobSpec:
    """Return what the job is to be: as it was, with what the command line says."""
    name = before.name
    settings = job_settings(COMMAND, parsed)
    if parsed.get("for") is not None:
        settings.setdefault("dialect", DIALECTS.get(scheduler, "debian"))
    if "cwd" in settings and scheduler not in ELSEWHERE:
        settings["cwd"] = os.path.abspath(settings["cwd"])
    if parsed.rest is not None:
        folder = settings.get("cwd", os.getcwd())
        settings["command"] = tuple(parsed.rest) if scheduler in ELSEWHERE else _absolute(parsed.rest, folder)
    elif not before.command:
        raise UsageError(f"the job {name!r} needs a command.", f"Write it after --: ranonce add {name} … -- COMMAND")
    spec = with_settings(before, settings)
    if spec.every is None:
        raise UsageError(f"the job {name!r} needs a schedule.", 'Say how often: --every day, or --every "0 2 * * *".')
    return spec


def _wanted(
    parsed: Parsed,
    environ: Mapping[str, str],
    spec: JobSpec,
    scheduler: str,
    path: str,
    config: Config,
    now: float,
) -> Wanted:
    """Return what the scheduler's module is asked for."""
    from ranonce.schedulers import Wanted

    assert spec.every is not None
    elsewhere = scheduler in ELSEWHERE
    return Wanted(
        spec,
        Schedule(spec.every, spec.tz, spec.dialect),
        now,
        here=() if elsewhere else _here(spec.name, path),
        alone=("run", spec.name, *run_options(spec), "--", *spec.command) if elsewhere else (),
        state_home=_state_home(environ),
        sqlite=sqlite_path(config.ledger.store),
        server=public(config.ledger.store) if server_of(config.ledger.store) else None,
        cwd=parsed.get("cwd"),
        image=parsed.get("image"),
        runs_on=parsed.get("runs-on", "ubuntu-latest"),
        user=_user(),
        is_root=os.geteuid() == 0,
    )


def _scheduler(parsed: Parsed, before: JobSpec) -> str:
    """Return which scheduler is meant: the one that is named, else the one whose dialect the job has."""
    dialects = {dialect: scheduler for scheduler, dialect in DIALECTS.items()}
    scheduler: str = parsed.get("for") or dialects.get(parsed.get("dialect", before.dialect), "crontab")
    for option, only in (("image", ("kubernetes",)), ("runs-on", ("github",)), ("into", SCHEDULERS[1:])):
        if parsed.get(option) is not None and scheduler not in only:
            raise UsageError(f"--{option} says nothing to {scheduler}.", f"It is for --for {' or '.join(only)}.")
    return scheduler


def _printed(scheduler: str, wanted: Wanted) -> Printed:
    from importlib import import_module

    printed: Printed = import_module(f"ranonce.schedulers.{scheduler}").printed(wanted)
    return printed


def _said(spec: JobSpec, before: JobSpec | None, path: str) -> str:
    """Say whether the job is new, changed (and what is kept as it was), or as it was."""
    if before is None:
        return f"Declared {spec.name} in {path}."
    usual = JobSpec(spec.name).as_dict()
    was, is_ = before.as_dict(), spec.as_dict()
    changed = [field for field in is_ if is_[field] != was[field]]
    if not changed:
        return f"{spec.name} is as it was in {path}."
    kept = [field for field in is_ if field not in changed and is_[field] != usual[field] and field not in _PLAIN]
    told = f"Changed {spec.name} in {path}: {', '.join(changed)}."
    return f"{told} Kept as it was: {', '.join(kept)}." if kept else told


#: Settings that every declared job has.
_PLAIN = frozenset({"name", "cwd", "declared"})


def _here(job: str, path: str) -> tuple[str, ...]:
    """Return the words that run the job on this host for a scheduler that has little besides HOME.

    That is the user's home folder whatever HOME is here. Source: crontab(5), systemd.exec(5).
    """
    found = find_config(None, _bare_environment())
    config = () if found == path else ("--config", path)
    return (*_ranonce(), "run", job, "--receipt", "problems", *config)


def _state_home(environ: Mapping[str, str]) -> str | None:
    """Return the XDG_STATE_HOME that a scheduler must hand on; None where it finds this host's state by itself."""
    states = _state(environ)
    return None if states is None or states == _state(_bare_environment()) else os.path.dirname(states)


def _bare_environment() -> dict[str, str]:
    try:
        return {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    except KeyError:  # a container's user without a name has no crontab either
        return {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _ranonce() -> list[str]:
    """Return the words that start this program from anywhere."""
    import shutil

    if os.path.basename(sys.argv[0]) == "ranonce":
        return [os.path.abspath(sys.argv[0])]
    found = shutil.which("ranonce")
    return [found] if found else [sys.executable, "-m", "ranonce"]


def _state(environ: Mapping[str, str]) -> str | None:
    try:
        return state_folder(environ)
    except ConfigError:
        return None


def _own_settings(spec: JobSpec, folder: str | None) -> dict[str, object]:
    """Return what is not as it would be anyway: that is what belongs into the file."""
    usual = JobSpec(spec.name, declared=True, cwd=folder).as_dict()
    return {field: value for field, value in spec.as_dict().items() if value != usual[field]}


def _absolute(command: list[str], folder: str) -> tuple[str, ...]:
    """Return the command with its program as an absolute path: a scheduler has another PATH and folder.

    A relative path is relative to the `folder` that the job is given now: `cd FOLDER && ./command`.
    """
    import shutil

    program = command[0]
    if "/" in program:
        return (os.path.abspath(os.path.join(folder, program)), *command[1:])
    found = shutil.which(program)
    return (os.path.abspath(found) if found else program, *command[1:])


def _tell(
    parsed: Parsed, wanted: Wanted, printed: Printed, declared: Declared | None, *, said: str, changed: bool
) -> None:
    spec = wanted.spec
    window = wanted.schedule.window_at(wanted.now)
    following = wanted.schedule.after(window)
    into = parsed.get("into")
    if into is not None:
        pasting.write(printed, into, declared=declared is not None)
    if parsed.flag("json"):
        import json

        told = {"job": spec.name, "schedule_version": declared.version.number if declared else None, "changed": changed}
        files = [{"name": name, "text": text} for name, text in printed.files if name]
        paste = {"files": files} if files else {"line": printed.files[0][1].rstrip("\n")}
        print(json.dumps({**told, **paste, "window": window.key, "next": format_instant(following.start)}))
        return
    notes = [f"{said} Its next window starts at {format_instant(following.start)}."]
    if changed and declared:
        begin = format_instant(declared.version.valid_from or 0)
        notes.append(f"The schedule has changed: version {declared.version.number} is for windows from {begin} on.")
    if wanted.here and not os.access(spec.command[0], os.X_OK):
        notes.append(
            f"{spec.command[0]!r} is not there or not executable yet."
            " (No shell reads the command; where you want one, write -- sh -c '…'.)"
        )
    if words := [word for word in spec.command[1:] if word in SHELL_WORDS or "\\%" in word]:
        notes.append(
            f"No shell and no cron reads the command, so the program is given {words[0]!r} as it stands."
            " Where you want a shell, write -- sh -c '…'; and cron's \\% is a plain % here."
        )
    if not wanted.schedule.is_cron:
        late = format_instant(due(wanted.schedule, following, spec.offset, spec.late_after))
        notes.append(f"A window counts as missing when it is over and nothing ran: that one from {late} on.")
    for note in (*notes, *printed.notes):
        print(note, file=sys.stderr)
    pasting.show(printed, into)
