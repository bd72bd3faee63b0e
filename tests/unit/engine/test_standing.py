"""The part of a fragment that a checkpoint keeps, and the fragment that goes on from it."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.absence import Absence
from mend_optim.engine.accounts import Totals
from mend_optim.engine.pending import NEVER, Pending
from mend_optim.engine.progress import Progress
from mend_optim.engine.standing import Standing, resumed, standing_of
from mend_optim.protocol.lineage import Claim, Lineage, PeerId
from tests.support.strategies import lineages, peers

ME, OLD = PeerId("me", 2), PeerId("me", 1)
BASE = Lineage.fresh(b"genesis")

totals = st.builds(Totals, st.integers(0, 1000), st.integers(0, 10**6))
claims = st.builds(Claim, peers, st.integers(0, 50))


@st.composite
def pendings(draw: st.DrawFn) -> Pending:
    """As a checkpoint keeps them: not sent to anybody."""
    claim = draw(claims)
    steps = draw(st.integers(0, 9))
    return Pending(
        claim=claim,
        seq=claim.settled + draw(st.integers(1, 9)),
        step=draw(st.integers(0, 1000)),
        tokens=draw(st.integers(0, 10**6)) if steps else 0,
        steps=steps,
        due=draw(st.booleans()),
        flush=draw(st.booleans()),
        follows=draw(st.integers(0, 50)),
        again=draw(st.tuples(st.integers(0, 99), st.integers(0, 9))),
        missed=draw(st.booleans()),
    )


standings = st.builds(
    Standing,
    lineage=lineages,
    claim=claims,
    cycle_start=st.integers(-100, 1000),
    settled=totals,
    dropped_tokens=st.integers(0, 10**6),
    pending=st.none() | pendings(),
    correction_pending=st.booleans(),
    adopt_at=st.none() | st.integers(0, 1000),
    averaged=st.dictionaries(st.sampled_from(["first", "second"]), st.integers(0, 50)),
    last=totals,
    has_unsent_residual=st.booleans(),
    disagrees=st.booleans(),
    absence=st.builds(Absence, st.integers(0, 50), st.integers(0, 10**6)),
)


@given(standing=standings, since=st.integers(0, 20))
def test_what_goes_on_from_a_checkpoint_keeps_the_same(standing: Standing, since: int) -> None:
    """But for the name of work that nobody has offered: without any, a process offers its own."""
    offered = standing.pending.steps if standing.pending else 0
    trained = standing.settled.step + offered + since
    progress = resumed(ME, 0, standing, Totals(trained, standing.settled.tokens))
    claim = standing.claim if since else Claim(ME, 0)
    assert standing_of(progress) == replace(standing, claim=claim)
    assert progress.restored_from == standing.claim
    assert progress.is_still
    assert progress.seq == 0


@given(standing=standings)
def test_a_checkpoint_does_not_change_with_the_process_that_goes_on_from_it(
    standing: Standing,
) -> None:
    pending = replace(standing.pending) if standing.pending else None
    before = replace(standing, pending=pending, averaged=dict(standing.averaged))
    progress = resumed(ME, 0, standing, Totals(10**6, 10**9))
    progress.averaged_moments({"first": 99})
    progress.drop(Totals(10**6, 10**9))
    if standing.pending:
        other = resumed(ME, 0, standing, Totals(10**6, 10**9))
        assert other.pending is not None
        other.pending.renumbered(99, 0)
    assert standing == before


def trained(steps: int = 4) -> tuple[Progress, Totals]:
    return Progress(OLD, 0, BASE, 0), Totals(steps, 10 * steps)


def test_a_copy_that_is_not_encoded_yet_counts_as_not_begun() -> None:
    """The rounds that its work missed count for the next one."""
    progress, totals = trained()
    progress.absence = Absence(1, 7)
    progress.snapshot(totals, due=True)
    standing = standing_of(progress)
    assert (standing.pending, standing.claim) == (None, Claim(OLD, 0))
    assert standing.absence == Absence(1, 7)
    after = resumed(ME, 0, standing, totals)
    assert after.unmerged(totals) == totals
    assert after.claim == Claim(OLD, 0)


def test_an_offer_is_kept_without_its_message_and_without_where_it_was_sent() -> None:
    progress, totals = trained()
    progress.snapshot(totals, due=True)
    progress.copied()
    progress.offered(b"genesis", {})
    assert progress.pending is not None
    progress.pending.sent(5.0, PeerId("peer", 1), delivered=True)
    progress.pending.arrived(resend_at=9.0)
    progress.pending.seal_s = 3.0
    kept = standing_of(progress).pending
    assert kept is not None
    assert (kept.offer, kept.sent_to, kept.delivered, kept.resend_at, kept.seal_s) == (
        None,
        None,
        False,
        NEVER,
        0.0,
    )
    work = ("claim", "seq", "step", "tokens", "steps", "due", "flush", "follows", "again")
    assert {field.name for field in fields(Pending)} > set(work)
    assert [getattr(kept, name) for name in work] == [
        getattr(progress.pending, name) for name in work
    ]
    assert progress.pending.sent_to == PeerId("peer", 1)


def test_an_anchor_that_still_moves_counts_as_not_begun() -> None:
    progress, totals = trained()
    before = standing_of(progress)
    progress.move()
    assert standing_of(progress) == before
    assert resumed(ME, 0, before, totals).is_still


def test_a_checkpoint_with_a_disagreement_goes_on_with_it() -> None:
    progress, totals = trained()
    progress.disagrees = True
    assert resumed(ME, 0, standing_of(progress), totals).disagrees
