"""MendOptimizer: one line around any torch optimizer, and training processes on slow links train
one model together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mend_optim.codecs.registry import Codec
from mend_optim.engine.ledger import Event
from mend_optim.engine.moment_schedule import MomentSchedule
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.engine.schedule import Schedule
from mend_optim.errors import UsageError, is_number, require
from mend_optim.handover import Handover
from mend_optim.membership.failslow import FailSlow
from mend_optim.model.gradients import any_gradient, is_phantom, stamp
from mend_optim.model.layout import Layout, flat, sketch, sketches
from mend_optim.model.token_count import TokenCount
from mend_optim.protocol.timing import Timing
from mend_optim.runtime.learner import Learner
from mend_optim.settings import Settings, read_settings
from mend_optim.status import Status
from mend_optim.worker.checkpoint import Checkpoint, from_state, to_state, with_group
from mend_optim.worker.outer import Nesterov


class MendOptimizer(Optimizer):
    """Train one model in independent processes: `MendOptimizer(AdamW(model.parameters(), lr=3e-4),
    listen="0.0.0.0:51900", peers=["b:51900"])`.

    `step()` takes the inner optimizer's step. Every `sync_every` steps it copies the parameters and
    offers, in the background, what was learned since the anchor Θ (delta Δ = Θ - θ, float32). A
    quorum of offers is merged, Δ̄ = Σ wᵢ Δᵢ, every learner takes the outer step Θ ← Θ - η (Δ̄ + μ
    b), and the difference is added to the parameters in a later `step()`, local progress kept
    (Decoupled DiLoCo, arXiv 2604.21428). No network fault blocks or raises into training. Without
    `listen` and `peers` it is the inner optimizer, bit for bit.

    Args:
        inner: any torch optimizer. All its floating point parameters are merged; buffers and its state are not.
        name: stable name of this learner, unique in the cluster (MEND_NAME; default host-pid).
        listen: "host:port" to serve on; None takes part by outbound calls alone (MEND_LISTEN).
        peers: "host:port" of any reachable learners; gossip finds the rest (MEND_PEERS, comma separated).
        sync_every: H, inner steps between two offers of a fragment. fragments: P, turns staggered by H/P.
        adopt_after: None adopts when ready; n adopts exactly n inner steps after the snapshot, in lockstep and
        reproducibly.
        quorum: `Quorum` or the fewest offers a seal may have. grace: `Grace` or seconds to wait for more.
        weighting: "tokens", "throughput" or "uniform". merge: "mean", "rda", "trimmed_mean" or "median".
        outer: `Nesterov(lr=…, momentum=…)`. codec: what travels: "none", "bf16", "int8", "int4", "float4", "sparse",
        "powersgd", or one with options, such as `PowerSGD(rank=8)`.
        moments: `MomentSchedule`, every how many rounds the inner optimizer's moments are averaged (DES-LOC, arXiv
        2505.22549); None: never; "auto": where deltas travel as floats. failslow: `FailSlow`, when a learner that has
        become slow is waited for no more, or None.
        tokens_per_step: tokens of one step; None: what `count_tokens` said, else 1.
        timing: `Timing`, the only timeouts. advertise: address others should dial, where it differs from `listen`.
        ledger: path of a JSONL file, a line per adopted round. on_event: called with an `Event`, in the background.

    Raises:
        UsageError: (a ValueError) a bad argument, named with its value, bound and remedy; or, from `step()`, parameters
        that changed.
    """

    _learner: Learner | None

    def __init__(
        self,
        inner: Optimizer,
        *,
        name: str | None = None,
        listen: str | None = None,
        peers: Sequence[str] = (),
        sync_every: int = 128,
        fragments: int = 1,
        adopt_after: int | None = None,
        quorum: Quorum | int = Quorum(),
        grace: Grace | float = Grace(),
        weighting: str = "tokens",
        merge: str = "mean",
        outer: Nesterov = Nesterov(),
        codec: str | Codec = "none",
        moments: MomentSchedule | str | None = "auto",
        failslow: FailSlow | None = FailSlow(),
        tokens_per_step: int | None = None,
        timing: Timing = Timing(),
        advertise: str | None = None,
        ledger: str | Path | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        require(
            not isinstance(inner, MendOptimizer),
            "inner",
            "MendOptimizer",
            "a plain optimizer",
            "wrap once",
        )
        schedule = Schedule(sync_every=sync_every, fragments=fragments, adopt_after=adopt_after)
        settings = read_settings(
            inner,
            name,
            listen,
            peers,
            schedule,
            quorum,
            grace,
            weighting,
            merge,
            outer,
            codec,
            moments,
            failslow,
            tokens_per_step,
            timing,
            advertise,
            ledger,
            on_event,
        )
        self._init_state(inner, settings, len(inner.param_groups))
        self._learner = settings.connect(lambda: self._layout)

    def _init_state(self, inner: Optimizer, settings: Settings, groups: int) -> None:
        self.inner, self._settings, self.name, self._wrapped_groups = (
            inner,
            settings,
            settings.name,
            groups,
        )
        for attribute, hooks in vars(inner).items():
            if attribute.startswith("_optimizer_") and attribute.endswith("_hooks"):
                # one set of hooks for both, so that each fires once
                setattr(self, attribute, hooks)
        self._count = TokenCount()
        self._step, self._tokens, self._in_mend_s = 0, 0, 0.0
        self._returned_at: float | None = None  # from the last step, with nothing of ours since
        self._own_weights: list[Tensor] | None = None  # while the anchor is swapped in
        self._learner = None
        self._uncompiled: Any = None
        self._handover: Handover | None = None  # from the first step with peers on
        self._saved: Checkpoint | None = None  # loaded, and not yet gone on from
        self._checked = True  # whether the weights were compared with its own
        self._parameters, self._layout = self._build_layout()

    # ── a torch optimizer ─────────────────────────────────────────────────────────────────────────

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's own groups, live: schedulers and reloads see one truth."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The inner optimizer's own state, live."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The inner optimizer's own defaults, live."""
        return self.inner.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._count.doubtful:
            self._count.cleared(any_gradient(self._parameters), stamp(self._parameters))
        else:
            self._count.cleared(False, None)
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state, which the inner optimizer can load, and under "mend" all
        else that it takes to go on to the bit: anchors, velocities, lineages, pending offers,
        residuals, counters; tensors (copies, on the host) and plain containers. Waits for nothing
        on the network."""
        return {**self.inner.state_dict(), "mend": self.learner_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a checkpoint stood, the bare inner optimizer's or ours; load the model's
        weights as well.

        Ours counts steps and tokens on, offers again what was on its way, and takes whatever newer
        anchor the others have; each token counts once. The weights must be those saved with it;
        others are replaced by its anchor. After the first step with peers this learner leaves, and
        joins again as a new incarnation. Raises `UsageError` for what is damaged or another
        model's; then nothing has changed."""
        self._refuse_swapped("load_state_dict")
        mend = state_dict.get("mend")
        saved = None if mend is None else from_state(mend, self._layout)
        self.inner.load_state_dict(
            {key: value for key, value in state_dict.items() if key != "mend"}
        )
        if saved:
            self._resume(saved)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the inner optimizer, at any time. Each group that is added after
        wrapping is a fragment of its own: it is merged among the learners that have added it, from
        first weights of one of them, and the others go on with the rest until they add it too, in
        the same order. Raises `UsageError` for what cannot be merged; then nothing has changed."""
        self._refuse_swapped("add_param_group")
        groups = self.inner.param_groups
        self.inner.add_param_group(param_group)
        try:
            parameters, layout = self._build_layout()
        except UsageError:
            groups.pop()
            raise
        if not groups[-1]["params"]:
            return
        self._parameters, self._layout = parameters, layout
        if self._saved and self._saved.fragments and not self._handover:
            added = [parameters[i] for i in layout.added[-1]]
            here = replace(self._saved, step=self._step, tokens=self._tokens)
            self._saved = with_group(here, flat(layout.fragments[-1], parameters), sketch(added))
        if self._handover:
            self._handover.extend(layout, parameters, (self._step, self._tokens))

    def __repr__(self) -> str:
        return f"MendOptimizer(name={self.name!r}, {self.inner!r})"

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: an optimizer without peers, and our state for its
        `state_dict`."""
        groups, state = self._wrapped_groups, self.learner_state()
        return {
            "inner": self.inner,
            "settings": self._settings.offline(),
            "groups": groups,
            "mend": state,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._init_state(state["inner"], state["settings"], state["groups"])
        self.load_learner_state(state["mend"])

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """The inner optimizer's step; then, at boundaries, a copy; and when an anchor is ready, its
        correction.

        The first step with peers waits until this learner has joined (at most
        `timing.join_timeout_s` if nobody is found). If it takes over a running cluster's weights,
        the gradient of the old ones is dropped: nothing is trained in that call, nothing counted.
        Nor is anything in the step with `lr=0` and no gradient that torch.distributed.checkpoint
        takes to make an optimizer's first state."""
        if closure is None and is_phantom(self.inner):
            return self.inner.step()
        if self._learner is None:
            if self._saved and not self._checked:
                self._check_saved(self._saved)
            loss = self._inner_step(closure)
            self._count_step()
            return loss
        # threads, clocks, copies: where the user compiles step(), nothing of it is
        if self._uncompiled is None:
            self._uncompiled = torch.compiler.disable(self._step_with_peers)  # type: ignore[no-untyped-call]
        return self._uncompiled(self._learner, closure)

    def _step_with_peers(self, learner: Learner, closure: Callable[[], float] | None) -> Any:
        self._refuse_swapped("step")
        started = time.perf_counter()
        since_s = None if self._returned_at is None else started - self._returned_at
        handover, stale = self._ensure_joined(learner)
        if stale:
            self.inner.zero_grad()  # gradients of weights that are gone
        inner_at = time.perf_counter()
        loss = None if stale and closure is None else self._inner_step(closure)
        done_at = time.perf_counter()
        if stale and not any_gradient(self._parameters):
            self._count.take(0)
        else:
            tokens = self._count_step()
            if not learner.closed:
                learner.stepped(tokens, None if since_s is None else since_s + done_at - inner_at)
                handover.run(self._check_layout)
            else:
                learner.check()
        self._returned_at = time.perf_counter()
        self._in_mend_s += self._returned_at - done_at + inner_at - started
        return loss

    # ── beyond it ─────────────────────────────────────────────────────────────────────────────────

    def count_tokens(self, n: int) -> None:
        """Add `n` tokens to the coming step, the weight of its work; they take the place of
        `tokens_per_step`, and a step counts at least 1. Raises `UsageError` unless n is an int >=
        0."""
        whole = hasattr(type(n), "__index__") and not isinstance(n, bool) and n >= 0
        require(whole, "n", n, "an int >= 0")
        self._count.add(index(n), stamp(self._parameters))

    def join(self) -> Status:
        """What the first `step()` would do first: show our weights, or go on where a checkpoint
        stood; wait for the others, at most `timing.join_timeout_s` if nobody is found; take their
        weights if they are further.

        Returns the status: `position` says where the learning rate schedule and the data should go
        on. Later calls only return it."""
        self._refuse_swapped("join")
        if self._learner and not self._learner.closed:
            self._ensure_joined(self._learner)
        return self.status()

    def synchronize(self, timeout: float | None = None) -> bool:
        """Offer everything not yet merged, also what PowerSGD left in the weights, and wait until
        it is merged and this learner holds the greatest anchor it has heard of.

        `timeout` in seconds (default `timing.round_timeout_s`). Returns whether it came to that;
        once all others have left, and where no peers were ever named, there is nobody to merge with
        and it is true at once. Until the next `step()` this learner takes part in rounds with
        nothing to add, so the others still find their quorum. Raises `ClosedError` after
        `close()`."""
        waits = timeout is None or (is_number(timeout) and timeout >= 0)
        require(waits, "timeout", timeout, "None or a number of seconds >= 0")
        learner = self._learner
        if learner is None:
            return True
        learner.require_open()
        self._refuse_swapped("synchronize")
        handover, _ = self._ensure_joined(learner)
        self._returned_at = None
        patience_s = self._settings.policies.timing.round_timeout_s if timeout is None else timeout
        return handover.settle(patience_s, self._check_layout)

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Swap the anchor, the merged model, into the parameters: to evaluate, save or ship it.
        Restores them to the bit, also on an exception.

        Alone, this learner's weights are the anchor. `step()` and `synchronize()` inside the block
        raise `UsageError`.
        """
        self._refuse_swapped("global_weights")
        learner = self._learner
        handover = self._handover
        if learner is None or handover is None or learner.is_alone():
            yield
            return
        own = self._own_weights = [parameter.detach().clone() for parameter in self._parameters]
        try:
            with handover.swapped(own):
                yield
        finally:
            self._own_weights = None

    def status(self) -> Status:
        """Where this learner stands, as frozen data."""
        learner, head_start = self._learner, self._saved.head_start if self._saved else 0
        if learner is None:
            step, tokens, here = self._step, self._tokens, self._step + head_start
            return Status(
                name=self.name,
                address="",
                step=step,
                tokens=tokens,
                position=here,
                cluster_step=here,
                cluster_tokens=tokens,
            )
        return learner.status(
            step=self._step,
            tokens=self._tokens,
            head_start=head_start,
            seconds_in_mend=self._in_mend_s,
        )

    def learner_state(self) -> dict[str, Any]:
        """The "mend" part of `state_dict()`."""
        return to_state(self._checkpoint(), self._layout)

    def load_learner_state(self, state: Any) -> None:
        """Go on from the "mend" part of a `state_dict()` alone; see `load_state_dict`."""
        self._resume(from_state(state, self._layout))

    def close(self) -> None:
        """Say goodbye to the peers and stop the background threads. Steps after it are the inner
        optimizer's. Idempotent."""
        if self._learner:
            self._learner.close()

    def __enter__(self) -> MendOptimizer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ── the training thread's part ────────────────────────────────────────────────────────────────

    def _refuse_swapped(self, call: str) -> None:
        if self._own_weights is not None:
            raise UsageError(
                f"{call}() must not be called inside global_weights(): leave the block first"
            )

    def _inner_step(self, closure: Callable[[], float] | None) -> Any:
        return self.inner.step() if closure is None else self.inner.step(closure)

    def _count_step(self) -> int:
        """One step was taken: the tokens of it."""
        tokens = self._count.take(self._settings.tokens_per_step or 1)
        self._step += 1
        self._tokens += tokens
        return tokens

    def _checkpoint(self) -> Checkpoint:
        saved, learner, handover = self._saved or Checkpoint(), self._learner, self._handover
        own = self._parameters if self._own_weights is None else self._own_weights
        # Until the first step nobody has looked whether our weights are those of the loaded
        # checkpoint.
        weights = sketches(self._layout, own) if handover or self._checked else saved.weights
        here = replace(saved, step=self._step, tokens=self._tokens, weights=weights)
        if learner is None or handover is None:
            return here
        history = (*saved.history, str(learner.me))
        return replace(
            here, head_start=learner.head_start(), history=history, fragments=handover.keep()
        )

    def _resume(self, saved: Checkpoint) -> None:
        """Go on from there at the next step, as a new incarnation if this one has begun."""
        if self._learner and self._handover:
            closed = self._learner.closed
            self._learner.close()
            self._handover = None
            self._learner = None if closed else self._settings.connect(lambda: self._layout)
        self._saved, self._step, self._tokens, self._checked = (
            saved,
            saved.step,
            saved.tokens,
            not saved.step,
        )

    def _check_saved(self, saved: Checkpoint) -> None:
        """Without peers: other weights than the saved ones are nobody's progress; they count as
        first weights."""
        self._checked = True
        if saved.weights != sketches(self._layout, self._parameters):
            self._saved, self._step, self._tokens = None, 0, 0

    def _build_layout(self) -> tuple[list[Tensor], Layout]:
        groups, parameters, names = self.inner.param_groups, list[Tensor](), list[str]()
        for group in groups:
            positions = map(str, range(len(names), len(names) + len(group["params"])))
            names += map(str, group.get("param_names", positions))
            parameters += group["params"]
        added = [
            len(group["params"]) for group in groups[self._wrapped_groups :] if group["params"]
        ]
        return parameters, Layout(names, parameters, self._settings.schedule.fragments, added)

    def _ensure_joined(self, learner: Learner) -> tuple[Handover, bool]:
        """Before the first inner step, show our weights and join. Also returns whether the
        cluster's replaced ours."""
        if self._handover:
            return self._handover, False
        self._check_layout()
        self._handover = Handover(
            learner, self._layout, self._parameters, self.inner, self._settings
        )
        replaced = self._handover.begin(self._saved)
        if self._saved:
            self._saved = replace(self._saved, fragments=())  # we have our own copies now
        return self._handover, replaced

    def _check_layout(self) -> None:
        present = [p for group in self.inner.param_groups for p in group["params"]]
        self._layout.check(present, self._parameters)
