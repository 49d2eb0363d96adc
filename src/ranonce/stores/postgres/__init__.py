"""A ledger in a schema of a PostgreSQL database."""
