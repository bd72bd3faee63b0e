"""A job performed, as tests look at it: the report to the engine, the corrections for the training
thread, and the messages for peers."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.engine.effects import Export, Job, Merge, Prepare
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer, Seal, Sections, State
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Correction
from tests.support.engines import BASE, GENESIS


@dataclass(frozen=True)
class Performed:
    sections: Sections
    digest: bytes
    fault: str
    warning: str
    corrections: tuple[Correction, ...]


def perform(anchors: Anchors, job: Job) -> Performed:
    done, corrections = anchors.perform(job)
    return Performed(done.sections, done.digest, done.fault, done.warning, corrections)


class LoneFragment:
    """One fragment of one learner on `BASE`, without an engine: its anchors, and the messages that
    come of their jobs."""

    def __init__(self, name: str, anchors: Anchors) -> None:
        self.id = PeerId(name, 1)
        self.anchors = anchors

    def offer_from(self, job: Prepare, tokens: int = 1, steps: int = 1, rate: float = 0.0) -> Offer:
        done = perform(self.anchors, job)
        assert done.fault == ""
        return Offer(
            peer=self.id,
            fragment=0,
            seq=job.seq,
            tokens=tokens,
            steps=steps,
            rate=rate,
            genesis=GENESIS,
            key=BASE.key,
            due=True,
            sections=done.sections,
        )

    def seal_from(self, job: Merge) -> Seal:
        done = perform(self.anchors, job)
        assert done.fault == ""
        members = tuple(offer.entry for offer in job.offers)
        return Seal(
            sealer=self.id,
            fragment=0,
            base=BASE.digest,
            key=BASE.seal(members, done.digest).key,
            members=members,
            weights=job.weights,
            absent=(),
            reason="all_present",
            payload=done.digest,
            sections=done.sections,
        )

    def export(self) -> State:
        done = perform(self.anchors, Export(0, BASE))
        return State(
            peer=self.id, fragment=0, lineage=BASE, content=done.digest, sections=done.sections
        )
