"""Whether what counts as copies are copies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mend_optim import UsageError
from mend_optim.ranks.copies_check import CopiesCheck, said
from mend_optim.ranks.pieces import Division
from mend_optim.ranks.shards import piece_of

Named = dict[str, Tensor]


def checks(*ranks: Named) -> list[CopiesCheck]:
    division = Division([[piece_of(name, t) for name, t in named.items()] for named in ranks])
    return [CopiesCheck(division, rank, named) for rank, named in enumerate(ranks)]


def compare(*ranks: Named) -> None:
    made = checks(*ranks)
    told = [check.digests() + b"\0\0" for check in made]
    for check in made:
        check.refuse_unequal(told)


def sample(*ranks: Named, names: frozenset[str] = frozenset({"w"})) -> None:
    made = checks(*ranks)
    told = [said(check.samples(names)) + b"\0\0" for check in made]
    for check in made:
        check.refuse_strange(names, told)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64], ids=str
)
def test_copies_are_equal_to_the_bit(dtype: torch.dtype) -> None:
    weights = torch.randn(3, 5, dtype=torch.float64).to(dtype)
    compare({"w": weights, "own": torch.ones(2)}, {"w": weights.clone(), "b": torch.zeros(2)})
    other = weights.clone()
    other.view(torch.uint8)[0, 0] ^= 1
    with pytest.raises(UsageError, match=r"w must be the same on ranks 0 and 1.*shards=.*names"):
        compare({"w": weights}, {"w": other})


def test_a_scalar_and_an_empty_tensor_are_compared() -> None:
    compare(*[{"w": torch.tensor(2.0), "e": torch.empty(0, 3)}] * 2)
    sample(*[{"w": torch.tensor(2.0), "e": torch.empty(0, 3)}] * 2, names=frozenset({"w", "e"}))
    with pytest.raises(UsageError, match="ranks 0 and 2"):
        compare({"w": torch.tensor(2.0)}, {}, {"w": torch.tensor(1.0)})


def test_rounding_is_no_difference_later_on() -> None:
    weights = torch.randn(100, generator=torch.Generator().manual_seed(0))
    sample({"w": weights}, {"w": weights * (1 + 1e-4)})


@pytest.mark.parametrize("ruined", [torch.nan, torch.inf])
def test_what_is_ruined_on_one_rank_alone_is_no_rounding(ruined: float) -> None:
    whole, broken, other = torch.ones(8), torch.ones(8), torch.ones(8)
    broken[3] = other[3] = ruined
    sample({"w": broken}, {"w": other})
    other[3] = -torch.inf
    for pair in [(whole, broken), (broken, whole), (broken, other)]:
        with pytest.raises(UsageError, match="ranks 0 and 1"):
            sample(*({"w": each} for each in pair))


def test_what_began_as_zeros_is_found_out_later() -> None:
    zeros = torch.zeros(100)
    compare({"w": zeros}, {"w": zeros.clone()})
    trained = [torch.randn(100, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    with pytest.raises(UsageError, match="w must be the same on ranks 0 and 1"):
        sample({"w": trained[0]}, {"w": trained[1]})


def test_only_what_was_asked_for_is_compared() -> None:
    ranks = [{"w": torch.ones(4), "v": torch.full((4,), 1.0 + rank)} for rank in range(2)]
    sample(*ranks)
    (check, _) = checks(*ranks)
    assert check.has_copies(frozenset({"v"}))
    assert not check.has_copies(frozenset({"x"}))
    with pytest.raises(UsageError, match="parameter v"):
        sample(*ranks, names=frozenset({"v"}))


def test_samples_are_of_the_copies_as_they_were() -> None:
    tensor = torch.arange(40.0)
    check, _ = checks({"w": tensor}, {"w": tensor})
    samples = check.samples({"w"})
    before = said(samples)
    tensor.zero_()
    assert said(samples) == before != said(check.samples({"w"}))
