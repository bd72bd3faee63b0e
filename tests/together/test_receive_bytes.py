"""Offers that must wait for their turn: a sealer with room for one of sixteen at a time loses no
round."""

from __future__ import annotations

import torch
from torch.nn import Parameter
from torch.optim import SGD

from mend_optim import Limits, Timing
from mend_optim.transport.receiving import Receiving
from tests.support.learners import LOCKSTEP, Watch, cluster, drive, wave

LEARNERS, STEPS = 16, 3
# A busy machine suspects nobody.
TIMING = Timing(beat_s=3, join_timeout_s=120, round_timeout_s=120, evict_after_s=120)
LIMIT = 1 << 20
NUMEL = LIMIT // 4 + 1000


def test_sixteen_that_offer_at_once_are_all_in_every_round(monkeypatch) -> None:
    most = 0
    waited = 0
    fill = Receiving._fill

    def watched(self: Receiving) -> None:
        nonlocal most, waited
        fill(self)
        most = max(most, len(self._arriving))
        waited = max(waited, len(self._waiting))

    monkeypatch.setattr(Receiving, "_fill", watched)
    inners = [SGD([Parameter(torch.ones(NUMEL))], lr=0.1) for _ in range(LEARNERS)]
    watches = [{"on_event": Watch()} for _ in inners]
    options = {
        **LOCKSTEP,
        "quorum": LEARNERS,
        "limits": Limits(receive_bytes=LIMIT),
        "timing": TIMING,
    }
    with cluster(*inners, each=watches, **options) as optimizers:
        drive(optimizers, STEPS, wave)
        for optimizer in optimizers:
            rounds = [record for record in optimizer.status().rounds if record.members]
            assert len(rounds) == STEPS
            assert all(len(record.members) == LEARNERS for record in rounds)
            assert all(record.mine and not record.absent for record in rounds)
            assert optimizer.status().refused == ()
    assert most == 1 < waited
