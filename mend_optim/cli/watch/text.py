"""The output of `mend status` and `mend top`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from mend_optim.cli.watch.crowd import Crowd, Row
from mend_optim.cli.wording import bytes_of, count_of, shown, some_of, table_of
from mend_optim.protocol.sight import ROUNDS_SHOWN

HEAD = (
    *("learner", "state", "zone", "position", "tokens", "tokens/s", "rounds", "H", "lag", "codec"),
    *("sent", "received", "reported"),
)
#: Columns that are set to the left.
LEFT = ("learner", "state", "zone")
ROUND_HEAD = ("version", "reason", "sealer", "members", "absent")
_BARS = "▁▂▃▄▅▆▇█"


def cells_of(row: Row) -> tuple[str, ...]:
    """One learner's line of the table."""
    first = (shown(row.name), row.state, shown(row.zone))
    sight = row.sight
    if sight is None:
        known = (count_of(row.step), count_of(row.tokens)) if row.step else ("", "")
        return (*first, *known, *([""] * (len(HEAD) - len(first) - len(known))))
    reported = ", ".join(f"{shown(word)} {value:.4g}" for word, value in sight.reported)
    return (
        *first,
        f"{sight.position:,}",
        count_of(sight.tokens),
        count_of(round(sight.tokens_per_s)),
        f"{sight.rounds:,}",
        f"{sight.sync_every:,}",
        f"{sight.latency:,}",
        shown(sight.codec),
        bytes_of(sight.bytes_sent),
        bytes_of(sight.bytes_received),
        reported,
    )


def learner_table(
    crowd: Crowd, without: Collection[str] = ()
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head of the learners' table, and a line for each of them.

    Args:
        crowd: The learners.
        without: Columns to leave out. That of zones is left out, too, if no learner is in one.
    """
    rows = crowd.rows()
    spared = {*without, *(() if any(row.zone for row in rows) else ("zone",))}
    kept = [place for place, word in enumerate(HEAD) if word not in spared]
    lines = [cells_of(row) for row in rows]
    return tuple(HEAD[at] for at in kept), [tuple(line[at] for at in kept) for line in lines]


def round_cells(crowd: Crowd) -> list[tuple[str, ...]]:
    """The last rounds, as lines of a table."""
    return [
        (
            f"{each.version:,}",
            shown(each.reason),
            shown(each.sealer),
            some_of([*map(shown, each.members)]),
            some_of([*map(shown, each.absent)]),
        )
        for each in crowd.rounds()[-ROUNDS_SHOWN:]
    ]


def lines_of(crowd: Crowd) -> list[str]:
    """The whole picture, in plain lines."""
    head, cells = learner_table(crowd)
    lines = table_of(head, cells, sum(word in LEFT for word in head))
    rounds = round_cells(crowd)
    return [*lines, "", *table_of(ROUND_HEAD, rounds, len(ROUND_HEAD))] if rounds else lines


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, from 0 to the greatest."""
    finite = [value if math.isfinite(value) else 0.0 for value in values]
    most = max(finite, default=0.0)
    if most <= 0:
        return _BARS[0] * len(finite)
    top = len(_BARS) - 1
    return "".join(_BARS[round(top * max(0.0, value) / most)] for value in finite)
