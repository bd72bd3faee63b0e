"""The ledgers of storms in virtual time tell a sound story, and a changed one does not."""

from __future__ import annotations

import copy
import json
from collections import Counter, defaultdict

import pytest

from mend_optim.cli.ledger.story import Story, story_of
from mend_optim.cli.ledger.verdict import Finding, Severity, verdict_of
from tests.support.depth import many
from tests.support.ledgers import Files, text_of
from tests.virtual.cluster import Cluster
from tests.virtual.storms import draw, policies

#: Of the steps of a storm, one is a token in each fragment.
UNDER_WAY = 3


def files_of(cluster: Cluster) -> Files:
    files: defaultdict[str, list[dict[str, object]]] = defaultdict(list)
    for by, time, record in cluster.ledger:
        files[by.name].append(json.loads(record.json(by, time)))
    return files


def with_a_double_merge(files: Files, story: Story) -> Files | None:
    """An offer of an early round of the trunk is in its last one, too, by all lines."""
    tree = story.chains[0]
    rounds = [tree.anchors[key] for key in tree.trunk if tree.anchors[key].members]
    offers = [
        member
        for anchor in rounds[:-1]
        if anchor.sealed
        for member in anchor.sealed.raw["members"]
        if member["seq"] and member["tokens"]
    ]
    if not offers:
        return None
    forged = copy.deepcopy(files)
    for record in (each for records in forged.values() for each in records):
        if record["digest"] == rounds[-1].key[2] and record["members"]:
            record["members"].append({**offers[0], "weight": 0.0})
    return forged


def is_calm(finding: Finding) -> bool:
    """A learner may train alone and die before another one starts: no ledger tells what it was."""
    return finding.severity is Severity.NOTE or "No ledger tells whether it was" in finding.text


@pytest.mark.parametrize("first", range(0, many(16, 2000), 8))
def test_a_true_run_is_sound_and_a_double_merge_is_not(first: int) -> None:
    rounds = forged = 0
    for seed in range(first, first + 8):
        cluster = draw(seed).play()
        files = files_of(cluster)
        story = story_of(text_of(files))
        verdict = verdict_of(story)
        assert all(is_calm(finding) for finding in verdict.findings), (seed, verdict.findings)
        rounds += sum(bool(each.members) for each in story.rounds)
        doubled = with_a_double_merge(files, story)
        if doubled:
            forged += 1
            found = verdict_of(story_of(text_of(doubled))).findings
            assert any("was merged" in finding.text for finding in found), seed
    assert rounds > 10
    assert forged > 3


def test_the_accounts_of_a_calm_run_have_every_token() -> None:
    """Each token that was trained is in the trunk, under its author's name."""
    cluster = draw(0).play()
    story = story_of(text_of(files_of(cluster)))
    for p, tree in story.chains.items():
        merged = sum(m.tokens for key in tree.trunk for m in tree.anchors[key].members)
        whole = sum(each.tokens for each in story.rounds if each.fragment == p and not each.members)
        assert merged + whole == tree.tip[0]


@pytest.mark.parametrize("seed", range(many(16, 300)))
def test_what_a_killed_process_merged_after_its_checkpoint_explains_the_two_counts(
    seed: int,
) -> None:
    """Every fourth learner starts without its checkpoint. Times differ, so that in some runs an
    offer is on its way in the checkpoint."""
    cluster = Cluster(3, seed, policies(), loss=0.0, duplicates=0.0)
    cluster.start_all()
    cluster.run(20)
    cluster.save("learner-1")
    cluster.run(1 + seed % 7)
    cluster.crash("learner-1")
    cluster.run(0.5 + seed % 3 * 4)
    start = cluster.start if seed % 4 == 3 else cluster.restore
    start("learner-1")
    cluster.run(15)
    assert cluster.settle()
    accounts = story_of(text_of(files_of(cluster))).accounts
    for name, learner in cluster.learners.items():
        state = learner.engine.state
        (fragment,) = state.fragments
        kept = state.totals.tokens - fragment.dropped_tokens - fragment.superseded_tokens
        merged = kept - fragment.unmerged(state.totals).tokens
        assert accounts[name].tokens == merged + accounts[name].uncounted
        assert name == "learner-1" or not accounts[name].uncounted


@pytest.mark.parametrize("first", range(0, many(64, 2000), 8))
def test_the_lines_of_a_process_tell_what_it_drops(first: int) -> None:
    """But for the steps that are under way when an anchor comes that replaces the weights."""
    dropped = 0
    for seed in range(first, first + 8):
        cluster = draw(seed).play()
        told = Counter[object]()
        for by, _, record in cluster.ledger:
            told[by, record.fragment] += record.dropped_tokens
        for learner in cluster.learners.values():
            known = cluster.renamed[learner.id] | {learner.id}
            former = learner.saved.resumed.standings if learner.saved else []
            for p, fragment in enumerate(learner.engine.state.fragments):
                counted = fragment.dropped_tokens
                counted -= former[p].dropped_tokens if p < len(former) else 0
                under_way = counted - sum(told[each, p] for each in known)
                assert 0 <= under_way <= UNDER_WAY, (seed, learner.id, p)
                dropped += counted
    assert dropped
