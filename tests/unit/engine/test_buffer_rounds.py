"""The fragment of buffers: it has rounds as any other, and nothing in it that is for deltas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mend_optim import AutoPeriod, Moment, MomentSchedule
from mend_optim.engine.effects import Advance, Agree, Inspect, Merge, Prepare
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Entry, Lineage
from mend_optim.protocol.messages import Call, Offer, Packet, Seal
from tests.support.engines import (
    BASE,
    GENESIS,
    ME,
    PAYLOAD,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    offer_of,
)

BUFFERS = 1


def state_of_groups(*groups: bytes, fragments: int = 1) -> EngineState:
    moment = Moment(name="exp_avg", order="first", decay=0.9)
    policies = Policies(
        schedule=Schedule(sync_every=20, fragments=fragments),
        moments=(moment,),
        periods=MomentSchedule(first=1, second=1),
        residual_in_weights=True,
    )
    state = EngineState(ME, "", (), policies)
    lineage = Lineage.fresh(GENESIS)
    state.install([Progress(ME, p, lineage, 0) for p in range(len(groups))], groups)
    return state


def learner(*peers: object, **options: object) -> DrivenEngine:
    engine = DrivenEngine(buffers=True, **options)  # type: ignore[arg-type]
    for peer in peers:
        engine.beat(peer)  # type: ignore[arg-type]
    return engine


def progress(engine: DrivenEngine) -> Progress:
    return engine.engine.state.fragments[BUFFERS]


def offer(engine: DrivenEngine, steps: int = 4) -> dict[int, Offer]:
    """Train up to the boundary and offer; returns the offers by fragment."""
    engine.step(steps)
    wanted = engine.engine.boundaries.fragments_to_copy()
    engine.reserve()
    for p in wanted:
        engine.engine.boundaries.snapshot(p, torch.zeros(0))
    for job in engine.jobs(Prepare):
        engine.done(job, sections={"delta": Packet("none", 2, memoryview(bytes(8)))})
    pending = {p: engine.engine.state.fragments[p].pending for p in wanted}
    return {p: found.offer for p, found in pending.items() if found and found.offer}


def admit(engine: DrivenEngine, message: Offer) -> None:
    engine.receive(message)
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)


def seal_with_us(engine: DrivenEngine, p: int, made: Offer) -> Advance:
    """A peer's seal of our offer arrives."""
    base = engine.engine.state.fragments[p].lineage
    members = (made.entry,)
    seal = Seal(
        sealer=PEER,
        fragment=p,
        base=base.digest,
        key=grown(base, *members).key,
        members=members,
        weights=(1.0,),
        absent=(),
        reason="all_present",
        payload=PAYLOAD,
    )
    engine.receive(seal)
    (job,) = engine.jobs(Advance)
    assert isinstance(job, Advance)
    return job


# ── which one ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("groups", "fragments", "buffers", "shared"),
    [
        ((b"",), 1, None, 1),
        ((b"", b""), 2, None, 2),
        ((b"", b""), 1, 1, 2),
        ((b"", b"added"), 1, None, 1),
        ((b"", b"", b"", b"added"), 2, 2, 3),
    ],
)
def test_it_is_the_fragment_after_the_wrapped_ones(
    groups: tuple[bytes, ...], fragments: int, buffers: int | None, shared: int
) -> None:
    state = state_of_groups(*groups, fragments=fragments)
    assert [p for p in range(9) if state.is_buffers(p)] == ([] if buffers is None else [buffers])
    assert state.has_buffers is (buffers is not None)
    assert state.shared == shared


def test_it_has_no_moments_and_is_never_flushed() -> None:
    state = state_of_groups(b"", b"")
    state.resting = True
    assert [state.moments_due(p, 1) for p in (0, 1)] == [("exp_avg",), ()]
    assert [state.moments_owed(fragment) for fragment in state.fragments] == [("exp_avg",), ()]
    assert [state.flushes(p) for p in (0, 1)] == [True, False]
    for fragment in state.fragments:
        fragment.residual.unsent = True
    assert [state.has_unsent_work(fragment) for fragment in state.fragments] == [True, False]


@pytest.mark.parametrize("fragments", [1, 2])
def test_its_turn_is_that_of_the_last_fragment(fragments: int) -> None:
    schedule = Schedule(sync_every=8, fragments=fragments)
    starts = [schedule.first_cycle_start(p, step=100) for p in range(fragments + 2)]
    assert starts[-1] == starts[-2] == starts[fragments - 1] == 100


def test_it_has_the_periods_that_the_run_chooses() -> None:
    engine = learner(PEER, auto=AutoPeriod(), sync_every=4)
    engine.step(3)
    engine.engine.state.set_period(9)
    assert [f.cycle_start for f in engine.engine.state.fragments] == [3, 3]


def test_it_is_in_what_learners_agree_to_end_on() -> None:
    engine = learner(PEER)
    state = engine.engine.state
    before = state.anchors_digest()
    fragment = progress(engine)
    fragment.lineage = grown(fragment.lineage)
    assert state.anchors_digest() != before


# ── measurements ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("p", "measured"), [(0, [4]), (BUFFERS, [])])
def test_its_rounds_say_nothing_of_how_late_anchors_are(p: int, measured: list[int]) -> None:
    engine = learner(PEER, seals=False)
    seen: list[int] = []
    engine.engine.state.measured = lambda p, sealer, began: seen.append(began)  # type: ignore[method-assign]
    offers = offer(engine)
    engine.step(4)
    engine.done(seal_with_us(engine, p, offers[p]))
    assert seen == measured


@pytest.mark.parametrize(("p", "counts"), [(0, True), (BUFFERS, False)])
def test_its_offers_say_nothing_of_the_link(p: int, counts: bool) -> None:
    engine = learner(PEER, seals=False)
    made = offer(engine)[p]
    stragglers = engine.engine.stragglers
    seen: list[float] = []
    stragglers.delivered = lambda took, size: seen.append(took)  # type: ignore[method-assign]
    pending = engine.engine.offers.sent_as(PEER, made)
    assert pending is not None
    engine.engine.offers.delivered(engine.now + 1.0, pending)
    assert bool(seen) is counts


# ── rounds ────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_offered_with_the_others() -> None:
    engine = learner(PEER, seals=False)
    assert sorted(offer(engine)) == [0, BUFFERS]


def test_after_an_anchor_the_buffers_differ_until_a_rest() -> None:
    """Whatever the gain: a learner that went on has followed the anchor only as far as it goes."""
    engine = learner(PEER, seals=False)
    job = seal_with_us(engine, BUFFERS, offer(engine)[BUFFERS])
    assert job.gain == 1.0
    engine.done(job)
    assert progress(engine).disagrees
    engine.engine.correction_applied(engine.now, BUFFERS, False)
    assert engine.jobs(Agree) == []
    engine.engine.rest(engine.now)
    assert engine.jobs(Agree) == [Agree(BUFFERS)]
    engine.done(Agree(BUFFERS))
    assert not progress(engine).disagrees


def test_a_learner_at_rest_weighs_as_much_as_its_last_offer() -> None:
    engine = learner(PEER, seals=False)
    offers = offer(engine)
    for p in (0, BUFFERS):
        engine.done(seal_with_us(engine, p, offers[p]))
        engine.engine.correction_applied(engine.now, p, False)
    engine.engine.rest(engine.now)
    engine.sent(Offer)
    for p in (0, BUFFERS):
        engine.receive(Call(PEER, p))
    empty = {message.fragment: message for _, message in engine.sent(Offer)}
    assert {p: message.again for p, message in empty.items()} == {0: (0, 0), BUFFERS: (40, 4)}
    assert {message.steps for message in empty.values()} == {0}


@pytest.mark.parametrize(("p", "weights"), [(0, (1.0, 0.0, 0.0)), (BUFFERS, (0.25, 0.75, 0.0))])
def test_a_sealer_weighs_learners_at_rest_in_rounds_of_buffers(
    p: int, weights: tuple[float, ...]
) -> None:
    engine = learner(PEER, THIRD, quorum=3)
    made = offer(engine)
    assert made[p].tokens == 40
    for peer, again in ((PEER, (120, 12)), (THIRD, (0, 0))):
        empty = replace(offer_of(peer), fragment=p, seq=0, tokens=0, steps=0, again=again)
        admit(engine, empty)
    (merge,) = [job for job in engine.jobs(Merge) if job.fragment == p]
    assert [o.peer for o in merge.offers] == [ME, PEER, THIRD]
    assert merge.weights == pytest.approx(weights)
    assert not merge.flush


def test_its_few_bytes_do_not_count_in_the_volume_of_a_round() -> None:
    seen = []

    class Period(AutoPeriod):
        def next(self, present: int, latencies: object, nbytes: int, step_s: float) -> int:
            seen.append(nbytes)
            return present

    for buffers in (False, True):
        engine = DrivenEngine(buffers=buffers, auto=Period(), quorum=2)
        engine.beat(PEER, latency=3)
        for _ in range(9):
            engine.engine.state.latency.add(3)
        offer(engine)
        packet = {"delta": Packet("none", 2, memoryview(bytes(8)))}
        admit(engine, replace(offer_of(PEER), sections=packet))
        (merge,) = [job for job in engine.jobs(Merge) if job.fragment == 0]
        engine.done(merge, sections={"merged": Packet("none", 1, memoryview(bytes(4)))})
    assert seen == [12, 12]


def test_entries_are_what_was_offered() -> None:
    """Whatever a learner at rest weighs, it brings no tokens to the lineage."""
    engine = learner(PEER, quorum=2)
    offer(engine)
    empty = replace(offer_of(PEER), fragment=BUFFERS, seq=0, tokens=0, steps=0, again=(120, 12))
    admit(engine, empty)
    (merge,) = [job for job in engine.jobs(Merge) if job.fragment == BUFFERS]
    engine.done(merge)
    (advance,) = engine.jobs(Advance)
    assert advance.lineage.tokens == BASE.tokens + 40
    assert Entry(PEER, 0, 0, 0) in advance.seal.members
