"""The table that rich draws."""

from __future__ import annotations

import pytest
from rich.console import Console

from mend_optim.cli.watch.crowd import Crowd
from mend_optim.cli.watch.live import picture
from tests.unit.cli.test_crowd import A, seen, sight


def test_the_table_has_learners_rounds_and_a_sparkline() -> None:
    crowd = Crowd(A)
    crowd.take({A: sight("a", seen("b"), reported=(("[red]loss", 0.25),))})
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(crowd, console))
    told = captured.get()
    assert "[red]loss 0.25" in told  # a name is no markup
    assert "merging" in told
    assert "█" in told
    assert "all_present" in told


@pytest.mark.parametrize(
    ("width", "shown", "spared"),
    [
        (120, ["position", "codec", "received", "reported"], []),
        (80, ["position", "tokens/s", "reported"], ["codec", "received"]),
        (60, ["position", "reported"], ["codec", "received", "rounds"]),
        (20, ["state"], ["position", "reported", "tokens/s", "speed"]),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_cuts_none(
    width: int, shown: list[str], spared: list[str]
) -> None:
    crowd = Crowd(A)
    crowd.take({A: sight("a", seen("b"), reported=(("loss", 0.25),))})
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(crowd, console))
    told = captured.get()
    assert "…" not in told
    head, line, *_ = told.splitlines()
    assert set(shown) <= set(head.split())
    assert not set(spared) & set(head.split())
    assert line.startswith("a ")
    assert "merging" in line
    assert ("loss 0.25" in line) is ("reported" in shown)
