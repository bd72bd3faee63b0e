"""The worker's part in signed offers. The worker has the bytes of offers and seals, so it takes
their digests, and checks signatures where it checks the bytes."""

from __future__ import annotations

from dataclasses import replace

from mend_optim.engine.effects import Advance, Done, Merge
from mend_optim.protocol.messages import PROOFS, Offer
from mend_optim.protocol.proofs import Notary, check_offer, check_proofs, proofs_packet
from mend_optim.protocol.statement import content_of
from mend_optim.worker.blame import blamed_on_peer
from mend_optim.worker.hashing import Hashing


class Signing:
    """Signatures around the jobs of a worker.

    Args:
        notary: signs in this learner's name, and checks the signatures of others.
        hashing: hashes the offers.
    """

    def __init__(self, notary: Notary, hashing: Hashing) -> None:
        self._notary = notary
        self._hashing = hashing

    def prepared(self, done: Done) -> Done:
        """An offer of this learner, with the digest that its signature is over. It is signed where
        it is sent, because its number may change until then."""
        return replace(done, digest=content_of(done.sections, self._hashing.spread))

    def inspect(self, offer: Offer) -> None:
        """Raise `PeerError` unless the offer is its author's."""
        with blamed_on_peer():
            content = content_of(offer.sections, self._hashing.spread)
            check_offer(offer, content, self._notary)

    def merged(self, job: Merge, done: Done) -> Done:
        """A merge with the proofs of its members, if anything was merged."""
        if done.outsized:
            return done
        packet = proofs_packet(job.offers, self._notary)
        return replace(done, sections={**done.sections, PROOFS: packet})

    def advance(self, job: Advance) -> None:
        """Raise `PeerError` unless the members of another learner's seal are proven."""
        if job.sealed_here or job.base is None:
            return
        with blamed_on_peer():
            check_proofs(job.seal, job.base, self._notary)
