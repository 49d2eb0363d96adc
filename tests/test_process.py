"""One command in its own process group: how it is started, signalled, stopped and judged. All of it really happens."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ranonce.liveness import boot_clock
from ranonce.process import Ending, Leftover, SpawnFailed, run_child
from ranonce.signals import Signals, die_by
from tests.conftest import lives, wait_until

STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
IGNORE_STOPS = 'trap "" TERM INT HUP QUIT; '
PROGRAM = (sys.executable, "-m", "tests.programs.one_child")
PYTHON = sys.executable
HERE = Path(__file__).parent.parent


def run(*argv: str, env: dict[str, str] | None = None, **options: Any) -> Ending:
    with Signals() as signals:
        ending = run_child(argv, env=dict(os.environ) if env is None else env, signals=signals, **options)
    assert isinstance(ending, Ending), ending
    return ending


def sh(script: str, **options: Any) -> Ending:
    return run("/bin/sh", "-c", script, **options)


def refused(*argv: str, env: dict[str, str] | None = None, **options: Any) -> SpawnFailed:
    with Signals() as signals:
        ending = run_child(argv, env=dict(os.environ) if env is None else env, signals=signals, **options)
    assert isinstance(ending, SpawnFailed), ending
    return ending


def printed(ending: Ending) -> str:
    assert ending.output is not None
    return (ending.output.head + ending.output.tail).decode()


class Wrapper:
    """`one_child` in a process of its own."""

    def __init__(self, folder: Path, script: str, *, prefix: tuple[str, ...] = (), **options: Any) -> None:
        self.report = folder / "report"
        popen = {name: options.pop(name) for name in ("stdin", "stdout", "stderr", "preexec_fn") if name in options}
        popen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **popen}
        asked = {"argv": ["/bin/sh", "-c", script], "report": str(self.report), "grace": 0.3, **options}
        self.process = subprocess.Popen((*prefix, *PROGRAM, json.dumps(asked)), cwd=HERE, **popen)

    def told(self, what: str) -> list[Any]:
        lines = self.report.read_text().splitlines() if self.report.exists() else []
        return [line[what] for line in map(json.loads, lines) if what in line]

    @property
    def child(self) -> int:
        """The child's pid, once there is one."""
        return wait_until(lambda: self.told("pid") or self.died())[0]

    def died(self) -> None:
        assert self.process.poll() is None, self.process.communicate()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def ending(self, seconds: float = 20.0) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=seconds)
        assert self.told("ended"), out
        return self.told("ended")[0]


@pytest.fixture
def wrapper(tmp_path):
    """Start wrappers; what is left of them is killed."""
    started: list[Wrapper] = []

    def start(script: str, **options: Any) -> Wrapper:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Wrapper(folder, script, **options))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()
        for pid in one.told("pid"):
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def ready(folder: Path) -> str:
    """Shell words that say that the script has set its traps."""
    return f'touch "{folder}/ready"; '


def await_ready(folder: Path) -> None:
    wait_until((folder / "ready").exists)


# --- how it ended ---


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_the_exit_status_is_the_commands_own(status):
    ending = sh(f"exit {status}")
    assert (ending.exit, ending.signal) == (status, None)
    assert not (ending.timed_out or ending.stopped_by or ending.interrupted or ending.killed or ending.leftovers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_a_command_that_died_by_a_signal_says_which(number):
    ending = sh(f"ulimit -c 0; kill -{int(number)} $$")
    assert (ending.exit, ending.signal, ending.stopped_by) == (None, number, None)


# --- how it is started ---


def test_arguments_are_passed_as_they_are_and_no_shell_reads_them():
    words = ["a b", "$HOME", "*", "", "é\n", os.fsdecode(b"\xff\xfe")]
    ending = run(PYTHON, "-c", "import os, sys; print(ascii([os.fsencode(a) for a in sys.argv[1:]]))", *words)
    assert printed(ending) == ascii([os.fsencode(word) for word in words]) + "\n"


def test_the_environment_is_the_given_one_and_nothing_else():
    assert printed(run("/usr/bin/env", env={"A": "1", "B": "x=y"})) == "A=1\nB=x=y\n"


def test_the_command_is_looked_for_in_the_childs_path_in_its_order(tmp_path):
    for name, says in (("first", "1"), ("second", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text(f"#!/bin/sh\necho {says}\n")
    (tmp_path / "second" / "tool").chmod(0o700)
    path = f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second"
    assert printed(run("tool", env={"PATH": path})) == "2\n"  # the first may not be executed
    (tmp_path / "first" / "tool").chmod(0o700)
    assert printed(run("tool", env={"PATH": path})) == "1\n"


def test_it_works_in_the_given_folder(tmp_path):
    assert printed(sh("pwd", cwd=str(tmp_path))) == f"{tmp_path}\n"


def test_it_leads_a_group_of_its_own_in_our_session():
    seen: list[tuple[int, int]] = []
    ending = sh("exit 0", on_started=lambda pid: seen.append((os.getpgid(pid) - pid, os.getsid(pid))))
    assert (ending.exit, seen) == (0, [(0, os.getsid(0))])


def test_nothing_is_executed_before_on_started_has_returned(tmp_path):
    effect = tmp_path / "effect"
    seen = []

    def started(pid: int) -> None:
        seen.append((os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath("/proc/self/exe"), effect.exists()))

    assert sh(f"touch {effect}", on_started=started).exit == 0
    assert seen == [(True, False)]
    assert effect.exists()


def test_nothing_is_executed_when_on_started_fails(tmp_path):
    pids = []

    def started(pid: int) -> None:
        pids.append(pid)
        raise OSError("no space for the record")

    with pytest.raises(OSError, match="no space"):
        sh(f"touch {tmp_path}/effect", on_started=started)
    assert not (tmp_path / "effect").exists()
    assert not lives(pids[0])


def test_no_descriptor_is_left_open_by_any_way_out(tmp_path):
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    def fails(pid: int) -> None:
        raise OSError("no")

    before = opened()
    sh("echo; echo >&2")
    sh("exit 1", keep_output=False)
    refused("/no/such/command")
    with pytest.raises(OSError, match="no"):
        sh("exit 0", on_started=fails)
    with Signals() as signals:
        run_child(["true"], env={}, signals=signals, on_started=lambda pid: signals.interrupt("lost"))
    assert opened() == before


def test_the_child_gets_the_inherited_descriptors_and_none_of_ours(tmp_path):
    code = "import os; print(*(fd for fd in range(1024) if os.path.exists(f'/proc/self/fd/{fd}')))"
    ours_leaves_open = subprocess.check_output([PYTHON, "-c", code], close_fds=False, text=True).split()
    with open(tmp_path / "lock", "w") as lock, open(tmp_path / "store", "w"):
        got = printed(run(PYTHON, "-c", code, inherit=(lock.fileno(),))).split()
        assert set(got) == {*ours_leaves_open, str(lock.fileno())}


def test_no_signal_is_blocked_or_ignored_for_the_child():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
    try:
        lines = printed(run("/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")).split()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    blocked, ignored = int(lines[1], 16), int(lines[3], 16)
    assert lines[::2] == ["SigBlk:", "SigIgn:"]
    assert blocked == 0
    assert not [number for number in (signal.SIGPIPE, signal.SIGXFSZ, *STOPS) if ignored >> (number - 1) & 1]


def test_stdin_is_empty_by_default_so_that_a_backfill_loop_sees_all_its_lines(tmp_path):
    program = f"{PYTHON} -c 'import sys; from tests.test_process import sh; sh(\"cat > /dev/null\")'"
    loop = f"printf '1\\n2\\n3\\n' | while read line; do {program}; echo $line; done"
    done = subprocess.run(["/bin/sh", "-c", loop], cwd=HERE, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n2\n3\n", "")


def test_stdin_is_ours_when_asked_for():
    done = subprocess.run(
        [PYTHON, "-c", "from tests.test_process import sh; sh('cat', stdin=True)"],
        cwd=HERE,
        input=b"typed",
        capture_output=True,
    )
    assert done.stdout == b"typed"


# --- not started ---


def test_a_command_that_is_nowhere_in_path_is_127():
    failed = refused("nosuch\ntool", env={"PATH": "/usr/bin:/bin"})
    assert failed.exit == 127
    assert failed.sentence == "The command 'nosuch\\ntool' was not found in PATH='/usr/bin:/bin': give its full path."


def test_a_path_that_does_not_exist_is_127():
    assert refused("/no/such/tool") == SpawnFailed(127, "The command '/no/such/tool' was not found.")


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("#!/bin/sh\n", 0o600, "Permission denied"),
        ("echo hello\n", 0o700, "it is neither a program for this machine nor a script that begins with '#!'"),
    ],
)
def test_a_file_that_is_no_program_is_126(tmp_path, content, mode, why):
    tool = tmp_path / "tool"
    tool.write_text(content)
    tool.chmod(mode)
    assert refused(str(tool)) == SpawnFailed(126, f"The command {str(tool)!r} cannot be executed: {why}.")


def test_a_script_whose_interpreter_is_missing_is_126_and_says_so(tmp_path):
    tool = tmp_path / "tool"
    tool.write_text("#!/no/such/interpreter\n")
    tool.chmod(0o700)
    failed = refused("./tool", cwd=str(tmp_path))
    assert failed.exit == 126
    assert "interpreter" in failed.sentence


def test_a_folder_that_cannot_be_entered_is_named(tmp_path):
    failed = refused("true", cwd=f"{tmp_path}/nowhere")
    assert failed.exit == 126
    assert f"'{tmp_path}/nowhere'" in failed.sentence


def test_arguments_that_are_too_long_are_said_to_be():
    failed = refused("true", *["x" * 100_000] * 100)
    assert failed.exit == 126
    assert "longer than this system allows" in failed.sentence


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
def test_words_that_no_program_can_be_given_are_refused_with_a_sentence(word):
    assert refused(word).exit == 126
    assert repr(word) in refused("true", word).sentence
    assert repr(word) in refused("true", env={"NAME": word}).sentence


@pytest.mark.parametrize("name", ["", "A=B"])
def test_names_that_no_environment_can_hold_are_refused_with_a_sentence(name):
    assert repr(name) in refused("true", env={name: "1"}).sentence


def test_a_fork_that_fails_is_said_and_leaves_nothing(monkeypatch):
    def no_fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fork", no_fork)
    failed = refused("true")
    monkeypatch.undo()
    assert failed == SpawnFailed(126, "No process could be started for 'true': Resource temporarily unavailable.")
    assert len(os.listdir("/proc/self/fd")) == len(before)


# --- stop signals ---


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_signal_goes_to_the_whole_group(wrapper, tmp_path, number):
    one = wrapper(f"sleep 60 & {ready(tmp_path)} exec sleep 60")
    await_ready(tmp_path)
    one.signal(number)
    ending = one.ending()
    # The background job of a shell ignores INT and QUIT: it gets the grace, then KILL.
    assert (ending["signal"], ending["stopped_by"], ending["leftovers"]) == (number, number, [])
    assert not group_lives(one.child)


@pytest.mark.parametrize("number", STOPS)
def test_what_ignores_a_stop_signal_is_killed_after_the_grace(wrapper, tmp_path, number):
    one = wrapper(IGNORE_STOPS + ready(tmp_path) + "while :; do sleep 60; done")
    await_ready(tmp_path)
    began = time.monotonic()
    one.signal(number)
    ending = one.ending()
    assert 0.3 <= time.monotonic() - began < 3
    assert (ending["signal"], ending["stopped_by"], ending["killed"]) == (signal.SIGKILL, number, True)
    assert not group_lives(one.child)


def test_a_command_that_tidies_up_and_exits_0_was_stopped_all_the_same(wrapper, tmp_path):
    one = wrapper(f"trap 'echo tidied; exit 0' TERM; {ready(tmp_path)} while :; do sleep 0.05; done", grace=10)
    await_ready(tmp_path)
    one.signal(signal.SIGTERM)
    ending = one.ending()
    assert (ending["exit"], ending["stopped_by"], ending["killed"]) == (0, signal.SIGTERM, False)
    assert "tidied\n" in ending["output"]["head"]  # the shell may also say that its sleep was terminated


def test_a_grandchild_that_ignores_term_does_not_outlive_the_grace(wrapper, tmp_path):
    stubborn = f"trap '' TERM; {ready(tmp_path)} while :; do sleep 60; done".replace('"', "")
    one = wrapper(f'sh -c "{stubborn}" & exec sleep 60')
    await_ready(tmp_path)
    one.signal(signal.SIGTERM)
    ending = one.ending()
    assert (ending["signal"], ending["killed"], ending["leftovers"]) == (signal.SIGTERM, True, [])
    assert not group_lives(one.child)


def test_a_second_signal_is_passed_on_and_does_not_prolong_the_grace(wrapper, tmp_path):
    script = "trap 'echo one' TERM; trap 'echo two; exit 5' INT; "
    one = wrapper(f"{script} {ready(tmp_path)} while :; do sleep 0.02; done", grace=10)
    await_ready(tmp_path)
    one.signal(signal.SIGTERM)
    wait_until(lambda: one.process.stdout.readline() == b"one\n")
    one.signal(signal.SIGINT)
    ending = one.ending()
    assert (ending["exit"], ending["stopped_by"], ending["killed"]) == (5, signal.SIGTERM, False)


def test_a_stopped_command_can_still_end_in_its_own_way(wrapper, tmp_path):
    one = wrapper(f"trap 'exit 3' TERM; {ready(tmp_path)} while :; do sleep 0.02; done", grace=10)
    await_ready(tmp_path)
    os.kill(one.child, signal.SIGSTOP)
    one.signal(signal.SIGTERM)
    assert one.ending()["exit"] == 3


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_usr1_and_usr2_are_passed_on_and_stop_nothing(wrapper, tmp_path, number):
    name = signal.Signals(number).name[3:]
    one = wrapper(
        f"trap 'echo got; touch {tmp_path}/got' {name}; {ready(tmp_path)}"
        f"while ! test -e {tmp_path}/end; do sleep 0.02; done; exit 4",
        grace=0.05,
    )
    await_ready(tmp_path)
    one.signal(number)
    wait_until((tmp_path / "got").exists)
    time.sleep(0.2)  # more than the grace: nobody may think that it applies
    (tmp_path / "end").touch()
    ending = one.ending()
    assert (ending["exit"], ending["stopped_by"], ending["killed"]) == (4, None, False)
    assert one.told("first") == [None]


def test_a_usr1_from_before_the_start_is_not_meant_for_the_child():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        ending = run_child(["/bin/sleep", "0.1"], env={}, signals=signals)
    assert isinstance(ending, Ending)
    assert ending.exit == 0


def test_a_stop_before_the_start_starts_nothing(tmp_path):
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.first == signal.SIGTERM
        ending = run_child(["/bin/touch", f"{tmp_path}/effect"], env={}, signals=signals)
    assert ending == Ending(stopped_by=signal.SIGTERM)
    assert not (tmp_path / "effect").exists()


def test_a_stop_in_the_middle_of_the_start_starts_nothing(tmp_path):
    with Signals() as signals:
        ending = run_child(
            ["/bin/touch", f"{tmp_path}/effect"],
            env={},
            signals=signals,
            on_started=lambda pid: os.kill(os.getpid(), signal.SIGINT),
        )
    assert ending == Ending(stopped_by=signal.SIGINT)
    assert not (tmp_path / "effect").exists()


def test_a_signal_that_reaches_the_child_at_its_gate_is_not_lost(tmp_path):
    """Until it is the command, the child has a copy of our handlers: they must not swallow it."""
    effect = tmp_path / "effect"
    ending = run("/bin/touch", str(effect), on_started=lambda pid: os.kill(pid, signal.SIGTERM))
    assert (ending.signal, ending.stopped_by) == (signal.SIGTERM, None)
    assert not effect.exists()


def test_a_stop_at_any_moment_leaves_no_child_behind(wrapper):
    """From before the fork to after the exec: no instant at which a TERM is lost."""
    for microseconds in range(0, 4800, 400):
        one = wrapper("sleep 60", grace=10)
        wait_until(lambda one=one: one.told("ready") or one.died())
        time.sleep(microseconds / 1e6)
        one.signal(signal.SIGTERM)
        ending = one.ending()
        assert ending["stopped_by"] == signal.SIGTERM
        assert not any(group_lives(pid) for pid in one.told("pid"))


def test_a_signal_that_was_ignored_at_the_start_is_not_passed_on(wrapper, tmp_path):
    one = wrapper(f"{ready(tmp_path)} while ! test -e {tmp_path}/end; do sleep 0.02; done", prefix=("nohup",))
    await_ready(tmp_path)
    one.signal(signal.SIGHUP)
    os.kill(one.child, signal.SIGHUP)  # the child was started by nohup, too
    time.sleep(0.1)
    (tmp_path / "end").touch()
    ending = one.ending()
    assert (ending["exit"], ending["stopped_by"]) == (0, None)


def test_a_careless_parents_signal_mask_and_ignored_chld_do_not_make_us_deaf():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert sh("sleep 0.1; exit 6", keep_output=False).exit == 6
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) >= {signal.SIGCHLD, signal.SIGTERM}
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_handlers_are_restored():
    watched = [*STOPS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD]
    before = [signal.getsignal(number) for number in watched]
    wakeup = signal.set_wakeup_fd(-1)
    with Signals():
        assert [signal.getsignal(number) for number in watched] != before
    assert [signal.getsignal(number) for number in watched] == before
    assert signal.set_wakeup_fd(wakeup) == -1


def test_a_wake_after_the_end_touches_no_descriptor():
    with Signals() as signals:
        pass
    reader, writer = os.pipe()  # these get the numbers that were just closed
    signals.wake()
    signals.interrupt("lost")
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.close(reader)
    os.close(writer)


# --- interrupt and time limit ---


def test_an_interrupt_from_another_thread_stops_the_child(tmp_path):
    with Signals() as signals:
        timer = threading.Timer(0.1, signals.interrupt, ["lost"])
        ending = run_child(["/bin/sleep", "60"], env={}, signals=signals, grace=5, on_started=lambda pid: timer.start())
        timer.join()
        assert isinstance(ending, Ending)
        assert (ending.signal, ending.interrupted, ending.stopped_by) == (signal.SIGTERM, "lost", None)
        assert run_child(["/bin/true"], env={}, signals=signals) == Ending(interrupted="lost")
        signals.new_attempt()
        ending = run_child(["/bin/true"], env={}, signals=signals)
        assert isinstance(ending, Ending)
        assert ending.exit == 0


def test_an_interrupted_child_that_does_not_listen_is_killed_and_a_paused_one_is_not_continued(tmp_path):
    effect = tmp_path / "effect"
    with Signals() as signals:

        def paused(pid: int) -> None:
            wait_until((tmp_path / "ready").exists)
            os.kill(pid, signal.SIGSTOP)
            (tmp_path / "go").touch()
            signals.interrupt("fenced")

        ending = run_child(
            [
                "/bin/sh",
                "-c",
                f"{IGNORE_STOPS}{ready(tmp_path)} while ! test -e {tmp_path}/go; do :; done; touch {effect}",
            ],
            env=dict(os.environ),
            signals=signals,
            grace=0.3,
            on_started=lambda pid: threading.Thread(target=paused, args=(pid,)).start(),
        )
    assert isinstance(ending, Ending)
    assert (ending.signal, ending.interrupted, ending.killed) == (signal.SIGKILL, "fenced", True)
    assert not effect.exists()


def test_an_interrupt_with_an_end_gives_no_more_grace_than_that(tmp_path):
    """Also where the child was being stopped already, and had longer."""
    for first in (None, signal.SIGTERM):
        with Signals() as signals:

            def interrupted(pid: int, number: int | None = first, signals: Signals = signals) -> None:
                wait_until((tmp_path / "ready").exists)
                if number is not None:
                    os.kill(os.getpid(), number)
                signals.interrupt("fenced", boot_clock() + 0.2)

            began = time.monotonic()
            ending = run_child(
                ["/bin/sh", "-c", f"{IGNORE_STOPS}{ready(tmp_path)} while :; do sleep 0.05; done"],
                env=dict(os.environ),
                signals=signals,
                grace=60,
                on_started=lambda pid, begin=interrupted: threading.Thread(target=begin, args=(pid,)).start(),
            )
        assert isinstance(ending, Ending)
        assert (ending.signal, ending.interrupted, ending.killed) == (signal.SIGKILL, "fenced", True)
        assert time.monotonic() - began < 20
        (tmp_path / "ready").unlink()


def test_the_time_limit_ends_the_whole_group():
    began = time.monotonic()
    ending = sh("sleep 60 & sleep 60", timeout=0.2, grace=5)
    assert (ending.signal, ending.timed_out, ending.killed, ending.leftovers) == (signal.SIGTERM, True, False, ())
    assert 0.2 <= time.monotonic() - began < 3


def test_what_ignores_the_time_limit_is_killed():
    ending = sh(IGNORE_STOPS + "sleep 60 & while :; do sleep 60; done", timeout=0.2, grace=0.2)
    assert (ending.signal, ending.timed_out, ending.killed, ending.leftovers) == (signal.SIGKILL, True, True, ())


def test_the_time_limit_counts_for_what_the_child_left_behind():
    ending = sh("sleep 60 & exit 0", timeout=0.2, grace=1)
    assert (ending.exit, ending.timed_out, ending.leftovers) == (0, True, ())


def test_a_command_that_ends_in_time_is_not_timed_out():
    assert not sh("exit 0", timeout=20).timed_out


# --- leftovers ---


#: A background job that is what it is to become: until then it bears the shell's name.
BACKGROUND = "sleep 60 & until grep -q sleep /proc/$!/comm; do :; done; echo $!"


def test_a_background_job_is_waited_for():
    ending = sh("(sleep 0.3; echo late) & echo early")
    assert (ending.exit, printed(ending), ending.leftovers) == (0, "early\nlate\n", ())


def test_a_background_job_that_takes_too_long_is_named_and_left(wrapper):
    one = wrapper(BACKGROUND, leftover_wait=0.2, hold=0.1)
    ending = one.ending()
    pid = int(ending["output"]["head"])
    assert (ending["exit"], ending["leftovers"]) == (0, [{"pid": pid, "name": "sleep"}])
    assert lives(pid)


def test_a_background_job_is_named_at_once_when_it_is_to_be_left(wrapper):
    began = time.monotonic()
    one = wrapper(BACKGROUND, leftovers="leave")
    ending = one.ending()
    assert time.monotonic() - began < 3  # with the 2 s for which its open pipe is listened to
    assert ending["leftovers"] == [{"pid": int(ending["output"]["head"]), "name": "sleep"}]


def test_a_background_job_is_killed_when_asked_for():
    ending = sh("sleep 60 & echo $!", leftovers="kill")
    assert (ending.exit, ending.killed, ending.leftovers) == (0, False, ())
    assert not lives(int(printed(ending)))


def test_a_stubborn_background_job_is_killed_after_the_grace():
    ending = sh(f"({IGNORE_STOPS} while :; do sleep 60; done) & echo $!", leftovers="kill", grace=0.2)
    assert (ending.exit, ending.killed, ending.leftovers) == (0, True, ())
    assert not lives(int(printed(ending)))


def test_a_stop_ends_the_wait_for_a_background_job(wrapper):
    one = wrapper("sleep 60 & exit 0")
    wait_until(lambda: not lives(one.child))
    one.signal(signal.SIGTERM)
    ending = one.ending()
    assert (ending["exit"], ending["stopped_by"], ending["leftovers"]) == (0, signal.SIGTERM, [])


def test_a_daemon_that_left_the_group_blocks_nothing(tmp_path):
    daemon = tmp_path / "daemon"
    became = f"setsid -f sh -c 'echo $$ > {daemon}; exec sleep 60' > /dev/null 2>&1"
    began = time.monotonic()
    ending = sh(f"{became}; until test -s {daemon}; do :; done; exit 0")
    assert (ending.exit, ending.leftovers) == (0, ())
    assert time.monotonic() - began < 2
    os.kill(int(daemon.read_text()), signal.SIGKILL)


def test_dead_members_of_the_group_are_no_leftovers():
    """A zombie that its own parent does not collect, in another session."""
    script = (
        "import os, time\n"
        "first = os.fork()\n"
        "if first == 0:\n"
        "    if os.fork() == 0: os._exit(0)\n"  # stays in the group, and becomes a zombie
        "    os.setsid(); os.closerange(0, 3); time.sleep(3); os._exit(0)\n"
        "time.sleep(0.1)\n"
    )
    began = time.monotonic()
    assert run(PYTHON, "-c", script).leftovers == ()
    assert time.monotonic() - began < 2


@pytest.fixture(scope="module")
def no_proc() -> tuple[str, ...]:
    inside = ("/bin/sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
    for prefix in (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user")):
        tried = subprocess.run((*prefix, *inside, "true"), capture_output=True, text=True)
        if tried.returncode == 0:
            return (*prefix, *inside)
    pytest.skip(f"/proc cannot be hidden here: {tried.stderr.strip()}")


def test_without_proc_what_is_left_is_known_as_a_group_only(wrapper, no_proc):
    one = wrapper("sleep 60 & exit 3", prefix=no_proc, leftovers="leave", hold=0.1)
    ending = one.ending()
    assert (ending["exit"], ending["leftovers"]) == (3, [{"pid": one.child, "name": ""}])


def test_without_proc_a_background_job_is_waited_for_and_stopped_all_the_same(wrapper, no_proc, tmp_path):
    one = wrapper("(sleep 0.2; echo late) & exit 3", prefix=no_proc)
    assert (one.ending()["output"]["head"], one.ending()["leftovers"]) == ("late\n", [])
    one = wrapper(f"sleep 60 & {ready(tmp_path)} exit 3", prefix=no_proc)
    await_ready(tmp_path)
    one.signal(signal.SIGTERM)
    ending = one.ending()
    assert (ending["stopped_by"], ending["leftovers"]) == (signal.SIGTERM, [])
    assert not group_lives(one.child)


def group_lives(group: int) -> bool:
    """Whether a process of the group does anything."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == group and fields[0] not in (b"Z", b"X"):
                return True
    return False


# --- killed outright ---


def test_the_child_of_a_killed_wrapper_gets_term(wrapper, tmp_path):
    one = wrapper(f"trap 'touch {tmp_path}/term; exit' TERM; {ready(tmp_path)} while :; do sleep 0.02; done")
    await_ready(tmp_path)
    one.process.kill()
    wait_until((tmp_path / "term").exists)
    wait_until(lambda: not lives(one.child))


def test_the_child_of_a_wrapper_that_is_killed_before_the_start_is_recorded_does_nothing(wrapper, tmp_path):
    one = wrapper(f"touch {tmp_path}/effect", hang=True)
    child = one.child
    assert lives(child)
    one.process.kill()
    wait_until(lambda: not lives(child))
    assert not (tmp_path / "effect").exists()


# --- ending like the child ---


@pytest.mark.parametrize("number", [*STOPS, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE])
def test_this_process_can_die_by_a_signal_and_leaves_no_core(tmp_path, number):
    code = (
        "import resource, signal, sys\n"
        "from ranonce.signals import die_by\n"
        "hard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [int(sys.argv[1])])\n"
        "sys.stdout.write('said before')\n"
        "die_by(int(sys.argv[1]))\n"
    )
    done = subprocess.run([PYTHON, "-c", code, str(int(number))], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (-number, b"said before", b"")
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_no_signal_still_tells():
    done = subprocess.run([PYTHON, "-c", "from ranonce.signals import die_by; die_by(99)"], capture_output=True)
    assert done.returncode == (128 + 99) % 256


def test_die_by_says_that_it_does_not_return():
    assert die_by.__annotations__["return"] == "NoReturn"


def test_the_wrapper_ends_by_the_signal_that_stopped_it(wrapper, tmp_path):
    one = wrapper(f"trap 'exit 0' TERM; {ready(tmp_path)} while :; do sleep 0.02; done", die=True)
    await_ready(tmp_path)
    one.signal(signal.SIGTERM)
    assert one.ending()["exit"] == 0
    assert one.process.returncode == -signal.SIGTERM


# --- the first process of a container, and other collectors of orphans ---

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture(scope="module")
def namespace() -> tuple[str, ...]:
    for prefix in (NAMESPACE, (*NAMESPACE, "--map-root-user")):
        tried = subprocess.run((*prefix, "true"), capture_output=True, text=True)
        if tried.returncode == 0:
            return prefix
    pytest.skip(f"no new PID namespace for us here: {tried.stderr.strip()}")


#: Fifty processes that outlive the parent that made them, and end a moment later.
ORPHANS = "for i in 0 1 2 3 4 5 6 7 8 9; do (for j in 1 2 3 4 5; do sleep 0.0$i & done) & done; exit 7"


def test_as_pid_1_the_childs_status_is_right_and_no_orphan_stays_defunct(wrapper, namespace):
    one = wrapper(ORPHANS, prefix=namespace, repeat=8)
    one.ending()
    assert one.told("ready") == [1]
    assert [ending["exit"] for ending in one.told("ended")] == [7] * 8
    assert one.told("zombies") == [0] * 8


def test_as_pid_1_a_signal_is_passed_on_and_becomes_the_exit_status(wrapper, namespace, tmp_path):
    one = wrapper(f"{ready(tmp_path)} exec sleep 60", prefix=namespace, die=True)
    await_ready(tmp_path)
    inside = int(Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text())
    os.kill(inside, signal.SIGTERM)
    ending = one.ending()
    assert (ending["signal"], ending["stopped_by"]) == (signal.SIGTERM, signal.SIGTERM)
    assert one.process.returncode == 128 + signal.SIGTERM


def test_a_subreaper_collects_its_orphans(wrapper):
    one = wrapper(ORPHANS, subreaper=True, repeat=3)
    one.ending()
    assert [ending["exit"] for ending in one.told("ended")] == [7] * 3
    assert one.told("zombies") == [0] * 3


def test_children_of_others_in_this_process_are_left_to_them():
    other = subprocess.Popen(["/bin/sh", "-c", "exit 9"])
    assert sh("sleep 0.1; exit 7").exit == 7
    assert other.wait() == 9


# --- a terminal ---


class Terminal:
    """A wrapper on a terminal of its own, as a person starts it with `--stdin`."""

    def __init__(self, folder: Path, script: str) -> None:
        self.report = folder / "report"
        asked = {"argv": ["/bin/sh", "-c", script], "report": str(self.report), "stdin": True, "grace": 0.3}
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(HERE)
            os.execv(PYTHON, (*PROGRAM, json.dumps(asked)))
        self.seen = b""

    def reads(self, text: bytes) -> None:
        wait_until(lambda: text in self.read())

    def read(self) -> bytes:
        with contextlib.suppress(OSError):  # the last process that had it is gone
            self.seen += os.read(self.master, 4096)
        return self.seen

    def ending(self) -> dict[str, Any]:
        def told() -> list[Any]:
            lines = self.report.read_text().splitlines() if self.report.exists() else []
            return [line["ended"] for line in map(json.loads, lines) if "ended" in line]

        ended = wait_until(told)[0]
        os.close(self.master)
        os.waitpid(self.pid, 0)
        return ended


def test_a_command_that_may_read_the_terminal_does(tmp_path):
    terminal = Terminal(tmp_path, "echo ready; read word; echo got $word")
    terminal.reads(b"ready")
    os.write(terminal.master, b"typed\n")
    terminal.reads(b"got typed")
    assert terminal.ending()["exit"] == 0


def test_ctrl_c_on_the_terminal_is_a_stop(tmp_path):
    terminal = Terminal(tmp_path, "echo ready; exec sleep 60")  # exec: dash may lose an INT that comes while it forks
    terminal.reads(b"ready")
    os.write(terminal.master, b"\x03")
    ending = terminal.ending()
    assert (ending["signal"], ending["stopped_by"]) == (signal.SIGINT, signal.SIGINT)


def test_ctrl_z_on_the_terminal_does_not_hang_the_run(tmp_path):
    terminal = Terminal(tmp_path, "echo ready; read word; echo got $word")
    terminal.reads(b"ready")
    os.write(terminal.master, b"\x1a")
    os.write(terminal.master, b"typed\n")
    terminal.reads(b"got typed")
    assert terminal.ending()["exit"] == 0


def test_what_is_left_over_is_shown_by_pid_and_name():
    assert repr(Leftover(7, "sleep")) == "Leftover(pid=7, name='sleep')"
