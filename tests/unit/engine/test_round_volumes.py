"""The bytes of rounds, for a limit on a learner's traffic."""

from __future__ import annotations

from mend_optim.engine.ledger import MemberRecord, RoundRecord
from mend_optim.engine.round_volumes import RoundVolumes
from mend_optim.protocol.lineage import PeerId

A, B = PeerId("a", 1), PeerId("b", 1)
MEMBER = MemberRecord(name="a", incarnation=1, seq=1, tokens=4, steps=4, weight=1.0)


def volumes(*rounds: tuple[int, int], mine: bool = True) -> RoundVolumes:
    """After rounds of these fragments and bytes, half of them up."""
    found = RoundVolumes()
    for version, (p, nbytes) in enumerate(rounds):
        found.add(
            RoundRecord(
                fragment=p,
                version=version,
                tokens=4,
                digest="",
                reason="all_present",
                members=(MEMBER,),
                mine=mine,
                offer_bytes=nbytes // 2,
                merged_bytes=nbytes // 2,
            )
        )
    return found


def test_rounds_with_moments_do_not_make_it_go_up_and_down() -> None:
    """Every third round has the first moments, every sixth the second ones, too."""
    cycle = [100, 100, 200, 100, 100, 300]
    found = {
        volumes(*((0, nbytes) for nbytes in 3 * cycle + cycle[:n])).of_busiest({0: A}, 2, 0)
        for n in range(6)
    }
    assert found == {150.0}


def test_each_fragment_has_bytes_of_its_own() -> None:
    known = volumes((0, 600), (1, 20), (2, 40))
    assert known.of_busiest({0: A, 1: B}, 2, 0) == 620
    assert known.of_busiest({0: A, 3: B}, 2, 600) == 1200


def test_a_sealer_has_the_bytes_of_all_other_members() -> None:
    known = volumes((0, 100), (1, 100), (2, 100))
    assert known.of_busiest({0: A, 1: A, 2: B}, 5, 0) == 2 * 4 * 100 + 100
    assert known.of_busiest({0: A, 1: A, 2: B}, 1, 0) == 300


def test_rounds_without_an_offer_of_ones_own_tell_nothing() -> None:
    assert volumes((0, 100), mine=False).of_busiest({0: A}, 2, 7) == 7
