"""The end of the training thread's wait for an anchor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mend_optim.runtime.learner import Learner


@pytest.mark.parametrize("wanted", [[], [1]])
@pytest.mark.parametrize("must_wait", [True, False])
@pytest.mark.parametrize("held_back", [(), (0,), (1,), (0, 1)])
def test_a_correction_that_waits_for_its_step_ends_no_wait(
    held_back: tuple[int, ...], must_wait: bool, wanted: list[int]
) -> None:
    """Else `step()` would ask for it again and again, and never give up the one that is due. A copy
    that is wanted now ends it."""
    boundaries = SimpleNamespace(
        holds_back=held_back.__contains__,
        must_wait=lambda: must_wait,
        fragments_to_copy=lambda: wanted,
    )
    learner: Any = SimpleNamespace(
        worker=SimpleNamespace(mailbox={0: "correction", 1: "correction"}),
        engine=SimpleNamespace(boundaries=boundaries),
        wait=lambda holds, timeout_s: holds(),
    )
    ends = Learner.wait_for_correction(learner, 0.0)
    assert ends == (len(held_back) < 2 or not must_wait or bool(wanted))
