"""The journal forgets what the ledger has pruned, and nothing else, while jobs go on writing into it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ranonce import journal_upkeep
from ranonce.journal import Journal, decode
from ranonce.journal_upkeep import forget_pruned
from ranonce.stores.memory.store import MemoryStore
from tests.contract.acting import DAILY
from tests.planted import message_of
from tests.test_journal import event, pruned_up_to

FACTS = 400


@pytest.fixture
def journal(tmp_path):
    """A journal that remembers the events 1 to 400."""
    journal = Journal(str(tmp_path))
    journal.append(event(seq) for seq in range(1, FACTS + 1))
    return journal


def ledger(*, pruned: int) -> MemoryStore:
    """A store with the events 1 to 400 but for those that are pruned."""
    store = MemoryStore()
    store._events = [event(seq) for seq in range(1, FACTS + 1)]
    pruned_up_to(store, pruned)
    return store


def remembered(journal: Journal) -> list[int]:
    with open(journal.path, "rb") as file:
        return [fact["seq"] for line in file if (fact := decode(line.rstrip(b"\n")))]


def test_facts_of_pruned_events_are_forgotten(journal):
    size = os.stat(journal.path).st_size
    forgotten = forget_pruned(journal, ledger(pruned=300))
    assert remembered(journal) == list(range(301, FACTS + 1))
    assert (forgotten.facts, forgotten.shorter) == (100, size - os.stat(journal.path).st_size)
    assert os.stat(journal.path).st_mode & 0o777 == 0o600


def test_keys_that_outlive_their_windows_are_not_forgotten(journal):
    lasting = message_of(DAILY.window("2026-11-07"), "first", job="job").replace(key="job/slack/welcome")
    journal.append([], [lasting])
    forget_pruned(journal, ledger(pruned=300))
    with open(journal.path, "rb") as file:
        facts = [decode(line.rstrip(b"\n")) for line in file]
    assert [fact["keys"] for fact in facts if fact["event"] == "emitted"] == [{lasting.key: lasting.digest}]


def test_where_less_than_half_is_pruned_it_is_not_worth_the_work(journal):
    assert forget_pruned(journal, ledger(pruned=150)) is None
    assert len(remembered(journal)) == FACTS


def test_a_short_journal_is_left_alone(tmp_path):
    journal = Journal(str(tmp_path))
    journal.append([event(1), event(2)])
    assert forget_pruned(journal, ledger(pruned=300)) is None
    assert remembered(journal) == [1, 2]


def test_a_host_without_a_journal_has_nothing_to_forget(tmp_path):
    assert forget_pruned(Journal(str(tmp_path)), ledger(pruned=300)) is None
    assert list(tmp_path.iterdir()) == []


def test_facts_the_ledger_still_has_stay_however_old(journal):
    store = ledger(pruned=390)
    store._events.insert(0, event(7))
    forget_pruned(journal, store)
    assert remembered(journal) == [7, *range(391, FACTS + 1)]


def test_the_newest_fact_stays_since_it_is_what_a_rollback_is_seen_by(journal):
    forget_pruned(journal, ledger(pruned=FACTS))
    assert remembered(journal) == [FACTS]


def test_facts_of_earlier_epochs_stay(journal):
    later = Journal(os.path.dirname(journal.path), epoch=2)
    later.append(event(seq) for seq in range(1, FACTS + 101))
    store = ledger(pruned=FACTS)
    assert forget_pruned(later, store) is None  # of all facts no more than half
    later.append(event(seq) for seq in range(1, FACTS + 101))
    forget_pruned(later, store)
    assert remembered(journal)[:FACTS] == list(range(1, FACTS + 1))


def test_torn_lines_go_and_what_is_behind_them_stays(journal):
    with open(journal.path, "ab") as file:
        file.write(b'{"len":12,"crc"\n\0\0\0\n')
    journal.append([event(500)])
    forget_pruned(journal, ledger(pruned=300))
    assert remembered(journal) == [*range(301, FACTS + 1), 500]
    with open(journal.path, "rb") as file:
        assert all(decode(line.rstrip(b"\n")) for line in file)


def test_a_line_that_is_being_written_is_carried_over_whole(journal, monkeypatch):
    """Half of it is there when the journal is read, the rest when it has been replaced."""
    line = journal_upkeep_line(500)
    with open(journal.path, "ab", buffering=0) as late:
        late.write(line[:40])
        move = journal_upkeep._Draft.move_into_place

        def meanwhile(draft):
            move(draft)
            late.write(line[40:])

        monkeypatch.setattr(journal_upkeep._Draft, "move_into_place", meanwhile)
        forget_pruned(journal, ledger(pruned=300))
    assert remembered(journal)[-2:] == [FACTS, 500]


def journal_upkeep_line(seq: int) -> bytes:
    from ranonce.journal import encode

    return encode({**event(seq).key.as_dict(), "seq": seq, "epoch": 1})


def test_a_fact_that_comes_while_it_is_written_anew_is_kept(journal, monkeypatch):
    real = journal_upkeep._carry_over

    def a_fact_comes_before(old, draft, read, *, whole_lines):
        journal.append([event(501 if whole_lines else 502)])
        return real(old, draft, read, whole_lines=whole_lines)

    monkeypatch.setattr(journal_upkeep, "_carry_over", a_fact_comes_before)
    forget_pruned(journal, ledger(pruned=300))
    assert remembered(journal) == [*range(301, FACTS + 1), 501, 502]


def test_a_symbolic_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"x" * 100_000)
    os.symlink(tmp_path / "elsewhere", tmp_path / "journal.jsonl")
    with pytest.raises(OSError, match="symbolic"):
        forget_pruned(Journal(str(tmp_path)), ledger(pruned=300))


def test_another_process_that_is_at_it_is_left_alone(journal):
    import fcntl

    with open(journal.path + ".new", "wb") as draft:
        fcntl.flock(draft, fcntl.LOCK_EX)
        assert forget_pruned(journal, ledger(pruned=300)) is None
    assert len(remembered(journal)) == FACTS
    assert forget_pruned(journal, ledger(pruned=300)) is not None


def test_a_full_disk_leaves_the_journal_as_it_was(journal, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        forget_pruned(journal, ledger(pruned=300))
    assert len(remembered(journal)) == FACTS
    assert os.listdir(os.path.dirname(journal.path)) == ["journal.jsonl"]


FORGET = """
import sys
from tests.test_journal_upkeep import Journal, forget_pruned, ledger
forget_pruned(Journal(sys.argv[1]), ledger(pruned=300))
"""


@pytest.mark.parametrize(("point", "left"), [("journal:before-replaced", FACTS), ("journal:replaced", 100)])
def test_a_kill_leaves_one_whole_journal(journal, point, left):
    folder = os.path.dirname(journal.path)
    env = {**os.environ, "RANONCE_FAILPOINT": point, "PYTHONPATH": os.getcwd()}
    assert subprocess.run([sys.executable, "-c", FORGET, folder], env=env).returncode == -signal.SIGKILL
    assert len(remembered(journal)) == left
    journal.append([event(500)])
    forget_pruned(journal, ledger(pruned=300))
    assert remembered(journal) == [*range(301, FACTS + 1), 500]
    assert os.listdir(folder) == ["journal.jsonl"]


APPEND = """
import sys
from tests.test_journal import Journal, event
journal = Journal(sys.argv[1])
for seq in range(int(sys.argv[2]), int(sys.argv[2]) + 1000):
    journal.append([event(seq)])
"""


def test_two_jobs_that_write_all_the_time_lose_nothing(journal):
    folder = os.path.dirname(journal.path)
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    begins = (10_000, 20_000)
    writers = [subprocess.Popen([sys.executable, "-c", APPEND, folder, str(seq)], env=env) for seq in begins]
    store = ledger(pruned=300)
    replaced = 0
    while any(writer.poll() is None for writer in writers):
        journal.append(event(seq) for seq in range(1, 301))
        with pytest.MonkeyPatch.context() as always:
            always.setattr(journal_upkeep, "_worth", lambda old, memory: True)
            replaced += forget_pruned(journal, store) is not None
    assert replaced > 5
    for begin in begins:
        wrote = range(begin, begin + 1000)
        assert sorted({seq for seq in remembered(journal) if seq in wrote}) == list(wrote)
