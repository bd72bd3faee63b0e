"""The seeds of a learner, and who is waited for at a name that is its own."""

from __future__ import annotations

from mend_optim.membership.seeds import Seeds
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.unreached import Unreached

B = PeerId("b", 1)


def test_a_name_of_nobody_else_is_not_waited_for():
    """Every learner may be given the same list, with its own name in it."""
    seeds = Seeds(["a.example:1", "b.example:1"])
    seeds.fail(0.0, "a.example:1", Unreached.ITSELF)
    seeds.fail(1.0, "a.example:1", Unreached.ITSELF)
    assert seeds.missing == ["b.example:1"]


def test_the_last_name_is_waited_for_though_only_this_learner_has_it_yet():
    seeds = Seeds(["all.example:1"])
    seeds.fail(0.0, "all.example:1", Unreached.ITSELF)
    assert seeds.missing == ["all.example:1"]
    assert seeds.cause("all.example:1") == "nobody but this learner is there"
    seeds.resolve("all.example:1", B)
    assert (seeds.missing, seeds.peers()) == ([], [B])


def test_a_newcomer_at_a_name_that_was_this_learners_own_counts():
    seeds = Seeds(["all.example:1", "c.example:1"])
    seeds.fail(0.0, "all.example:1", Unreached.ITSELF)
    seeds.fail(1.0, "all.example:1", Unreached.REFUSED)
    assert seeds.missing == ["c.example:1", "all.example:1"]
    assert seeds.cause("all.example:1") == "connection refused"
    seeds.fail(2.0, "all.example:1", Unreached.ITSELF)
    assert seeds.missing == ["c.example:1"]
    seeds.resolve("all.example:1", B)
    assert seeds.peers() == [B]


def test_an_address_of_this_learner_itself_is_never_taken_back():
    seeds = Seeds(["127.0.0.1:1", "127.0.0.1:2"])
    seeds.discard("127.0.0.1:1")
    seeds.fail(0.0, "127.0.0.1:1", Unreached.REFUSED)
    assert seeds.missing == ["127.0.0.1:2"]
