"""After a ledger was lost: what waited may have been sent since, and what is not known any more is said."""

from __future__ import annotations

import pytest

from ranonce.messages import DEAD, DROPPED, PENDING, SENDING, SENT, UNSURE
from ranonce.stores.base import Intake
from tests import losses
from tests.acceptance.test_accept_loss import NIGHTS, a_flipped_bit, accept, accepted, night, three_nights
from tests.conftest import TODAY, World
from tests.contract.acting import DAILY
from tests.planted import message_of

EMIT = "printf hello | $RANONCE emit slack"


def left_behind(world: World, *states: str) -> None:
    """Put messages of the night's window into the ledger, one in each of these states."""
    messages = [message_of(DAILY.window(TODAY), state, job="job").replace(state=state) for state in states]
    with world.opened() as store:
        store.upkeep().take_in(Intake(messages=messages), lambda run, lease: False)


def came(world: World) -> dict[str, str]:
    """What each message is now, by what it was."""
    with world.opened() as store:
        return {message.key.rpartition("/")[2]: message.state for message in store.upkeep().all_messages()}


def test_of_a_damaged_file_messages_come_along_and_what_waited_is_in_doubt(world):
    three_nights(world)
    left_behind(world, PENDING, SENDING, SENT, DEAD)
    a_flipped_bit(world)
    told = accepted(world)
    assert came(world) == {PENDING: UNSURE, SENDING: UNSURE, SENT: SENT, DEAD: DEAD}
    assert told["messages"] == {UNSURE: 2, SENT: 1, DEAD: 1}


@pytest.mark.every_store
def test_in_a_ledger_that_went_back_nothing_goes_out_that_may_have_been_sent_since(world):
    night(world, NIGHTS[0])
    left_behind(world, PENDING, SENDING, SENT)
    losses.copied(world)
    night(world, NIGHTS[1])
    losses.rolled_back(world)
    said = accept(world)
    assert said.exit == 0, said.err
    assert came(world) == {PENDING: UNSURE, SENDING: UNSURE, SENT: SENT}
    assert b"Messages that are known: 1 sent, 2 unsure." in said.out
    assert b"ranonce outbox list --state unsure" in said.out


@pytest.mark.every_store
def test_messages_of_which_nothing_is_left_are_counted(world):
    assert world.run(sh=EMIT).exit == 0
    assert list(came(world).values()) == [PENDING]
    losses.gone(world)
    said = accept(world)
    assert b"Messages of runs that are done, and of which nothing is left: 1." in said.out
    assert came(world) == {}


@pytest.mark.every_store
def test_messages_of_an_outcome_that_waits_on_this_host_are_put_back_in_doubt(world):
    world.run(sh=EMIT, env={"RANONCE_FAILPOINT": "finish:outcome-kept"})
    losses.gone(world)
    told = accepted(world)
    assert list(came(world).values()) == [UNSURE]
    assert told["forgotten"] == 0
    assert world.run(sh=EMIT).said() == (0, "skipped", "done")
    assert list(came(world).values()) == [UNSURE]


@pytest.mark.every_store
def test_a_message_that_is_one_for_all_windows_is_known_after_the_loss_and_not_sent_again(world):
    emit = "printf hello | $RANONCE emit slack --scope {} --key welcome"
    assert world.run(sh=emit.format("ledger"), now=NIGHTS[0]).exit == 0
    losses.gone(world)
    said = accept(world)
    assert b"Messages of which only the key is remembered: 1." in said.out
    assert came(world) == {"welcome": DROPPED}
    assert world.run(sh=emit.format("ledger"), now=NIGHTS[1]).exit == 0
    assert came(world) == {"welcome": DROPPED}


def test_so_is_one_of_an_item_whose_attempt_did_not_come_to_its_end(world):
    emit = "printf hello | $RANONCE emit slack --scope job --key welcome"
    step = f"$RANONCE step one -- sh -c '{emit}'"
    assert world.run(sh=f"{step}; exit 1", now=NIGHTS[0]).exit == 1
    losses.gone(world)
    told = accepted(world)
    assert (told["by_key"], told["forgotten"]) == (1, 0)
    assert world.run(sh=step, now=NIGHTS[1]).exit == 0
    assert came(world) == {"welcome": DROPPED}


def test_its_key_stands_for_the_body_that_was_emitted_and_for_no_other(world):
    emit = "printf {} | $RANONCE emit slack --scope ledger --key welcome"
    world.run(sh=emit.format("hello"), now=NIGHTS[0])
    losses.gone(world)
    accepted(world)
    said = world.run(sh=emit.format("another"), now=NIGHTS[1])
    assert "stands for another body" in said.err
    assert came(world) == {"welcome": DROPPED}


def test_a_file_from_another_host_tells_the_keys_too(world):
    emit = "printf hello | $RANONCE emit slack --scope ledger --key welcome"
    world.run(sh=emit, now=NIGHTS[0])
    journal = world.journal.rename(world.root / "of-another-host.jsonl")
    losses.gone(world)
    accepted(world)
    assert came(world) == {}
    said = world.ranonce("import", str(journal))
    assert said.exit == 0, said.err
    assert b"Messages: 1 dropped." in said.out
    assert came(world) == {"welcome": DROPPED}
    assert world.ranonce("doctor", "--deep").exit == 0


def test_where_no_message_was_ever_emitted_none_is_mentioned(world):
    three_nights(world)
    losses.gone(world)
    assert b"Messages" not in accept(world).out
