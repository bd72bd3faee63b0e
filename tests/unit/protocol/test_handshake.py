"""Two hellos are compared: the first difference is the reason for a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.protocol.handshake import BY_NAME, NO_VALUE, PROTOCOL, Hello, refusal
from mend_optim.protocol.lineage import PeerId

MINE = Hello(peer=PeerId("a", 1), address="", model=(), policy=(("sync_every", "20"),))
THEIRS = replace(MINE, peer=PeerId("b", 1))


def test_learners_that_agree_are_not_refused() -> None:
    assert refusal(MINE, THEIRS) == refusal(THEIRS, MINE) == ""


def test_a_setting_that_may_differ_is_told_to_a_visitor_and_compared_with_no_learners() -> None:
    mine = replace(MINE, may_differ=(("guard", "None"),))
    theirs = replace(THEIRS, may_differ=(("guard", "Guard()"),))
    assert refusal(mine, theirs) == refusal(mine, THEIRS) == refusal(THEIRS, mine) == ""
    visitor = replace(THEIRS, policy=(("guard", NO_VALUE),))
    assert refusal(visitor, mine).startswith("guard: here ?, there None;")
    assert refusal(visitor, MINE).startswith("guard: here ?, there absent;")


@pytest.mark.parametrize("version", [0, PROTOCOL - 1, PROTOCOL + 1])
def test_another_version_of_the_protocol_is_refused_before_all_else(version: int) -> None:
    """It may mean something else by every other field, and by a refusal."""
    other = replace(THEIRS, protocol=version, policy=(("sync_every", "30"),), refusal="no")
    assert refusal(MINE, other).startswith(f"protocol version: here {PROTOCOL}, there {version};")


#: The remedies where one model may have been given to two optimizers in two ways.
MORE = "build the same model on both, and give both optimizers the same parameters"
MOVED = "list the parameters in one order on both, or give both optimizers named_parameters()"


def model(*names: str) -> Hello:
    """A learner whose parameters have these names, and one shape."""
    count = ("number of parameters", str(len(names)))
    return replace(MINE, model=(count, *((f"parameter {name}", "[3]") for name in names)))


@pytest.mark.parametrize("theirs", [("a", "b", "c"), ("0", "1", "2"), ("a", "x", "c")])
def test_other_names_of_equal_shapes_may_be_those_of_the_same_parameters(
    theirs: tuple[str, ...],
) -> None:
    assert refusal(model("a", "b", "c"), replace(model(*theirs), peer=THEIRS.peer)) == ""


def test_the_same_names_in_another_order_are_refused() -> None:
    other = replace(model("a", "c", "b"), peer=THEIRS.peer)
    reason = refusal(model("a", "b", "c"), other)
    assert reason == (
        "parameter b: here number 2, there number 3; let both go on from checkpoints of one run, or"
        " neither"
    )


def test_names_that_a_wrapper_made_others_are_refused_where_they_change_the_order() -> None:
    """DDP is around one part of the model, and not around the rest."""
    other = replace(model("b", "module.a"), peer=THEIRS.peer)
    reason = refusal(model("a", "b"), other)
    assert reason == (
        "parameter a: here number 1, there number 2; give both optimizers the names of the model"
        " itself, and not of what DDP made of it"
    )
    for names in [("module.a", "module.b"), ("module.a", "b")]:
        assert not refusal(model("a", "b"), replace(model(*names), peer=THEIRS.peer))
    twins = replace(model("module.a", "a"), peer=THEIRS.peer)
    assert not refusal(model("module.a", "a"), twins)
    assert "number 2" in refusal(model("a", "module.a"), twins)


def test_more_of_the_same_names_are_refused_for_their_number() -> None:
    other = replace(model("a", "a", "b"), peer=THEIRS.peer)
    assert refusal(model("a", "b"), other) == f"number of parameters: here 2, there 3; {MORE}"


def of_kinds(*kinds: str) -> Hello:
    """A learner whose parameters have no names, and these kinds."""
    count = ("number of parameters", str(len(kinds)))
    listed = [(f"parameter {place}", kind) for place, kind in enumerate(kinds)]
    return replace(MINE, model=(count, *listed))


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (["[3]", "[4]", "[4]"], "number of parameters: here 2, there 3; " + MORE),
        (["[4]", "[3]"], "parameter 0: here [3], there [4]; " + MOVED),
        (["[3]", "[5]"], "parameter 1: here [4], there [5]; build the same model on both"),
        (["[4]", "[4]"], "parameter 0: here [3], there [4]; build the same model on both"),
    ],
)
def test_the_remedy_is_that_of_a_model_given_in_part_or_in_another_order(
    theirs: list[str], reason: str
) -> None:
    other = replace(of_kinds(*theirs), peer=THEIRS.peer)
    assert refusal(of_kinds("[3]", "[4]"), other) == reason


def ordered(hello: Hello) -> Hello:
    """The same learner, if it has ordered its parameters by their names."""
    return replace(hello, model=(*hello.model, BY_NAME))


def test_an_order_by_name_is_not_that_of_a_learner_without_names() -> None:
    unnamed = replace(model("0", "1"), peer=THEIRS.peer)
    text = "order of parameters: here {}, there {}; give named_parameters() to the optimizers of {}"
    both = "both, or of none"
    sorted_here = refusal(ordered(model("a", "b")), unnamed)
    assert sorted_here == text.format("by name", "as listed", both)
    assert refusal(unnamed, ordered(model("a", "b"))) == text.format("as listed", "by name", both)


@pytest.mark.parametrize("theirs", [("a", "b"), ("x", "y")])
def test_orders_of_two_learners_with_names_are_told_by_the_names(theirs: tuple[str, ...]) -> None:
    other = replace(model(*theirs), peer=THEIRS.peer)
    assert refusal(ordered(model("a", "b")), other) == ""
    assert refusal(model("a", "b"), ordered(other)) == ""
