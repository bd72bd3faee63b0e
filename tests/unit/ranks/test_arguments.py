"""Whether all ranks have the same arguments."""

from __future__ import annotations

import pytest

from mend_optim import UsageError
from mend_optim.ranks.arguments import encode_arguments, refuse_unlike


def compare(*ranks: dict[str, str]) -> None:
    refuse_unlike([encode_arguments(arguments.items()) + b"\0\0" for arguments in ranks])


def test_the_same_arguments_on_all_ranks_are_taken() -> None:
    compare(*[{"fragments": "2", "adopt_after": "None"}] * 3)


def test_an_argument_that_one_rank_has_otherwise_is_named() -> None:
    alike = {"fragments": "2", "adopt_after": "None"}
    told = "adopt_after must be the same on all ranks .*got None on rank 0 and 0 on rank 2; give"
    with pytest.raises(UsageError, match=told):
        compare(alike, alike, {**alike, "adopt_after": "0"})
