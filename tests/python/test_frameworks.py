"""The page about Python shows frameworks: its snippets are run where those are installed, as they stand there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import World

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "python.md"

#: How a test makes each framework fire once, now. The snippet itself is what a reader copies.
APSCHEDULER = """
import runpy
from datetime import UTC, datetime
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_ERROR
from apscheduler.schedulers.blocking import BlockingScheduler

start = BlockingScheduler.start

def start_now(scheduler):
    fired = []
    def done(event):
        print(event.retval.event)
        fired.append(event)
        if len(fired) == 2:
            scheduler.shutdown(wait=False)
        else:
            scheduler.get_jobs()[0].modify(next_run_time=datetime.now(UTC))
    scheduler.add_listener(done, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
    (job,) = scheduler._pending_jobs
    job[0].next_run_time = datetime.now(UTC)
    start(scheduler)

BlockingScheduler.start = start_now
runpy.run_path("with_apscheduler.py")
"""
CELERY = """
from with_celery import app, issue_triage
app.conf.task_always_eager = True
assert app.conf.beat_schedule["issue-triage"]["task"] == issue_triage.name
print(issue_triage.delay().get())
print(issue_triage.delay().get())
"""
DJANGO = """
from django.conf import settings
settings.configure()
from django.core.management import call_command
from with_django import Command
call_command(Command(), window="2025-11-09")
call_command(Command(), window="2025-11-09")
"""
AIRFLOW = """
from datetime import UTC, datetime
from with_airflow import issue_triage
work = issue_triage().get_task("work").python_callable
print(work(logical_date=datetime(2025, 11, 9, 2, tzinfo=UTC)))
print(work(logical_date=datetime(2025, 11, 9, 2, tzinfo=UTC)))
"""


def snippets() -> dict[str, str]:
    """Return the page's Python blocks by the name of the file each is."""
    found = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return dict(found)


@pytest.mark.parametrize(
    ("framework", "firing", "said"),
    [
        ("apscheduler", APSCHEDULER, ["done", "skipped"]),
        ("celery", CELERY, ["done", "skipped"]),
        ("django", DJANGO, ["done", "not run"]),
        ("airflow", AIRFLOW, ["done", "skipped"]),
    ],
)
def test_a_framework_that_fires_twice_has_the_work_done_once(world: World, framework, firing, said):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    folder = world.root / "work"
    for name, text in snippets().items():
        (folder / name).write_text(text)
    (folder / "fire.py").write_text(firing)
    ran = world.shell(f"exec {sys.executable} fire.py")
    assert ran.exit == 0, ran.err
    lines = ran.out.decode().splitlines()
    assert sum("labelling" in line for line in lines) == 1
    told = [line for line in lines if "labelling" not in line]
    assert all(word in line for word, line in zip(said, told, strict=True)), lines
