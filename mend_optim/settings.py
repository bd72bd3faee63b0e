"""What the constructor was told: checked once, then kept; and the learner on the network that is
made of it."""

from __future__ import annotations

import inspect
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.registry import FLOATS, Codec, codec_name
from mend_optim.codecs.registry import find_codec as codec_named
from mend_optim.engine.engine import Engine
from mend_optim.engine.ledger import Event
from mend_optim.engine.moment_schedule import MomentSchedule
from mend_optim.engine.policies import WEIGHTINGS, Policies
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.engine.schedule import Schedule
from mend_optim.errors import require
from mend_optim.membership.failslow import FailSlow
from mend_optim.model.known_moments import decays, is_unknown_optimizer, known_moments
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.timing import Timing
from mend_optim.runtime.learner import Learner
from mend_optim.transport.grpc_transport import Transport, parse_dialable
from mend_optim.worker.merge import MERGES, SHARED
from mend_optim.worker.moment_packet import dense_nbytes
from mend_optim.worker.outer import Nesterov

MOMENTS = 4  # of any optimizer that we know, at most


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a learner is on the network, and whom it tells what happens there."""

    listen: str | None
    advertise: str | None
    peers: tuple[str, ...]
    ledger: Path | None
    on_event: Callable[[Event], None] | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One learner's settings. `place` is None for one without peers."""

    name: str
    policies: Policies
    outer: Nesterov
    codec: Codec
    merge: str
    tokens_per_step: int | None
    place: Endpoint | None

    @property
    def schedule(self) -> Schedule:
        return self.policies.schedule

    def policy(self) -> tuple[tuple[str, str], ...]:
        """What learners must have in common besides the model; grace and timing may differ."""
        schedule, quorum, periods = (
            self.schedule,
            self.policies.quorum.minimum,
            self.policies.periods,
        )
        return (
            ("sync_every", str(schedule.sync_every)),
            ("fragments", str(schedule.fragments)),
            ("adopt_after", str(schedule.adopt_after)),
            ("quorum", "majority" if quorum is None else str(quorum)),
            ("weighting", self.policies.weighting),
            ("merge", self.merge),
            ("outer", repr(self.outer)),
            ("codec", codec_name(self.codec)),
            (
                "moments",
                ", ".join(f"{order} {rounds}" for order, rounds in periods.rounds)
                if periods
                else "never",
            ),
        )

    def _limit(self, fragment: Fragment) -> int:
        """The greatest message of a fragment, in bytes: its anchor, its velocity and moments in
        float32; others may have more of these than we have."""
        moments = max(MOMENTS, len(self.policies.moments))
        return 8 * fragment.numel + moments * dense_nbytes(fragment.shapes)

    def offline(self) -> Settings:
        """The same without peers: for copies, which must not take part twice."""
        return replace(self, place=None)

    def connect(self, layout: Callable[[], Layout]) -> Learner | None:
        """The learner: its engine, its threads, its place on the network; None without peers.
        `layout()` is the parameters' as of now."""
        place = self.place
        if place is None:
            return None
        me = PeerId(self.name, time.time_ns())
        return Learner(
            engine=lambda now: Engine(me, "", place.peers, self.policies, now),
            hello=lambda address: Hello(
                peer=me, address=address, model=layout().fingerprint(), policy=self.policy()
            ),
            transport=lambda handler: Transport(
                handler,
                listen=place.listen,
                advertise=place.advertise,
                seeds=place.peers,
                timing=self.policies.timing,
                limit=lambda p: self._limit(layout().fragments[p]),
                allocate=Buffers().take_bytes,
            ),
            ledger=place.ledger,
            on_event=place.on_event,
        )


def read_settings(
    inner: Optimizer,
    name: str | None,
    listen: str | None,
    peers: Sequence[str],
    schedule: Schedule,
    quorum: Quorum | int,
    grace: Grace | float,
    weighting: str,
    merge: str,
    outer: Nesterov,
    codec: str | Codec,
    moments: MomentSchedule | str | None,
    failslow: FailSlow | None,
    tokens_per_step: int | None,
    timing: Timing,
    advertise: str | None,
    ledger: str | Path | None,
    on_event: Callable[[Event], None] | None,
) -> Settings:
    """Check the arguments of `MendOptimizer`; what they leave out, the environment may say. Raises
    `UsageError`."""
    require(isinstance(inner, Optimizer), "inner", type(inner).__name__, "a torch.optim.Optimizer")
    require(weighting in WEIGHTINGS, "weighting", weighting, f"one of {WEIGHTINGS}")
    require(merge in MERGES, "merge", merge, f"one of {MERGES}")
    require(isinstance(outer, Nesterov), "outer", outer, "a Nesterov(lr=…, momentum=…)")
    encoded = codec_named(codec)
    periods = _periods(moments, encoded)
    require(
        isinstance(failslow, FailSlow | None),
        "failslow",
        failslow,
        "None or a FailSlow(threshold=…, …)",
    )
    require(isinstance(timing, Timing), "timing", timing, "a Timing(beat_s=…, …)")
    path = ledger is None or (
        isinstance(ledger, str | Path) and str(ledger) != "" and not Path(ledger).is_dir()
    )
    require(path, "ledger", ledger, "None or the path of a file")
    require(
        on_event is None or _takes_one(on_event),
        "on_event",
        on_event,
        "None or a function of an Event",
    )
    weighs = tokens_per_step is None or (type(tokens_per_step) is int and tokens_per_step >= 1)
    require(weighs, "tokens_per_step", tokens_per_step, "None or an int >= 1")
    states = known_moments(inner, periods) if periods else ()
    policies = Policies(
        schedule=schedule,
        quorum=quorum if isinstance(quorum, Quorum) else Quorum(minimum=quorum),
        grace=grace if isinstance(grace, Grace) else Grace(max_s=grace),
        weighting=weighting,
        timing=timing,
        failslow=failslow,
        moments=states,
        residual_in_weights=encoded.residual_in_weights and merge in SHARED,
        unflushed_merge=merge if encoded.residual_in_weights and merge not in SHARED else "",
        unknown_optimizer=type(inner).__name__
        if periods and is_unknown_optimizer(inner, periods)
        else "",
        periods=periods and periods.resolve(decays(states, inner), schedule.sync_every),
    )
    place = _place(listen, peers, advertise, ledger, on_event)
    if place is None:
        least = policies.quorum.minimum or 1
        require(
            least == 1,
            "quorum.minimum",
            least,
            "1 without listen or peers",
            "nobody else can ever take part",
        )
    return Settings(
        name=_learner_name(name),
        policies=policies,
        outer=outer,
        codec=encoded,
        merge=merge,
        tokens_per_step=tokens_per_step,
        place=place,
    )


def _takes_one(function: object) -> bool:
    """Whether it can be called with one argument, as far as can be told without calling it."""
    try:
        inspect.signature(function).bind(None)  # type: ignore[arg-type]
    except ValueError:  # some that are written in C have no signature
        return True
    except TypeError:
        return False
    return True


def _periods(moments: MomentSchedule | str | None, codec: Codec) -> MomentSchedule | None:
    """Under "auto" moments stay where they are if, at two bytes each, they would be most of what
    travels."""
    if moments == "auto":
        return MomentSchedule() if isinstance(codec, FLOATS) else None
    is_schedule = isinstance(moments, MomentSchedule | None)
    require(is_schedule, "moments", moments, "'auto', None or a MomentSchedule(first=…, second=…)")
    return moments if isinstance(moments, MomentSchedule) else None


def _place(
    listen: str | None,
    peers: Sequence[str],
    advertise: str | None,
    ledger: str | Path | None,
    on_event: Callable[[Event], None] | None,
) -> Endpoint | None:
    listen = os.environ.get("MEND_LISTEN") or None if listen is None else listen
    peers = [peers] if isinstance(peers, str) else peers
    require(isinstance(peers, Iterable), "peers", peers, "addresses 'host:port' of other learners")
    named = list(peers) or [
        p.strip() for p in os.environ.get("MEND_PEERS", "").split(",") if p.strip()
    ]
    dialable = advertise is None or listen is not None
    require(
        dialable,
        "advertise",
        advertise,
        "None without listen",
        "a learner nobody can dial has no address",
    )
    for address in named:
        parse_dialable("peers", address)
    if listen is None and not named:
        return None
    return Endpoint(
        listen=listen,
        advertise=advertise,
        peers=tuple(named),
        ledger=Path(ledger) if ledger else None,
        on_event=on_event,
    )


# of learners in one process that nobody named
_suffixes: Any = chain([""], map("-{}".format, count(2)))


def _learner_name(name: str | None) -> str:
    if name is None:
        name = (
            os.environ.get("MEND_NAME") or f"{socket.gethostname()}-{os.getpid()}{next(_suffixes)}"
        )
    good = isinstance(name, str) and 0 < len(name.encode()) <= 200 and name.isprintable()
    require(good, "name", name, "a printable text of 1 to 200 bytes")
    return name
