"""Numbers, times and names, as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

DAY_S = 86_400
#: So many names of learners fit into a cell of a table, one that has words beside them, too.
NAMED = 8
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_BITS = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s")
_COUNTS = ("", "k", "M", "G", "T", "P")


def shown(name: str) -> str:
    """A name that came from a file. One that would draw on the terminal is escaped."""
    return name if name.isprintable() else ascii(name)


def some_of(words: Sequence[str], most: int = NAMED) -> str:
    """All of the words, if they are no more than `most`; or else the first, and how many more."""
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} more"


def count_of(number: float) -> str:
    """1234567 as "1.23M", 0.361 as it is, and whole numbers below 10,000."""
    if abs(number) < 100 and number != int(number):
        return f"{number:.3g}"
    return f"{number:,.0f}" if abs(number) < 10_000 else _scaled(number, _COUNTS)


def bytes_of(number: float) -> str:
    """1234567 as "1.23 MB"."""
    return f"{number:.0f} B" if abs(number) < 1000 else _scaled(number, _BYTES, " ")


def bits_of(bytes_per_s: float) -> str:
    """A rate: 1234567 bytes per second as "9.88 Mbit/s"."""
    bits = 8 * bytes_per_s
    return f"{bits:.0f} bit/s" if bits < 1000 else _scaled(bits, _BITS, " ")


def _scaled(number: float, units: tuple[str, ...], space: str = "") -> str:
    step = 0
    while abs(number) >= 999.5 and step + 1 < len(units):
        number /= 1000
        step += 1
    return f"{number:.3g}{space}{units[step]}"


def seconds_of(seconds: float) -> str:
    """A duration: "340 ms", "12 s", "4 min 10 s" or "3 h 20 min". That between the clocks of two
    machines may be less than 0."""
    if seconds < 0:
        return f"-{seconds_of(-seconds)}"
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def moment_of(time: float) -> str:
    """A time of day with its date, in UTC."""
    return f"{_utc(time):%Y-%m-%d %H:%M:%S} UTC"


def clock_of(time: float, since: float | None = None) -> str:
    """A time of day, in UTC; with its date if the run began more than a day before or after."""
    is_near = since is None or abs(time - since) < DAY_S
    return f"{_utc(time):%H:%M:%S}" if is_near else f"{_utc(time):%m-%d %H:%M}"


def _utc(time: float) -> datetime:
    """Times that no calendar has are cut to those that it has."""
    return datetime.fromtimestamp(min(max(time, 0.0), 2.5e11), timezone.utc)


def table_of(head: tuple[str, ...], rows: list[tuple[str, ...]], left: int = 1) -> list[str]:
    """Lines of a table. The first `left` columns are set to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
