"""Addresses of ledgers on servers: one normal form, every mistake in a sentence, and no password anywhere."""

from __future__ import annotations

import pytest

from ranonce.errors import ConfigError, RanonceError, UsageError
from ranonce.ledger import known_ledger, remember_ledger
from ranonce.serverurl import is_local, parts_of
from ranonce.storeurl import (
    StoreText,
    environment_store,
    in_namespace,
    masked,
    option_store,
    public,
    same_place,
    server_of,
    store_url,
)


def normal(text: str) -> str:
    """Return the normal form of an address that stands in $RANONCE_STORE."""
    return store_url(environment_store(text), {})


def in_file(text: str, **environ: str) -> str:
    """Return the normal form of an address that stands in the file."""
    return store_url(StoreText(text, "/c/ranonce.toml", "ranonce.toml:3: ledger.store", base="/c"), environ)


def refusal(text: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        in_file(text, **environ)
    return refused.value


# --- normal forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("postgresql://app@db/ledgers", "postgresql://app@db/ledgers"),
        ("postgres://app@db:5433/ledgers", "postgresql://app@db:5433/ledgers"),
        ("PostgreSQL://db/x", "postgresql://db/x"),
        ("postgresql:///x", "postgresql:///x"),
        ("postgresql://app@/x?host=/run/postgresql", "postgresql://app@/x?host=/run/postgresql"),
        ("postgresql://app@%2Frun%2Fpostgresql/x", "postgresql://app@%2Frun%2Fpostgresql/x"),
        ("postgresql://app@[::1]:5432/x", "postgresql://app@[::1]:5432/x"),
        (
            "postgresql://a@h1:1,h2:2/x?target_session_attrs=read-write",
            "postgresql://a@h1:1,h2:2/x?target_session_attrs=read-write",
        ),
        ("postgresql://a@h/x?schema=staging&sslmode=require", "postgresql://a@h/x?sslmode=require&schema=staging"),
        ("postgresql://a@h/x?schema=ranonce", "postgresql://a@h/x"),
        ("postgresql://a@h/x?", "postgresql://a@h/x"),
        ("postgresql://a:%40%3A%2F%3F%25@h/x", "postgresql://a:%40%3A%2F%3F%25@h/x"),
        ("postgresql://a:b:c!$&'()*+,;=~@h/x", "postgresql://a:b:c!$&'()*+,;=~@h/x"),
        ("postgresql://a:pässword@h/x", "postgresql://a:pässword@h/x"),
        ("redis://cache", "redis://cache:6379/0"),
        ("redis://cache/", "redis://cache:6379/0"),
        ("redis://cache:6380/07", "redis://cache:6380/7"),
        ("valkey://:pw@cache/1", "redis://:pw@cache:6379/1"),
        ("valkeys://u:pw@cache:1/1?namespace=blue", "rediss://u:pw@cache:1/1?namespace=blue"),
        ("rediss://[::1]/0?namespace=ranonce&ssl_ca_certs=/x.pem", "rediss://[::1]:6379/0?ssl_ca_certs=/x.pem"),
        ("redis://[2001:db8::1]:7000/0", "redis://[2001:db8::1]:7000/0"),
    ],
)
def test_an_address_has_one_normal_form(written: str, expected: str) -> None:
    assert normal(written) == expected
    assert normal(expected) == expected


def test_where_in_the_server_a_ledger_lies_is_told_apart_from_the_server() -> None:
    url = normal("postgresql://a:b@h/x?schema=blue&sslmode=require")
    server = server_of(url)
    assert server is not None
    assert (server.scheme, server.namespace, server.address) == (
        "postgresql",
        "blue",
        "postgresql://a:b@h/x?sslmode=require",
    )
    assert in_namespace(url, "green") == "postgresql://a:b@h/x?sslmode=require&schema=green"
    assert in_namespace(url, "ranonce") == server.address
    assert server_of("postgresql://h/x").namespace == "ranonce"  # type: ignore[union-attr]
    assert in_namespace("redis://h:6379/0", "green") == "redis://h:6379/0?namespace=green"
    assert server_of("sqlite:////x.db") is server_of("memory:") is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("postgresql://app:secret@db/x", "postgresql://owner@db/x", True),
        ("postgresql://db/x?user=app&password=secret", "postgresql://db/x", True),
        ("postgresql://db/x", "postgresql://db/x?schema=other", False),
        ("postgresql://db/x", "postgresql://db/y", False),
        ("postgresql://db/x", "postgresql://db:5433/x", False),
        ("redis://:pw@h:1/0", "redis://h:1/0", True),
        ("redis://h:1/0", "redis://h:1/1", False),
        ("sqlite:////x", "sqlite:////x", True),
        ("sqlite:////x", "postgresql://db/x", False),
        ("postgresql://db/x", "postgresql://torn[", False),
    ],
)
def test_who_asks_does_not_decide_which_ledger_is_meant(one: str, other: str, same: bool) -> None:
    assert same_place(one, other) is same_place(other, one) is same


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("postgresql://localhost/x", True),
        ("postgresql:///x", True),
        ("postgresql:///x?host=/run/postgresql", True),
        ("postgresql://%2Frun%2Fpostgresql/x", True),
        ("postgresql://a@127.0.0.2:5433,[::1]:1/x", True),
        ("postgresql://a@127.0.0.1,db/x", False),
        ("postgresql:///x?host=db", False),
        ("redis://cache:6379/0", False),
        ("redis://LOCALHOST:6379/0", True),
    ],
)
def test_whether_a_server_is_this_hosts_own_is_known(url: str, local: bool) -> None:
    assert is_local(url) is local


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("postgresql:/db/x", "is not the address of a store"),
        ("postgresql://db", "names no database"),
        ("postgresql://app@db/", "names no database"),
        ("postgresql://db/a/b", "is not the address of a store"),
        ("postgresql://db:fivefour/x", "is not the address of a store"),
        ("postgresql://a b@db/x", "cannot be read as an address"),
        ("postgresql://app@db:5433O/x", "its port is no number"),
        ("postgresql://db/?dbname=x", "as an option (dbname=)"),
        ("postgresql://db/x?dbname=y", "as an option (dbname=)"),
        ("postgresql://db/x?schema", "is not the address of a store"),
        ("postgresql://db/x?=y", "is not the address of a store"),
        ("postgresql://db/x?schema=", "schema='' cannot be used"),
        ("postgresql://db/x?schema=a&schema=b", "schema='a' cannot be used"),
        ("postgresql://db/x?schema=a&schema=a", "schema='a' cannot be used"),
        ("postgresql://db/x?schema=Blue", "schema='Blue' cannot be used"),
        ("postgresql://db/x?schema=1st", "schema='1st' cannot be used"),
        ("postgresql://db/x?schema=_x", "schema='_x' cannot be used"),
        ("postgresql://db/x?schema=pg_x", "schema='pg_x' cannot be used"),
        ("postgresql://db/x?schema=a-b", "schema='a-b' cannot be used"),
        ("postgresql://db/x?schema=blåbær", "schema='blåbær' cannot be used"),
        ("postgresql://db/x?schema=" + "a" * 64, "cannot be used"),
        ("postgresql://db/x?schema=%61", "schema='%61' cannot be used"),
        ("redis://cache/ledger", "a database of Redis has a number"),
        ("redis://cache/¹", "a database of Redis has a number"),
        ("redis://cache/-1", "a database of Redis has a number"),
        ("redis://cache/0?db=1", "as an option (db=)"),
        ("redis:///0", "does not name one host"),
        ("redis://h1,h2/0", "does not name one host"),
        ("redis://cache/0?namespace={x}", "namespace='{x}' cannot be used"),
        ("redis:cache", "is not the address of a store"),
        ("mysql://h/db", "no store is called 'mysql'"),
    ],
)
def test_a_mistake_is_named_in_one_sentence_with_the_next_step(written: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        store_url(option_store(written), {})
    assert sentence in refused.value.sentence
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("written", "step"),
    [
        ("postgresql://app@db:5433O/x", "Write HOST:5432"),
        ("redis://cache:six/0", "Write HOST:6379"),
        ("postgresql:/app@db/x", "Write postgresql://USER@HOST/DATABASE"),
        ("postgresql:/x", "Write postgresql://USER@HOST/DATABASE"),
        ("postgresql://app@x@db:5432/x", "percent-encoded"),
    ],
)
def test_what_is_advised_is_what_would_help(written: str, step: str) -> None:
    with pytest.raises(ConfigError) as refused:
        normal(written)
    assert step in refused.value.next_step


def test_a_word_that_may_be_a_user_is_told_to_be_that_or_a_password() -> None:
    assert "holds a password, or a user without one." in refused_option("redis://jobs@r/0").sentence
    assert "holds a password." in refused_option("redis://:hunter2@r/0").sentence


# --- passwords ------------------------------------------------------------------------------------------------------

SECRET = "hunter2"


@pytest.mark.parametrize(
    "written",
    [
        "postgresql://me:hunter2@db/x",
        "postgresql://me:hun/ter2@db/x",
        "postgresql://me:hun?ter2@db/x",
        "postgresql://me:hun#ter2@db/x",
        "postgresql://me:hun@ter2@db/x",
        "postgresql://me:hun%ter2@db/x",
        "postgresql://me:a${PW}hunter2@db/x",
        "postgresql://db/x?user=me&password=hunter2",
        "postgresql://db/x?sslpassword=hunter2",
        "postgresql://${USER}:${PW}@db/x?password=hunter2",
        "redis://:hunter2@r/0",
        "redis://hunter2@r/0",
        "redis://r/0?password=hunter2",
        "valkey://:hunter2@r/0",
    ],
)
def test_a_literal_password_is_refused_and_not_repeated(written: str) -> None:
    for error in (refusal(written, PW="pw", USER="me"), refused_option(written)):
        assert "holds a password" in error.sentence
        assert "hun" not in str(error)
        assert "ter2" not in str(error)


def refused_option(written: str) -> RanonceError:
    with pytest.raises(UsageError) as refused:
        store_url(option_store(written), {})
    return refused.value


@pytest.mark.parametrize(
    "written",
    [
        "postgresql://app:hunter2@db",
        "postgresql://app:hunter2@db/x?schema=UPPER",
        "postgresql://app:hunter2@db/x?dbname=y",
        "postgresql://app:hunter2@db:port/x",
        "postgresql://app:hunter2@db/x/y",
        "postgresql://app:hunter2@db/x?a",
        "postgresql://app:hunter2@db/x?a=%zz",
        "postgresql://app:hun@hunter2@db/x",
        "postgresql://app:hunter2/@db/x",
        "postgresql://app:hunter2?x=y@db/x",
        "postgresql://app:hunter2?password=hunter2&hunter2",
        "postgresql://app:hunter2#@db/x",
        "postgresql://app:hunter2%@db/x",
        "postgresql://app:hunter2%00@db/x",
        "postgresql://app:hunter2%ff@db/x",
        "postgresql://app:hunter2 @db/x",
        "postgresql://db/x?password=hunter2&schema=1",
        "postgresql://db/?password=hunter2",
        "postgresql://db/x?password=hun#hunter2",
        "postgresql://app:hunter2",
        "postgresql:app:hunter2@db/x",
        "postgresql:/app:hunter2@db/x",
        "redis://:hunter2@r/name",
        "redis://hunter2@r/name",
        "redis://:hunter2@/0",
        "redis://:hunter2",
        "mysql://app:hunter2@db/x",
        "app:hunter2@db/x",
        "postgresql://app:hunter2\n@db/x",
    ],
)
def test_no_mistake_in_an_address_shows_its_password(written: str) -> None:
    with pytest.raises(ConfigError) as refused:
        normal(written)
    assert SECRET not in str(refused.value)
    assert SECRET not in refused.value.next_step
    error = refusal("${STORE_URL}", STORE_URL=written)
    assert SECRET not in str(error)


@pytest.mark.parametrize("character", list("@/?#[]% "))
def test_a_password_that_breaks_the_address_is_named_by_its_variable(character: str) -> None:
    error = refusal("postgresql://app:${DB_PASSWORD}@db/x", DB_PASSWORD=f"hunter2{character}hunter2")
    assert error.sentence == (
        "ranonce.toml:3: ledger.store: with DB_PASSWORD put in, this is not the address of a store."
    )
    assert "%40" in error.next_step
    assert SECRET not in str(error)


def test_a_password_comes_from_the_environment_in_part_or_with_the_whole_address() -> None:
    url = "postgresql://app:hunter2@db/x"
    assert in_file("postgresql://app:${DB_PASSWORD}@db/x", DB_PASSWORD="hunter2") == url
    assert in_file("postgresql://${U}:${P}@${H}/${D}", U="app", P="hunter2", H="db", D="x") == url
    assert in_file("postgresql://app@db:${PORT}/x?password=${P}", PORT="1", P="p") == (
        "postgresql://app@db:1/x?password=p"
    )
    assert in_file("${STORE_URL}", STORE_URL=url) == url
    assert in_file("redis://:${P}@r", P="%40") == "redis://:%40@r:6379/0"


@pytest.mark.parametrize(
    ("url", "shown", "kept"),
    [
        ("postgresql://app:hunter2@db/x", "postgresql://app:***@db/x", "postgresql://app@db/x"),
        ("postgresql://app@db/x", "postgresql://app@db/x", "postgresql://app@db/x"),
        ("postgresql://app:@db/x", "postgresql://app:@db/x", "postgresql://app@db/x"),
        (
            "postgresql://a:hunter2@db/x?password=hunter2&sslpassword=hunter2&sslmode=require&schema=s",
            "postgresql://a:***@db/x?password=***&sslpassword=***&sslmode=require&schema=s",
            "postgresql://a@db/x?sslmode=require&schema=s",
        ),
        ("redis://:hunter2@r:6379/0", "redis://:***@r:6379/0", "redis://r:6379/0"),
        ("redis://u:hunter2@r:6379/0", "redis://u:***@r:6379/0", "redis://u:@r:6379/0"),
        ("redis://hunter2@r:6379/0", "redis://***@r:6379/0", "redis://r:6379/0"),
        ("rediss://u:@r:6379/0", "rediss://u:@r:6379/0", "rediss://u:@r:6379/0"),
        ("sqlite:////a:b@c/x", "sqlite:////a:b@c/x", "sqlite:////a:b@c/x"),
        ("memory:", "memory:", "memory:"),
    ],
)
def test_what_is_shown_and_what_is_kept_have_no_password(url: str, shown: str, kept: str) -> None:
    assert (masked(url), public(url)) == (shown, kept)
    if url != "memory:":
        assert in_file(kept) == kept == public(kept)
        assert same_place(url, kept)


def test_an_address_that_was_taken_apart_is_put_together_as_it_was() -> None:
    for text in ("redis://:@h/0?a=b&c=", "postgresql://u:p:q@[::1]:1,h,:3/d%20?x=%2F", "x+y://"):
        assert str(parts_of(text)) == text


def test_what_a_host_remembers_of_a_store_has_no_password_and_is_known_to_whoever_asks(tmp_path) -> None:
    folder = remember_ledger(str(tmp_path), "postgresql://app:hunter2@db/x", "a" * 32)
    with open(f"{folder}/store", encoding="utf-8") as file:
        assert file.read() == "postgresql://app@db/x\n"
    for url in ("postgresql://app:hunter2@db/x", "postgresql://app:changed@db/x", "postgresql://owner@db/x"):
        assert known_ledger(str(tmp_path), url) == "a" * 32
    assert known_ledger(str(tmp_path), "postgresql://app@db/x?schema=other") is None
