"""A ledger in a name space of a Redis or Valkey server."""
