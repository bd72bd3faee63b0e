"""Mutants of the account of what a sealer's encodings lose."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ACCOUNT = of("unit/worker/test_seal_residual")


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...] = ACCOUNT) -> Mutant:
    return Mutant(name, 9, room, old, new, tests)


RESIDUAL_MUTANTS = (
    mutant(
        "a-residual-is-given-up-in-silence",
        "worker/seal_payload",
        "        self.dropped += self.held\n",
        "",
    ),
    mutant(
        "a-held-residual-is-not-told",
        "worker/seal_payload",
        "            self.held = self._length(self.feedback.residual)\n",
        "",
    ),
    mutant(
        "a-residual-that-no-codec-keeps-is-no-loss",
        "worker/seal_payload",
        "        else:\n            self.drop()\n",
        "        else:\n            self.held = 0.0\n",
    ),
    mutant(
        "a-sealer-gives-its-residual-up-when-another-seals",
        "worker/fragment_anchor",
        "        if job.sealed_by_predecessor:\n",
        "        if not job.sealed_here:\n",
    ),
    mutant(
        "a-residual-beside-other-weights-is-given-up-in-silence",
        "handover",
        "given_up = None if intact else seal_residual(former)",
        "given_up = None",
        of("together/test_codecs", "gives_up"),
    ),
    mutant(
        "a-residual-that-comes-along-is-given-up",
        "handover",
        "given_up = None if intact else seal_residual(former)",
        "given_up = seal_residual(former)",
        of("together/test_codecs", "gives_up"),
    ),
    mutant(
        "the-residual-of-a-checkpoint-is-not-told",
        "worker/anchors",
        "        self._loaded.add(p)\n",
        "",
    ),
    mutant(
        "an-installed-anchor-tells-of-no-residual",
        "worker/anchors",
        "return Done(seal_residuals=told), corrections",
        "return Done(), corrections",
    ),
    mutant(
        "a-founded-anchor-tells-of-no-residual",
        "worker/anchors",
        "Done(digest=self.digest(), seal_residuals=told)",
        "Done(digest=self.digest())",
    ),
    mutant(
        "the-engine-hears-of-no-residual",
        "engine/outcomes",
        "        self.state.seal_residuals.update(done.seal_residuals)\n",
        "",
        of("together/test_codecs", "tells_what"),
    ),
)
