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
        "what-is-right-is-asked-for-while-the-anchor-moves-on",
        " or is_merging or fragment.is_about_to_move",
        " or is_merging",
    ),
    mutant(
        "half-of-the-learners-settle-it",
        "+ we_have) > learners",
        "+ we_have) >= learners",
        RULES,
    ),
    mutant(
        "learners-that-attest-nothing-do-not-count",
        "learners = 1 + len(self.majority.voters(p))",
        "learners = 1 + len(self._said(p, content.key, self.state.genesis))",
        RULES,
    ),
    mutant("the-learner-itself-does-not-count", "learners = 1 + len(", "learners = len(", RULES),
    mutant("its-own-word-does-not-confirm", " + we_have) >", ") >", RULES),
    mutant(
        "nothing-is-ever-confirmed", "            held.confirm()\n", "            pass\n", RULES
    ),
    mutant("a-new-learner-is-sure", "elif not self.state.is_young:", "else:", RULES),
    mutant(
        "a-confirmed-anchor-is-given-up",
        "not (fragment.held.is_in_question and _differs(fragment, content))",
        "not _differs(fragment, content)",
        RULES,
    ),
    mutant(
        "a-mended-anchor-stays-wrong",
        "not (fragment.held.is_in_question and _differs(fragment, content))",
        "not fragment.held.is_in_question",
        RULES,
    ),
    mutant(
        "a-majority-is-counted-once",
        "if is_over or not self._most_have(p, content, we_have=False):",
        "if is_over:",
        RULES,
    ),
    mutant(
        "those-that-trust-anybody-repair",
        "if content is None or not self.state.policies.limits.majority:",
        "if content is None:",
        RULES,
    ),
    mutant(
        "a-stuck-learner-mends-nothing",
        "return ANY if is_new and self.majority",
        "return ANY if self.majority",
        RULES,
    ),
    mutant(
        "any-bytes-mend",
        "return bool(content.digest) and self._most_have(anchor.fragment, content, we_have=False)",
        "return True",
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
    mutant(
        "an-anchor-of-ones-own-is-in-question",
        "lineage.version > 0 and not state.is_me(anchor.peer)",
        "lineage.version > 0",
        "engine/outcomes",
    ),
    mutant(
        "first-weights-are-in-question",
        "lineage.version > 0 and not state.is_me(anchor.peer)",
        "not state.is_me(anchor.peer)",
        "engine/outcomes",
    ),
    mutant("nothing-is-repaired", "        self.repairs.look(now)\n", "", "engine/adoption"),
    mutant("tries-follow-at-once", "or now < tries.due_at else", "else"),
    mutant("pauses-between-tries-stay-the-same", "2 ** (self.count - 1) * ", ""),
    mutant("the-same-peer-is-asked-again", "peers[tries.count % len(peers)]", "peers[0]"),
    mutant("doubted-peers-are-asked", " if not doubts(id)]", "]"),
    mutant(
        "a-copy-is-no-reason-to-keep-an-anchor",
        "if fragment.is_still and self.attestations",
        "if self.attestations",
    ),
    mutant(
        "an-anchor-that-nobody-attests-yet-is-given-up",
        "        self.state.wants[anchor.fragment].held = anchor\n",
        "        self.state.wants.pop(anchor.fragment)\n",
    ),
    mutant(
        "a-later-anchor-is-not-asked-for-to-mend",
        "whole=former.mends, mends=former.mends)",
        "whole=former.mends)",
        "engine/pulling",
    ),
    mutant(
        "a-greater-anchor-is-asked-for-again-and-again",
        "if former.mends and held.lineage != fragment.lineage:",
        "if False:",
        "engine/pulling",
    ),
    mutant(
        "a-later-anchor-has-more-time",
        "            wanted.since = former.since\n",
        "",
        "engine/pulling",
    ),
    mutant("anybody-mends", " and wanted.peer == anchor.peer\n", "\n"),
    mutant(
        "anybody-ends-a-repair",
        "(wanted for wanted in asked if wanted.peer == peer)",
        "(wanted for wanted in asked)",
        "engine/pulling",
    ),
    mutant(
        "all-end-while-a-true-anchor-is-on-its-way",
        "if any(self.adoption.repairs.is_mending(f.fragment) for f in shared):",
        "if False:",
        "engine/boundaries",
    ),
    mutant("a-repair-asks-for-a-seal", "key, whole=True, mends=True)", "key, mends=True)"),
    mutant(
        "an-anchor-with-other-members-mends",
        "anchor.lineage == fragment.lineage",
        "anchor.lineage.key == fragment.lineage.key",
    ),
    mutant(
        "seals-are-taken-on-a-wrong-anchor",
        " or self.repairs.is_mending(seal.fragment):",
        ":",
        "engine/adoption",
    ),
    mutant(
        "rounds-end-on-a-wrong-anchor",
        "(state.roster.place.hands_over or self.adoption.repairs.is_mending(p)):",
        "state.roster.place.hands_over:",
        "engine/sealer",
    ),
    mutant(
        "a-mended-anchor-loses-the-seal-that-waits",
        "        if lineage != self.lineage:\n            self.take_deferred()",
        "        self.take_deferred()",
        "engine/progress",
    ),
    mutant(
        "bytes-prolong-a-repair-for-ever",
        "if wanted.mends else NEVER",
        "if False else NEVER",
        "engine/pulling",
    ),
    mutant(
        "the-same-anchor-is-a-missed-round",
        "elif lineage.version and not is_same:",
        "elif lineage.version:",
        "engine/progress",
    ),
    mutant(
        "a-boundary-is-missed-while-the-anchor-moves",
        " or any(map(self._is_kept_from_copying, state.fragments))\n",
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
    mutant(
        "a-correction-that-is-held-back-ends-a-wait",
        "any(not boundaries.holds_back(p) for p in mailbox)",
        "bool(mailbox)",
        "runtime/learner",
        of("unit/runtime/test_waits"),
    ),
)
