"""Four bad nights in half a minute: what `ranonce` does when the scheduler, the host and the job misbehave.

    make demo                          or: python -m demo.first_night [--keep]

Two real nightly jobs work on this machine's own files: a verified backup of a folder and a report over a file. They
are fired as a scheduler would fire them (and as it should not), with `--now` in place of waiting for the night. What
happened is counted in a file that the jobs write themselves, so that the ledger's own word is not enough. The exit
status is 0 if everything that was meant to happen did happen, and only that.

OpenLedger, configuration and products are in a temporary folder, removed at the end; `--keep` keeps it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANONCE = [str(Path(sys.executable).with_name("ranonce"))]
TRIGGERS = 8
PATIENCE_SECONDS = 60.0
#: A folder and a file that every machine with Python has.
FOLDER = Path(json.__file__).parent.parent / "email"
SOURCES = (Path("/etc/passwd"), Path("/etc/services"), HERE / "first_night.py")
#: Of the environment, what would choose another ledger or window than the demo's.
FOREIGN = ("RANONCE_", "XDG_", "TRIGGER_TIMER_", "CRONJOB_", "KUBERNETES_")


class Broken(Exception):
    """Something happened that was not meant to happen."""


def expect(held: bool, what: str) -> None:
    """Print that something holds, or end the demo."""
    if not held:
        raise Broken(what)
    print(f"  ok: {what}")


def say(text: str) -> None:
    """Print an explanation."""
    print()
    print(textwrap.fill(" ".join(text.split()), 100))


def folded(words: list[str]) -> str:
    """Return a command line as it can be pasted, in lines of about 100 columns."""
    lines = [""]
    for word in words:
        quoted = shlex.quote(word)
        if len(lines[-1]) + len(quoted) > 96:
            lines.append("   ")
        lines[-1] += f" {quoted}" if lines[-1] else quoted
    return " \\\n  ".join(lines)


class Nights:
    """A ledger of its own in a temporary folder, two jobs, and four nights that end the day before yesterday."""

    def __init__(self, world: Path) -> None:
        self.world = world
        self.effects = world / "effects.log"
        self.effects.touch()
        (world / "backups").mkdir()
        (world / "reports").mkdir()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        self.environment |= {"RANONCE_CONFIG": f"{world}/ranonce.toml", "XDG_STATE_HOME": f"{world}/state"}
        last = datetime.now(UTC).date() - timedelta(days=2)
        self.days = [str(last - timedelta(days=back)) for back in (3, 2, 1, 0)]
        self.morning_after = f"{last}T09:00:00Z"
        self.source = next(path for path in SOURCES if path.is_file())

    # --- how things are called ---

    def ranonce(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call the program as a person does: the command line and what it prints are shown."""
        print("\n  $ " + folded(["ranonce", *arguments]))
        done = self.capture(*arguments)
        for line in done.stdout.splitlines():
            print(f"    {line}")
        return done

    def capture(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call the program and return what it printed on both streams."""
        return subprocess.run(
            [*RANONCE, *arguments],
            check=False,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def fire(self, job: str, day: str, *more: str) -> subprocess.Popen[str]:
        """Start the program as a scheduler does, with the night's time in place of the clock's."""
        return subprocess.Popen(
            [*RANONCE, "run", job, "--now", f"{day}T02:00:01Z", *more],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def receipt(self, trigger: subprocess.Popen[str]) -> dict[str, object]:
        """Wait for a trigger's end and return its receipt; what the job printed is shown."""
        out, err = trigger.communicate(timeout=PATIENCE_SECONDS)
        receipt = json.loads(err.splitlines()[-1])
        assert isinstance(receipt, dict)
        assert receipt["exit"] == trigger.returncode
        for line in out.splitlines():
            print(f"    {line}")
        return receipt

    def started(self, job: str, day: str) -> list[str]:
        """Return the lines that a job's command itself wrote when it was started for a night."""
        return [line for line in self.effects.read_text().splitlines() if line.startswith(f"{job} {day}")]

    # --- the story ---

    def declare(self) -> None:
        """Create the ledger and declare both jobs."""
        say("A ledger is created on purpose, once. It lies in a temporary folder, so a volatile place is accepted.")
        created = self.ranonce("init", "--accept-volatile")
        expect(created.returncode == 0, "there is a ledger")

        say(f"""Two jobs are declared. The backup of {FOLDER} is done only if the archive is there, is new, is not tiny
            and can be listed. The report over {self.source} is done only if it is JSON and is about the right day.""")
        archive, report = "backups/{window}.tar.gz", "reports/{window}.json"
        listing = (
            f"tar -tzf {archive}" if shutil.which("tar") else f"{shlex.quote(sys.executable)} -m tarfile -l {archive}"
        )
        python = sys.executable
        backup = [python, str(HERE / "backup.py"), str(FOLDER), archive, str(self.effects)]
        checks = ["--check", f"file={archive},min_bytes=1000,fresh", "--check", f"command={listing} >/dev/null"]
        since = ["--since", f"{self.days[0]}T00:00:00Z"]
        added = self.ranonce("add", "backup", "--every", "0 2 * * *", *since, *checks, "--", *backup)
        expect(added.returncode == 0 and "run backup" in added.stdout, "the line for the crontab is printed")

        tell = [python, str(HERE / "report.py"), "{window}", str(self.source), report, str(self.effects)]
        checks = ["--check", f"json={report},fresh,equals=/date={{window}}"]
        added = self.ranonce("add", "report", "--every", "day", *since, *checks, "--", *tell)
        expect(added.returncode == 0, "both jobs are declared")

    def eight_at_once(self) -> None:
        """First night: eight triggers for one window."""
        day = self.days[0]
        say(f"First night, {day}. Eight triggers fire at once: a doubled crontab line, a second host, a nervous hand.")
        triggers = [self.fire("backup", day) for _ in range(TRIGGERS)]
        receipts = [self.receipt(trigger) for trigger in triggers]
        told = Counter(f"{receipt['event']} {receipt.get('reason', '')}".rstrip() for receipt in receipts)
        print("    receipts:", ", ".join(f"{count} × {what}" for what, count in told.most_common()))
        events = Counter(receipt["event"] for receipt in receipts)
        expect(events == {"done": 1, "skipped": TRIGGERS - 1}, "one trigger did the work, seven were refused")
        expect(len(self.started("backup", day)) == 1, "the backup was started once, by its own count")
        expect(self.receipt(self.fire("report", day))["event"] == "done", "the report is done too")

    def killed_in_the_middle(self) -> None:
        """Second night: kill -9, then the scheduler fires again."""
        day = self.days[1]
        say(f"Second night, {day}. In the middle of the backup both ranonce and the backup are killed with kill -9.")
        trigger = self.fire("backup", day)
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not list(self.world.glob(f"backups/{day}*.part")):
            if trigger.poll() is not None or time.monotonic() > give_up:
                raise Broken("the backup did not start")
            time.sleep(0.01)
        child = int(self.started("backup", day)[0].rpartition(" ")[2])
        for pid in (trigger.pid, child):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # the child dies with ranonce: it may be gone already
        trigger.communicate(timeout=PATIENCE_SECONDS)
        expect(trigger.returncode == -signal.SIGKILL, "no verdict, no receipt, half an archive: a crash")

        say("""The scheduler fires again. The lease of the dead attempt lives for minutes yet, but on the same host its
            death can be proved, so nobody waits.""")
        fired = time.monotonic()
        receipt = self.receipt(self.fire("backup", day))
        taken = time.monotonic() - fired
        expect(
            (receipt["event"], receipt["attempt"]) == ("done", 2) and taken < PATIENCE_SECONDS,
            f"taken over at once and done as attempt 2, {taken:.1f} seconds after the trigger",
        )
        expect(len(self.started("backup", day)) == 2, "the backup was started twice that night, by its own count")
        expect(self.receipt(self.fire("report", day))["event"] == "done", "the report is done")

    def nobody_fires(self) -> None:
        """Third night: the host is asleep."""
        say(f"Third night, {self.days[2]}. The host is asleep. Nothing fires, so nothing fails, and no mail is sent.")

    def broken_products(self) -> None:
        """Fourth night: both commands exit 0, and neither product is right."""
        before, day = self.days[1], self.days[3]
        say(f"""Fourth night, {day}. Somebody replaced both commands in a hurry. One writes a truncated archive, the
            other copies an old report. Both exit 0.""")
        truncate = f"head -c 2000 backups/{before}T02:00Z.tar.gz > backups/{day}T02:00Z.tar.gz"
        receipt = self.receipt(self.fire("backup", day, "--", "sh", "-c", truncate))
        print(f"    {receipt['reason']}")
        expect((receipt["event"], receipt["exit"]) == ("failed", 65), "the archive cannot be listed: failed, exit 65")
        receipt = self.receipt(self.fire("report", day, "--", "cp", f"reports/{before}.json", f"reports/{day}.json"))
        print(f"    {receipt['reason']}")
        expect((receipt["event"], receipt["exit"]) == ("failed", 65), "the report is of another day: failed, exit 65")

    def morning(self) -> None:
        """The board, the story of the killed run, and the probe."""
        say(f"In the morning ({self.morning_after}). First the board of all jobs.")
        expect(self.ranonce("status", "--now", self.morning_after).returncode == 0, "the board is shown")

        say("What happened to the backup in the second night? Each event was durable before anybody acted on it.")
        shown = self.ranonce("show", "backup", self.days[1])
        expect(shown.returncode == 0 and "expired" in shown.stdout, "it ran, and the crash is part of its story")

        say("""What is missing, dead or doubled? The probe compares the windows the schedules wanted with those that are
            recorded. Exit status 1: there is something to do.""")
        probed = self.ranonce("probe", *self._span())
        expect(probed.returncode == 1, "the probe has findings")
        wanted = {"missing": 2, "failed": 2, "repeated": 1}
        expect(
            {bucket: count for bucket, count in self._counts().items() if count} == wanted,
            "two windows were missed, two products failed, nothing was doubled: what we saw happen",
        )

    def put_right(self) -> None:
        """Each hole is filled by hand; then the probe is clean."""
        say("The holes are filled by hand, each window by its name. The commands are the declared ones again.")
        for day in self.days[2:]:
            for job, window in (("backup", f"{day}T02:00Z"), ("report", day)):
                receipt = self.receipt(self.fire(job, day, "--window", window))
                expect(receipt["event"] == "done", f"{job} {window} is done (attempt {receipt['attempt']})")
        probed = self.ranonce("probe", *self._span())
        expect(probed.returncode == 0, "the probe is clean")
        starts = Counter(line.split()[0] for line in self.effects.read_text().splitlines())
        expect(
            starts == {"backup": 1 + 2 + 1 + 1, "report": 1 + 1 + 1 + 1},
            f"by their own count the jobs were started {starts['backup']} and {starts['report']} times, as told here",
        )

    def _span(self) -> tuple[str, ...]:
        return ("--since", f"{self.days[0]}T00:00:00Z", "--now", self.morning_after)

    def _counts(self) -> dict[str, int]:
        counts = json.loads(self.capture("probe", "--json", *self._span()).stdout)["counts"]
        assert isinstance(counts, dict)
        return counts


def main(arguments: list[str]) -> int:
    """Live through the nights; return 0 if everything happened as it was meant to."""
    if arguments not in ([], ["--keep"]):
        print("usage: python -m demo.first_night [--keep]", file=sys.stderr)
        return 64
    began = time.monotonic()
    world = Path(tempfile.mkdtemp(prefix="ranonce-demo-"))
    try:
        nights = Nights(world)
        nights.declare()
        nights.eight_at_once()
        nights.killed_in_the_middle()
        nights.nobody_fires()
        nights.broken_products()
        nights.morning()
        nights.put_right()
    except Broken as broken:
        print(f"\nNOT as it was meant to be: {broken}", file=sys.stderr)
        return 1
    finally:
        if arguments:
            print(f"\nKept: {world} (RANONCE_CONFIG={world}/ranonce.toml XDG_STATE_HOME={world}/state)")
        else:
            shutil.rmtree(world)
    say(f"All of it was as it was meant to be. It took {time.monotonic() - began:.0f} seconds.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
