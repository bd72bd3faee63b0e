"""Groups added to an optimizer after it was wrapped: each is a fragment of its own."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD

from mend_optim import MendOptimizer, UsageError
from mend_optim.engine.state import EngineState
from mend_optim.finish import UNSHARED
from mend_optim.given_peers import GivenPeers
from mend_optim.security import LinkSecurity
from mend_optim.settings import Endpoint
from tests.support.checkpoints import anchors
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    start,
    step,
    together,
    until,
    weights,
)


def add(optimizer: MendOptimizer, value: float, **options: Any) -> None:
    optimizer.add_param_group({"params": weights(value), **options})


def until_all_have_it(optimizers: list[MendOptimizer]) -> None:
    """Steps of a test are faster than beats. Wait until each learner knows that the others have
    added the group and begin with the same values. A learner that still fetches it at a boundary
    would offer a step later, with a step more."""

    def agreed(engine_state: EngineState) -> bool:
        beats = [peer.beat for peer in engine_state.roster.peers.values()]
        return all(
            b
            and len(b.reports) > 1
            and b.reports[1].key == engine_state.key(engine_state.fragments[1])
            for b in beats
        )

    for optimizer in optimizers:
        learner = optimizer._learner
        assert learner is not None
        until(
            optimizer,
            lambda engine_state=learner.engine.state: (
                len(engine_state.fragments) > 1 and agreed(engine_state)
            ),
        )


def join(newcomer: MendOptimizer, trainer: MendOptimizer) -> None:
    """The newcomer's first call, while another learner trains on: that one was alone, so its
    weights must first become an anchor."""
    learner = newcomer._learner
    assert learner is not None
    engine_state = learner.engine.state

    def train() -> None:
        while not engine_state.joined:
            step(trainer, 1.0)

    together(lambda: newcomer._run.ensure_joined(), train)


@pytest.mark.parametrize("begun", [False, True])
def test_a_group_that_all_add_is_merged_like_the_rest(begun: bool) -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as optimizers:
        if begun:
            drive(optimizers, 2, lambda i, s: 0.0)
        for optimizer in optimizers:
            add(optimizer, 5.0, lr=2.0)
        if begun:
            until_all_have_it(optimizers)
        drive(optimizers, 3, lambda i, s: float(i))
        assert [read(o) for o in optimizers] == [[-0.5, 2.0], [-0.5, 2.0]]
        versions = [[f.version for f in o.status().fragments] for o in optimizers]
        assert versions == [[5, 3] if begun else [3, 3]] * 2
        assert same(anchors(optimizers[0]), anchors(optimizers[1]))


def test_all_begin_with_the_first_weights_of_one() -> None:
    with cluster(descent(1.0), descent(1.0), sync_every=2, adopt_after=0) as optimizers:
        drive(optimizers, 3, lambda i, s: 1.0)
        for i, optimizer in enumerate(optimizers):
            add(optimizer, 10.0 * (i + 1))
        until_all_have_it(optimizers)
        drive(optimizers, 4, lambda i, s: 1.0)
        settle(optimizers)
        ours, theirs = map(read, optimizers)
        assert ours == theirs
        assert ours[1] in (10.0 - 4.0, 20.0 - 4.0)  # and what both trained of it


def test_until_the_others_add_it_too_the_rest_is_merged_on() -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, b):
        drive([a, b], 2, lambda i, s: 1.0)
        add(a, 5.0)
        drive([a, b], 3, lambda i, s: float(i))
        assert [read(a)[0], read(b)[0]] == [-2.5, -2.5]
        assert [len(a.status().fragments), len(b.status().fragments)] == [2, 1]
        assert a.status().fragments[1].version == 0
        assert read(a)[1] == 5.0
        add(b, 7.0)
        until_all_have_it([a, b])
        settle([a, b])
        assert a.status().fragments[1].version > 0
        assert same(anchors(a), anchors(b))


def test_a_group_that_is_another_elsewhere_is_not_merged_with_it() -> None:
    """The groups have the same size; only the digest of their contents differs."""
    watch = Watch()
    with cluster(descent(1.0), descent(1.0), each=[{"on_event": watch}, {}], **LOCKSTEP) as (a, b):
        drive([a, b], 2, lambda i, s: 0.0)
        a.add_param_group({"params": [Parameter(torch.ones(4))]})
        b.add_param_group({"params": [Parameter(torch.zeros(2, 2))]})
        (fault,) = watch.until("fault")
        assert fault.text == "b has added another group: fragment 1 is not merged with it"
        drive([a, b], 3, lambda i, s: float(i))
        assert [read(a), read(b)] == [[-0.5, 1.0], [-0.5, -3.0]]


def test_a_learner_that_greets_with_another_group_is_refused() -> None:
    watch = Watch()
    with closing(
        MendOptimizer(descent(1.0), name="a", listen=LOOPBACK, timing=TIMING, on_event=watch)
    ) as a:
        add(a, 5.0)
        address, another = a.status().address, {"params": [Parameter(torch.zeros(2, 2))]}
        b = MendOptimizer(descent(1.0))  # to add the group before it greets anybody
        b.add_param_group(another)
        b._run.settings = replace(
            b._run.settings,
            name="b",
            place=Endpoint(
                security=LinkSecurity(),
                listen=None,
                advertise=None,
                peers=GivenPeers(source="peers", seeds=(address,)),
                ledger=None,
                on_event=None,
            ),
        )
        b._run.model.lay_out()
        b._run.learner = b._run.settings.connect(b._run, lambda run: run.model.layout())
        with closing(b):
            (refused,) = watch.until("refused")
    assert "added group 1: here 1 [3] torch.float32, there 1 [2, 2] torch.float32" in refused.text


def test_who_joins_later_adds_the_group_before_its_first_step() -> None:
    with cluster(descent(1.0), sync_every=2) as (a,):
        add(a, 5.0)
        drive([a], 4, lambda i, s: 1.0)
        peers = [a.status().address]
        with closing(
            MendOptimizer(
                descent(9.0), name="b", listen=LOOPBACK, peers=peers, sync_every=2, timing=TIMING
            )
        ) as b:
            add(b, 9.0)
            join(b, a)
            drive([a, b], 6, lambda i, s: 1.0)
            settle([a, b])
            assert same(anchors(a), anchors(b))
            assert len(b.status().fragments) == 2


@pytest.mark.parametrize("ahead", [0, 1])
def test_who_joins_with_more_or_fewer_groups_takes_what_there_is(ahead: int) -> None:
    with cluster(descent(1.0), sync_every=2) as (a,):
        drive([a], 4, lambda i, s: 1.0)
        peers = [a.status().address]
        with closing(
            MendOptimizer(
                descent(9.0), name="b", listen=LOOPBACK, peers=peers, sync_every=2, timing=TIMING
            )
        ) as b:
            add((a, b)[ahead], 5.0)
            join(b, a)
            drive([a, b], 4, lambda i, s: 1.0)
            add((b, a)[ahead], 7.0)
            drive([a, b], 6, lambda i, s: 1.0)
            settle([a, b])
            assert same(anchors(a), anchors(b))
            assert read(a)[0] < 0


def test_a_group_that_cannot_be_merged_is_not_added() -> None:
    with closing(MendOptimizer(descent(1.0), listen=LOOPBACK, timing=TIMING)) as optimizer:
        with pytest.raises(UsageError, match="must have memory of its own"):
            optimizer.add_param_group({"params": [parameters(optimizer)[0].view(3)]})
        assert len(optimizer.param_groups) == 1
        step(optimizer, 1.0)
        assert read(optimizer) == [0.0]


def test_a_checkpoint_holds_added_groups() -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as optimizers:
        for optimizer in optimizers:
            add(optimizer, 5.0)
        drive(optimizers, 3, lambda i, s: float(i))
        saved = [o.state_dict() for o in optimizers]
        values = read(optimizers[0])
    with cluster(
        descent(*values[:1]), descent(*values[:1]), started=False, **LOCKSTEP
    ) as optimizers:
        for optimizer, state in zip(optimizers, saved, strict=True):
            add(optimizer, values[1])
            optimizer.load_state_dict(state)
        start(optimizers)
        drive(optimizers, 1, lambda i, s: 1.0)
        assert [f.version for f in optimizers[0].status().fragments] == [4, 4]
        assert [read(o) for o in optimizers] == [[v - 1.0 for v in values]] * 2


def test_a_checkpoint_that_goes_on_alone_takes_a_group_along() -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as optimizers:
        drive(optimizers, 2, lambda i, s: 1.0)
        state = optimizers[0].state_dict()
    alone = MendOptimizer(descent(-1.0))
    alone.load_state_dict(state)
    step(alone, 1.0)
    add(alone, 5.0)
    step(alone, 1.0)
    later = MendOptimizer(descent(-3.0), listen=LOOPBACK, timing=TIMING)
    with closing(later):
        add(later, 4.0)
        later.load_state_dict(alone.state_dict())
        start([later])
        assert [(f.tokens, f.unmerged_tokens) for f in later.status().fragments] == [(4, 2), (0, 1)]


def test_synchronize_does_not_wait_for_a_group_that_nobody_else_has() -> None:
    with cluster(descent(1.0), descent(1.0), sync_every=4) as (a, b):
        drive([a, b], 2, lambda i, s: 1.0)
        add(a, 5.0)
        drive([a, b], 3, lambda i, s: 1.0)
        settle([a, b])
        assert a.status().fragments[1].unmerged_tokens == 3
        assert same(anchors(a)[:1], anchors(b))


def test_finish_names_a_group_that_nobody_else_has(caplog: pytest.LogCaptureFixture) -> None:
    """The rest ends on one model. A learner that lacks the group has nothing to complain of."""
    with cluster(descent(1.0), descent(1.0), sync_every=4) as (a, b):
        drive([a, b], 2, lambda i, s: 1.0)
        add(a, 5.0)
        drive([a, b], 3, lambda i, s: 1.0)
        first, second = together(lambda: a.finish(PATIENCE_S), lambda: b.finish(PATIENCE_S))
        assert (bool(first), first.unmerged_tokens) == (False, 3)
        assert first.reason == UNSHARED.format(1)
        assert (bool(second), second.reason) == (True, "")
        assert same(parameters(a)[:1], parameters(b))
        assert read(a)[1] == 2.0
    assert caplog.text.count("nothing of the fragments [1] is merged yet") == 1
    assert "nothing is merged yet" not in caplog.text


def test_a_checkpoint_wants_groups_added_as_they_were() -> None:
    saved = MendOptimizer(descent(1.0))
    add(saved, 5.0)
    words = "groups that were added after wrapping, 0 here, got 1: wrap what was wrapped"
    refusal = pytest.raises(UsageError, match=words)
    loader = MendOptimizer(descent(1.0, 5.0), listen=LOOPBACK, timing=TIMING)
    with closing(loader) as other, refusal:
        other.load_state_dict(saved.state_dict())


def test_a_group_that_others_added_may_be_there_from_the_start() -> None:
    """A run unfreezes a group on its way. A learner that resumes with both groups at once has the
    fragments that the others have."""
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as optimizers:
        for optimizer in optimizers:
            add(optimizer, 5.0)
        drive(optimizers, 3, lambda i, s: float(i))
        settle(optimizers)
        saved, values = optimizers[1].state_dict(), read(optimizers[1])
        optimizers[1].close()
        groups = [{"params": weights(value)} for value in values]
        peers = [optimizers[0].status().address]
        again = MendOptimizer(
            SGD(groups, lr=1.0), name="b", peers=peers, listen=LOOPBACK, timing=TIMING, **LOCKSTEP
        )
        with closing(again):
            again.load_state_dict(saved)
            start([optimizers[0], again])
            drive([optimizers[0], again], 3, lambda i, s: float(i))
            settle([optimizers[0], again])
            assert read(again) == read(optimizers[0])
            assert len(again.status().fragments) == 2


def test_a_script_may_put_in_all_groups_as_a_list_before_it_loads() -> None:
    """Lightning does so, where a callback has unfrozen a group on the way."""
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as optimizers:
        for optimizer in optimizers:
            add(optimizer, 5.0)
        drive(optimizers, 3, lambda i, s: float(i))
        settle(optimizers)
        saved, values = [o.state_dict() for o in optimizers], read(optimizers[0])
    inners = [descent(values[0]), descent(values[0])]
    with cluster(*inners, started=False, **LOCKSTEP) as optimizers:
        for optimizer, state in zip(optimizers, saved, strict=True):
            (first,) = optimizer.param_groups
            optimizer.param_groups = [first, {**first, "params": weights(values[1])}]
            optimizer.load_state_dict(state)
        start(optimizers)
        drive(optimizers, 2, lambda i, s: 1.0)
        assert [f.version for f in optimizers[0].status().fragments] == [5, 5]
        assert [read(o) for o in optimizers] == [[v - 2.0 for v in values]] * 2


def test_a_group_may_be_added_between_loading_and_the_first_step() -> None:
    with cluster(descent(1.0), descent(1.0), sync_every=4) as optimizers:
        drive(optimizers, 6, lambda i, s: 1.0)
        settle(optimizers)
        drive(optimizers[:1], 1, lambda i, s: 1.0)
        state, value = optimizers[0].state_dict(), read(optimizers[0])[0]
    with closing(MendOptimizer(descent(value), listen=LOOPBACK, timing=TIMING)) as later:
        later.load_state_dict(state)
        add(later, 5.0)
        start([later])
        assert read(later) == [value, 5.0]
        assert [f.unmerged_tokens for f in later.status().fragments] == [1, 0]
