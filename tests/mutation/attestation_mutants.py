"""Mutants of attestations: each rule by which the content of an anchor is compared with that of
others, left out."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ATTESTATIONS, ATTEST = of("unit/engine/test_attestations"), of("unit/worker/test_attest")
RULES, HELD = "engine/attestations", "engine/held"


def attesting(name: str, old: str, new: str, room: str = RULES) -> Mutant:
    return Mutant(name, 4, room, old, new, ATTESTATIONS)


ATTESTATION_MUTANTS = (
    attesting(
        "half-of-the-words-refuse-an-anchor",
        "2 * count <= words:",
        "2 * count < words:",
    ),
    attesting("one-alone-refuses-an-anchor", "if count == 1 or 2", "if 2"),
    attesting(
        "the-sender-has-no-word",
        "words = len(said.keys() | {anchor.peer})",
        "words = len(said)",
    ),
    attesting(
        "the-sender-has-two-words",
        "words = len(said.keys() | {anchor.peer})",
        "words = len(said) + 1",
    ),
    attesting(
        "ones-own-anchor-is-checked",
        "if self.state.is_me(anchor.peer) or not",
        "if not",
    ),
    attesting(
        "others-are-heeded-where-one-word-is-enough",
        "if self.state.is_me(anchor.peer) or not self.state.policies.limits.majority:",
        "if self.state.is_me(anchor.peer):",
    ),
    attesting(
        "those-that-have-not-trained-attest", "if digest and beat.step > 0 and", "if digest and"
    ),
    attesting(
        "those-of-another-model-attest",
        "if told.genesis != beat.genesis:",
        "if False:",
    ),
    attesting("all-that-was-told-is-kept", "if len(digests) > TOLD:", "if False:"),
    attesting(
        "those-that-are-gone-are-kept", "if len(self._told) > len(roster.peers):", "if False:"
    ),
    attesting("all-digests-are-kept", "if len(self._digests) > HELD:", "if False:", HELD),
    attesting(
        "first-weights-are-attested",
        "if not wanted or not key.version or key ==",
        "if not wanted or key ==",
        HELD,
    ),
    attesting("the-worker-is-asked-again", "or key == self._asked", "", HELD),
    attesting(
        "the-stuck-heed-what-others-have",
        "is_new and self.majority.is_stuck(anchor) else",
        "False else",
    ),
    attesting(
        "no-content-is-checked",
        "contents=tuple(map(self.attestations.expected, anchors)),",
        "",
        "engine/adoption",
    ),
    attesting("nothing-is-attested", "fragment.held.told(),", "None,", "engine/beats"),
    attesting(
        "checkpoints-are-not-attested",
        "        state.attest_what_stands()\n",
        "",
        "engine/beats",
    ),
    attesting(
        "a-new-anchor-is-not-attested", "self.state.attest(now, p)", "pass", "engine/outcomes"
    ),
    attesting(
        "every-anchor-of-fast-rounds-is-attested", "stood_s >= beat_s or key", "True or key", HELD
    ),
    attesting("no-anchor-of-fast-rounds-is-attested", " or key.version % EVERY == 0)", ")", HELD),
    attesting(
        "an-anchor-that-moves-on-is-attested",
        "self._asks(key, stood)",
        "self._asks(key, True)",
        HELD,
    ),
    attesting(
        "nobody-is-told-of-a-fork",
        'not in (b"", content.digest)',
        'in (b"",)',
    ),
    attesting(
        "all-are-told-of-that-know-more",
        'not in (b"", content.digest)',
        "!= content.digest",
    ),
    attesting("a-fork-is-told-in-each-beat", "if p not in told.forked:", "if True:"),
    attesting("a-fork-is-told-once-in-all", "told.forked.add(p)", "told.forked |= {0, 1}"),
    attesting(
        "another-model-is-a-fork",
        "                if beat.genesis == self.state.genesis:\n",
        "                if True:\n",
    ),
    attesting(
        "another-model-makes-a-fork-news",
        "            told.genesis, told.digests = beat.genesis, {}",
        "            told = self._told[beat.peer] = _Told(beat.genesis)",
    ),
    attesting(
        "digests-outlive-a-whole-anchor",
        "        self._digests.clear()\n",
        "",
        HELD,
    ),
    attesting(
        "a-whole-anchor-begins-nothing-anew",
        "fragment.held.begin_anew(handed_over=lineage",
        "bool(lineage",
        "engine/outcomes",
    ),
    Mutant(
        "an-empty-digest-is-attested",
        8,
        "transport/wire",
        'check(bool(content.digest), "the content of an anchor is empty")',
        "pass",
        of("unit/transport/test_wire", "former_version"),
    ),
    Mutant(
        "a-digest-of-any-length-is-attested",
        8,
        "transport/wire",
        'checked_digest("content of an anchor", content.digest)',
        "content.digest",
        of("unit/transport/test_wire_limits"),
    ),
    Mutant(
        "any-bytes-will-do",
        4,
        "worker/anchors",
        "        if expected:\n",
        "        if False:\n",
        ATTEST,
    ),
    Mutant(
        "the-velocity-is-not-attested",
        4,
        "worker/fragment_anchor",
        'return {"anchor": self.theta, **self.velocity.held()}',
        'return {"anchor": self.theta}',
        ATTEST,
    ),
)
