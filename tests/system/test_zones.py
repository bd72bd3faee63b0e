"""Two sites of two learners each. The learners are processes, and some are killed."""

from __future__ import annotations

import pytest

from tests import reference
from tests.system.processes import Learner, Supervisor
from tests.system.test_processes import assert_one_model, await_common_seals

ZONES = {"a": "east", "b": "east", "c": "west", "d": "west"}
SEALER = reference.sealers(1, "abcd")[0]
FAR = [name for name in ZONES if ZONES[name] != ZONES[SEALER]]
RELAY = reference.sealers(1, FAR)[0]


def start(supervisor: Supervisor) -> dict[str, Learner]:
    zones = {name: {"zone": zone} for name, zone in ZONES.items()}
    learners = supervisor.start_all("abcd", zones, fragments=1, moments=None)
    await_common_seals(supervisor, learners, 3)
    return {learner.name: learner for learner in learners}


@pytest.mark.parametrize("killed", [RELAY, SEALER])
def test_the_others_train_on_when_a_relay_or_a_sealer_is_killed(
    supervisor: Supervisor, killed: str
) -> None:
    learners = start(supervisor)
    learners[killed].kill()
    others = [learner for name, learner in learners.items() if name != killed]
    for learner in others:
        learner.await_event("evicted")
    await_common_seals(supervisor, others, 3)
    peers = [learner.address for learner in others]
    again = supervisor.start(
        killed, zone=ZONES[killed], fragments=1, moments=None, peers=peers, seed=9
    )
    await_common_seals(supervisor, [*others, again], 3)
    reports = supervisor.settle(*others, again)
    assert_one_model(reports)
    for report in reports:
        assert report["dropped_tokens"] == 0
        assert report["zone"] == ZONES[report["name"]]
