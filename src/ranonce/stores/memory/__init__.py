"""A ledger in the memory of one process, for tests."""
