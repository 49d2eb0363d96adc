"""The file of what a job emits: whole messages or none, in order, until it is closed for good."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal

import pytest

from ranonce.emission import Emission
from ranonce.errors import ClaimLost, StoreUnavailable, UsageError
from ranonce.liveness import MessagesFile
from ranonce.messagefile import CONFLICT, KEPT, THERE, DamagedMessages, add, close, note_a_step
from ranonce.messages import LONGEST_BODY, MOST_BYTES, MOST_MESSAGES


@pytest.fixture
def file(tmp_path):
    made = MessagesFile(str(tmp_path / "messages"))
    yield made
    made.remove()


def one(key="a", body=b"x", **fields):
    return Emission(**{"destination": "slack", "body": body, "key": key, **fields})


def test_what_was_added_comes_back_in_order(file):
    told = [one("ä", b"\0\n\xff" * 5, content_type="text/plain"), one("b", b"12 deadbeef x\n"), one("c", scope="job")]
    for emission in told:
        assert add(file.path, [emission]) == KEPT
    assert close(file) == told


def test_the_same_again_is_there_already(file):
    assert [add(file.path, [one()]) for _ in range(3)] == [KEPT, THERE, THERE]
    assert len(close(file)) == 1


def test_another_body_for_a_key_is_a_conflict_that_is_kept_once(file):
    answers = [add(file.path, [one(body=body)]) for body in (b"x", b"y", b"y", b"x")]
    assert answers == [KEPT, CONFLICT, CONFLICT, THERE]
    assert [emission.body for emission in close(file)] == [b"x", b"y"]


@pytest.mark.parametrize("other", [{"destination": "mail"}, {"scope": "job"}, {"key": "b"}])
def test_destination_scope_and_key_tell_messages_apart(file, other):
    assert [add(file.path, [one()]), add(file.path, [one(**{"body": b"y", **other})])] == [KEPT, KEPT]


def test_nothing_is_added_once_it_is_closed(file):
    add(file.path, [one()])
    close(file)
    with pytest.raises(ClaimLost, match="has ended"):
        add(file.path, [one("b")])


def test_nothing_is_added_to_a_file_that_is_gone(file):
    assert file.is_untouched()
    for call in (lambda: add(file.path, [one()]), lambda: note_a_step(file.path)):
        with pytest.raises(ClaimLost, match="has ended"):
            call()


def test_who_opened_it_before_it_went_takes_back_what_it_wrote(file, monkeypatch):
    lines = []

    def gone_meanwhile(fd, path):
        if not lines:
            lines.append(file.is_untouched())
        return iter(())

    monkeypatch.setattr("ranonce.messagefile._lines", gone_meanwhile)
    with pytest.raises(ClaimLost, match="has ended"):
        add(file.path, [one()])
    assert lines == [True]
    assert os.fstat(file.fd).st_size == 0


def test_a_file_cut_at_any_byte_is_damaged_and_none_of_it_is_read(file):
    add(file.path, [one("a", b"first")])
    middle = os.fstat(file.fd).st_size
    add(file.path, [one("b", b"second")])
    whole = os.pread(file.fd, 1 << 16, 0)
    for cut in (*range(1, middle), *range(middle + 1, len(whole))):
        os.ftruncate(file.fd, 0)
        os.pwrite(file.fd, whole[:cut], 0)
        with pytest.raises(DamagedMessages):
            close(file)
        with pytest.raises(DamagedMessages):
            add(file.path, [one("c")])


def test_a_changed_byte_anywhere_is_seen(file):
    add(file.path, [one("a", b"first")])
    whole = os.pread(file.fd, 1 << 16, 0)
    for at in range(len(whole) - 1):  # the last one ends the record
        os.ftruncate(file.fd, 0)
        os.pwrite(file.fd, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], 0)
        with pytest.raises(DamagedMessages):
            close(file)


def test_a_file_that_somebody_removed_is_damaged(file):
    add(file.path, [one()])
    os.unlink(file.path)
    assert not file.is_untouched()
    with pytest.raises(DamagedMessages, match="was removed"):
        close(file)


def test_a_file_that_somebody_emptied_is_damaged_for_whoever_emits_and_whoever_reads(file):
    add(file.path, [one()])
    os.truncate(file.path, 0)
    assert not file.is_untouched()
    with pytest.raises(DamagedMessages, match="was emptied"):
        add(file.path, [one("b")])
    with pytest.raises(DamagedMessages, match="was emptied"):
        close(file)


def test_emptying_a_file_that_holds_nothing_harms_nobody(file):
    os.truncate(file.path, 0)
    assert add(file.path, [one()]) == KEPT
    assert len(close(file)) == 1


def test_an_empty_file_that_somebody_removed_holds_nothing_and_fails_no_work(file):
    os.unlink(file.path)
    assert file.is_untouched()


def test_a_link_in_its_place_is_not_followed(file, tmp_path):
    os.unlink(file.path)
    os.symlink(tmp_path / "elsewhere", file.path)
    (tmp_path / "elsewhere").touch()
    with pytest.raises(StoreUnavailable):
        add(file.path, [one()])
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_no_more_messages_are_kept_than_an_outcome_has(file):
    assert add(file.path, [one(str(number)) for number in range(MOST_MESSAGES)]) == KEPT
    with pytest.raises(UsageError, match="more than 1000 messages"):
        add(file.path, [one("more")])
    assert add(file.path, [one("7")]) == THERE
    assert len(close(file)) == MOST_MESSAGES


def test_no_more_bytes_are_kept_than_an_outcome_has(file):
    count = MOST_BYTES // LONGEST_BODY
    for number in range(count):
        add(file.path, [one(str(number), b"x" * LONGEST_BODY)])
    with pytest.raises(UsageError, match="more than 16777216 bytes"):
        add(file.path, [one("more")])
    assert len(close(file)) == count


def full_at(limit, path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        add(path, [one("b", b"x" * 10_000)])
    except StoreUnavailable:
        os._exit(7)


def test_what_does_not_fit_on_the_disk_leaves_no_half(file):
    add(file.path, [one("a")])
    before = os.fstat(file.fd).st_size
    process = multiprocessing.get_context("fork").Process(target=full_at, args=(before + 5000, file.path))
    process.start()
    process.join(20)
    assert process.exitcode == 7
    assert os.fstat(file.fd).st_size == before
    assert close(file) == [one("a")]


def test_it_is_this_users_alone(file):
    assert os.stat(file.path).st_mode & 0o777 == 0o600


def test_steps_leave_one_mark_and_no_message(file):
    sizes = []
    for _ in range(3):
        note_a_step(file.path)
        sizes.append(os.fstat(file.fd).st_size)
    assert len(set(sizes)) == 1
    assert not file.is_untouched()
    assert close(file) == []


def test_what_steps_left_beside_it_goes_with_it(tmp_path):
    file = MessagesFile(str(tmp_path / "messages"))
    note_a_step(file.path)
    MessagesFile(f"{file.path}.0123")
    (tmp_path / "messagesx").touch()
    file.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["messagesx"]
