"""The table of `mend top`, drawn with rich, which is an extra."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mend_optim.cli.watch.crowd import Crowd
from mend_optim.cli.watch.text import HEAD, LEFT, ROUND_HEAD, cells_of, round_cells, sparkline

#: By state, its colour. Others have none.
_STYLES = {"merging": "green", "suspected": "yellow", "gone": "red", "no answer": "red"}


def picture(crowd: Crowd) -> Group:
    """The learners with sparklines of their speed, and the last rounds."""
    learners = Table(box=None, pad_edge=False)
    for place, word in enumerate(HEAD):
        learners.add_column(word, justify="left" if place < LEFT else "right")
    learners.add_column("speed", no_wrap=True)
    for row in crowd.rows():
        # Names come from others: `Text` takes no markup from them.
        cells = [Text(cell) for cell in cells_of(row)]
        cells[1].stylize(_STYLES.get(row.state, ""))
        learners.add_row(*cells, sparkline(row.past))
    rounds = Table(box=None, pad_edge=False)
    for word in ROUND_HEAD:
        rounds.add_column(word)
    for line in round_cells(crowd):
        rounds.add_row(*map(Text, line))
    return Group(learners, Text(""), rounds)
