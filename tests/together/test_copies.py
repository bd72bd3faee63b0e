"""Checkpoints taken and loaded during live rounds: on any thread, while the network is dead; and
copies of optimizers."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from mend_optim import Event, MendOptimizer
from mend_optim.runtime.network_loop import NetworkLoop
from mend_optim.transport.grpc_transport import Transport
from tests.support.addresses import free_addresses
from tests.support.checkpoints import (
    adam,
    anchors,
    assert_alike,
    load,
    me,
    newcomer,
    resumed,
    save,
    stored,
)
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    PATIENCE_S,
    TIMING,
    Watch,
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    start,
    step,
    together,
    until,
)
from tests.together.test_restore import assert_settled, merged, seals, train

FREE: dict[str, Any] = {"sync_every": 4}
STILL: dict[str, Any] = {"sync_every": 1000}


# ── loading in mid-run ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("victim", [0, 1])
def test_a_learner_that_loads_in_mid_run_leaves_and_comes_back_as_another(victim: int) -> None:
    watches = [Watch(), Watch()]
    own = [{"listen": address} for address in free_addresses(2)]
    own = [{**own[i], "peers": [own[1 - i]["listen"]], "on_event": watches[i]} for i in range(2)]
    with cluster(descent(500.0), descent(500.0), each=own, **STILL) as made:
        one, other = made[victim], made[1 - victim]
        train(made, 5)
        settle(made)
        train(made, 3)
        saved, before = save(one), me(one)
        settle(made)
        train(made, 2)
        rounds = seals(*made)
        load(one, saved)
        assert watches[1 - victim].until("left")[0].facts["incarnation"] == before.incarnation
        assert (one.status().step, one.status().tokens) == (8, 8)
        start(made)
        assert me(one).name == before.name
        assert me(one).incarnation > before.incarnation
        assert one.status().address == own[victim]["listen"]
        assert one.status().dropped_tokens == 3
        train(made, 1)
        settle(made)
        counts = merged([*rounds, *seals(*made)])
        assert (counts[me(other)], counts[me(one)]) == (11, 1)
        assert 8 <= counts[before] <= 10
        assert_settled(made, sum(counts.values()))


def test_a_learner_on_any_free_port_keeps_it_when_it_loads() -> None:
    """The others know no other address of it, and it may know none of theirs."""
    with cluster(descent(500.0), descent(500.0), **STILL) as made:
        train(made, 3)
        before, address = me(made[0]), made[0].status().address
        load(made[0], save(made[0]))
        assert made[0].status().address == address
        start(made)
        assert me(made[0]).incarnation > before.incarnation
        train(made, 2)
        settle(made)
        assert same(parameters(made[0]), parameters(made[1]))


def test_the_inner_optimizers_own_state_leaves_the_rounds_alone() -> None:
    with cluster(adam(), adam(), **LOCKSTEP) as made:
        drive(made, 3, lambda i, s: float(i))
        before, address = me(made[0]), made[0].status().address
        made[0].load_state_dict(stored(made[0].inner.state_dict()))
        drive(made, 3, lambda i, s: float(i))
        assert (me(made[0]), made[0].status().address) == (before, address)
        assert (made[0].status().step, made[0].status().rounds_adopted) == (6, 6)
        assert same(parameters(made[0]), parameters(made[1]))


# ── copies ────────────────────────────────────────────────────────────────────────────────────────

COPIES: list[Callable[[MendOptimizer], MendOptimizer]] = [
    copy.deepcopy,
    lambda o: pickle.loads(pickle.dumps(o)),
]


@pytest.mark.parametrize("duplicate", COPIES, ids=["deepcopy", "pickle"])
def test_a_copy_is_offline_and_holds_all_that_a_checkpoint_does(
    duplicate: Callable[[MendOptimizer], MendOptimizer],
) -> None:
    with cluster(descent(500.0), descent(500.0), **STILL) as made:
        train(made, 6)
        threads, roster = threading.active_count(), made[1].status().roster
        twin = duplicate(made[0])
        assert threading.active_count() == threads
        assert (twin.status().address, twin.status().roster) == ("", ())
        assert_alike(twin.state_dict(), twin.state_dict())
        kept, own = twin.state_dict()["mend"], made[0].state_dict()["mend"]
        assert_alike(kept["fragments"], own["fragments"])
        assert (kept["step"], kept["tokens"]) == (6, 6)
        saved = save(twin)
        state = made[0].status().fragments, made[1].status().fragments, read(made[0])
        train([twin], 7)
        assert twin.synchronize(0.0)
        assert (made[0].status().fragments, made[1].status().fragments, read(made[0])) == state
        assert made[1].status().roster == roster
        settle(made)
        author, rounds = me(made[0]), seals(*made)
        made[0].close()
        with closing(newcomer(descent(0.0), "a", made[1], **STILL)) as new:
            load(new, saved)
            start([made[1], new])
            assert new.status().dropped_tokens == 6  # they were merged after the copy was made
            train([new, made[1]], 3)
            settle([new, made[1]])
            assert merged([*rounds, *seals(new, made[1])]) == {
                author: 6,
                me(made[1]): 9,
                me(new): 3,
            }


# ── taking one, whatever happens ──────────────────────────────────────────────────────────────────


def test_nothing_on_the_network_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(descent(500.0), descent(500.0), **FREE) as made:
        monkeypatch.setattr(Transport, "send", lambda *message: None)
        train(made, 5)  # offers that never arrive
        state = made[0].state_dict()
        assert state["mend"]["fragments"][0]["pending"]["tokens"] == 4
        assert pickle.loads(pickle.dumps(made[0])).status().step == 5


@pytest.mark.parametrize("held", ["the other learner's mutex", "the network's thread"])
def test_nobody_elses_lock_is_waited_for(held: str) -> None:
    with cluster(descent(500.0), descent(500.0), **FREE) as made:
        train(made[:1], 5)
        locked, done = threading.Event(), threading.Event()

        def hold() -> None:
            with made[1]._learner.mutex:  # type: ignore[union-attr]
                locked.set()
                assert done.wait(PATIENCE_S)

        def stop() -> None:
            locked.set()
            assert done.wait(PATIENCE_S)

        if held == "the network's thread":
            NetworkLoop._shared.soon(stop)  # type: ignore[union-attr]
        else:
            threading.Thread(target=hold, daemon=True).start()
        assert locked.wait(PATIENCE_S)
        try:
            assert together(made[0].state_dict)[0]["mend"]["step"] == 5
        finally:
            done.set()


@pytest.fixture
def halted() -> Iterator[Callable[[MendOptimizer], threading.Event]]:
    """Stops a learner's worker before its next job until released, at the latest at the end of the
    test."""
    events: list[threading.Event] = []

    def halt(optimizer: MendOptimizer) -> threading.Event:
        reached, go = threading.Event(), threading.Event()
        events.append(go)
        optimizer._learner.worker.jobs.put(lambda: (reached.set(), go.wait(PATIENCE_S)))  # type: ignore[arg-type, union-attr, return-value]
        assert reached.wait(PATIENCE_S)
        return go

    yield halt
    for event in events:
        event.set()


def test_a_copy_that_is_no_offer_yet_counts_as_not_begun_or_as_offered(
    halted: Callable[[MendOptimizer], threading.Event],
) -> None:
    """A checkpoint taken while the worker has jobs in its queue describes one moment: its work
    counts once."""
    with cluster(descent(500.0), descent(500.0), **FREE) as made:
        go = halted(made[0])
        train(made[:1], 5)  # the job of the boundary at step 4 waits for the worker

        def wait_in_line() -> Any:
            return save(made[0])

        def release() -> Any:
            until(made[0], lambda: made[0]._learner.worker.jobs.qsize() >= 2)  # type: ignore[union-attr]
            go.set()

        saved: Any = together(wait_in_line, release)[0]
        author, other = me(made[0]), made[1]
        made[0].close()
        with closing(newcomer(descent(0.0), "a", other, **FREE)) as new:
            load(new, saved)
            start([other, new])
            train([other, new], 5)
            settle([other, new])
            counts = merged(seals(*made, new))
            assert counts[author] + counts[me(new)] == 10
            assert counts[me(other)] == 5
            assert new.status().dropped_tokens == 0
            assert_settled([other, new], 15)


def test_while_a_merge_is_in_the_queue_it_is_as_before_or_after_the_merge(
    halted: Callable[[MendOptimizer], threading.Event],
) -> None:
    with cluster(descent(500.0), descent(500.0), descent(500.0), **FREE) as made:
        halting = [halted(o) for o in made[1:]]
        train(made[:1], 4)
        train(made[1:], 4)
        for go in halting:
            go.set()
        saved = together(*(lambda o=o: save(o) for o in made))
    with resumed([lambda: descent(0.0)] * 3, saved, **FREE) as again:
        train(again, 3)
        settle(again)
        # Two may seal before all three have met, and then one of the seals is superseded, and said
        # to be.
        superseded = sum(o.status().superseded_tokens for o in again)
        assert_settled(again, 3 * 4 + 3 * 3 - superseded)
        assert [o.status().dropped_tokens for o in again] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["round", "joined"])
def test_on_event_may_take_one(kind: str) -> None:
    """The callback runs beside training and the worker."""
    taken: list[dict[str, Any]] = []
    learners: list[MendOptimizer] = []
    told = threading.Event()

    def tell(event: Event) -> None:
        if event.kind == kind and learners:
            taken.append(stored(learners[0].state_dict()))
            told.set()

    with cluster(
        descent(1.0), descent(1.0), each=[{"on_event": tell}, {}], started=False, **LOCKSTEP
    ) as made:
        learners += made[:1]
        start(made)
        drive(made, 3, lambda i, s: 1.0)
        assert told.wait(PATIENCE_S)
        drive(made, 3, lambda i, s: 1.0)
        assert made[0].status().rounds_adopted == 6
    fresh = MendOptimizer(descent(0.0))
    fresh.load_state_dict(taken[-1])
    assert fresh.status().step == taken[-1]["mend"]["step"]


def test_inside_global_weights_it_is_of_the_learners_own() -> None:
    with cluster(descent(500.0), descent(500.0), **FREE) as made:
        train(made, 1)
        settle(made)
        merged = read(made[0])
        train(made[:1], 3)
        outside = made[0].state_dict()
        with made[0].global_weights():
            assert read(made[0]) == merged
            assert read(made[0]) != [500.0]
            assert_alike(made[0].state_dict(), outside)


# ── weights ───────────────────────────────────────────────────────────────────────────────────────


def test_narrow_weights_come_back_to_the_bit_with_what_their_rounding_lost() -> None:
    """Over many rounds. Showing the anchor in between changes nothing later."""

    def run(look: bool) -> Any:
        odd = [SGD([Parameter((torch.arange(5) / 7).bfloat16())], lr=0.01) for _ in range(2)]
        with cluster(*odd, sync_every=2, adopt_after=0) as made:
            for turn in range(6):
                drive(made, 3, lambda i, s, turn=turn: (i + s + turn) / 3)
                before = [p.clone() for p in parameters(made[0])]
                if look:
                    shown = anchors(made[0])
                    assert same(parameters(made[0]), before)
                    assert not same(shown, before) or turn % 2
            state = made[0].state_dict()["mend"]["fragments"][0]["tensors"]
            assert state["rounding"].any()
            return [*map(torch.clone, parameters(made[0])), state["rounding"], state["anchor"]]

    assert_alike(run(look=True), run(look=False))


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


def scheduled(optimizer: MendOptimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda s: 1.0 / (1 + s))


def advance(optimizer: MendOptimizer, scheduler: LambdaLR, steps: int) -> None:
    for _ in range(steps):
        step(optimizer, 1.0)
        scheduler.step()


def test_who_comes_back_late_takes_its_learning_rate_from_the_clusters_position() -> None:
    """Merges never touch the learning rate: the scheduler is the user's, and `status()` says how
    far to advance it."""
    with cluster(descent(500.0), descent(500.0), **STILL) as made:
        schedulers = [scheduled(o) for o in made]
        together(
            *(lambda o=o, s=s: advance(o, s, 4) for o, s in zip(made, schedulers, strict=True))
        )
        settle(made)
        stale, clock = save(made[0]), copy.deepcopy(schedulers[0].state_dict())
        made[0].close()
        advance(made[1], schedulers[1], 8)
        watch = Watch()
        with closing(newcomer(descent(0.0), "a", made[1], on_event=watch, **STILL)) as new:
            scheduler = scheduled(new)
            load(new, stale)
            scheduler.load_state_dict(clock)
            assert new.param_groups[0]["lr"] == pytest.approx(1 / 5)
            # The other one may still be alone when it is asked; it rests from then on.
            outcome, _ = together(
                lambda: new.synchronize(PATIENCE_S), lambda: made[1].synchronize(PATIENCE_S)
            )
            assert outcome
            facts = watch.until("joined")[0].facts
            assert (facts["step"], facts["tokens"] >= 8) == (12, True)
            assert (new.status().cluster_step, new.status().position, new.status().step) == (
                12,
                12,
                4,
            )
            assert new.param_groups[0]["lr"] == pytest.approx(1 / 5)  # merges have not touched it
            while scheduler.last_epoch < new.status().position:
                scheduler.step()
            assert (
                new.param_groups[0]["lr"] == pytest.approx(1 / 13) == made[1].param_groups[0]["lr"]
            )
            settle([new, made[1]])  # no correction is left to come
            before = read(new)[0]
            step(new, 1.0)
            assert read(new)[0] == pytest.approx(before - 1 / 13)
            settle([new, made[1]])
            assert new.param_groups[0]["lr"] == pytest.approx(1 / 13)
            assert (new.status().position, new.status().step) == (13, 5)
            assert_settled([new, made[1]], 4 + 4 + 8 + 1)


def test_names_and_places_are_not_in_a_checkpoint() -> None:
    """A checkpoint may be loaded under another name and address."""
    with cluster(descent(1.0), descent(1.0), **LOCKSTEP) as made:
        drive(made, 2, lambda i, s: 1.0)
        saved = save(made[0])
        address = made[0].status().address
    assert address not in repr(saved)
    with closing(
        MendOptimizer(descent(0.0), name="other", listen=LOOPBACK, timing=TIMING)
    ) as optimizer:
        load(optimizer, saved)
        step(optimizer, 1.0)
        assert (optimizer.status().name, optimizer.status().step) == ("other", 3)
