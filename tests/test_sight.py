"""What can be seen from here of who holds a claim: by its sign, by the process its lease names. And what cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ranonce import filesystem, signs
from ranonce.claimant import claimant_of, text_of
from ranonce.errors import StoreUnavailable
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import UNKNOWN, Sighting
from ranonce.liveness import AttemptFile, this_host
from ranonce.sight import ourselves, sighting_of
from ranonce.signs import Sign, shown
from ranonce.stores import open_store
from ranonce.stores.sqlite.create import create
from ranonce.terms import Locks
from tests.contract.stores import LEDGER
from tests.world import lives, wait_until

OWNER, OTHER = "0123456789abcdef0123456789abcdef", "f" * 32
HOLDING = """
import os, sys, time
from ranonce.liveness import this_host
from ranonce.sight import ourselves
from ranonce.signs import Sign
beside, folder, owner = sys.argv[1:]
sign = Sign.show(beside, owner) if beside else None
print(ourselves(this_host(), folder or None), flush=True)
for line in sys.stdin:
    if line == "end\\n": sign.end()
    if line == "fork\\n" and os.fork() == 0: time.sleep(60)
    if line == "start\\n":
        import subprocess
        subprocess.Popen(["sleep", "60"])
    print("done", flush=True)
"""


class Keeper:
    """A process that keeps a claim; in a group of its own, which is killed at the end."""

    def __init__(self, beside: object = "", folder: object = "") -> None:
        words = [sys.executable, "-c", HOLDING, str(beside), str(folder), OWNER]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, process_group=0)
        assert self.process.stdout is not None
        self.text = self.process.stdout.readline().strip()
        self.pid = self.process.pid

    def does(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def dies(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def keeper():
    started: list[Keeper] = []

    def start(*where: object) -> Keeper:
        started.append(Keeper(*where))
        return started[-1]

    yield start
    for each in started:
        os.killpg(each.pid, signal.SIGKILL) if lives(each.pid) else None
        each.process.communicate()


def seen(process: str = "", *, folder: object = None, beside: object = None, here=None, owner: str = OWNER) -> Sighting:
    return sighting_of(
        owner,
        process,
        folder=None if folder is None else str(folder),
        beside=None if beside is None else str(beside),
        here=here or this_host(),
    )


ELSEWHERE = this_host().replace(pid_ns="pid:[1]")  # another container on this kernel


# --- the sign ---


def test_a_sign_is_seen_by_all_who_can_open_the_ledgers_folder_and_leaves_nothing_there(tmp_path):
    sign = Sign.show(str(tmp_path), OWNER)
    assert shown(str(tmp_path), OWNER)
    assert not shown(str(tmp_path), OTHER)
    assert list(tmp_path.iterdir()) == []
    sign.end()
    assert not shown(str(tmp_path), OWNER)
    sign.end()  # can be called twice


def test_a_sign_ends_with_its_process_however_that_ends(tmp_path, keeper):
    keeps = keeper(tmp_path)
    assert shown(str(tmp_path), OWNER)
    keeps.process.send_signal(signal.SIGSTOP)
    assert shown(str(tmp_path), OWNER)  # it lives, and may go on
    keeps.dies()
    assert not shown(str(tmp_path), OWNER)


@pytest.mark.parametrize("what", ["start", "fork"])
def test_what_a_process_starts_or_forks_does_not_keep_its_sign(tmp_path, keeper, what):
    keeps = keeper(tmp_path)
    keeps.does(what)
    assert shown(str(tmp_path), OWNER)
    keeps.dies()
    wait_until(lambda: not shown(str(tmp_path), OWNER))
    os.killpg(keeps.pid, signal.SIGKILL)  # what it has left behind: it was alive all the time


def test_a_process_may_keep_several_claims_and_each_has_a_sign_of_its_own(tmp_path):
    one, two = Sign.show(str(tmp_path), OWNER), Sign.show(str(tmp_path), OTHER)
    one.end()
    assert (shown(str(tmp_path), OWNER), shown(str(tmp_path), OTHER)) == (False, True)
    two.end()


def test_a_kernel_without_such_locks_shows_no_sign_and_sees_none(tmp_path, monkeypatch):
    def unknown(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(signs.fcntl, "fcntl", unknown)
    assert Sign.show(str(tmp_path), OWNER) is None
    assert not shown(str(tmp_path), OWNER)


def test_a_sign_that_cannot_be_looked_for_is_never_taken_for_none(tmp_path):
    with pytest.raises(StoreUnavailable, match="cannot be seen"):
        shown(str(tmp_path / "nowhere"), OWNER)


@pytest.mark.parametrize(("kind", "shows"), [("ext4", True), ("tmpfs", True), ("nfs4", False), ("fuse.sshfs", False)])
def test_where_other_hosts_see_no_lock_of_this_one_no_sign_is_shown(tmp_path, monkeypatch, kind, shows):
    """Such a file system is refused unless its risk is accepted; the kernel keeps locks on its folders to itself."""
    create(str(tmp_path / "ledger.db"), LEDGER, volatile=f"{kind}: accepted")
    monkeypatch.setattr(filesystem, "file_system_of", lambda path: filesystem.FileSystem(kind, "/", "a problem"))
    locks = Locks(OpenLedger(open_store(f"sqlite:///{tmp_path}/ledger.db", wait_seconds=5), folder=None), OWNER)
    locks.take()
    assert (locks.sign is not None, shown(str(tmp_path), OWNER)) == (shows, shows)
    locks.give_back()
    assert not shown(str(tmp_path), OWNER)


def test_standard_streams_that_are_closed_are_not_taken_for_the_sign(tmp_path):
    code = (
        "import os, sys; from ranonce.signs import Sign; os.close(0)\n"
        "sign = Sign.show(sys.argv[1], sys.argv[2]); print(sign._fd > 2)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path), OWNER], capture_output=True, text=True)
    assert ran.stdout == "True\n", ran.stderr


# --- who is seen to live ---


def test_from_another_state_folder_the_sign_shows_life_and_the_process_is_named(tmp_path, keeper):
    keeps = keeper(tmp_path)
    found = seen(keeps.text, beside=tmp_path)
    assert (found.state, found.pid) == ("alive", keeps.pid)


def test_from_another_pid_namespace_the_sign_shows_life_and_no_pid_is_told_that_means_nothing_there(tmp_path, keeper):
    keeps = keeper(tmp_path)
    host = os.uname().nodename
    assert seen(keeps.text, beside=tmp_path, here=ELSEWHERE) == Sighting("alive", None, f"{host} pid {keeps.pid}")
    assert seen("an older ledger's pid 5", beside=tmp_path).name == "an older ledger's pid 5"


def test_from_another_pid_namespace_the_shared_state_folder_proves_no_death(tmp_path, keeper):
    folder, ledger = tmp_path / "state", tmp_path / "ledger"
    folder.mkdir()
    ledger.mkdir()
    AttemptFile.create(str(folder), OWNER, this_host().replace(boot_id="another")).release()
    keeps = keeper(ledger, folder)
    assert seen(keeps.text, folder=folder, beside=ledger, here=ELSEWHERE).state == "alive"
    keeps.dies()
    assert seen(keeps.text, folder=folder, beside=ledger, here=ELSEWHERE) == UNKNOWN


def test_one_whose_sign_has_ended_has_its_lease_left_though_its_process_lives(tmp_path, keeper):
    keeps = keeper(tmp_path)
    keeps.does("end")
    assert lives(keeps.pid)
    assert seen(keeps.text, beside=tmp_path) == UNKNOWN


def test_on_a_servers_ledger_the_process_that_the_lease_names_shows_life(keeper):
    keeps = keeper()
    found = seen(keeps.text)
    assert (found.state, found.pid) == ("alive", keeps.pid)
    keeps.dies()
    assert seen(keeps.text) == UNKNOWN  # its child may live: the lease decides


def test_a_paused_process_lives(keeper):
    keeps = keeper()
    keeps.process.send_signal(signal.SIGSTOP)
    assert seen(keeps.text).state == "alive"


@pytest.mark.parametrize("what", ["boot_id", "pid_ns", "time_ns"])
def test_a_process_of_another_boot_or_namespace_says_nothing(keeper, what):
    keeps = keeper()
    assert seen(keeps.text, here=this_host().replace(**{what: "another"})) == UNKNOWN
    assert seen(text_of(claimant_of(keeps.text).replace(**{what: "another"}))) == UNKNOWN


def test_a_host_that_does_not_know_itself_sees_nobody(keeper):
    nowhere = this_host().replace(boot_id="", pid_ns="", time_ns="")
    text = text_of(claimant_of(keeper().text).replace(boot_id="", pid_ns="", time_ns=""))
    assert seen(text, here=nowhere) == UNKNOWN
    assert claimant_of(ourselves(nowhere, None)).start == ""


def test_a_number_that_was_used_again_is_not_the_process(keeper):
    claimant = claimant_of(keeper().text)
    assert seen(text_of(claimant.replace(start="1"))) == UNKNOWN
    assert seen(text_of(claimant.replace(start=""))) == UNKNOWN


def test_host_names_and_process_1_prove_nothing():
    """Two containers of one name, with a process 1 in each, on a server's ledger."""
    inside = this_host().replace(pid_ns="pid:[11]")
    beside_it = this_host().replace(pid_ns="pid:[12]")
    holder = claimant_of(ourselves(inside, None)).replace(pid=1)
    assert seen(text_of(holder), here=beside_it) == UNKNOWN


def test_a_process_is_no_witness_for_itself():
    assert seen(ourselves(this_host(), None)) == UNKNOWN


def test_where_the_attempts_file_would_be_its_absence_means_that_it_was_let_go(tmp_path, keeper):
    keeps = keeper("", tmp_path)
    assert seen(keeps.text, folder=tmp_path) == UNKNOWN
    (tmp_path / "another").mkdir()
    assert seen(keeps.text, folder=tmp_path / "another").state == "alive"


def test_the_file_is_the_better_witness(tmp_path, keeper):
    attempt = AttemptFile.create(str(tmp_path), OWNER, this_host())
    assert seen("nonsense", folder=tmp_path, beside=tmp_path).pid == os.getpid()
    attempt.leave()
    assert seen(keeper("", tmp_path).text, folder=tmp_path) == Sighting("dead")


@pytest.mark.parametrize("owner", ["one", "", "f" * 31, "0" * 31 + "/"])
def test_an_owner_that_is_none_of_ours_is_unknown(tmp_path, owner):
    assert seen(owner=owner, folder=tmp_path, beside=tmp_path) == UNKNOWN
