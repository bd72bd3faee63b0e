"""Mutants of the way back to an earlier model."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ENGINE = of("unit/engine/test_rollback")
WIRE = of("unit/transport/test_wire", "genesis")
CHECKPOINTS = of("unit/worker/test_checkpoint_reader", "genesis_of_no_rollback")
MOMENTS = of("together/test_rollback", "moments_are_those")
PARTS = of("unit/engine/test_model_parts")
REFUSALS = of("together/test_rollback", "cannot_be_gone_back_to")


def mutant(
    name: str, place: str, old: str, new: str, tests: tuple[str, ...] = ENGINE, law: int = 4
) -> Mutant:
    """The greater anchor wins (law 4): after a rollback, that is the earlier one."""
    return Mutant(name, law, place, old, new, tests)


ROLLBACK_MUTANTS = (
    mutant(
        "tokens-before-rollbacks",
        "protocol/lineage",
        "        rollbacks=rollbacks(genesis),\n",
        "        rollbacks=0,\n",
    ),
    mutant(
        "a-seal-of-the-first-time-fits-again",
        "protocol/lineage",
        "replace(self, digest=content_digest(genesis, self.digest), genesis=genesis)",
        "replace(self, genesis=genesis)",
    ),
    mutant(
        "what-the-anchor-has-is-forgotten",
        "protocol/lineage",
        "digest=content_digest(genesis, self.digest), genesis=genesis)",
        "digest=content_digest(genesis, self.digest), genesis=genesis, merged={})",
        law=5,
    ),
    mutant(
        "two-rollbacks-are-one-model",
        "protocol/lineage",
        "content_digest(told, *parts) + told",
        "content_digest(told) + told",
    ),
    mutant(
        "nobody-rolls-back",
        "protocol/lineage",
        "if not number or not name:",
        "if not number:",
        law=8,
    ),
    mutant(
        "peers-rollbacks-don't-count",
        "engine/rollback",
        "known = [state.genesis, *(beat.genesis for beat in state.beats())]",
        "known = [state.genesis]",
    ),
    mutant(
        "the-checkpoint's-rollbacks-don't-count",
        "engine/rollback",
        "        known += [anchor.lineage.genesis for anchor in anchors]\n",
        "",
    ),
    mutant(
        "a-rollback-beside-a-group-of-others",
        "engine/rollback",
        "        self._check_groups(len(anchors))\n",
        "",
    ),
    mutant(
        "groups-of-another-model-forbid-a-rollback",
        "engine/rollback",
        "beats = (beat for beat in state.live_beats() if beat.genesis == state.genesis)",
        "beats = (beat for beat in state.live_beats())",
    ),
    mutant(
        "groups-of-the-past-forbid-a-rollback",
        "engine/rollback",
        "beat for beat in state.live_beats() if beat.genesis == state.genesis",
        "beat for beat in state.beats() if beat.genesis == state.genesis",
    ),
    mutant(
        "more-rollbacks-than-can-be-told",
        "engine/rollback",
        "number <= MOST_ROLLBACKS,",
        "True,",
        law=8,
    ),
    mutant(
        "a-rollback-among-copies",
        "engine/rollback",
        "not in (Mode.COPYING, Mode.CLOSED)",
        "is not Mode.CLOSED",
    ),
    mutant(
        "a-rollback-after-goodbye",
        "engine/rollback",
        "not in (Mode.COPYING, Mode.CLOSED)",
        "is not Mode.COPYING",
    ),
    mutant(
        "a-rollback-without-a-group",
        "engine/rollback",
        "return is_free and len(state.fragments) == fragments",
        "return is_free",
    ),
    mutant(
        "another-model-stays-in-the-way",
        "engine/rollback",
        "            state.end_switch()\n",
        "            pass\n",
    ),
    mutant(
        "an-anchor-to-found-stays-in-the-way",
        "engine/rollback",
        "            state.change(Change.NOTHING_TO_FOUND)\n",
        "            pass\n",
    ),
    mutant(
        "over-before-the-worker-is",
        "engine/rollback",
        "return not waits and not any(f.is_moving for f in self.state.fragments)",
        "return not waits",
    ),
    mutant(
        "moments-of-the-ruined-model-stay",
        "engine/adoption",
        "resets=rollbacks(genesis) > rollbacks(former),",
        "resets=False,",
    ),
    mutant(
        "moments-begin-anew-with-any-model",
        "engine/adoption",
        "resets=rollbacks(genesis) > rollbacks(former),",
        "resets=replace,",
    ),
    mutant(
        "moments-are-not-reset",
        "worker/fragment_anchor",
        "values, job.replace, moments, job.resets)",
        "values, job.replace, moments)",
        MOMENTS,
        law=10,
    ),
    mutant(
        "moments-of-the-checkpoint-are-left-out",
        "worker/checkpoint",
        "        if name in names or name.startswith(LATEST)\n",
        "        if name in names\n",
        MOMENTS,
        law=10,
    ),
    mutant(
        "the-ledger-does-not-say-who",
        "engine/outcomes",
        'by = rollback.by if rollback else ""',
        'by = ""',
        law=8,
    ),
    mutant(
        "a-rollback-is-a-pull",
        "engine/outcomes",
        'return "rolled_back"',
        'return "pulled"',
        law=8,
    ),
    mutant(
        "a-rollback-counts-as-a-round",
        "engine/state",
        '("restored", "reset", "healed", "rolled_back")',
        '("restored", "reset", "healed")',
        law=5,
    ),
    mutant(
        "any-name-rolls-back",
        "transport/limits",
        '        checked_name("name in a genesis", rollback.by)\n',
        "        pass\n",
        WIRE,
        law=8,
    ),
    mutant(
        "a-genesis-of-any-size",
        "transport/limits",
        '    check_size("genesis", len(genesis), GENESIS_LIMIT)\n',
        "",
        WIRE,
        law=8,
    ),
    mutant(
        "a-way-back-without-the-learners-part",
        "wrapped_parameters",
        "            error.remedy = EARLIER\n",
        "",
        REFUSALS,
        law=10,
    ),
    mutant(
        "a-checkpoint's-genesis-of-any-name",
        "worker/checkpoint_reader",
        "if not 0 < len(name.encode()) <= NAME_LIMIT or not is_plain(name):",
        "if not name:",
        CHECKPOINTS,
        law=8,
    ),
    mutant(
        "back-to-first-weights",
        "wrapped_parameters",
        "    require(merged == fragments,",
        "    require(True,",
        REFUSALS,
        law=8,
    ),
    mutant(
        "a-part-is-fetched-before-all-are-heard",
        "engine/model_parts",
        "        if rollbacks(beat.genesis) <= rollbacks(state.genesis) or self._is_all_there_is(beat):",
        "        if True:",
        of("virtual/test_rollbacks", "beside_a_peer_without_it"),
    ),
    mutant(
        "all-of-a-model-waits-for-the-unheard",
        "engine/model_parts",
        "        if len(beat.reports) >= len(state.fragments):\n            return True\n",
        "",
        PARTS,
    ),
    mutant(
        "a-model-without-a-rollback-waits-for-the-unheard",
        "engine/model_parts",
        "if rollbacks(beat.genesis) <= rollbacks(state.genesis) or self._is_all_there_is(beat):",
        "if self._is_all_there_is(beat):",
        PARTS,
    ),
    mutant(
        "a-part-waits-although-nobody-has-more",
        "engine/model_parts",
        "rollbacks(state.genesis) or self._is_all_there_is(beat):",
        "rollbacks(state.genesis):",
        PARTS,
    ),
    mutant(
        "a-part-waits-for-ever",
        "engine/model_parts",
        "        return awake_s >= self._since + MEETING_BEATS * state.policies.timing.beat_s\n",
        "        return False\n",
        PARTS,
    ),
    mutant(
        "one-wait-for-all-rollbacks",
        "engine/model_parts",
        "if self._own != state.genesis:",
        "if not self._own:",
        PARTS,
    ),
    mutant(
        "an-address-without-a-peer-is-heard",
        "engine/model_parts",
        "return not state.seeds.missing and not any(",
        "return not any(",
        PARTS,
    ),
    mutant(
        "a-peer-that-said-nothing-is-heard",
        "engine/model_parts",
        "    if shown is None or peer.suspected:\n        return True\n",
        "    if shown is None or peer.suspected:\n        return shown is not None\n",
        PARTS,
    ),
    mutant(
        "a-suspected-peer-is-heard",
        "engine/model_parts",
        "    if shown is None or peer.suspected:\n        return True\n",
        "    if shown is None:\n        return True\n",
        PARTS,
    ),
    mutant(
        "a-peer-that-is-behind-has-no-more",
        "engine/model_parts",
        "    return is_behind and len(shown.reports) > len(beat.reports)\n",
        "    return False\n",
        PARTS,
    ),
    mutant(
        "all-that-are-behind-are-awaited",
        "engine/model_parts",
        "    return is_behind and len(shown.reports) > len(beat.reports)\n",
        "    return is_behind\n",
        PARTS,
    ),
    mutant(
        "all-with-the-group-are-awaited",
        "engine/model_parts",
        "    return is_behind and len(shown.reports) > len(beat.reports)\n",
        "    return len(shown.reports) > len(beat.reports)\n",
        PARTS,
    ),
    mutant(
        "a-group-keeps-its-progress-after-a-rollback",
        "engine/outcomes",
        "            if rollback:\n                self.healing.give_up(",
        "            if False:\n                self.healing.give_up(",
        of("virtual/test_rollbacks", "nobody_else"),
    ),
    mutant(
        "a-groups-offer-outlives-a-rollback",
        "engine/outcomes",
        "keeps_offer=rollback is None)",
        "keeps_offer=True)",
        of("unit/engine/test_rollback", "group"),
    ),
    mutant(
        "all-groups-wait-to-be-given-up",
        "engine/healing",
        "        if fragment.is_still:\n            self.go_on(fragment)\n",
        "",
        of("unit/engine/test_rollback", "group"),
    ),
)
