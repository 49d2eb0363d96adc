"""A GitHub workflow that fires a job. Source: GitHub's documentation of the workflow syntax and of `schedule`.

GitHub counts in UTC and knows no zones, so a job of another zone has a line for each offset of its year. A hosted
runner's disk is gone after the job: its ledger must be one that can be reached from there, in PostgreSQL or Redis, so a
SQLite file on it is refused. On a runner of one's own the file stays.
"""

from __future__ import annotations

from shlex import quote

from ranonce import __version__
from ranonce.errors import ConfigError, UsageError
from ranonce.names import shown_path
from ranonce.schedulers import WRITTEN_BY, Printed, cron_rule, writable
from ranonce.schedulers.cronlines import lines, shifts
from ranonce.schedulers.yamltext import scalar
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.schedulers import Wanted
    from ranonce.windows import Schedule

HOSTED = ("ubuntu-", "ubuntu_")
NOT_LINUX = ("windows", "macos")
#: GitHub starts a schedule at most this often.
SHORTEST_SECONDS = 300


def printed(wanted: Wanted) -> Printed:
    """Return the workflow of a job. UsageError for a runner that is not Linux, ConfigError for a ledger it loses."""
    name = wanted.spec.name
    check_runner(wanted)
    notes = []
    window = wanted.schedule.window_at(wanted.now)
    if window.end - window.start < SHORTEST_SECONDS:
        notes.append("GitHub starts a schedule every 5 minutes at most: windows between two starts will be missing.")
    if wanted.sqlite is not None:
        notes.append(
            f"The ledger is {wanted.sqlite}: the runner must be on this host and work as this user ({wanted.user})."
        )
    notes += wanted.unreachable("a runner")
    whole = ", with its password" if wanted.server is not None else ""
    return Printed(
        ((f"{name}.yml", workflow(wanted)),),
        f"A workflow, .github/workflows/{name}.yml on the default branch:",
        (
            f"gh secret set RANONCE_STORE   # what `ranonce init` printed{whole}",
            "gh secret set RANONCE_LEDGER",
        ),
        tuple(notes),
    )


def check_runner(wanted: Wanted) -> None:
    """Refuse a runner on which the job's ledger cannot be."""
    label = wanted.runs_on.lower()
    if label.startswith(NOT_LINUX):
        raise UsageError(f"--runs-on: {shown(wanted.runs_on)} is not Linux, which ranonce needs.", "Use ubuntu-latest.")
    if wanted.sqlite is not None and label.startswith(HOSTED):
        raise ConfigError(
            f"the ledger is the file {wanted.sqlite}, and the disk of {wanted.runs_on} is gone after each job.",
            "Name a runner of your own on this host (--runs-on self-hosted), let this host's cron run the job, or keep"
            " the ledger on a server (postgresql://, redis://). Nothing was declared.",
        )


def utc_lines(schedule: Schedule, now: float) -> list[str]:
    """Return the cron lines in UTC at which a window of the schedule can begin."""
    from ranonce.zones import load_zone

    zone = None if schedule.tz == "UTC" else load_zone(schedule.tz)
    return lines(cron_rule(schedule), shifts(zone, None, now))


def workflow(wanted: Wanted) -> str:
    """Return the workflow file."""
    name = wanted.spec.name
    writable((*wanted.alone, wanted.cwd or ""), "a workflow")
    times = utc_lines(wanted.schedule, wanted.now)
    zone = "" if wanted.schedule.tz == "UTC" else _ZONE.format(zone=wanted.schedule.tz)
    state = wanted.state_home if wanted.sqlite is not None else None
    run, job, *options = wanted.alone
    chosen = '--trigger "$TRIGGER" ${WINDOW:+--window "$WINDOW"}'
    words = ['"$RUNNER_TEMP/ranonce/bin/ranonce"', run, quote(job), chosen, *(quote(word) for word in options)]
    return _WORKFLOW.format(
        written_by=WRITTEN_BY,
        name=scalar(name),
        job=name,
        zone=zone,
        disk=_OWN_DISK.format(path=shown_path(wanted.sqlite)) if wanted.sqlite is not None else _HOSTED_DISK,
        times="".join(f"    - cron: {scalar(each)}\n" for each in times),
        group=scalar(f"ranonce-{name}"),
        runs_on=scalar(wanted.runs_on),
        package=f"ranonce{wanted.extra}=={__version__}",
        folder=f"        working-directory: {scalar(unevaluated(wanted.cwd))}\n" if wanted.cwd else "",
        state=f"          XDG_STATE_HOME: {scalar(unevaluated(state))}\n" if state else "",
        command=_block(unevaluated(" ".join(words))),
    )


def unevaluated(text: str) -> str:
    """Return text that GitHub hands on unchanged: `${{` would begin an expression, so it is one that yields itself."""
    return text.replace("${{", "${{ '${{' }}")


def _block(command: str) -> str:
    """Return a command as it is read best: as it stands, in a block of its own, if it is one line."""
    return f"|\n          {command}" if command.isprintable() else scalar(command)


_HOSTED_DISK = """\
# A hosted runner's disk is gone after the job: the ledger must be one that can be reached from there, and the journal
# that would notice an old copy of it, or keep an outcome while it is away, ends with the runner."""
_OWN_DISK = "# The ledger is a file, {path}: the runner must be on its host, and keep its disk after the job."
_ZONE = """\
    # GitHub counts in UTC. These are the times that the job's time in {zone} can be there over the year; a trigger too
    # many finds its window done.
"""
_WORKFLOW = """\
{written_by}
# GitHub may start a schedule late, and stops it after 60 days without a commit: ask `ranonce probe` from elsewhere.
{disk}
name: {name}
on:
  schedule:
{zone}{times}  workflow_dispatch:
    inputs:
      window:
        description: The window to work on, by its key. Empty is the one that is now.
        required: false
        type: string
permissions:
  contents: read
concurrency:
  group: {group}
  cancel-in-progress: false
jobs:
  run:
    runs-on: {runs_on}
    steps:
      - uses: actions/checkout@v4
      - name: Install ranonce
        run: |
          python3 -m venv "$RUNNER_TEMP/ranonce"
          "$RUNNER_TEMP/ranonce/bin/python" -m pip install "{package}"
      - name: Run {job}
{folder}        env:
          RANONCE_STORE: ${{{{ secrets.RANONCE_STORE }}}}
          RANONCE_LEDGER: ${{{{ secrets.RANONCE_LEDGER }}}}
          TRIGGER: ${{{{ github.event_name == 'schedule' && 'schedule' || 'manual' }}}}
          WINDOW: ${{{{ inputs.window }}}}
{state}        run: {command}
"""
