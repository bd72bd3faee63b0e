"""Two sealers that could not hear each other have both sealed. A learner counts, to the token, the
work of its own that only the lesser branch had merged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mend_optim import Event, MendOptimizer, RoundRecord
from mend_optim.engine.effects import Advance, Install
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.messages import Call
from mend_optim.status import Status, Traffic, learner_status
from tests.support.checkpoints import anchors, newcomer, progress, resumed, save
from tests.support.engines import BASE, ME, PEER, DrivenEngine, seal_of, state_of
from tests.support.learners import cluster, descent, drive, same, settle, start, until

SOMEBODY = PeerId("somebody", 1)
NO_TRAFFIC = Traffic(bytes_sent=0, bytes_received=0, refused=(), security="")


class Merged(DrivenEngine):
    """A learner whose offer of 40 tokens is in its anchor, by the seal of a peer. After `BASE`
    nothing else was merged."""

    def __init__(self) -> None:
        super().__init__(seals=False)
        self.records: list[RoundRecord] = []
        self.beat()
        offer = self.offer()
        self.receive(seal_of(BASE, offer.entry))
        (advance,) = self.jobs(Advance)
        self.done(advance)
        self.apply()
        self.ours = self.lineage

    def install(self, lineage: Lineage) -> RoundRecord:
        """Install a whole anchor; returns its record."""
        self.receive(state_of(lineage))
        (install,) = self.jobs(Install)
        self.done(install)
        self.engine.correction_applied(self.now, 0, install.replace)
        events = self._take(lambda e: isinstance(e, Event) and e.kind == "round")
        record: RoundRecord = events[-1].facts["round"]
        return record

    def status(self) -> Status:
        state = self.engine.state
        return learner_status(
            state,
            {},
            step=state.totals.step,
            tokens=state.totals.tokens,
            position=state.position,
            seconds_in_mend=0.0,
            traffic=NO_TRAFFIC,
        )


def branch(base: Lineage, tokens: int) -> Lineage:
    return base.seal([Entry(SOMEBODY, base.last_merged(SOMEBODY) + 1, tokens, 1)], b"payload")


def test_what_the_anchor_has_is_not_superseded() -> None:
    engine = Merged()
    record = engine.install(branch(engine.ours, 100))
    assert (record.superseded, record.superseded_tokens, engine.status().superseded_tokens) == (
        (),
        0,
        0,
    )


def test_a_greater_branch_without_our_work_supersedes_it_and_one_with_it_brings_it_back() -> None:
    engine = Merged()
    record = engine.install(branch(BASE, 100))
    assert (record.superseded, record.superseded_tokens, record.dropped_tokens) == (("me",), 40, 0)
    assert engine.status().superseded_tokens == 40
    assert json.loads(record.json(ME, 0.0))["superseded_tokens"] == 40
    record = engine.install(branch(engine.ours, 1000))
    assert (record.superseded_tokens, engine.status().superseded_tokens) == (-40, 0)


def test_every_change_of_branches_counts_only_what_it_changes() -> None:
    engine = Merged()
    changes = [engine.install(branch(BASE, tokens)).superseded_tokens for tokens in (100, 200)]
    engine.receive(Call(PEER, 0))
    offer = engine.offer(steps=3)
    assert offer.follows == 0
    engine.receive(seal_of(engine.lineage, offer.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    assert engine.status().superseded_tokens == 40
    changes += [
        engine.install(branch(base, tokens)).superseded_tokens
        for base, tokens in ((BASE, 500), (BASE, 600))
    ]
    assert changes == [40, 0, 30, 0]
    assert engine.status().superseded_tokens == 70
    assert (engine.status().unmerged_tokens, engine.status().dropped_tokens) == (0, 0)


def test_a_founder_counts_what_it_founded() -> None:
    engine = DrivenEngine(seals=False)
    fragment = engine.fragment
    engine.step(4)
    lineage = fragment.found(40, b"model")
    fragment.founded(lineage, engine.engine.state.totals)
    assert fragment.superseded_tokens == 0
    assert fragment.share.superseded_tokens(BASE) == 40


def test_a_founder_counts_what_it_had_offered_apart() -> None:
    """Another branch may have merged exactly that offer."""
    engine = DrivenEngine(seals=False)
    engine.beat()
    offer = engine.offer()
    engine.step(3)
    fragment = engine.fragment
    lineage = fragment.found(70, b"model")
    fragment.founded(lineage, engine.engine.state.totals)
    lineages = lineage, BASE.seal([offer.entry], b"payload"), BASE
    assert [fragment.share.superseded_tokens(anchor) for anchor in lineages] == [0, 30, 70]


# Real learners


def train(optimizers: Sequence[MendOptimizer], steps: int) -> None:
    drive(optimizers, steps, lambda i, s: float(i + 1))


def superseded(optimizers: Sequence[MendOptimizer]) -> list[int]:
    return [o.status().superseded_tokens for o in optimizers]


def test_two_learners_whose_branch_was_superseded_count_it_exactly(tmp_path: Path) -> None:
    """One checkpoint starts two clusters that do not know of each other; then a learner knows
    both."""
    still: dict[str, Any] = {"sync_every": 1000}  # nothing is merged but by `settle`
    ledgers = [{"ledger": tmp_path / name} for name in "ab"]
    with cluster(descent(500.0), descent(500.0), each=ledgers, **still) as lesser:
        train(lesser, 5)
        settle(lesser)
        saved = [save(lesser[0])] * 2
        for each in (3, 4):
            train(lesser, each)
            settle(lesser)
        assert lesser[0].status().fragments[0].tokens == 2 * (5 + 3 + 4)
        with resumed(
            [lambda: descent(0.0)] * 2, saved, each=[{"name": "x"}, {"name": "y"}], **still
        ) as greater:
            train(greater, 9)
            settle(greater)
            ahead = anchors(greater[0])
            assert greater[0].status().fragments[0].tokens == 2 * (5 + 9)
            with closing(newcomer(descent(0.0), "z", *lesser, *greater, **still)) as between:
                start([*lesser, *greater, between])
                for optimizer in (*lesser, between):
                    until(
                        optimizer,
                        lambda o=optimizer: progress(o).lineage == progress(greater[0]).lineage,
                    )  # type: ignore[misc]
                assert same(anchors(lesser[0]), ahead)
                everybody = [*lesser, *greater, between]
                assert superseded(everybody) == [3 + 4, 3 + 4, 0, 0, 0]
                train(everybody, 2)
                settle(everybody)
                assert superseded(everybody) == [3 + 4, 3 + 4, 0, 0, 0]
                statuses = [o.status() for o in everybody]
                assert [(s.unmerged_tokens, s.dropped_tokens) for s in statuses] == [(0, 0)] * 5
                assert {(s.fragments[0].tokens, s.fragments[0].digest) for s in statuses} == {
                    (2 * (5 + 9) + 5 * 2, statuses[0].fragments[0].digest)
                }
    for name in "ab":
        lines = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert [r["superseded_tokens"] for r in lines if r["superseded"]] == [3 + 4]
        assert [r["superseded"] for r in lines if r["superseded"]] == [["a", "b"]]
        assert sum(r["superseded_tokens"] for r in lines) == 3 + 4
