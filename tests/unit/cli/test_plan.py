"""`mend plan`: its model against what was measured, its units, and its output."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.cluster.link import OVERLAP, STEP_S, SYNC_EVERY
from examples.train_text import TextModel
from mend_optim.cli.command import main
from mend_optim.cli.plan.model import (
    AT_ONCE,
    CODINGS,
    ERROR,
    LONGEST,
    RATE_ERROR,
    USELESS,
    Coding,
    Setup,
    gain_at,
    kept_in_lockstep,
    option,
    options,
    round_s,
    suggested,
)
from mend_optim.cli.plan.quantities import PARAMETERS, RATE, ROUND_TRIP, STEP
from mend_optim.cli.plan.sites import busiest_link, crossing, stages
from mend_optim.cli.plan.text import plan_of
from mend_optim.codecs.registry import encode_packet, find_codec
from mend_optim.engine.period import AutoPeriod
from mend_optim.membership.sealers import sealer_of

DOCS = Path(__file__).parents[3] / "docs"


def smaller(codec: str) -> float:
    """How many times fewer bytes than float32 an offer of the example's model has."""
    torch.manual_seed(0)
    shapes = [tuple(parameter.shape) for parameter in TextModel().parameters()]
    values = torch.randn(sum(math.prod(shape) for shape in shapes))
    packet, _ = encode_packet(find_codec(codec), values, shapes)
    return values.nbytes / packet.nbytes


def measured() -> dict[tuple[str, float], float]:
    """The speed of training in lockstep, over that on the bare wire, by codec and rate: the table
    of `python -m bench link` in docs/benchmarks.md."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) Mbit/s; in lockstep \|(.+)\|$", page, re.MULTILINE)
    found = {}
    for rate, cells in rows:
        for codec, cell in zip(("none", "int8", "powersgd"), cells.split("|"), strict=True):
            found[codec, float(rate) * 1e6] = float(cell.split(";")[1])
    return found


def test_the_model_predicts_what_was_measured_as_well_as_it_says() -> None:
    table = measured()
    assert len(table) == 6
    params = sum(parameter.numel() for parameter in TextModel().parameters())
    missed = {}
    for (codec, rate), kept in table.items():
        setup = Setup(params=params, bits_per_s=rate, rtt_s=1e-4, step_s=STEP_S, learners=2)
        coding = Coding(argument=codec, smaller=smaller(codec))
        missed[codec, rate] = abs(kept_in_lockstep(setup, coding, SYNC_EVERY, OVERLAP) - kept)
    assert max(missed.values()) <= ERROR, missed
    assert max(missed.values()) > ERROR - 0.03, f"say a smaller error: {missed}"


def test_the_model_predicts_how_much_rarer_rounds_became() -> None:
    """At 1 Mbit/s, over the bare wire, where they come at every boundary."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    (cells,) = re.findall(r"^\| rounds at 1 Mbit/s over .+? \|(.+)\|$", page, re.MULTILINE)
    params = sum(parameter.numel() for parameter in TextModel().parameters())
    setup = Setup(params=params, bits_per_s=1e6, rtt_s=1e-4, step_s=STEP_S, learners=2)
    for codec, cell in zip(("none", "int8", "powersgd"), cells.split("|"), strict=True):
        took = round_s(setup, Coding(argument=codec, smaller=smaller(codec)), 1)
        ratio = SYNC_EVERY * STEP_S / max(SYNC_EVERY * STEP_S, took)
        assert abs(ratio - float(cell)) <= RATE_ERROR, codec


def test_the_sizes_of_codecs_are_those_of_the_docs() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    page = page.split("\n## Codecs\n")[1].split("\n## ")[0]
    told = {coding.argument: coding.smaller for coding in CODINGS}
    for name, size in re.findall(
        r'^\| `("(?:bf16|int8|int4)")` \| ([\d.]+) \|', page, re.MULTILINE
    ):
        assert told[name] == float(size)
    (size,) = re.findall(r"^\| `PowerSGD\(rank=16\)` \| (\d+) ", page, re.MULTILINE)
    assert told['"powersgd"'] == float(size)


def test_gains_are_those_of_the_docs() -> None:
    """The table has them as (H, τ), in the column of the rules."""
    page = (DOCS / "learning.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+), (\d+) \| [^|]+ \| (\d+) % ", page, re.MULTILINE)[:6]
    assert len(rows) == 6
    for period, late, gain in rows:
        assert abs(gain_at(int(period), int(late)) - int(gain) / 100) < 0.006


@given(st.integers(1, 400), st.data())
def test_a_later_anchor_never_gains_more(period: int, data: st.DataObject) -> None:
    one, other = sorted(data.draw(st.tuples(*[st.integers(0, period)] * 2)))
    assert 0 <= gain_at(period, other) <= gain_at(period, one) <= AT_ONCE[0][1]
    assert gain_at(period + 1, period) <= gain_at(period, period) + 0.02
    assert gain_at(USELESS + period, 1) == 0


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    sites = draw(st.lists(st.integers(1, 8), min_size=2, max_size=4)) if draw(st.booleans()) else []
    return Setup(
        params=draw(st.floats(1e4, 1e11)),
        bits_per_s=draw(st.floats(1e5, 1e11)),
        rtt_s=draw(st.floats(1e-4, 1)),
        step_s=draw(st.floats(1e-3, 100)),
        learners=sum(sites) or draw(st.integers(2, 24)),
        sites=tuple(sites),
        site_bits_per_s=draw(st.floats(1e5, 1e11)) if sites else math.inf,
        zoned=bool(sites) and draw(st.booleans()),
    )


@given(setups())
def test_a_plan_is_made_of_anything(setup: Setup) -> None:
    assert plan_of(setup)
    found = options(setup)
    best = suggested(found)
    assert best.gain >= max(each.gain for each in found) - 0.03 or best.gain == 0
    for each in found:
        assert each.late >= each.period >= 1
        assert 0 <= each.hidden <= 1
        assert each.memory >= 16 * setup.params
        # A round may not need more of a link than there is, apart from bytes of headers.
        assert each.most_a_day <= setup.bits_per_s / 8 * 86_400 * 1.001
    faster = replace(setup, bits_per_s=2 * setup.bits_per_s)
    apart = replace(setup, site_bits_per_s=setup.site_bits_per_s / 2)
    for coding in CODINGS:
        assert round_s(faster, coding, 1) <= round_s(setup, coding, 1) <= round_s(apart, coding, 1)


def test_a_plan_has_no_longer_period_than_the_run_would_choose() -> None:
    """The slower the link, the rarer are rounds; the period stays."""
    setup = Setup(params=1.3e9, bits_per_s=5e7, rtt_s=0.04, step_s=0.8, learners=4)
    slow, slower = options(setup)[0], options(replace(setup, bits_per_s=2.5e7))[0]
    most = AutoPeriod().most
    assert (slow.period, slower.period) == (most, most) == (LONGEST, LONGEST)
    assert slow.late == 2652
    assert slower.late == pytest.approx(2 * slow.late, rel=0.01)
    assert slower.sent_a_day == pytest.approx(slow.sent_a_day / 2, rel=0.01)


def test_a_link_that_is_always_in_use_carries_as_much_with_any_codec() -> None:
    """Moments, which only some codecs have beside them, are among its bytes."""
    setup = Setup(params=1e9, bits_per_s=1e7, rtt_s=1e-3, step_s=1.0, learners=2)
    for found in options(setup)[:4]:
        assert 0.95 < found.most_a_day / (setup.bits_per_s / 8 * 86_400) <= 1.001


@given(setups())
def test_where_only_sites_are_slow_zones_make_rounds_quicker(setup: Setup) -> None:
    """A site of one has as much to take with them as without."""
    slow = replace(setup, bits_per_s=1e17, site_bits_per_s=1e6)
    for coding in CODINGS:
        for fragments in (1, setup.learners):
            zoned, flat = (
                round_s(replace(slow, zoned=each), coding, fragments) for each in (True, False)
            )
            assert zoned <= flat * 1.000001
            assert zoned < flat or min(setup.places) == 1 or len(setup.places) == 1


@given(st.integers(1, 40), st.integers(2, 12))
def test_the_busiest_learner_has_the_share_that_sealers_have(fragments: int, learners: int) -> None:
    """It sends its seals to all others, and its own offers of all other fragments."""
    sealed = Counter(
        sealer_of(fragment, [f"learner-{i}" for i in range(learners)])
        for fragment in range(fragments)
    )
    most = max(sealed.values())
    packets = most * (learners - 1) + fragments - most
    assert busiest_link([learners], fragments, zoned=False) == packets / fragments
    assert [stage.own for stage in stages([learners], fragments, zoned=False)] == [
        *[most * (learners - 1) / fragments] * 2
    ]


def test_units() -> None:
    assert [PARAMETERS.read("--params", each) for each in ("1.3e9", "1.3B", "350M", "12")] == [
        *(1.3e9, 1.3e9, 350e6, 12)
    ]
    bits = ("50mbit", "50Mbit/s", "50mbps", "50 Mbps", "50mbitps", "50Mb/s", "50Mb", "50mb/s")
    assert {RATE.read("--link", each) for each in bits} == {50e6}
    in_bytes = ("6MB/s", "6MBps", "6MB", "6 mB/s")
    assert {RATE.read("--link", each) for each in in_bytes} == {48e6}
    assert RATE.read("--link", "1gbit") == 1e9
    assert [ROUND_TRIP.read("--rtt", each) for each in ("40ms", "0.8s", "2 s", "1min", "0s")] == [
        *(0.04, 0.8, 2, 60, 0)
    ]
    assert STEP.read("--step", "0.5h") == 1800
    # The bounds, as the errors say them, in every unit.
    for quantity, least, most in (
        (STEP, ("10us", "0.01ms", "0.00001s"), ("24h", "1440min", "86400s")),
        (RATE, ("1kbit", "0.125kB/s"), ("1000tbit", "125TB/s")),
        (ROUND_TRIP, ("0us", "0s"), ("10min", "600s", "600000ms")),
        (PARAMETERS, ("1", "0.001k"), ("1e15", "1000T", "1000000G")),
    ):
        for text in (*least, *most):
            assert quantity.read("--bound", text) > 0 or quantity is ROUND_TRIP


COUNT = "--params must be a number from 1 to 1e15, such as 1.3e9, 350M or 7G, got "
LINK = "--link must be a rate from 1kbit to 1000tbit, such as 50mbit, 1gbit or 6MB/s, got "
RTT = "--rtt must be a time with its unit, from 0s to 10min, such as 40ms or 0.8s, got "
TIME = "--step must be a time with its unit, from 10us to 24h, such as 250ms or 0.8s, got "
AS_MANY = "--learners must be an int from 2 to 256, got "
WRONG = [
    ("--params", "many", f"{COUNT}'many'; give the parameters of the model"),
    ("--params", "0", COUNT),
    ("--params", "1.2.3", COUNT),
    ("--params", "1e30", f"{COUNT}'1e30'"),
    ("--params", "1e999", COUNT),
    ("--params", "-7G", COUNT),
    ("--link", "50", f"{LINK}'50'; give the rate of the slower direction"),
    ("--link", "0.5kbit", LINK),
    ("--link", "1e9gbit", LINK),
    ("--rtt", "-1ms", f"{RTT}'-1ms'; give the time that ping shows"),
    ("--rtt", "11min", RTT),
    ("--rtt", "30", f"{RTT}'30'; give the time that ping shows"),
    ("--step", "0", f"{TIME}'0'; give the time of an inner step, as your script shows it"),
    ("--step", "2.5", TIME),
    ("--step", "1e99", TIME),
    ("--step", "25h", TIME),
    ("--step", "1us", TIME),
    ("--learners", "1", f"{AS_MANY}1; a learner alone sends nothing"),
    ("--learners", "-3", f"{AS_MANY}-3"),
    ("--learners", "100000", f"{AS_MANY}100000; processes on one machine or a fast network can"),
    ("--zones", "4", "--zones must be the learners at each of two sites or more, such as 4,4"),
    ("--zones", "0,4", "--zones must be the learners at each of two sites or more, such as 4,4"),
    ("--zones", "a,b", "--zones must be the learners at each of two sites or more, such as 4,4"),
    ("--zones", "200,100", "such as 4,4, of 256 at most, got '200,100'"),
    ("--zones", "4,4", "--learners must be 8, got 4; --zones says how many there are"),
    ("--site-link", "1gbit", "--site-link must be given with --zones, got '1gbit'"),
    ("--site-link", "", "--site-link must be given with --zones, got ''"),
]
GIVEN = {
    "--params": "1.3e9",
    "--link": "50mbit",
    "--rtt": "40ms",
    "--step": "0.8s",
    "--learners": "4",
}


@pytest.mark.parametrize(("argument", "value", "words"), WRONG)
def test_arguments_that_are_wrong_are_named(
    argument: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {**GIVEN, argument: value}
    assert main(["plan", *(f"{name}={each}" for name, each in told.items())]) == 2
    assert words in capsys.readouterr().err
    assert main(["plan", *(word for each in told.items() for word in each)]) == 2
    assert words in capsys.readouterr().err


def test_an_empty_rate_of_sites_is_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    told = {**AT_SITES, "--site-link": ""}
    assert main(["plan", *(f"{name}={each}" for name, each in told.items())]) == 2
    assert "--site-link must be a rate from 1kbit" in capsys.readouterr().err


@pytest.mark.parametrize("params", [PARAMETERS.least, PARAMETERS.most])
@pytest.mark.parametrize("rate", [RATE.least, RATE.most])
@pytest.mark.parametrize("step_s", [STEP.least, STEP.most])
@pytest.mark.parametrize("learners", [2, 256])
def test_within_the_bounds_there_is_a_plan(
    params: float, rate: float, step_s: float, learners: int
) -> None:
    for rtt_s in (ROUND_TRIP.least, ROUND_TRIP.most):
        alike = Setup(params=params, bits_per_s=rate, rtt_s=rtt_s, step_s=step_s, learners=learners)
        sites = (1, learners - 1)
        for setup in (alike, replace(alike, sites=sites, site_bits_per_s=rate, zoned=True)):
            assert "* suggested:" in plan_of(setup)


def test_the_number_of_learners_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--params=1M", "--link=1gbit", "--step=1s"]) == 2
    assert "--learners is missing; give an int from 2 to 256, or --zones" in capsys.readouterr().err


def test_a_short_way_is_told_in_fractions_of_a_millisecond() -> None:
    near = Setup(params=1e6, bits_per_s=1e9, rtt_s=2e-4, step_s=1.0, learners=2)
    assert "links of 1Gbit/s with 0.2 ms there and back" in plan_of(near)
    assert "with 40 ms there" in plan_of(replace(near, rtt_s=0.04))
    assert "with 2 s there" in plan_of(replace(near, rtt_s=2.0))


AT_SITES = {
    "--params": "350M",
    "--link": "1gbit",
    "--step": "0.8s",
    "--zones": "4,4",
    "--site-link": "50mbit",
}


def test_what_crosses_between_sites_is_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *(word for each in AT_SITES.items() for word in each)]) == 0
    whole = capsys.readouterr().out
    part = whole[whole.index("Between the sites") : whole.index("\n\nhidden:")]
    assert f"    mend plan {' '.join(word for each in AT_SITES.items() for word in each)}" in page()
    assert quoted(part) in page(), f"docs/command.md should have:\n{quoted(part)}"


def page() -> str:
    return (DOCS / "command.md").read_text(encoding="utf-8")


def quoted(output: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in output.splitlines())


def test_the_output_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *(word for each in GIVEN.items() for word in each)]) == 0
    output = quoted(capsys.readouterr().out)
    assert output in page(), f"docs/command.md should have:\n{output}"


def test_offers_are_joined_without_a_codec() -> None:
    zoned = Setup(
        params=1e6, bits_per_s=1e9, rtt_s=0.01, step_s=1.0, learners=8, sites=(4, 4), zoned=True
    )
    none, *others = (option(zoned, coding, 8) for coding in CODINGS)
    assert none.joined
    assert not any(other.joined for other in others)
    assert not option(replace(zoned, zoned=False), CODINGS[0], 8).joined


def test_moments_cross_as_one_at_the_cost_that_the_docs_tell() -> None:
    """Round by round, for one of two sites of four; and as docs/operations.md tells it."""
    # The delta, the first moments in every third round, and the second ones in every sixth.
    sizes = [1 + (v % 3 == 0) + (v % 6 == 0) for v in range(1, 7)]
    # For half of the fragments it sends offers, of all as one or each; for the others it seals.
    by_hand, one_by_one = ((n * sum(sizes) / 2 + sum(sizes) / 2) / 6 for n in (1, 4))
    setup = Setup(
        params=1e6, bits_per_s=1e6, rtt_s=0.01, step_s=1.0, learners=8, sites=(4, 4), zoned=True
    )
    best = option(setup, CODINGS[0], 8)
    per_packet = best.nbytes / CODINGS[0].nbytes(setup.params)
    sent, apart = (
        per_packet * crossing((4, 4), 0, zoned=True, joined=joins).sent
        for joins in (best.joined, False)
    )
    flat = per_packet * crossing((4, 4), 0, zoned=False).sent
    assert (sent, apart) == (pytest.approx(by_hand), pytest.approx(one_by_one))
    page = " ".join((DOCS / "operations.md").read_text(encoding="utf-8").split())
    assert f"{sent:.4g} times the bytes of the model instead of {flat:.4g}" in page
    assert f"One by one, it would be {apart:.4g}." in page
