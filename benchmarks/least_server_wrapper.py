"""The least a Python wrapper on a server can be: a durable claim, a child, a durable done, with our driver.

Usage: least_server_wrapper.py URL KEY COMMAND…  PostgreSQL: one INSERT that does nothing where the key is there, then
one UPDATE, each a transaction of its own. Redis and Valkey: one SET that does nothing where the key is there, then one
more.
"""

import os
import sys


def main() -> None:
    url, key, *command = sys.argv[1:]
    store = Postgres(url) if url.startswith("postgresql:") else Redis(url)
    if not store.claim(key):
        os._exit(0)
    pid = os.posix_spawnp(command[0], command, os.environ)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    store.done(key)
    os._exit(status)


class Postgres:
    def __init__(self, url: str) -> None:
        import psycopg

        self._db = psycopg.connect(url, autocommit=True)

    def claim(self, key: str) -> bool:
        claim = "INSERT INTO least VALUES (%s, 'running', now(), NULL) ON CONFLICT (key) DO NOTHING"
        return self._db.execute(claim, (key,)).rowcount == 1

    def done(self, key: str) -> None:
        self._db.execute("UPDATE least SET status = 'done', finished = now() WHERE key = %s", (key,))


class Redis:
    def __init__(self, url: str) -> None:
        import redis

        self._db = redis.Redis.from_url(url)

    def claim(self, key: str) -> bool:
        return bool(self._db.set(key, "running", nx=True))

    def done(self, key: str) -> None:
        self._db.set(key, "done")


if __name__ == "__main__":
    main()
