"""Scenarios of the protocol, played in virtual time and written down: `traces/*.txt`.

    python -m tests.virtual.traces              list the scenarios
    python -m tests.virtual.traces NAME         play one and print it
    python -m tests.virtual.traces --write      write all files again

Each file begins with the docstring of its scenario. `test_traces.py` compares the files with what
the scenarios print now. After a change of the protocol, write them again and read the
difference."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from inspect import cleandoc
from pathlib import Path

from mend_optim.engine.policies import Policies
from mend_optim.protocol.messages import Seal
from tests.virtual.storms import TIMING, policies
from tests.virtual.tracing import TracedCluster

FOLDER = Path(__file__).parent / "traces"


def every_4_steps(
    quorum: int | None = None, adopt_after: int | None = None, join_timeout_s: float = 6.0
) -> Policies:
    timing = replace(TIMING, join_timeout_s=join_timeout_s)
    return policies(quorum, 1.5, timing, sync_every=4, adopt_after=adopt_after)


def started(chosen: Policies, *speeds: float) -> TracedCluster:
    """A cluster of as many learners as there are speeds (seconds a step); they begin 0.1 s, 0.3 s,
    0.5 s and 0.7 s after they started."""
    cluster = TracedCluster(len(speeds), chosen, speeds)
    for name, begin_after in zip(cluster.names, (0.2, 0.6, 1.0, 1.4), strict=False):
        cluster.start(name, begin_after)
    return cluster


def training(chosen: Policies, *speeds: float, since: float = 1.5) -> TracedCluster:
    """The same after so many seconds; the trace begins there."""
    cluster = started(chosen, *speeds)
    cluster.run(since)
    state = cluster.learners["learner-1"].engine.state
    version = state.fragments[0].lineage.version
    cluster.header(f"{', '.join(cluster.names)} train together on version {version}")
    return cluster


def two_start_together() -> TracedCluster:
    """Two learners start together and merge their work twice.

    Their first weights differ, so the learner with the lesser model takes the other's before it
    trains. learner-1 runs the rounds. It needs 1.25 s a step, learner-0 1 s. In the first round
    both reach their own boundary of 4 steps. In the second, learner-0 comes to its boundary first,
    and the called learner-1 offers the 3 steps that it has."""
    cluster = started(every_4_steps(), 1.0, 1.25)
    cluster.run(10.0)
    return cluster


def late_joiner() -> TracedCluster:
    """A third learner joins two that train.

    Nobody told them of it. It meets them, sees by their beats that their model is greater than its
    own first weights, and takes theirs whole before its first step. It starts at their position,
    and it is called to the next round."""
    cluster = training(every_4_steps(), 1.0, 1.25, since=5.5)
    cluster.add("learner-2")
    cluster.start("learner-2", 0.6)
    cluster.run(5.0)
    return cluster


def alone_founds_anchor() -> TracedCluster:
    """A learner trains alone; then a newcomer appears.

    The lonely learner copies nothing: its weights are its anchor. When it sees the lesser model of
    the newcomer, it copies all its weights at its next step and founds version 1 from them, with
    every token trained so far. The newcomer begins with these weights. (It asked at once, before
    they were founded, and therefore got first weights; the next beat shows that there is more.)"""
    cluster = TracedCluster(2, every_4_steps(join_timeout_s=2.0))
    cluster.start("learner-0", 0.2)
    cluster.run(6.05)
    cluster.start("learner-1", 0.6)
    cluster.run(3.9)
    return cluster


def straggler_left_out() -> TracedCluster:
    """A quorum is there, and the grace window runs out before a slow learner has offered.

    learner-2 needs 5 s a step. The sealer calls it at 4.5 s, but a learner can offer only when its
    step ends. Two of three are a quorum, so the sealer waits for 1.5 s more and seals without
    learner-2. A beat tells learner-2 of the new anchor; it takes that and keeps its own work. The
    late offer is still valid on the new anchor: it waits at the sealer for the next round."""
    cluster = training(every_4_steps(), 1.0, 1.0, 5.0)
    cluster.run(7.95)
    return cluster


def sealer_dies_merging() -> TracedCluster:
    """The sealer dies while it merges.

    Nobody has a seal of that round, and the others keep their offers. Their links break, so they
    suspect the dead learner at once. Of the live ones learner-2 is the sealer now, and learner-0
    sends it the same offer again. Only the dead learner's own work is lost."""
    cluster = training(every_4_steps(), 1.0, 1.0, 1.0, since=3.5)
    cluster.trap("merging")
    cluster.run(5.0)
    assert cluster.seen["sealer died: merging"]
    return cluster


def seal_lost_for_one() -> TracedCluster:
    """One member never gets the seal of its round.

    A beat shows learner-2 that there is a greater anchor. It asks the sender of that beat for it,
    not the sealer. The anchor's lineage says that learner-2's offer was merged, so nothing is
    offered twice."""
    cluster = training(every_4_steps(), 1.0, 1.0, 1.0, since=3.5)
    cluster.drops.append((Seal, "learner-2"))
    cluster.run(3.5)
    assert not cluster.drops
    return cluster


def partition_and_heal() -> TracedCluster:
    """A partition, with a quorum of 1: both sides seal a version 2 on the same version 1.

    learner-0 and learner-1 merge 8 tokens, learner-2 merges 4 of its own. When they meet again, the
    greater anchor wins: learner-2 adopts it. The 4 tokens that only the lesser branch had merged
    are superseded, and learner-2 counts them. It keeps the tokens that no anchor had merged, and
    offers them in the next round."""
    cluster = training(every_4_steps(quorum=1), 1.0, 1.0, 1.0, since=6.0)
    cluster.partition({"learner-2"}, 6.0)
    cluster.run(9.0)
    return cluster


def old_checkpoint() -> TracedCluster:
    """A learner restarts from a checkpoint that is older than its last merged offer.

    learner-0 saves at step 7 with 3 tokens unmerged. These 3 are in its offer #2, which is merged
    before it dies. Its second process, learner-0/2, goes on from the checkpoint and does not know
    of that. The cluster's anchor names offer #2 of learner-0 as merged: so the 3 tokens are in it,
    maybe with more. In doubt the learner drops what it has and takes the anchor whole."""
    cluster = training(every_4_steps(), 1.0, 1.0, since=5.5)
    cluster.run(1.9)
    cluster.save("learner-0")
    cluster.run(2.0)
    cluster.crash("learner-0")
    cluster.run(0.5)
    cluster.start("learner-0", 0.4, cluster.saved[0])
    cluster.run(5.0)
    return cluster


def twins_of_one_checkpoint() -> TracedCluster:
    """All learners die, and two processes restart from one checkpoint.

    It was learner-0's, with 3 tokens unmerged. Both new processes have these 3 tokens in their
    weights and offer them as work of the first learner-0, under a number that begins with their own
    incarnation. Only one of the two offers is merged. The other counts as nothing. Its sender sees
    by the new anchor that the work is merged already. It takes the anchor whole, and drops its copy
    of the 3 tokens with the 2 that it trained since."""
    cluster = training(every_4_steps(), 1.0, 1.0, since=5.5)
    cluster.run(1.9)
    cluster.save("learner-0")
    cluster.crash("learner-0")
    cluster.crash("learner-1")
    cluster.run(0.5)
    cluster.start("learner-0", 0.4, cluster.saved[0])
    cluster.start("learner-1", 0.8, cluster.saved[0])
    cluster.run(8.0)
    return cluster


def lockstep() -> TracedCluster:
    """Rounds in lockstep, with `adopt_after=1`.

    Nobody is called: each learner offers at its own boundaries, every 4 steps, and the sealer waits
    for all. Each adopts the new anchor exactly 1 step after its snapshot. learner-0 is faster, so
    its training thread waits there for the anchor."""
    cluster = training(every_4_steps(adopt_after=1), 1.0, 1.25)
    cluster.run(8.5)
    return cluster


def synchronize() -> TracedCluster:
    """A learner synchronizes while the other trains on; then the other does, too.

    learner-0 offers what it has, and `synchronize()` returns when that is merged. It stays at rest:
    in the next round it takes part with an offer of nothing, so that learner-1 finds a quorum."""
    cluster = training(every_4_steps(), 1.0, 1.25, since=6.0)
    cluster.run(0.2)
    cluster.pause("learner-0")
    cluster.run(4.0)
    cluster.pause("learner-1")
    cluster.run(4.0)
    return cluster


def goodbye() -> TracedCluster:
    """A learner says goodbye; its offer outlives it, and a change of the sealer.

    A seal needs 3 offers here. While learner-3 is cut off, learner-1 runs the rounds. learner-0
    offers its work to learner-1 and leaves before the round has a quorum. When learner-3 is back,
    the rounds of fragment 0 are its own again. So learner-1 passes the orphaned offer on, and sends
    its own again."""
    cluster = training(every_4_steps(quorum=3), 1.0, 1.0, 5.0, 1.0, since=3.5)
    cluster.partition({"learner-3"}, 2.5)
    cluster.run(1.7)
    cluster.leave("learner-0")
    cluster.run(3.25)
    return cluster


def group_added() -> TracedCluster:
    """Both learners add a parameter group while they train, one after the other.

    The group is a fragment of its own, with rounds of its own. Its first weights differ between the
    two, so the lesser ones give way to the greater, by their digest."""
    cluster = training(every_4_steps(), 1.0, 1.25, since=5.5)
    cluster.extend("learner-0")
    cluster.run(1.1)
    cluster.extend("learner-1")
    cluster.run(5.5)
    return cluster


SCENARIOS: tuple[Callable[[], TracedCluster], ...] = (
    two_start_together,
    late_joiner,
    alone_founds_anchor,
    straggler_left_out,
    sealer_dies_merging,
    seal_lost_for_one,
    partition_and_heal,
    old_checkpoint,
    twins_of_one_checkpoint,
    lockstep,
    synchronize,
    goodbye,
    group_added,
)


def path_of(scenario: Callable[[], TracedCluster]) -> Path:
    return FOLDER / f"{scenario.__name__}.txt"


def trace(scenario: Callable[[], TracedCluster]) -> str:
    """The docstring as a comment, then what happened."""
    story = cleandoc(scenario.__doc__ or "").splitlines()
    comment = [f"# {line}".rstrip() for line in story]
    return "\n".join([*comment, "", *scenario().trace(), ""])


def main() -> None:
    chosen = sys.argv[1:]
    if chosen == ["--write"]:
        FOLDER.mkdir(exist_ok=True)
        for scenario in SCENARIOS:
            path_of(scenario).write_text(trace(scenario), encoding="utf-8")
    for scenario in SCENARIOS:
        if not chosen:
            print(scenario.__name__)
        elif scenario.__name__ in chosen:
            print(trace(scenario))


if __name__ == "__main__":
    main()
