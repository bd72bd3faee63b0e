"""A learner that ends, for whatever reason, ends at once, with the right exit status, and leaves
nothing behind.

`test_processes.py` has the intended ends: `close`, `with`, the end of the script, Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.addresses import free_addresses
from tests.system import endings
from tests.system.learner import MOMENTS
from tests.system.processes import Learner, Supervisor

DISTANT = {"beat_s": 0.5, "evict_after_s": 60.0}  # nobody is evicted in such a test
SOON = {"beat_s": 0.2, "evict_after_s": 3.0}


def pair(
    supervisor: Supervisor, timing: dict[str, float], **options: Any
) -> tuple[Learner, Learner]:
    """A learner that stays and one that will end, in the middle of training together."""
    stayer = supervisor.start("stayer", timing=timing)
    leaver = supervisor.start("leaver", seed=1, peers=[stayer.address], timing=timing, **options)
    supervisor.until(lambda: stayer.seals_with("stayer", "leaver") >= 2, "two seals of both")
    return stayer, leaver


def gone(pid: int) -> bool:
    """Whether a process has ended, even if it has not been reaped yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def workers(learner: Learner) -> list[int]:
    pids: list[int] = learner.ask("children", "children")["pids"]
    assert len(pids) == 2
    assert not any(map(gone, pids))
    return pids


def goodbye_was_heard(stayer: Learner) -> None:
    assert stayer.await_event("left")["peer"] == "leaver"
    assert not stayer.events["evicted"]
    stayer.await_steps(20)


def loss_was_seen(stayer: Learner) -> None:
    assert stayer.await_event("evicted")["peer"] == "leaver"
    assert not stayer.events["left"]
    stayer.await_steps(20)


# ── signals ───────────────────────────────────────────────────────────────────────────────────────


def test_sigterm_ends_a_learner_and_its_data_loader(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, SOON, workers=2, pace_s=0.02)
    pids = workers(leaver)
    leaver.signal(signal.SIGTERM)
    assert leaver.await_end() == -signal.SIGTERM
    assert leaver.real_complaints == []
    supervisor.until(lambda: all(map(gone, pids)), "the data loader's workers to end")
    goodbye_was_heard(stayer)


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_says_goodbye_in_the_middle_of_anything(
    supervisor: Supervisor, moment: str
) -> None:
    """The training thread may hold the learner's mutex, or be closing the learner. The script goes
    on with no call that only the goodbye has ended."""
    stayer, leaver = pair(supervisor, DISTANT)
    leaver.order("signal_inside", moment=moment)
    match moment:
        case "closes":
            leaver.order("leave", how="close")
        case "finishes":
            leaver.order("finish")
        case "synchronizes":
            leaver.order("synchronize", timeout=600.0)
    assert leaver.await_end() == -signal.SIGTERM
    assert not leaver.events["finished"] + leaver.events["synchronized"]
    goodbye_was_heard(stayer)


def test_sigterm_says_goodbye_while_a_learner_waits_for_others(supervisor: Supervisor) -> None:
    (nobody,) = free_addresses(1)
    patient = {**DISTANT, "join_timeout_s": 600.0}
    leaver = supervisor.start("leaver", peers=[nobody], timing=patient)
    leaver.await_event("waiting")
    leaver.signal(signal.SIGTERM)
    assert leaver.await_end() == -signal.SIGTERM
    assert not leaver.events["alone"]


@pytest.mark.parametrize("call", ["finish", "synchronize"])
def test_sigterm_says_goodbye_in_the_calls_that_wait(supervisor: Supervisor, call: str) -> None:
    stayer, leaver = pair(supervisor, DISTANT)
    if call == "finish":
        leaver.ask("finish", "finishing")
    else:
        stayer.ask("pause", "paused")
        leaver.await_steps(20)  # of two offers, the other learner can be in the round of the first
        leaver.ask("pause", "paused")
        leaver.order("synchronize", timeout=600.0)
    leaver.signal(signal.SIGTERM)
    assert leaver.await_end() == -signal.SIGTERM
    assert stayer.await_event("left")["peer"] == "leaver"
    assert not leaver.events["finished"] + leaver.events["synchronized"]


def test_sigterm_says_goodbye_during_a_transfer(supervisor: Supervisor) -> None:
    """Every step is a round of 17 MB, and most of the time some of it is on its way."""
    large: dict[str, Any] = {"width": 2048, "sync_every": 1, "timing": DISTANT}
    stayer = supervisor.start("stayer", **large)
    leaver = supervisor.start("leaver", seed=1, peers=[stayer.address], **large)
    leaver.await_rounds(3)
    leaver.signal(signal.SIGTERM)
    assert leaver.await_end() == -signal.SIGTERM
    assert stayer.await_event("left")["peer"] == "leaver"


def test_the_users_handler_of_sigterm_is_called_and_nothing_else_happens(
    supervisor: Supervisor,
) -> None:
    """It even calls the handler before it, which was none before this library."""
    stayer, leaver = pair(supervisor, DISTANT)
    leaver.ask("handle", "handles")
    leaver.signal(signal.SIGTERM)
    leaver.await_event("terminated")
    leaver.await_steps(20)
    assert not stayer.events["left"]
    assert leaver.leave() == 0


def test_ctrl_c_ends_a_learner_and_its_data_loader(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, DISTANT, workers=2, pace_s=0.02)
    pids = workers(leaver)
    assert leaver.interrupt() == -signal.SIGINT
    supervisor.until(lambda: all(map(gone, pids)), "the data loader's workers to end")
    goodbye_was_heard(stayer)


def test_ctrl_c_ends_a_learner_in_synchronize(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, DISTANT)
    stayer.ask("pause", "paused")
    leaver.await_steps(20)
    leaver.ask("pause", "paused")
    leaver.order("synchronize", timeout=600.0)
    assert leaver.interrupt() == -signal.SIGINT
    assert leaver.complaints.splitlines()[-1] == "KeyboardInterrupt"
    assert leaver.complaints.count("Traceback") == 1
    assert not leaver.events["synchronized"]
    assert stayer.await_event("left")["peer"] == "leaver"


def test_a_dead_learners_data_loader_does_not_keep_its_port(supervisor: Supervisor) -> None:
    """Data loader workers inherit every socket: while they live, the dead learner's peers see its
    connections open."""
    (address,) = free_addresses(1)
    stayer, leaver = pair(supervisor, SOON, workers=2, pace_s=0.02, listen=address)
    workers(leaver)
    leaver.kill()
    again = supervisor.start("leaver", seed=2, listen=address, peers=[stayer.address], timing=SOON)
    again.await_event("took over")
    supervisor.until(lambda: again.seals_with("stayer", "leaver") >= 2, "two more seals of both")


# ── exceptions ────────────────────────────────────────────────────────────────────────────────────


def test_an_exception_in_the_training_loop_ends_the_process(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, DISTANT, workers=2, pace_s=0.02)
    pids = workers(leaver)
    leaver.order("fail")
    assert leaver.await_end() == 1
    assert leaver.complaints.count("Traceback") == 1
    assert leaver.complaints.splitlines()[-1] == "RuntimeError: a bug in the training loop"
    supervisor.until(lambda: all(map(gone, pids)), "the data loader's workers to end")
    goodbye_was_heard(stayer)


def test_the_training_loops_exception_leaves_a_with_block_unchanged(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, DISTANT, managed=True)
    leaver.order("fail")
    assert leaver.await_end() == 1
    assert leaver.complaints.count("Traceback") == 1
    assert leaver.complaints.splitlines()[-1] == "RuntimeError: a bug in the training loop"
    goodbye_was_heard(stayer)


# ── out of `on_event`, which runs on a background thread ──────────────────────────────────────────


def test_sys_exit_in_a_callback_is_raised_by_the_next_step(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, DISTANT)
    leaver.order("exit", how="sys.exit")
    assert leaver.await_end() == 1
    assert "SystemExit: 3" in leaver.complaints
    # The thread that failed may still write, after the last words of the training thread.
    assert "\nmend_optim.errors.MendError: a background thread of mend_optim failed" in (
        leaver.complaints
    )
    goodbye_was_heard(stayer)


def test_ctrl_c_from_a_callback_is_raised_in_the_training_loop(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, DISTANT)
    leaver.order("exit", how="Ctrl-C")
    assert leaver.await_end() == -signal.SIGINT
    assert leaver.complaints.splitlines()[-1] == "KeyboardInterrupt"
    goodbye_was_heard(stayer)


def test_os_exit_in_a_callback_ends_the_process_without_a_goodbye(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, SOON)
    leaver.order("exit", how="os._exit")
    assert leaver.await_end() == 3
    assert leaver.real_complaints == []
    loss_was_seen(stayer)


def test_a_callback_that_raises_in_every_round_ends_nothing(supervisor: Supervisor) -> None:
    stayer, leaver = pair(supervisor, DISTANT)
    leaver.order("exit", how="raise")
    goal = stayer.seals_with("stayer", "leaver") + 2
    supervisor.until(
        lambda: stayer.seals_with("stayer", "leaver") >= goal, "two more seals of both"
    )
    assert leaver.leave() == 0
    assert "a bug of the user's" in leaver.complaints
    goodbye_was_heard(stayer)


# ── finish() ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("run", endings.RUNS)
def test_learners_of_any_pace_finish_on_one_model(supervisor: Supervisor, run: str) -> None:
    """To the bit, with every token in the account. `python -m tests.system.endings` plays more."""
    assert endings.play(supervisor, endings.RUNS[run]) == []


def test_an_ending_that_is_not_equal_is_noticed() -> None:
    end = {"weights": "a", "digest": "d", "agreed": True, "tokens": {"l0": 1}}
    end |= {"unmerged_tokens": 0, "dropped_tokens": 0, "superseded_tokens": 0}
    assert endings.wrong([end, end], {"l0": 1}) == []
    assert endings.wrong([end, {**end, "weights": "b"}], {"l0": 1})
    assert endings.wrong([end, {**end, "dropped_tokens": 1}], {"l0": 1})
    assert endings.wrong([end], {"l0": 2})
