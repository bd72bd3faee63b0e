"""Calls that all ranks of a learner are in, on the lead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mend_optim import MendError
from mend_optim.rank_meetings import Meetings
from mend_optim.rank_run import RankRun
from mend_optim.ranks.orders import decode_order
from mend_optim.ranks.words import Call


def meetings(tell: Callable[..., Any]) -> Meetings:
    """The lead's meetings. It tells the others something by `tell`."""
    anything: Any = SimpleNamespace(
        is_lead=True,
        is_over=False,
        tell=tell,
        telling_of_faults=lambda *at: nullcontext(),
        recall=lambda learner: None,
    )
    return Meetings(anything, anything, anything, anything, pulse_s=1.0)


def beside_a_fault() -> Meetings:
    """The lead's meetings, while another rank has failed already."""

    def tell(*told: Any) -> None:
        raise MendError("rank 1 of this learner failed")

    return meetings(tell)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyboardInterrupt(), "rank 0 has raised KeyboardInterrupt"),
        (ArithmeticError("no copy"), "rank 0 has raised ArithmeticError: no copy"),
        (MendError("it is closed"), "it is closed"),
    ],
)
def test_the_lead_tells_the_others_of_its_exception(error: BaseException, text: str) -> None:
    told: list[bytes] = []

    def body() -> None:
        raise error

    with pytest.raises(type(error)):
        meetings(lambda *at: told.append(at[-1])).hold((Call.FINISH, 3), body, lambda: None)
    assert [decode_order(data).facts["text"] for data in told] == [text]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ArithmeticError("no copy"), ArithmeticError),
        (MendError("another rank ended"), MendError),
    ],
    ids=repr,
)
def test_the_lead_raises_its_own_exception_also_if_another_rank_has_failed(
    error: BaseException, kind: type[BaseException]
) -> None:
    """Ctrl-C comes to all ranks. Of an error of this library, the other rank knows the cause."""

    def body() -> None:
        raise error

    with pytest.raises(kind) as caught:
        beside_a_fault().hold((Call.FINISH, 3), body, lambda: None)
    told = "rank 1 of this learner failed" if kind is MendError else str(error)
    assert str(caught.value) == told


@pytest.mark.parametrize("has_ended", [True, False])
def test_after_the_end_a_call_leaves_its_courier_idle(has_ended: bool) -> None:
    """The script may exit next, and a thread that Python stops inside of torch ends the process
    with SIGABRT."""
    waited: list[float] = []
    anything: Any = SimpleNamespace(
        telling_of_faults=lambda *at: nullcontext(),
        agree=lambda word: None,
        posted=lambda: None,
        check=lambda: None,
        hold=lambda at, body, learner: body(),
        await_idle=waited.append,
        step=3,
    )
    run = object.__new__(RankRun)
    run.model = run.history = run._crew = run._meetings = run._courier = anything
    run._has_ended, run.learner = has_ended, None
    assert run._together(Call.STATE_DICT, lambda: "saved") == "saved"
    assert len(waited) == has_ended
