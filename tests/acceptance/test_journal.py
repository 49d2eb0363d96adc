"""The second witness: torn, padded or damaged, it misleads nobody, and the next record is whole again."""

from __future__ import annotations

import json

import pytest

from ranonce.journal import Journal, decode, encode
from ranonce.ledger import OpenLedger
from ranonce.liveness import unrecorded
from tests.conftest import TODAY


def lines(world):
    return world.journal.read_bytes().split(b"\n")


def facts(world):
    return [fact for line in lines(world) if (fact := decode(line))]


def opened(world):
    return OpenLedger.open(world.url, world.ledger, state_folder=str(world.folder.parent))


@pytest.mark.every_store
def test_each_event_is_one_whole_line_with_its_length_and_checksum(world):
    world.run()
    world.run()
    written = world.journal.read_bytes()
    assert written.endswith(b"\n")
    told = [json.loads(line) for line in written.splitlines()]
    assert [line["fact"]["event"] for line in told] == ["start", "done", "skipped"]
    for line, wrapped in zip(written.splitlines(), told, strict=True):
        assert decode(line) == wrapped["fact"]
        assert encode(wrapped["fact"]) == line + b"\n"
    assert [line["fact"]["seq"] for line in told] == [fact.seq for fact in world.facts()]


@pytest.mark.every_store
def test_torn_at_any_byte_the_last_line_is_passed_over_and_the_next_is_whole(world):
    world.run()
    whole = world.journal.read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(last, len(whole)):
        world.journal.write_bytes(whole[:cut])
        ledger = opened(world)
        ledger.journal.append(ledger.store.newest_events(1))
        ledger.close()
        # Complete but for its newline, a line is whole; torn anywhere else, it stays alone on its line.
        told = [fact["event"] for fact in facts(world)]
        assert told == (["start", "done", "done"] if cut == len(whole) - 1 else ["start", "done"]), cut
    world.journal.write_bytes(whole[: last + 50])
    assert world.run().said() == (0, "skipped", "done")
    assert [fact["event"] for fact in facts(world)] == ["start", "skipped"]


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 100, b"\0" * 8000, b"\xff\xfe{}", b'{"len":3,"crc":"00000000","fact":{}}'],
    ids=["a few NULs", "many NULs", "other bytes", "a wrong checksum"],
)
def test_what_a_power_cut_may_leave_at_the_end_is_passed_over(world, tail):
    world.run()
    with world.journal.open("ab") as file:
        file.write(tail)
    assert world.run().said() == (0, "skipped", "done")
    assert world.run(now="2026-11-10T12:00:00Z").said() == (0, "done", None)
    assert [fact["event"] for fact in facts(world)] == ["start", "done", "skipped", "start", "done"]
    assert world.effects() == [f"job {TODAY} 1", "job 2026-11-10 1"]


def test_half_a_done_line_is_no_done(world):
    world.run(sh="exit 3")
    fact = {**facts(world)[-1], "event": "done", "seq": 99}
    with world.journal.open("ab") as file:
        file.write(encode(fact)[:-2])
    assert world.run().said() == (0, "done", None)
    assert world.effects() == [f"job {TODAY} 2"]


@pytest.mark.every_store
def test_a_store_behind_the_journal_is_refused_however_the_end_of_the_journal_looks(world):
    world.run()
    with world.journal.open("ab") as file:
        file.write(encode({**facts(world)[-1], "seq": 77, "window": "2026-11-11"}) + b'{"len":120,"crc":"0')
    ran = world.run()
    assert ran.exit == 78
    assert "gone back in time" in ran.sentence
    assert "2026-11-11" in ran.sentence
    assert len(world.effects()) == 1


def test_an_event_that_was_rewritten_is_noticed(world):
    world.run(sh="exit 3")
    world.sql("DROP TRIGGER events_are_not_changed")
    world.sql("UPDATE events SET event = 'done' WHERE event = 'failed'")
    world.sql("UPDATE runs SET status = 'done'")
    ran = world.run()
    assert ran.exit == 78
    assert "the ledger has changed" in ran.sentence


def test_a_lost_journal_is_begun_again(world):
    world.run()
    world.journal.unlink()
    assert world.run().said() == (0, "skipped", "done")
    assert [fact["event"] for fact in facts(world)] == ["skipped"]


def test_the_newest_fact_is_found_behind_a_long_past(world):
    past = [encode({"seq": number, "epoch": 1, "event": "noted", "job": "x", "window": "y"}) for number in range(2000)]
    world.journal.write_bytes(b"".join(past))
    assert len(world.journal.read_bytes()) > 100_000
    assert Journal(str(world.folder)).tail()[-1]["seq"] == 1999


@pytest.mark.every_store
def test_an_outcome_torn_at_any_byte_is_no_outcome(world):
    world.run(env={"RANONCE_FAILPOINT": "finish:outcome-kept"})
    (file,) = world.attempt_files()
    whole = file.read_bytes()
    assert [owner for owner, _ in unrecorded(str(world.folder))] == [file.name]
    end = len(whole.rstrip(b"\0"))
    for cut in range(whole[: end - 1].rindex(b"\n") + 1, end):
        for rest in (b"", b"\0" * 100):
            file.write_bytes(whole[:cut] + rest)
            assert unrecorded(str(world.folder)) == [], cut
    file.write_bytes(whole[: end - 1] + b"\0" * 100)
    assert world.run().said() == (0, "done", None)  # nobody knows, so it is a crash like any other
    assert world.effects() == [f"job {TODAY} 1", f"job {TODAY} 2"]
