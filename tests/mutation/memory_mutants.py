"""Mutants of the memory that a learner takes: each takes more of it."""

from __future__ import annotations

from tests.mutation.mutant_list import BUFFERS, Mutant, of

ROUND = of("unit/worker/test_round_memory")

MEMORY_MUTANTS = (
    Mutant(
        "a-merge-takes-memory-for-the-whole-model",
        7,
        "worker/fragment_anchor",
        "scratch = self.buffers.take(self.theta.numel())\n        offers, weights =",
        "scratch = self.buffers.take(1 << 19)[: self.theta.numel()]\n        offers, weights =",
        ROUND,
    ),
    Mutant(
        "the-mean-of-a-round-stays",
        7,
        "worker/seal_payload",
        "sealed, self._sealed = self._sealed, None",
        "sealed = self._sealed",
        ROUND,
    ),
    Mutant(
        "all-members-have-a-whole-buffer-in-float64",
        7,
        "worker/buffer_anchor",
        "in blocks(target.numel(), FINE):",
        "in blocks(target.numel(), target.numel() or 1):",
        BUFFERS,
    ),
    Mutant(
        "a-whole-buffer-is-checked-in-float64",
        7,
        "worker/buffer_anchor",
        "in blocks(found.numel(), FINE):",
        "in blocks(found.numel(), found.numel() or 1):",
        BUFFERS,
    ),
    Mutant(
        "all-fragments-are-due-at-once",
        7,
        "engine/schedule",
        "turn = min(fragment + 1, self.fragments)",
        "turn = self.fragments",
        of("together/test_memory"),
    ),
)
