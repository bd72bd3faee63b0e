"""Mutants of the rules by which a learner that was deceived takes what most others have."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

LAW = 4
RULES, ASKS = "engine/attestations", "engine/repairs"
TESTS = of("unit/engine/test_repairs")
BOUNDARIES = of("unit/engine/test_boundaries", "an_anchor_that_moves")


def mutant(
    name: str, old: str, new: str, room: str = ASKS, tests: tuple[str, ...] = TESTS
) -> Mutant:
    return Mutant(name, LAW, room, old, new, tests)


REPAIR_MUTANTS = (
    mutant(
        "half-of-the-learners-settle-it", "2 * alike <= learners", "2 * alike < learners", RULES
    ),
    mutant(
        "learners-that-attest-nothing-do-not-count",
        "learners = 1 + sum(1 for _ in self.majority.voters(p))",
        "learners = 1 + len(self._said(p, content.key, self.state.genesis))",
        RULES,
    ),
    mutant("the-learner-itself-does-not-count", "learners = 1 + sum(", "learners = sum(", RULES),
    mutant("its-own-word-does-not-confirm", " + (own == content.digest)\n", "\n", RULES),
    mutant(
        "nothing-is-ever-confirmed", "            held.confirm()\n", "            pass\n", RULES
    ),
    mutant(
        "a-confirmed-anchor-is-given-up",
        "if not own or not held.is_in_question:",
        "if not own:",
        RULES,
    ),
    mutant(
        "a-mended-anchor-stays-wrong",
        "        if not _differs(fragment, content):\n",
        "        if False:\n",
        RULES,
    ),
    mutant(
        "those-that-trust-anybody-repair",
        "if content is None or not self.state.policies.limits.majority:",
        "if content is None:",
        RULES,
    ),
    mutant(
        "anchors-that-come-by-seals-are-in-question",
        "self.is_in_question = False\n\n    def comes",
        "self.is_in_question = True\n\n    def comes",
        "engine/held",
    ),
    mutant(
        "whole-anchors-are-not-in-question",
        "self.is_in_question = handed_over",
        "pass",
        "engine/held",
    ),
    mutant("nothing-is-repaired", "        self.repairs.look(now)\n", "", "engine/adoption"),
    mutant("tries-follow-at-once", "and now >= tries.due_at and", "and", ASKS),
    mutant("pauses-between-tries-stay-the-same", "2**tries.count * ", "", ASKS),
    mutant("the-same-peer-is-asked-again", "peers[tries.count % len(peers)]", "peers[0]", ASKS),
    mutant("doubted-peers-are-asked", " if not doubts(id)]", "]", ASKS),
    mutant("a-repair-asks-for-a-seal", "key, whole=True, gives_way=True)", "key, gives_way=True)"),
    mutant("only-a-greater-anchor-repairs", "whole=True, gives_way=True)", "whole=True)"),
    mutant(
        "a-want-that-gives-way-ends-with-the-next-round",
        "if p in self.wants and not self.wants[p].gives_way:",
        "if p in self.wants:",
        "engine/state",
    ),
    mutant(
        "the-same-anchor-is-not-taken",
        "if key <= fragment.lineage.key:",
        "if key < fragment.lineage.key:",
        "engine/adoption",
    ),
    mutant(
        "the-same-anchor-is-a-missed-round",
        "elif lineage.version and not is_same:",
        "elif lineage.version:",
        "engine/progress",
    ),
    mutant(
        "a-boundary-is-missed-while-the-anchor-moves",
        " or self._is_kept_from_copying(fragment)\n",
        "\n",
        "engine/boundaries",
        BOUNDARIES,
    ),
    mutant(
        "any-anchor-that-moves-is-waited-for",
        "return bool(is_due and has_work) and fragment.is_moving",
        "return fragment.is_moving",
        "engine/boundaries",
        BOUNDARIES,
    ),
)
