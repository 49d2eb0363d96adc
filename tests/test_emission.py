"""What is checked of an emission before anything is recorded."""

from __future__ import annotations

import pytest

from ranonce.emission import Emission, addressed, check_declared, check_item, checked, digest_of, message_of
from ranonce.errors import ConfigError, UsageError
from ranonce.lifecycle import Claim, RunKey
from ranonce.windows import Window

CLAIM = Claim(RunKey("job", "2026-11-09"), Window("2026-11-09", 0, 86400), 3, 2, "o" * 32, "schedule", None, 300.0, 0.0)


def emission(**fields):
    return Emission(**{"destination": "slack", "body": b"x", **fields})


def test_what_can_be_sent_is_returned_unchanged():
    whole = emission(key="naïve key/1", scope="ledger", content_type="text/plain; charset=utf-8")
    assert checked(whole) is whole


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"destination": "a/b"}, "not a name for a destination"),
        ({"body": b""}, "the payload is empty"),
        ({"body": b"x" * 262145}, "262145 bytes"),
        ({"scope": "world"}, "no scope"),
        ({"key": "x" * 201}, "201 bytes"),
        ({"key": "ä" * 101}, "202 bytes"),
        ({"key": " a"}, "cannot be seen"),
        ({"key": "a\nb"}, "cannot be seen"),
        ({"key": "\ud800"}, "is no text"),
        ({"content_type": "nonsense"}, "no content type"),
        ({"content_type": "text/plain\r\nX-Evil: 1"}, "no content type"),
        ({"content_type": "text/ä"}, "no content type"),
        ({"content_type": "/plain"}, "no content type"),
    ],
)
def test_what_cannot_be_sent_is_refused(fields, words):
    with pytest.raises(UsageError, match=words):
        checked(emission(**fields))


def test_content_type_and_body_make_the_digest():
    digests = {digest_of("a/b", b"c"), digest_of("a/bc", b""), digest_of("a/b", b"d"), digest_of("a/c", b"c")}
    assert len(digests) == 4


def test_where_nothing_is_declared_every_destination_will_do():
    check_declared("slack", {})
    with pytest.raises(ConfigError, match="Did you mean slack"):
        check_declared("slakc", {"slack": {}})


@pytest.mark.parametrize("name", ["", " ", "a\tb", "x" * 201])
def test_a_name_that_could_be_no_key_names_no_item(name):
    with pytest.raises(UsageError):
        check_item("an item", name)


def mail(body, **fields):
    return emission(destination="post", body=body, content_type="application/json", **fields)


def test_mail_with_a_list_of_recipients_is_one_message_for_each():
    found = addressed(mail(b'{"to": ["a@x", "b@x", "a@x"], "text": "\xc3\xa4"}', key="k"), "smtp")
    assert [(each.key, each.body) for each in found] == [
        ("k/a@x", b'{"to":"a@x","text":"\\u00e4"}'),
        ("k/b@x", b'{"to":"b@x","text":"\\u00e4"}'),
    ]


def test_without_a_key_of_its_own_the_recipient_is_the_key():
    assert [each.key for each in addressed(mail(b'{"to": ["a@x"]}'), "smtp")] == ["a@x"]


@pytest.mark.parametrize(
    ("body", "type_"), [(b'{"to": "a@x"}', "smtp"), (b'["a@x"]', "smtp"), (b'{"to": ["a@x"]}', "http"), (b"{}", "smtp")]
)
def test_everything_else_is_one_message_as_it_is(body, type_):
    whole = mail(body)
    assert addressed(whole, type_) == [whole]


def test_text_to_a_mail_server_is_not_read():
    assert len(addressed(emission(body=b'{"to": ["a", "b"]}', content_type="text/plain"), "smtp")) == 1


@pytest.mark.parametrize("to", [b"[]", b"[1]", b'[""]', b'["a@x", null]'])
def test_recipients_that_are_none_are_refused(to):
    with pytest.raises(UsageError, match='"to"'):
        addressed(mail(b'{"to": %s}' % to), "smtp")


def test_a_message_is_of_the_attempt_that_emitted_it():
    message = message_of(emission(key="k"), CLAIM, 12.5, item="i")
    assert (message.key, message.generation, message.attempt) == ("job:2026-11-09/slack/k", 2, 3)
    assert (message.item, message.created_at, message.due_at, message.state) == ("i", 12.5, 12.5, "pending")


def test_only_a_rerun_that_sends_again_has_its_generation_in_the_key():
    assert message_of(emission(key="k"), CLAIM, 0.0, resend=True).key == "job:2026-11-09/slack/k#2"
