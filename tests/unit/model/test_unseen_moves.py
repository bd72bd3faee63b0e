"""Training that no step is seen of."""

from __future__ import annotations

import torch
from torch.nn import Parameter

from mend_optim.model.unseen_moves import CALLS, UnseenMoves, versions


def test_it_is_told_once_after_so_many_moves() -> None:
    moves = UnseenMoves()
    told = [moves.moved(True) for _ in range(3 * CALLS)]
    assert told.index(True) == CALLS - 1
    assert told.count(True) == 1


def test_calls_that_move_nothing_count_nothing() -> None:
    moves = UnseenMoves()
    assert not any(moves.moved(False) for _ in range(3 * CALLS))
    assert not any(moves.moved(True) for _ in range(CALLS - 1))
    assert not any(moves.moved(False) for _ in range(3))
    assert moves.moved(True)


def test_a_step_begins_the_count_anew() -> None:
    moves = UnseenMoves()
    for _ in range(3):
        assert not any(moves.moved(True) for _ in range(CALLS - 1))
        moves.stepped()


def test_versions_change_with_a_parameter_that_is_trained() -> None:
    frozen = Parameter(torch.ones(2), requires_grad=False)
    parameters = [frozen, Parameter(torch.ones(2)), Parameter(torch.ones(2))]
    before = versions(parameters)
    assert versions(parameters) == before
    with torch.no_grad():
        parameters[2].add_(1.0)
    assert versions(parameters) != before
