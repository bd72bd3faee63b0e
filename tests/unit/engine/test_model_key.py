from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.state import Switch
from mend_optim.membership.roster import Seeds
from mend_optim.protocol.lineage import Lineage, PeerId, model_key
from mend_optim.protocol.messages import State
from tests.support.strategies import digests, lineages

B = PeerId("b", 1)


def state(fragment: int) -> State:
    return State(peer=B, fragment=fragment, lineage=Lineage.fresh(b"g"), content=b"")


@given(st.lists(lineages, max_size=5), digests)
def test_models_are_ordered_by_the_sums_over_their_fragments(
    fragments: list[Lineage], genesis: bytes
) -> None:
    key = model_key((f.key for f in fragments), genesis, False)
    assert key == (
        sum(f.tokens for f in fragments),
        False,
        sum(f.version for f in fragments),
        genesis,
    )


def test_a_trained_model_is_greater_and_the_genesis_breaks_ties() -> None:
    fresh, trained = Lineage.fresh(b"z"), Lineage(tokens=1, version=0, digest=b"d", genesis=b"a")
    assert model_key([trained.key], b"a", False) > model_key([fresh.key], b"z", True)
    assert model_key([fresh.key], b"a", True) > model_key([fresh.key], b"z", False)
    assert model_key([fresh.key], b"z", False) > model_key([Lineage.fresh(b"a").key], b"a", False)


def test_a_switch_is_complete_once_every_fragment_has_arrived() -> None:
    switch = Switch(B, b"g", 2)
    switch.states[1] = state(1)
    switch.states[1] = state(1)
    assert not switch.complete
    switch.states[0] = state(0)
    assert switch.complete


def test_a_seed_is_missing_until_its_learner_is_known() -> None:
    seeds = Seeds(["b:1", "c:1"])
    seeds.resolve("b:1", B)
    assert seeds.missing == ["c:1"]
    assert seeds.peers() == [B]


def test_nobody_waits_for_a_seed_that_refused_us_or_is_ourselves() -> None:
    seeds = Seeds(["a:1"])
    seeds.discard("a:1")
    seeds.resolve("a:1", B)
    seeds.discard("unknown:1")
    assert (seeds.missing, seeds.peers()) == ([], [])


def test_a_refusal_ends_the_wait_until_the_learner_there_agrees() -> None:
    seeds = Seeds(["a:1"])
    seeds.refuse("a:1")
    seeds.refuse("unknown:1")
    assert (seeds.missing, seeds.refused) == ([], {"a:1"})
    seeds.resolve("a:1", B)
    assert (seeds.peers(), seeds.refused) == ([B], set())


def test_an_address_the_user_did_not_name_is_no_seed() -> None:
    seeds = Seeds(["b:1"])
    seeds.resolve("z:1", PeerId("z", 1))
    assert seeds.peers() == []


def test_a_restarted_learner_replaces_its_former_self() -> None:
    seeds = Seeds(["b:1"])
    seeds.resolve("b:1", B)
    seeds.resolve("b:1", PeerId("b", 2))
    assert seeds.peers() == [PeerId("b", 2)]
