"""The digest of what is in an anchor: learners that came to it in any way take the same, and an
anchor with another one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mend_optim.codecs.packing import raw
from mend_optim.engine.effects import Attest, Install
from mend_optim.protocol.messages import State
from mend_optim.protocol.tree_digest import short_digest
from mend_optim.worker.outer import Outer
from tests.support.engines import BASE
from tests.support.jobs import perform
from tests.unit.worker.test_anchors import CLASSIC, STEADY, Learner, vector
from tests.unit.worker.test_buffer_anchor import pair

POLICIES = [CLASSIC, STEADY]


def attested(learner: Learner) -> bytes:
    return perform(learner.anchors, Attest(0, BASE.key)).digest


def rounds_of(policy: Outer) -> tuple[Learner, Learner, Learner]:
    """Two learners after a round, and one that missed it."""
    a, b, late = (Learner(name, vector(0, 0), outer=policy) for name in ("a", "b", "late"))
    seal = a.seal(a.train(vector(1, 2)).offer())
    a.adopt(seal)
    b.adopt(seal, merged_own_offer=False)
    return a, b, late


def install(learner: Learner, anchor: State, *contents: bytes) -> str:
    job = Install(states=(anchor,), contents=contents, merged_own_offer=False, replace=True)
    return perform(learner.anchors, job).fault


@pytest.mark.parametrize("policy", POLICIES)
def test_learners_with_one_anchor_tell_one_content(policy: Outer) -> None:
    a, b, late = rounds_of(policy)
    before = attested(late)
    assert attested(a) == attested(b) != before
    assert install(late, a.export(), attested(b)) == ""
    assert attested(late) == attested(a)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["anchor", "velocity"])
def test_other_bytes_under_the_same_key_are_refused(name: str, policy: Outer) -> None:
    a, b, late = rounds_of(policy)
    anchor = a.export()
    sections = {**anchor.sections, name: raw(torch.tensor([9.0, 9.0]))}
    content = short_digest(*(sections[part].data for part in sorted(sections)))
    false = replace(anchor, sections=sections, content=content)
    before = attested(late)
    assert install(late, false, attested(b)) == "other learners have something else under its key"
    assert attested(late) == before
    assert install(late, false, b"") == ""


def test_buffers_are_attested_as_they_are_handed_over() -> None:
    a, b = pair()
    assert a.anchors.fragments[1].attested()["anchor"].tolist() == list(
        a.state().sections["anchor"].data
    )
    b.observe(5.0, 7)
    found = b.seal([b.offer()], [1.0])
    b.advance(found)
    content = b.do(Attest(1, BASE.key)).digest
    assert content != a.do(Attest(1, BASE.key)).digest
    job = Install(states=(b.state(),), contents=(content,), merged_own_offer=False, replace=True)
    assert a.do(job).fault == ""
    assert a.do(Attest(1, BASE.key)).digest == content
