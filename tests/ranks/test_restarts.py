"""Ranks that go on from a checkpoint."""

from __future__ import annotations

from pathlib import Path

from tests.ranks.pair import run_pair

#: Another process has the learner's port for a moment.
PORT_TAKEN = """
steps()
state = optimizer.state_dict()
weights = {name: value.clone() for name, value in model.state_dict().items()}
steps()
run = optimizer._run
connect = run._connect


def fail():
    run._connect = connect
    raise UsageError("the port is taken")


run._connect = fail
model.load_state_dict(weights)
try:
    optimizer.load_state_dict(state)
except UsageError as error:
    print(rank, error, flush=True)
steps()
assert optimizer.finish()
print(rank, "ended after", optimizer.status().step, flush=True)
optimizer.close()
dist.destroy_process_group()
"""


def test_a_learner_that_cannot_restart_at_once_does_at_the_next_step(tmp_path: Path) -> None:
    """The lead was at the step of the checkpoint then, and the other rank at its own."""
    for rank, lines in enumerate(run_pair(PORT_TAKEN, tmp_path)):
        assert f"{rank} the port is taken" in lines, lines
        assert f"{rank} ended after 6" in lines, lines
