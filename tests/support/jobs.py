"""A job performed, as tests look at it: the report to the engine, and the corrections for the
training thread."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.engine.effects import Job
from mend_optim.protocol.messages import Sections
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Correction


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
