"""How much peers may cost a learner."""

from __future__ import annotations

from typing import Any

import pytest

from mend_optim import Limits, UsageError


@pytest.mark.parametrize("learners", [2, 256, 4096])
def test_a_run_has_from_two_to_4096_learners(learners: int) -> None:
    assert Limits(learners=learners).learners == learners


@pytest.mark.parametrize("learners", [1, 4097, 2.0, True, None, "9"])
def test_other_numbers_are_refused(learners: Any) -> None:
    with pytest.raises(UsageError, match=r"limits.learners must be an int from 2 to 4096, got"):
        Limits(learners=learners)
