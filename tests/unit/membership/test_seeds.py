"""The seeds of a learner, and who is waited for at a name that is its own."""

from __future__ import annotations

from mend_optim.membership.seeds import Seeds
from mend_optim.protocol.handshake import AT_ITS_END
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.seed_lists import UNREAD, Listing
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
    assert not seeds.only_itself
    seeds.discard("127.0.0.1:2")
    assert seeds.only_itself
    assert not Seeds([]).only_itself


def of(given: list[str], source: str) -> Seeds:
    seeds = Seeds(given)
    seeds.listed(source, UNREAD)
    return seeds


def listing(*seeds: str, awaited: str = "") -> Listing:
    return Listing(seeds=seeds, awaited=awaited)


def test_the_addresses_of_a_list_come_and_go():
    seeds = of(["a:1"], "file:x")
    assert seeds.missing == ["a:1", "file:x"]
    assert seeds.cause("file:x") == "not read yet"
    seeds.listed("file:x", listing("b:1", "c:1"))
    seeds.resolve("b:1", B)
    seeds.fail(0.0, "c:1", Unreached.REFUSED)
    assert (seeds.missing, seeds.peers()) == (["a:1", "c:1"], [B])
    seeds.listed("file:x", listing("d:1", "a:1"))
    assert (seeds.missing, seeds.peers(), seeds.unreached) == (["a:1", "d:1"], [], {})
    seeds.listed("file:x", listing())
    assert seeds.missing == ["a:1"]  # the user gave it, too


def test_an_address_that_a_list_still_has_keeps_what_is_known_of_it():
    seeds = of([], "file:x")
    seeds.listed("file:x", listing("b:1", "c:1"))
    seeds.resolve("b:1", B)
    seeds.refuse("c:1", "another model")
    seeds.listed("file:x", listing("c:1", "b:1"))
    assert (seeds.peers(), seeds.refused) == ([B], {"c:1": "another model"})


def test_a_learner_whose_run_is_at_its_end_is_waited_for():
    seeds = Seeds(["b:1", "c:1"])
    seeds.refuse("b:1", AT_ITS_END)
    seeds.refuse("c:1", "another model")
    assert (seeds.missing, seeds.sought()) == (["b:1"], ["b:1", "c:1"])
    assert seeds.causes(seeds.missing) == f"b:1 (refused: {AT_ITS_END})"
    seeds.resolve("b:1", B)
    assert (seeds.missing, seeds.peers()) == ([], [B])


def test_this_learners_own_address_in_a_list_is_left_out_while_it_is_there():
    seeds = of([], "file:x")
    seeds.listed("file:x", listing("me:1", "b:1"))
    seeds.discard("me:1")
    seeds.listed("file:x", listing("me:1", "b:1", "c:1"))
    assert seeds.missing == ["b:1", "c:1"]
    seeds.listed("file:x", listing("c:1"))
    seeds.listed("file:x", listing("me:1", "c:1"))  # another machine's by now
    assert seeds.missing == ["c:1", "me:1"]


def test_a_list_of_nobody_else_is_waited_for():
    seeds = of([], "file:x")
    seeds.listed("file:x", listing("me:1"))
    seeds.discard("me:1")
    assert seeds.missing == ["file:x"]
    assert seeds.cause("file:x") == "nobody but this learner is there"
    assert seeds.remedy("file:x") == "start the other learners"
    assert not seeds.expects_nobody


def test_a_list_says_itself_that_others_are_to_come():
    seeds = of([], "env://")
    seeds.listed("env://", listing("b:1", awaited="no address of rank 2 yet"))
    seeds.resolve("b:1", B)
    assert seeds.missing == ["env://"]
    assert seeds.cause("env://") == "no address of rank 2 yet"
    seeds.listed("env://", listing("b:1"))
    assert seeds.missing == []


def test_a_complete_list_without_anybody_is_not_waited_for():
    """Such as that of a run of one process."""
    seeds = of([], "env://")
    assert not seeds.expects_nobody
    seeds.listed("env://", listing())
    assert (seeds.missing, seeds.expects_nobody) == ([], True)
