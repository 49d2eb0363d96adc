"""Signatures: what the reference library of receivers says of them."""

from __future__ import annotations

import time
from base64 import b64encode

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from ranonce.delivery.signing import message_id, secrets_of, signed
from ranonce.errors import UsageError

OLD = "whsec_" + b64encode(b"an old secret of many bytes, long enough").decode()
NEW = "whsec_" + b64encode(b"a new secret of many bytes, long enough").decode()
BODY = b'{"amount": 3}'


def test_the_reference_accepts_what_was_signed() -> None:
    headers = signed("report:2026-11-07/hook/-", BODY, time.time(), secrets_of(OLD))
    assert Webhook(OLD).verify(BODY, headers) == {"amount": 3}


def test_while_a_secret_is_replaced_a_receiver_with_either_accepts() -> None:
    headers = signed("report:2026-11-07/hook/-", BODY, time.time(), secrets_of(f"{NEW} {OLD}"))
    assert Webhook(OLD).verify(BODY, headers) == Webhook(NEW).verify(BODY, headers) == {"amount": 3}


@pytest.mark.parametrize("what", ["webhook-id", "webhook-timestamp", "body", "secret"])
def test_the_reference_refuses_what_was_changed(what: str) -> None:
    headers = signed("report:2026-11-07/hook/-", BODY, time.time(), secrets_of(NEW if what == "secret" else OLD))
    body = BODY
    if what == "body":
        body = b'{"amount": 4}'
    elif what == "webhook-timestamp":
        headers[what] = str(int(headers[what]) + 1)
    elif what == "webhook-id":
        headers[what] += "x"
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(body, headers)


def test_no_full_stop_of_a_key_can_be_taken_for_one_that_separates() -> None:
    moment = int(time.time())
    headers = signed(f"job.{moment}.x/hook/-", BODY, moment, secrets_of(OLD))
    forged = f"x/hook/-.{moment}.".encode() + BODY  # under the id "job", the same bytes would be signed
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(forged, {**headers, "webhook-id": "job"}, json_parse=False)


def test_different_keys_are_different_ids() -> None:
    keys = ["a.b/hook/-", "a%2Eb/hook/-".replace("%", "%25"), "a/hook/b.c", "a/hook/b%252Ec"]
    assert len({message_id(key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("hunter2-hunter2-hunter2-hunter2", "does not begin with whsec_"),
        ("whsec_this is not", "bytes"),
        ("whsec_*****", "not base64"),
        ("whsec_" + b64encode(b"hunter2").decode(), "7 bytes"),
        ("  ", "empty"),
        (f"{OLD} hunter2", "does not begin with whsec_"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_shown(written: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        secrets_of(written)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value) and OLD not in str(refused.value)


def test_a_secret_without_its_padding_is_the_same() -> None:
    assert secrets_of(OLD.rstrip("=")) == secrets_of(OLD)
