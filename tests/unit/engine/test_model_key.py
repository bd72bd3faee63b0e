from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.state import Switch
from mend_optim.membership.seeds import Seeds
from mend_optim.protocol.lineage import Lineage, PeerId, begun, first_genesis, model_key
from mend_optim.protocol.messages import State
from mend_optim.protocol.unreached import Unreached
from tests.support.strategies import digests, lineages

B = PeerId("b", 1)


def state(fragment: int) -> State:
    return State(peer=B, fragment=fragment, lineage=Lineage.fresh(b"g"), content=b"")


@given(st.lists(lineages, max_size=5), digests)
def test_models_are_ordered_by_the_sums_over_their_fragments(
    fragments: list[Lineage], genesis: bytes
) -> None:
    key = model_key((f.key for f in fragments), genesis, 1)
    tokens = sum(f.tokens for f in fragments)
    assert key == (
        0,
        tokens,
        2 if tokens else 1,
        sum(f.version for f in fragments),
        genesis,
    )


def test_a_trained_model_is_greater_and_the_genesis_breaks_ties() -> None:
    fresh, trained = Lineage.fresh(b"z"), Lineage(tokens=1, version=0, digest=b"d", genesis=b"a")
    joined, steps = begun(joined=True, step=0), begun(joined=True, step=1)
    assert model_key([trained.key], b"a", 0) > model_key([fresh.key], b"z", steps)
    assert model_key([fresh.key], b"a", steps) > model_key([fresh.key], b"z", joined)
    assert model_key([fresh.key], b"a", joined) > model_key([fresh.key], b"z", 0)
    assert model_key([fresh.key], b"z", 0) > model_key([Lineage.fresh(b"a").key], b"a", 0)


@given(digests, digests, st.integers(0, 2))
def test_of_first_weights_those_that_were_trained_are_greater(
    trained: bytes, other: bytes, far: int
) -> None:
    a, b = first_genesis(trained, True), first_genesis(other, False)
    keys = (model_key([Lineage.fresh(genesis).key], genesis, far) for genesis in (a, b))
    assert next(keys) > next(keys)


@given(digests, digests, st.booleans())
def test_first_weights_keep_their_order_among_others_of_their_kind(
    a: bytes, b: bytes, trained: bool
) -> None:
    one, two = first_genesis(a, trained), first_genesis(b, trained)
    assert first_genesis(a, trained) == one
    assert len(one) == len(a)
    rests = (a[0] & 0x7F, a[1:]), (b[0] & 0x7F, b[1:])
    assert (one < two) == (rests[0] < rests[1])


def test_all_who_have_a_trained_model_show_the_same() -> None:
    """A go-between that has only joined stands for the learners that it has the model of. If it
    showed less than they do, their rooms would keep a model each."""
    trained = Lineage(tokens=1, version=0, digest=b"d", genesis=b"a")
    assert model_key([trained.key], b"a", 1) == model_key([trained.key], b"a", 2)


def test_steps_count_before_a_learner_joins() -> None:
    """It goes on where a checkpoint stood."""
    assert begun(joined=False, step=1) == begun(joined=True, step=1)


def test_a_switch_is_complete_once_every_fragment_has_arrived() -> None:
    switch = Switch(B, b"g", fragments=2, begun=1)
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
    seeds.refuse("a:1", "another model")
    seeds.refuse("unknown:1", "another model")
    assert (seeds.missing, seeds.refused) == ([], {"a:1": "another model"})
    assert seeds.cause("a:1") == "refused: another model"
    seeds.resolve("a:1", B)
    assert (seeds.peers(), seeds.refused) == ([B], {})


def test_a_seed_where_nobody_answers_is_missing_for_a_cause() -> None:
    seeds = Seeds(["a:1"])
    assert seeds.cause("a:1") == "no answer"
    seeds.fail(0.0, "a:1", Unreached.NAME)
    seeds.fail(0.0, "unknown:1", Unreached.NAME)
    assert (seeds.missing, seeds.cause("a:1")) == (["a:1"], "the name does not resolve")
    assert seeds.remedy("a:1") == "correct the name in peers, or give an IP address"
    seeds.resolve("a:1", B)
    assert (seeds.missing, seeds.unreached) == ([], {})


def test_a_learner_that_refused_and_is_gone_may_come_back_as_another() -> None:
    seeds = Seeds(["a:1"])
    seeds.refuse("a:1", "another model")
    seeds.fail(0.0, "a:1", Unreached.REFUSED)
    assert (seeds.missing, seeds.refused) == (["a:1"], {})
    seeds.refuse("a:1", "another model")
    assert (seeds.missing, seeds.unreached) == ([], {})


def test_a_name_is_unresolved_for_as_long_as_nothing_else_is_the_cause() -> None:
    seeds = Seeds(["a:1"])
    for now in (0.0, 4.0):
        seeds.fail(now, "a:1", Unreached.NAME)
    assert (seeds.unresolved(4.9, 5.0), seeds.unresolved(5.0, 5.0)) == (set(), {"a:1"})
    seeds.fail(6.0, "a:1", Unreached.REFUSED)
    assert seeds.unresolved(60.0, 5.0) == set()
    seeds.fail(61.0, "a:1", Unreached.NAME)
    assert (seeds.unresolved(65.0, 5.0), seeds.unresolved(66.0, 5.0)) == (set(), {"a:1"})


def test_an_address_the_user_did_not_name_is_no_seed() -> None:
    seeds = Seeds(["b:1"])
    seeds.resolve("z:1", PeerId("z", 1))
    assert seeds.peers() == []


def test_a_restarted_learner_replaces_its_former_self() -> None:
    seeds = Seeds(["b:1"])
    seeds.resolve("b:1", B)
    seeds.resolve("b:1", PeerId("b", 2))
    assert seeds.peers() == [PeerId("b", 2)]
