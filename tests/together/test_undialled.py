"""A learner that tells others an address at which nobody gets through, as behind a firewall."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mend_optim.membership.sealers import sealer_of
from tests.support.addresses import free_addresses
from tests.support.learners import LOCKSTEP, TIMING, Watch, cluster, descent, drive, read, wave


def test_rounds_go_on_without_a_sealer_that_nobody_can_dial() -> None:
    assert sealer_of(0, "abc") == "b"
    told = Watch()
    (closed,) = free_addresses(1)  # held, and nobody listens
    hidden: dict[str, Any] = {
        "advertise": closed,
        "on_event": told,
        "timing": replace(TIMING, beat_s=0.2, evict_after_s=4.0),
    }
    learners = [descent(0.0) for _ in range(3)]
    with cluster(*learners, each=[{}, hidden, {}], **LOCKSTEP) as optimizers:
        drive(optimizers, 6, wave)
        assert read(optimizers[0]) == read(optimizers[1]) == read(optimizers[2])
        (event,) = told.until("undialled")
        assert event.facts == {"address": closed, "peers": ["a", "c"]}
        last = optimizers[1].status().rounds[-1]
        assert {member.name for member in last.members} == {"a", "b", "c"}
        assert last.sealer in ("a", "c")
