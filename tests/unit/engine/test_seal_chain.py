"""The seals that a sealer keeps for the peers that have not taken them yet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from mend_optim.engine.effects import Advance, Inspect
from mend_optim.engine.seal_chain import MOST_SEALS, SEALS, SealChain, cost
from mend_optim.protocol.lineage import Lineage
from mend_optim.protocol.messages import Goodbye, Packet, Seal, Want
from tests.reference import chain_of_seals
from tests.support.engines import (
    BASE,
    FOURTH,
    ME,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    offer_of,
    seal_of,
)


def lineages(count: int) -> list[Lineage]:
    """Anchors, each of which follows from the one before it by a seal of ours."""
    found = [BASE]
    for _ in range(count):
        found.append(grown(found[-1]))
    return found


def seals_on(anchors: list[Lineage]) -> list[Seal]:
    return [seal_of(anchor, sealer=ME) for anchor in anchors[:-1]]


MANY = MOST_SEALS + 6
ANCHORS = lineages(MANY)
MADE = seals_on(ANCHORS)
WEIGHTS = 16


def of_bytes(seal: Seal, size: int, weights: int = WEIGHTS) -> Seal:
    """The seal with so many bytes of a merged delta."""
    packet = Packet("packed", weights, memoryview(bytes(size)))
    return replace(seal, sections={"merged": packet})


@given(
    st.lists(st.lists(st.integers(0, MANY), max_size=4), min_size=1, max_size=MANY),
    st.sets(st.integers(1, MANY), max_size=3),
    st.lists(st.sampled_from([0, 1, 8, 16, 32, 64]), min_size=MANY, max_size=MANY),
)
@example([[0]] * MANY, set(), [0] * MANY)
@example([[0]] * MANY, set(), [8] * MANY)
@example([[0]] * MANY, set(), [64] * MANY)
def test_it_is_what_peers_lack_and_is_never_long(
    shown: list[list[int]], jumps: set[int], sizes: list[int]
) -> None:
    """`shown`: with each seal, the places of the anchors that peers have. `jumps`: the seals before
    which our anchor came another way, so that they are the first of a new chain. `sizes`: the
    bytes of each seal."""
    chain = SealChain()
    made = [of_bytes(seal, size) for seal, size in zip(MADE, sizes, strict=True)]
    costs = [size / (4 * WEIGHTS) for size in sizes]
    for i, places in enumerate(shown):
        if i in jumps:
            chain.moved(replace(ANCHORS[i], tokens=77).key)
        chain.add(made[i], [ANCHORS[place].key for place in places])
        expected = chain_of_seals(shown[: i + 1], jumps, costs, SEALS, MOST_SEALS)
        own = ANCHORS[i + 1].key
        kept = [j for j in range(i + 1) if chain.on(ANCHORS[j].digest, own) is made[j]]
        assert kept == expected
        assert chain.last is made[i]


def test_the_cost_of_a_seal_is_its_size_over_that_of_the_weights() -> None:
    """One with moments, or with the deltas of several members, has no more weights."""
    assert cost(of_bytes(MADE[0], 16)) == 0.25
    (packet,) = of_bytes(MADE[0], 16).sections.values()
    several = replace(MADE[0], sections={"0": packet, "1": packet, "moment.exp_avg": packet})
    assert cost(several) == 0.75
    assert cost(of_bytes(MADE[0], 0, 0)) == cost(MADE[0]) == 0.0


def test_a_newcomer_may_be_about_to_have_any_anchor() -> None:
    """One with other first weights has none of ours yet. It gets the seals after the one that
    comes to it."""
    engine = DrivenEngine(quorum=2, residual_in_weights=False)
    for peer in (PEER, THIRD):
        engine.beat(peer)
    chain = engine.engine.state.seals[0]
    sealed(engine, seq=1, follows=0)
    first = engine.lineage
    engine.beat(FOURTH, Lineage.fresh(b"another"), genesis=b"another")
    for seq in (2, 3):
        engine.beat(PEER, engine.lineage)
        sealed(engine, seq, follows=seq - 1)
    assert chain.on(first.digest, engine.lineage.key)
    engine.receive(Goodbye(FOURTH))
    engine.beat(PEER, engine.lineage)
    sealed(engine, seq=4, follows=3)
    assert chain.on(first.digest, engine.lineage.key) is None


def test_seals_that_do_not_lead_to_our_anchor_are_let_go() -> None:
    chain = SealChain()
    chain.add(MADE[0], [BASE.key])
    chain.moved(ANCHORS[1].key)
    assert chain.on(BASE.digest, ANCHORS[1].key)
    chain.moved(ANCHORS[2].key)
    assert chain.last is None


def test_a_seal_on_another_anchor_begins_anew() -> None:
    chain = SealChain()
    chain.add(MADE[0], [BASE.key])
    chain.add(MADE[3], [BASE.key])
    own = ANCHORS[4].key
    assert chain.on(ANCHORS[3].digest, own) is MADE[3]
    assert chain.on(BASE.digest, own) is None


def test_no_seal_is_told_before_our_anchor_is_there() -> None:
    """The worker may refuse our own seal."""
    chain = SealChain()
    chain.add(MADE[0], [BASE.key])
    assert chain.on(BASE.digest, BASE.key) is None


def test_a_seal_of_ours_that_the_worker_refuses_is_not_kept() -> None:
    """Those before it lead to our anchor."""
    engine = sealer_two_rounds_ahead()
    chain = engine.engine.state.seals[0]
    former = chain.last
    engine.receive(replace(offer_of(THIRD, 3), follows=2, key=engine.lineage.key))
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)
    engine.offer()
    engine.done(engine.merge())
    assert chain.last is not former
    (advance,) = engine.jobs(Advance)
    engine.done(advance, fault="not finite")
    assert chain.last is former
    assert chain.on(BASE.digest, engine.lineage.key)


def test_a_seal_of_a_peer_that_is_refused_changes_nothing() -> None:
    chain = SealChain()
    chain.add(MADE[0], [BASE.key])
    chain.refused(MADE[1].key)
    assert chain.last is MADE[0]


def sealed(engine: DrivenEngine, seq: int, follows: int) -> None:
    """One more round of this learner's own, with an offer of THIRD's. PEER takes no part."""
    engine.receive(replace(offer_of(THIRD, seq), follows=follows, key=engine.lineage.key))
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)
    engine.offer()
    engine.done(engine.merge())
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    engine.beat(THIRD, engine.lineage)


def sealer_two_rounds_ahead() -> DrivenEngine:
    engine = DrivenEngine(quorum=2, residual_in_weights=False)
    for peer in (PEER, THIRD):
        engine.beat(peer)
    sealed(engine, seq=1, follows=0)
    sealed(engine, seq=2, follows=1)
    engine.sent(Seal)
    return engine


def test_a_peer_that_missed_two_seals_gets_one_after_the_other() -> None:
    engine = sealer_two_rounds_ahead()
    has = BASE
    for _ in range(2):
        engine.receive(Want(PEER, 0, has.digest))
        ((to, seal),) = engine.sent(Seal)
        assert (to, seal.base) == (PEER, has.digest)
        has = has.seal(seal.members, seal.payload)
    assert has == engine.lineage


def test_an_offer_that_is_merged_already_is_answered_with_its_own_seal() -> None:
    engine = sealer_two_rounds_ahead()
    engine.receive(offer_of(THIRD))
    ((to, seal),) = engine.sent(Seal)
    assert to == THIRD
    assert seal.place(THIRD, 1) is not None
    assert seal.key != engine.lineage.key


def test_once_all_have_gone_past_a_seal_it_is_let_go() -> None:
    engine = sealer_two_rounds_ahead()
    chain = engine.engine.state.seals[0]
    assert chain.on(BASE.digest, engine.lineage.key)
    engine.beat(PEER, engine.lineage)
    sealed(engine, seq=3, follows=2)
    assert chain.last
    assert chain.on(BASE.digest, engine.lineage.key) is None
