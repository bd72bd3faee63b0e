"""One run of the bench "learning": its settings, its results, and the file that keeps both."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

QUARTERS = 4
ALONE, PARALLEL = "alone", "data parallel"
#: One model, trained on the batches of the first of several learners.
APART = "apart"

AUTO, FREE = "auto", "free"

#: H: the inner steps between two snapshots. Learners are in lockstep where it is a number. They run
#: freely, over links that delay offers, where it is "auto", so that the cluster chooses it, or a
#: number that ends with "free", as in "5free".
Period = int | str


def runs_freely(period: Period) -> bool:
    """Whether learners are not in lockstep."""
    return isinstance(period, str)


def sync_every(period: Period) -> int | str:
    """The argument of the learners."""
    return int(period.removesuffix(FREE)) if str(period).endswith(FREE) else period  # type: ignore[union-attr]


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """When M learners exchange what they learned: a snapshot every H steps, adopted `late` steps
    after it. Where learners run freely, `late` is how many steps an offer takes to arrive. While
    the first learner takes `slow` steps, each other one takes one. Its batch has `small` times as
    many samples as that of each other one. `skew` percent of a learner's samples are of a part of
    the data that is its own."""

    members: int
    period: Period
    late: int
    slow: int = 1
    small: int = 1
    skew: int = 0

    def batch_of(self, member: int, batch: int) -> int:
        """The samples of a learner's batch where that of the first one has so many."""
        return batch if member == 0 else max(1, batch // self.small)

    @property
    def differences(self) -> str:
        """The end of a line about the cell: how the learners differ, if they do."""
        return "".join(
            (
                f", the others {self.slow} times slower" if self.slow > 1 else "",
                f", the others' batches {self.small} times smaller" if self.small > 1 else "",
                f", {self.skew} % of the samples from parts of their own" if self.skew else "",
            )
        )

    def steps_of(self, member: int, steps: int) -> int:
        """The steps of a learner in the time in which the first one takes so many."""
        return steps if member == 0 else max(1, steps // self.slow)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The settings of a run. Two runs with equal settings end with equal weights, unless the
    learners run freely.

    The baselines exchange no snapshots: their period and `late` are 0. `batch` is the first
    learner's."""

    task: str
    arm: str
    members: int
    period: Period
    late: int
    steps: int
    batch: int
    rate: float
    seed: int
    slow: int = 1
    small: int = 1
    skew: int = 0

    @property
    def cell(self) -> Cell:
        return Cell(
            members=self.members,
            period=self.period,
            late=self.late,
            slow=self.slow,
            small=self.small,
            skew=self.skew,
        )

    def __str__(self) -> str:
        place = f"M {self.members}, H {self.period}, τ {self.late}, {self.steps} steps"
        place += self.cell.differences
        rest = f"batch {self.batch}, rate {self.rate:g}, seed {self.seed}"
        return f"{self.task}, {self.arm}, {place}, {rest}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a run. Losses are in nats; one that is not finite is kept as infinity.

    Attributes:
        held_out: the held-out loss after each quarter of the run: of the anchor or, without one, of
            the model. The last is that of the weights with which all learners end.
        own: the same of the first learner's own weights; the last is before `synchronize()`.
        training: the training loss, averaged over the learners and over equal parts of the run.
        digest: of the weights at the end.
        seconds: that the run took.
        chosen: the H that the cluster chose, at the end; 0 if H was fixed.
        outsized: offers that rounds refused because of their size.
    """

    held_out: tuple[float, ...]
    own: tuple[float, ...]
    training: tuple[float, ...]
    digest: str
    seconds: float
    chosen: int = 0
    outsized: int = 0

    @property
    def in_hand(self) -> tuple[float, ...]:
        """The held-out loss of the model that a user has after each quarter: the learner's own
        weights and, at the end, those that all learners share. An anchor lacks the steps that no
        round has merged yet: early in a run a few of them are worth more than averaging gains."""
        return (*self.own[:-1], self.held_out[-1])


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run and its outcome: a line of the file."""

    run: Run
    outcome: Outcome


def line(record: Record) -> str:
    outcome = {name: _plain(value) for name, value in asdict(record.outcome).items()}
    return json.dumps({**asdict(record.run), **outcome})


def _plain(value: Any) -> Any:
    """JSON knows no infinity: null stands for it."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def record(text: str) -> Record:
    """The record of a line."""
    told = json.loads(text)
    # Older files don't know all fields.
    run = Run(**{field.name: told[field.name] for field in fields(Run) if field.name in told})
    losses = {name: _losses(told[name]) for name in ("held_out", "own", "training")}
    later = {name: told.get(name, 0) for name in ("chosen", "outsized")}
    outcome = Outcome(**losses, digest=told["digest"], seconds=told["seconds"], **later)
    return Record(run=run, outcome=outcome)


def _losses(told: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.inf if loss is None else loss for loss in told)


def read(path: Path | None) -> list[Record]:
    """The records of a file; none if there is no such file. A line that a killed process left half
    written is passed over."""
    if path is None or not path.exists():
        return []
    return list(_records(path.read_text(encoding="utf-8").splitlines()))


def _records(lines: Iterable[str]) -> Iterator[Record]:
    for text in lines:
        with suppress(json.JSONDecodeError):
            yield record(text)


def append(path: Path, new: Record) -> None:
    """Add a line, also after one that was left half written."""
    with path.open("ab+") as file:
        torn = file.tell() > 0 and _last_byte(file) != b"\n"
        file.write((b"\n" if torn else b"") + line(new).encode() + b"\n")


def _last_byte(file: BinaryIO) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)
