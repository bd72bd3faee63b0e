"""Two rooms whose learners never reach those of the other, and a machine that reaches all.

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


def part(ends: Ends) -> None:
    """As a firewall does that drops all packets: from now on nothing passes from room to room, and
    no connection breaks."""
    for a in ROOMS[0]:
        for b in ROOMS[1]:
            for here, there in ((ends[a], ends[b]), (ends[b], ends[a])):
                lost = (there.address, "lladdr", NOWHERE, "dev", WIRE, "nud", "permanent")
                here.run("ip", "neighbour", "replace", *lost)


def start(supervisor: Supervisor, ends: Ends, name: str, peers: str) -> Learner:
    """Start a learner with the same first weights as all others."""
    addresses = {other: f"{end.address}:{PORT}" for other, end in ends.items()}
    return supervisor.start(
        name,
        data_seed=NAMES.index(name),
        net=ends[name].keeper,
        listen=addresses[name],
        peers=[addresses[other] for other in peers],
        fragments=2,
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
    part(ends)
    for learner in learners:  # these rounds may have been under way
        learner.await_rounds(4)
    await_common_seals(supervisor, learners, 3)
    finish(learners)
