"""The training thread's part, beside a learner that does what a script says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from mend_optim import Event, Limits, Moment, MomentSchedule, Nesterov, Timing
from mend_optim.engine.ending import Ended
from mend_optim.engine.schedule import Schedule
from mend_optim.handover import Handover
from mend_optim.model.layout import Layout
from mend_optim.own_tensors import OwnTensors
from mend_optim.runtime.learner import Todo
from mend_optim.runtime.long_wait import LongWait
from mend_optim.runtime.wait_bar import WaitBar
from mend_optim.settings import Settings, read_settings
from mend_optim.worker.checkpoint import Kept
from mend_optim.worker.correction import Correction, MomentCorrection

NOTHING = Todo([], {}, founding=False, wait=False)


class ScriptedNetwork:
    """A network on which nothing comes."""

    def long_wait(self, begin: str, what: Any) -> LongWait:
        return LongWait(begin, lambda: "", lambda: 0)

    def wait_bar(self, begin: str, what: Any) -> WaitBar:
        return WaitBar(begin, lambda: "", lambda: 0)


class ScriptedLearner:
    """Returns the todos of a script, and writes down what it is asked to do."""

    def __init__(self, *todos: Todo) -> None:
        self.network = ScriptedNetwork()
        self.todos = list(todos)
        self.calls: list[Any] = []
        self.copies: list[Any] = []
        self.events: list[Event] = []
        self.closed = False
        # The result of each wait; a wait without one here succeeds.
        self.in_time: list[bool] = []
        self.settled: list[bool] = []
        self.timeouts: list[float] = []
        self.held: list[Tensor] = []
        self.ends: list[Ended | None] = []

    def begin(self, anchors: Any, resumed: Any, corrections: Sequence[Correction]) -> bool:
        self.calls.append(("begin", resumed, list(corrections)))
        self.held = [fragment.theta for fragment in anchors.fragments]
        return False

    def take(self, check: Callable[[], None]) -> Todo:
        self.calls.append("take")
        return self.todos.pop(0) if self.todos else NOTHING

    def submit(self, p: int, tensor: Tensor, moments: Any, ready: Callable[[], None]) -> None:
        self.calls.append(("submit", p))
        self.copies.append((tensor, moments))
        ready()

    def submit_all(self, tensors: tuple[Tensor, ...], moments: Any, ready: Any) -> None:
        self.calls.append(("submit_all", len(tensors)))
        self.copies += zip(tensors, moments, strict=True)

    def extend(self, layout: Layout, tensor: Tensor, ready: Any, at: tuple[int, int]) -> None:
        self.calls.append(("extend", len(layout.fragments), at))
        self.copies.append((tensor, {}))

    def release(self, fragments: Iterable[int]) -> None:
        self.calls.append(("release", list(fragments)))

    def wait_for_correction(self, timeout_s: float) -> bool:
        self.calls.append("wait")
        self.timeouts.append(timeout_s)
        return self.in_time.pop(0) if self.in_time else True

    def give_up(self) -> None:
        self.calls.append("give_up")

    def steps_on(self) -> bool:
        self.calls.append("steps_on")
        return bool(self.todos)

    def rest(self, finishing: bool = False) -> None:
        self.calls.append("finish" if finishing else "rest")

    def end(self) -> Ended | None:
        return self.ends.pop(0)

    def wait_for_end(self, timeout_s: float) -> bool:
        self.calls.append("wait for the end")
        self.timeouts.append(timeout_s)
        return True

    def is_settled(self) -> bool:
        return not self.closed and (self.settled.pop(0) if self.settled else False)

    def wait_for_news(self, timeout_s: float) -> bool:
        self.calls.append("news")
        self.timeouts.append(timeout_s)
        return True

    def fresh_fragments(self) -> set[int]:
        return set()

    def anchors(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self.held]

    def keep(self) -> list[Kept]:
        return [Kept(None, {"anchor": tensor}) for tensor in self.held]  # type: ignore[arg-type]

    def step_count(self) -> int:
        return 1

    def tell(self, event: Event) -> None:
        self.events.append(event)


def settings_of(inner: Optimizer, **told: Any) -> Settings:
    defaults: dict[str, Any] = dict.fromkeys(
        (
            "listen",
            "failslow",
            "tokens_per_step",
            "group",
            "advertise",
            "ledger",
            "on_event",
            "guard",
        )
    )
    schedule = Schedule(
        sync_every=4, fragments=told.pop("fragments", 2), adopt_after=told.pop("adopt_after", None)
    )
    defaults |= {"name": "a", "peers": (), "schedule": schedule, "quorum": 1, "grace": 1.0}
    defaults |= {"weighting": "tokens", "merge": "mean", "codec": "none", "moments": None}
    defaults |= {"timing": Timing(round_timeout_s=60.0, beat_s=2.0), "adoption": "auto"}
    return read_settings(inner, outer=Nesterov(), limits=Limits(), **{**defaults, **told})


def made(
    *todos: Todo, dtype: torch.dtype = torch.float32, momentum: float = 0.0, **told: Any
) -> tuple[Handover, ScriptedLearner, list[Parameter]]:
    """A handover of two parameters, 1 and 2, each a fragment by itself."""
    parameters = [
        Parameter(torch.full((3,), 1.0, dtype=dtype)),
        Parameter(torch.full((2,), 2.0, dtype=dtype)),
    ]
    inner = SGD(parameters, lr=1.0, momentum=momentum)
    learner = ScriptedLearner(*todos)
    settings = settings_of(inner, **told)
    layout = Layout(["w", "b"], parameters, settings.schedule.fragments)
    tensors = OwnTensors(layout, parameters, inner, settings.policies.moments)
    handover = Handover(learner, tensors, settings)  # type: ignore[arg-type]
    return handover, learner, parameters


def add(fragment: int, value: float, *, replace: bool = False, **moments: Any) -> Correction:
    numel = (3, 2)[fragment]
    return Correction(fragment, torch.full((numel,), value), replace, **moments)


def copy(*fragments: int, founding: bool = False, moments: tuple[str, ...] = ()) -> Todo:
    return Todo([], dict.fromkeys(fragments, moments), founding, wait=False)


def apply(*corrections: Correction) -> Todo:
    return Todo(list(corrections), {}, founding=False, wait=False)


def values(parameters: Sequence[Tensor]) -> list[float]:
    return [p.detach().flatten()[0].item() for p in parameters]


WAIT = Todo([], {}, founding=False, wait=True)


# Copies and corrections.


def test_without_anything_to_do_nothing_is_done() -> None:
    handover, learner, parameters = made()
    handover.run(lambda: pytest.fail("nothing is copied, so nothing is checked"))
    assert learner.calls == ["take"]
    assert values(parameters) == [1.0, 2.0]


def test_what_is_wanted_is_checked_and_copied() -> None:
    handover, learner, parameters = made(copy(1))
    handover.run(lambda: learner.calls.append("check"))
    assert learner.calls == ["take", "check", ("submit", 1)]
    ((tensor, moments),) = learner.copies
    assert tensor.tolist() == [2.0, 2.0]
    assert moments == {}
    with torch.no_grad():
        parameters[1].fill_(9.0)
    assert tensor.tolist() == [2.0, 2.0]  # memory of its own


def test_founding_submits_all_copies_at_once() -> None:
    handover, learner, _ = made(copy(0, 1, founding=True))
    handover.run()
    assert learner.calls == ["take", ("submit_all", 2)]
    assert [tensor.tolist() for tensor, _ in learner.copies] == [[1.0] * 3, [2.0] * 2]


def test_corrections_are_applied_once_and_before_anything_is_copied() -> None:
    todo = Todo([add(0, 0.5), add(1, 7.0, replace=True)], {0: ()}, founding=False, wait=False)
    handover, learner, parameters = made(todo)
    handover.run()
    assert values(parameters) == [1.5, 7.0]
    assert learner.copies[0][0].tolist() == [1.5] * 3
    handover.run()
    assert values(parameters) == [1.5, 7.0]


def test_what_a_narrow_dtype_rounds_away_is_kept_and_copied() -> None:
    """Corrections finer than bfloat16 add up, and a checkpoint keeps what they have come to."""
    small = 2.0**-10
    handover, learner, parameters = made(
        apply(add(0, small)), apply(add(0, small)), copy(0), dtype=torch.bfloat16
    )
    handover.begin(None)
    handover.run()
    handover.run()
    assert values(parameters) == [1.0, 2.0]
    assert [kept.tensors["rounding"][0].item() for kept in handover.keep()] == [2 * small, 0.0]
    assert learner.copies[-1][0].tolist() == [1.0 + 2 * small] * 3


def test_a_checkpoint_of_full_precision_has_no_rounding() -> None:
    handover, _, _ = made()
    handover.begin(None)
    assert [sorted(kept.tensors) for kept in handover.keep()] == [["anchor"], ["anchor"]]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
def test_fragments_that_were_not_copied_are_released(error: type[BaseException]) -> None:
    handover, learner, _ = made(copy(0, 1))

    def check() -> None:
        raise error

    with pytest.raises(error):
        handover.run(check)
    assert learner.calls == ["take", ("release", [0, 1])]


# Waiting.


def test_adopt_after_waits_for_the_anchor_and_applies_it() -> None:
    handover, learner, parameters = made(WAIT, apply(add(0, 3.0)), adopt_after=2)
    handover.run()
    assert learner.calls == ["take", "wait", "take"]
    assert values(parameters) == [4.0, 2.0]
    assert 59.0 < learner.timeouts[0] <= 60.0


def test_a_synchronous_learner_applies_what_came_late_before_it_steps_on() -> None:
    handover, learner, parameters = made(apply(add(0, 3.0)), adopt_after=0)
    handover.before_step(lambda: None)
    assert learner.calls == ["steps_on", "take", "steps_on"]
    assert values(parameters) == [4.0, 2.0]


def test_a_learner_that_is_not_synchronous_steps_on_unasked() -> None:
    handover, learner, parameters = made(apply(add(0, 3.0)), adopt_after=1)
    handover.before_step(lambda: None)
    assert not learner.calls
    assert values(parameters) == [1.0, 2.0]


def test_an_anchor_that_does_not_come_is_given_up() -> None:
    handover, learner, parameters = made(WAIT, adopt_after=2)
    learner.in_time = [False]
    handover.run()
    assert learner.calls == ["take", "wait", "give_up"]
    assert values(parameters) == [1.0, 2.0]


def test_all_waits_of_one_step_share_one_patience() -> None:
    handover, learner, _ = made(WAIT, WAIT, WAIT, adopt_after=2)
    handover.run()
    assert learner.timeouts == sorted(learner.timeouts, reverse=True)
    assert learner.timeouts[0] <= 60.0


@pytest.mark.parametrize(("adopt_after", "calls"), [(0, ["wait", "take"]), (1, []), (None, [])])
def test_only_a_synchronous_learner_waits_for_the_round_it_has_just_opened(
    adopt_after: int | None, calls: list[str]
) -> None:
    handover, learner, _ = made(copy(0), adopt_after=adopt_after)
    handover.run()
    assert learner.calls == ["take", ("submit", 0), *calls]


# Joining.


def test_a_fresh_learner_shows_its_weights() -> None:
    handover, learner, parameters = made(apply(add(0, 8.0, replace=True)))
    assert not handover.begin(None)
    assert learner.calls == [("begin", None, []), "take"]
    assert [tensor.tolist() for tensor in learner.held] == [[1.0] * 3, [2.0] * 2]
    assert values(parameters) == [8.0, 2.0]


def test_an_added_group_is_handed_over_with_where_it_began() -> None:
    handover, learner, parameters = made()
    parameters.append(Parameter(torch.full((4,), 5.0)))
    handover.extend(Layout(["w", "b", "c"], parameters, 2, [1]), parameters, (7, 70, 0.5))
    assert learner.calls == [("extend", 3, (7, 70, 0.5))]
    assert learner.copies[0][0].tolist() == [5.0] * 4
    learner.todos = [apply(Correction(2, torch.ones(4), False))]
    handover.run()
    assert values(parameters) == [1.0, 2.0, 6.0]


# Moments.


def test_moments_are_copied_with_the_fragment_and_corrected() -> None:
    name = "momentum_buffer"
    moments = (MomentCorrection(name, torch.full((3,), 2.0), (1,), False),)
    handover, learner, parameters = made(
        copy(0, moments=(name,)),
        apply(add(0, 0.0, moments=moments)),
        momentum=0.5,
        moments=MomentSchedule(),
    )
    inner = handover._tensors.inner
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 4.0)
    inner.step()
    handover.run()
    assert learner.copies[0][1][name].values.tolist() == [4.0] * 3
    handover.run()
    assert inner.state[parameters[0]][name].tolist() == [6.0] * 3
    assert inner.state[parameters[1]][name].tolist() == [4.0] * 2


def test_moments_that_are_not_averaged_here_are_ignored() -> None:
    moments = (MomentCorrection("exp_avg", torch.ones(3), (1,), True),)
    handover, _, parameters = made(apply(add(0, 1.0, moments=moments)))
    handover.run()
    assert values(parameters) == [2.0, 2.0]
    assert not handover._tensors.inner.state


def test_a_moment_that_is_missing_is_reported_once_if_the_user_named_it() -> None:
    states = (Moment(name="misspelt", order="first", decay=0.9),)
    todo = copy(0, moments=("misspelt",))
    handover, learner, parameters = made(
        todo, todo, momentum=0.5, moments=MomentSchedule(states=states)
    )
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    handover._tensors.inner.step()
    handover.run()
    handover.run()
    (event,) = learner.events
    assert event.kind == "unknown"
    assert "'misspelt'" in event.text
    assert "there is: momentum_buffer" in event.text


# The anchor in the place of the weights.


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_swapped_weights_come_back_to_the_bit(error: type[BaseException] | None) -> None:
    handover, learner, parameters = made()
    handover.begin(None)
    learner.held = [torch.full((3,), 7.0), torch.full((2,), 8.0)]
    with torch.no_grad():
        parameters[0].copy_(torch.tensor([0.1, float("nan"), -0.0]))
    own = [parameter.detach().clone() for parameter in parameters]
    seen: list[list[float]] = []

    def look() -> None:
        with handover.swapped(own):
            seen.append(values(parameters))
            if error:
                raise error

    if error:
        with pytest.raises(error):
            look()
    else:
        look()
    assert seen == [[7.0, 8.0]]
    for parameter, value in zip(parameters, own, strict=True):
        assert torch.equal(parameter.detach().view(torch.int32), value.view(torch.int32))


def test_swapped_weights_come_back_where_the_swap_itself_fails() -> None:
    handover, learner, parameters = made()
    learner.held = [torch.full((3,), 7.0)]
    own = [parameter.detach().clone() for parameter in parameters]
    with pytest.raises(ValueError, match="zip"), handover.swapped(own):
        pytest.fail("nothing is swapped")
    assert values(parameters) == [1.0, 2.0]


# Resting.


def test_settling_hands_over_what_is_due_until_all_is_merged() -> None:
    handover, learner, parameters = made(copy(0), apply(add(0, 1.0)))
    learner.settled = [False, True]
    assert handover.settle(60.0, lambda: None)
    assert learner.calls == ["rest", "take", ("submit", 0), "news", "take"]
    assert learner.timeouts == [2.0]  # a beat: news that arrives by then may settle it
    assert values(parameters) == [2.0, 2.0]


def test_settling_that_takes_too_long_is_given_up() -> None:
    handover, learner, _ = made()
    assert not handover.settle(0.0, lambda: None)
    assert learner.calls == ["rest", "take"]


def test_a_closed_learner_does_not_settle() -> None:
    handover, learner, _ = made()
    learner.closed = True
    learner.settled = [True]
    assert not handover.settle(60.0, lambda: None)
    assert learner.calls == ["rest", "take"]


def test_settling_waits_no_longer_than_it_was_told() -> None:
    handover, learner, _ = made()
    learner.settled = [False, True]
    assert handover.settle(0.5, lambda: None)
    assert 0 < learner.timeouts[0] <= 0.5


@pytest.mark.parametrize("keeps_own", [False, True])
def test_the_end_writes_the_anchors_except_over_work_that_nobody_merges(keeps_own: bool) -> None:
    handover, learner, parameters = made()
    handover.begin(None)
    for parameter in parameters:
        parameter.data.add_(10.0)
    ended = Ended(tokens={}, digest="", alone=keeps_own, keeps_own=keeps_own, fresh=False)
    learner.calls, learner.ends = [], [None, ended]
    assert handover.finish(60.0, lambda: None) is ended
    assert learner.calls == ["finish", "take", "wait for the end", "take"]
    assert values(parameters) == ([11.0, 12.0] if keeps_own else [1.0, 2.0])
