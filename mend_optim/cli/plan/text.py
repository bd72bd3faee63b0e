"""A plan as text."""

from __future__ import annotations

from collections.abc import Iterator

from mend_optim.cli.plan.model import ERROR, RATE_ERROR, USELESS, Option, Setup, options, suggested
from mend_optim.cli.wording import bytes_of, count_of, seconds_of, table_of

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


def plan_of(setup: Setup) -> str:
    """The table, the suggestion, and what the numbers rest on."""
    found = options(setup)
    best = suggested(found)
    rows = [_row(each, each is best) for each in found]
    parts = [_headline(setup), "\n".join(table_of(HEAD, rows)), "\n".join(_advice(setup, best))]
    return "\n\n".join([*parts, NOTES])


def _headline(setup: Setup) -> str:
    whole_s = 8 * 4 * setup.params / setup.bits_per_s
    return (
        f"{setup.learners} learners, {count_of(setup.params)} parameters, a step each"
        f" {seconds_of(setup.step_s)}, links of {count_of(setup.bits_per_s)}bit/s with"
        f" {seconds_of(setup.rtt_s)} there and back.\nA learner that joins takes the model whole,"
        f" in about {seconds_of(whole_s)}."
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
