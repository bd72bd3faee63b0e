"""The arguments of `MendOptimizer`, checked once and then kept, and the learner made from them."""

from __future__ import annotations

import inspect
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch.optim import Optimizer

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.registry import FLOATS, Codec, codec_name, find_codec
from mend_optim.engine.engine import Engine
from mend_optim.engine.late_adoption import Adoption
from mend_optim.engine.ledger import Event
from mend_optim.engine.moment_schedule import MomentSchedule
from mend_optim.engine.period import USUAL, AutoPeriod, read_period
from mend_optim.engine.policies import WEIGHTINGS, Policies
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.seal_checks import LARGER_UNIT, MOST_TOKENS
from mend_optim.environment import stand_in, warn_of_unknown
from mend_optim.errors import PeerError, plain_number, require, require_instance
from mend_optim.given_names import learner_name, zone_name
from mend_optim.given_peers import GivenPeers, read_peers
from mend_optim.membership.failslow import FailSlow
from mend_optim.model.fragment_count import FragmentCount, read_fragments
from mend_optim.model.known_moments import decays, is_unknown_optimizer, known_moments
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import INCARNATIONS, PeerId
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.proofs import proofs_nbytes
from mend_optim.protocol.timing import Timing
from mend_optim.ranks.guard import check_group
from mend_optim.runtime.learner import Learner
from mend_optim.runtime.ledger_file import LINKED
from mend_optim.runtime.off_loop import off_loop
from mend_optim.runtime.resolver import resolve
from mend_optim.security import (
    LinkSecurity,
    read_security,
    refuse_open_link,
    refuse_open_links,
)
from mend_optim.transport.address import parse_address
from mend_optim.transport.grpc_transport import Transport
from mend_optim.transport.security.credentials import Credentials
from mend_optim.transport.seeking import PeerList
from mend_optim.worker.checkpoint import Checkpoint, is_past, newest
from mend_optim.worker.joint import counts_nbytes, norms_nbytes
from mend_optim.worker.merge import LINEAR, MERGES, SHARED
from mend_optim.worker.moment_packet import dense_nbytes
from mend_optim.worker.offer_sizes import Guard, sizes_nbytes
from mend_optim.worker.outer import Outer
from mend_optim.worker.round_rate import RATE_NBYTES
from mend_optim.worker.scale import scale_nbytes

T = TypeVar("T")
SIGNED = "credentials.signed"
MOST_MOMENTS = 4  # that any optimizer known here keeps per parameter


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A learner's addresses, and where it reports what happens on the network.

    `listen` and `advertise` are "host:port". `listen=None`: outbound calls only. Errors about
    `listen` say `listen_from`, the argument or the variable that it came from."""

    listen: str | None
    listen_from: str = "listen"
    advertise: str | None
    peers: GivenPeers
    ledger: Path | None
    on_event: Callable[[Event], None] | None
    security: LinkSecurity

    def lists(self) -> list[PeerList]:
        """The lists of peers that are read while the learner runs."""
        return self.peers.lists(partial(refuse_open_link, self.security))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One learner's settings. `place` is None for a learner without peers. `group` is a
    `ProcessGroup`, "auto", or None for a process that is a learner of its own whatever other ranks
    there are."""

    name: str
    policies: Policies
    outer: Outer
    codec: Codec
    merge: str
    guard: Guard | None
    tokens_per_step: int | None
    group: Any
    place: Endpoint | None

    def may_differ(self) -> tuple[tuple[str, str], ...]:
        """(field, value) pairs in which learners may differ, and which a visitor is told because
        that can be a mistake. In every round, the guard of its sealer decides."""
        return (("guard", repr(self.guard)),)

    @property
    def schedule(self) -> Schedule:
        """When fragments are due, and when anchors are adopted."""
        return self.policies.schedule

    def policy(self) -> tuple[tuple[str, str], ...]:
        """(field, value) pairs that learners must have in common besides the model.

        Grace and timing may differ."""
        schedule = self.schedule
        quorum = self.policies.quorum.minimum
        periods = self.policies.periods
        moments = "never"
        if periods:
            moments = ", ".join(f"{order} {rounds}" for order, rounds in periods.rounds)
        return (
            ("sync_every", repr(self.policies.auto or schedule.sync_every)),
            ("fragments", str(schedule.fragments)),
            ("adopt_after", str(schedule.adopt_after)),
            ("quorum", "majority" if quorum is None else str(quorum)),
            ("weighting", self.policies.weighting),
            ("merge", self.merge),
            ("outer", repr(self.outer)),
            ("codec", codec_name(self.codec)),
            ("moments", moments),
            *(((SIGNED, "True"),) if self.policies.signed else ()),
        )

    def of_all_ranks(self, fragments: int) -> tuple[tuple[str, str], ...]:
        """(argument, value) pairs that all ranks of this learner must have in common, if its model
        is in so many fragments. Only the lead needs credentials."""
        return tuple(pair for pair in self.divided(fragments).policy() if pair[0] != SIGNED)

    def _limit(self, fragment: Fragment) -> int:
        """The largest message about a fragment, in bytes: its anchor, velocity with the rate of
        that, and moments in float32, the scale of each tensor, sizes of offers, norms and counts of
        joint ones. A peer may keep more moments than this learner does."""
        kinds = max(MOST_MOMENTS, len(self.policies.moments))
        moments = kinds * dense_nbytes(fragment.shapes)
        learners = self.policies.limits.learners
        tensors = len(fragment.shapes)
        sizes = sizes_nbytes(learners) + scale_nbytes(tensors)
        if self.policies.signed:
            sizes += proofs_nbytes(learners)
        if self.policies.joins:
            sizes += norms_nbytes(tensors, learners) + counts_nbytes(tensors, kinds)
        return 8 * fragment.numel + RATE_NBYTES + moments + sizes

    def offline(self) -> Settings:
        """The same settings without peers, for a copy of the optimizer: it must not take part as a
        second learner of the same name. A process group can be neither copied nor pickled."""
        return replace(self, place=None, group="auto" if self.group else None)

    def divided(self, fragments: int) -> Settings:
        """The same settings, for a model in so many fragments."""
        schedule = replace(self.schedule, fragments=fragments)
        return replace(self, policies=replace(self.policies, schedule=schedule))

    def of_ranks(self, ranks: Sequence[int]) -> Settings:
        """The same settings for a learner of these ranks that have met already. The first one is
        the lead."""
        place = self.place and replace(self.place, peers=self.place.peers.of_ranks(ranks))
        return replace(self, place=place, group=None)

    def process_group(self) -> Any:
        """The ranks of the learner; None for all there are."""
        return None if isinstance(self.group, str) else self.group

    def connect(
        self,
        owner: T,
        layout: Callable[[T], Layout],
        saved: Checkpoint | None = None,
        port: int = 0,
    ) -> Learner | None:
        """Start a learner: its engine, its threads, its transport. None without peers.

        The learner leaves once `owner` is gone. Its threads are always reachable, so they hold
        neither the owner nor `on_event`, which may lead to it.

        Args:
            owner: keeps these settings, and the learner.
            layout: returns the layout of the owner's parameters as of now.
            saved: the checkpoint that the learner will go on from, if that is known already.
            port: the one that the owner's earlier learner had. It is taken again where any free one
                would do, because the others dial it.
        """
        place = self.place
        if place is None:
            return None
        me = PeerId(self.name, time.time_ns() % INCARNATIONS)
        if saved and is_past(me, saved):
            me = me.beyond(newest(self.name, saved))
        listen, listen_from = place.listen, place.listen_from
        if listen is not None and not parse_address(listen_from, listen)[1]:
            listen = f"{listen.rpartition(':')[0]}:{port}"
        advertise, peers, lists = place.advertise, place.peers.seeds, place.lists()
        security = place.security.open(self.name, partial(off_loop, name="mend-credentials"))
        bare = self.offline().divided(layout(owner).parts)
        present = _through(owner, layout)
        learner = Learner(
            engine=lambda now: Engine(me, "", peers, bare.policies, now),
            hello=lambda me, address: Hello(
                peer=me,
                address=address,
                model=present().fingerprint(),
                policy=(*bare.policy(), *present().policy()),
                may_differ=bare.may_differ(),
            ),
            transport=lambda handler: Transport(
                handler,
                listen=listen,
                listen_from=listen_from,
                advertise=advertise,
                seeds=peers,
                lists=lists,
                timing=bare.policies.timing,
                limit=lambda p: bare._limit(present().fragments[p]),
                allocate=Buffers().take_bytes,
                resolve=resolve,
                limits=bare.policies.limits,
                sizes=lambda: [fragment.numel for fragment in present().fragments],
                security=security,
            ),
            ledger=place.ledger,
            on_event=_reporter(self) if place.on_event else None,
            listen=listen,
        )
        # The learner is open, or held by the owner: the finalizer need not hold it as well.
        weakref.finalize(owner, _drop, weakref.ref(learner)).atexit = False
        return learner


def _through(owner: T, layout: Callable[[T], Layout]) -> Callable[[], Layout]:
    """A function that returns the layout of `owner` and does not hold it."""
    held = weakref.ref(owner)

    def present() -> Layout:
        here = held()
        if here is None:
            raise PeerError("this learner is leaving")
        return layout(here)

    return present


def _reporter(settings: Settings) -> Callable[[Event], None]:
    """A function that calls `on_event` of these settings as long as somebody keeps them."""
    held = weakref.ref(settings)

    def report(event: Event) -> None:
        here = held()
        if here and here.place and here.place.on_event:
            here.place.on_event(event)

    return report


def _drop(held: weakref.ref[Learner]) -> None:
    learner = held()
    if learner is not None:
        learner.drop()


def read_schedule(
    sync_every: int | str | AutoPeriod, fragments: int | str, adopt_after: int | None
) -> tuple[Schedule, AutoPeriod | None, FragmentCount]:
    """The first schedule of these arguments, the limits of an automatic period, None if it is
    fixed, and how many fragments there are. Raises `UsageError`."""
    count = read_fragments(fragments)
    schedule, auto = read_period(sync_every, count.told, adopt_after)
    return schedule, auto, count.within(None if auto else schedule.sync_every)


def read_settings(
    inner: Optimizer,
    *,
    name: str | None,
    listen: str | None,
    peers: Sequence[str] | None,
    schedule: Schedule,
    auto: AutoPeriod | None = None,
    quorum: Quorum | int,
    grace: Grace | float,
    adoption: Adoption | str,
    weighting: str,
    merge: str,
    outer: Outer,
    codec: str | Codec,
    moments: MomentSchedule | str | None,
    guard: Guard | None,
    failslow: FailSlow | None,
    tokens_per_step: int | None,
    timing: Timing,
    limits: Limits,
    group: Any,
    advertise: str | None,
    zone: str | None = None,
    ledger: str | Path | None,
    on_event: Callable[[Event], None] | None,
    credentials: Credentials | None = None,
    insecure: bool = False,
) -> Settings:
    """Check the arguments of `MendOptimizer`, and fill in what they omit from the environment.

    Raises:
        UsageError: an argument is wrong; the error names it, its value and its bound.
    """
    warn_of_unknown()
    require(isinstance(inner, Optimizer), "inner", type(inner).__name__, "a torch.optim.Optimizer")
    _refuse_classes(
        quorum=quorum,
        grace=grace,
        adoption=adoption,
        outer=outer,
        codec=codec,
        moments=moments,
        guard=guard,
        failslow=failslow,
        timing=timing,
        limits=limits,
    )
    _check_merging(weighting, merge, outer)
    require(isinstance(guard, Guard | None), "guard", guard, "None or a Guard(norm=…)")
    encoded = find_codec(codec)
    periods = _periods(moments, encoded, schedule if auto is None else None)
    _check_patience(failslow, timing)
    require(isinstance(limits, Limits), "limits", limits, "a Limits(learners=…)")
    check_group(group)
    _check_reports(ledger, on_event)
    tokens_per_step = plain_number(tokens_per_step)
    weighs = tokens_per_step is None or (type(tokens_per_step) is int and tokens_per_step >= 1)
    require(weighs, "tokens_per_step", tokens_per_step, "None or an int >= 1")
    few = (tokens_per_step or 1) <= MOST_TOKENS
    require(few, "tokens_per_step", tokens_per_step, "at most 2**40", LARGER_UNIT)
    policies = Policies(
        schedule=schedule,
        auto=auto,
        quorum=quorum if isinstance(quorum, Quorum) else Quorum(minimum=quorum),
        grace=grace if isinstance(grace, Grace) else Grace(max_s=grace),
        adoption=_adoption(adoption),
        weighting=weighting,
        weighs_work=weighting != "uniform" and merge in SHARED,
        timing=timing,
        limits=limits,
        failslow=failslow,
        residual_in_weights=encoded.residual_in_weights and merge in SHARED,
        joins=encoded.exact and merge in LINEAR,
        clips=guard is not None and guard.clip,
        zone=zone_name(zone),
        unflushed_merge=merge if encoded.residual_in_weights and merge not in SHARED else "",
    )
    if moments == "auto":
        policies = replace(policies, least_period=USUAL)
    if periods:
        policies = _with_moments(policies, inner, periods)
    given = read_peers(peers)
    listen_from = "listen"
    if listen is None:
        told, listen_from = stand_in("listen")
        listen = told or None
    if listen is None and given.world:
        # Its peers find it through the store, at whatever port.
        listen, listen_from = given.world.listen, "listen"
    _check_advertise(advertise, listen)
    security = read_security(credentials, insecure)
    place = None
    if listen is not None or given.any:
        policies = replace(policies, signed=security.signed)
        refuse_open_links(security, listen, listen_from, given.seeds, given.source)
        given.check(partial(refuse_open_link, security))
        place = Endpoint(
            listen=listen,
            listen_from=listen_from,
            advertise=advertise,
            peers=given,
            # The script may change its folder before the first line is written.
            ledger=Path(ledger).absolute() if ledger else None,
            on_event=on_event,
            security=security,
        )
    else:
        _check_alone(policies.quorum)
    return Settings(
        name=learner_name(name),
        policies=policies,
        outer=outer,
        codec=encoded,
        merge=merge,
        guard=guard,
        tokens_per_step=tokens_per_step,
        group=group,
        place=place,
    )


def _refuse_classes(**policies: object) -> None:
    for argument, policy in policies.items():
        require_instance(argument, policy)


def _check_merging(weighting: str, merge: str, outer: Outer) -> None:
    require(weighting in WEIGHTINGS, "weighting", weighting, f"one of {WEIGHTINGS}")
    require(merge in MERGES, "merge", merge, f"one of {MERGES}")
    known = isinstance(outer, Outer)
    bound = "a Nesterov(gain=…) or a DiLoCoNesterov(lr=…)"
    require(known, "outer", outer, bound)


def _adoption(adoption: Adoption | str) -> Adoption:
    if adoption == "auto":
        return Adoption()
    known = isinstance(adoption, Adoption)
    require(known, "adoption", adoption, "'auto' or an Adoption(gain=…)")
    return adoption  # type: ignore[return-value]


def _check_patience(failslow: FailSlow | None, timing: Timing) -> None:
    is_policy = isinstance(failslow, FailSlow | None)
    require(is_policy, "failslow", failslow, "None or a FailSlow(threshold=…, …)")
    require(isinstance(timing, Timing), "timing", timing, "a Timing(beat_s=…, …)")


def _check_reports(ledger: str | Path | None, on_event: Callable[[Event], None] | None) -> None:
    # Where the disk or the folder cannot be read, these two functions say no. The methods of `Path`
    # would raise, and a bad disk stops no learner.
    is_file = isinstance(ledger, str | Path) and str(ledger) != "" and not os.path.isdir(ledger)
    is_file = is_file and "\0" not in str(ledger)
    require(ledger is None or is_file, "ledger", ledger, "None or the path of a file")
    is_link = ledger is not None and os.path.islink(ledger)
    require(not is_link, "ledger", str(ledger), "no symbolic link", LINKED)
    takes_event = on_event is None or _takes_one(on_event)
    require(takes_event, "on_event", on_event, "None or a function of an Event")


def _check_advertise(advertise: str | None, listen: str | None) -> None:
    dialable = advertise is None or listen is not None
    remedy = "a learner nobody can dial has no address"
    require(dialable, "advertise", advertise, "None without listen", remedy)


def _check_alone(quorum: Quorum) -> None:
    """Without peers, a quorum of more than one learner can never be met."""
    least = quorum.minimum or 1
    remedy = "nobody else can ever take part"
    require(least == 1, "quorum.minimum", least, "1 without listen or peers", remedy)


def _takes_one(function: object) -> bool:
    """Whether it can be called with one argument, as far as can be told without calling it."""
    try:
        inspect.signature(function).bind(None)  # type: ignore[arg-type]
    except ValueError:
        # Some functions that are written in C have no signature.
        return True
    except TypeError:
        return False
    return True


def _periods(
    moments: MomentSchedule | str | None, codec: Codec, fixed: Schedule | None
) -> MomentSchedule | None:
    """The schedule of the moments. "auto" averages them only where deltas travel as floats: beside
    a compressed delta, moments of two bytes each would be most of the traffic. It does not average
    them where rounds are frequent, either: that gained nothing."""
    if moments == "auto":
        frequent = fixed is not None and fixed.sync_every < USUAL
        return MomentSchedule() if isinstance(codec, FLOATS) and not frequent else None
    is_schedule = isinstance(moments, MomentSchedule | None)
    require(is_schedule, "moments", moments, "'auto', None or a MomentSchedule(first=…, second=…)")
    return moments if isinstance(moments, MomentSchedule) else None


def _with_moments(policies: Policies, inner: Optimizer, periods: MomentSchedule) -> Policies:
    """The same policies, with the moments of this inner optimizer averaged every so many rounds."""
    moments = known_moments(inner, periods)
    unknown = type(inner).__name__ if is_unknown_optimizer(inner, periods) else ""
    # An automatic period begins short, whatever it will be.
    period = policies.schedule.sync_every if policies.auto is None else USUAL
    resolved = periods.resolve(decays(moments, inner), period)
    return replace(policies, moments=moments, unknown_optimizer=unknown, periods=resolved)
