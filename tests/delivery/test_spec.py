"""`[destinations.NAME]`: the settings that every destination has, and complaints about them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ranonce.delivery.base import Spec
from ranonce.delivery.spec import FOREVER, from_environment, open_sender, read_spec
from ranonce.errors import ConfigError
from ranonce.messages import Route

COMMAND: Mapping[str, object] = {"type": "command", "command": ["/bin/true"]}


def place(keys: tuple[str, ...]) -> str:
    return ".".join(("FILE", *keys))


def spec(**settings: object) -> Spec:
    return read_spec("web", {**COMMAND, **settings}, place, "/etc")


def test_without_settings_a_destination_is_one_that_does_not_dedupe():
    assert spec().route == Route("web")


def test_every_setting_of_the_handling_is_read():
    read = spec(dedupes="24h", max_attempts=5, concurrency=2, rate="100/h", timeout="10s", late_after="2h", prefix="us")
    assert read.route == Route("web", 86400.0, 5, 2, 100 / 3600, 10.0, late_after=7200.0)
    assert read.prefix == "us"


@pytest.mark.parametrize(("written", "seconds"), [(False, 0.0), (True, FOREVER), ("2m", 120.0), (60, 60.0)])
def test_for_how_long_it_dedupes(written, seconds):
    assert spec(dedupes=written).route.dedupes == seconds


@pytest.mark.parametrize(
    ("written", "a_second"), [(5, 5.0), (0.5, 0.5), ("10/s", 10.0), ("60/m", 1.0), ("24/d", 24 / 86400)]
)
def test_a_rate_is_messages_in_a_time(written, a_second):
    assert spec(rate=written).route.rate == a_second


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (5, "FILE: 5 is not a table. Write it as [destinations.web]."),
        ({}, 'FILE: it has no type. Say what it is: type = "http".'),
        ({"type": "htpp"}, "FILE.type: 'htpp' is no type of destination. Did you mean http?"),
        ({"type": 5}, "FILE.type: 5 is not text. Write it in quotes."),
        ({**COMMAND, "timout": 5}, "FILE.timout: this key is not known. Did you mean timeout?"),
        ({**COMMAND, "timeout": 0}, "FILE.timeout: 0 is out of range. It is from 0.1 to 3600."),
        ({**COMMAND, "concurrency": 0}, "FILE.concurrency: 0 is out of range. It is from 1 to 256."),
        ({**COMMAND, "max_attempts": True}, "FILE.max_attempts: True is not a whole number."),
        ({**COMMAND, "rate": "often"}, "FILE.rate: 'often' is no rate."),
        ({**COMMAND, "rate": 0}, "FILE.rate: 0 is no rate."),
        ({**COMMAND, "dedupes": -1}, "FILE.dedupes: -1 is out of range."),
        ({**COMMAND, "prefix": "https://me:pw@h/"}, "FILE.prefix: 'https://me:***@h/' holds a password."),
    ],
)
def test_a_complaint_names_the_place_and_the_remedy(table, complaint):
    with pytest.raises(ConfigError) as refused:
        read_spec("web", table, place, None)
    assert str(refused.value).startswith(complaint)


def test_a_name_that_no_message_can_have_is_refused():
    with pytest.raises(ConfigError, match="'a b' is not a name for a destination"):
        read_spec("a b", COMMAND, place, None)


def test_a_key_has_the_destinations_prefix_in_front(a_message):
    assert spec(prefix="us").key(a_message) == f"us/{a_message.key}"
    assert spec().key(a_message) == a_message.key


def test_a_variable_is_replaced_only_when_a_sender_is_opened():
    written = Spec("web", "http", Route("web"), {"url": "https://${HOST}/"}, "FILE")
    assert from_environment(written, "url", {"HOST": "h"}) == "https://h/"
    assert from_environment(written, "token", {}) is None
    with pytest.raises(ConfigError, match=r"FILE\.url uses \$\{HOST\}"):
        from_environment(written, "url", {})


def test_a_sender_is_opened_by_its_type():
    open_sender(spec(), {}).close()


@pytest.fixture
def a_message():
    from tests.delivery.test_pool import messages

    return messages(1)[0]
