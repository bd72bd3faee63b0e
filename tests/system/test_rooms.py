"""Two rooms whose learners never reach those of the other, and a machine that reaches all; and two
racks whose heads alone reach each other.

The learners are processes in network namespaces around a switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.cluster.namespaces import WIRE, End, absent, switched
from tests.system.processes import Learner, Supervisor
from tests.system.test_processes import await_common_seals

NAMES = "abcde"
ROOMS, BETWEEN = ("ab", "cd"), "e"
PORT = 29600
#: No machine has this address: what is sent to it is lost, and nobody is told.
NOWHERE = "02:00:00:00:00:01"
Ends = dict[str, End]


@pytest.fixture
def ends() -> Iterator[Ends]:
    if reason := absent():
        pytest.skip(reason)
    with switched(len(NAMES)) as around:
        yield dict(zip(NAMES, around, strict=True))


def part(ends: Ends, some: str, others: str) -> None:
    """As a firewall does that drops all packets: from now on nothing passes between these, and no
    connection breaks."""
    for a in some:
        for b in others:
            for here, there in ((ends[a], ends[b]), (ends[b], ends[a])):
                lost = (there.address, "lladdr", NOWHERE, "dev", WIRE, "nud", "permanent")
                here.run("ip", "neighbour", "replace", *lost)


def start(supervisor: Supervisor, ends: Ends, name: str, peers: str, fragments: int = 2) -> Learner:
    """Start a learner with the same first weights as all others."""
    addresses = {other: f"{end.address}:{PORT}" for other, end in ends.items()}
    return supervisor.start(
        name,
        data_seed=NAMES.index(name),
        net=ends[name].keeper,
        listen=addresses[name],
        peers=[addresses[other] for other in peers],
        fragments=fragments,
        moments=None,
        codec="int8",
        insecure=True,
        pace_s=0.02,
        timing={"join_timeout_s": 3.0},
    )


def finish(learners: list[Learner]) -> None:
    """All end on one model, and each knows the last token of every other."""
    for learner in learners:
        learner.order("finish")
    finishes = [learner.await_event("finished") for learner in learners]
    assert all(told["agreed"] for told in finishes)
    assert len({told["weights"] for told in finishes}) == 1
    tokens = [told["tokens"] for told in finishes]
    assert tokens == [tokens[0]] * len(NAMES)
    assert set(tokens[0]) == set(NAMES)


def test_learners_train_on_together_when_a_firewall_parts_them_into_rooms(
    supervisor: Supervisor, ends: Ends
) -> None:
    learners = [start(supervisor, ends, name, NAMES.replace(name, "")) for name in NAMES]
    await_common_seals(supervisor, learners, 3)
    part(ends, *ROOMS)
    for learner in learners:  # these rounds may have been under way
        learner.await_rounds(4)
    await_common_seals(supervisor, learners, 3)
    finish(learners)


def test_racks_train_together_whose_heads_alone_reach_each_other(
    supervisor: Supervisor, ends: Ends
) -> None:
    """Each of four fragments has another sealer, so offers and seals take up to three links."""
    part(ends, "a", "cde")
    part(ends, "b", "de")
    near = {"a": "b", "b": "ac", "c": "bde", "d": "ce", "e": "cd"}
    learners = [start(supervisor, ends, name, near[name], fragments=4) for name in NAMES]
    for learner in learners:
        learner.await_rounds(12)
    await_common_seals(supervisor, learners, 3)
    finish(learners)
