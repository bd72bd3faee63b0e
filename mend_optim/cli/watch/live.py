"""The table of `mend top`, drawn with rich, which is an extra."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mend_optim.cli.watch.crowd import Crowd
from mend_optim.cli.watch.text import LEFT, ROUND_HEAD, learner_table, round_cells, sparkline

#: By state, its colour. Others have none.
_STYLES = {"merging": "green", "suspected": "yellow", "gone": "red", "no answer": "red"}
#: The columns that a narrow terminal does not show, the first of them first.
_SPARED = (
    *("codec", "received", "sent", "lag", "H", "rounds", "zone", "tokens"),
    *("speed", "position", "reported", "tokens/s"),
)
#: The same of the rounds, whose lists of names may take several lines.
_SPARED_OF_ROUNDS = ("reason", "version", "sealer")
#: More columns of a terminal than any table takes.
_UNBOUNDED = 100_000


def picture(crowd: Crowd, console: Console) -> Group:
    """The learners with sparklines of their speed, and the last rounds. Where the terminal is too
    narrow for all columns, it has those that say the most, in full."""
    learners = _learners(crowd, ())
    for count in range(1, len(_SPARED) + 1):
        if _measured(learners, console).maximum <= console.width:
            break
        learners = _learners(crowd, _SPARED[:count])
    rounds = _rounds(crowd, ())
    for count in range(1, len(_SPARED_OF_ROUNDS) + 1):
        if _measured(rounds, console).minimum <= console.width:
            break
        rounds = _rounds(crowd, _SPARED_OF_ROUNDS[:count])
    return Group(learners, Text(""), rounds)


def _learners(crowd: Crowd, without: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    head, lines = learner_table(crowd, without)
    for word in head:
        table.add_column(word, justify="left" if word in LEFT else "right")
    has_speed = "speed" not in without
    if has_speed:
        table.add_column("speed", no_wrap=True)
    for row, line in zip(crowd.rows(), lines, strict=True):
        # Names come from others: `Text` takes no markup from them.
        cells = [Text(cell) for cell in line]
        cells[head.index("state")].stylize(_STYLES.get(row.state, ""))
        table.add_row(*cells, *([sparkline(row.past)] if has_speed else []))
    return table


def _rounds(crowd: Crowd, without: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    kept = [place for place, word in enumerate(ROUND_HEAD) if word not in without]
    for place in kept:
        table.add_column(ROUND_HEAD[place])
    for line in round_cells(crowd):
        table.add_row(*(Text(line[place]) for place in kept))
    return table


def _measured(table: Table, console: Console) -> Measurement:
    """How wide it is at the least, with each word on a line of its own, and at the most."""
    return Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table)
