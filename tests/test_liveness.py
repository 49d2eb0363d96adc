"""What this host can prove about an attempt: its file, its lock, its processes, and what must not fool us."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from binascii import crc32
from pathlib import Path
from typing import Any

import pytest

from ranonce.errors import StoreUnavailable, UsageError
from ranonce.liveness import (
    RESERVED_BYTES,
    AttemptFile,
    Evidence,
    HostIdentity,
    boot_clock,
    clock_domain,
    examine,
    forget,
    look_at,
    process_start,
    request_stop,
    this_host,
    unrecorded,
)
from tests.conftest import lives, wait_until

OWNER = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32
HERE = Path(__file__).parent.parent
PROGRAM = (sys.executable, "-m", "tests.programs.one_child")


@pytest.fixture
def folder(tmp_path) -> str:
    return str(tmp_path)


@pytest.fixture
def sleeper():
    """Start processes that do nothing, each in a group of its own; they are killed at the end."""
    started = []

    def start(*argv: str) -> subprocess.Popen[bytes]:
        command, pipe = argv or ("sleep", "60"), subprocess.PIPE
        started.append(subprocess.Popen(command, process_group=0, stdin=pipe, stdout=pipe))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def line(**record: Any) -> bytes:
    body = json.dumps(record).encode()
    return b"%d %08x %s\n" % (len(body), crc32(body), body)


def plant(folder: str, *lines: bytes, owner: str = OWNER) -> Path:
    """Write an attempt's file as somebody else left it."""
    path = Path(folder, "attempts", owner)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(b"".join(lines))
    return path


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def identity_of_a_dead_wrapper(**changes: Any) -> bytes:
    return line(**{**this_host().as_dict(), "pid": dead_pid(), "start": "1", **changes})


def child(pid: int, **changes: Any) -> bytes:
    told = {"child": pid, "child_start": process_start(pid), "group": pid, "session": os.getsid(pid)}
    return line(**{**told, **changes})


def attempt_of_a_wrapper(folder: str, tmp_path: Path, script: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a wrapper that keeps an attempt's file; return it and its child's pid."""
    report = tmp_path / "report"
    asked = {"argv": ["/bin/sh", "-c", script], "report": str(report), "attempt": [folder, OWNER], "grace": 0.2}
    process = subprocess.Popen((*PROGRAM, json.dumps(asked)), cwd=HERE, stdout=subprocess.DEVNULL)

    def pids() -> list[int]:
        lines = report.read_text().splitlines() if report.exists() else []
        return [told["pid"] for told in map(json.loads, lines) if "pid" in told]

    return process, wait_until(pids)[0]


# --- this host and its processes ---


def test_this_host_knows_boot_and_namespaces():
    here = this_host()
    assert here.host == os.uname().nodename
    assert here.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert here.pid_ns == os.readlink("/proc/self/ns/pid")
    assert here.time_ns == os.readlink("/proc/self/ns/time")


def test_instants_are_comparable_inside_one_boot_and_time_namespace_only():
    here = this_host()
    assert clock_domain(here) == clock_domain(this_host()) != ""
    assert clock_domain(here) != clock_domain(here.replace(boot_id="other"))
    assert clock_domain(here) != clock_domain(here.replace(time_ns="time:[1]"))
    assert clock_domain(here) == clock_domain(here.replace(pid_ns="pid:[1]"))
    assert clock_domain(HostIdentity("somewhere")) == ""


def test_the_boot_clock_counts_from_boot():
    assert abs(boot_clock() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1


def test_a_process_has_the_start_time_that_proc_says():
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert process_start(os.getpid()) == fields[19]


def test_a_process_that_is_gone_or_a_zombie_has_no_start_time():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    wait_until(lambda: not lives(pid))
    assert process_start(pid) is None
    assert look_at(pid) is not None
    os.waitpid(pid, 0)
    assert process_start(pid) is None
    assert look_at(pid) is None


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields(tmp_path, sleeper):
    evil = tmp_path / ") Z 1 (1 x"
    evil.symlink_to("/bin/sleep")
    process = sleeper(str(evil), "60")
    seen = wait_until(lambda: (found := look_at(process.pid)) and found.name == ") Z 1 (1 x" and found)
    assert (seen.dead, seen.group, seen.session) == (False, process.pid, os.getsid(0))


def test_a_program_whose_first_thread_has_ended_still_lives(sleeper):
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print(flush=True); ctypes.CDLL(None).pthread_exit(0)"
    )
    process = sleeper(sys.executable, "-c", code)
    process.stdout.readline()
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert process_start(process.pid) is not None


def test_on_a_system_without_proc_locks_and_signals_it_can_be_imported_and_proves_nothing():
    code = (
        "import os, select, signal, sys\n"
        "sys.modules['fcntl'] = None\n"
        "for module, names in ((signal, 'SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE SIGXFSZ pthread_sigmask'),\n"
        "                      (os, 'uname fork setpgid killpg O_NOFOLLOW O_NONBLOCK'), (select, 'poll')):\n"
        "    for name in names.split(): delattr(module, name)\n"
        "import ranonce.liveness, ranonce.process\n"
        "print(ranonce.liveness.examine('/', 'a' * 32, ranonce.liveness.HostIdentity('')).state)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("unknown\n", "")


# --- the attempt's file ---


def test_the_file_is_private_and_locked(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    path = Path(folder, "attempts", OWNER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert not os.get_inheritable(attempt.fd)
    attempt.remove()


def test_space_for_the_outcome_is_taken_at_the_start(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    assert os.fstat(attempt.fd).st_blocks * 512 >= RESERVED_BYTES
    attempt.remove()


@pytest.mark.parametrize("owner", ["", "0" * 31, "0" * 33, "A" * 32, "../" + "0" * 29, "0" * 31 + "\n", "0" * 31 + "/"])
def test_an_owner_that_is_no_owner_touches_no_path(folder, owner):
    for touch in (
        lambda: AttemptFile.create(folder, owner, this_host()),
        lambda: examine(folder, owner, this_host()),
        lambda: forget(folder, owner),
        lambda: request_stop(folder, owner, ""),
    ):
        with pytest.raises(UsageError, match="32 lowercase hexadecimal digits"):
            touch()
    assert os.listdir(folder) == []


def test_an_owner_is_never_used_again(folder):
    AttemptFile.create(folder, OWNER, this_host()).release()
    with pytest.raises(StoreUnavailable, match="File exists"):
        AttemptFile.create(folder, OWNER, this_host())


def test_a_planted_link_is_not_followed(folder, tmp_path):
    target = tmp_path / "precious"
    target.write_text("precious")
    path = plant(folder)
    path.unlink()
    path.symlink_to(target)
    with pytest.raises(StoreUnavailable):
        AttemptFile.create(folder, OWNER, this_host())
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")
    assert target.read_text() == "precious"


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o720, 0), (0o700, 65534)])
def test_a_folder_in_which_others_write_is_refused(folder, mode, owner):
    if owner and os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    Path(folder, "attempts").mkdir()
    Path(folder, "attempts").chmod(mode)
    os.chown(Path(folder, "attempts"), owner or -1, -1)
    with pytest.raises(StoreUnavailable, match="others can write in its folder"):
        AttemptFile.create(folder, OWNER, this_host())


def test_a_state_folder_that_is_not_there_is_said(folder):
    with pytest.raises(StoreUnavailable, match="No such file or directory"):
        AttemptFile.create(folder + "/nowhere", OWNER, this_host())


def test_release_and_remove_can_be_called_twice(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    attempt.release()
    attempt.release()
    assert Path(attempt.path).exists()
    attempt.remove()
    attempt.remove()
    assert os.listdir(Path(folder, "attempts")) == []


def test_a_failed_start_leaves_no_file(folder, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        AttemptFile.create(folder, OWNER, this_host())
    assert os.listdir(Path(folder, "attempts")) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_system_that_cannot_reserve_space_is_good_enough(folder, monkeypatch):
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    AttemptFile.create(folder, OWNER, this_host()).remove()


# --- evidence ---


def test_a_working_attempt_is_alive_and_its_child_is_named(folder, tmp_path):
    process, pid = attempt_of_a_wrapper(folder, tmp_path, "exec sleep 60")
    wait_until(lambda: examine(folder, OWNER, this_host()) == Evidence("alive", pid, "sleep"))
    process.terminate()
    process.wait()
    assert not Path(folder, "attempts", OWNER).exists()
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")


def test_an_attempt_before_its_child_is_alive_by_its_wrapper(folder, tmp_path):
    code = (
        "import sys, time; from ranonce.liveness import *\n"
        "file = AttemptFile.create(sys.argv[1], sys.argv[2], this_host()); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, folder, OWNER], stdout=subprocess.PIPE)
    process.stdout.readline()
    evidence = examine(folder, OWNER, this_host())
    assert (evidence.state, evidence.pid) == ("alive", process.pid)
    process.kill()
    process.communicate()
    assert examine(folder, OWNER, this_host()) == Evidence("dead")


def test_a_killed_wrapper_with_a_child_that_ignores_term_is_alive_until_the_child_ends(folder, tmp_path):
    script = f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    process, pid = attempt_of_a_wrapper(folder, tmp_path, script)
    wait_until((tmp_path / "ready").exists)
    process.kill()
    process.wait()
    assert lives(pid)
    assert examine(folder, OWNER, this_host()) == Evidence("alive", pid, "sh", orphan=True)
    os.killpg(pid, signal.SIGKILL)
    wait_until(lambda: examine(folder, OWNER, this_host()) == Evidence("dead"))


def test_a_killed_wrapper_whose_child_heeds_term_is_dead_at_once(folder, tmp_path):
    process, _ = attempt_of_a_wrapper(folder, tmp_path, "exec sleep 60")
    process.kill()
    process.wait()
    wait_until(lambda: examine(folder, OWNER, this_host()) == Evidence("dead"), 5)


def test_wrapper_and_child_killed_is_dead_at_once(folder, tmp_path):
    process, pid = attempt_of_a_wrapper(folder, tmp_path, "trap '' TERM; sleep 60")
    process.kill()
    os.killpg(pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: examine(folder, OWNER, this_host()) == Evidence("dead"), 5)


def test_a_member_of_the_group_that_outlives_wrapper_and_child_blocks(folder, sleeper):
    leader = sleeper("sh", "-c", "sleep 60 & until grep -q sleep /proc/$!/comm; do :; done; echo $!; read wait")
    member = int(leader.stdout.readline())
    story = child(leader.pid)
    leader.kill()
    leader.wait()
    plant(folder, identity_of_a_dead_wrapper(), story)
    assert examine(folder, OWNER, this_host()) == Evidence("alive", member, "sleep", orphan=True)
    os.kill(member, signal.SIGKILL)
    wait_until(lambda: examine(folder, OWNER, this_host()) == Evidence("dead"))


def test_a_zombie_is_dead(folder, sleeper):
    process = sleeper()
    plant(folder, identity_of_a_dead_wrapper(), child(process.pid))
    assert examine(folder, OWNER, this_host()).state == "alive"
    process.kill()
    wait_until(lambda: not lives(process.pid))  # and not collected
    assert examine(folder, OWNER, this_host()) == Evidence("dead")


@pytest.mark.parametrize("pid", [1, "mine", "another's"])
def test_a_pid_that_lives_again_as_somebody_else_is_not_the_attempt(folder, sleeper, pid):
    pid = {1: 1, "mine": os.getpid(), "another's": sleeper().pid}[pid]
    plant(
        folder,
        identity_of_a_dead_wrapper(pid=pid, start="1"),
        line(child=pid, child_start="2", group=pid, session=os.getsid(0)),
    )
    assert examine(folder, OWNER, this_host()) == Evidence("dead")


def test_a_group_number_that_is_used_again_is_not_the_attempts_group(folder, sleeper):
    """The leader is another process; or it is gone, and session or age tell."""
    leader = sleeper("sh", "-c", "sleep 60 & echo; read wait")
    leader.stdout.readline()
    start = int(process_start(leader.pid) or 0)
    older = child(leader.pid, child_start=str(start - 100))
    newer = child(leader.pid, child_start=str(start + 100_000))
    elsewhere = child(leader.pid, session=os.getsid(0) + 1)
    plant(folder, identity_of_a_dead_wrapper(), older)
    assert examine(folder, OWNER, this_host()) == Evidence("dead")
    leader.kill()
    leader.wait()
    for story in (newer, elsewhere):
        plant(folder, identity_of_a_dead_wrapper(), story)
        assert examine(folder, OWNER, this_host()) == Evidence("dead")


@pytest.mark.parametrize("what", ["boot_id", "pid_ns", "time_ns"])
def test_another_boot_or_namespace_proves_nothing(folder, sleeper, what):
    process = sleeper()
    plant(folder, identity_of_a_dead_wrapper(**{what: "another"}), child(process.pid))
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")
    plant(folder, identity_of_a_dead_wrapper())
    assert examine(folder, OWNER, this_host().replace(**{what: "another"})) == Evidence("unknown")


def test_a_host_that_does_not_know_itself_proves_nothing(folder):
    plant(folder, identity_of_a_dead_wrapper(boot_id="", pid_ns="", time_ns=""))
    assert examine(folder, OWNER, HostIdentity(this_host().host)) == Evidence("unknown")


def test_a_missing_file_proves_nothing(folder):
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")


def test_a_file_without_an_identity_proves_nothing(folder):
    plant(folder)
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")
    plant(folder, line(something="else"), line(child="x", child_start=[], group=None, session={}))
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")


def test_a_whole_line_that_we_did_not_write_proves_nothing(folder):
    plant(folder, identity_of_a_dead_wrapper(), line(child="x", child_start=[], group=None, session={}))
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")
    plant(folder, line(**this_host().as_dict()))
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_a_file_that_may_not_be_read_proves_nothing(tmp_path):
    plant(str(tmp_path), identity_of_a_dead_wrapper()).chmod(0o600)
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        path.chmod(0o755)
    (tmp_path / "attempts").chmod(0o755)
    code = (
        "import os, sys; from ranonce.liveness import *\n"
        "os.setuid(65534); print(examine(sys.argv[1], sys.argv[2], this_host()).state)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), OWNER], capture_output=True, text=True)
    assert done.stdout == "unknown\n", done.stderr
    assert examine(str(tmp_path), OWNER, this_host()).state == "dead"


def test_a_lock_that_only_a_daemon_holds_is_locked_and_the_verdict_frees_it(folder, tmp_path):
    """A daemon that left the group has inherited the descriptor."""
    script = (
        f"setsid -f sh -c 'echo $$ > {tmp_path}/daemon; exec sleep 60'; until test -s {tmp_path}/daemon; do :; done"
    )
    process, pid = attempt_of_a_wrapper(folder, tmp_path, f"{script}; trap '' TERM; while :; do sleep 0.05; done")
    daemon = int(wait_until(lambda: (tmp_path / "daemon").exists() and (tmp_path / "daemon").read_text()))
    process.kill()
    os.killpg(pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: examine(folder, OWNER, this_host()) == Evidence("locked"), 5)
    assert forget(folder, OWNER) is False
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: examine(folder, OWNER, this_host()) == Evidence("dead"), 5)
    assert forget(folder, OWNER) is True


def test_the_verdict_frees_a_lock_that_a_daemon_has_inherited(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    daemon = subprocess.Popen(["sleep", "60"], pass_fds=[attempt.fd], start_new_session=True)
    attempt.release()
    with open(Path(folder, "attempts", OWNER)) as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    daemon.kill()
    daemon.wait()


def test_an_attempt_of_this_very_process_is_alive_while_it_holds_its_lock_only(folder):
    """A wrapper that serves several windows must not take itself for the attempt that it gave up."""
    attempt = AttemptFile.create(folder, OWNER, this_host())
    assert examine(folder, OWNER, this_host()).pid == os.getpid()
    attempt.release()
    assert examine(folder, OWNER, this_host()) == Evidence("dead")


def test_an_examiner_inside_the_recorded_group_is_no_witness_of_it(folder, sleeper):
    """What is left of a job starts the job again: it must not wait for itself."""
    code = (
        "import os, signal, sys; from ranonce.liveness import *\n"
        "if os.fork() == 0:\n"  # the examiner; its parent, the leader, is killed
        "    print(flush=True); sys.stdin.readline()\n"
        "    print(examine(sys.argv[1], sys.argv[2], this_host()).state, flush=True)\n"
        "else: signal.pause()"
    )
    leader = sleeper(sys.executable, "-c", code, folder, OWNER)
    leader.stdout.readline()
    plant(folder, identity_of_a_dead_wrapper(), child(leader.pid))
    leader.kill()
    leader.wait()
    leader.stdin.write(b"go\n")
    leader.stdin.flush()
    assert leader.stdout.readline() == b"dead\n"


def test_a_process_that_proc_hides_is_not_taken_for_dead(folder, sleeper, monkeypatch):
    """Mounted with hidepid, /proc does not show the processes of other users; kill(2) knows that they are there."""
    from ranonce import liveness

    process = sleeper()
    plant(folder, identity_of_a_dead_wrapper(), child(process.pid))
    monkeypatch.setattr(liveness, "look_at", lambda pid: None)
    assert examine(folder, OWNER, this_host()) == Evidence("unknown")


# --- outcomes ---


def test_an_outcome_is_found_when_its_attempt_is_over(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    attempt.child_started(os.getpid())
    attempt.write_outcome('{"done": "ünï\\n"}', sync=True)
    assert unrecorded(folder) == []  # its writer is about to record it
    attempt.release()
    assert unrecorded(folder) == [(OWNER, '{"done": "ünï\\n"}')]
    assert forget(folder, OWNER) is True
    assert unrecorded(folder) == []


def test_the_last_outcome_counts(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    attempt.write_outcome("first", sync=False)
    attempt.write_outcome("second", sync=False)
    size = attempt._end
    attempt.write_outcome("second", sync=True)
    assert attempt._end == size
    attempt.release()
    assert unrecorded(folder) == [(OWNER, "second")]


def test_outcomes_come_oldest_first_and_attempts_without_one_do_not_come(folder):
    for number, owner in enumerate(("b" * 32, "a" * 32, "c" * 32)):
        attempt = AttemptFile.create(folder, owner, this_host())
        if owner[0] != "c":
            attempt.write_outcome(owner[0], sync=False)
        attempt.release()
        os.utime(Path(folder, "attempts", owner), (1000 + number, 1000 + number))
    Path(folder, "attempts", "not-an-owner").write_text("x")
    assert [text for _, text in unrecorded(folder)] == ["b", "a"]


def test_an_outcome_survives_its_killed_writer_even_when_a_daemon_holds_the_lock(folder):
    code = (
        "import os, subprocess, sys; from ranonce.liveness import *\n"
        "file = AttemptFile.create(sys.argv[1], sys.argv[2], this_host())\n"
        "daemon = subprocess.Popen(['sleep', '60'], pass_fds=[file.fd], start_new_session=True, stdout=2)\n"
        "print(daemon.pid, flush=True)\n"
        "file.write_outcome('it was done', sync=False); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder, OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert unrecorded(folder) == [(OWNER, "it was done")]
    assert forget(folder, OWNER) is True
    os.kill(int(done.stdout), signal.SIGKILL)


def test_no_state_folder_means_no_outcomes(folder):
    assert unrecorded(folder) == []
    assert unrecorded(folder + "/nowhere") == []


def test_a_file_torn_at_any_byte_says_nothing_that_is_not_so(folder, sleeper):
    process = sleeper()
    identity, started = identity_of_a_dead_wrapper(), child(process.pid)
    outcome = line(outcome="it was done")
    whole = identity + started + outcome
    for size in range(len(whole) + 1):
        for tail in (b"", b"\0" * 100):
            plant(folder, whole[:size] + tail)
            state = examine(folder, OWNER, this_host()).state
            assert state == (
                "unknown" if size < len(identity) else "dead" if size < len(identity + started) else "alive"
            )
            assert unrecorded(folder) == ([(OWNER, "it was done")] if size == len(whole) else [])


@pytest.mark.parametrize("place", [0, 5, 12, 40, -2])
def test_a_changed_byte_makes_a_line_void(folder, place):
    outcome = bytearray(line(outcome="it was done, without any doubt"))
    outcome[place] ^= 1
    plant(folder, identity_of_a_dead_wrapper(), bytes(outcome))
    assert unrecorded(folder) == []


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 256 KiB, which `fill()` fills to the last byte."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", mount], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no small file system for us here: {done.stderr.strip()}")

    def fill() -> None:
        with open(mount / "filler", "wb", buffering=0) as filler:
            for size in (4096, 1):
                try:
                    while filler.write(b"x" * size):
                        pass
                except OSError:
                    continue

    yield str(mount), fill
    subprocess.run(["umount", "--lazy", mount], check=True)


def test_an_outcome_fits_on_a_disk_that_is_full_by_then(full_disk):
    folder, fill = full_disk
    attempt = AttemptFile.create(folder, OWNER, this_host())
    fill()
    attempt.child_started(os.getpid())
    attempt.write_outcome("x" * (RESERVED_BYTES - 1000), sync=True)
    with pytest.raises(OSError, match="No space left"):
        attempt.write_outcome("y" * RESERVED_BYTES, sync=True)
    attempt.release()
    assert [text[:1] for _, text in unrecorded(folder)] == ["x"]


def test_on_a_disk_that_is_full_at_the_start_nothing_is_started(full_disk):
    folder, fill = full_disk
    fill()
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        AttemptFile.create(folder, OWNER, this_host())
    Path(folder, "filler").unlink()
    AttemptFile.create(folder, OWNER, this_host()).remove()


# --- stop requests ---


def test_a_stop_is_handed_over_once(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    assert attempt.take_stop() is None
    assert request_stop(folder, OWNER, "limit reached: ü") is True
    path = Path(folder, "attempts", OWNER + ".stop")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert attempt.take_stop() == "limit reached: ü"
    assert attempt.take_stop() is None
    attempt.remove()


def test_the_last_of_two_stops_counts_and_none_is_left_behind(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    request_stop(folder, OWNER, "first")
    request_stop(folder, OWNER, "second")
    assert attempt.take_stop() == "second"
    request_stop(folder, OWNER, "too late")
    attempt.remove()
    assert os.listdir(Path(folder, "attempts")) == []


def test_a_stop_for_an_attempt_that_is_not_here_is_not_taken(folder):
    AttemptFile.create(folder, OWNER, this_host())
    assert request_stop(folder, OTHER, "stop") is False
    assert os.listdir(Path(folder, "attempts")) == [OWNER]


def test_a_stop_request_is_no_attempt(folder):
    attempt = AttemptFile.create(folder, OWNER, this_host())
    request_stop(folder, OWNER, "stop")
    attempt.write_outcome("done", sync=False)
    attempt.release()
    assert unrecorded(folder) == [(OWNER, "done")]
    assert forget(folder, OWNER) is True
    assert os.listdir(Path(folder, "attempts")) == []
