"""One fragment's moments on their way: from offers into a seal and back, to newcomers, into
checkpoints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import as_bytes, raw
from mend_optim.codecs.registry import CODECS, find_codec, split
from mend_optim.engine.accounts import Totals
from mend_optim.engine.effects import (
    Advance,
    Extend,
    Found,
    Inspect,
    Install,
    Join,
    Merge,
    Prepare,
    Reoffer,
)
from mend_optim.engine.mode import Mode
from mend_optim.engine.moment_schedule import Moment, MomentSchedule
from mend_optim.engine.pending import Pending
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.standing import Standing
from mend_optim.errors import PeerError
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import Claim, Lineage, PeerId
from mend_optim.protocol.messages import (
    COUNTS,
    MOMENT_PREFIX,
    Offer,
    Packet,
    Seal,
    Sections,
    moment_names,
)
from mend_optim.protocol.tree_digest import short_digest
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.checkpoint import Kept, keep, kept_correction
from mend_optim.worker.correction import Correction, MomentCorrection, Reading, stack
from mend_optim.worker.joint import read_counts
from mend_optim.worker.moment_means import LATEST, MEAN, NEWCOMER, OWN, MomentMeans
from mend_optim.worker.moment_packet import check_moment, decode_moment, encode_moment
from mend_optim.worker.outer import DiLoCoNesterov, Nesterov
from mend_optim.worker.seal_payload import payload_digest
from tests import reference
from tests.support.depth import many
from tests.support.engines import BASE, GENESIS, OTHER, PEER, DrivenEngine, grown, seal_of, state_of
from tests.support.jobs import LoneFragment, Performed, perform

FIRST = Moment(name="exp_avg", order="first", decay="betas.0", corrected=True)
SECOND = Moment(
    name="exp_avg_sq", order="second", decay="betas.1", corrected=True, nonnegative=True
)
BOTH = (FIRST, SECOND)
KINDS = {moment.name: moment for moment in BOTH}
ALL = tuple(KINDS)
SHAPES = [(3, 5), (), (0, 4), (7,)]
LAYOUT = Layout([str(s) for s in SHAPES], [torch.zeros(s) for s in SHAPES], 1)
(FRAGMENT,) = LAYOUT.fragments
NUMEL = FRAGMENT.numel
PRESENT = (1,) * len(SHAPES)

SEEDS = st.integers(0, 2**32 - 1)
UPDATES = st.lists(
    st.sampled_from([0, 1, 5, 2**24]), min_size=len(SHAPES), max_size=len(SHAPES)
).map(tuple)
SENT = st.sets(st.sampled_from(ALL)).map(sorted)


def drawn(seed: int, name: str, updates: Sequence[int] = PRESENT) -> Reading:
    """A reading of all sizes; zero where there is none."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(NUMEL, generator=generator) * 10 ** (
        6 * torch.rand(NUMEL, generator=generator) - 3
    )
    values = values.abs() if KINDS[name].nonnegative else values
    for part, count in zip(split(values, FRAGMENT.shapes), updates, strict=True):
        part *= count > 0
    return Reading(values, tuple(updates))


def readings(
    seed: int, sent: Sequence[str] = ALL, updates: Sequence[int] = PRESENT
) -> dict[str, Reading]:
    return {name: drawn(seed + i, name, updates) for i, name in enumerate(ALL) if name in sent}


def told(one: MomentMeans, what: Mapping[str, Reading]) -> dict[str, Packet]:
    """Its sections of an offer: there is nothing wrong with any."""
    sections, wrong = one.offer(what)
    assert wrong == ""
    return sections


def averaging(exact: bool = True, moments: Sequence[Moment] = BOTH) -> MomentMeans:
    return MomentMeans(moments, exact, FRAGMENT, Buffers())


def offered(sections: Sections, name: str = "a", steps: int = 1) -> Offer:
    return Offer(
        peer=PeerId(name, 1),
        fragment=0,
        seq=1,
        tokens=steps,
        steps=steps,
        genesis=GENESIS,
        key=BASE.key,
        due=True,
        sections=sections,
    )


def read_back(name: str, packet: Packet) -> Reading:
    check_moment(KINDS[name], packet, FRAGMENT.shapes)
    out = torch.full((NUMEL,), math.nan)
    return Reading(out, decode_moment(KINDS[name], packet, FRAGMENT.shapes, out))


def alike(these: Mapping[str, Reading], those: Mapping[str, Reading]) -> bool:
    """To the bit."""
    assert these.keys() == those.keys()
    return all(
        torch.equal(these[n].values, those[n].values) and these[n][1] == those[n][1] for n in these
    )


def held(averaging: MomentMeans) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The pending moments and the means that are kept for newcomers, in bytes."""
    own = {
        name: bytes(as_bytes(r.values)) + repr(r.updates).encode()
        for name, r in averaging.own.items()
    }
    return own, {name: bytes(packet.data) for name, packet in averaging.latest.items()}


class Round:
    """Members that each read, offer, are averaged and take the seal; the first one seals."""

    def __init__(
        self, members: Sequence[dict[str, Reading]], due: Sequence[str] = ALL, exact: bool = True
    ) -> None:
        self.readings = members
        self.averagings = [averaging(exact) for _ in members]
        pairs = zip(self.averagings, members, strict=True)
        self.offers = [
            offered(told(own, reading), str(i)) for i, (own, reading) in enumerate(pairs)
        ]
        self.seal = self.averagings[0].average(self.offers, due)
        taken = [own.merged(self.seal, merged_own_offer=True) for own in self.averagings]
        self.corrections = [{c.moment: c for c in corrections} for corrections in taken]

    def who_sent(self, name: str, i: int) -> list[int]:
        """The members that have that moment of tensor i."""
        return [
            m
            for m, reading in enumerate(self.readings)
            if name in reading and reading[name].updates[i]
        ]


def parts(values: Tensor, i: int) -> Tensor:
    return values[FRAGMENT.offsets[i] : FRAGMENT.offsets[i + 1]]


MEMBERS = st.lists(st.builds(readings, SEEDS, SENT, UPDATES), min_size=1, max_size=4)


# ── one round ─────────────────────────────────────────────────────────────────────────────────────


@given(MEMBERS, SENT, st.booleans())
def test_who_sent_a_moment_that_is_due_comes_to_the_mean_of_those_that_did(
    members: list[dict[str, Reading]], due: list[str], exact: bool
) -> None:
    round = Round(members, due, exact)
    assert moment_names(round.seal) == {
        name for name in due if any(name in member for member in members)
    }
    for member, corrections in zip(members, round.corrections, strict=True):
        assert corrections.keys() == set(due) & set(member)
        for name, correction in corrections.items():
            assert (correction.updates, correction.newcomer) == (member[name].updates, False)
    for name in moment_names(round.seal):
        for i, shape in enumerate(SHAPES):
            who = round.who_sent(name, i)
            own = [
                parts(members[m][name].values, i).tolist() if m in who else None
                for m in range(len(members))
            ]
            mean = reference.mean_of_those_that_have_it(own, math.prod(shape))
            size = max((abs(x) for values in own if values for x in values), default=0.0)
            for m in who:
                found = parts(
                    members[m][name].values + round.corrections[m][name].values, i
                ).tolist()
                assert found == pytest.approx(mean, rel=0, abs=(1e-6 if exact else 2.0**-6) * size)


@given(MEMBERS)
def test_the_mean_over_the_learners_stays_what_it_was(members: list[dict[str, Reading]]) -> None:
    """A round adds to some learners as much as it takes from others, and leaves out learners
    without such a state."""
    round = Round(members)
    for name in ALL:
        for i in range(len(SHAPES)):
            who = round.who_sent(name, i)
            moved = [parts(round.corrections[m][name].values, i).double() for m in who]
            sizes = [parts(members[m][name].values, i).double().abs() for m in who]
            if who:
                total, size = torch.stack(moved).sum(0).abs(), torch.stack(sizes).sum(0)
                assert bool((total <= 1e-6 * size).all())


@given(st.builds(readings, SEEDS, SENT, UPDATES))
def test_who_sends_alone_is_not_moved_by_a_bit(own: dict[str, Reading]) -> None:
    """Without a codec; the others were at rest, or have nothing of the kind."""
    for round in (Round([own]), Round([own, {}])):
        assert all(not c.values.any() for c in round.corrections[0].values())


@given(MEMBERS, st.booleans())
def test_newcomers_are_told_what_the_seal_says_whatever_they_sent(
    members: list[dict[str, Reading]], exact: bool
) -> None:
    round, absent = Round(members, ALL, exact), averaging(exact)
    assert absent.merged(round.seal, merged_own_offer=False) == ()
    for one in (absent, *round.averagings):
        assert held(one) == (
            {},
            {name.removeprefix(MOMENT_PREFIX): bytes(p.data) for name, p in round.seal.items()},
        )
        assert {name: bytes(p.data) for name, p in one.export().items()} == {
            name: bytes(p.data) for name, p in round.seal.items()
        }


def joined(members: Sequence[dict[str, Reading]], first: int = 0) -> Offer:
    """The joint offer of these members, whose numbers begin with `first`."""
    relay = averaging()
    each = [
        offered(told(averaging(), reading), str(first + i)) for i, reading in enumerate(members)
    ]
    own, *others = each
    return replace(
        own, sections=relay.joined(each), others=tuple(replace(o, sections={}) for o in others)
    )


def in_zones(members: Sequence[dict[str, Reading]], cuts: Sequence[int]) -> list[Offer]:
    """The offers of a round that a sealer has of these members, cut into zones."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(members)}), len(members)]
    joint = [joined(members[a:b], a) for a, b in itertools.pairwise(bounds)]
    return [part for offer in joint for part in offer.together]


@given(MEMBERS, SENT, st.lists(st.integers(0, 4)))
def test_a_round_of_joint_offers_averages_as_one_of_the_members_one_by_one(
    members: list[dict[str, Reading]], due: list[str], cuts: list[int]
) -> None:
    offers, flat, sealer = in_zones(members, cuts), Round(members, due), averaging()
    for offer in offers:
        sealer.check(offer.sections)
        sealer.check_joint(offer)
    seal = sealer.average(offers, due)
    assert seal.keys() == flat.seal.keys()
    for key, packet in seal.items():
        name = key.removeprefix(MOMENT_PREFIX)
        one, other = read_back(name, packet), read_back(name, flat.seal[key])
        assert one.updates == other.updates
        sizes = [member[name].values.abs() for member in members if name in member]
        most = torch.stack(sizes).amax(0)
        assert bool(((one.values - other.values).abs() <= 1e-6 * most).all())
    # The same members are corrected, by the difference to one mean, of which all keep the bits.
    for reading, before in zip(members, flat.corrections, strict=True):
        own = averaging()
        told(own, reading)
        corrections = own.merged(seal, merged_own_offer=True)
        assert [c.moment for c in corrections] == sorted(before)
        for name, values, *_ in corrections:
            mean = read_back(name, seal[MOMENT_PREFIX + name]).values
            assert torch.equal(values, mean - reading[name].values)
        assert held(own)[1] == {
            name.removeprefix(MOMENT_PREFIX): bytes(packet.data) for name, packet in seal.items()
        }


def test_a_joint_offer_without_moments_tells_no_counts() -> None:
    assert averaging().joined([offered({}, "a"), offered({}, "b")]) == {}
    averaging().check_joint(joined([{}, {}]))


def test_a_joint_offer_is_the_mean_of_its_members_of_which_it_tells_the_number() -> None:
    one, two = readings(1, ALL, (1, 0, 2, 0)), readings(2, ["exp_avg"], (7, 0, 1, 3))
    joint = joined([one, two])
    assert read_counts(joint, len(SHAPES)) == {
        "exp_avg": (2, 0, 2, 1),
        "exp_avg_sq": (1, 0, 1, 0),
    }
    mean = read_back("exp_avg", joint.sections[MOMENT_PREFIX + "exp_avg"])
    assert mean.updates == (7, 0, 2, 3)
    expected = (one["exp_avg"].values[:15] + two["exp_avg"].values[:15]) / 2
    torch.testing.assert_close(mean.values[:15], expected)


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ((2, 0, 2, 1, 1, 0, 1), "are not 8 float32"),
        ((2, 0, 2, 1, 1, 0, 1, 0, 0), "are not 8 float32"),
        ((3, 0, 2, 1, 1, 0, 1, 0), "whole numbers from 0 to 2"),
        ((-1, 0, 2, 1, 1, 0, 1, 0), "whole numbers from 0 to 2"),
        ((1.5, 0, 2, 1, 1, 0, 1, 0), "whole numbers from 0 to 2"),
        ((math.nan, 0, 2, 1, 1, 0, 1, 0), "whole numbers from 0 to 2"),
        ((math.inf, 0, 2, 1, 1, 0, 1, 0), "whole numbers from 0 to 2"),
        ((0, 0, 2, 1, 1, 0, 1, 0), "exp_avg: Counts of a joint offer are not those"),
        ((2, 1, 2, 1, 1, 0, 1, 0), "exp_avg: Counts of a joint offer are not those"),
        ((2, 0, 2, 1, 1, 0, 0, 0), "exp_avg_sq: Counts of a joint offer are not those"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts: Sequence[float], why: str) -> None:
    joint = joined([readings(1, ALL, (1, 0, 2, 0)), readings(2, ["exp_avg"], (7, 0, 1, 3))])
    averaging().check_joint(joint)
    false = {**joint.sections, COUNTS: raw(torch.tensor(counts, dtype=torch.float32))}
    with pytest.raises(PeerError, match=why):
        averaging().check_joint(replace(joint, sections=false))


def test_moments_of_a_joint_offer_without_counts_are_refused() -> None:
    joint = joined([readings(1), readings(2)])
    rest = {name: packet for name, packet in joint.sections.items() if name != COUNTS}
    with pytest.raises(PeerError, match="'counts' is missing"):
        averaging().check_joint(replace(joint, sections=rest))


def test_updates_of_a_mean_are_the_most_of_any() -> None:
    few, many = readings(1, ALL, (1, 0, 2, 0)), readings(2, ALL, (7, 0, 1, 3))
    assert read_back("exp_avg", Round([few, many]).seal[MOMENT_PREFIX + "exp_avg"]).updates == (
        7,
        0,
        2,
        3,
    )


def test_members_at_rest_are_no_members() -> None:
    one, idle = averaging(), averaging()
    offers = [offered(told(one, readings(1))), offered(told(idle, readings(5)), "b", steps=0)]
    seal = one.average(offers, ALL)
    assert alike({name: read_back(name, seal[MOMENT_PREFIX + name]) for name in ALL}, readings(1))


@pytest.mark.parametrize("due", [(), ("exp_avg_sq",), ("what_is_that",)])
def test_nothing_to_average_no_section(due: tuple[str, ...]) -> None:
    assert Round([readings(1, ["exp_avg"]), readings(2, ["exp_avg"])], due).seal == {}


def test_the_order_in_which_moments_are_due_changes_nothing() -> None:
    members = [readings(1), readings(3)]
    seals = [Round(members, due).seal for due in (ALL, ALL[::-1], [*ALL, *ALL])]
    assert [list(seal) for seal in seals] == [sorted(MOMENT_PREFIX + name for name in ALL)] * 3
    assert [[bytes(p.data) for p in seal.values()] for seal in seals[1:]] == [
        [bytes(p.data) for p in seals[0].values()]
    ] * 2


@given(SEEDS, SEEDS)
def test_an_offer_that_was_left_out_keeps_what_it_said_until_it_is_merged(
    one: int, two: int
) -> None:
    late, other = averaging(), averaging()
    offer = offered(told(late, readings(one)), "late")
    assert (
        late.merged(
            other.average([offered(told(other, readings(two)))], ALL), merged_own_offer=False
        )
        == ()
    )
    seal = other.average([offer, offered(told(other, readings(two + 1)))], ALL)
    (found, *_) = late.merged(seal, merged_own_offer=True)
    mean = (readings(one)["exp_avg"].values + readings(two + 1)["exp_avg"].values) / 2
    assert torch.allclose(
        readings(one)["exp_avg"].values + found.values, mean, rtol=1e-5, atol=1e-5
    )
    assert late.own == {}


def test_what_was_sent_in_vain_is_not_corrected_by_a_later_round() -> None:
    """The offer was merged, its moments were not: the next ones are others."""
    one = averaging()
    offer = offered(told(one, readings(1)))
    assert one.merged(one.average([offer], ()), merged_own_offer=True) == ()
    one.offer({})
    assert (
        one.merged(
            averaging().average([offered(told(averaging(), readings(9)))], ALL),
            merged_own_offer=True,
        )
        == ()
    )


# ── codecs ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CODECS)
def test_moments_travel_as_float32_or_else_in_half_of_that(name: str) -> None:
    anchors = member(name).anchors
    sections = perform(anchors, prepare(1)).sections
    for moment in ALL:
        found, sent = read_back(moment, sections[MOMENT_PREFIX + moment]), readings(1)[moment]
        rounded = reference.rooted if KINDS[moment].nonnegative else reference.bfloat16
        expected = (
            sent.values.tolist() if name == "none" else [rounded(x) for x in sent.values.tolist()]
        )
        assert found.values.tolist() == expected
        assert found.updates == sent.updates
        # rounding is not its own
        assert anchors.fragments[0].means.own[moment].values.tolist() == sent.values.tolist()


@given(MEMBERS)
def test_no_mean_of_squares_is_negative_and_every_first_moment_stays_below_its_root(
    members: list[dict[str, Reading]],
) -> None:
    """Encoded, averaged, encoded again: |m| ≤ √v, where every member kept it and sent both."""
    for member in members:
        if len(member) == 2:
            m, v = member["exp_avg"].values, member["exp_avg_sq"].values
            limit = v.sqrt()
            m.clamp_(min=-limit, max=limit)
            m[m.double() ** 2 > v.double()] = 0.0
    both = [member for member in members if len(member) == 2] or [
        readings(0, ALL, (0,) * len(SHAPES))
    ]
    seal = Round(both, exact=False).seal
    m, v = (read_back(name, seal[MOMENT_PREFIX + name]).values for name in ALL)
    assert bool((v >= 0).all())
    assert bool((m.double().abs() <= v.double().sqrt() * (1 + 2.0**-6)).all())


# ── unknown moments ───────────────────────────────────────────────────────────────────────────────


def test_moments_that_are_not_known_here_are_ignored_wherever_they_come() -> None:
    """Whatever is in them."""
    strange = {
        MOMENT_PREFIX + "acc": Packet("zip", 3, memoryview(b"?")),
        MOMENT_PREFIX + "exp_avg": raw(torch.zeros(3)),
    }
    one, plain = averaging(moments=[SECOND]), averaging(moments=[])
    ours = told(one, readings(1, ["exp_avg_sq"]))
    sections = {"delta": raw(torch.zeros(NUMEL)), **strange, **ours}
    for here in (one, plain):
        here.check(sections)
        assert (
            here.anchor_installed({"anchor": raw(torch.zeros(NUMEL)), **strange}, newcomer=True)
            == ()
        )
        assert here.export() == {}
    assert plain.average([offered(sections)], ("acc", *ALL)) == {}
    assert list(one.average([offered(sections)], ("acc", *ALL))) == [MOMENT_PREFIX + "exp_avg_sq"]
    one.offer(readings(1, ["exp_avg_sq"]))
    assert [c.moment for c in one.merged(sections, merged_own_offer=True)] == ["exp_avg_sq"]
    assert plain.merged(sections, merged_own_offer=True) == ()
    assert list(one.export()) == [MOMENT_PREFIX + "exp_avg_sq"]


def test_a_sealer_that_does_not_know_a_moment_averages_it_for_nobody() -> None:
    """Then nobody is corrected, and everybody sends it again."""
    offers = [
        offered(told(averaging(), readings(seed)), name) for seed, name in ((1, "a"), (5, "b"))
    ]
    sealer = averaging(moments=[FIRST])
    assert list(sealer.average(offers, ALL)) == [MOMENT_PREFIX + "exp_avg"]
    assert averaging(moments=[]).average(offers, ALL) == {}


# ── newcomers, founders ───────────────────────────────────────────────────────────────────────────


@given(SEEDS, UPDATES, st.booleans())
def test_a_newcomer_takes_over_what_was_averaged_last(
    seed: int, updates: tuple[int, ...], exact: bool
) -> None:
    veteran, newcomer, again = averaging(exact), averaging(exact), averaging(exact)
    for k in (seed, seed + 10):
        veteran.merged(
            veteran.average([offered(told(veteran, readings(k, ALL, updates)))], ALL),
            merged_own_offer=True,
        )
    newcomer.offer(readings(3))
    found = newcomer.anchor_installed(
        {"anchor": raw(torch.zeros(NUMEL)), **veteran.export()}, newcomer=True
    )
    assert [(c.moment, c.newcomer) for c in found] == [(name, True) for name in sorted(ALL)]
    expected = {name: read_back(name, veteran.export()[MOMENT_PREFIX + name]) for name in ALL}
    assert alike({c.moment: Reading(c.values, c.updates) for c in found}, expected)
    if exact:
        assert alike(expected, readings(seed + 10, ALL, updates))
    assert newcomer.own == {}
    assert held(newcomer) == held(veteran)
    again.anchor_installed(newcomer.export(), newcomer=True)
    assert held(again) == held(veteran)


def test_who_only_moves_to_another_anchor_keeps_its_moments_and_knows_the_mean() -> None:
    veteran, one = averaging(), averaging()
    veteran.founded(readings(1))
    one.offer(readings(5))
    before, _ = held(one)
    assert one.anchor_installed(veteran.export(), newcomer=False) == ()
    assert held(one) == (before, held(veteran)[1])


@given(SEEDS, UPDATES, SENT, SENT, st.booleans())
def test_who_was_merged_is_corrected_by_the_anchor_as_by_its_seal(
    seed: int, updates: tuple[int, ...], sent: list[str], due: list[str], exact: bool
) -> None:
    """But by no mean of a round before, which the anchor still has."""
    sealer, by_seal, by_anchor = averaging(exact), averaging(exact), averaging(exact)
    sealer.merged(Round([readings(seed + 20)], exact=exact).seal, merged_own_offer=False)
    offers = [offered(told(one, readings(seed, sent, updates))) for one in (by_seal, by_anchor)]
    seal = sealer.average([offers[0], offered(told(sealer, readings(seed + 10)), "b")], due)
    sealer.merged(seal, merged_own_offer=True)
    expected = by_seal.merged(seal, merged_own_offer=True)
    found = by_anchor.anchor_installed(sealer.export(), False, True, due)
    assert [c.moment for c in found] == [c.moment for c in expected] == sorted(set(sent) & set(due))
    for these, those in zip(found, expected, strict=True):
        assert torch.equal(these.values, those.values)
        assert these[2:] == those[2:]
    assert by_anchor.own == {}
    assert by_anchor.anchor_installed(sealer.export(), False, True, due) == ()


def test_what_a_learner_alone_has_is_everybodys() -> None:
    """Instead of all that was before, and copied: the next steps do not change it."""
    one = averaging()
    one.merged(Round([readings(1)]).seal, merged_own_offer=False)
    one.offer(readings(2))
    mine = readings(7, ["exp_avg"])
    one.founded(mine)
    assert one.own == {}
    assert list(one.export()) == [MOMENT_PREFIX + "exp_avg"]
    mine["exp_avg"].values.zero_()
    assert alike(
        {"exp_avg": read_back("exp_avg", one.export()[MOMENT_PREFIX + "exp_avg"])},
        readings(7, ["exp_avg"]),
    )


def test_who_takes_another_model_over_forgets_what_was_averaged_for_the_former() -> None:
    """The others may have averaged nothing yet."""
    one, veteran = averaging(), averaging()
    one.merged(Round([readings(1)]).seal, merged_own_offer=False)
    assert one.anchor_installed(veteran.export(), newcomer=True) == ()
    assert one.export() == {}


def test_what_is_kept_does_not_hold_the_message_it_came_in() -> None:
    seal = Round([readings(1)]).seal
    one = averaging()
    one.merged(seal, merged_own_offer=False)
    before = held(one)
    for packet in seal.values():
        packet.data[:] = bytes(packet.nbytes)
    assert held(one) == before


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────


def test_means_that_no_round_can_have_made_are_left_out() -> None:
    """A damaged checkpoint may hold them: no newcomer is to get a negative second moment."""
    bad = drawn(1, "exp_avg_sq").values.clone().fill_(-1.0)
    tensors = {
        LATEST + name: torch.cat((values, torch.ones(len(SHAPES))))
        for name, values in (("exp_avg", drawn(1, "exp_avg").values), ("exp_avg_sq", bad))
    }
    means = MomentMeans(BOTH, True, FRAGMENT, Buffers())
    means.load(tensors)
    assert set(means.export()) == {MOMENT_PREFIX + "exp_avg"}


@given(SEEDS, SENT, UPDATES, SENT, st.booleans())
def test_saved_and_loaded_to_the_bit(
    seed: int, own: list[str], updates: tuple[int, ...], latest: list[str], exact: bool
) -> None:
    one, other = averaging(exact), averaging(exact)
    sections = told(one, readings(seed, own, updates))
    one.merged(
        Round([readings(seed + 5, latest, updates)], exact=exact).seal, merged_own_offer=False
    )
    saved = one.save()
    other.load(saved)
    assert held(other) == held(one)
    assert {n: bytes(p.data) for n, p in other.again().items()} == {
        n: bytes(p.data) for n, p in sections.items()
    }
    for tensor in saved.values():  # it is a copy
        tensor.zero_()
    assert held(other) == held(one)


def test_what_belongs_to_no_moment_any_more_is_left_out() -> None:
    one, other = averaging(), averaging(moments=[SECOND])
    one.offer(readings(1))
    one.merged(Round([readings(2)]).seal, merged_own_offer=False)
    other.load(one.save())
    assert [sorted(kept) for kept in held(other)] == [["exp_avg_sq"], ["exp_avg_sq"]]


PENDING = Pending(claim=Claim(PeerId("a", 1), 0), seq=1, step=1, tokens=1, steps=1, due=True)


def standing(pending: Pending | None) -> Standing:
    return Standing(
        lineage=BASE,
        claim=Claim(PeerId("a", 1), 0),
        cycle_start=0,
        settled=Totals(),
        dropped_tokens=0,
        pending=pending,
        correction_pending=True,
        adopt_at=None,
    )


@given(SEEDS, UPDATES, st.booleans(), st.booleans())
def test_corrections_in_the_mailbox_are_saved_to_the_bit(
    seed: int, updates: tuple[int, ...], newcomer: bool, replacing: bool
) -> None:
    moments = tuple(MomentCorrection(name, *drawn(seed, name, updates), newcomer) for name in ALL)
    correction = Correction(0, torch.arange(float(NUMEL)), replacing, moments)
    kept = keep(standing(None), averaging().save(), correction)
    found = kept_correction(FRAGMENT, kept, torch.empty(NUMEL))
    assert (found.fragment, found.replace) == (0, replacing)
    assert torch.equal(found.values, correction.values)
    for one, other in zip(found.moments, moments, strict=True):
        assert (one.moment, one.updates, one.newcomer) == (
            other.moment,
            other.updates,
            other.newcomer,
        )
        assert torch.equal(one.values, other.values)


def test_what_was_sent_is_saved_as_long_as_the_offer_is_pending() -> None:
    one = averaging()
    one.offer(readings(1))
    one.merged(Round([readings(2)]).seal, merged_own_offer=False)
    latest = {LATEST + name for name in ALL}
    assert (
        keep(standing(PENDING), one.save(), None).tensors.keys()
        == {OWN + name for name in ALL} | latest
    )
    assert keep(standing(None), one.save(), None).tensors.keys() == latest


def test_a_mean_and_what_a_newcomer_takes_are_told_apart() -> None:
    kinds = [
        MomentCorrection("exp_avg", *drawn(i, "exp_avg"), newcomer)
        for i, newcomer in enumerate((False, True))
    ]
    kept: Kept = keep(standing(None), {}, Correction(0, torch.zeros(NUMEL), True, tuple(kinds)))
    assert kept.tensors.keys() == {"correction", MEAN + "exp_avg", NEWCOMER + "exp_avg"}
    found = kept_correction(FRAGMENT, kept, torch.empty(NUMEL)).moments
    assert [(c.newcomer, c.values.tolist()) for c in found] == [
        (c.newcomer, c.values.tolist()) for c in kinds
    ]


# ── corrections that wait for the training thread ─────────────────────────────────────────────────


@given(st.lists(st.tuples(SEEDS, st.booleans()), min_size=2, max_size=4))
def test_stacked_corrections_carry_the_moments_of_all_in_order(
    drawn_ones: list[tuple[int, bool]],
) -> None:
    stacked, expected = None, []
    for seed, replacing in drawn_ones:
        moments = (MomentCorrection("exp_avg", *drawn(seed, "exp_avg"), replacing),)
        expected += moments
        stacked = stack(stacked, Correction(0, torch.ones(NUMEL), replacing, moments))
    assert stacked is not None
    assert len(stacked.moments) == len(expected)
    assert all(one is other for one, other in zip(stacked.moments, expected, strict=True))
    assert stacked.replace == any(replacing for _, replacing in drawn_ones)


# ── the tensor side, whole ────────────────────────────────────────────────────────────────────────


class Member(LoneFragment):
    """One fragment of one learner, without an engine."""

    def __init__(
        self, name: str = "a", coding: str = "none", moments: Sequence[Moment] = BOTH
    ) -> None:
        theta = [torch.linspace(-1, 1, NUMEL)]
        outer = DiLoCoNesterov(lr=0.7, momentum=0.9)
        anchors = Anchors(
            LAYOUT,
            theta,
            codec=find_codec(coding),
            outer=outer,
            scheme="mean",
            buffers=Buffers(),
            moments=moments,
        )
        super().__init__(name, anchors)
        self.seq = 0

    def offer(self, seed: int, sent: Sequence[str] = ALL) -> Offer:
        self.seq += 1
        return self.offer_from(prepare(seed, self.seq, sent))

    def seal(self, *offers: Offer, due: Sequence[str] = ALL) -> Seal:
        shares = (1 / len(offers),) * len(offers)
        return self.seal_from(
            Merge(fragment=0, base=BASE, offers=offers, weights=shares, moments=tuple(due))
        )

    def advance(self, seal: Seal, merged_own_offer: bool = True, **more: Any) -> Performed:
        return perform(
            self.anchors,
            Advance(seal=seal, lineage=BASE, merged_own_offer=merged_own_offer, **more),
        )

    def contents(self) -> list[Any]:
        """All that there is, to the bit."""
        found: list[Any] = []
        for part in self.anchors.fragments:
            tensors = [part.theta, part.velocity.b, part.progress, *part.feedback.held().values()]
            found += [None if t is None else bytes(as_bytes(t)) for t in tensors]
            found.append(held(part.means))
        return found


def member(coding: str = "none", name: str = "a") -> Member:
    return Member(name, coding)


def prepare(seed: int, seq: int = 1, sent: Sequence[str] = ALL) -> Prepare:
    generator = torch.Generator().manual_seed(seed)
    return Prepare(
        fragment=0,
        seq=seq,
        tensor=torch.randn(NUMEL, generator=generator),
        moments=readings(seed, sent),
    )


def busy(coding: str = "none") -> tuple[Member, Member, Seal]:
    """Two that have a velocity, means of a round before, and offers on their way; and the seal of
    these."""
    a, b = Member("a", coding), Member("b", coding)
    for seed in (1, 11):
        offers = a.offer(seed), b.offer(seed + 5)
        seal = a.seal(*offers)
        if seed == 1:
            assert a.advance(seal, sealed_here=True).fault == b.advance(seal).fault == ""
    return a, b, seal


@pytest.mark.parametrize("name", CODECS)
def test_a_round_of_offers_seals_and_corrections(name: str) -> None:
    a, b, seal = busy(name)
    corrections = [a.advance(seal, sealed_here=True).corrections[0], b.advance(seal).corrections[0]]
    for moment in ALL:
        own = [readings(seed)[moment].values for seed in (11, 16)]
        moved = [next(m for m in c.moments if m.moment == moment).values for c in corrections]
        size = torch.stack(own).abs().max(0).values
        bound = (1e-6 if name == "none" else 2.0**-6) * size
        assert bool(((own[0] + moved[0] - (own[0] + own[1]) / 2).abs() <= bound).all())
        assert bool(((own[0] + moved[0] - own[1] - moved[1]).abs() <= 1e-6 * size).all())
    assert held(a.anchors.fragments[0].means) == held(b.anchors.fragments[0].means)


def test_a_zone_is_sealed_as_its_learners_would_be_one_by_one() -> None:
    """Two of three send their moments in one packet, and all three hold one mean."""
    a, b, c = Member("a"), Member("b"), Member("c")
    offers = a.offer(1), b.offer(6), c.offer(11, ["exp_avg"])
    flat = a.seal(*offers)
    join = Join(fragment=0, sealer=a.id, offers=offers[1:], weights=(0.5, 0.5))
    joint = replace(
        offers[1],
        sections=perform(b.anchors, join).sections,
        others=(replace(offers[2], sections={}),),
    )
    assert perform(a.anchors, Inspect(joint)).fault == ""
    zoned = a.seal(offers[0], *joint.together)
    assert zoned.sections.keys() == flat.sections.keys()
    for moment in ALL:
        key = MOMENT_PREFIX + moment
        one, other = (read_back(moment, seal.sections[key]) for seal in (zoned, flat))
        assert one.updates == other.updates
        torch.testing.assert_close(one.values, other.values, rtol=1e-5, atol=1e-5)
    found = [each.advance(zoned, sealed_here=each is a) for each in (a, b, c)]
    assert [[m.moment for m in each.corrections[0].moments] for each in found] == [
        list(ALL),
        list(ALL),
        ["exp_avg"],
    ]
    assert a.contents()[-1] == b.contents()[-1] == c.contents()[-1]


def test_a_joint_offer_whose_counts_are_false_is_refused_as_it_arrives() -> None:
    a, b, c = Member("a"), Member("b"), Member("c")
    offers = b.offer(6), c.offer(11)
    join = Join(fragment=0, sealer=a.id, offers=offers, weights=(0.5, 0.5))
    sections = perform(b.anchors, join).sections
    none = raw(torch.zeros(len(ALL) * len(SHAPES)))
    joint = replace(
        offers[0], sections={**sections, COUNTS: none}, others=(replace(offers[1], sections={}),)
    )
    assert "not those of its tensors" in perform(a.anchors, Inspect(joint)).fault


def test_what_a_merge_brings_of_moments_changes_nothing_about_the_weights() -> None:
    """And the other way round: the delta does not depend on the moments that are due."""
    found = []
    for due in (ALL, ("exp_avg",), ()):
        a, b, _ = busy()
        seal = a.seal(a.offer(21), b.offer(26), due=due)
        (correction,) = b.advance(seal).corrections
        assert {m.moment for m in correction.moments} == moment_names(seal.sections) == set(due)
        found.append(
            bytes(as_bytes(correction.values)) + bytes(as_bytes(b.anchors.fragments[0].theta))
        )
    assert found[0] == found[1] == found[2]


def test_an_offer_that_came_with_a_checkpoint_is_the_same_one() -> None:
    a = Member()
    offer = a.offer(1)
    again = Member()
    again.anchors.load(0, a.anchors.save(0))
    assert again.contents() == a.contents()
    sections = perform(again.anchors, Reoffer(0, 1)).sections
    assert {n: bytes(p.data) for n, p in sections.items()} == {
        n: bytes(p.data) for n, p in offer.sections.items()
    }


@pytest.mark.parametrize("whole", [False, True], ids=["by a seal", "by an anchor"])
def test_what_has_to_be_dropped_was_never_sent(whole: bool) -> None:
    """The weights become the anchor: the moments that went with the lost work are corrected by
    nothing."""
    a, b, _ = busy()
    elsewhere = a.seal(a.offer(40))
    if whole:
        job: Any = Install(states=(b.export(),), merged_own_offer=False, replace=True)
    else:
        job = Advance(seal=elsewhere, lineage=BASE, merged_own_offer=False, replace=True)
    (correction,) = perform(b.anchors, job).corrections
    assert b.anchors.fragments[0].means.own == {}
    assert {m.newcomer for m in correction.moments} == ({True} if whole else set())


def test_a_group_that_is_added_has_moments_of_its_own() -> None:
    a = Member()
    more = Layout(
        [*map(str, SHAPES), "new"], [*(torch.zeros(s) for s in SHAPES), torch.zeros(2)], 1, [1]
    )
    perform(a.anchors, Extend(more, torch.zeros(2), (0, 0, 0.0), more.groups()))
    reading = Reading(torch.tensor([1.0, 2.0]), (3,))
    sections = perform(
        a.anchors, Prepare(fragment=1, seq=1, tensor=torch.zeros(2), moments={"exp_avg": reading})
    ).sections
    out = torch.empty(2)
    assert decode_moment(FIRST, sections[MOMENT_PREFIX + "exp_avg"], [(2,)], out) == (3,)
    assert out.tolist() == [1.0, 2.0]


# ── garbage ───────────────────────────────────────────────────────────────────────────────────────


def flipped(sections: Sections, name: str, at: int, bit: int) -> Sections:
    data = bytearray(sections[name].data)
    data[at % len(data)] ^= 1 << bit
    return {**sections, name: replace(sections[name], data=memoryview(data))}


BITS = st.tuples(st.sampled_from(ALL), st.integers(0, 10**6), st.integers(0, 7))


@settings(max_examples=many(35, 100))
@given(BITS, st.sampled_from(["none", "bf16"]))
def test_no_bit_of_a_sealed_moment_can_be_changed_on_its_way(
    where: tuple[str, int, int], coding: str
) -> None:
    name, at, bit = where
    _, b, seal = busy(coding)
    before = b.contents()
    done = b.advance(replace(seal, sections=flipped(seal.sections, MOMENT_PREFIX + name, at, bit)))
    assert done.fault != ""
    assert done.corrections == ()
    assert b.contents() == before
    assert b.advance(seal).fault == ""


@settings(max_examples=many(35, 100))
@given(BITS, st.booleans())
def test_no_bit_of_a_newcomers_moment_can_be_changed_on_its_way(
    where: tuple[str, int, int], replacing: bool
) -> None:
    name, at, bit = where
    a, b, _ = busy()
    state, before = a.export(), b.contents()
    bad = replace(state, sections=flipped(state.sections, MOMENT_PREFIX + name, at, bit))
    done = perform(b.anchors, Install(states=(bad,), merged_own_offer=False, replace=replacing))
    assert done.fault != ""
    assert b.contents() == before
    assert (
        perform(
            b.anchors, Install(states=(state,), merged_own_offer=False, replace=replacing)
        ).fault
        == ""
    )


def test_a_sealed_moment_can_neither_be_left_out_nor_renamed_nor_exchanged() -> None:
    _, b, seal = busy()
    rest = {
        name: packet for name, packet in seal.sections.items() if name != MOMENT_PREFIX + "exp_avg"
    }
    one, two = (seal.sections[MOMENT_PREFIX + name] for name in ALL)
    before = b.contents()
    for sections in (
        rest,
        {**rest, MOMENT_PREFIX + "exp_avg_sq": one, MOMENT_PREFIX + "exp_avg": two},
        {**rest, MOMENT_PREFIX + "exp_avg2": one},
        {**seal.sections, MOMENT_PREFIX + "new": one},
    ):
        assert b.advance(replace(seal, sections=sections)).fault != ""
        assert b.contents() == before


def moment_of(values: Tensor, updates: Sequence[int], moment: Moment, numel: int = NUMEL) -> Packet:
    """Well-formed, whatever is in it: a broken but consistent peer would send this."""
    signed = replace(moment, nonnegative=False)
    packet = encode_moment(
        signed,
        torch.zeros(numel),
        tuple(updates),
        [(numel,)] if numel != NUMEL else SHAPES,
        exact=True,
    )
    begin = packet.nbytes - 4 * numel
    data = bytearray(packet.data)
    data[begin:] = bytes(as_bytes(values))
    return replace(packet, data=memoryview(data))


BAD = {
    "NaN": (
        moment_of(torch.full((NUMEL,), math.nan), PRESENT, FIRST),
        "exp_avg: Moment is not finite, too large",
    ),
    "infinite": (
        moment_of(torch.full((NUMEL,), -math.inf), PRESENT, FIRST),
        "exp_avg: Moment is not finite, too large",
    ),
    "too great": (
        moment_of(torch.full((NUMEL,), 1e38), PRESENT, FIRST),
        "exp_avg: Moment is not finite, too large",
    ),
    "too long": (
        moment_of(torch.zeros(NUMEL + 1), (1,), FIRST, NUMEL + 1),
        "exp_avg: Packet is 'packed' with 24 elements",
    ),
    "of another kind": (raw(torch.zeros(NUMEL)), "exp_avg: Packet is 'none'"),
    "empty": (Packet("packed", NUMEL, memoryview(b"")), "exp_avg: Packet is 0 bytes"),
}
NEGATIVE = moment_of(torch.full((NUMEL,), -1.0), PRESENT, SECOND)


def test_a_first_moment_that_is_negative_is_taken() -> None:
    """So that the refusals below are for the reason they name."""
    averaging().check(
        {MOMENT_PREFIX + "exp_avg": moment_of(torch.full((NUMEL,), -1.0), PRESENT, FIRST)}
    )


@pytest.mark.parametrize("kind", [*BAD, "negative"])
def test_a_bad_moment_is_refused_with_the_offer_the_seal_and_the_anchor_it_came_in(
    kind: str,
) -> None:
    """Under a digest that fits."""
    bad, fault = BAD.get(
        kind, (NEGATIVE, "exp_avg_sq: Moment is not finite, too large, or negative")
    )
    name = MOMENT_PREFIX + ("exp_avg_sq" if kind == "negative" else "exp_avg")
    a, b, seal = busy()
    before, state = b.contents(), a.export()
    sections = {**seal.sections, name: bad}
    tampered = replace(seal, sections=sections, payload=payload_digest(sections, seal.weights))
    whole = {**state.sections, name: bad}
    content = short_digest(*(whole[key].data for key in sorted(whole)))
    for job in (
        Inspect(offered({**a.offer(30).sections, name: bad})),
        Advance(seal=tampered, lineage=BASE, merged_own_offer=True),
        Install(
            states=(replace(state, sections=whole, content=content),),
            merged_own_offer=False,
            replace=True,
        ),
    ):
        done = perform(b.anchors, job)
        assert fault in done.fault
        assert done.corrections == ()
        assert b.contents() == before


def test_what_is_not_known_here_is_taken_for_no_reason_to_refuse() -> None:
    a, b, seal = busy()
    state = a.export()
    sections = {**seal.sections, MOMENT_PREFIX + "acc": BAD["NaN"][0]}
    strange = replace(seal, sections=sections, payload=payload_digest(sections, seal.weights))
    whole = {**state.sections, MOMENT_PREFIX + "acc": BAD["NaN"][0]}
    content = short_digest(*(whole[key].data for key in sorted(whole)))
    assert (
        perform(
            b.anchors,
            Inspect(offered({**a.offer(30).sections, MOMENT_PREFIX + "acc": BAD["NaN"][0]})),
        ).fault
        == ""
    )
    assert b.advance(strange).fault == ""
    assert (
        perform(
            b.anchors,
            Install(
                states=(replace(state, sections=whole, content=content),),
                merged_own_offer=False,
                replace=False,
            ),
        ).fault
        == ""
    )
    assert set(b.anchors.fragments[0].means.latest) == set(ALL)


def spoiled(value: float, name: str = "exp_avg") -> dict[str, Reading]:
    values = torch.zeros(NUMEL)
    values[3] = value
    return {**readings(9), name: Reading(values, PRESENT)}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ALL)
def test_a_moment_that_is_not_finite_is_left_out_of_the_offer_and_named(
    value: float, name: str
) -> None:
    """The others go with it, and are all that will be corrected."""
    (other,) = set(ALL) - {name}
    a, b, _ = busy()
    done = perform(
        a.anchors,
        Prepare(fragment=0, seq=9, tensor=torch.zeros(NUMEL), moments=spoiled(value, name)),
    )
    assert done.fault == ""
    assert done.warning.startswith(f"its {name} is not finite")
    assert done.sections.keys() == {"delta", MOMENT_PREFIX + other}
    assert a.anchors.fragments[0].means.own.keys() == {other}
    seal = b.seal(offered(done.sections), b.offer(30))
    assert moment_names(seal.sections) == set(ALL)
    (correction,) = a.advance(seal).corrections
    assert {m.moment for m in correction.moments} == {other}
    assert all(bool(m.values.isfinite().all()) for m in correction.moments)


def test_all_that_is_wrong_is_named() -> None:
    a = Member()
    both = {name: spoiled(math.nan, name)[name] for name in ALL}
    done = perform(a.anchors, Prepare(fragment=0, seq=1, tensor=torch.zeros(NUMEL), moments=both))
    assert [f"its {name} is not finite" in done.warning for name in ALL] == [True, True]
    assert done.sections.keys() == {"delta"}


def test_a_negative_second_moment_is_left_out_too() -> None:
    done = perform(
        Member().anchors,
        Prepare(fragment=0, seq=1, tensor=torch.zeros(NUMEL), moments=spoiled(-1e-9, "exp_avg_sq")),
    )
    assert "its exp_avg_sq is" in done.warning
    assert done.sections.keys() == {"delta", MOMENT_PREFIX + "exp_avg"}


def test_who_is_alone_keeps_what_is_not_finite_from_newcomers() -> None:
    """Not the weights, nor what other fragments have of moments."""
    layout = Layout(["v", "w"], [torch.zeros(2), torch.zeros(2)], 2)
    start = [torch.ones(2), torch.ones(2)]
    anchors = Anchors(
        layout,
        start,
        codec=find_codec("none"),
        outer=Nesterov(),
        scheme="mean",
        buffers=Buffers(),
        moments=BOTH,
    )
    fine, bad = (Reading(torch.full((2,), value), (1,)) for value in (1.0, math.nan))
    tensors = (torch.full((2,), 3.0), torch.full((2,), 4.0))
    found = ({"exp_avg": fine, "exp_avg_sq": bad}, {"exp_avg": fine, "exp_avg_sq": fine})
    assert perform(anchors, Found(tensors, found)).fault == ""
    assert [part.theta.tolist() for part in anchors.fragments] == [[3, 3], [4, 4]]
    assert [sorted(part.means.export()) for part in anchors.fragments] == [
        [MOMENT_PREFIX + "exp_avg"],
        [MOMENT_PREFIX + "exp_avg", MOMENT_PREFIX + "exp_avg_sq"],
    ]


# ── when ──────────────────────────────────────────────────────────────────────────────────────────

PERIODS = st.integers(1, 9)
VERSIONS = st.integers(0, 60)


def policies(first: int, second: int) -> Policies:
    return Policies(
        schedule=Schedule(), moments=BOTH, periods=MomentSchedule(first=first, second=second)
    )


@given(PERIODS, PERIODS, VERSIONS)
def test_a_round_averages_what_its_version_is_a_multiple_of(
    first: int, second: int, version: int
) -> None:
    found = policies(first, second).due(version)
    assert found == tuple(
        name for name, period in zip(ALL, (first, second), strict=True) if version % period == 0
    )


@given(PERIODS, PERIODS, VERSIONS, VERSIONS, st.integers(1, 60))
def test_owed_is_what_became_due_since_it_was_averaged(
    first: int, second: int, m: int, v: int, version: int
) -> None:
    """By trying every version in between."""
    m, v = min(m, version - 1), min(v, version - 1)
    found = policies(first, second).owed({"first": m, "second": v}, version)
    pairs = zip(ALL, (first, second), (m, v), strict=True)
    assert found == tuple(
        n for n, period, last in pairs if any(k % period == 0 for k in range(last + 1, version + 1))
    )


@given(PERIODS, PERIODS, VERSIONS)
def test_who_was_never_averaged_owes_all_that_has_ever_been_due(
    first: int, second: int, version: int
) -> None:
    owed = policies(first, second).owed({}, version)
    assert owed == policies(first, second).owed({"first": 0, "second": 0}, version)
    assert owed == tuple(
        n for n, period in zip(ALL, (first, second), strict=True) if version >= period
    )


def test_never_is_never() -> None:
    never = Policies(schedule=Schedule(), moments=BOTH)
    assert (never.due(6), never.owed({}, 6)) == ((), ())
    nothing = Policies(schedule=Schedule(), periods=MomentSchedule())
    assert (nothing.due(6), nothing.owed({}, 6)) == ((), ())


def averaged_at(period: int, merged: Sequence[int]) -> list[int]:
    """The versions that average a learner which is merged at these, and at no others. The moments
    of an offer are chosen when it is prepared, on the version that merged the one before."""
    rules, averaged, base, found = policies(period, 1), {"first": 0}, 0, []
    for version in merged:
        if "exp_avg" in rules.owed(averaged, base + 1) and "exp_avg" in rules.due(version):
            averaged["first"] = version
            found.append(version)
        base = version
    return found


@pytest.mark.parametrize("period", range(1, 10))
def test_who_is_merged_at_every_version_is_averaged_at_every_one_that_is_due(period: int) -> None:
    assert averaged_at(period, range(1, 50)) == list(range(period, 50, period))


@pytest.mark.parametrize(
    ("period", "parity"), [(p, odd) for p in range(1, 10) for odd in (0, 1) if p % 2 or not odd]
)
def test_who_is_merged_only_at_every_second_version_is_averaged_sooner_or_later(
    period: int, parity: int
) -> None:
    """A link that takes a round and a half: its offer is always the first of the round after the
    next. Where the rounds that are due are all even, and its own all odd, there is nobody to
    average with."""
    found = averaged_at(period, range(2 - parity, 100, 2))
    assert len(found) >= 100 // (4 * period) - 1 > 0


@given(PERIODS, st.lists(st.integers(1, 4), min_size=40, max_size=40))
def test_who_is_merged_now_and_then_is_averaged_whenever_it_can_be(
    period: int, gaps: list[int]
) -> None:
    """At each due version that it is merged at, if one was due before it prepared its offer, or it
    was not left out."""
    versions = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    found, base, last = averaged_at(period, versions), 0, 0
    for version in versions:
        if version % period == 0 and any(k % period == 0 for k in range(last + 1, base + 2)):
            assert version in found
            last = version
        base = version


# ── the engine's part of it ───────────────────────────────────────────────────────────────────────


def engine(version: int = 0, first: int = 3, second: int = 6) -> DrivenEngine:
    """A learner whose anchor has that version; a peer seals."""
    made = DrivenEngine(seals=False)
    made.engine.state.policies = replace(
        made.engine.state.policies, moments=BOTH, periods=MomentSchedule(first=first, second=second)
    )
    made.beat()
    for _ in range(version):
        made.fragment.lineage = grown(made.lineage)
    return made


def sends(made: DrivenEngine, sent: Sequence[str]) -> None:
    """It offers, with these moments."""
    made.step(4)
    made.reserve()
    made.engine.boundaries.snapshot(0, torch.zeros(NUMEL), readings(1, sent))
    (prepare,) = made.jobs(Prepare)
    made.done(prepare, sections={MOMENT_PREFIX + name: raw(torch.zeros(1)) for name in sent})


def is_pulled(made: DrivenEngine, brought: Sequence[str], further: int = 0) -> tuple[str, ...]:
    """Its offer is merged, and it takes the anchor of that round, or of a further one, whole; what
    is corrected."""
    assert made.fragment.pending is not None
    assert made.fragment.pending.offer is not None
    lineage = grown(made.lineage, made.fragment.pending.offer.entry)
    for _ in range(further):
        lineage = grown(lineage)
    made.receive(
        replace(
            state_of(lineage),
            sections={MOMENT_PREFIX + name: raw(torch.zeros(1)) for name in brought},
        )
    )
    (install,) = made.jobs(Install)
    assert install.merged_own_offer
    made.done(install)
    made.apply()
    return install.due


def is_sealed(made: DrivenEngine, averaged: Sequence[str], mine: bool = True) -> None:
    pending = made.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    seal = seal_of(made.lineage, *([pending.offer.entry] if mine else []))
    made.receive(
        replace(seal, sections={MOMENT_PREFIX + name: raw(torch.zeros(1)) for name in averaged})
    )
    (advance,) = made.jobs(Advance)
    made.done(advance)
    made.apply()


@pytest.mark.parametrize(
    ("version", "expected"),
    [(0, ()), (1, ()), (2, ("exp_avg",)), (3, ("exp_avg",)), (5, ALL), (40, ALL)],
)
def test_an_offer_carries_what_was_due_by_the_version_it_is_for(
    version: int, expected: tuple[str, ...]
) -> None:
    assert engine(version).engine.boundaries.moments(0) == expected


@pytest.mark.parametrize(
    ("sent", "sealed", "mine", "expected"),
    [
        (ALL, ALL, True, {"first": 6, "second": 6}),
        (ALL, ["exp_avg"], True, {"first": 6}),
        (["exp_avg"], ALL, True, {"first": 6}),
        ([], ALL, True, {}),
        (ALL, [], True, {}),
        (ALL, ["acc"], True, {}),
        (ALL, ALL, False, {}),
    ],
)
def test_averaged_is_what_was_both_sent_and_sealed(
    sent: Sequence[str], sealed: Sequence[str], mine: bool, expected: dict[str, int]
) -> None:
    made = engine(5)
    sends(made, sent)
    is_sealed(made, sealed, mine)
    assert made.fragment.averaged == expected
    assert made.fragment.averaged == expected


@pytest.mark.parametrize(
    ("sent", "brought", "expected"),
    [(ALL, ALL, {"first": 6}), (["exp_avg_sq"], ALL, {}), (ALL, ["exp_avg_sq"], {}), ([], ALL, {})],
)
def test_an_anchor_whose_round_merged_ours_has_averaged_what_was_due(
    sent: Sequence[str], brought: Sequence[str], expected: dict[str, int]
) -> None:
    """Second moments are of a round before."""
    made = engine(5, first=2, second=4)
    sends(made, sent)
    assert is_pulled(made, brought) == ("exp_avg",)
    assert made.fragment.averaged == expected


def test_an_anchor_of_later_rounds_corrects_no_moments_and_they_are_due_again() -> None:
    made = engine(4)  # their version is 6, when all are due
    sends(made, ALL)
    assert is_pulled(made, ALL, further=1) == ()
    assert made.fragment.averaged == {}
    assert made.engine.boundaries.moments(0) == ALL


def test_it_sends_again_what_the_round_did_not_take_until_one_does() -> None:
    made = engine(5)
    for version, sealed in ((6, ["exp_avg"]), (7, []), (8, ["exp_avg_sq"]), (9, ["exp_avg"])):
        owed = made.engine.boundaries.moments(0)
        assert owed == {6: ALL, 7: ("exp_avg_sq",), 8: ("exp_avg_sq",), 9: ("exp_avg",)}[version]
        sends(made, owed)
        is_sealed(made, sealed)
        assert made.lineage.version == version
    assert made.engine.boundaries.moments(0) == ()
    assert made.fragment.averaged == {"first": 9, "second": 8}


def test_who_comes_to_an_anchor_of_lesser_version_sends_its_moments_as_the_others_do() -> None:
    """After a split, or from another cluster: its averages there were numbered differently."""
    made = engine(5)
    made.fragment.averaged = {"first": 999, "second": 996}
    assert made.engine.boundaries.moments(0) == ALL


def test_who_came_to_an_anchor_of_lesser_version_sends_what_a_round_missed_again() -> None:
    """As everybody does: on a link that takes a round and a half it would else be averaged no
    more."""
    made = engine(20)
    made.fragment.averaged = {"first": 18, "second": 18}
    branch = Lineage(
        tokens=made.lineage.tokens + 1, version=4, digest=b"of another branch", genesis=GENESIS
    )
    made.receive(state_of(branch))
    (install,) = made.jobs(Install)
    made.done(install)
    made.apply()
    assert (made.lineage.version, made.engine.boundaries.moments(0)) == (4, ())
    sends(made, ())
    is_sealed(made, ALL, mine=False)
    is_sealed(made, ALL)
    assert (made.lineage.version, made.engine.boundaries.moments(0)) == (6, ALL)


def test_what_is_made_an_anchor_alone_goes_with_all_moments() -> None:
    made = engine()
    made.engine.state.mode = Mode.FOUNDING
    assert made.engine.boundaries.moments(0) == ALL


@pytest.mark.parametrize(
    ("came", "expected"), [(ALL, {"first": 7, "second": 7}), (["exp_avg"], {"first": 7}), ([], {})]
)
def test_a_newcomer_owes_no_moments_that_came_with_the_anchor(
    came: Sequence[str], expected: dict[str, int]
) -> None:
    made = engine()
    theirs = Lineage(tokens=70, version=7, digest=b"seven", genesis=OTHER)
    made.beat(PEER, theirs, genesis=OTHER)
    made.receive(
        replace(
            state_of(theirs), sections={MOMENT_PREFIX + name: raw(torch.zeros(1)) for name in came}
        )
    )
    (install,) = made.jobs(Install)
    made.done(install)
    assert made.fragment.averaged == expected
