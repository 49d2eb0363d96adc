"""Every error `ranonce` raises on purpose: a code for machines, a sentence and a next step for people, an exit status.

The library raises; the command line prints `ranonce: SENTENCE NEXT_STEP` and exits with the status. Expected refusals
of a claim (busy, done, held …) are values of `lifecycle`, not errors.
"""

from __future__ import annotations

# Exit statuses of the command line (sysexits.h where one fits). The documentation's table is generated from this one.
EX_DONE = 0
EX_USAGE = 64
EX_CHECK_FAILED = 65
EX_STORE_UNAVAILABLE = 69
EX_NOT_RECORDED = 74
EX_TRY_LATER = 75
EX_CLAIM_LOST = 76
EX_CONFIG = 78
EX_STOPPED = 79
EX_PERSON_NEEDED = 80
EX_TIME_LIMIT = 124
EX_NOT_EXECUTABLE = 126
EX_NOT_FOUND = 127

EXIT_STATUSES: dict[int, str] = {
    EX_DONE: "done now, or already done",
    EX_USAGE: "wrong usage, a naive or impossible time",
    EX_CHECK_FAILED: "the command exited 0 but a check did not hold, or what it emitted was damaged",
    EX_STORE_UNAVAILABLE: "the store could not be reached in time: nothing was run",
    EX_NOT_RECORDED: "the work was done but its outcome could not be recorded (it waits on this host)",
    EX_TRY_LATER: "try later: busy, overlap, waiting, early, a closed gate",
    EX_CLAIM_LOST: "the claim was lost while working: the child was stopped, nothing recorded as done",
    EX_CONFIG: "configuration, or this store is not the ledger it should be",
    EX_STOPPED: "stopped: rate limit or other declared stop",
    EX_PERSON_NEEDED: "a person must act: exhausted, held, conflict, too late, superseded by another schedule's window",
    EX_TIME_LIMIT: "time limit",
    EX_NOT_EXECUTABLE: "not executable",
    EX_NOT_FOUND: "not found",
}


class RanonceError(Exception):
    """Base of all errors of `ranonce`.

    `sentence` says what is wrong and shows the bad value; `next_step` says what to do about it (may be empty).
    """

    code = "error"
    exit_status = 1

    def __init__(self, sentence: str, next_step: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.sentence} {self.next_step}".rstrip()


class UsageError(RanonceError):
    """Wrong usage: an unknown option, a bad name, a naive or impossible time, a window that does not exist."""

    code = "usage"
    exit_status = EX_USAGE


class ConfigError(RanonceError):
    """The configuration, a schedule or a value in it cannot be used."""

    code = "config"
    exit_status = EX_CONFIG


class NotThisLedger(RanonceError):
    """The store is missing, empty, foreign, re-created, rolled back or damaged: not the ledger it should be."""

    code = "not-this-ledger"
    exit_status = EX_CONFIG


class StoreUnavailable(RanonceError):
    """The store could not be reached, read or written in time. Nothing was started because of it."""

    code = "store-unavailable"
    exit_status = EX_STORE_UNAVAILABLE


class OutcomeNotRecorded(RanonceError):
    """The work ended but its outcome could not be committed; it waits in the journal of this host."""

    code = "not-recorded"
    exit_status = EX_NOT_RECORDED


class ClaimLost(RanonceError):
    """This attempt no longer holds its claim: it can write nothing more."""

    code = "claim-lost"
    exit_status = EX_CLAIM_LOST
