"""A twin of `worker.moment_means.MomentMeans` in set algebra: each reading of a moment is a unit of
its own, and a mean is the set of the readings in it. So a test sees whether exactly those learners
are corrected whose readings are in the mean, and whether any reading counts twice there."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mend_optim.protocol.messages import MOMENT_PREFIX, Offer

Unit = tuple[str, int]
Mean = dict[Any, int]

_numbers = itertools.count()


class Moments:
    """The moments of one fragment of a learner."""

    def __init__(self, section: type[Mean]) -> None:
        self.section = section
        #: The readings in the pending offer, by the names of their sections.
        self.own: dict[str, Unit] = {}
        #: The last mean of each moment, by the names of their sections.
        self.latest: dict[str, Mean] = {}
        #: How often readings of this learner were corrected by a mean with so many readings.
        self.corrected: list[int] = []

    def offer(self, names: Iterable[str]) -> dict[str, Mean]:
        self.own = {MOMENT_PREFIX + name: (name, next(_numbers)) for name in names}
        return {key: self.section({unit: 1}) for key, unit in self.own.items()}

    def mean(self, offers: Iterable[Offer], names: Collection[str] = ()) -> dict[str, Mean]:
        """The means of these moments, or of all, over the members that sent them."""
        found: dict[str, Mean] = {}
        for offer in offers:
            for key, readings in offer.sections.items():
                if key.startswith(MOMENT_PREFIX) and (
                    not names or key.removeprefix(MOMENT_PREFIX) in names
                ):
                    mean = found.setdefault(key, self.section())
                    for unit, count in readings.items():  # type: ignore[attr-defined]
                        mean[unit] = mean.get(unit, 0) + count
        return found

    def take(self, sections: Mapping[str, Any], mine: bool) -> None:
        """A seal or an anchor brings means. `mine`: whether it has merged this learner's offer, so
        that these means correct what was sent with it."""
        means = {key: mean for key, mean in sections.items() if key.startswith(MOMENT_PREFIX)}
        for mean in means.values():
            assert set(mean.values()) <= {1}, "a reading counts twice in a mean"
        for key in self.own.keys() & means.keys():
            assert (self.own[key] in means[key]) == mine, "corrected by a mean without its reading"
            self.corrected += [len(means[key])] * mine
        self.latest.update(means)
        if mine:
            self.own = {}

    def drop(self) -> None:
        self.own = {}
