"""A database with a table of keys, of each kind, and connections to it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from ranonce.inbox import Inbox


@dataclass
class Receiver:
    """One database of a receiver's. `effects` is a table of its own."""

    url: str
    schema: str = ""

    def connect(self) -> Any:
        if self.url.startswith("sqlite:///"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=10, check_same_thread=False)
        import psycopg

        return psycopg.connect(self.url)

    @property
    def inbox(self) -> Inbox:
        return Inbox(f"{self.schema}ranonce_keys")

    @property
    def mark(self) -> str:
        return "?" if self.url.startswith("sqlite") else "%s"

    def add_effect(self, connection: Any, text: str) -> None:
        connection.execute(f"INSERT INTO {self.schema}effects VALUES ({self.mark})", (text,))

    def effects(self) -> list[str]:
        connection = self.connect()
        try:
            return [row[0] for row in connection.execute(f"SELECT text FROM {self.schema}effects ORDER BY text")]
        finally:
            connection.close()

    def rows(self) -> int:
        connection = self.connect()
        try:
            return connection.execute(f"SELECT count(*) FROM {self.schema}ranonce_keys").fetchone()[0]
        finally:
            connection.close()


def prepared(receiver: Receiver) -> Receiver:
    connection = receiver.connect()
    if receiver.schema:
        connection.execute(f"CREATE SCHEMA {receiver.schema.rstrip('.')}")
    else:
        connection.execute("PRAGMA journal_mode = WAL")
    receiver.inbox.create(connection)
    connection.execute(f"CREATE TABLE {receiver.schema}effects (text text)")
    connection.commit()
    connection.close()
    return receiver
