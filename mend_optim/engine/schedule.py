"""When a fragment is offered, and at which step its new anchor is adopted.

Every fragment has a `cycle_start`, the inner step at which its current cycle began. It is due once
`step - cycle_start >= sync_every`. When its offer is merged, the next cycle begins at the step of
the merged snapshot, so the period is exactly H whatever the overlap. When a seal leaves the learner
out, the next cycle begins at the step of the adoption. In lockstep it does not: the learner keeps
its boundary, and so does one that has offered before it (`turns.py`). The first cycles are
staggered by H/P, which spreads the fragments' traffic evenly over the period (Streaming DiLoCo,
arXiv 2501.18512)."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.errors import require


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """H inner steps a period (`sync_every`), P fragments, and the overlap τ (`adopt_after`, in
    inner steps). With P > H, several fragments are due at one step.

    `adopt_after=None` adopts as soon as an anchor is ready; a number makes rounds lockstep: every
    learner offers at its own boundaries only and adopts exactly that many inner steps after its
    snapshot. Raises `UsageError`.
    """

    sync_every: int = 128
    fragments: int = 1
    adopt_after: int | None = None

    def __post_init__(self) -> None:
        for name in ("sync_every", "fragments"):
            value = getattr(self, name)
            require(type(value) is int and value >= 1, name, value, "an int >= 1")
        if self.adopt_after is not None:
            require(
                type(self.adopt_after) is int and 0 <= self.adopt_after <= self.sync_every,
                "adopt_after",
                self.adopt_after,
                f"None or an int in [0, sync_every={self.sync_every}]",
                "an anchor must be adopted before the next boundary",
            )

    @property
    def lockstep(self) -> bool:
        """Whether learners offer at their own boundaries only. Such a run can be repeated bit for
        bit."""
        return self.adopt_after is not None

    def first_cycle_start(self, fragment: int, step: int = 0) -> int:
        """The cycle start that makes fragment p of P due at `step + ⌊H (p+1) / P⌋`; with P > H, at
        `step + ⌈H (p+1) / P⌉`, so that none is due at once. The turns are staggered, and the last
        fragment is due after a full period, as are buffers and groups that were added."""
        turn = min(fragment + 1, self.fragments)
        rounds_up = self.fragments > self.sync_every
        due_in = (self.sync_every * turn + rounds_up * (self.fragments - 1)) // self.fragments
        return step + due_in - self.sync_every

    def due(self, step: int, cycle_start: int) -> bool:
        """Whether H inner steps have passed since the cycle began."""
        return step - cycle_start >= self.sync_every
