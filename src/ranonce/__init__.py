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

__version__ = "0.1.0"

__all__ = [
    "ClaimLost",
    "ConfigError",
    "NotThisLedger",
    "OutcomeNotRecorded",
    "RanonceError",
    "StoreUnavailable",
    "UsageError",
    "__version__",
]
