"""A plan as text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mend_optim.cli.plan.model import (
    ERROR,
    OVERHEAD,
    RATE_ERROR,
    USELESS,
    Option,
    Setup,
    option,
    options,
    suggested,
)
from mend_optim.cli.plan.sites import crossing, left_with_zones
from mend_optim.cli.wording import DAY_S, bytes_of, count_of, seconds_of, table_of

HEAD = (
    "codec",
    "fragments",
    "a round takes",
    "H",
    "late by",
    "hidden",
    "gain",
    "sent a day",
    "busiest link",
    "memory",
)
SITES_HEAD = (
    "site",
    "learners",
    "sends a sync",
    "without zones",
    "receives a sync",
    "without zones",
    "sends a day",
    "receives a day",
)


def plan_of(setup: Setup) -> str:
    """The table, the suggestion, and what the numbers rest on."""
    found = options(setup)
    best = suggested(found)
    rows = [_row(each, each is best) for each in found]
    parts = [_headline(setup), "\n".join(table_of(HEAD, rows)), "\n".join(_advice(setup, best))]
    if setup.zoned:
        parts.append("\n".join(_between(setup, best)))
    return "\n\n".join([*parts, NOTES + (SITES_NOTES if setup.zoned else "")])


def _round_trip(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else seconds_of(seconds)


def _headline(setup: Setup) -> str:
    whole_s = setup.seconds(*[4 * setup.params] * 2)
    places = f" at {len(setup.sites)} sites" if setup.sites else ""
    rate = setup.site_bits_per_s
    sites = f"Each site has {count_of(rate)}bit/s to all others. " if math.isfinite(rate) else ""
    return (
        f"{setup.learners} learners{places}, {count_of(setup.params)} parameters, a step each"
        f" {seconds_of(setup.step_s)}, links of {count_of(setup.bits_per_s)}bit/s with"
        f" {_round_trip(setup.rtt_s)} there and back.\n{sites}A learner that joins takes the model"
        f" whole, in about {seconds_of(whole_s)}."
    )


def _row(each: Option, is_best: bool) -> tuple[str, ...]:
    return (
        each.coding.argument + (" *" if is_best else ""),
        str(each.fragments),
        seconds_of(each.round_s),
        str(each.period),
        f"{each.late} steps" if each.late > 1 else "1 step",
        _share(each.hidden),
        _share(each.gain) if each.gain else "~0%",
        bytes_of(each.sent_a_day),
        bytes_of(each.most_a_day),
        bytes_of(each.memory),
    )


def _share(part: float) -> str:
    """Never 100 % of what is not all."""
    return f"{min(part, 0.9994):.1%}" if 0.99 < part < 1 else f"{part:.0%}"


def _advice(setup: Setup, best: Option) -> Iterator[str]:
    yield "* suggested:"
    codec, fragments = best.coding.argument, best.fragments
    yield f"    MendOptimizer(inner, …, codec={codec}, fragments={fragments})"
    yield f'sync_every="auto", the default, would choose about {best.period}.'
    if best.gain <= 0:
        yield f"Beyond {USELESS} steps, nothing was gained that could be measured. This link is too"
        yield "slow for this model: take larger steps (more data in each), a faster link, or a"
        yield "smaller model."
    elif best.late >= 20:
        yield "Averaging still helps then, but less. Larger steps (more data in each) would make"
        yield "rounds take fewer of them."
    yield "The link is always in use then. AutoPeriod(bytes_per_s=…) sets a limit."


def _between(setup: Setup, best: Option) -> Iterator[str]:
    """The bytes between the sites, with zones and without."""
    yield f"Between the sites with codec={best.coding.argument}, of a sync of the whole model:"
    yield ""
    packet = OVERHEAD * best.nbytes
    syncs = DAY_S / (best.late * setup.step_s)
    rows, total = [], [0.0] * 4
    for place, learners in enumerate(setup.sites):
        zoned = crossing(setup.sites, place, zoned=True, joined=best.joined)
        flat = crossing(setup.sites, place, zoned=False)
        moved = [packet * n for n in (zoned.sent, flat.sent, zoned.received, flat.received)]
        rows.append(_site_row(f"{place + 1}", learners, moved, syncs))
        total = [sum(pair) for pair in zip(total, moved, strict=True)]
    rows.append(_site_row("all", setup.learners, total, syncs))
    yield from table_of(SITES_HEAD, rows)
    flat_option = option(replace(setup, zoned=False), best.coding, best.fragments)
    yield ""
    left = 100 * left_with_zones(setup.sites, best.joined)
    yield f"zone= leaves {left:.3g}% of these bytes: {_how_offers_cross(best.joined)},"
    yield "and a seal crosses once for each other site. Without zone=, a round would take"
    yield f"{seconds_of(flat_option.round_s)}, and H would be {flat_option.period}."


def _how_offers_cross(joined: bool) -> str:
    return "a site's offers cross as one" if joined else "offers cross one by one"


def _site_row(name: str, learners: int, moved: list[float], syncs: float) -> tuple[str, ...]:
    a_day = [moved[0] * syncs, moved[2] * syncs]
    return (name, str(learners), *map(bytes_of, [*moved, *a_day]))


NOTES = f"""\
hidden: the share of the time in which training does not wait for a round; anchors come when they
    are ready. gain: the share of what per-step data parallel training gains over training alone, in
    held-out loss after equal steps, as measured for small models in short runs
    (docs/learning.md); yours may differ by much.
The same model predicts how fast `python -m bench link` trains in lockstep on links of 1 and 10
Mbit/s to within {ERROR:.0%} of full speed, and how often rounds come at 1 Mbit/s to within
{RATE_ERROR:.0%}; mostly it says too little. It has not been checked with more than two
learners, with fragments, or on real links, which share their bandwidth with others.
PowerSGD's size is that of matrices with about 1,000 rows: smaller ones save less."""

SITES_NOTES = """
The bytes between two sites of four were up to 10% fewer than this (`python -m bench zones`). How
long rounds take with zones has not been checked."""
