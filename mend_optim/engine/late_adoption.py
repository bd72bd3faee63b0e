"""How much of a late correction a learner adopts, and how much of its work it offers after missed
rounds."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.engine.absence import LEAST_SHARE, Absence
from mend_optim.errors import is_number, require, take_plain_numbers

#: The gain of a correction that is at most so many inner steps late; beyond, `LATE_GAIN`.
GAINS = ((1, 1.0), (3, 0.5))
LATE_GAIN = 0.3


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """How strongly a learner that has trained on is drawn to the mean of its round.

    An anchor comes τ inner steps after the snapshot it merged. By then the learner has walked most
    of the steep directions itself, so the whole correction overshoots. The learner therefore moves

        θ ← θ + U + D − R,    U = Θ_new − Θ_old,    D = Δ + R_old,    R = (1 − α) (D + U/f)

    by the anchor's own step U in full, but only by the gain α towards the mean of the members.
    Times the headway of the round, that is −U/f for plain averaging. The rest R is the learner's
    *disagreement*. It stays in the weights and is in no offer, so anchors don't depend on anybody's
    gain. Later rounds shrink it, and at rest (`synchronize()`) it is given up, so that all learners
    end with the same weights.

    With the gain 1, the whole correction was worse than training alone at τ near `sync_every`
    (docs/learning.md).

    A learner that has missed rounds offers the share s of its delta, because its work was done
    beside that of the others, and not after it. With the whole delta, four learners that took turns
    were worse than training alone (docs/learning.md):

        s = (c + t) / (c + (n + 1) t)

    n is the number of rounds missed, t the tokens that others brought to one of them, on average,
    and c its own. All c tokens count as merged. The learner gives the rest up with the merge.

    Args:
        gain: α, in (0, 1]. None: 1 up to τ = 1, 0.5 up to τ = 3, 0.3 beyond.
        share: s after any missed round, in [1e-6, 1]. None: by the formula. With
            `weighting="uniform"`, and in merges that ignore weights, s is 1.

    Raises:
        UsageError: the gain or the share is out of bounds.

    Example:
        >>> [Adoption().gain_at(late) for late in (0, 1, 2, 3, 4, 100)]
        [1.0, 1.0, 0.5, 0.5, 0.3, 0.3]
    """

    gain: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        for name, least in (("gain", 0), ("share", LEAST_SHARE)):
            value = getattr(self, name)
            known = value is None or (is_number(value) and 0 < value <= 1 and value >= least)
            bound = f"[{least}" if least else "(0"
            require(known, f"adoption.{name}", value, f"None or a number in {bound}, 1]")

    def gain_at(self, late: int) -> float:
        """α for an anchor that is adopted `late` inner steps after its snapshot."""
        if self.gain is not None:
            return float(self.gain)
        return next((gain for most, gain in GAINS if late <= most), LATE_GAIN)

    def share_of(self, absence: Absence, tokens: int) -> float:
        """s of an offer with so many tokens whose learner missed these rounds."""
        if self.share is not None and absence.rounds:
            return float(self.share)
        return absence.share(tokens)
