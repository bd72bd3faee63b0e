"""MendOptimizer: one line around any torch optimizer, and training processes on slow links train one model together."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .anchor import Anchors, Buffers
from .books import Policies
from .codec import codec as codec_named
from .errors import UsageError, is_number, require
from .fragment import Layout
from .handover import Handover
from .ledger import Event
from .lineage import PeerId
from .merge import MERGES, WEIGHTINGS
from .merge_thread import MergeThread
from .outer import Nesterov
from .peer import Transport, parse_dialable
from .protocol import Hello
from .quorum import Grace, Quorum
from .roster import Timing
from .schedule import Schedule
from .status import Status, fragment_statuses, peer_statuses
from .syncer import Syncer


class MendOptimizer(Optimizer):
    """Train one model in independent processes: `MendOptimizer(AdamW(model.parameters(), lr=3e-4),
    listen="0.0.0.0:51900", peers=["b:51900"])`.

    `step()` takes the inner optimizer's step. Every `sync_every` steps it copies the parameters and offers, in the
    background, what was learned since the anchor Θ (delta Δ = Θ - θ, float32). A quorum of offers is merged, Δ̄ = Σ wᵢ
    Δᵢ, every learner takes the outer step Θ ← Θ - η (Δ̄ + μ b), and the difference is added to the parameters in a
    later `step()`, local progress kept (Decoupled DiLoCo, arXiv 2604.21428). No network fault blocks or raises into
    training. Without `listen` and `peers` it is the inner optimizer, bit for bit.

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
        outer: `Nesterov(lr, momentum)`. codec: "none" or "bf16", of offers on the wire.
        tokens_per_step: tokens of one step; None: what `count_tokens` said, else 1.
        timing: `Timing`, the only timeouts. advertise: address others should dial, where it differs from `listen`.
        ledger: path of a JSONL file, one line per adopted round. on_event: called with an `Event`, on a background
        thread.

    Raises:
        UsageError: (a ValueError) a bad argument, named with its value, bound and remedy; or, from `step()`, parameters
        that changed.
    """

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
        codec: str = "none",
        tokens_per_step: int | None = None,
        timing: Timing = Timing(),
        advertise: str | None = None,
        ledger: str | Path | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        require(isinstance(inner, Optimizer), "inner", type(inner).__name__, "a torch.optim.Optimizer")
        require(not isinstance(inner, MendOptimizer), "inner", "MendOptimizer", "a plain optimizer", "wrap once")
        require(weighting in WEIGHTINGS, "weighting", weighting, f"one of {WEIGHTINGS}")
        require(merge in MERGES, "merge", merge, f"one of {MERGES}")
        require(isinstance(outer, Nesterov), "outer", outer, "a Nesterov(lr=…, momentum=…)")
        require(isinstance(codec, str), "codec", codec, "the name of a codec")
        require(isinstance(timing, Timing), "timing", timing, "a Timing(beat_s=…, …)")
        require(isinstance(ledger, str | Path | None), "ledger", ledger, "None or the path of a file")
        require(on_event is None or callable(on_event), "on_event", on_event, "None or a function of an Event")
        weighs = tokens_per_step is None or (type(tokens_per_step) is int and tokens_per_step >= 1)
        require(weighs, "tokens_per_step", tokens_per_step, "None or an int >= 1")
        self.inner = inner
        for attribute, hooks in vars(inner).items():
            if attribute.startswith("_optimizer_") and attribute.endswith("_hooks"):
                setattr(self, attribute, hooks)  # one set of hooks for both, so that each fires once
        self._schedule = Schedule(sync_every=sync_every, fragments=fragments, adopt_after=adopt_after)
        self._outer, self._codec, self._merge = outer, codec_named(codec), merge
        self._policies = Policies(
            schedule=self._schedule,
            quorum=quorum if isinstance(quorum, Quorum) else Quorum(minimum=quorum),
            grace=grace if isinstance(grace, Grace) else Grace(max_s=grace),
            weighting=weighting,
            timing=timing,
        )
        self._tokens_per_step, self._counted = tokens_per_step, 0
        self._step, self._tokens, self._in_mend_s = 0, 0, 0.0
        self._swapped = False
        self._handover: Handover | None = None  # from the first step with peers on
        self._parameters, self._layout = self._lay_out()
        self.name = _learner_name(name)
        listen = os.environ.get("MEND_LISTEN") or None if listen is None else listen
        peers = [peers] if isinstance(peers, str) else peers
        require(isinstance(peers, Iterable), "peers", peers, "addresses 'host:port' of other learners")
        peers = list(peers) or [p.strip() for p in os.environ.get("MEND_PEERS", "").split(",") if p.strip()]
        dialable = advertise is None or listen is not None
        require(dialable, "advertise", advertise, "None without listen", "a learner nobody can dial has no address")
        self._learner: MergeThread | None = None
        if listen is not None or peers:
            self._learner = self._connect(listen, advertise, peers, ledger, on_event)
        else:
            least = self._policies.quorum.minimum or 1
            require(least == 1, "quorum.minimum", least, "1 without listen or peers", "nobody else can ever take part")

    # ── a torch optimizer ────────────────────────────────────────────────────────────────────────────────────────────

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
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the inner optimizer's state."""
        self.inner.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the inner optimizer. With peers only before the first step: all learners must have the same
        ones."""
        if self._handover:
            raise UsageError(
                "add_param_group must be called before the first step when training with peers; "
                "close() this optimizer and make a new one on every learner"
            )
        self.inner.add_param_group(param_group)
        self._parameters, self._layout = self._lay_out()

    def __repr__(self) -> str:
        return f"MendOptimizer(name={self.name!r}, {self.inner!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError("a MendOptimizer must not be copied or pickled: it has threads and peers; use state_dict()")

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """The inner optimizer's step; then, at boundaries, a copy; and when an anchor is ready, its correction.

        The first step with peers waits until this learner has joined (at most `timing.join_timeout_s` if nobody is
        found). If it takes over a running cluster's weights, the gradient of the old ones is dropped: nothing is
        trained in that call, nothing counted."""
        learner = self._learner
        if learner is None:
            loss = self.inner.step(closure)
            self._step += 1
            self._tokens += self._take_count()
            return loss
        self._refuse_swapped("step")
        started = time.perf_counter()
        handover, stale = self._begun(learner)
        if stale and closure is None:
            self._counted = 0
            self._in_mend_s += time.perf_counter() - started
            return None
        inner_at = time.perf_counter()
        loss = self.inner.step(closure)
        done_at = time.perf_counter()
        tokens = self._take_count()
        self._step += 1
        self._tokens += tokens
        if not learner.closed:
            learner.stepped(tokens)
            handover.run(self._check_layout)
        else:
            learner.check()
        self._in_mend_s += time.perf_counter() - done_at + inner_at - started
        return loss

    # ── beyond it ────────────────────────────────────────────────────────────────────────────────────────────────────

    def count_tokens(self, n: int) -> None:
        """Add `n` tokens to the coming step, the weight of its work; they take the place of `tokens_per_step`, and a
        step counts at least 1. Raises `UsageError` unless n is an int >= 0."""
        require(isinstance(n, int) and not isinstance(n, bool) and n >= 0, "n", n, "an int >= 0")
        self._counted += n

    def synchronize(self, timeout: float | None = None) -> bool:
        """Offer everything not yet merged and wait until it is merged and this learner holds the greatest anchor it has
        heard of.

        `timeout` in seconds (default `timing.round_timeout_s`). Returns whether it came to that; once all others have
        left, and where no peers were ever named, there is nobody to merge with and it is true at once. Until the next
        `step()` this learner takes part in rounds with nothing to add, so the others still find their quorum. Raises
        `ClosedError` after `close()`."""
        waits = timeout is None or (is_number(timeout) and timeout >= 0)
        require(waits, "timeout", timeout, "None or a number of seconds >= 0")
        learner = self._learner
        if learner is None:
            return True
        learner.require_open()
        self._refuse_swapped("synchronize")
        handover, _ = self._begun(learner)
        deadline = time.monotonic() + (self._policies.timing.round_timeout_s if timeout is None else timeout)
        learner.rest()
        while True:
            handover.run(self._check_layout)
            left = deadline - time.monotonic()
            if learner.wait(learner.engine.training.settled, 0.0) and not learner.closed:
                return True
            if left <= 0 or learner.closed:
                return False
            learner.wait(learner.news, min(left, self._policies.timing.beat_s))

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """Swap the anchor, the merged model, into the parameters: to evaluate, save or ship it. Restores them to the
        bit, also on an exception.

        Alone, this learner's weights are the anchor. `step()` and `synchronize()` inside the block raise `UsageError`.
        """
        self._refuse_swapped("global_weights")
        learner = self._learner
        handover = self._handover
        if learner is None or handover is None or learner.engine.books.solo:
            yield
            return
        anchors = learner.anchors()
        saved = [parameter.detach().clone() for parameter in self._parameters]
        self._swapped = True
        try:
            handover.show(anchors)
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._parameters, saved, strict=True):
                    parameter.copy_(value)
            self._swapped = False

    def status(self) -> Status:
        """Where this learner stands, as frozen data."""
        learner = self._learner
        if learner is None:
            return Status(self.name, "", self._step, self._tokens)
        with learner.mutex:
            books = learner.engine.books
            fragments = fragment_statuses(books)
            return Status(
                self.name,
                learner.address,
                self._step,
                self._tokens,
                max((f.unmerged_tokens for f in fragments), default=0),
                max((f.dropped_tokens for f in books.fragments), default=0),
                books.joined,
                books.adopted_rounds,
                fragments,
                peer_statuses(books),
                tuple(books.records),
                learner.transport.bytes_sent,
                learner.transport.bytes_received,
                self._in_mend_s,
            )

    def close(self) -> None:
        """Say goodbye to the peers and stop the background threads. Steps after it are the inner optimizer's.
        Idempotent."""
        if self._learner:
            self._learner.close()

    def __enter__(self) -> MendOptimizer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ── the training thread's part ───────────────────────────────────────────────────────────────────────────────────

    def _refuse_swapped(self, call: str) -> None:
        if self._swapped:
            raise UsageError(f"{call}() must not be called inside global_weights(): leave the block first")

    def _take_count(self) -> int:
        counted, self._counted = self._counted, 0
        return counted or self._tokens_per_step or 1

    def _lay_out(self) -> tuple[list[Tensor], Layout]:
        groups = self.inner.param_groups
        parameters = [p for group in groups for p in group["params"]]
        named = [str(n) for group in groups for n in group.get("param_names", ())]
        names = named if len(named) == len(parameters) else [str(i) for i in range(len(parameters))]
        return parameters, Layout(names, parameters, self._schedule.fragments)

    def _begun(self, learner: MergeThread) -> tuple[Handover, bool]:
        """Before the first inner step, show our weights and join. Also returns whether the cluster's replaced ours."""
        if self._handover:
            return self._handover, False
        self._check_layout()
        synchronous, patience_s = self._schedule.adopt_after == 0, self._policies.timing.round_timeout_s
        self._handover = Handover(learner, self._layout, self._parameters, self._make_anchors, synchronous, patience_s)
        return self._handover, self._handover.begin()

    def _make_anchors(self, weights: list[Tensor], buffers: Buffers) -> Anchors:
        return Anchors(self._layout, weights, self._codec, self._outer, self._merge, buffers)

    def _check_layout(self) -> None:
        self._layout.check([p for group in self.inner.param_groups for p in group["params"]])

    def _connect(
        self,
        listen: str | None,
        advertise: str | None,
        peers: Sequence[str],
        ledger: str | Path | None,
        on_event: Callable[[Event], None] | None,
    ) -> MergeThread:
        for address in peers:
            parse_dialable("peers", address)
        me = PeerId(self.name, time.time_ns())
        return MergeThread(
            lambda now: Syncer(me, "", peers, self._policies, now),
            lambda address: Hello(me, address, self._layout.fingerprint(), self._policy()),
            lambda handler: Transport(
                handler,
                listen=listen,
                advertise=advertise,
                seeds=peers,
                timing=self._policies.timing,
                limit=lambda p: 8 * self._layout.fragments[p].numel,  # anchor and velocity, float32
                allocate=Buffers().take_bytes,
            ),
            Path(ledger) if ledger else None,
            on_event,
        )

    def _policy(self) -> tuple[tuple[str, str], ...]:
        """What learners must have in common besides the model; grace and timing may differ."""
        schedule, quorum = self._schedule, self._policies.quorum.minimum
        return (
            ("sync_every", str(schedule.sync_every)),
            ("fragments", str(schedule.fragments)),
            ("adopt_after", str(schedule.adopt_after)),
            ("quorum", "majority" if quorum is None else str(quorum)),
            ("weighting", self._policies.weighting),
            ("merge", self._merge),
            ("outer", repr(self._outer)),
            ("codec", self._codec.name),
        )


_suffixes = chain([""], map("-{}".format, count(2)))  # of learners in one process that nobody named


def _learner_name(name: str | None) -> str:
    if name is None:
        name = os.environ.get("MEND_NAME") or f"{socket.gethostname()}-{os.getpid()}{next(_suffixes)}"
    require(isinstance(name, str) and 0 < len(name.encode()) <= 200, "name", name, "a text of 1 to 200 bytes")
    return name
