"""What a lease says of its holder: written in one form, and told to people in another."""

from __future__ import annotations

import json

import pytest

from ranonce.claimant import Claimant, claimant_of, shown, text_of

HOLDER = Claimant("web1", 4711, "81234", "9c0f", "pid:[4026531836]", "time:[4026531834]", "65024:1311")


def test_a_holder_is_one_json_object_and_comes_back_as_it_was():
    assert json.loads(text_of(HOLDER)) == HOLDER.as_dict()
    assert claimant_of(text_of(HOLDER)) == HOLDER


def test_people_are_told_host_and_pid():
    assert shown(text_of(HOLDER)) == "web1 pid 4711"


def test_what_older_ledgers_say_is_still_told_and_proves_nothing():
    assert shown("web1 pid 4711") == "web1 pid 4711"
    assert claimant_of("web1 pid 4711") is None
    assert shown("") == ""


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        '{"host":"web1","pid":4711}',
        json.dumps({**HOLDER.as_dict(), "pid": "4711"}),
        json.dumps({**HOLDER.as_dict(), "pid": True}),
        json.dumps({**HOLDER.as_dict(), "start": 81234}),
    ],
)
def test_a_damaged_text_is_shown_as_it_is_and_proves_nothing(text):
    assert claimant_of(text) is None
    assert shown(text) == text


def test_what_a_later_version_adds_is_passed_over():
    assert claimant_of(json.dumps({**HOLDER.as_dict(), "more": "told"})) == HOLDER


def test_a_host_name_with_controls_is_shown_on_one_line():
    assert shown(text_of(HOLDER.replace(host="web\n1"))) == "web\\n1 pid 4711"
