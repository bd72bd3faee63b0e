"""Forked children of ranks, and what is left of ranks that have ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ranks.pair import run_pair

#: Each rank forks a child for each of these calls. Then both go on.
SCRIPT = """
def show():
    with optimizer.global_weights():
        pass


def leave():
    with optimizer:
        raise SystemExit


def save():
    try:
        optimizer.state_dict()
    except ClosedError as error:
        assert "in the process that trains" in str(error)
    else:
        raise AssertionError("saved")


def child(call):
    try:
        call()
    except SystemExit:
        pass
    except BaseException as error:
        print(rank, call.__name__, repr(error), flush=True)
        os._exit(1)
    os._exit(0)


steps()
for call in (steps, show, save, leave, optimizer.close):
    if not (pid := os.fork()):
        child(call)
    if os.waitpid(pid, 0)[1]:
        print(rank, "a child failed", flush=True)
    steps()
assert optimizer.finish()
print(rank, "ended after", optimizer.status().step, flush=True)
gc.disable()
optimizer.close()
group = weakref.ref(optimizer._run._group)
del optimizer, call
print(rank, "has a group" if group() else "has let go", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
def test_a_forked_child_of_a_rank_disturbs_nothing(tmp_path: Path) -> None:
    """It once spoke as its parent, whose learner then ended on all ranks. Nothing is left of the
    ranks after the end."""
    for rank, lines in enumerate(run_pair(SCRIPT, tmp_path)):
        assert f"{rank} ended after 18" in lines, lines
        assert "a child failed" not in lines, lines
        # Not only once Python looks for circles: each group has threads and connections.
        assert f"{rank} has let go" in lines, lines
