"""The table that rich draws."""

from __future__ import annotations

from rich.console import Console

from mend_optim.cli.watch.crowd import Crowd
from mend_optim.cli.watch.live import picture
from tests.unit.cli.test_crowd import A, seen, sight


def test_the_table_has_learners_rounds_and_a_sparkline() -> None:
    crowd = Crowd(A)
    crowd.take({A: sight("a", seen("b"), reported=(("[red]loss", 0.25),))})
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(crowd))
    told = captured.get()
    assert "[red]loss 0.25" in told  # a name is no markup
    assert "merging" in told
    assert "█" in told
    assert "all_present" in told
