"""A run ledger for scheduled jobs: did it run once?

The public names of the library. Importing opens nothing and reads nothing.
"""

from ranonce.errors import (
    ClaimLost,
    ConfigError,
    NotThisLedger,
    OutcomeNotRecorded,
    RanonceError,
    StoreUnavailable,
    UsageError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.python.answers import Refusal, Stop
    from ranonce.python.handle import Ledger
    from ranonce.python.job import Job, job
    from ranonce.python.run import Run
    from ranonce.receipts import Receipt

__version__ = "0.1.0"

__all__ = [
    "ClaimLost",
    "ConfigError",
    "Job",
    "Ledger",
    "NotThisLedger",
    "OutcomeNotRecorded",
    "RanonceError",
    "Receipt",
    "Refusal",
    "Run",
    "Stop",
    "StoreUnavailable",
    "UsageError",
    "__version__",
    "job",
]

#: Names that are loaded when they are first asked for, and where they live: `ranonce run` needs none of them.
_LATER = {
    "Job": "ranonce.python.job",
    "Ledger": "ranonce.python.handle",
    "Receipt": "ranonce.receipts",
    "Refusal": "ranonce.python.answers",
    "Run": "ranonce.python.run",
    "Stop": "ranonce.python.answers",
    "job": "ranonce.python.job",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(__import__(_LATER[name], fromlist=[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
