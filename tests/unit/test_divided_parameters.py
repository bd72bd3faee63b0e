"""The parameters of a rank, and the order in which all learners have them."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.optim import SGD

from mend_optim.divided_parameters import DividedParameters
from mend_optim.model.fragment_count import FragmentCount
from mend_optim.protocol.handshake import BY_NAME
from mend_optim.ranks.crew import Crew
from mend_optim.ranks.pieces import Held, encode_held
from mend_optim.ranks.shards import Shards, piece_of
from mend_optim.worker.checkpoint_reader import OtherModelError
from mend_optim.wrapped_parameters import WrappedParameters
from tests.support.older_torch import needs_names

pytestmark = needs_names


class Solitary:
    """A crew of one."""

    def tell(self, call: object, step: int, data: bytes) -> list[bytes]:
        return [data]


class Pair:
    """A crew of two, of which the other rank has one parameter of this name."""

    def __init__(self, name: str) -> None:
        self.other = Held((piece_of(name, torch.zeros(2)),))

    def tell(self, call: object, step: int, data: bytes) -> list[bytes]:
        return [data, encode_held(self.other) if data.startswith(b"[[[") else b""]


def divided(*names: str, crew: object = Solitary(), shards: Shards = None) -> DividedParameters:
    """Parameters of one shape with these names, as the optimizer lists them; without names, two."""
    tensors = [nn.Parameter(torch.full((2,), float(i))) for i in range(len(names) or 2)]
    listed: Any = list(zip(names, tensors, strict=True)) if names else tensors
    made = DividedParameters(WrappedParameters(SGD(listed, lr=0.1), FragmentCount(told=1), 1))
    made.divide(cast(Crew, crew), 0, shards)
    made.lay_out()
    return made


@pytest.mark.parametrize(
    ("names", "by_name"), [(("a", "b"), False), (("b", "a"), True), ((), False)]
)
def test_ranks_tell_that_they_list_their_parameters_in_another_order(
    names: tuple[str, ...], by_name: bool
) -> None:
    """A learner without names lists those of the same model as its modules have them."""
    assert (BY_NAME in divided(*names).layout().fingerprint()) is by_name


def test_a_checkpoint_without_names_is_refused_where_the_order_by_name_is_another_one() -> None:
    """Shapes are equal: each tensor would take the anchor of the other."""
    saved = {"model": [["parameter 0", "[2] torch.float32"], ["parameter 1", "[2] torch.float32"]]}
    for names in (("a", "b"), ()):
        refuse(divided(*names), saved)
    with pytest.raises(OtherModelError, match=r"in the order of this optimizer, got \['0', '1'\]"):
        refuse(divided("b", "a"), saved)


def test_ranks_without_names_take_no_checkpoint_whose_order_is_by_name_alone() -> None:
    listed = [["parameter a", "[2]"], ["parameter b", "[2]"]]
    refuse(divided(), {"model": listed})  # the optimizer listed them so, too
    refuse(divided("b", "a"), {"model": [*listed, list(BY_NAME)]})
    with pytest.raises(OtherModelError, match=r"got \['a', 'b'\] first, here \['0', '1'\]"):
        refuse(divided(), {"model": [*listed, list(BY_NAME)]})


@pytest.mark.parametrize(
    ("names", "other", "known"),
    [
        (("module.b", "module.a"), "module.c", ("a", "b", "c")),
        (("module.a", "b"), "module.c", ("b", "module.a", "module.c")),
        (("module.a", "module.b"), "c", ("c", "module.a", "module.b")),
    ],
)
def test_only_a_wrapper_around_the_whole_model_leaves_no_trace_in_the_names(
    names: tuple[str, ...], other: str, known: tuple[str, ...]
) -> None:
    """A learner of one process has the bare model, and orders its parameters by these names."""
    assert divided(*names, crew=Pair(other)).layout().names == known


def test_a_split_is_found_by_the_name_without_the_wrapper() -> None:
    asked: list[str] = []
    for names in [("module.a", "module.b"), ("module.c", "d")]:
        divided(*names, shards=lambda name, tensor: asked.append(name))
    assert asked == ["a", "b", "d", "module.c"]


def test_a_checkpoint_of_earlier_names_in_another_order_is_refused() -> None:
    """They had lost the name of a part, which a wrapper might have had."""
    refuse(divided("module.a", "module.b"), {"model": listed("a", "b")})
    refuse(divided("module.n", "b"), {"model": listed("b", "n")})
    with pytest.raises(OtherModelError, match=r"got \['o', 'z'\] first, here \['module.z', 'o'\]"):
        refuse(divided("module.z", "o"), {"model": listed("o", "z")})


def listed(*names: str) -> list[list[str]]:
    return [[f"parameter {name}", "[2]"] for name in names]


def refuse(parameters: DividedParameters, saved: dict[str, Any]) -> None:
    parameters._refuse_other_order(saved, cast(Any, None), parameters.layout(), 1)
