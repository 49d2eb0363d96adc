"""What a person says of messages is written once, however the commit goes, and never over what came meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ranonce.config import Config, LedgerSpec
from ranonce.ledger import OpenLedger
from ranonce.messages import DEAD, DELIVERED, PENDING, SENDING, SENT, UNSURE, Answer, Move, No, Route, settle, take
from ranonce.stores.base import LostReply, Wanted
from ranonce.stores.memory.store import MemoryStore
from ranonce.undelivered import Destinations, every, resolve_all, retry_all, tally_of
from tests.planted import BOOT, DOMAIN, NOW, Planted, at

WINDOW = "2026-11-09T11"


class Disturbed(MemoryStore):
    """A store in which something happens around the next commit of a person's word."""

    before: Callable[[], object] | None = None
    lose: bool = False

    def commit(self, decision, key, after):
        if decision.moves and self.before is not None:
            happens, self.before = self.before, None
            happens()
        written = super().commit(decision, key, after)
        if decision.moves and self.lose:
            self.lose = False
            raise LostReply("the connection broke.", "")
        return written


@pytest.fixture
def planted() -> Planted:
    store = Disturbed(now=lambda: BOOT, wall=lambda: float(at(NOW)), domain=DOMAIN)
    planted = Planted("hour", store=store)
    planted.run(WINDOW)
    return planted


def ledger(planted: Planted) -> OpenLedger:
    return OpenLedger(planted.store, folder=None, wait_seconds=2.0)


def destinations(**declared: object) -> Destinations:
    return Destinations(Config(None, LedgerSpec("memory:", None, 1.0), {}, declared))


def said(planted: Planted, *messages, as_: str = "sent"):
    return resolve_all(ledger(planted), messages, as_, "asked them", by="anna@host")


def noted(planted: Planted) -> int:
    return sum(event.event == "noted" for event in planted.store.newest_events(50))


def test_after_a_lost_reply_a_word_is_written_once(planted):
    message = planted.message(WINDOW, state=UNSURE)
    planted.store.lose = True
    assert tally_of(said(planted, message)) == 1
    assert planted.store.outbox().message(message.key).state == SENT
    assert noted(planted) == 1


def test_after_a_lost_reply_a_retry_is_written_once(planted):
    message = planted.message(WINDOW, state=DEAD)
    planted.store.lose = True
    assert tally_of(retry_all(ledger(planted), [message], destinations(), by="anna@host")) == 1
    assert noted(planted) == 1


def deliverer(planted: Planted, answer: str | None = None) -> Callable[[], object]:
    """A deliverer that takes what is due, and settles it with an answer, if there is one."""

    def acts() -> None:
        outbox, route = planted.store.outbox(), Route("slack")
        taking = take(outbox.queue("slack", 10), route, "5" * 32, 10)
        assert outbox.exchange("slack", take=taking).taken
        if answer is not None:
            (taken,) = [move.now for move in taking.moves]
            move = settle(taken, taken, Answer(answer, "ok"), route, float(at(NOW)), 0.0)
            outbox.exchange("slack", [move])

    return acts


def test_a_message_that_a_deliverer_took_meanwhile_is_left_to_it(planted):
    message = planted.message(WINDOW)
    planted.store.before = deliverer(planted)
    (answer,) = said(planted, message, as_="dropped").values()
    assert isinstance(answer, No)
    assert planted.store.outbox().message(message.key).state == SENDING
    assert noted(planted) == 0


def test_a_message_that_was_sent_meanwhile_stays_sent(planted):
    message = planted.message(WINDOW)
    planted.store.before = deliverer(planted, DELIVERED)
    (answer,) = said(planted, message, as_="dropped").values()
    assert isinstance(answer, No)
    assert planted.store.outbox().message(message.key).receipt == "ok"


def test_of_many_messages_each_is_settled_by_its_own_state(planted):
    messages = [planted.message(WINDOW, own, state=state) for own, state in (("a", UNSURE), ("b", SENT), ("c", DEAD))]
    answers = said(planted, *messages, as_="not-sent")
    assert [isinstance(answers[message.key], Move) for message in messages] == [True, False, True]
    assert noted(planted) == 1


def test_more_messages_than_fit_into_one_transaction_are_all_settled(planted):
    messages = [planted.message(WINDOW, str(number), state=UNSURE) for number in range(250)]
    assert tally_of(said(planted, *messages)) == 250
    assert noted(planted) == 3


def vanished(planted: Planted):
    """A message whose deliverer is dead."""
    lease = {"lease_domain": DOMAIN, "lease_until": BOOT - 1.0, "lease_seconds": 60.0}
    return planted.message(WINDOW, state=SENDING, tries=1, sender="5" * 32, taken_at=float(at(NOW) - 61), **lease)


def test_a_message_whose_deliverer_died_is_in_doubt_where_the_destination_does_not_dedupe(planted):
    (answer,) = retry_all(ledger(planted), [vanished(planted)], destinations(), by="anna@host").values()
    assert isinstance(answer, No)


def test_a_message_whose_deliverer_died_is_tried_again_where_the_destination_dedupes(planted):
    slack = {"type": "command", "command": ["true"], "dedupes": "1d"}
    (answer,) = retry_all(ledger(planted), [vanished(planted)], destinations(slack=slack), by="a@b").values()
    assert isinstance(answer, Move)
    assert (answer.now.state, answer.now.sender, answer.now.due_at) == (PENDING, "", float(at(NOW)))


def test_a_late_answer_of_a_dead_deliverer_still_counts_after_a_person_said_not_sent(planted):
    message = vanished(planted)
    taken = planted.store.outbox().message(message.key)
    assert tally_of(said(planted, message, as_="not-sent")) == 1
    now = planted.store.outbox().message(message.key)
    assert now.state == PENDING
    late = settle(now, taken, Answer(DELIVERED, "ok"), Route("slack"), float(at(NOW)), 0.0)
    assert late is not None
    assert late.now.state == SENT


def test_all_messages_are_gone_through_page_by_page(planted, monkeypatch):
    monkeypatch.setattr("ranonce.undelivered.PAGE", 3)
    keys = [planted.message(WINDOW, str(number)).key for number in range(7)]
    assert [message.key for message in every(planted.store.outbox(), Wanted())] == keys
