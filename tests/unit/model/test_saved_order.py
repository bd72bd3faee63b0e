"""Names show whether a checkpoint has the parameters in the order of a layout."""

from __future__ import annotations

import pytest

from mend_optim.model.saved_order import keeps_order, told_names

NAMED, LISTED, POSITIONS = ["a", "z"], ["z", "a"], ["0", "1"]


@pytest.mark.parametrize(
    ("told", "own", "listed", "keeps"),
    [
        (POSITIONS, POSITIONS, POSITIONS, True),
        (POSITIONS, NAMED, NAMED, True),
        (POSITIONS, NAMED, LISTED, False),
        (POSITIONS, LISTED, LISTED, True),
        (NAMED, POSITIONS, POSITIONS, None),
        (NAMED, NAMED, LISTED, True),
    ],
)
def test_positions_are_those_of_the_list(
    told: list[str], own: list[str], listed: list[str], keeps: bool | None
) -> None:
    assert keeps_order(told, own, listed) is keeps


def test_only_wrapped_parameters_are_named() -> None:
    model = [["number of parameters", "1"], ["parameter w.0", "[3]"], ["added group 1", "b [2]"]]
    assert told_names({"model": model}) == ["w.0"]
