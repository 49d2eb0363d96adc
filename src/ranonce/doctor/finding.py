"""What a doctor says of one thing it looked at: what was tried, what was seen, and what to do about it. Pure."""

from __future__ import annotations

from ranonce.record import Record

OK, NOTE, PROBLEM = "ok", "note", "problem"
LEVELS = (OK, NOTE, PROBLEM)
RESTORE = "stop the jobs, keep what is there, and restore the ledger from a backup"


class Finding(Record):
    """One thing that was looked at. `check` is its lasting name for machines; `job` the job it is about, if it is one.

    `ok`: as it should be. `note`: worth knowing, and nobody need act on it today. `problem`: a promise may not hold.
    """

    check: str
    level: str
    tried: str
    seen: str
    todo: str = ""
    job: str | None = None

    @property
    def line(self) -> str:
        """The finding on one line, for people."""
        about = f"{self.check} {self.job}" if self.job else self.check
        return f"{self.level:<8} {about}: {self.tried}: {self.seen}{f' -> {self.todo}' if self.todo else ''}"


class Check:
    """One check at work: what it tries, said once, and a finding for each thing it sees."""

    def __init__(self, name: str, tried: str, job: str | None = None) -> None:
        self.name = name
        self.tried = tried
        self.job = job

    def ok(self, seen: str) -> Finding:
        """All is as it should be."""
        return Finding(self.name, OK, self.tried, seen, job=self.job)

    def note(self, seen: str, todo: str = "") -> Finding:
        """Worth knowing."""
        return Finding(self.name, NOTE, self.tried, seen, todo, self.job)

    def problem(self, seen: str, todo: str) -> Finding:
        """Somebody must act."""
        return Finding(self.name, PROBLEM, self.tried, seen, todo, self.job)

    def of(self, job: str) -> Check:
        """Return the same check about a job."""
        return Check(self.name, self.tried, job)


def step_of(next_step: str) -> str:
    """Return the next step of an error as one that a doctor can give: nothing was about to be run here."""
    for said in ("Nothing was run, since finished windows might run again.", "Nothing was run.", "Nothing was run;"):
        next_step = next_step.replace(said, "")
    return " ".join(next_step.split()) or "see what the sentence names"


def few(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its word: `1 job`, `3 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
