"""The run behind a `MendOptimizer` that is one rank of several, which train one model together.

The lead, rank 0, is a learner as any other: its engine, anchors and codecs know whole tensors only.
The other ranks have no engine. All ranks say a word at each step. Where the lead has something to
do it says so one step ahead. Copies and corrections are made in passing (`rank_traffic.py`). For
anything else, all meet at the end of that step, and do what the lead orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from mend_optim.divided_parameters import DividedParameters
from mend_optim.errors import ClosedError, UsageError
from mend_optim.finish import Finish, Settled
from mend_optim.handover import Handover
from mend_optim.misplaced_calls import refuse_called_back
from mend_optim.model.checkpoint_step import is_for_checkpoint
from mend_optim.model.inner_rate import inner_rate
from mend_optim.model.plain_mode import in_plain_mode
from mend_optim.model.token_count import (
    any_gradient,
    is_phantom,
    uses_old,
)
from mend_optim.own_tensors import OwnTensors
from mend_optim.rank_meetings import Meetings, has_failed, pulse_of
from mend_optim.rank_traffic import RankTraffic
from mend_optim.ranks.arguments import encode_arguments, refuse_unlike
from mend_optim.ranks.carrier import Carrier
from mend_optim.ranks.courier import Courier
from mend_optim.ranks.crew import Crew
from mend_optim.ranks.group import Group
from mend_optim.ranks.shards import Shards
from mend_optim.ranks.words import Call, Table, Word
from mend_optim.runtime.learner import CLOSED, Learner
from mend_optim.runtime.network_loop import CLOSE_S
from mend_optim.settings import Settings
from mend_optim.shared_tensors import GROUPS, RankDeeds, SharedTensors
from mend_optim.sole_trainer import refuse_second
from mend_optim.status import Status, status_alone
from mend_optim.training_run import Begun, TrainingRun
from mend_optim.worker.checkpoint import Checkpoint
from mend_optim.wrapped_parameters import Loaded, WrappedParameters

T = TypeVar("T")
#: The lead is silent for a tenth of the time after which the other ranks give up, at most.
PULSE = 0.1
#: The fields of a checkpoint that all ranks need.
COUNTS = ("step", "tokens", "rate")


class RankRun(TrainingRun):
    """One rank's part of a run. All ranks make the same calls in the same order.

    Args:
        settings: the learner's settings, the same on all ranks.
        model: the inner optimizer's tensors on this rank.
        shards: how plain tensors are split.
    """

    def __init__(self, settings: Settings, model: WrappedParameters, shards: Shards) -> None:
        self._shards = shards
        self._divided = DividedParameters(model)
        self._group = Group(settings.process_group())
        self._crew = Crew(self._group)
        self.keeps_learner = self._crew.is_lead
        # Whether the learner has joined.
        self._has_begun = False
        # Whether a step was counted.
        self._has_stepped = False
        # Whether all ranks have ended in `finish()`: they can meet as long as their processes live.
        self._has_ended = False
        # The last words of a step, if nobody has followed them yet.
        self._told: Table | None = None
        # Steps whose words have not been heard yet: their seconds and rates.
        self._unheard: list[tuple[float | None, float]] = []
        # The ranks have met. Nothing below this asks who they are.
        super().__init__(settings.of_ranks(self._group.members), self._divided)

    @in_plain_mode
    def _start(self) -> None:
        """Agree which rank has what, and start the learner on the lead. Raises `UsageError`."""
        try:
            division = self._divided.divide(self._crew, self._group.rank, self._shards)
            layout = self._divided.build()
            told = encode_arguments(self.settings.of_all_ranks(layout.parts))
            refuse_unlike(self._crew.tell(Call.CONSTRUCTOR, 0, told))
            carrier = Carrier(self._group, division, layout.fragments)
            self._divided.lay_out()
            # Ranks that the user did not name would have names of their own.
            name = self._crew.tell(Call.CONSTRUCTOR, 0, self.settings.name.encode())[0]
            self.settings = replace(self.settings, name=name.rstrip(b"\0").decode())
        except BaseException:
            self._crew.fail(Call.CONSTRUCTOR, 0)
            raise
        local = layout.divided([part.local for part in carrier.own])
        moments = self.settings.policies.moments
        self._own = OwnTensors(local, self._divided.merged, self.inner, moments)
        copies = self._divided.copies
        assert copies is not None
        self._courier = courier = Courier()
        self._deeds = RankDeeds(self._own, carrier, courier, self._crew, copies)
        self._traffic = RankTraffic(
            self._own,
            carrier,
            courier,
            copies,
            moments=[moment.name for moment in moments],
            hold_s=self.settings.policies.timing.round_timeout_s,
        )
        schedule = self.settings.schedule
        pulse_s = self._group.patience_s * PULSE
        self._meetings = Meetings(self._crew, self._deeds, self._traffic, schedule, pulse_s=pulse_s)
        if self._crew.is_lead:
            self._divided.shared = SharedTensors(
                layout, self._own, self._deeds, carrier=carrier, courier=courier, crew=self._crew
            )
        self._starts_late = False
        self._together(Call.CONSTRUCTOR, self._connect)

    def _make_handover(self, learner: Learner) -> Handover:
        assert self._divided.shared is not None
        refuse_second(self)
        self._own.watch.restarted()  # weights may have been loaded since they were laid out
        handover = Handover(learner, self._divided.shared, self.settings)
        self._traffic.report_missing = handover.report_missing
        learner.guard.meanwhile = pulse_of(self._meetings)
        return handover

    # ── all ranks together ────────────────────────────────────────────────────────────────────────

    def _together(self, call: Call, body: Callable[[], T]) -> T | Any:
        """Let the lead do `body` while the other ranks do what it orders.

        Returns what `body` does on the lead, and on other ranks what JSON makes of it.

        Raises:
            UsageError: the ranks are in different calls, or `body` raises it. It is called in
                `on_event`, beside training, where the other ranks don't come.
            MendError: a rank failed or is lost.
        """
        refuse_called_back(self.learner, call.name.lower())
        with self._crew.telling_of_faults(call, self.history.step):
            self.model.check()
        self._listen()
        self._crew.agree(Word(call=call, step=self.history.step))
        result = self._meet(call, body)
        if self._has_ended:  # `close()` may lie behind, and the end of the process next
            self._courier.await_idle(CLOSE_S)
        return result

    @in_plain_mode
    def _meet(self, call: Call, body: Callable[[], T]) -> T | Any:
        """As `_together`, once all ranks have said that they are here."""
        self._told = None
        return self._meetings.hold((call, self.history.step), body, lambda: self.learner)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def take_step(self, *args: Any, **kwargs: Any) -> Any:
        """`MendOptimizer.step`, with the arguments of the inner optimizer's."""
        if _only_makes_state(self, is_phantom(self.inner, *args, **kwargs)):
            self.unseen.stepped()
            return self.inner.step()
        assert self._uncompiled is not None
        return self._uncompiled(self, *args, **kwargs)

    def begin_step(self, computes: bool = False) -> Begun:
        """See `TrainingRun.begin_step`."""
        started = perf_counter()
        since_s = None if self._returned_at is None else started - self._returned_at
        self.refuse_misplaced("step")
        stale = False
        if not self._meetings.closed:
            replaced = self._join_together()
            if stale := replaced and self._any_rank(uses_old(self.model.tensors(), computes)):
                self.inner.zero_grad()
            if self.settings.schedule.adopt_after == 0:
                self._together(Call.STEP, self._before_step)
            elif self.handover:
                self._before_step()
        return Begun(stale, started, since_s, perf_counter())

    def _before_step(self) -> None:
        assert self.handover is not None
        self.handover.before_step(self.model.check)

    def end_step(self, begun: Begun) -> None:
        """The inner optimizer has stepped: the step is counted, unless the gradients were those of
        weights that were replaced, and nobody has computed new ones."""
        is_stale = begun.stale and not self._any_rank(any_gradient(self.model.tensors()))
        super().end_step(begun._replace(stale=is_stale))

    def _any_rank(self, finds: bool) -> bool:
        """Whether any rank finds something in its gradients: each sees only its own."""
        self._listen()
        word = Word(call=Call.FIRST_STATE, step=self.history.step, answer=finds)
        return self._crew.agree(word).any_answer

    def _stepped(self, seconds: float | None) -> None:
        """Count the step once the words of all ranks are known: at once if they meet, else at the
        end of the next."""
        self._has_stepped = True
        counted = self._count.is_counted
        tokens = self._count.take(0 if counted else self.settings.tokens_per_step or 1)
        rate = inner_rate(self.inner.param_groups) if self.settings.outer.counts_rates else 0.0
        self.history.count(tokens if self._meetings.closed else 0, rate, self._meetings.closed)
        if self._meetings.closed:
            return
        self._listen()
        told, self._told = self._told, None
        with self._crew.telling_of_faults(Call.STEP, self.history.step):
            if told is not None:
                self._traffic.check(told)
                self._traffic.follow(told, self.history.step, self.learner)
            meets = self._meetings.take_appointment() or (told is not None and told.meets)
            plan = {} if meets else self._plan()
        self._unheard.append((seconds, rate))
        news = self._traffic.news()
        word = Word(call=Call.STEP, step=self.history.step, tokens=tokens, **news, **plan)
        if not meets:
            self._own.watch.stepped()
            self._crew.post(word)
            return
        self._hear(self._crew.agree(word))
        self._meet(Call.STEP, self._after_step)

    def _plan(self) -> dict[str, Any]:
        """What the word of the lead tells all ranks to do at the end of the next step."""
        if self.learner is None or self.learner.closed:
            return {"answer": has_failed(self.learner)}
        if self.settings.schedule.adopt_after == 0:  # each step waits for its anchor
            return {"answer": True}
        return self._traffic.plan(self.learner)

    def _after_step(self) -> None:
        assert self.learner is not None
        assert self.handover is not None
        self.learner.check()
        self.handover.after_step(self.model.check)

    def _listen(self) -> None:
        """Hear the words of the last step, if nobody has heard them yet."""
        table = self._crew.posted()
        if table is not None:
            self._told = table
            self._hear(table)

    def _hear(self, table: Table) -> None:
        """Count the step that these words are of."""
        seconds, rate = self._unheard.pop(0)
        tokens = max(1, table.tokens)
        self.history.tokens += tokens
        if self.learner and self.handover and not self.learner.closed:
            self.learner.stepped(tokens, seconds, rate)
            self._traffic.count(self.learner)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────

    def _join_together(self) -> bool:
        """Join, before anything else. Returns whether the cluster's weights have replaced this
        learner's."""
        if self._has_begun:
            return False
        replaced = bool(self._together(Call.JOIN, lambda: _join(self)))
        _check_frozen(self)
        self._has_begun = True
        return replaced

    @property
    def takes_part(self) -> bool:
        """Whether it has begun to train with peers, and has not been closed."""
        return self._has_begun and not self._meetings.closed

    def join(self) -> None:
        """`MendOptimizer.join`."""
        self.refuse_misplaced("join")
        if not self._meetings.closed:
            self._join_together()

    def settle(self, timeout_s: float | None) -> Settled:
        """`MendOptimizer.synchronize`."""
        self._begin_call("synchronize")
        result = self._together(Call.SYNCHRONIZE, lambda: TrainingRun.settle(self, timeout_s))
        return result if isinstance(result, Settled) else Settled(**result)

    def finish(self, timeout_s: float | None) -> Finish:
        """`MendOptimizer.finish`."""
        if self.history.end is not None:
            return self.history.end
        self._begin_call("finish")
        result = self._together(Call.FINISH, lambda: TrainingRun.finish(self, timeout_s))
        end = result if isinstance(result, Finish) else Finish(**result)
        self._has_ended = self._meetings.closed
        self.history.end = end if self._has_ended else None
        return end

    def _begin_call(self, name: str) -> None:
        if self._meetings.closed:
            if self.learner:
                self.learner.require_open()
            raise ClosedError(CLOSED)
        self.refuse_misplaced(name)
        self._join_together()
        self._returned_at = None

    def reset_progress(self) -> None:
        """`MendOptimizer.reset_progress`."""
        self.refuse_misplaced("reset_progress")
        if self.takes_part:
            self._together(Call.RESET_PROGRESS, lambda: TrainingRun.reset_progress(self))

    def roll_back(self, state_dict: Mapping[str, Any]) -> None:
        """`MendOptimizer.rollback`."""
        self._begin_call("rollback")
        self._together(Call.ROLLBACK, lambda: TrainingRun.roll_back(self, state_dict))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """`MendOptimizer.global_weights`."""
        self.refuse_misplaced("global_weights")
        self.at_work.refuse_beside("global_weights")
        with self._inside:
            if _has_no_anchors(self):
                yield
                return
            own = _copies_of(self.model.merged)
            try:
                with self._own.keeping(own):
                    self._together(Call.GLOBAL_WEIGHTS, lambda: _show_anchors(self))
                    self._deeds.replaced = own
                    yield
            finally:
                self._deeds.replaced = None

    def add_group(self, param_group: dict[str, Any]) -> None:
        """Raise `UsageError`."""
        raise UsageError(GROUPS)

    # ── the checkpoint ────────────────────────────────────────────────────────────────────────────

    def saved_state(self) -> dict[str, Any]:
        """The part of `MendOptimizer.state_dict()` that is under "mend"; on other ranks than the
        lead, nothing."""
        saved: dict[str, Any] = {}
        save = TrainingRun.saved_state
        self._together(Call.STATE_DICT, lambda: saved.update(save(self)))
        return saved

    def read(self, state: object) -> Loaded | None:
        """Read the `saved_state()` that the lead got. Raises as `TrainingRun.read` does."""
        loaded: list[Loaded | None] = []

        def read() -> dict[str, Any]:
            loaded.append(found := TrainingRun.read(self, state))
            return {name: getattr(found.saved, name) for name in COUNTS} if found else {}

        told = self._together(Call.LOAD_STATE_DICT, read)
        if self._crew.is_lead:
            return loaded[0]
        if not told:
            return None
        return Loaded(Checkpoint(**told), None, self.model.wrapped_groups, self.model.count)

    def resume(self, loaded: Loaded) -> None:
        """Go on from a checkpoint at the next step."""
        try:
            self._together(Call.LOAD_STATE_DICT, lambda: TrainingRun.resume(self, loaded))
        finally:
            _go_on(self, loaded.saved)

    # ── where it stands ───────────────────────────────────────────────────────────────────────────

    def status(self) -> Status:
        """Where this learner stands; other ranks than the lead know its step and its tokens."""
        if self.learner is not None:
            return super().status()
        history = self.history
        position = history.step + self._meetings.head_start
        return status_alone(self.settings.name, history.step, history.tokens, position)

    def close(self) -> None:
        """`MendOptimizer.close`. After `finish()` the ranks stay in touch: a script may well save
        its checkpoint after its `with` block."""
        self._meetings.close()
        if self._has_ended and not self.is_broken_off:
            self._courier.await_idle(CLOSE_S)
        else:
            self._leave()
        super().close()

    def _leave(self) -> None:
        if self.is_broken_off:
            self._crew.fail(Call.CLOSE, self.history.step)
        self._crew.leave(self.history.step)
        # If the ranks have parted, a transfer of this one's may wait for others for long.
        self._courier.end(0.0 if self.is_broken_off or self._crew.is_inherited else CLOSE_S)


def _go_on(run: RankRun, saved: Checkpoint) -> None:
    """Be where a checkpoint was, also if the lead cannot start its learner now: then the next step
    tries again."""
    run.history.go_on(saved)
    run._has_begun = False


def _join(run: RankRun) -> bool:
    """On the lead: join, once there is a learner again. Returns whether the cluster's weights have
    replaced this learner's."""
    if run.learner is None:
        run._connect()
    return run.join_to_train()[1]


def _only_makes_state(run: RankRun, seems_so: bool) -> bool:
    """Whether the coming step only creates the inner optimizer's first state, as it may seem to
    this rank.

    Other ranks may have other learning rates and gradients. So all are asked, but not once they
    have trained: then only a checkpoint takes such a step."""
    if seems_so and (run._meetings.closed or is_for_checkpoint()):
        return True
    if run._meetings.closed or run._has_stepped or torch.compiler.is_compiling():
        return False
    run.refuse_misplaced("step")
    return not run._any_rank(not seems_so)


@in_plain_mode
def _copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _has_no_anchors(run: RankRun) -> bool:
    """Whether all ranks find that their own weights stand for the anchors."""
    return not run._has_begun or run._crew.is_inherited or run.history.has_left_anchors


def _show_anchors(run: RankRun) -> None:
    if run.learner and run.handover and not run.learner.is_alone():
        run.handover.show_anchors()


def _check_frozen(run: RankRun) -> None:
    """Raise `UsageError` if a frozen parameter of this rank could never be merged. The lead has
    looked at its own as it joined."""
    if not run._crew.is_lead and not run._meetings.closed:
        with run._crew.telling_of_faults(Call.JOIN, run.history.step):
            run.model.check_frozen()
