"""`mend run` with real processes on this machine. Every wait is for a line, or for an end."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mend_optim.cli.command import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "command.md"
# Waits for the end in a way that a signal's trap can interrupt.
WAIT = "echo ready; sleep 1000 & wait"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mend_optim", "run", *arguments]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # The tests themselves may run under `nohup`, and a run would outlive its terminal then.
    words = ["env", "--default-signal=HUP", *command(*arguments)]
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # a kill would leave its learners behind
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=20)
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


def finished(*arguments: str) -> tuple[int, str, str]:
    with started(*arguments) as process:
        return ended(process)


def until(process: subprocess.Popen[str], words: str, times: int) -> str:
    """Read its output until so many lines have the words."""
    assert process.stdout is not None
    seen, count = "", 0
    for line in process.stdout:
        seen += line
        count += words in line
        if count == times:
            return seen
    raise AssertionError(f"{words!r} came {count} times: {seen}")


def test_lines_have_names_and_learners_what_they_need() -> None:
    script = (
        'echo "I am $MEND_NAME at $MEND_LISTEN, not $MEND_PEERS, {index} of {count}";'
        'stat -c %a "$MEND_SECRET_FILE" >&2'
    )
    status, out, err = finished("-n", "2", "--names", "a,long", "--", "sh", "-c", script)
    assert status == 0
    told = re.findall(r"^(\w+) +\| I am (\w+) at (\S+), not (\S+), (\d) of 2$", out, re.MULTILINE)
    (_, name, here, there, index), (_, other, here_2, there_2, index_2) = sorted(told)
    assert (name, index, other, index_2) == ("a", "0", "long", "1")
    assert (here, there) == (there_2, here_2)
    assert here != there
    assert err.count("| 600\n") == 2
    assert "a    | " in out
    assert "mend | a is done" in err


def test_the_output_in_the_docs() -> None:
    """Lines of two learners may come in any order."""
    page = PAGE.read_text(encoding="utf-8")
    quoted = re.search(r"^ {4}\$ mend run (.+)\n((?: {4}.+\n)+)", page, re.MULTILINE)
    assert quoted
    _, out, err = finished("--pause", "0.01", *shlex.split(quoted[1]))

    def told(text: str) -> list[str]:
        timeless = re.sub(r"after [\d.]+ s|in [\d.]+ s", "at a time", text)
        return sorted(line.strip() for line in timeless.splitlines())

    assert told(out + err) == told(quoted[2])


def test_the_secret_is_kept_for_the_run_and_gone_afterwards() -> None:
    kept = 'flock --nonblock "${MEND_SECRET_FILE%/*}" echo free || echo kept'
    _, out, _ = finished("-n", "1", "--", "sh", "-c", f"echo at:$MEND_SECRET_FILE; {kept}")
    where, state = out.splitlines()
    path = Path(where.partition("at:")[2])
    assert path.name == "secret"
    assert state.endswith("kept")
    assert not path.exists()


def test_a_learner_that_ends_badly_is_started_again_so_many_times() -> None:
    status, out, err = finished(
        *("-n", "2", "--restarts", "2", "--pause", "0.01", "--"),
        *("sh", "-c", "echo life; exit $((7 * {index}))"),
    )
    assert status == 7
    assert out.count("learner-0 | life") == 1
    assert out.count("learner-1 | life") == 3
    assert "starts again in 0.02 s (2 of 2)" in err
    assert "it is not started again" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_takes_no_output_and_stops_nobody(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("-n", "1", "--", "sh", "-c", f"echo a; echo b; echo c > {tmp_path}/done"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=200,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "done").exists()


def test_a_learner_that_cannot_start_again_ends_nobody_else(tmp_path: Path) -> None:
    """The system may have no room for a process at that moment."""
    program, here, done = tmp_path / "program", tmp_path / "here", tmp_path / "done"
    wait = "do sleep 0.01; done"
    program.write_text(
        f"#!/bin/sh\nif [ $1 = 0 ]; then while [ ! -e {here} ]; {wait}; rm {program}; exit 7; fi\n"
        f"echo > {here}; while [ -e {program} ]; {wait}; echo > {done}\n"
    )
    program.chmod(0o700)
    status, _, err = finished(
        *("-n", "2", "--restarts", "2", "--pause", "0.01", "--", str(program), "{index}")
    )
    assert err.count("learner-0 cannot start: ") == 2
    assert "learner-0 ended with status 126" in err
    assert "it is not started again" in err
    assert status == 126
    assert done.exists()


def test_a_system_without_waitid_starts_learners_again() -> None:
    """macOS has it from Python 3.13 on."""
    run = ["run", "-n", "1", "--restarts", "1", "--pause", "0.01", "--", "sh", "-c", "exit 7"]
    code = (
        "import os, sys; del os.waitid; from mend_optim.cli.command import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *run],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        check=False,
    )
    assert done.returncode == 7
    assert "(1 of 1)" in done.stderr
    assert "it is not started again" in done.stderr


def test_a_system_without_groups_of_processes_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "killpg")
    assert main(["run", "-n", "1", "--", "true"]) == 2
    assert "mend run needs groups of processes" in capsys.readouterr().err


def test_learners_that_all_fail_before_any_has_joined_are_given_up() -> None:
    script = "echo begins; echo 'no module named x' >&2; exit 7"
    status, _, err = finished(
        "-n", "2", "--restarts", "99", "--pause", "0.01", "--", "sh", "-c", script
    )
    assert status == 7
    *_, last = err.partition("; no learner has joined in 3 starts, so none is started again\n")
    assert re.search(r"^mend +\| the last lines of learner-[01] were:$", last, re.MULTILINE), err
    assert re.search(r"learner-[01] \| no module named x\n\Z", last), err
    assert "| begins\n" in last


def test_a_learner_that_has_once_joined_is_started_again_as_before() -> None:
    script = 'touch "$MEND_JOINED_FILE"; exit 7'
    _, _, err = finished("-n", "1", "--restarts", "4", "--pause", "0.01", "--", "sh", "-c", script)
    assert "(4 of 4)" in err
    assert "no learner has joined" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_ends_all(number: signal.Signals) -> None:
    script = f"trap 'echo got it; exit 0' {number.name[3:]}; {WAIT}"
    with started("-n", "2", "--", "sh", "-c", script) as process:
        until(process, "ready", 2)
        process.send_signal(number)
        status, out, err = ended(process)
    assert status == 128 + number
    assert out.count("got it") == 2
    assert f"{number.name}: the learners are told to end" in err


#: It has a worker, as of a `DataLoader`, and ends once it got a signal.
TAKES_NOTES = """
sleep 1000 & worker=$!
trap 'heard=yes' USR1 USR2
echo ready
until test "$heard"; do sleep 0.05; done
sleep 0.05
kill -0 $worker && echo its worker lives
"""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_of_the_script_is_passed_on_and_the_run_goes_on(number: signal.Signals) -> None:
    """Before, it ended the command, and the learners trained on."""
    options = ("-n", "2", "--restarts", "0")
    with started(*options, "--", "sh", "-c", TAKES_NOTES) as process:
        until(process, "ready", 2)
        process.send_signal(number)
        status, out, err = ended(process)
    assert (status, out.count("its worker lives")) == (0, 2)
    assert f"{number.name}: passed on to the learners" in err


def test_a_signal_more_at_the_end_leaves_no_secret_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds Ctrl-C down sends many."""
    clean_up = TemporaryDirectory.cleanup

    def interrupted(folder: TemporaryDirectory[str]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        clean_up(folder)

    monkeypatch.setattr(TemporaryDirectory, "cleanup", interrupted)
    assert main(["run", "-n", "1", "--", "sh", "-c", "echo at:$MEND_SECRET_FILE"]) == 0
    path = capsys.readouterr().out.strip().partition("at:")[2]
    assert path.endswith("secret")
    assert not Path(path).parent.exists()


def test_learners_that_do_not_end_are_killed() -> None:
    script = "trap '' INT TERM; echo ready; while true; do sleep 1000; done"
    with started("-n", "2", "--grace", "0.05", "--", "sh", "-c", script) as process:
        until(process, "ready", 2)
        process.send_signal(signal.SIGTERM)
        status, _, err = ended(process)
    assert status == 128 + signal.SIGTERM
    assert "learner-0, learner-1 did not end within 0.05 s" in err
    assert err.count("was ended by SIGKILL") == 2


def test_the_second_signal_kills_at_once() -> None:
    script = "trap 'echo deaf' INT; echo ready; while true; do sleep 1000 & wait; done"
    with started("-n", "1", "--grace", "100000", "--", "sh", "-c", script) as process:
        until(process, "ready", 1)
        process.send_signal(signal.SIGINT)
        until(process, "deaf", 1)
        process.send_signal(signal.SIGINT)
        status, _, err = ended(process)
    assert status == 128 + signal.SIGINT
    assert "killed by the second signal" in err


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    script = f"echo ready; until test -e {closed}; do sleep 0.01; done"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["nohup", *command("-n", "1", "--", "sh", "-c", script)],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        until(process, "ready", 1)
        process.send_signal(signal.SIGHUP)
        closed.touch()
        status, _, err = ended(process)
    assert status == 0, err
    assert "SIGHUP" not in err


def until_full(process: subprocess.Popen[str]) -> None:
    """Wait until its standard output takes no more, as nobody reads."""
    assert process.stdout is not None
    number = process.stdout.fileno()
    room = fcntl.fcntl(number, 1032)  # F_GETPIPE_SZ, which Python 3.10 has on Linux
    waiting = bytearray(4)
    while int.from_bytes(waiting, sys.byteorder) + 4096 <= room:
        assert process.poll() is None
        fcntl.ioctl(number, termios.FIONREAD, waiting)


linux_pipes = pytest.mark.skipif(sys.platform != "linux", reason="needs to see how full a pipe is")


@linux_pipes
def test_a_reader_that_stands_still_keeps_nobody_from_ending(tmp_path: Path) -> None:
    """Such as a pager, or a collector of logs that hangs. Learners say what they want to say at
    their end, and save."""
    saved = tmp_path / "saved"
    script = f"trap 'seq 100000; touch {saved}; exit 0' TERM; yes | head -c 300000 & wait"
    with started("-n", "1", "--grace", "20", "--", "sh", "-c", script) as process:
        until_full(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=100) == 128 + signal.SIGTERM
    assert saved.exists()


@linux_pipes
def test_a_learner_that_does_not_end_is_killed_though_nobody_reads() -> None:
    with started("-n", "1", "--grace", "0.05", "--", "sh", "-c", "trap '' TERM; yes") as process:
        until_full(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=100) == 128 + signal.SIGTERM


@linux_pipes
def test_a_reader_that_stands_still_for_a_while_gets_all() -> None:
    with started("-n", "1", "--", "seq", "100000") as process:
        until_full(process)
        status, out, err = ended(process)
    assert status == 0, err
    assert out.split()[2::3] == [str(i) for i in range(1, 100001)]


def test_a_reader_that_comes_late_gets_all() -> None:
    """The learner has ended by then."""
    with started("-n", "1", "--", "seq", "10000") as process:
        assert process.stderr is not None
        assert "is done" in process.stderr.readline()
        status, out, _ = ended(process)
    assert status == 0
    assert out.split()[2::3] == [str(i) for i in range(1, 10001)]


# Leaves its group, and writes without end: the first lines before its parent ends.
DAEMON = """
import os
ready, left = os.pipe()
if os.fork():
    os.read(ready, 1)
    os._exit(0)
os.setsid()
os.write(1, b"line\\n" * 1000)
os.write(left, b"x")
while True:
    os.write(1, b"line\\n" * 1000)
"""


def test_a_process_that_has_left_the_group_and_writes_on_holds_nobody_up() -> None:
    status, out, _ = finished("-n", "1", "--", sys.executable, "-c", DAEMON)
    assert status == 0
    assert "learner-0 | line" in out


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open to watch a stranger")
def test_what_a_learner_leaves_behind_ends_with_it() -> None:
    with started("-n", "1", "--", "sh", "-c", f"sleep 1000 & echo pid $!; {WAIT}") as process:
        seen = until(process, "ready", 1)
        worker = os.pidfd_open(int(re.findall(r"pid (\d+)", seen)[0]))
        process.send_signal(signal.SIGINT)
        ended(process)
        gone, _, _ = select.select([worker], [], [], 30)
        os.close(worker)
    assert gone


# A learner that kills itself once, and a script as a user would write it.
TRAIN = """
import os, signal, sys
from pathlib import Path
import torch
from mend_optim import MendOptimizer, Timing

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
timing = Timing(beat_s=0.2, join_timeout_s=10, round_timeout_s=10, evict_after_s=30)
optimizer = MendOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), sync_every=2, timing=timing, ledger=sys.argv[2]
)
died = Path(sys.argv[1])
processes, offers = set(), 0
# Until a has seen itself, b, and b again; and b that a goes on from a round with b.
while len(processes) < 3 if optimizer.name == "a" else offers < 2:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    members = [m for r in optimizer.status().rounds for m in r.members]
    processes |= {(m.name, m.incarnation) for m in members}
    offers = max((m.seq for m in members if m.name == "a"), default=0)
if not died.exists() and optimizer.name == "b":
    died.touch()
    os.kill(os.getpid(), signal.SIGKILL)
finish = optimizer.finish(60)
print("ended with", *sorted(finish.tokens), finish.digest, flush=True)
"""


def test_learners_train_one_model_although_one_dies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    status, out, err = finished(
        *("-n", "2", "--names", "a,b", "--pause", "0.01", "--"),
        *(sys.executable, str(script), str(tmp_path / "died"), str(tmp_path / "{name}.jsonl")),
    )
    assert "b was ended by SIGKILL" in err, err
    assert "no learner has joined" not in err
    assert status == 0, err
    ends = re.findall(r"^(\w) +\| ended with a b (\S+)$", out, re.MULTILINE)
    assert sorted(name for name, _ in ends) == ["a", "b"]
    assert len({digest for _, digest in ends}) == 1
    # Their ledgers tell of a sound run, in which b has had two processes. Of the first one only a's
    # ledger tells for sure: b may have died before it had written a line.
    ledgers = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    assert main(["ledger", *ledgers]) == 0
    assert "sound: every offer was merged once" in capsys.readouterr().out
    incarnations = re.findall(r'"name":"b","incarnation":(\d+),"seq"', read(ledgers[0]))
    assert len(set(incarnations)) == 2


def read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def test_arguments_that_are_wrong_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments, words in [
        (["-n", "0", "--", "true"], "-n must be an int from 1 to 256, got 0"),
        (["-n", "2", "--names", "a", "--", "true"], "--names must be 2 different names"),
        (["-n", "2", "--names", "a,a", "--", "true"], "--names must be 2 different names"),
        (["-n", "1", "--names", "\x1b", "--", "true"], "--names must be names of printable text"),
        (["-n", "1"], "COMMAND must be the command of a learner, got []; write it behind --"),
        (["-n", "1", "--", "no-such-program"], "COMMAND must be a program that this shell finds"),
        (["-n", "1", "--restarts", "-1", "--", "true"], "--restarts must be an int >= 0, got -1"),
        (["-n", "1", "--pause", "nan", "--", "true"], "--pause must be a number of seconds"),
        (["-n", "1", "--port", "0", "--", "true"], "--port must be a port from 1 to 65535, got 0"),
        (["-n", "1", "--secret", f"{tmp_path}/none", "--", "true"], "--secret must be the file"),
        (
            ["-n", "1", "--credentials", f"{tmp_path}", "--names", "a", "--", "true"],
            f"--credentials must be a directory that has one for each learner, got '{tmp_path}'"
            f" without a; issue it with mend certs issue {tmp_path} a",
        ),
    ]:
        assert main(["run", *arguments]) == 2, arguments
        assert words in capsys.readouterr().err
