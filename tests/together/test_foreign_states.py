"""`load_state_dict` of something that is no optimizer's state: it is refused, and nothing has
changed."""

from __future__ import annotations

from typing import Any

import pytest
from torch.optim import SGD, Optimizer

from mend_optim import MendOptimizer, UsageError
from mend_optim.distributed_checkpoint import LearnerState
from tests.support.learners import LOCKSTEP, cluster, descent, drive, read, settle, step, weights

pytestmark = pytest.mark.usefixtures("no_environment")

STATE = {"state": {}, "param_groups": []}
MUST = "state_dict must be an optimizer's state, with the entries ('state', 'param_groups'), got "
WHOLE = "pass all that state_dict() returned, of this optimizer or of the bare one"
# States, and the end of each message.
FOREIGN: list[tuple[Any, str]] = [
    ({"model": {}}, f"the entries ['model']; {WHOLE}"),
    ({}, f"the entries []; {WHOLE}"),
    (
        {"model": {}, "optim": STATE, "epoch": 3},
        "the entries ['model', 'optim', 'epoch']; pass state_dict['optim']",
    ),
    ({"generator": STATE, "critic": STATE}, f"the entries ['generator', 'critic']; {WHOLE}"),
    ({"param_groups": descent(1.0).param_groups}, f"the entries ['param_groups']; {WHOLE}"),
    (
        {f"layer{i}": 0 for i in range(100)},
        f"the entries [{', '.join(repr(f'layer{i}') for i in range(8))}, ...]; {WHOLE}",
    ),
]
MERGED = "state_dict must be a MendOptimizer's state, with the entry 'mend', got the entries "
ALL = "pass all that state_dict() of a MendOptimizer returned"
# States that no rollback goes to, and the end of each message.
UNMERGED: list[tuple[Any, str]] = [
    ({}, f"[]; {ALL}"),
    (STATE, f"['state', 'param_groups']; {ALL}"),
    ({"model": {}, "optim": {**STATE, "mend": {}}}, "['model', 'optim']; pass state_dict['optim']"),
    ({"model": {}, "optim": STATE}, f"['model', 'optim']; {ALL}"),
]
NO_DICT = [(None, "NoneType"), ([], "list"), ("last.pt", "str")]


def facts(optimizer: Optimizer) -> tuple[Any, ...]:
    groups = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    buffers = [state["momentum_buffer"].tolist() for state in optimizer.state.values()]
    return read(optimizer), groups, buffers


@pytest.mark.parametrize(("state", "told"), FOREIGN)
def test_a_state_that_is_no_optimizers_is_refused(state: Any, told: str) -> None:
    with cluster(SGD(weights(1.0), momentum=0.9), SGD(weights(1.0)), **LOCKSTEP) as (a, b):
        drive([a, b], 2, lambda i, s: 1.0)
        before, status = facts(a), a.status()
        with pytest.raises(UsageError) as error:
            a.load_state_dict(state)
        assert str(error.value) == MUST + told
        assert facts(a) == before
        assert a.status().step == status.step
        drive([a, b], 2, lambda i, s: 1.0)
        settle([a, b])
        assert read(a) == read(b)
        assert a.status().step == 4


@pytest.mark.parametrize(("state", "kind"), NO_DICT)
@pytest.mark.parametrize("call", ["load_state_dict", "LearnerState", "rollback"])
def test_a_state_that_is_no_dict_is_refused(call: str, state: Any, kind: str) -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, b):
        drive([a, b], 1, lambda i, s: 1.0)
        at = LearnerState(a).load_state_dict if call == "LearnerState" else getattr(a, call)
        told = f"state_dict must be a dict, got '{kind}'; pass what state_dict\\(\\) returned"
        with pytest.raises(UsageError, match=told):
            at(state)
        drive([a, b], 1, lambda i, s: 1.0)


@pytest.mark.parametrize(("state", "told"), UNMERGED)
def test_a_state_without_a_learner_is_not_called_damaged_by_rollback(state: Any, told: str) -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, b):
        drive([a, b], 2, lambda i, s: 1.0)
        with pytest.raises(UsageError) as error:
            a.rollback(state)
        assert str(error.value) == MERGED + told
        drive([a, b], 2, lambda i, s: 1.0)


def test_a_rollback_takes_the_learners_part_alone() -> None:
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as (a, b):
        drive([a, b], 4, lambda i, s: 1.0)
        settle([a, b])
        a.rollback(a.state_dict()["mend"])
        assert a.status().rollbacks == 1


def test_the_learners_part_alone_is_refused() -> None:
    """A learner that goes on without its inner optimizer's state would lose its moments unseen."""
    optimizer = MendOptimizer(descent(1.0))
    step(optimizer, 1.0)
    saved = optimizer.state_dict()
    step(optimizer, 1.0)
    with pytest.raises(UsageError, match="got the entries \\[\\]; pass all that"):
        optimizer.load_state_dict({"mend": saved["mend"]})
    assert optimizer.status().step == 2


def test_a_hook_may_make_a_state_of_what_was_saved() -> None:
    optimizer, saved = MendOptimizer(SGD(weights(1.0), lr=1.0)), SGD(weights(1.0), lr=0.5)
    optimizer.register_load_state_dict_pre_hook(lambda _, state: state["optimizer"])
    optimizer.load_state_dict({"optimizer": saved.state_dict()})
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_state_of_which_a_hook_leaves_nothing_is_not_called_foreign() -> None:
    optimizer = MendOptimizer(descent(1.0))
    optimizer.register_load_state_dict_pre_hook(lambda _, state: {})
    with pytest.raises(KeyError, match="param_groups"):
        optimizer.load_state_dict(STATE)


@pytest.mark.parametrize("entry", ["state", "param_groups"])
def test_an_error_of_a_hook_stays_what_it_is(entry: str) -> None:
    config: dict[str, Any] = {}
    optimizer = MendOptimizer(descent(1.0))
    optimizer.register_load_state_dict_pre_hook(lambda _, state: config[entry])
    with pytest.raises(KeyError, match=entry):
        optimizer.load_state_dict({"optim": STATE})


class Other(SGD):
    """An optimizer that saves its state in a format of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {"rates": [group["lr"] for group in self.param_groups]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group, rate in zip(self.param_groups, state_dict["rates"], strict=True):
            group["lr"] = rate
        if state_dict.get("is_whole"):
            state_dict["state"]


def test_an_optimizer_may_have_a_format_of_its_own() -> None:
    optimizer = MendOptimizer(Other(weights(1.0), lr=1.0))
    optimizer.load_state_dict({"rates": [0.5]})
    assert optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(KeyError, match="rates"):
        optimizer.load_state_dict({})


def test_an_error_of_an_optimizers_own_format_stays_what_it_is() -> None:
    """The optimizer has changed already: nobody may be told that it has not."""
    optimizer = MendOptimizer(Other(weights(1.0), lr=1.0))
    with pytest.raises(KeyError, match="state"):
        optimizer.load_state_dict({"rates": [0.5], "is_whole": True})
    assert optimizer.param_groups[0]["lr"] == 0.5
