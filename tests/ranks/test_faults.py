"""A fault of one rank is told by the others, none of them hangs, the launcher starts them again,
and no work is merged twice."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.ranks.company import Company, Facts, Nursery
from tests.ranks.faults import STEP_TRANSFERS, STEPS, Fault
from tests.ranks.parallel import TOKENS
from tests.ranks.scenarios import ROUNDS
from tests.support.depth import DEEP

LOST = "MendError: another rank of this learner ended, failed or did not answer"
#: The groups of learners whose rank is frozen give up after so long.
FROZEN_S = 4.0
#: A rank that has looked up so often for a frozen one, without a word in between, waits for it.
LOOKS = 10
#: Faults by name, and the errors that the other ranks raise.
FAULTS = {
    Fault("kill", 0, "join"): LOST,
    Fault("kill", 1, "join", "apart"): LOST,
    Fault("kill", 0, "step", "apart"): LOST,
    Fault("kill", 1, "step"): LOST,
    Fault("kill", 0, "between"): LOST,
    Fault("kill", 1, "between", "apart"): LOST,
    Fault("kill", 1, "group"): LOST,
    Fault("kill", 0, "board"): LOST,
    Fault("kill", 0, "entry"): LOST,
    Fault("kill all", 1, "step"): "",
    Fault("freeze", 1, "step"): LOST,
    Fault("freeze", 0, "step"): LOST,
    Fault("freeze", 0, "join"): LOST,
    Fault("raise", 0, "between", "apart"): LOST,
    Fault("raise within", 1, "between"): (
        "MendError: rank 1 of this learner failed, and its own error tells why"
    ),
    # The first step did not count: its gradients were those of weights that b's have replaced.
    Fault("skip", 1): (
        rf"UsageError: all ranks .*rank 0 is in step {STEPS}, "
        rf"rank 1 is in finish\(\) after step {STEPS - 1};"
    ),
    Fault("absent", 1): r"UsageError: group must be ranks .*got none on rank 1 within 1 s",
}
#: How the process ends to which it happens, where it does not end by itself.
ENDS = {
    "kill": -signal.SIGKILL,
    "kill all": -signal.SIGKILL,
    "raise": 1,
    "raise within": 1,
}
# Each by itself or, with DEEP=1, also one after another.
SERIES = [*([fault] for fault in FAULTS), *([list(FAULTS)] if DEEP else [])]


def named(series: list[Fault]) -> str:
    return "all" if len(series) > 1 else " ".join(map(str, series[0])).strip()


def suffer(company: Company, fault: Fault) -> int:
    """Let a learner of two ranks suffer the fault. Returns its tokens until then, at most."""
    victim, other = f"a{fault.rank}", f"a{1 - fault.rank}"
    timeout_s = FROZEN_S if fault.deed == "freeze" else 60.0
    company.start("a", "endure", 2, timeout_s=timeout_s, fault=fault)
    struck = company.await_event(victim, "struck")
    if fault.deed == "kill all":
        # The victim has stopped. The other one would notice its death, and might end first.
        company.signal(other, signal.SIGKILL)
        company.signal(victim, signal.SIGKILL)
    raised = raised_by(company, fault, victim, other)
    for said in raised:
        assert re.match(FAULTS[fault], f"{said['kind']}: {said['text']}"), said
    if fault.place in ("join", "step"):
        assert struck["call"] == fault.place.upper()
        assert struck["transfers"] == (STEP_TRANSFERS if fault.place == "step" else 1)
    if fault.place not in ("", "group", "board"):
        assert struck["has_board"] == (not fault.hosts and sys.platform == "linux")
    assert company.status_of(victim) == ENDS.get(fault.deed, 0), company._described()
    assert company.status_of(other) == (ENDS["kill"] if fault.deed == "kill all" else 0)
    return (max(said["steps"] for said in [struck, *raised]) + 1) * TOKENS


def raised_by(company: Company, fault: Fault, victim: str, other: str) -> list[Facts]:
    """The errors that the ranks have raised."""
    if fault.deed == "kill all":
        return []
    raised = [company.await_event(other, "raised")]
    if fault.deed == "freeze":
        assert not company.events[victim]["raised"]
        company.signal(victim, signal.SIGCONT)
    if fault.deed in ("freeze", "skip"):
        raised.append(company.await_event(victim, "raised"))
    return raised


@pytest.mark.parametrize("series", SERIES, ids=named)
def test_ranks_that_lose_one_start_again(
    nursery: Nursery, tmp_path: Path, series: list[Fault]
) -> None:
    company = Company(nursery, tmp_path)
    b = company.start("b", "beside")
    company.await_event("b0", "open")
    lost = sum(suffer(company, fault) for fault in series)
    a = company.start("a", "come back", 2)
    assert company.await_event("a0", "merged")["rounds"] >= ROUNDS
    (tmp_path / "enough").touch()
    first, second, other = company.left([*a, *b])
    agreed, digest, tokens = first["finish"]
    assert agreed
    assert digest == second["finish"][1] == other["finish"][1]
    for name, value in other["ended"].items():
        assert torch.equal(first["ended"][name], value)
        assert torch.equal(second["ended"][name], value)
    assert first["name"] == second["name"] == "a"
    assert tokens["b"] == other["trained"]
    assert first["trained"] <= tokens["a"] <= lost + first["trained"]


@pytest.mark.parametrize("adopt_after", [5, None])
def test_an_error_in_a_thread_of_the_lead_is_raised_on_all_ranks(
    nursery: Nursery, tmp_path: Path, adopt_after: int | None
) -> None:
    """Although nothing else is due at that step, and there is nobody to hear from any more."""
    company = Company(nursery, tmp_path)
    ranks = company.start("a", "break down", 2, adopt_after=adopt_after)
    lead, other = (company.await_event(who, "raised") for who in ranks)
    for said in (lead, other):
        assert said["kind"] == "MendError"
        assert said["text"].startswith("a background thread of mend_optim failed")
    assert STEPS < lead["steps"] <= STEPS + 3
    company.await_end(ranks)


@pytest.mark.parametrize("hosts", ["", "apart"])
def test_ctrl_c_ends_the_wait_for_another_rank(
    nursery: Nursery, tmp_path: Path, hosts: str
) -> None:
    company = Company(nursery, tmp_path)
    b = company.start("b", "beside")
    company.await_event("b0", "open")
    company.start("a", "endure", 2, fault=Fault("interrupt", 1, "between", hosts))
    company.await_event("a1", "struck")
    company.signal("a0", signal.SIGSTOP)
    said = company.events["a1"]
    enough = len(said["waits"]) + LOOKS
    company.until(lambda: len(said["waits"]) >= enough or said["ended"], "waits of a1")
    company.signal("a1", signal.SIGINT)
    assert company.await_event("a1", "raised")["kind"] == "KeyboardInterrupt"
    company.signal("a0", signal.SIGCONT)
    told = company.await_event("a0", "raised")
    texts = ["rank 1 of this learner failed"]
    if hosts:  # its last word may be lost with it
        texts.append("another rank of this learner ended")
    assert told["kind"] == "MendError"
    assert told["text"].startswith(tuple(texts))
    assert [company.status_of(who) for who in ("a0", "a1")] == [0, 0]
    (tmp_path / "enough").touch()
    company.await_end(b)
