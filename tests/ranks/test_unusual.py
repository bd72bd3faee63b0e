"""Ranks whose scripts have set torch's defaults, or do not all train the same."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks.company import Company, Nursery
from tests.ranks.test_merging import distance
from tests.ranks.unusual import STEPS


def played(nursery: Nursery, folder: Path, play: str, **told: Any) -> list[dict[str, Any]]:
    """How the two ranks of a learner, and another learner beside it, have ended."""
    folder.mkdir(exist_ok=True)
    company = Company(nursery, folder)
    whole = {"way": "whole"} if "way" in told else {}
    ranks = [company.start("a", play, 2, **told), company.start("b", play, **told | whole)]
    return [each for names in ranks for each in company.left(names)]


@pytest.mark.parametrize(
    ("mode", "way", "dtype"),
    [
        *product(["inference", "a device"], ["copied", "sharded"], ["float32", "bfloat16"]),
        *product(["narrow", "wide"], ["copied", "sharded"], ["float32"]),
        ("inference", "tensorwise", "float32"),  # copies of what torch divides
    ],
)
def test_a_mode_of_the_script_changes_nothing(
    nursery: Nursery, tmp_path: Path, mode: str, way: str, dtype: str
) -> None:
    plain = played(nursery, tmp_path / "plain", "live in mode", way=way, mode="", dtype=dtype)
    first, second, b = played(nursery, tmp_path, "live in mode", way=way, mode=mode, dtype=dtype)
    for here, there in zip((first, second, b), plain, strict=True):
        assert distance(here["trained"], there["trained"]) == 0.0
        assert here["dtypes"] == there["dtypes"]
    assert first["ended"] == second["ended"] == b["ended"]
    assert all(each["shown"] == each["ended"] for each in (first, second, b))
    assert first["digest"] == second["digest"] == b["digest"]


@pytest.mark.parametrize("idles", ["rate", "frozen", "empty"])
def test_a_stage_that_is_not_trained_takes_the_steps_of_the_others(
    nursery: Nursery, tmp_path: Path, idles: str
) -> None:
    """Its optimizer may have no state when those of the others have one."""
    for each in played(nursery, tmp_path, "idle stage", idles=idles):
        assert (each["step"], each["agreed"], each["again"]) == (3 * STEPS, True, True)


def test_a_frozen_parameter_that_could_never_be_merged_is_told_on_any_rank(
    nursery: Nursery, tmp_path: Path
) -> None:
    company = Company(nursery, tmp_path)
    first, second = (each["raised"] for each in company.left(company.start("a", "mask", 2)))
    assert second.startswith("UsageError: parameter mask must be finite to be merged")
    assert first.startswith("rank 1 of this learner failed")


def test_a_step_by_the_callback_of_events_parts_no_ranks(nursery: Nursery, tmp_path: Path) -> None:
    """The ranks have not taken a step yet, so they ask one another what the first one is for."""
    first, second, b = played(nursery, tmp_path, "called back")
    assert {each["step"] for each in (first, second, b)} == {STEPS}
    assert "on_event" in first["raised"]
    assert not second["raised"]


@pytest.mark.parametrize("kind", ["part", "wrapper"])
def test_a_name_that_a_wrapper_might_have_given_changes_no_order(
    nursery: Nursery, tmp_path: Path, kind: str
) -> None:
    ended = [each["ended"] for each in played(nursery, tmp_path, "wrap", kind=kind)]
    for name, value in ended[0].items():
        assert all(torch.equal(each[name], value) for each in ended[1:])


def test_an_evaluation_sees_the_weights_that_are_there_and_changes_no_training(
    nursery: Nursery, tmp_path: Path
) -> None:
    (tmp_path / "twins").mkdir()
    twins = Company(nursery, tmp_path / "twins")
    plain = [twins.left(names)[0] for names in [twins.start(name, "evaluate") for name in "ab"]]
    first, second, b = played(nursery, tmp_path, "evaluate")
    for each, twin in zip((first, second, b), (plain[0], *plain), strict=True):
        assert each["seen"] == pytest.approx(twin["seen"], abs=1e-5)
        assert distance(each["trained"], twin["trained"]) < 1e-5
    own, common, again = plain[0]["seen"][-4:-1]
    assert own == again != pytest.approx(common, abs=1e-3)
    assert first["digest"] == b["digest"]


def test_a_rank_that_stays_meets_one_that_is_new_in_a_new_world(
    nursery: Nursery, tmp_path: Path
) -> None:
    """It has made a learner before, and the new one has not."""
    company = Company(nursery, tmp_path)
    taken = [each["taken"] for each in company.left(company.start("a", "replace a rank", 3))]
    assert taken == [[STEPS, STEPS], [STEPS], [STEPS]]
