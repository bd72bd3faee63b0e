"""A checkpoint as plain data: there and back, and whatever is wrong with it refused before anything
changes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD, Optimizer

from mend_optim import MendOptimizer, PowerSGD, UsageError
from mend_optim.engine.absence import PRESENT, Absence
from mend_optim.engine.accounts import Totals
from mend_optim.engine.pending import Pending
from mend_optim.engine.standing import Standing
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import Claim, Lineage, PeerId
from mend_optim.protocol.messages import SIZES
from mend_optim.worker.checkpoint import (
    MEMORIES,
    NUMBERS,
    TENSORS,
    Checkpoint,
    Kept,
    state_digest,
    to_state,
)
from mend_optim.worker.checkpoint_reader import StateError, from_state
from tests.support.checkpoints import adam, assert_alike, load, newcomer, progress, save, stored
from tests.support.learners import (
    LOOPBACK,
    TIMING,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    until,
    weights,
)
from tests.support.strategies import lineages, peers

NUMELS = (3, 4)
LAYOUT = Layout(["0", "1"], [*weights(1.0), torch.zeros(2, 2)], 2)
counts, more = st.integers(0, 10**12), st.integers(10**12, 10**15)
claims = st.builds(Claim, peers, counts)
pendings = st.builds(
    Pending,
    claim=claims,
    seq=counts,
    step=counts,
    tokens=counts,
    steps=counts,
    follows=counts,
    due=st.booleans(),
    missed=st.booleans(),
    flush=st.booleans(),
    again=st.tuples(counts, counts),
    share=st.sampled_from([0.25, 1.0]),
    absence=st.just(PRESENT) | st.builds(Absence, st.integers(1, 10**12), counts),
)
standings = st.builds(
    Standing,
    lineage=lineages,
    claim=claims,
    cycle_start=st.integers(-100, 10**12),
    settled=st.builds(Totals, counts, counts),
    dropped_tokens=counts,
    pending=st.none() | pendings,
    correction_pending=st.booleans(),
    adopt_at=st.none() | counts,
    last=st.builds(Totals, counts, counts),
    has_unsent_residual=st.booleans(),
    disagrees=st.booleans(),
    absence=st.just(PRESENT) | st.builds(Absence, st.integers(1, 10**12), counts),
)


@st.composite
def kept(draw: st.DrawFn, numel: int) -> Kept:
    standing = draw(standings)
    needed = (
        {"anchor"}
        | ({"delta"} if standing.pending else set())
        | ({"correction"} if standing.correction_pending else set())
        | ({"disagreement"} if standing.disagrees else set())
    )
    names = needed | draw(st.sets(st.sampled_from(TENSORS)))
    values = st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=numel, max_size=numel
    )
    tensors = {name: torch.tensor(draw(values), dtype=torch.float32) for name in sorted(names)}
    return Kept(standing, tensors, draw(st.booleans()))


checkpoints = st.builds(
    Checkpoint,
    step=more,
    tokens=more,
    head_start=counts,
    period=counts,
    weights=st.text("0123456789abcdef", max_size=32),
    history=st.lists(st.text(), max_size=3).map(tuple),
    fragments=st.just(()) | st.tuples(*map(kept, NUMELS)),
)


def test_the_sizes_are_the_layouts() -> None:
    assert tuple(sorted(f.numel for f in LAYOUT.fragments)) == NUMELS


def ordered(checkpoint: Checkpoint) -> Checkpoint:
    """With its fragments in the layout's order of sizes."""
    by_size = {f.tensors["anchor"].numel(): f for f in checkpoint.fragments}
    return replace(
        checkpoint, fragments=tuple(by_size[f.numel] for f in LAYOUT.fragments if by_size)
    )


@given(checkpoints)
def test_there_and_back(checkpoint: Checkpoint) -> None:
    checkpoint = ordered(checkpoint)
    for state in (to_state(checkpoint, LAYOUT), stored(to_state(checkpoint, LAYOUT))):
        back = from_state(state, LAYOUT)
        assert replace(back, fragments=()) == replace(checkpoint, fragments=())
        assert [(k.standing, k.replace) for k in back.fragments] == [
            (k.standing, k.replace) for k in checkpoint.fragments
        ]
        for here, there in zip(checkpoint.fragments, back.fragments, strict=True):
            assert_alike(here.tensors, there.tensors)


def of_former_versions(state: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The state as it was written before there were these keys."""
    for entry in state["fragments"]:
        for holder in (entry, entry["pending"] or {}):
            for key in keys:
                holder.pop(key, None)
    return {**state, "content": state_digest(state)}


@given(checkpoints)
def test_what_was_saved_before_anything_was_closed_has_nothing_to_close(
    checkpoint: Checkpoint,
) -> None:
    checkpoint = ordered(checkpoint)
    state = of_former_versions(to_state(checkpoint, LAYOUT), "last", "owes", "closing", "again")
    for kept, back in zip(checkpoint.fragments, from_state(state, LAYOUT).fragments, strict=True):
        pending = kept.standing.pending and replace(
            kept.standing.pending, flush=False, again=(0, 0)
        )
        assert back.standing == replace(
            kept.standing, pending=pending, last=Totals(), has_unsent_residual=False
        )
    if checkpoint.fragments:
        with pytest.raises(UsageError, match="damaged"):
            from_state({**state, "content": "0" * 32}, LAYOUT)


@pytest.mark.parametrize(("steps", "again"), [(0, (30, 3)), (1, (0, 0))])
def test_a_closing_offer_that_was_saved_without_its_weight_weighs_by_the_last_one(
    steps: int, again: tuple[int, int]
) -> None:
    me = Claim(PeerId("a", 1), 0)
    pending = Pending(claim=me, seq=1, step=4, tokens=10 * steps, steps=steps, due=True, flush=True)
    standing = Standing(
        lineage=Lineage.fresh(b"g" * 16),
        claim=me,
        cycle_start=0,
        settled=Totals(),
        dropped_tokens=0,
        pending=pending,
        correction_pending=False,
        adopt_at=None,
        last=Totals(3, 30),
    )
    tensors = [{"anchor": torch.zeros(n), "delta": torch.zeros(n)} for n in NUMELS]
    checkpoint = ordered(
        Checkpoint(step=9, tokens=90, fragments=tuple(Kept(standing, t) for t in tensors))
    )
    state = of_former_versions(to_state(checkpoint, LAYOUT), "again")
    for back in from_state(state, LAYOUT).fragments:
        assert back.standing.pending
        assert back.standing.pending.again == again


# ── what is wrong with it ─────────────────────────────────────────────────────────────────────────

Path = tuple[Any, ...]


@pytest.fixture(scope="module")
def rich() -> dict[str, Any]:
    """The state of a learner with all there can be: a pending offer, later work, an anchor not
    taken yet."""
    codec = PowerSGD(rank=1, min_ratio=1, back="same")
    with cluster(adam(), adam(), sync_every=4, adopt_after=3, codec=codec, fragments=2) as made:
        drive(made, 9, lambda i, s: float(i - s))
        drive(made[:1], 1, lambda i, s: 1.0)
        until(made[0], lambda: progress(made[0], 1).correction_pending)
        state = stored(made[0].state_dict())
    first, second = state["mend"]["fragments"]
    assert (bool(first["pending"]), second["untaken"], second["adopt_at"]) == (True, True, 11)
    assert {"stayed", "lost", "memory"} <= {*first["tensors"], *second["tensors"]}
    return state


def loader() -> MendOptimizer:
    """Without peers, and with a past of its own."""
    optimizer = MendOptimizer(adam(), name="other", fragments=2)
    drive([optimizer], 2, lambda i, s: 1.0)
    return optimizer


@cache
def undisturbed() -> list[Tensor]:
    """What such a learner has after one more step."""
    twin = loader()
    drive([twin], 1, lambda i, s: 1.0)
    return parameters(twin)


def assert_refused(
    state: Any, pattern: str = "must|lacks|missing", error: type[Exception] = StateError
) -> None:
    """With that error, and everything is as it was."""
    assert_all_refused([state], pattern, error)


def assert_all_refused(
    states: Iterable[Any],
    pattern: str = "must|lacks|missing",
    error: type[Exception] = StateError,
) -> None:
    """Each of them by one learner, which then trains on as if there had been none."""
    optimizer = loader()
    before = (
        [p.clone() for p in parameters(optimizer)],
        copy.deepcopy(optimizer.state_dict()),
        optimizer.status(),
    )
    for state in states:
        with pytest.raises(error, match=pattern) as caught:
            optimizer.load_state_dict(state)
        assert type(caught.value) is error
        assert_alike((parameters(optimizer), optimizer.state_dict(), optimizer.status()), before)
    drive([optimizer], 1, lambda i, s: 1.0)
    assert optimizer.status().step == 3
    assert_alike(parameters(optimizer), undisturbed())


def places(value: Any, at: Path = ()) -> list[Path]:
    """Every place in nested containers, without the places in a fingerprint or a history."""
    if isinstance(value, dict):
        inner = [path for key, item in value.items() for path in places(item, (*at, key))]
    elif isinstance(value, list) and at[-1:] not in (("model",), ("history",)):
        inner = [path for i, item in enumerate(value) for path in places(item, (*at, i))]
    else:
        inner = []
    return [at, *inner] if at else inner


def with_value(state: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(state)
    inside: Any = changed["mend"]
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return changed


def without(state: dict[str, Any], path: Path) -> dict[str, Any]:
    changed = copy.deepcopy(state)
    inside: Any = changed["mend"]
    for key in path[:-1]:
        inside = inside[key]
    del inside[path[-1]]
    return changed


OPTIONAL = {
    "velocity",
    "residual",
    "stayed",
    "lost",
    "memory",
    "returned",
    "returned_memory",
    "rounding",
}


def test_anything_that_is_missing_is_named(rich: dict[str, Any]) -> None:
    listed = [p for p in places(rich["mend"]) if not OPTIONAL & set(p)]
    assert len(listed) > 50
    for path in listed:
        if path[-2:-1] == ("merged",):
            continue  # a list of any length
        wanted = {"delta", "correction"} & set(path)
        if wanted and not needs(rich["mend"]["fragments"][path[1]], wanted.pop()):
            continue
        assert_refused(without(rich, path))


def needs(entry: dict[str, Any], tensor: str) -> bool:
    return bool(entry["pending"] if tensor == "delta" else entry["untaken"])


class Odd:
    """Of no type that anybody expects."""


def other_types(value: Any) -> list[Any]:
    """Values of every type but this one's, as far as the type matters."""
    junk: list[Any] = [None, True, 7, 1.5, "zz", b"zz", [], {}, (1,), torch.zeros(99), Odd()]
    return [j for j in junk if type(j) is not type(value)]


def test_anything_of_another_type_is_refused(rich: dict[str, Any]) -> None:
    for path in places(rich["mend"]):
        assert_all_refused(with_value(rich, path, junk) for junk in wrong_types(rich, path))


def wrong_types(state: dict[str, Any], path: Path) -> Iterator[Any]:
    """Values of types that are wrong at this place."""
    value = dict_at(state, path)
    for junk in other_types(value):
        if path[-1] in ("pending", "adopt_at") and (
            junk is None or isinstance(junk, type(value) | int)
        ):
            continue
        if path[-1] == "pending" and junk == {}:
            continue  # of its own, below
        yield junk


def dict_at(state: dict[str, Any], path: Path) -> Any:
    inside: Any = state["mend"]
    for key in path:
        inside = inside[key]
    return inside


def test_an_offer_without_anything_in_it_is_not_taken_for_none(rich: dict[str, Any]) -> None:
    assert_refused(with_value(rich, ("fragments", 0, "pending"), {}))


TENSOR_FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "cut": lambda t: t[:-1],
    "longer": lambda t: torch.cat([t, t]),
    "another shape": lambda t: t[:, None],
    "NaN": lambda t: t.clone().fill_(float("nan")),
    "infinity": lambda t: torch.cat([t[:-1], torch.tensor([float("-inf")])]),
    "double": lambda t: t.double(),
    "half": lambda t: t.half(),
    "integers": lambda t: t.int(),
    "without memory": lambda t: torch.empty_like(t, device="meta"),
    "sparse": lambda t: t.to_sparse(),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_a_tensor_must_be_flat_finite_float32_of_the_right_size(
    fault: str, rich: dict[str, Any]
) -> None:
    for p, entry in enumerate(rich["mend"]["fragments"]):
        for name, tensor in entry["tensors"].items():
            state = with_value(
                rich, ("fragments", p, "tensors", name), TENSOR_FAULTS[fault](tensor)
            )
            # but not another than was saved
            as_long_as_it_likes = name in MEMORIES and fault in ("cut", "longer")
            named = rf"\['fragments'\]\[{p}\]\['{name}'\] must be"
            assert_refused(
                state, "digest of what was saved|sizes of offers" if as_long_as_it_likes else named
            )


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.builds(torch.zeros, st.integers(0, 9)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=4,
)


@given(st.data())
def test_whatever_stands_where_it_is_taken_whole_or_refused(
    rich: dict[str, Any], data: st.DataObject
) -> None:
    """Never another error than ours; and if it is taken, the optimizer goes on."""
    path = data.draw(st.sampled_from([(), *places(rich["mend"])]))
    value = data.draw(junk)
    state = with_value(rich, path, value) if path else {**rich, "mend": value}
    try:
        if state["mend"] is not None:
            from_state(state["mend"], loader()._run.model.layout_if_any())
    except UsageError:
        assert_refused(state)
    else:
        optimizer = loader()
        optimizer.load_state_dict(state)
        drive([optimizer], 1, lambda i, s: 1.0)


WRONG: dict[str, tuple[Path, Any]] = {
    "a digest of another length": (("fragments", 0, "lineage", "digest"), "ab"),
    "a genesis of no length": (("fragments", 0, "lineage", "genesis"), ""),
    "more than a counter holds": (("step",), 2**70),
    "a negative claim": (("fragments", 0, "claim"), ["a", 1, -1]),
    "a negative incarnation": (("fragments", 0, "claim"), ["a", -1, 1]),
    "more banked than trained": (("fragments", 0, "banked"), [10**6, 10**6]),
    "less than nothing banked": (("fragments", 0, "banked"), [-5, -5]),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_no_learner_can_have_written_is_refused(fault: str, rich: dict[str, Any]) -> None:
    """The right types and impossible values: peers would be told of them, or they would never be
    merged."""
    assert_refused(with_value(rich, *WRONG[fault]))


GENESES = {
    "of rollback 0": "00000000" + "61",
    "of nobody's rollback": "00000001",
    "of a name that is too long": "00000001" + "61" * 257,
    "of a name with a line break": "00000001" + "610a",
    "of a name that is no text": "00000001" + "ff",
}


@pytest.mark.parametrize("fault", GENESES)
def test_a_genesis_of_no_rollback_is_refused(fault: str, rich: dict[str, Any]) -> None:
    """Peers would be told of that name."""
    place = ("fragments", 0, "lineage", "genesis")
    state = with_value(rich, place, "ab" * 16 + GENESES[fault])
    assert_refused(state, r"\['genesis'\] must be a digest in hex, or that of a rollback")


# ── another's ─────────────────────────────────────────────────────────────────────────────────────


def listening(inner: Optimizer, **options: Any) -> closing[MendOptimizer]:
    """A learner that peers may find: alone, it would leave another model's checkpoint out."""
    return closing(MendOptimizer(inner, listen=LOOPBACK, timing=TIMING, **options))


def test_another_model_is_named_by_its_first_difference(rich: dict[str, Any]) -> None:
    with listening(SGD(weights(1.0, 2.0), lr=0.1), fragments=2) as optimizer:
        state = {**rich, "param_groups": optimizer.inner.state_dict()["param_groups"], "state": {}}
        with pytest.raises(UsageError, match=r"parameter 0: here \[3\], there \[31\]"):
            optimizer.load_state_dict(state)
        assert (optimizer.status().step, optimizer.param_groups[0]["lr"]) == (0, 0.1)


def test_another_number_of_parameters_is_named(rich: dict[str, Any]) -> None:
    refusal = pytest.raises(UsageError, match="number of parameters: here 1, there 2")
    with listening(descent(1.0)) as optimizer, refusal:
        optimizer.load_state_dict(rich)


def test_another_model_that_nobody_has_trained_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Libraries cut the state of an optimizer to the parameters that are left."""
    with listening(descent(1.0, 2.0)) as saved, listening(descent(1.0, lr=0.5)) as optimizer:
        state = saved.state_dict()
        state["param_groups"][0]["params"].pop()
        optimizer.load_state_dict(state)
        assert (optimizer.status().step, optimizer.param_groups[0]["lr"]) == (0, 1.0)
        assert "number of parameters: here 1, there 2" in caplog.text
        saved.join()
        state["mend"] = saved.state_dict()["mend"]
        assert state["mend"]["step"] == 0
        assert state["mend"]["fragments"]
        with pytest.raises(UsageError, match="number of parameters"):
            optimizer.load_state_dict(state)
        alone = MendOptimizer(descent(1.0, 2.0))
        alone.step()
        state["mend"] = alone.state_dict()["mend"]
        assert not state["mend"]["fragments"]
        with pytest.raises(UsageError, match="number of parameters"):
            optimizer.load_state_dict(state)


def test_another_number_of_fragments_is_named(rich: dict[str, Any]) -> None:
    with listening(adam(), fragments=1) as optimizer:
        with pytest.raises(UsageError, match="fragments=1, got 2"):
            optimizer.load_state_dict(rich)
        assert optimizer.status().step == 0


def test_an_automatic_number_of_fragments_is_the_checkpoints(rich: dict[str, Any]) -> None:
    """Also for a copy of the optimizer."""
    with listening(adam()) as optimizer:
        optimizer.load_state_dict(rich)
        for each in (optimizer, copy.deepcopy(optimizer)):
            assert each.status().step == 10
            assert len(each.state_dict()["mend"]["fragments"]) == 2
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert len(optimizer.status().fragments) == 2


@pytest.mark.parametrize("form", [0, 2, -1])
def test_another_format_is_refused(form: int, rich: dict[str, Any]) -> None:
    assert_refused(with_value(rich, ("format",), form), r"\['format'\] must be 1")


def test_a_bad_inner_part_changes_nothing_either(rich: dict[str, Any]) -> None:
    groups = copy.deepcopy(rich["param_groups"])
    groups[0]["params"].append(2)
    assert_refused({**rich, "param_groups": groups}, "doesn't match the size", ValueError)
    assert_refused(
        {**rich, "param_groups": [*groups, *groups]},
        "different number of parameter groups",
        ValueError,
    )


def test_our_part_may_be_left_out(rich: dict[str, Any]) -> None:
    optimizer = loader()
    optimizer.load_state_dict({key: value for key, value in rich.items() if key != "mend"})
    assert optimizer.status().step == 2
    assert_alike(optimizer.inner.state_dict()["state"], rich["state"])


def test_among_peers_a_refused_checkpoint_leaves_the_rounds_alone(rich: dict[str, Any]) -> None:
    with cluster(adam(), adam(), sync_every=2, adopt_after=0, fragments=2) as made:
        drive(made, 4, lambda i, s: float(i))
        before = made[0].status()
        for state in (without(rich, ("step",)), {**rich, "param_groups": []}):
            with pytest.raises(ValueError, match=r"step|parameter groups"):
                made[0].load_state_dict(state)
        after = made[0].status()
        assert (after.address, after.fragments, after.step) == (
            before.address,
            before.fragments,
            before.step,
        )
        drive(made, 2, lambda i, s: float(i))
        assert made[0].status().rounds_adopted == before.rounds_adopted + 2
        assert [f.digest for f in made[0].status().fragments] == [
            f.digest for f in made[1].status().fragments
        ]


def test_a_value_that_changed_in_a_file_is_found_by_the_digest(rich: dict[str, Any]) -> None:
    """Finite, of the right size: nothing else would tell it from the anchor that others have under
    its lineage."""
    for p, entry in enumerate(rich["mend"]["fragments"]):
        for name, tensor in entry["tensors"].items():
            other = tensor.clone()
            other[0] += 0.5
            assert_refused(
                with_value(rich, ("fragments", p, "tensors", name), other),
                "digest of what was saved",
            )
    assert_refused(
        with_value(rich, ("tokens",), rich["mend"]["tokens"] + 1), "digest of what was saved"
    )
    assert_refused(with_value(rich, ("more",), 1), "digest of what was saved")


@pytest.mark.parametrize("alone", [False, True])
def test_weights_do_not_become_the_saved_ones_by_being_saved_beside_them(
    rich: dict[str, Any], alone: bool
) -> None:
    """The model forgotten, then saved again before the first step, or after a step without
    peers."""
    others = [torch.full_like(p, 100.0) for p in parameters(adam())]
    options: dict[str, Any] = {"sync_every": 4, "adopt_after": 3, "codec": "bf16", "fragments": 2}
    with (
        MendOptimizer(adam(), **options) if alone else newcomer(adam(), "a", **options) as careless
    ):
        for parameter, other in zip(parameters(careless), others, strict=True):
            parameter.copy_(other)
        careless.load_state_dict(rich)
        if alone:
            drive([careless], 1, lambda i, s: 0.0)
            assert careless.status().step == 1
        again = save(careless)
    watch = Watch()
    with closing(newcomer(adam(), "b", on_event=watch, **options)) as optimizer:
        load(optimizer, again)
        optimizer.join()
        (event,) = watch.until("restored")
        if alone:
            # new weights, trained for one step
            assert [f.version for f in optimizer.status().fragments] == [1, 1]
        else:
            assert not event.facts["intact"]
            assert all(p.abs().max() < 50 for p in parameters(optimizer))


def test_a_checkpoint_of_a_former_version_holds_no_disagreement() -> None:
    state = from_state(of_former_versions(disagreeing(), "disagrees"), LAYOUT)
    assert [kept.standing.disagrees for kept in state.fragments] == [False, False]


@given(checkpoints)
def test_what_was_saved_before_there_were_shares_has_missed_no_round(
    checkpoint: Checkpoint,
) -> None:
    checkpoint = ordered(checkpoint)
    state = of_former_versions(to_state(checkpoint, LAYOUT), "missed_rounds", "share")
    for kept, back in zip(checkpoint.fragments, from_state(state, LAYOUT).fragments, strict=True):
        pending = kept.standing.pending and replace(
            kept.standing.pending, share=1.0, absence=PRESENT
        )
        assert back.standing == replace(kept.standing, pending=pending, absence=PRESENT)


@pytest.mark.parametrize(
    "told", [[1], [1, 2, 3], [1, -2], [-1, 2], [1.0, 2], [1, 2**62 + 1], [True, 2], None, "1 2"]
)
def test_rounds_that_nobody_can_have_missed_are_refused(told: Any) -> None:
    state = disagreeing()
    state["fragments"][1]["missed_rounds"] = told
    with pytest.raises(UsageError, match="missed_rounds"):
        from_state(state, LAYOUT)


@pytest.mark.parametrize("share", [0.0, 1e-7, -0.5, 1.5, math.nan, math.inf, 1, None, "1"])
def test_a_share_of_an_offer_is_more_than_nothing_and_no_more_than_all(share: Any) -> None:
    me = Claim(PeerId("a", 1), 0)
    pending = Pending(claim=me, seq=1, step=4, tokens=10, steps=1, due=True, share=0.5)
    kept = disagreeing(pending=pending)
    assert [k.standing.pending for k in from_state(kept, LAYOUT).fragments] == [pending] * 2
    kept["fragments"][1]["pending"]["share"] = share
    with pytest.raises(UsageError, match="share"):
        from_state(kept, LAYOUT)


def test_a_checkpoint_that_lacks_the_disagreement_it_tells_of_is_refused() -> None:
    state = disagreeing()
    assert [k.standing.disagrees for k in from_state(state, LAYOUT).fragments] == [True, True]
    del state["fragments"][1]["tensors"]["disagreement"]
    with pytest.raises(UsageError, match="lacks the tensor 'disagreement'"):
        from_state({**state, "content": state_digest(state)}, LAYOUT)


def disagreeing(pending: Pending | None = None) -> dict[str, Any]:
    """The state of a learner with a disagreement in both fragments, and perhaps an offer."""
    standing = Standing(
        lineage=Lineage.fresh(b"g" * 16),
        claim=Claim(PeerId("a", 1), 0),
        cycle_start=0,
        settled=Totals(),
        dropped_tokens=0,
        pending=pending,
        correction_pending=False,
        adopt_at=None,
        disagrees=True,
    )
    names = ("anchor", "disagreement", *(["delta"] if pending else []))
    tensors = [{name: torch.ones(n) for name in names} for n in NUMELS]
    fragments = tuple(Kept(standing, held) for held in tensors)
    return to_state(ordered(Checkpoint(step=9, tokens=90, fragments=fragments)), LAYOUT)


# ── hostile ───────────────────────────────────────────────────────────────────────────────────────


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def put(*path: Any) -> Callable[[dict[str, Any], Any], None]:
    """A function that puts a value there into a state."""

    def change(state: dict[str, Any], value: Any) -> None:
        target: Any = state
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


FIRST = ("fragments", 0)
MANY = [[f"a{n}", 1, 1] for n in range((1 << 16) + 1)]
HOSTILE = {
    "model": (put("model"), nested(10**4), "a list of"),
    "field": (put("model", 0), ["a", nested(10**4)], "nested too deep"),
    "history": (put("history"), [nested(10**4)], "nested too deep"),
    "weights": (put("weights"), nested(10**4), "of type str"),
    "memory": (
        put(*FIRST, "tensors", "memory"),
        torch.zeros(1).expand(1 << 36),
        "dense float32 tensor",
    ),
    "updates": (
        put(*FIRST, "tensors", "latest exp_avg"),
        torch.tensor([0.0] * LAYOUT.fragments[0].numel + [-1.0]),
        "a moment with update counts >= 0",
    ),
    "unknown tensor": (
        put(*FIRST, "tensors", "unknown"),
        torch.zeros(1).expand(1 << 36),
        "larger than its bytes",
    ),
    "author": (put(*FIRST, "claim"), ["", 1, 1], r"\[name, incarnation, number\]"),
    "long author": (put(*FIRST, "claim"), ["a" * 5000, 1, 1], "incarnation"),
    "author of two lines": (put(*FIRST, "claim"), ["a\nb", 1, 1], "incarnation"),
    "look-alike": (put(*FIRST, "lineage", "merged"), [["e\u0301", 1, 1]], "incarnation"),
    "surrogate": (put(*FIRST, "lineage", "merged"), [["\ud800", 1, 1]], "incarnation"),
    "number": (put(*FIRST, "claim"), ["a", 1, 2**62 + 1], "incarnation"),
    "authors": (put(*FIRST, "lineage", "merged"), MANY, "at most 65536 authors"),
    "tokens": (put(*FIRST, "lineage", "tokens"), 2**62 + 1, "from 0 to 2"),
    "mark": (put(*FIRST, "mark"), 2**70, "within 2"),
    "mark before": (put(*FIRST, "mark"), -(2**70), "within 2"),
    "adopt_at": (put(*FIRST, "adopt_at"), 2**70, "within 2"),
    "rate": (put("rate"), float("nan"), "a finite float >= 0"),
    "rate below": (put(*FIRST, "banked_rate"), -1.0, "a finite float >= 0"),
    "digest": (put(*FIRST, "lineage", "digest"), "00" * 17, "a digest in hex"),
    "sizes": (put(*FIRST, "tensors", SIZES), torch.tensor([0.0, 1.0]), "sizes of offers"),
    **{
        name: (put(*FIRST, "tensors", name), torch.tensor([-1.0]), "a number >= 0")
        for name in NUMBERS
    },
}


@pytest.mark.parametrize("row", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_checkpoint_is_refused(row: Any) -> None:
    change, value, message = row
    lineage = Lineage(tokens=1, version=1, digest=b"d" * 16, genesis=b"g" * 16, merged={})
    standing = Standing(
        lineage=lineage,
        claim=Claim(PeerId("a", 1), 0),
        cycle_start=0,
        settled=Totals(),
        dropped_tokens=0,
        pending=None,
        correction_pending=False,
        adopt_at=None,
    )
    anchors = (torch.zeros(fragment.numel) for fragment in LAYOUT.fragments)
    fragments = tuple(Kept(standing, {"anchor": anchor}) for anchor in anchors)
    saved = Checkpoint(weights="00", fragments=fragments)
    state = copy.deepcopy(to_state(saved, LAYOUT))
    assert from_state(state, LAYOUT).fragments
    change(state, value)
    with pytest.raises(UsageError, match=message):
        from_state(state, LAYOUT)
