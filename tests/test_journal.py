"""The second witness: lines that prove themselves, and a store that knows less is refused."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranonce.errors import ConfigError, NotThisLedger
from ranonce.journal import Journal, MoreRemembered, decode, encode
from ranonce.lifecycle import Event, RunKey
from ranonce.stores.memory.store import MemoryStore
from tests.contract.acting import claim, ledger_over, verdict


def event(seq: int, **changes: object) -> Event:
    return Event(1000.0 + seq, RunKey("job", f"day-{seq}"), 0, "done", 1, 1, owner="o", seq=seq).replace(**changes)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), json_values))
def test_a_line_says_what_was_written(fact):
    line = encode(fact)
    assert line.count(b"\n") == 1
    assert decode(line.rstrip(b"\n")) == fact


@given(st.dictionaries(st.text(), st.text(), min_size=1), st.data())
def test_a_line_torn_anywhere_is_no_line(fact, data):
    line = encode(fact).rstrip(b"\n")
    cut = data.draw(st.integers(0, len(line) - 1))
    assert decode(line[:cut]) is None
    assert decode(line[cut + 1 :]) is None


@given(st.dictionaries(st.text(), st.text(), min_size=1), st.data())
def test_a_line_with_one_byte_changed_is_no_line(fact, data):
    line = bytearray(encode(fact).rstrip(b"\n"))
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] ^= 1 << data.draw(st.integers(0, 7))
    assert decode(bytes(line)) is None


@pytest.mark.parametrize("tail", [b'{"len":12', b"\0" * 512, b"\xff\xfe", b'{"event":"done"}', b"\xe2\x80\xa8"])
def test_a_bad_tail_stays_alone_and_the_next_record_is_read(tmp_path, tail):
    journal = Journal(str(tmp_path))
    journal.append([event(1)])
    with open(journal.path, "ab") as file:
        file.write(tail)
    journal.append([event(2)])
    assert [fact["seq"] for fact in journal.tail()] == [1, 2]


def test_the_journal_is_private(tmp_path):
    journal = Journal(str(tmp_path))
    journal.append([event(1)])
    assert os.stat(journal.path).st_mode & 0o777 == 0o600


def test_a_symbolic_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_text("")
    os.symlink(tmp_path / "elsewhere", tmp_path / "journal.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        Journal(str(tmp_path)).tail()
    with pytest.raises(OSError, match="symbolic"):
        Journal(str(tmp_path)).append([event(1)])
    assert (tmp_path / "elsewhere").read_text() == ""


def lived_through() -> MemoryStore:
    store = MemoryStore()
    ledger = ledger_over(store)
    for day in range(3):
        ledger.finish(claim(ledger, day), verdict())
    return store


def test_a_store_that_knows_as_much_or_more_is_welcome(tmp_path):
    store = lived_through()
    journal = Journal(str(tmp_path))
    journal.append(store.newest_events(10)[3:])
    journal.check(journal.tail(), store)


def test_a_store_that_has_gone_back_is_refused(tmp_path):
    store = lived_through()
    journal = Journal(str(tmp_path))
    journal.append(store.newest_events(10)[::-1])
    del store._events[-1]
    with pytest.raises(NotThisLedger, match="gone back in time"):
        journal.check(journal.tail(), store)


def test_a_store_that_tells_another_story_is_refused(tmp_path):
    store = lived_through()
    journal = Journal(str(tmp_path))
    journal.append(store.newest_events(10))
    store._events[-1] = store._events[-1].replace(owner="somebody else")
    with pytest.raises(NotThisLedger, match="has changed"):
        journal.check(journal.tail(), store)


def pruned_up_to(store: MemoryStore, seq: int) -> None:
    store._events = [event for event in store._events if event.seq > seq]
    store._pruned_seq = seq


def test_a_host_that_was_silent_until_its_newest_fact_was_pruned_is_welcome(tmp_path):
    store = lived_through()
    journal = Journal(str(tmp_path))
    journal.append(store.newest_events(10)[::-1][:3])
    pruned_up_to(store, 3)
    journal.check(journal.tail(), store)


def test_a_pruned_store_that_has_gone_back_is_refused(tmp_path):
    store = lived_through()
    journal = Journal(str(tmp_path))
    journal.append(store.newest_events(10)[::-1])
    pruned_up_to(store, 3)
    del store._events[-1]
    with pytest.raises(NotThisLedger, match="gone back in time"):
        journal.check(journal.tail(), store)


def test_a_pruned_store_with_another_event_where_one_should_be_gone_is_refused(tmp_path):
    store = lived_through()
    journal = Journal(str(tmp_path))
    journal.append(store.newest_events(10)[::-1][:2])
    store._pruned_seq = 4
    store._events[1] = store._events[1].replace(owner="somebody else")
    with pytest.raises(NotThisLedger, match="has changed"):
        journal.check(journal.tail(), store)


def test_a_fact_written_into_a_journal_that_was_just_replaced_is_written_again(tmp_path, monkeypatch):
    journal = Journal(str(tmp_path))
    journal.append([event(1)])
    write = os.write

    def replaced_meanwhile(fd, data):
        monkeypatch.setattr(os, "write", write)
        (tmp_path / "shorter").write_bytes(encode({"seq": 0}))
        os.replace(tmp_path / "shorter", journal.path)
        return write(fd, data)

    monkeypatch.setattr(os, "write", replaced_meanwhile)
    journal.append([event(2)])
    assert [fact["seq"] for fact in journal.tail()] == [0, 2]


def test_what_was_before_an_accepted_loss_is_looked_up_by_what_it_says(tmp_path):
    store = lived_through()
    known = store.newest_events(1)[0]
    later = Journal(str(tmp_path), epoch=2)
    Journal(str(tmp_path), epoch=1).append([known.replace(seq=500, owner="whoever")])
    later.check(later.tail(), store)
    Journal(str(tmp_path), epoch=1).append([event(3)])
    with pytest.raises(MoreRemembered, match=r"epoch 2.*done of job:day-3.*ranonce import"):
        later.check(later.tail(), store)
    later.append([known])  # this host has met the new epoch: all that it remembered was brought in
    later.check(later.tail(), store)


def test_that_a_window_was_done_is_remembered_although_only_refused_triggers_followed(tmp_path):
    store = lived_through()
    Journal(str(tmp_path), epoch=1).append([event(3, event="skipped", reason="done")])
    later = Journal(str(tmp_path), epoch=2)
    with pytest.raises(MoreRemembered):
        later.check(later.tail(), store)


def test_what_a_refused_trigger_notes_of_others_at_work_is_not_held_against_a_later_epoch(tmp_path):
    Journal(str(tmp_path), epoch=1).append([event(3, event="skipped", reason="busy"), event(4, event="noted")])
    later = Journal(str(tmp_path), epoch=2)
    later.check(later.tail(), lived_through())


def test_lines_written_out_of_order_still_name_the_newest(tmp_path):
    store = lived_through()
    journal = Journal(str(tmp_path))
    newest, *others = store.newest_events(10)
    journal.append([newest])
    journal.append(others)
    store._events.pop()
    with pytest.raises(NotThisLedger, match=f"event {newest.seq}"):
        journal.check(journal.tail(), store)


def test_a_clock_that_jumps_or_stands_still_is_measured_against_the_boot_clock(tmp_path):
    journal = Journal(str(tmp_path))
    now = time.time()
    journal.append([event(1, at=now)])
    facts = journal.tail()
    if not facts[0]["clock"]:
        pytest.skip("this system does not name its boot")
    assert journal.clock_jump(facts, now) == pytest.approx(0, abs=5)
    assert journal.clock_jump(facts, now + 3600) == pytest.approx(3600, abs=5)
    facts[0]["boot"] -= 7200  # two hours went by, and the real clock stood still
    assert journal.clock_jump(facts, now) == pytest.approx(-7200, abs=5)


def test_what_is_recorded_long_after_it_happened_is_no_jump_of_the_clock(tmp_path):
    journal = Journal(str(tmp_path))
    now = time.time()
    journal.append([event(1, at=now - 86400)])  # a verdict that had to wait, a story from another ledger
    assert journal.clock_jump(journal.tail(), now) == pytest.approx(0, abs=5)


def test_the_clock_of_another_boot_says_nothing(tmp_path):
    journal = Journal(str(tmp_path))
    journal.append([event(1)])
    facts = [{**fact, "clock": "another boot"} for fact in journal.tail()]
    assert journal.clock_jump(facts, 1e9) == 0
