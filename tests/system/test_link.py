"""The bytes on a wire, counted by the kernel: two learners in two network namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster.link import Outcome, Pair, Part, Setting, by_sealer, ledger_bytes, measure
from bench.cluster.namespaces import absent, joined

WIRE = Part(rate="100mbit", least_s=0.0, least_rounds=3)
FLOAT32 = 4 * 397_408  # bytes of the example's model
# Headers are 66 bytes of 1,514. Acknowledgements of the other direction's bytes can be as much
# again. HTTP/2's frames add little. Beats do not grow with the rounds. Nor do the bytes that one
# learner sends between the moments at which the two read their counters.
OVERHEAD, SMALL_TALK = 1.25, 50_000


@pytest.fixture(autouse=True)
def permitted() -> None:
    if reason := absent():
        pytest.skip(reason)


def assert_counted_alike(one: Outcome, other: Outcome) -> None:
    """The ledgers agree with the kernel, in both directions."""
    for sender, receiver in ((one, other), (other, one)):
        told = ledger_bytes(sender, receiver)
        assert told <= sender.sent <= OVERHEAD * told + SMALL_TALK
        assert abs(sender.sent - receiver.received) <= SMALL_TALK, "nothing else uses the wire"


def bytes_a_round(pair: Pair) -> list[float]:
    """The bytes to the sealer and from it, counted by the kernel."""
    offers, seals = by_sealer(pair)
    return [outcome.sent / len(outcome.rounds) for outcome in (offers, seals)]


def test_powersgd_moves_less_than_a_quarter_in_either_direction_and_the_ledger_says_so() -> None:
    settings = [
        Setting(codec, adopt_after=4, sync_every=8, step_s=0.0) for codec in ("none", "powersgd")
    ]
    pairs = [pair for (pair,) in measure(settings, [WIRE])]
    for one, other in pairs:
        assert one.digest == other.digest
        assert [r.digest for r in one.rounds] == [r.digest for r in other.rounds]
        assert len(one.rounds) >= WIRE.least_rounds
        assert_counted_alike(one, other)
    dense, low_rank = map(bytes_a_round, pairs)
    for there, here in zip(dense, low_rank, strict=True):
        assert there > FLOAT32
        assert here < there / 4


def test_whose_link_becomes_slow_is_named_as_such_by_both() -> None:
    """Verdicts about slow computing, on a busy machine, are not checked here."""
    parts = [
        Part("200mbit", least_s=0.0, least_rounds=8),
        Part("40mbit", least_s=0.0, least_rounds=12),
    ]
    ((before, after),) = measure(
        [Setting("none", adopt_after=None, sync_every=8, step_s=0.0)], parts
    )
    assert [links_of(outcome) for outcome in before] == [[], []]
    offers, _ = by_sealer(after)
    assert [links_of(outcome) for outcome in after] == [[offers.name]] * 2


def links_of(outcome: Outcome) -> list[str]:
    return [name for name, cause in outcome.slow if cause == "link"]


def fail_on_a_wire(keepers: list[Path]) -> None:
    with joined() as ends:
        keepers += [Path(f"/proc/{end.keeper}") for end in ends]
        assert all(keeper.exists() for keeper in keepers)
        raise KeyboardInterrupt


def test_nothing_is_left_of_a_wire_when_its_block_fails() -> None:
    keepers: list[Path] = []
    with pytest.raises(KeyboardInterrupt):
        fail_on_a_wire(keepers)
    assert keepers
    assert not any(keeper.exists() for keeper in keepers)
