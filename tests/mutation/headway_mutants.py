"""Mutants of how far a round moves the anchor where its members differ in speed."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

RULE, SCALE, ANCHOR = "engine/headway", "worker/scale", "worker/fragment_anchor"
TESTS = of("unit/engine/test_headway")
SEALER = of("unit/engine/test_sealer", "fastest_member or was_there")
SCALING = of("unit/worker/test_scale")
PAYLOAD = of("unit/worker/test_seal_payload", "headway or scale")
LATE = of("unit/worker/test_disagreement", "headway")


def mutant(
    name: str, room: str, old: str, new: str, tests: tuple[str, ...] = TESTS, law: int = 9
) -> Mutant:
    return Mutant(name, law, room, old, new, tests)


HEADWAY_MUTANTS = (
    mutant("slow-members-hold-the-anchor-up", RULE, "found = min(most / mean,", "found = min(1.0,"),
    mutant(
        "the-anchor-stays-behind-the-mean", RULE, "found if found > 1 + NOISE else 1.0", "found"
    ),
    mutant("headway-has-no-bound", RULE, ", MOST_HEADWAY, 1 /", ", 1 /"),
    mutant("claimed-steps-lengthen-a-step", RULE, ", 1 / math.sqrt(squares))", ")"),
    mutant("rounding-is-headway", RULE, "if found > 1 + NOISE", "if found > 1"),
    mutant("who-missed-rounds-counts-as-fast", RULE, "if entry.peer in regulars and ", "if "),
    mutant(
        "only-who-missed-rounds-counts",
        RULE,
        "entry.peer in regulars",
        "entry.peer not in regulars",
    ),
    mutant(
        "the-sealer-forgets-the-headway",
        "engine/sealer",
        "            headway=headway(entries, shares, round.regulars),\n",
        "",
        SEALER,
    ),
    mutant(
        "no-member-is-a-regular-one",
        "engine/round",
        "        self.regulars = frozenset(entry.peer for entry in members if entry.steps)\n",
        "",
        SEALER,
    ),
    mutant(
        "who-brought-nothing-is-a-regular-one",
        "engine/round",
        "entry.peer for entry in members if entry.steps)",
        "entry.peer for entry in members)",
        SEALER,
    ),
    mutant(
        "the-bound-leaves-the-headway-out",
        SCALE,
        "    most = bound(w) / headway\n",
        "    most = bound(w)\n",
        SCALING,
    ),
    mutant(
        "the-headway-scales-nothing",
        SCALE,
        "return [self.headway * f for f in self.factors]",
        "return list(self.factors)",
        SCALING,
    ),
    mutant(
        "a-headway-is-not-checked", SCALE, "for f in (*found, headway))", "for f in found)", SCALING
    ),
    mutant(
        "a-bound-holds-for-factors-alone",
        SCALE,
        "return self.headway * max(",
        "return max(",
        SCALING,
    ),
    mutant(
        "members-that-agree-have-no-headway",
        "worker/seal_payload",
        "        if headway == 1 and all(f == 1 for f in found):\n",
        "        if all(f == 1 for f in found):\n",
        PAYLOAD,
    ),
    mutant(
        "a-late-member-disagrees-with-the-plain-mean",
        ANCHOR,
        "unscaled(values, self.scale.factors,",
        "unscaled(values, self.scale.products(),",
        LATE,
    ),
    mutant(
        "a-checkpoint-forgets-the-headway",
        SCALE,
        "if HEADWAY in tensors else 1.0",
        "if not tensors else 1.0",
        SCALING,
    ),
)
