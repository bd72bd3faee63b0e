"""The timeouts of a learner. All others derive from these."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.errors import is_number, require, take_plain_numbers

#: The longest timeout in seconds; every timer can take it.
LONGEST_S = 10**6


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The only timeouts, in seconds. All others derive from them.

    Args:
        beat_s: Between two beats; > 0. After three missed beats, a peer is suspected to be gone.
        join_timeout_s: To find peers before the learner starts alone; >= 0.
        round_timeout_s: The longest that `step()` waits for a round under `adopt_after`, and that a
            transfer may stand still; > 0. A learner with a shorter one than its peers' gives up
            before they can say that they have no anchor for it.
        evict_after_s: Of silence until the roster forgets a peer; more than three beats.

    Raises:
        UsageError: A timeout is out of its bounds; or it is longer than 10^6 s, and not
            `join_timeout_s`.

    Example:
        >>> Timing(beat_s=2, evict_after_s=60).suspect_after_s
        6
    """

    beat_s: float = 1.0
    join_timeout_s: float = 30.0
    round_timeout_s: float = 60.0
    evict_after_s: float = 30.0

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        for name in ("beat_s", "round_timeout_s", "evict_after_s"):
            value = getattr(self, name)
            require(
                is_number(value) and value > 0, f"timing.{name}", value, "a number of seconds > 0"
            )
            require(value <= LONGEST_S, f"timing.{name}", value, f"at most {LONGEST_S} seconds")
        patience = self.join_timeout_s
        require(
            is_number(patience) and patience >= 0,
            "timing.join_timeout_s",
            patience,
            "a number of seconds >= 0",
        )
        require(
            self.evict_after_s > self.suspect_after_s,
            "timing.evict_after_s",
            self.evict_after_s,
            f"more than three beats ({self.suspect_after_s} s)",
            "a peer is suspected before it is evicted",
        )

    @property
    def suspect_after_s(self) -> float:
        """Seconds of silence after which a peer is suspected to be gone."""
        return 3 * self.beat_s
