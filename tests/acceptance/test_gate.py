"""Gates: a shared resource that one job's rate limit closes for all, and that a person opens again."""

from __future__ import annotations

import pytest

from ranonce.messages import Closing
from tests.planted import Planted


@pytest.fixture
def closed(world):
    """A job has met a rate limit and closed the gate `model-api` for an hour."""
    assert world.ranonce("gate", "model-api", "--close-for", "1h", "--reason", "429").exit == 0
    return world


def uses(world):
    return world.run("--uses", "model-api", sh="echo x >> $EFFECTS")


def test_a_closed_gate_keeps_its_jobs_from_starting(closed):
    ran = uses(closed)
    assert ran.said() == (75, "skipped", "gate")
    assert not closed.effects_file.exists()


@pytest.mark.every_store
def test_a_gate_that_a_person_opened_lets_them_work(closed):
    opened = closed.ranonce("gate", "model-api", "--open", "--reason", "quota was raised")
    assert opened.exit == 0
    assert b"open" in opened.out
    assert b"quota was raised" in opened.out
    assert uses(closed).exit == 0


@pytest.mark.every_store
def test_gates_are_shown_with_who_closed_them_and_until_when(closed):
    shown = closed.ranonce("gate")
    assert shown.exit == 0
    assert b"model-api  closed until 20" in shown.out
    assert b"@" in shown.out
    assert closed.ranonce("gate", "--json").out.startswith(b'{"gates": [{"gate": "model-api", "closed": true')


def test_without_gates_there_is_nothing_to_show(world):
    assert world.ranonce("gate").out == b"No gate was ever closed.\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--open", "--reason", "x"),
        ("g", "--open"),
        ("g", "--close-for", "1h"),
        ("g", "--open", "--close-for", "1h", "--reason", "x"),
        ("g", "--close-for", "soon", "--reason", "x"),
        ("no such name", "--open", "--reason", "x"),
        ("unknown",),
        ("unknown", "--open", "--reason", "a name with a slip opens nothing"),
        ("model-api", "--reason", "a reason for what?"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(closed, words):
    before = closed.gates()
    refused = closed.ranonce("gate", *words)
    assert (refused.exit, refused.sentence != "") == (64, True)
    assert closed.gates() == before


@pytest.mark.parametrize("written", ["9999-12-31T23:59:59Z", "2026-11-09T12:00:00", "soon"])
def test_a_time_that_cannot_be_meant_is_told_by_the_option_it_stands_behind(closed, written):
    refused = closed.ranonce("gate", "model-api", "--close-for", written, "--reason", "x")
    assert refused.sentence.startswith("ranonce: --close-for")


@pytest.mark.parametrize("words", [(), ("--open", "--reason", "x")])
def test_a_destination_that_is_closed_is_opened_elsewhere(world, words):
    planted = Planted("hour", store=world.kept_open())
    planted.message("2026-11-09T11")
    outbox = planted.store.outbox()
    outbox.exchange("slack", closing=Closing(planted.store.clock().wall + 3600.0, "429"))
    refused = world.ranonce("gate", "slack", *words)
    assert refused.exit == 64
    assert refused.sentence.startswith("ranonce: 'slack' is a destination of messages, which is closed until ")
    assert refused.sentence.endswith("To open it: ranonce outbox retry --destination slack")
