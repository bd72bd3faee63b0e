"""Real rounds, with threads and a network: arithmetic checked by hand, and the life of threads."""

from __future__ import annotations

import gc
import json
import logging
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from mend_optim import (
    Adoption,
    DiLoCoNesterov,
    Event,
    MendError,
    MendOptimizer,
    Nesterov,
    UsageError,
)
from mend_optim.runtime import learner as room
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
    step,
    together,
    until,
)

OURS = ("mend-network", "mend-merge", "mend-callback")


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in OURS]


def anchors(optimizer: MendOptimizer) -> list[float]:
    """The first element of every parameter in the anchor."""
    with optimizer.global_weights():
        return read(optimizer)


# ── the arithmetic of rounds ──────────────────────────────────────────────────────────────────────


def test_lockstep_with_plain_averaging_is_averaging() -> None:
    grads = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    with cluster(*(descent(1.0) for _ in grads), quorum=3, **LOCKSTEP) as optimizers:
        drive(optimizers, 5, lambda i, s: float(grads[i, s]))
        assert same(parameters(optimizers[0]), parameters(optimizers[1]))
        assert same(parameters(optimizers[0]), parameters(optimizers[2]))
        torch.testing.assert_close(
            parameters(optimizers[0])[0], (1.0 - grads.mean(0).sum()).expand(3)
        )


def test_tokens_weigh() -> None:
    with cluster(descent(0.0), descent(0.0), **LOCKSTEP) as (a, b):
        a.count_tokens(300)
        b.count_tokens(100)
        drive([a, b], 1, lambda i, s: [-10.0, 0.0][i])
        assert [read(a), read(b)] == [[7.5], [7.5]]
        assert a.status().fragments[0].tokens == 400


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 8 / 9),
        ({"weighting": "tokens_and_batch"}, 8 / 9),
        ({"weighting": "tokens"}, 4 / 5),
        ({"weighting": "throughput"}, 16 / 17),
        ({"weighting": "uniform"}, 1 / 2),
    ],
)
def test_weightings(options: dict[str, str], expected: float) -> None:
    each = [{"tokens_per_step": 400}, {"tokens_per_step": 100}]
    lockstep = {"sync_every": 1, "adopt_after": 0, "merge": "mean", **options}
    with cluster(descent(0.0), descent(0.0), each=each, **lockstep) as optimizers:
        drive(optimizers, 1, lambda i, s: [-1.0, 0.0][i])
        a, b = map(read, optimizers)
        assert a == b == pytest.approx([expected])


def test_outer_momentum_is_nesterovs() -> None:
    with cluster(
        descent(0.0), descent(0.0), outer=DiLoCoNesterov(lr=0.7, momentum=0.9), **LOCKSTEP
    ) as optimizers:
        seen = []
        for _ in range(3):
            drive(optimizers, 1, lambda i, s: 1.0)
            seen.append(read(optimizers[0])[0])
    assert seen == pytest.approx([-1.33, -3.227, -5.6343])


def all_merged(optimizers: list[MendOptimizer]) -> None:
    for optimizer in optimizers:
        assert optimizer._learner is not None
        fragments = optimizer._learner.engine.state.fragments
        until(optimizer, lambda fragments=fragments: not any(f.pending for f in fragments))  # type: ignore[misc]


def falling(adopt_after: int) -> list[list[float]]:
    """Weights that fall from 1 by 2 a step, in two fragments, with outer steps twice as long;
    returns them after each step."""
    outer, seen = Nesterov(gain=2.0), [[1.0, 1.0]]
    pair = [descent(1.0, 1.0, lr=2.0) for _ in range(2)]
    with cluster(
        *pair,
        sync_every=6,
        fragments=2,
        adopt_after=adopt_after,
        adoption=Adoption(gain=1),
        outer=outer,
    ) as optimizers:
        for _ in range(13):
            drive(optimizers, 1, lambda i, s: 1.0)
            seen.append(read(optimizers[0]))
            all_merged(optimizers)  # every anchor is there long before its turn to be adopted
    return seen


def test_fragments_take_turns() -> None:
    seen = falling(adopt_after=0)
    assert [w for w, _ in seen] == [
        1,
        -1,
        -3,
        -11,
        -13,
        -15,
        -17,
        -19,
        -21,
        -35,
        -37,
        -39,
        -41,
        -43,
    ]
    assert [w for _, w in seen] == [1, -1, -3, -5, -7, -9, -23, -25, -27, -29, -31, -33, -47, -49]


def test_an_anchor_adopted_later_keeps_what_was_trained_meanwhile() -> None:
    # snapshots after steps 3, 6, 9; their effect is seen two steps later
    seen = falling(adopt_after=2)
    assert [w for w, _ in seen] == [1, -1, -3, -5, -7, -15, -17, -19, -21, -23, -25, -39, -41, -43]
    assert [w for _, w in seen] == [1, -1, -3, -5, -7, -9, -11, -13, -27, -29, -31, -33, -35, -37]


def test_every_token_is_merged_once_whatever_the_pace() -> None:
    with cluster(descent(0.0), descent(0.0), sync_every=4) as (fast, slow):
        together(
            lambda: [step(fast, -1.0) for _ in range(40)],
            lambda: [step(slow, -4.0) for _ in range(10)],
        )
        settle([fast, slow])
        fragments = [o.status().fragments[0] for o in (fast, slow)]
        assert [(f.tokens, f.unmerged_tokens) for f in fragments] == [(50, 0), (50, 0)]


@pytest.mark.parametrize(
    ("merge", "expected"),
    [("mean", 5.0), ("rda", 5.0), ("median", 3.0), ("trimmed_mean", 5.0), ("centered_clip", 3.0)],
)
def test_merges(merge: str, expected: float) -> None:
    with cluster(
        *(descent(0.0) for _ in range(3)), quorum=3, **{**LOCKSTEP, "merge": merge}
    ) as optimizers:
        drive(optimizers, 1, lambda i, s: [-1.0, -3.0, -11.0][i])
        assert [read(o) for o in optimizers] == [[pytest.approx(expected)]] * 3


# ── garbage, faults, and what the user gave us ────────────────────────────────────────────────────


def test_what_is_not_finite_never_reaches_an_anchor() -> None:
    watches = [Watch() for _ in range(3)]
    each = [{"on_event": watch} for watch in watches]
    lockstep = {"sync_every": 2, "adopt_after": 0, "quorum": 2, "grace": 0.05}
    with cluster(*(descent(0.0) for _ in range(3)), each=each, **lockstep) as (a, b, c):
        drive([a, b, c], 8, lambda i, s: [-1.0, -3.0, float("nan")][i])
        assert "not finite" in watches[2].until("healed")[0].text
        until(c, lambda: c._learner.engine.state.fragments[0].lineage.version == 4)  # type: ignore[union-attr]
        assert [anchors(o) for o in (a, b, c)] == [[16.0]] * 3
        assert [watch.of("fault") for watch in watches] == [[], [], []]
        assert watches[0].of("healed") == watches[1].of("healed") == []


def test_events_tell_what_happens() -> None:
    watch = Watch()
    with cluster(descent(0.0), descent(0.0), each=[{"on_event": watch}, {}], **LOCKSTEP) as (a, b):
        drive([a, b], 2, lambda i, s: 1.0)
        b.close()
        watch.until("left")
    assert [e.kind for e in watch.events if e.kind not in ("alone", "joined")] == [
        "met",
        "round",
        "round",
        "left",
    ]
    assert watch.of("round")[0].facts["round"].members[0].name == "a"


def test_a_callback_that_raises_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("a bug of the user's")

    with cluster(descent(0.0), descent(0.0), on_event=fail, **LOCKSTEP) as optimizers:
        drive(optimizers, 3, lambda i, s: 1.0)
        assert [read(o) for o in optimizers] == [[-3.0], [-3.0]]
    assert "on_event failed, told of" in caplog.text


def test_the_log_has_what_wants_a_remedy_as_warnings_and_every_round_for_debugging_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "mend_optim")
    watch = Watch()
    with cluster(descent(0.0), descent(0.0), each=[{"on_event": watch}, {}], **LOCKSTEP) as (a, b):
        drive([a, b], 2, lambda i, s: 1.0)
        b.close()
        watch.until("left")
        a._learner.tell(Event("below_quorum", "nothing can be merged"))  # type: ignore[union-attr]
        watch.until("below_quorum")
    levels = {
        record.getMessage(): record.levelname
        for record in caplog.records
        if record.name == "mend_optim"
    }
    left = "a: b left; nobody else is here: training alone until somebody comes"
    first = "a: first merge: one model of a, b, 2 tokens in it, H = 1, nothing lost"
    assert levels["a: joined at position 0"] == levels["a: b met"] == levels[left] == "INFO"
    assert levels[first] == "INFO"
    assert levels["a: fragment 0 version 1: all_present"] == "DEBUG"
    assert levels["a: nothing can be merged"] == "WARNING"


def test_a_callback_may_close_its_learner() -> None:
    made: list[MendOptimizer] = []
    watch = Watch()

    def on_event(event: Event) -> None:
        if event.kind == "round":
            made[0].close()
        watch(event)

    with cluster(
        descent(0.0), descent(0.0), each=[{"on_event": on_event}, {}], **LOCKSTEP
    ) as optimizers:
        made += optimizers
        drive(optimizers, 1, lambda i, s: 1.0)
        watch.until("round")
        step(optimizers[0], 1.0)
        assert read(optimizers[0]) == [-2.0]
        made[0]._learner.await_end()  # type: ignore[union-attr]
        callback = [thread for thread in ours() if thread.name == "mend-callback"]
        for thread in callback:
            thread.join(PATIENCE_S)
    assert ours() == []


CALLS: dict[str, Callable[[MendOptimizer], object]] = {
    "step": lambda optimizer: optimizer.step(),
    "synchronize": lambda optimizer: optimizer.synchronize(),
    "finish": lambda optimizer: optimizer.finish(),
    "global_weights": lambda optimizer: optimizer.global_weights().__enter__(),
    "reset_progress": lambda optimizer: optimizer.reset_progress(),
    "load_state_dict": lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_callback_must_not_use_the_weights(call: str) -> None:
    """It is beside training, which they would disturb."""
    made: list[MendOptimizer] = []
    told: list[str] = []
    watch = Watch()

    def on_event(event: Event) -> None:
        if event.kind == "round" and not told:
            try:
                CALLS[call](made[0])
            except UsageError as error:
                told.append(str(error))
        watch(event)

    with cluster(
        descent(0.0), descent(0.0), each=[{"on_event": on_event}, {}], **LOCKSTEP
    ) as optimizers:
        made += optimizers
        drive(optimizers, 3, lambda i, s: 1.0)
        watch.until("round")
        assert [read(o) for o in optimizers] == [[-3.0], [-3.0]]
    assert told == [
        f"{call}() must not be called in on_event, which runs on a background thread beside "
        f"training: take note there, and call {call}() in the training loop"
    ]


def test_the_ledger_holds_every_round(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    with cluster(descent(0.0), descent(0.0), each=[{"ledger": path}, {}], **LOCKSTEP) as optimizers:
        drive(optimizers, 3, lambda i, s: 1.0)
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["version"], r["tokens"], r["mine"]) for r in rounds] == [
        (1, 2, True),
        (2, 4, True),
        (3, 6, True),
    ]


def test_a_ledger_that_cannot_be_written_is_reported_once_and_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    each = [{"ledger": tmp_path / "missing" / "rounds.jsonl"}, {}]
    with cluster(descent(0.0), descent(0.0), each=each, **LOCKSTEP) as optimizers:
        drive(optimizers, 3, lambda i, s: 1.0)
        assert read(optimizers[0]) == [-3.0]
    outage, end = [r for r in caplog.records if "ledger" in r.getMessage()]
    assert outage.levelno == end.levelno == logging.WARNING
    assert end.getMessage().endswith("3 lines are lost")


def break_worker(optimizer: MendOptimizer) -> None:
    """Make the worker's next job raise, as a bug or a lack of memory would."""

    def job() -> None:
        raise MemoryError("no memory for a merge")

    assert optimizer._learner is not None
    optimizer._learner.worker.jobs.put(job)
    optimizer._learner.worker.thread.join(PATIENCE_S)


def test_a_broken_worker_is_told_once_and_training_goes_on() -> None:
    with cluster(descent(0.0), descent(0.0), sync_every=100) as (a, _):
        break_worker(a)
        with pytest.raises(MendError, match="training goes on alone") as told:
            step(a, 1.0)
        assert isinstance(told.value.__cause__, MemoryError)
        step(a, 1.0)
        assert read(a) == [-2.0]
        assert anchors(a) == [-2.0]  # nothing is merged, so the own weights stand for the anchor


def test_closing_a_broken_learner_twice_leaves_the_others_their_network() -> None:
    with cluster(descent(0.0), descent(0.0), descent(0.0), quorum=2, **LOCKSTEP) as (a, b, c):
        break_worker(a)
        for _ in range(3):
            a.close()
        drive([b, c], 2, lambda i, s: 1.0)
        assert [read(b), read(c)] == [[-2.0], [-2.0]]


# ── the life of the threads ───────────────────────────────────────────────────────────────────────


def test_close_leaves_no_thread() -> None:
    with cluster(descent(0.0), descent(0.0)) as optimizers:
        assert sorted(thread.name for thread in ours()) == [
            "mend-merge",
            "mend-merge",
            "mend-network",
        ]
        optimizers[0].close()
        assert sorted(thread.name for thread in ours()) == ["mend-merge", "mend-network"]
    assert ours() == []


def test_all_threads_are_daemons() -> None:
    with closing(MendOptimizer(descent(0.0), listen=LOOPBACK, timing=TIMING)):
        assert all(thread.daemon for thread in ours())
        assert len(ours()) == 2


@pytest.mark.filterwarnings(
    "error::pytest.PytestUnraisableExceptionWarning", "error::ResourceWarning"
)
def test_the_loop_can_be_started_again_and_again() -> None:
    for _ in range(3):
        with cluster(descent(0.0), descent(0.0), **LOCKSTEP) as optimizers:
            drive(optimizers, 2, lambda i, s: float(i))
            assert [read(o) for o in optimizers] == [[-1.0], [-1.0]]
        assert ours() == []
        gc.collect()  # a loop that was not closed warns when it goes


def test_close_from_two_threads_at_once() -> None:
    with cluster(descent(0.0), descent(0.0), descent(0.0), quorum=2, **LOCKSTEP) as (a, b, c):
        together(a.close, a.close)
        drive([b, c], 2, lambda i, s: 1.0)
        assert [read(b), read(c)] == [[-2.0], [-2.0]]


def test_a_peer_that_pauses_keeps_nobody_waiting() -> None:
    with cluster(descent(0.0), descent(0.0), sync_every=4) as (a, _):
        together(lambda: [step(a, 1.0) for _ in range(50)])  # would hang
        assert (a.status().step, a.status().rounds_adopted) == (50, 0)


def test_the_mutex_is_not_held_while_tensors_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    merging, merged = threading.Event(), threading.Event()
    perform: Callable[..., Any] = room.Anchors.perform

    def slow(self: room.Anchors, job: Any) -> Any:
        if type(job).__name__ == "Merge":
            merging.set()
            assert merged.wait(PATIENCE_S)
        return perform(self, job)

    monkeypatch.setattr(room.Anchors, "perform", slow)
    with cluster(descent(0.0), descent(0.0), sync_every=2) as (a, b):
        drive([a, b], 3, lambda i, s: 1.0)
        assert merging.wait(PATIENCE_S)
        drive([a, b], 3, lambda i, s: 1.0)  # would hang
        assert a.status().step == b.status().step == 6
        merged.set()
        settle([a, b])
        assert a.status().fragments[0].tokens == 12


def test_a_joiner_takes_over_the_trained_weights() -> None:
    def train_until(joined: threading.Event) -> None:
        while not joined.is_set():
            step(a, 0.0)

    def join(joined: threading.Event) -> None:
        step(b, 5.0)  # a gradient of weights that are gone
        joined.set()

    joined = threading.Event()
    with closing(
        MendOptimizer(descent(0.0), name="a", listen=LOOPBACK, timing=TIMING, sync_every=4)
    ) as a:
        for _ in range(3):
            step(a, 1.0)
        late = MendOptimizer(
            descent(9.0), name="b", peers=[a.status().address], timing=TIMING, sync_every=4
        )
        with closing(late) as b:
            together(lambda: train_until(joined), lambda: join(joined))
            assert read(b) == [-3.0]
            assert (b.status().step, b.status().tokens) == (0, 0)


def test_a_correction_not_yet_taken_is_added_to_the_next() -> None:
    """Anchors arrive while a learner's training thread is busy elsewhere: its weights then move by
    all of them at once."""
    with cluster(*(descent(0.0) for _ in range(3)), sync_every=1, quorum=2, grace=0.0) as (a, b, c):
        for _ in range(3):
            drive([a, b], 1, lambda i, s: 1.0)
            settle([a, b])
            newest = a.status().fragments[0].digest
            until(
                c, lambda d=newest: c._learner.engine.state.fragments[0].lineage.digest.hex() == d
            )  # type: ignore
        assert read(c) == [0.0]
        assert c.status().rounds_adopted >= 3
        step(c, 0.0)
        assert read(c) == anchors(c) == anchors(a)
