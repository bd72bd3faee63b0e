"""`MendOptimizer`: one line around any torch optimizer, and independent training processes train
one model together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from mend_optim.codecs.registry import Codec
from mend_optim.engine.late_adoption import Adoption
from mend_optim.engine.ledger import Event
from mend_optim.engine.moment_schedule import MomentSchedule
from mend_optim.engine.period import AutoPeriod
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.errors import require, whole_number
from mend_optim.finish import Finish, Settled, check_timeout
from mend_optim.given_state import parts_of
from mend_optim.membership.failslow import FailSlow
from mend_optim.model.module_buffers import read_modules
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.timing import Timing
from mend_optim.ranks.shards import Shards
from mend_optim.reporting_face import ReportingFace
from mend_optim.run_choice import new_run
from mend_optim.runtime.learner import Learner
from mend_optim.settings import Settings, read_schedule, read_settings
from mend_optim.status import Status
from mend_optim.training_run import leave
from mend_optim.transport.security.credentials import Credentials
from mend_optim.worker.offer_sizes import Guard
from mend_optim.worker.outer import Nesterov, Outer
from mend_optim.wrapped_class import constructing_class, take_class, unwrapped, wrapper_of
from mend_optim.wrapped_parameters import WrappedParameters, wrapped_again


class MendOptimizer(ReportingFace):
    """Wrap any torch optimizer, so that independent training processes train one model together.

    `step()` takes the inner optimizer's step. Every `sync_every` steps, the learner copies its
    parameters θ and offers, in the background, what it has learned since the anchor Θ: the delta Δ
    = Θ - θ, in float32. A quorum of offers is merged, Δ̄ = Σ wᵢ Δᵢ, and every learner takes the
    outer step, by default Θ ← Θ - ρ f Δ̄. A later `step()` adds the difference to the parameters,
    and local progress is kept (DiLoCo, arXiv 2311.08105; Decoupled DiLoCo, arXiv 2604.21428).

    No network fault blocks training or raises into it. Without `listen` and `peers`, a
    `MendOptimizer` is its inner optimizer, bit for bit.

    Args:
        inner: any torch optimizer. Its parameters of floating point or complex numbers are merged.
            Its moments are averaged as `moments` says; its other state stays local.
        name: stable name of this learner, unique in the cluster; 1 to 200 bytes of printable text.
            None: the environment variable MEND_NAME, else host and process id.
        listen: "host:port" to serve on; port 0 takes a free one. None: the environment variable
            MEND_LISTEN, else this learner takes part by outbound calls only.
        peers: "host:port", "file:PATH" or "env://" ([launchers](launchers.md)), in a list, or in
            one text with commas: learners that introduce the others. None or empty: MEND_PEERS.
        sync_every: H, the inner steps between two offers of a fragment; at least 1. "auto": the run
            chooses it from the time that its rounds take, within the limits of an `AutoPeriod`.
        fragments: P, the parts that the parameters are synced in, in turns H/P steps apart
            (Streaming DiLoCo, arXiv 2501.18512); from 1 to the number of parameter tensors, and to
            a fixed `sync_every`. "auto": by the size of the model.
        adopt_after: None adopts an anchor as soon as it is ready. n, from 0 to `sync_every`, adopts
            it exactly n inner steps after the snapshot, in lockstep, reproducible to the bit if
            each learner has all others in `peers`. `step()` waits up to `timing.round_timeout_s`.
        adoption: how strongly an anchor that comes late draws the weights to the mean, and how much
            of its work a learner offers after missed rounds: "auto", or an `Adoption`.
        quorum: fewest offers in a merge: a `Quorum`, or an int of at least 1.
        grace: how long a round with its quorum waits for more offers: a `Grace`, or seconds >= 0.
        weighting: weight of an offer in the merge: "tokens_and_batch" (tokens √(tokens/steps)),
            "tokens", "throughput" (tokens²/steps) or "uniform".
        merge: "norm_preserving" (the mean at the members' length, as far as the fastest), "mean",
            "rda" (radial-directional), or one that a few wrong members cannot take away and that
            ignores `weighting`: "trimmed_mean" or "median" of each coordinate, or "centered_clip"
            (members clipped to a ball around their median).
        outer: the outer optimizer, a `Nesterov` or a `DiLoCoNesterov`.
        codec: how deltas travel: "none" (float32), "bf16", "int8", "int4", "float4", "sparse",
            "powersgd", or a codec with options, such as `PowerSGD(rank=8)`.
        moments: how often the inner optimizer's moments are averaged: a `MomentSchedule` (DES-LOC,
            arXiv 2505.22549), or None for never. "auto": `MomentSchedule()` where deltas travel as
            floats ("none" and "bf16"), else never.
        buffers: a module, or several, whose persistent buffers (batch-norm statistics) are merged
            in rounds of their own: the weighted mean of floating-point ones; integers and bools of
            the member with most tokens. None: buffers stay local.
        guard: when a learner's offer is so large that rounds refuse it as an accident: a `Guard`,
            or None for never.
        failslow: when rounds stop waiting for a slow or late learner: a `FailSlow`, or None: never.
        tokens_per_step: tokens of a step without a `count_tokens()`; from 1 to 2**40. None: 1.
        timing: the only timeouts, a `Timing`.
        limits: how much peers may cost this learner, a `Limits`.
        group: the ranks that train this model together, a `ProcessGroup`: they are one learner
            ([ranks](ranks.md)). "auto": all ranks of `torch.distributed`. None: only this process.
        shards: how plain tensors are split over ranks: `Split`s by parameter name, a function of
            name and tensor that returns a `Split` or None, or `megatron(group)`. None: not at all.
        credentials: what learners prove their names with, a `Credentials`; links then use mutual
            TLS. None: the environment variable MEND_CREDENTIALS (a directory) or MEND_SECRET_FILE,
            else plaintext, which only loopback addresses get.
        insecure: whether links may leave this machine in plaintext, so that anyone who reaches them
            can read and replace the model. False: MEND_INSECURE=1 says so.
        advertise: "host:port" that others should dial, if it differs from `listen`; needs `listen`.
        zone: a name that learners near one another share, such as a rack. One offer leaves it for
            all of them, and one anchor comes back. None: MEND_ZONE, else in no zone.
        ledger: path of a JSONL file, to which each adopted anchor appends a line. None: no file.
        on_event: called with every `Event`, on a background thread. None: events are only logged.

    Raises:
        UsageError: an argument is wrong; the error names it, its value, its bound and the remedy.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 1)
        >>> inner = torch.optim.AdamW(model.parameters(), lr=3e-4)
        >>> with MendOptimizer(inner, name="a", listen="127.0.0.1:0") as optimizer:
        ...     model(torch.ones(8, 4)).sum().backward()
        ...     optimizer.step()
        ...     optimizer.status().step
        1
    """

    def __init__(
        self,
        inner: Optimizer,
        *,
        name: str | None = None,
        listen: str | None = None,
        peers: Sequence[str] | None = None,
        sync_every: int | str | AutoPeriod = "auto",
        fragments: int | str = "auto",
        adopt_after: int | None = None,
        adoption: Adoption | str = "auto",
        quorum: Quorum | int = Quorum(),
        grace: Grace | float = Grace(),
        weighting: str = "tokens_and_batch",
        merge: str = "norm_preserving",
        outer: Outer = Nesterov(),
        codec: str | Codec = "none",
        moments: MomentSchedule | str | None = "auto",
        buffers: Module | Iterable[Module] | None = None,
        guard: Guard | None = Guard(),
        failslow: FailSlow | None = FailSlow(),
        tokens_per_step: int | None = None,
        timing: Timing = Timing(),
        limits: Limits = Limits(),
        group: Any = "auto",
        shards: Shards = None,
        credentials: Credentials | None = None,
        insecure: bool = False,
        advertise: str | None = None,
        zone: str | None = None,
        ledger: str | Path | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        is_plain = not isinstance(inner, MendOptimizer)
        require(is_plain, "inner", "MendOptimizer", "a plain optimizer", "wrap once")
        schedule, auto, count = read_schedule(sync_every, fragments, adopt_after)
        settings = read_settings(
            inner,
            name=name,
            listen=listen,
            peers=peers,
            schedule=schedule,
            auto=auto,
            adoption=adoption,
            quorum=quorum,
            grace=grace,
            weighting=weighting,
            merge=merge,
            outer=outer,
            codec=codec,
            moments=moments,
            guard=guard,
            failslow=failslow,
            tokens_per_step=tokens_per_step,
            timing=timing,
            limits=limits,
            group=group,
            credentials=credentials,
            insecure=insecure,
            advertise=advertise,
            zone=zone,
            ledger=ledger,
            on_event=on_event,
        )
        groups, modules = len(inner.param_groups), read_modules(buffers)
        self._wrap(settings, WrappedParameters(inner, count, groups, modules), shards)

    def _wrap(self, settings: Settings, model: WrappedParameters, shards: Any = None) -> None:
        object.__setattr__(self, "_run", new_run(settings, model, shards))
        take_class(self, type(model.inner))

    @classmethod
    def of(cls, inner: type[Optimizer], **arguments: Any) -> type[MendOptimizer]:
        """A class for libraries that construct the optimizer themselves: its instances are the
        inner class's, wrapped. It can be pickled.

        Args:
            inner: the class of the inner optimizer. The new class takes its arguments.
            **arguments: of `MendOptimizer`, without `inner`.

        Returns:
            The class.

        Example:
            >>> import torch
            >>> Wrapped = MendOptimizer.of(torch.optim.AdamW, name="a")
            >>> optimizer = Wrapped([torch.nn.Parameter(torch.ones(2))], lr=0.1)
            >>> optimizer.name, optimizer.defaults["lr"], isinstance(optimizer, torch.optim.AdamW)
            ('a', 0.1, True)
        """
        return constructing_class(cls, inner, arguments)

    @property
    def name(self) -> str:
        """The learner's name."""
        return self._run.settings.name

    @property
    def _learner(self) -> Learner | None:
        return self._run.learner

    # ── a torch optimizer ─────────────────────────────────────────────────────────────────────────

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients, as the inner optimizer does, with its arguments.

        Tokens that were counted for gradients no step has used are dropped with them."""
        self._run.clear_gradients(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Everything that a run needs to go on to the bit. Waits for nothing on the network.

        Args:
            *args, **kwargs: handed on to the inner optimizer's `state_dict`.

        Returns:
            The inner optimizer's state, which the inner optimizer can load, and under "mend" the
            anchors, velocities, lineages, pending offers, residuals and counters. Tensors are
            copies on the host; containers are plain.
        """
        return {**self.inner.state_dict(*args, **kwargs), "mend": self.learner_state()}

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Go on from a checkpoint: from a `MendOptimizer`'s, or from the bare inner optimizer's.

        Load the model's weights that were saved with it as well. With other weights, the learner
        takes the checkpoint's anchor in their place.

        The learner continues its counts of steps and tokens, offers its pending work again, and
        takes any newer anchor that the others have. Each token counts once. After the first step
        with peers, the learner leaves and joins again as a new incarnation.

        Parameters correspond by order, as in torch. Groups added later may be there at the start.

        Args:
            state_dict: from `state_dict()`.
            *args, **kwargs: handed on to the inner optimizer's `load_state_dict`.

        Raises:
            UsageError: it is no optimizer's state, damaged or, with peers, another model's or read
                inside `step()`; then nothing has changed. Without peers, and if it was saved before
                the first step, the "mend" entry of another model is left out with a warning.
        """
        self._run.at_work.refuse("load_state_dict", self._learner)
        inner, mend = parts_of(state_dict)
        loaded = None if mend is None else self._run.read(mend)
        self._run.model.load_inner(inner, *args, **kwargs)
        if loaded:
            self._run.resume(loaded)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the inner optimizer, at any time.

        Each added group is a fragment of its own. It is merged among the learners that have added
        it, and begins with the weights of one of them. The others go on with the rest. All must add
        their groups in the same order.

        Args:
            param_group: as for any torch optimizer.

        Raises:
            UsageError: there are peers, and its parameters cannot be merged, or another
                `MendOptimizer` with peers trains them; then nothing has changed.
        """
        self._run.add_group(param_group)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Return what makes a copy or a pickle: an optimizer without peers, and the part of its
        `state_dict` that is under "mend"."""
        return unwrapped, (wrapper_of(type(self)),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "settings": self._run.settings.offline(),
            **self._run.model.wrapping(),
            "mend": self.learner_state(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "mend" not in state:  # a script puts groups or state of its own into the inner optimizer
            self.inner.__setstate__(state)
            return
        self._wrap(state["settings"], wrapped_again(state))
        if state["mend"]:  # of several ranks, only the lead has it
            self.load_learner_state(state["mend"])

    def step(self, closure: Callable[[], float] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Take the inner optimizer's step. At a boundary, copy parameters; when an anchor is ready,
        add its correction.

        The first step with peers waits until this learner has joined, at most
        `timing.join_timeout_s` if nobody is found. If the learner takes over a running cluster's
        weights, it drops gradients of its old ones: that call trains nothing, counts nothing, and
        calls a closure only for its loss. A step with `lr=0` and no gradients, which
        torch.distributed.checkpoint takes to make an optimizer's first state, counts nothing
        either, nor does one that a fused optimizer skips for an overflow that a `GradScaler` found.

        Args:
            closure: computes the loss again, as for any torch optimizer.
            *args, **kwargs: handed on to the inner optimizer's `step`.

        Returns:
            The result of the inner optimizer's `step`.

        Raises:
            UsageError: the parameters have changed, another `MendOptimizer` with peers trains any
                of them, or the call is inside `global_weights()`.
            MendError: a background thread failed. Raised once; training goes on alone.
        """
        given = (closure, *args) if args or closure is not None else ()
        return self._run.take_step(*given, **kwargs)

    # ── beyond a torch optimizer ──────────────────────────────────────────────────────────────────

    def count_tokens(self, n: int) -> None:
        """Add tokens to the coming step: they are the weight of its work.

        They take the place of `tokens_per_step`. A step counts at least 1.

        Args:
            n: tokens, from 0 to 2**40. Calls add up until the next step.

        Raises:
            UsageError: `n` is not an int from 0 to 2**40.
        """
        self._run.count_tokens(whole_number("n", n))

    def join(self) -> Status:
        """Do what the first `step()` would do first: show this learner's weights, or where its
        checkpoint stood, wait for the others, and take their weights if they are further.

        It waits at most `timing.join_timeout_s` if nobody is found. Later calls only return the
        status.

        Returns:
            The status. Let your learning rate schedule and your data go on at its `position`.

        Raises:
            UsageError: a frozen parameter is not finite: it could never be merged.
        """
        self._run.join()
        return self.status()

    def synchronize(self, timeout: float | None = None) -> Settled:
        """Offer everything that is not merged yet, and wait until it is merged and this learner
        holds the greatest anchor it has heard of.

        That includes what PowerSGD has left in the weights. Until its next `step()`, this learner
        takes part in rounds with nothing to add, so the others still find their quorum.

        Args:
            timeout: seconds, at least 0. None: `timing.round_timeout_s`.

        Returns:
            A `Settled`, true if all is merged. If all others have left, it returns at once.

        Raises:
            ClosedError: the optimizer was closed, before the call or while it waited.
            UsageError: the timeout is wrong, or the call is inside `global_weights()`.
        """
        check_timeout(timeout)
        return self._run.settle(timeout)

    def finish(self, timeout: float | None = None) -> Finish:
        """End the run together with all others: wait until every live learner has called
        `finish()`, merge what is left, and put the last anchor into the parameters. All learners
        that end together then have the same parameters, bit for bit, and this one is closed.

        Until then, this learner takes part in the others' rounds with nothing to add. A learner
        that died is waited for until `timing.evict_after_s`. A newcomer to a run that is about to
        end is refused. Leaving a `with MendOptimizer(…)` block without an exception calls
        `finish()`.

        Args:
            timeout: seconds, at least 0. None: as long as it takes.

        Returns:
            A `Finish`, which is true if all have agreed. After a timeout, this learner still rests;
            it may step on, call `finish()` again, or `close()`. After the end: the same again.

        Raises:
            ClosedError: the optimizer was closed, before the call or while it waited.
            UsageError: the timeout is wrong, or the call is inside `global_weights()`.

        Example:
            >>> import torch
            >>> parameter = torch.nn.Parameter(torch.ones(2))
            >>> optimizer = MendOptimizer(torch.optim.SGD([parameter], lr=0.1), name="a")
            >>> optimizer.step()
            >>> optimizer.finish().tokens
            {'a': 1}
        """
        check_timeout(timeout)
        return self._run.finish(timeout)

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Swap the anchor, which is the merged model, into the parameters, to evaluate, save or
        ship it. Your own weights come back afterwards, to the bit, also after an exception.

        Own weights stay without peers, while this learner is alone, after the end by `finish()`, in
        training after a `close()`, and, with a warning, until something is merged.

        Raises:
            UsageError: inside the block, by `step()`, `synchronize()` and other calls that need
                your own weights.
        """
        with self._run.swapped():
            yield

    def reset_progress(self) -> None:
        """Take the present weights as the start of the next offer. Call it after you have loaded
        other weights in mid-run, such as the best ones so far, and before the next `step()`.

        Otherwise the jump counts as progress, as if it had been trained: this learner offers it,
        and the others take their share of it. That is what you want only if all learners load the
        same weights.

        Work that no offer holds yet is dropped, and counted in `dropped_tokens`. An offer on its
        way stays. The loaded weights are this learner's own: later rounds draw it back to the
        anchor as `adoption` says, and `synchronize()` and `finish()` put the anchor in their place.

        It waits for nothing on the network. Before the first step, and while this learner is alone,
        so that its weights are the anchor, there is nothing to reset.

        Raises:
            UsageError: the parameters have changed, or the call is inside `global_weights()`.
        """
        self._run.reset_progress()

    def rollback(self, state_dict: Mapping[str, Any]) -> Status:
        """Take the whole run back to the anchors of a checkpoint, on purpose: see [Go back to an
        earlier model](operations.md#go-back-to-an-earlier-model).

        This learner's weights become those anchors at once, and each other learner's as soon as it
        hears of it. Their moments begin anew, but for those that the checkpoint has means of. All
        that was trained since is dropped or superseded, and counted so.

        Args:
            state_dict: from `state_dict()` of any learner of this model; model and inner state in
                it are not used.

        Raises:
            UsageError: there are no peers, or the checkpoint is damaged, another model's, or older
                than the first merge, or a peer has an added group that this learner has not.
            ClosedError: the optimizer was closed, before the call or while it waited.
        """
        self._run.roll_back(state_dict)
        return self.status()

    def status(self) -> Status:
        """Where this learner stands at this moment, as frozen data."""
        return self._status()

    def learner_state(self) -> dict[str, Any]:
        """The part of `state_dict()` that is under "mend"."""
        return self._run.saved_state()

    def load_learner_state(self, state: Any) -> None:
        """Go on from `learner_state()`. The inner optimizer's own state is left alone."""
        if loaded := self._run.read(state):
            self._run.resume(loaded)

    def close(self) -> None:
        """Say goodbye to the peers and stop the background threads. Later steps are the inner
        optimizer's. A second call does nothing."""
        self._run.close()

    def __enter__(self) -> MendOptimizer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        leave(self._run, broken_off=kind is not None)


MendOptimizer._arguments = frozenset(inspect.signature(MendOptimizer).parameters)
