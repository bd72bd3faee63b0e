"""How long rounds take on a link, and what follows from that.

One round of a fragment moves, between its sealer and each of the other M − 1 learners, an offer of
b bytes in and the merged delta of d bytes out. The sealer's own link is the narrowest place, and
has all of it: (M − 1)(b + d) bytes, first in, then out. With P fragments, learners share that work,
and the busiest of them has to seal a share s = ⌈P/M⌉ / P of the fragments. So a round takes

    T = s (M − 1)(b + d) / B + TRIPS · rtt + HOST_S · N

with a bandwidth of B in each direction, N parameters, and b and d those of the whole model. Between
sites, offers and seals share the link of their site, and with zones they go through relays. So
there, T is the sum over the stages of a round (see `sites`), in each of which the slower one
counts: the busiest learner's link, or the busiest site's.

Anchors come T / step inner steps late. The period that `sync_every="auto"` would choose is as long,
but no longer than `LONGEST`. Rounds come as often as they end, or hardly more rarely.

The effect on learning is read from the figures of docs/learning.md, between which it goes
straight. Those are of small models and short runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mend_optim.cli.plan.sites import busiest_link, sent_by_all, stages
from mend_optim.cli.wording import DAY_S

#: Round trips of a round beside its bytes: the call, the offer's start, the seal's start.
TRIPS = 3.0
#: Seconds per parameter that a round takes on the hosts: copying, encoding, merging, the outer step
#: and digests (docs/benchmarks.md, `exchange`: 410 ms for 25 million, in series).
HOST_S = 16.4e-9
#: Seconds per parameter that a round takes of the training thread: 1.72 times one copy and one
#: addition (docs/benchmarks.md, `sync`), each at 20 GB/s.
THREAD_S = 1.72 * 2 * 4 / 20e9
#: The kernel counts so many bytes on a wire for one in the ledger (docs/benchmarks.md).
OVERHEAD = 1.13
#: Moments, where "auto" averages them: the first in every third round, the second in every sixth.
MOMENTS = 1 / 3 + 1 / 6
#: The longest period that "auto" chooses: `AutoPeriod().most`.
LONGEST = 512
#: The period from which "auto" averages moments.
MOMENTS_FROM = 20
#: By so much of full speed, at most, the model misses the training speeds in lockstep that
#: `python -m bench link` measured; and by so much the rates of rounds.
ERROR = 0.13
RATE_ERROR = 0.17
#: Options have at most so many fragments.
FRAGMENTS = 64
#: A period beyond this gained next to nothing (docs/learning.md: H = 100, τ = 99).
USELESS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """A codec, as far as planning goes.

    Attributes:
        argument: what to pass as `codec=`.
        smaller: how many times fewer bytes an offer has than float32.
        moments: whether "auto" averages moments beside it.
        joins: whether relays join offers.
        memory: bytes per parameter that a learner keeps for it.
    """

    argument: str
    smaller: float
    moments: bool = False
    joins: bool = False
    memory: int = 8

    def nbytes(self, params: float) -> float:
        """The bytes of an offer, and those of a merged delta: either is one packet."""
        return 4 * params / self.smaller


#: From those that lose the least on. PowerSGD as measured on 25 million parameters, rank 16.
CODINGS = (
    Coding(argument='"none"', smaller=1.0, moments=True, joins=True, memory=0),
    Coding(argument='"bf16"', smaller=2.0, moments=True),
    Coding(argument='"int8"', smaller=3.94),
    Coding(argument='"int4"', smaller=7.53),
    Coding(argument='"powersgd"', smaller=93.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The facts that the user knows.

    Attributes:
        params: of the model.
        bits_per_s: of each learner's link, in each direction.
        rtt_s: the round trip between two learners.
        step_s: of an inner step.
        learners: how many there are.
        sites: how many of them each site has; empty if that does not matter.
        site_bits_per_s: of each site's link to the others, in each direction.
        zoned: whether each site is a zone.
    """

    params: float
    bits_per_s: float
    rtt_s: float
    step_s: float
    learners: int
    sites: tuple[int, ...] = ()
    site_bits_per_s: float = math.inf
    zoned: bool = False

    @property
    def places(self) -> tuple[int, ...]:
        """How many learners each site has. Without sites, all are at one place."""
        return self.sites or (self.learners,)

    def seconds(self, own: float, site: float) -> float:
        """How long the busiest links take for so many bytes in one direction: that of a learner,
        and that of a site, side by side."""
        return 8 * max(own / self.bits_per_s, site / self.site_bits_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to train.

    Attributes:
        coding: the codec.
        fragments: how many.
        round_s: from a boundary until the anchor is ready.
        nbytes: of an offer of the whole model, and of a merged delta, with its share of moments.
        joined: whether relays join the offers of their sites.
        period: H, in inner steps.
        late: how many steps after its snapshot an anchor is ready.
        hidden: the share of a round's time that training does not wait.
        gain: the share of what data parallel gains over training alone.
        sent_a_day: bytes that a learner sends, the mean of all.
        most_a_day: bytes that the busiest learner sends or receives.
        memory: bytes on each host, beside the model.
    """

    coding: Coding
    fragments: int
    round_s: float
    nbytes: float
    joined: bool
    period: int
    late: int
    hidden: float
    gain: float
    sent_a_day: float
    most_a_day: float
    memory: float


def round_s(setup: Setup, coding: Coding, fragments: int, extra: float = 0.0) -> float:
    """How long a round takes. `extra`: bytes of moments, over those of the delta."""
    packet = coding.nbytes(setup.params) * (1 + extra) * OVERHEAD
    moved = sum(
        setup.seconds(stage.own * packet, stage.site * packet)
        for stage in stages(
            setup.places, fragments, zoned=setup.zoned, joined=joined(setup, coding)
        )
    )
    return moved + TRIPS * setup.rtt_s + HOST_S * setup.params / fragments


def joined(setup: Setup, coding: Coding) -> bool:
    """Whether relays join the offers of their sites, with the moments in them."""
    return setup.zoned and coding.joins


def kept_in_lockstep(setup: Setup, coding: Coding, period: int, overlap: int) -> float:
    """The share of its speed that training keeps with `sync_every=period, adopt_after=overlap`."""
    waits = max(0.0, round_s(setup, coding, 1) - overlap * setup.step_s)
    return period * setup.step_s / (period * setup.step_s + waits)


def option(setup: Setup, coding: Coding, fragments: int) -> Option:
    """The forecast for that codec and so many fragments."""
    took, extra = round_s(setup, coding, fragments), 0.0
    if coding.moments and took >= MOMENTS_FROM * setup.step_s:
        extra = MOMENTS
        took = round_s(setup, coding, fragments, extra)
    late = max(1, math.ceil(took / setup.step_s))
    period = min(late, LONGEST)
    nbytes = coding.nbytes(setup.params) * (1 + extra)
    per_day = OVERHEAD * DAY_S / (late * setup.step_s)
    joins = joined(setup, coding)
    busiest = busiest_link(setup.places, fragments, zoned=setup.zoned, joined=joins)
    sent = sent_by_all(setup.places, zoned=setup.zoned, joined=joins)
    stalls = THREAD_S * setup.params
    return Option(
        coding=coding,
        fragments=fragments,
        round_s=took,
        nbytes=nbytes,
        joined=joins,
        period=period,
        late=late,
        hidden=max(0.0, 1 - stalls / (late * setup.step_s)),
        gain=gain_at(period, late),
        sent_a_day=per_day * sent * nbytes / setup.learners,
        most_a_day=per_day * busiest * nbytes,
        memory=memory_of(setup, coding, late, period),
    )


def memory_of(setup: Setup, coding: Coding, late: int, period: int) -> float:
    """Bytes on the host of a learner that seals, from the table in docs/limits.md."""
    per_param = 4 + 4 + 4 + 4  # the anchor, the pending delta, a correction, the merged delta
    per_param += 4 * (late > 1)  # the disagreement
    per_param += coding.memory
    if coding.moments and period >= MOMENTS_FROM:
        # Two moments are averaged (2 bytes each with a codec), and one is on its way.
        per_param += 2 * (4 if coding.smaller == 1 else 2) + 8
    offers = (setup.learners - 1) * coding.nbytes(setup.params)
    return per_param * setup.params + offers


def options(setup: Setup) -> list[Option]:
    """For each codec, the option with the fewest fragments that is about as quick as any."""
    counts = sorted({1, *(min(times * setup.learners, FRAGMENTS) for times in (1, 2, 4))})
    found = []
    for coding in CODINGS:
        several = [option(setup, coding, count) for count in counts]
        quickest = min(each.late for each in several)
        found.append(next(each for each in several if each.late <= 1.1 * quickest))
    return found


def suggested(found: Sequence[Option]) -> Option:
    """Of options in the order in which they lose more, the first one that gains about as much as
    any; if none gains, the quickest."""
    best = max(each.gain for each in found)
    if best <= 0:
        return min(found, key=lambda each: each.late)
    return next(each for each in found if each.gain >= best - 0.03)


# ── what lateness does to learning ────────────────────────────────────────────────────────────────

#: The share of the gap that learners close, by H: of anchors that come at once, and of those that
#: come a period late (docs/learning.md: text, two learners, with the rules; the last of images).
AT_ONCE = ((1, 0.87), (2, 0.87), (20, 0.53), (USELESS, 0.37))
A_PERIOD_LATE = ((1, 0.83), (5, 0.43), (10, 0.40), (20, 0.39), (USELESS, 0.0))
#: How much of the way from the one to the other is gone at τ/H: at (20, 5), most of it.
WAY = ((0.0, 0.0), (0.25, 0.86), (1.0, 1.0))


def gain_at(period: int, late: int) -> float:
    """The share of what data parallel gains over training alone that is left with anchors that are
    so many steps late."""
    soon, then = _between(AT_ONCE, period), _between(A_PERIOD_LATE, period)
    way = _straight(WAY, min(1.0, late / period))
    if period > USELESS:
        return 0.0
    return soon + (then - soon) * way


def _between(points: Sequence[tuple[float, float]], period: float) -> float:
    """Between two points, by the logarithm of the period."""
    logs = [(math.log(x), y) for x, y in points]
    return _straight(logs, math.log(max(1.0, period)))


def _straight(points: Sequence[tuple[float, float]], x: float) -> float:
    for (left, low), (right, high) in pairwise(points):
        if x <= right:
            return low + (high - low) * max(0.0, x - left) / (right - left)
    return points[-1][1]
