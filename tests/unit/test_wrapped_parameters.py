"""The order in which all learners have the parameters of a model."""

from __future__ import annotations

import torch
from torch import nn

from mend_optim.model.fragment_count import FragmentCount
from mend_optim.protocol.handshake import name_order
from mend_optim.worker.checkpoint import Checkpoint, to_state
from mend_optim.wrapped_parameters import WrappedParameters, wrapped_again
from tests.support.older_torch import needs_names

SIZES = {"b": 3, "_orig_mod.a": 2, "c": 4}


def wrapped(names: list[str], added: tuple[str, ...] = ()) -> WrappedParameters:
    def group(chosen: list[str]) -> dict[str, object]:
        return {"params": [(name, nn.Parameter(torch.ones(SIZES[name]))) for name in chosen]}

    groups = [group(names), *([group(list(added))] if added else [])]
    return WrappedParameters(torch.optim.AdamW(groups), FragmentCount(), 1)


def sizes(model: WrappedParameters) -> list[int]:
    return [len(tensor) for tensor in model.merged]


@needs_names
def test_named_tensors_are_in_the_order_of_their_names() -> None:
    assert name_order(list(SIZES)) == [1, 0, 2]
    for names in (["b", "_orig_mod.a", "c"], ["c", "b", "_orig_mod.a"]):
        model = wrapped(names)
        model.lay_out()
        assert model.layout().names == ("a", "b", "c")
        assert sizes(model) == [2, 3, 4]
        model.check()


def test_what_has_no_name_of_its_own_is_in_the_order_of_the_list() -> None:
    assert name_order(["b", "10", "9"]) == [0, 1, 2]
    assert name_order(["b", "a", "b"]) == [0, 1, 2]
    assert name_order(["a", "_orig_mod.a"]) == [0, 1]


@needs_names
def test_tensors_that_are_laid_out_keep_their_names() -> None:
    """A stage of a pipeline loads a checkpoint of ranks that had other parameters."""
    model = wrapped(["b", "c"])
    state = wrapped(["c", "b"]).inner.state_dict()
    state["param_groups"][0]["param_names"] = ["a", "b", "c"]
    state["param_groups"][0]["lr"] = 0.5
    model.lay_out()
    model.load_inner(state)
    model.check()
    assert model.layout().names == ("b", "c")
    assert model.inner.param_groups[0]["param_names"] == ["b", "c"]
    assert model.inner.param_groups[0]["lr"] == 0.5


@needs_names
def test_without_learners_names_are_those_of_the_checkpoint_as_in_torch() -> None:
    model = wrapped(["b", "c"])
    state = wrapped(["c", "b"]).inner.state_dict()
    model.load_inner(state)
    assert model.inner.param_groups[0]["param_names"] == ["c", "b"]


@needs_names
def test_added_groups_come_last() -> None:
    model = wrapped(["c", "b"], added=("_orig_mod.a",))
    model.lay_out()
    assert model.layout().names == ("b", "c", "a")
    assert model.layout().added == ((2,),)
    assert sizes(model) == [3, 4, 2]


@needs_names
def test_a_tensor_without_a_name_is_not_lost() -> None:
    model = wrapped(["c", "b"])
    model.inner.param_groups[0]["params"].append(nn.Parameter(torch.ones(1)))
    assert len(model.mergeable()) == 3


@needs_names
def test_a_checkpoint_of_another_order_goes_on_in_it() -> None:
    """The first versions had the tensors as they are listed."""
    earlier, now = wrapped(["c", "b"]), wrapped(["c", "b"])
    earlier.by_name = False
    saved = to_state(Checkpoint(step=1, tokens=1), earlier.build())
    loaded = now.read(saved, regroup=True)
    assert not loaded.by_name
    assert loaded.layout is not None
    assert loaded.layout.names == ("c", "b")
    now.lay_out()
    assert now.follow(loaded)
    assert not now.follow(loaded)
    assert sizes(now) == [4, 3]
    now.check()
    again = now.wrapping() | {"settings": _Settings}
    assert not wrapped_again(again).by_name


class _Settings:
    class schedule:
        fragments = 1
