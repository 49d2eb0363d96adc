"""A ledger in one file on a local disk."""
