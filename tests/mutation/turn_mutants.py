"""Mutants of the offers that learners in lockstep make before a boundary."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

TESTS = of("unit/engine/test_turns")
ALIGNED = of("virtual/test_turns", "aligned")
JOINED = of("virtual/test_turns", "joins")


def mutant(name: str, old: str, new: str, room: str = "engine/turns", tests: str = TESTS) -> Mutant:
    return Mutant(name, 7, room, old, new, tests)


TURN_MUTANTS = (
    mutant("aligned-learners-offer-early", " if _turn(fragment) < first}", "}"),
    mutant(
        "in-any-lockstep-learners-offer-early", " if _turn(fragment) < first}", "}", tests=ALIGNED
    ),
    mutant(
        "learners-wait-crosswise", "        if not awaited:\n", "        if True:\n", tests=JOINED
    ),
    mutant(
        "all-that-are-called-in-lockstep-offer",
        "            return set()\n",
        "            return set(self._called_on)\n",
    ),
    mutant("an-added-group-is-offered-early", "p < state.shared and ", ""),
    mutant(
        "buffers-wait-crosswise",
        "p < state.shared and ",
        "p < state.schedule.fragments and ",
    ),
    mutant(
        "a-call-on-another-anchor-brings-an-early-offer",
        " and self._called_on[p] == state.fragments[p].lineage.key",
        "",
    ),
    mutant(
        "calls-are-kept-where-nobody-waits",
        "        if self.state.schedule.lockstep:\n",
        "        if True:\n",
    ),
    mutant(
        "an-early-offer-begins-a-cycle",
        "        if schedule.lockstep and not (settled.due or settled.missed):\n"
        "            return  # it was offered before its boundary, which stays\n",
        "",
        room="engine/progress",
    ),
    mutant(
        "a-rest-leaves-an-offer-before-a-boundary",
        "if self.state.resting and self.state.schedule.lockstep:",
        "if False:",
        room="engine/boundaries",
        tests=of("unit/engine/test_boundaries", "rest_leaves"),
    ),
    mutant(
        "nobody-answers-twice-at-one-step",
        "            return not fragment.unmerged(state.totals).step\n",
        "            return False\n",
        room="engine/offers",
    ),
    mutant(
        "an-early-offer-waits-for-the-step-to-end",
        "has_one or bool(boundaries.fragments_to_copy()) or not boundaries.must_wait()",
        "has_one or not boundaries.must_wait()",
        room="runtime/learner",
        tests=of("unit/runtime/test_waits"),
    ),
)
