"""A real learner to which something else was handed over, under the key of the others' anchor."""

from __future__ import annotations

from contextlib import closing

import pytest

from mend_optim import MendOptimizer
from mend_optim.engine.attestations import ANY, Attestations
from mend_optim.engine.effects import Done
from mend_optim.membership.sealers import sealer_of
from mend_optim.worker.fragment_anchor import FragmentAnchor
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    TIMING,
    Watch,
    cluster,
    descent,
    drive,
    read,
    settle,
    start,
    wave,
)

#: The sealer stays who it is when this one comes. Else its last seal might be missed, and learners
#: that take the newcomer's anchor in its place be deceived as well.
NEWCOMER = "e"
TRUE_EXPORT = FragmentAnchor.export


def foist(anchor: FragmentAnchor) -> Done:
    """An insider hands this over: other weights, with their own digest."""
    theta = anchor.theta
    anchor.theta = theta + 1000.0
    done = TRUE_EXPORT(anchor)
    anchor.theta = theta
    return done


def test_a_deceived_learner_takes_what_most_have(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Watch()
    assert sealer_of(0, [*"abc", NEWCOMER]) == sealer_of(0, "abc")
    learners = [descent(0.0) for _ in range(3)]
    with cluster(*learners, **LOCKSTEP) as first:
        drive(first, 4, wave)
        late = MendOptimizer(
            descent(9.0),
            name=NEWCOMER,
            listen=LOOPBACK,
            peers=[first[0].status().address],
            timing=TIMING,
            on_event=told,
            **LOCKSTEP,
        )
        with closing(late) as deceived:
            with monkeypatch.context() as patch:
                patch.setattr(FragmentAnchor, "export", foist)
                patch.setattr(Attestations, "expected", lambda *_: ANY)
                deceived.join()
            assert read(deceived)[0] > 900.0
            everyone = [*first, deceived]
            start(everyone)
            drive(everyone, 2, wave)
            (event,) = told.until("outvoted")
            assert event.facts["fragment"] == 0
            drive(everyone, 2, wave)
            settle(everyone)
            assert [read(each) for each in first] == [read(deceived)] * 3
