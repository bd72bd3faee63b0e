"""Of whom whole anchors are asked: each of the peers that have them sends its share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest

from mend_optim.engine.effects import Install
from mend_optim.engine.majority import Majority
from mend_optim.engine.model_parts import MEETING_BEATS
from mend_optim.engine.seal_chain import MOST_SEALS
from mend_optim.engine.sources import at_once
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Goodbye, Want
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import (
    BASE,
    FOURTH,
    HERE,
    ME,
    OTHER,
    PEER,
    THERE,
    THIRD,
    DrivenEngine,
    grown,
    seal_of,
    state_of,
)


def after(seals: int, base: Lineage = BASE) -> Lineage:
    """The anchor that so many seals lead to."""
    return reduce(lambda anchor, _: grown(anchor), range(seals), base)


#: The fragments of the model: so few that no two of them come from one peer at a time.
PARTS = 7
#: For how long a learner waits for an anchor of which nothing comes.
PATIENCE_S = round(Timing().round_timeout_s)


def other(version: int = 5) -> Lineage:
    """An anchor of another model, which is greater than this learner's."""
    return Lineage(tokens=10**6 + version, version=version, digest=b"d%d" % version, genesis=OTHER)


#: An anchor of this learner's model, more seals away from its own than anybody keeps.
OURS = after(MOST_SEALS + 1)
MODELS = pytest.mark.parametrize("anchor", [other(), OURS], ids=["another model", "ours"])


def newcomer(zone: str = "", parts: int = PARTS) -> DrivenEngine:
    engine = DrivenEngine(seals=False, fragments=parts, sync_every=8, zone=zone)
    engine.step()
    return engine


def show(engine: DrivenEngine, peer: PeerId, anchor: Lineage, **beat: object) -> None:
    """A beat of a peer that has this anchor of every fragment, over a stream of its own."""
    known = engine.engine.state.roster.find(peer)
    if known is None or not known.linked:
        engine.engine.met(engine.now, peer, f"{peer.name}:1")
        engine.engine.linked(engine.now, peer, True)
    lineages = [anchor] * len(engine.engine.state.fragments)
    engine.beat(peer, *lineages, genesis=anchor.genesis, **beat)  # type: ignore[arg-type]


def asked(engine: DrivenEngine) -> dict[int, PeerId]:
    """The peers that were asked since the last look, by fragment. Nothing is asked for twice."""
    found = [(want.fragment, to) for to, want in engine.sent(Want)]
    assert len(dict(found)) == len(found)
    return dict(found)


def come(engine: DrivenEngine, anchor: Lineage, p: int, peer: PeerId) -> None:
    """A whole anchor arrives from a peer. One of this learner's model is installed at once."""
    engine.receive(state_of(anchor, p, peer))
    if anchor.genesis != OTHER:
        (install,) = engine.jobs(Install)
        engine.done(install)


@MODELS
def test_the_first_peer_that_is_heard_is_asked_for_one_anchor_after_the_other(
    anchor: Lineage,
) -> None:
    engine = newcomer()
    show(engine, PEER, anchor)
    for p in range(PARTS):
        assert asked(engine) == {p: PEER}
        come(engine, anchor, p, PEER)
    assert asked(engine) == {}
    if anchor.genesis == OTHER:
        (install,) = engine.jobs(Install)
        assert [state.fragment for state in install.states] == list(range(PARTS))


@MODELS
def test_a_peer_that_is_alone_with_its_anchors_is_soon_asked_for_all(anchor: Lineage) -> None:
    engine = newcomer()
    show(engine, PEER, anchor)
    asked(engine)
    for _ in range(MEETING_BEATS - 1):
        engine.tick(1.0)
        show(engine, PEER, anchor)
        assert asked(engine) == {}
    engine.tick(1.0)
    show(engine, PEER, anchor)
    assert asked(engine) == dict.fromkeys(range(1, PARTS), PEER)


@MODELS
def test_several_peers_are_asked_for_different_anchors(anchor: Lineage) -> None:
    engine = newcomer()
    for peer in (PEER, THIRD, FOURTH):
        show(engine, peer, anchor)
    assert asked(engine) == {0: PEER, 1: THIRD, 2: FOURTH}
    for _ in range(MEETING_BEATS + 1):
        engine.tick(1.0)
        for peer in (PEER, THIRD, FOURTH):
            show(engine, peer, anchor)
    assert asked(engine) == {}  # none is alone with them
    come(engine, anchor, 2, FOURTH)  # the fastest one sends the next one, too
    assert asked(engine) == {3: FOURTH}
    come(engine, anchor, 3, FOURTH)
    assert asked(engine) == {4: FOURTH}


def fail(engine: DrivenEngine, peer: PeerId, p: int) -> None:
    """A peer does not hand over the anchor that it was asked for."""
    engine.engine.undelivered(engine.now, peer, Want(ME, p, b""), BROKEN)


def leave(engine: DrivenEngine, peer: PeerId, _: int = 0) -> None:
    engine.receive(Goodbye(peer))


@pytest.mark.parametrize(
    ("fragments", "peers", "expected"),
    [(9, 1, 1), (9, 2, 2), (8, 4, 1), (9, 5, 1), (64, 2, 4), (64, 9, 3), (1, 1, 1), (1, 256, 1)],
)
def test_each_peer_sends_half_of_its_share_at_a_time(
    fragments: int, peers: int, expected: int
) -> None:
    assert at_once(fragments, peers) == expected


@MODELS
def test_two_peers_are_asked_for_two_anchors_each(anchor: Lineage) -> None:
    engine = newcomer(zone=HERE, parts=8)
    for _ in range(2):
        show(engine, PEER, anchor, zone=HERE)
        show(engine, THIRD, anchor, zone=HERE)
        show(engine, FOURTH, anchor, zone=THERE)
    assert asked(engine) == {0: PEER, 1: THIRD, 2: THIRD, 3: PEER}


@MODELS
def test_a_neighbour_goes_first(anchor: Lineage) -> None:
    engine = newcomer(zone=HERE)
    show(engine, PEER, anchor, zone=HERE)
    show(engine, THIRD, anchor, zone=THERE)
    assert asked(engine) == {0: PEER}
    leave(engine, PEER)
    engine.tick(0.1)
    show(engine, THIRD, anchor, zone=THERE)
    assert asked(engine) == {0: THIRD}


@MODELS
def test_one_with_a_weak_link_goes_last(anchor: Lineage) -> None:
    engine = newcomer()
    show(engine, PEER, anchor)
    show(engine, THIRD, anchor, declines=True)
    found = asked(engine)
    assert found == {0: PEER}
    for _ in range(MEETING_BEATS):
        assert set(found.values()) == {PEER}
        engine.tick(1.0)
        show(engine, THIRD, anchor, declines=True)
        show(engine, PEER, anchor)
        found |= asked(engine)
    assert found == dict.fromkeys(range(PARTS), PEER)


@MODELS
def test_nobody_is_held_back_for_one_that_is_behind(anchor: Lineage) -> None:
    """Its anchors would be followed by others as soon as they have come."""
    engine = newcomer(zone=HERE)
    before = other(3) if anchor.genesis == OTHER else grown(BASE)
    assert before.version + 1 < anchor.version
    found: dict[int, PeerId] = {}
    for _ in range(MEETING_BEATS + 1):
        show(engine, PEER, anchor, zone=THERE)
        show(engine, THIRD, before, zone=HERE)
        found |= asked(engine)
        engine.tick(1.0)
    assert found.keys() == set(range(PARTS))
    theirs = [p for p, peer in found.items() if peer == THIRD]
    # One seal makes up for what is behind in our own model, so nothing limits that.
    assert len(theirs) == (1 if anchor.genesis == OTHER else PARTS - 1)


@MODELS
@pytest.mark.parametrize("lost", [PEER, THIRD], ids=["the first", "another"])
@pytest.mark.parametrize("how", [leave, fail], ids=["it leaves", "it hands nothing over"])
def test_what_a_lost_source_owes_comes_from_the_others(
    anchor: Lineage, lost: PeerId, how: Callable[..., None]
) -> None:
    """What has come is not fetched again."""
    engine = newcomer()
    show(engine, PEER, anchor)
    show(engine, THIRD, anchor)
    come(engine, anchor, 0, PEER)
    come(engine, anchor, 1, THIRD)
    assert asked(engine) == {0: PEER, 1: THIRD, 2: PEER, 3: THIRD}
    owed, left = (2, THIRD) if lost == PEER else (3, PEER)
    how(engine, lost, owed)
    engine.tick(0.1)
    come(engine, anchor, 5 - owed, left)
    for p in (owed, *range(4, PARTS)):
        assert asked(engine) == {p: left}
        come(engine, anchor, p, left)
    if anchor.genesis == OTHER:
        (install,) = engine.jobs(Install)
        assert len(install.states) == PARTS


def test_the_one_whose_anchor_is_refused_is_doubted_and_no_other() -> None:
    engine = newcomer()
    anchor = other()
    peers = (PEER, THIRD, FOURTH)
    for peer in peers:
        show(engine, peer, anchor)
    wanted = asked(engine)
    while wanted:
        p, peer = wanted.popitem()
        come(engine, anchor, p, peer)
        wanted |= asked(engine)
    (install,) = engine.jobs(Install)
    bad = next(i for i, state in enumerate(install.states) if state.peer == THIRD)
    engine.done(install, fault="other learners have something else", refused=bad)
    assert engine.faults() == ["state of third refused: other learners have something else"]
    assert [peer for peer in peers if engine.engine.state.claims.doubts(peer)] == [THIRD]
    for peer in peers:
        show(engine, peer, anchor)
    assert asked(engine) == {0: PEER, 1: FOURTH}


def two_sources(parts: int, anchor: Lineage, **beat: object) -> DrivenEngine:
    """A newcomer that has asked PEER for the first anchor, and THIRD, which is slow, for the next
    one."""
    engine = newcomer(zone=HERE, parts=parts)
    live(engine, anchor, **beat)
    assert asked(engine) == {0: PEER, 1: THIRD}
    return engine


def live(engine: DrivenEngine, anchor: Lineage, seconds: int = 0, **beat: object) -> None:
    """Both show the anchor, now and in each of so many seconds."""
    for passed in range(seconds + 1):
        engine.tick(1.0 if passed else 0.0)
        for peer in (PEER, THIRD):
            show(engine, peer, anchor, **beat)


@MODELS
def test_a_far_slower_peer_is_overtaken(anchor: Lineage) -> None:
    """Of both copies of the anchor the first is taken, and nothing comes of the second one."""
    engine = two_sources(PARTS, anchor)
    for p in (0, *range(2, PARTS)):
        live(engine, anchor, seconds=2)
        assert asked(engine) == {}
        come(engine, anchor, p, PEER)
        assert asked(engine) == {max(p + 1, 2) if p + 1 < PARTS else 1: PEER}
    live(engine, anchor, seconds=9)  # PEER is as slow with this one
    assert asked(engine) == {}  # nobody is asked for a third copy
    come(engine, anchor, 1, THIRD)
    if anchor.genesis == OTHER:
        (install,) = engine.jobs(Install)
        engine.done(install)
    assert [f.lineage for f in engine.engine.state.fragments] == [anchor] * PARTS
    engine.receive(state_of(anchor, 1, PEER))
    assert engine.jobs(Install) == []
    assert asked(engine) == {}
    assert engine.faults() == []


@MODELS
def test_a_peer_that_is_hardly_slower_is_not_overtaken(anchor: Lineage) -> None:
    engine = two_sources(2, anchor)
    live(engine, anchor, seconds=3)
    come(engine, anchor, 0, PEER)
    live(engine, anchor, seconds=2)
    assert asked(engine) == {}
    engine.tick(1.0)
    show(engine, THIRD, anchor)
    assert asked(engine) == {}  # it can't overtake itself
    show(engine, PEER, anchor)
    assert asked(engine) == {1: PEER}


@MODELS
def test_nobody_is_overtaken_within_a_beat(anchor: Lineage) -> None:
    engine = two_sources(2, anchor)
    come(engine, anchor, 0, PEER)
    engine.tick(0.9)
    live(engine, anchor)
    assert asked(engine) == {}
    engine.tick(0.1)
    live(engine, anchor)
    assert asked(engine) == {1: PEER}


@MODELS
@pytest.mark.parametrize("why", ["dearer", "weaker", "behind", "unproven", "busy"])
def test_nobody_is_overtaken_by_a_peer_that_is_no_better(anchor: Lineage, why: str) -> None:
    """One in another zone, or with a weak link; one that is behind; one that has sent nothing yet;
    and one that still owes something itself."""
    engine = two_sources(3 if why == "busy" else 2, anchor, zone=HERE)
    if why != "unproven":
        come(engine, anchor, 0, PEER)
    engine.tick(2.0)
    shown = (other(3) if anchor.genesis == OTHER else grown(BASE)) if why == "behind" else anchor
    zone = THERE if why == "dearer" else HERE
    if why == "behind":
        show(engine, FOURTH, anchor, zone=HERE)  # it would do, but has sent nothing yet
    show(engine, PEER, shown, zone=zone, declines=why == "weaker")
    show(engine, THIRD, anchor, zone=HERE)
    assert asked(engine) == ({2: PEER} if why == "busy" else {})


@MODELS
def test_those_who_wait_longest_are_overtaken_first_and_once(anchor: Lineage) -> None:
    engine = newcomer(parts=3)
    peers = (PEER, THIRD, FOURTH)
    for peer in peers:
        show(engine, peer, anchor)
    assert asked(engine) == {0: PEER, 1: THIRD, 2: FOURTH}
    come(engine, anchor, 0, PEER)
    engine.tick(1.0)
    show(engine, PEER, anchor)
    assert asked(engine) == {1: PEER}
    come(engine, anchor, 2, FOURTH)
    for _ in range(2):
        engine.tick(1.0)
        for peer in (THIRD, FOURTH):
            show(engine, peer, anchor)
    assert asked(engine) == {}  # PEER sends that one by now


@MODELS
def test_an_overtaken_peer_is_no_faster_for_that(anchor: Lineage) -> None:
    """Its anchor comes just after PEER was asked for it, too."""
    engine = newcomer(parts=3)
    for peer in (PEER, THIRD, FOURTH):
        show(engine, peer, anchor)
    asked(engine)
    come(engine, anchor, 0, PEER)
    engine.tick(1.0)
    show(engine, PEER, anchor)
    assert asked(engine) == {1: PEER}
    come(engine, anchor, 1, THIRD)
    assert asked(engine) == {}
    show(engine, PEER, anchor)
    assert asked(engine) == {2: PEER}


def overtaken(anchor: Lineage) -> DrivenEngine:
    """PEER was asked for fragment 1, too, which THIRD still sends."""
    engine = two_sources(2, anchor)
    come(engine, anchor, 0, PEER)
    live(engine, anchor, seconds=2)
    assert asked(engine) == {1: PEER}
    return engine


@MODELS
def test_what_a_slow_peer_has_sent_is_not_lost_as_another_one_fails(anchor: Lineage) -> None:
    """Before, it was asked anew, and began from the first byte."""
    engine = overtaken(anchor)
    fail(engine, PEER, 1)
    show(engine, THIRD, anchor)
    assert asked(engine) == {}
    come(engine, anchor, 1, THIRD)
    assert asked(engine) == {}


@MODELS
@pytest.mark.parametrize("how", ["fails", "is late", "breaks off", "hands over another model"])
def test_another_peer_may_overtake_and_fail_again_and_again(anchor: Lineage, how: str) -> None:
    engine = overtaken(anchor)
    for _ in range(3):
        match how:
            case "fails":
                fail(engine, PEER, 1)
            case "is late":
                for _ in range(PATIENCE_S):
                    engine.engine.heard(engine.now, THIRD, 1)
                    engine.tick(1.0)
            case "breaks off":
                engine.engine.linked(engine.now, PEER, False)
                engine.tick(0.1)
            case _:
                engine.receive(state_of(replace(anchor, genesis=b"x" * 16), 1, PEER))
        for _ in range(4 * PATIENCE_S):
            engine.engine.heard(engine.now, THIRD, 1)
            live(engine, anchor, seconds=1)
            again = asked(engine)
            if again:
                break
        assert again == {1: PEER}


@MODELS
def test_a_peer_that_has_overtaken_goes_on_as_the_slow_one_fails(anchor: Lineage) -> None:
    engine = overtaken(anchor)
    fail(engine, THIRD, 1)
    live(engine, anchor)
    assert asked(engine) == {}
    fail(engine, PEER, 1)
    show(engine, FOURTH, anchor)
    assert FOURTH in asked(engine).values()


@MODELS
def test_a_slow_peer_that_sends_no_more_is_waited_for_no_longer(anchor: Lineage) -> None:
    engine = overtaken(anchor)
    for _ in range(PATIENCE_S):
        engine.engine.heard(engine.now, PEER, 1)
        engine.tick(1.0)
    assert asked(engine) == {}
    fail(engine, PEER, 1)
    show(engine, FOURTH, anchor)
    assert FOURTH in asked(engine).values()


def test_a_stop_of_this_learner_uses_up_nobody_s_patience() -> None:
    wants = [*overtaken(OURS).engine.state.wants[1]]
    before = [(wanted.since, wanted.until) for wanted in wants]
    assert len(before) == 2
    wants[0].slept(7.0)
    assert [(wanted.since - 7, wanted.until - 7) for wanted in wants] == before


def test_nothing_is_kept_of_sources_that_are_gone() -> None:
    engine = two_sources(PARTS, OURS)
    come(engine, OURS, 0, PEER)
    leave(engine, PEER)
    come(engine, OURS, 1, THIRD)
    assert set(engine.engine.pulling.sources._took_s) == {THIRD}


@MODELS
def test_an_anchor_is_overtaken_whose_peer_was_not_heard(anchor: Lineage) -> None:
    """A go-between may tell of it before its first beat."""
    engine = two_sources(2, anchor)
    come(engine, anchor, 0, PEER)
    known = engine.engine.state.roster.find(THIRD)
    assert known
    known.beat = None
    engine.tick(1.0)
    show(engine, PEER, anchor)
    assert asked(engine) == {1: PEER}


def test_a_seal_that_is_on_its_way_keeps_no_peer_busy() -> None:
    engine = newcomer()
    engine.beat(PEER, grown(BASE), *[OURS] * (PARTS - 1))
    assert asked(engine) == {0: PEER, 1: PEER}


def test_what_a_seal_brings_waits_for_the_next_beat() -> None:
    """The last beat is as old as the anchor that has just come took."""
    engine = newcomer()
    show(engine, PEER, OURS)
    assert asked(engine) == {0: PEER}
    come(engine, after(MOST_SEALS), 0, PEER)
    assert asked(engine) == {1: PEER}


@MODELS
@pytest.mark.parametrize("how", ["doubted", "suspected"])
def test_nobody_waits_for_a_neighbour_that_hands_nothing_over(anchor: Lineage, how: str) -> None:
    engine = newcomer(zone=HERE)
    show(engine, PEER, anchor, zone=HERE)
    assert asked(engine) == {0: PEER}
    if how == "doubted":
        fail(engine, PEER, 0)
    else:
        engine.engine.linked(engine.now, PEER, False)
        engine.tick(0.1)
    show(engine, THIRD, anchor, zone=THERE)
    assert THIRD in asked(engine).values()


def test_a_neighbour_with_another_model_is_no_source() -> None:
    engine = newcomer(zone=HERE)
    show(engine, PEER, OURS, zone=HERE)
    asked(engine)
    show(engine, THIRD, other(2), zone=THERE)
    assert asked(engine) == {0: THIRD}


def test_nobody_waits_for_a_neighbour_that_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for no whole anchor, so none of it would ever come."""
    monkeypatch.setattr(Majority, "believes", lambda self, fragment, key, peer, _: peer != PEER)
    monkeypatch.setattr(Majority, "believed", lambda self, fragment: BASE.key)
    engine = newcomer(zone=HERE)
    for anchor in (BASE, OURS):
        show(engine, PEER, anchor, zone=HERE)
        show(engine, THIRD, anchor, zone=THERE)
    assert THIRD in asked(engine).values()


def test_nobody_waits_for_a_neighbour_with_less_work_in_more_rounds() -> None:
    engine = newcomer(zone=HERE)
    show(engine, PEER, OURS, zone=HERE)
    for p in range(PARTS):
        come(engine, OURS, p, PEER)
    asked(engine)
    lesser = replace(OURS, tokens=OURS.tokens - 1, version=OURS.version + 9)
    show(engine, PEER, lesser, zone=HERE)
    show(engine, THIRD, after(MOST_SEALS + 1, OURS), zone=THERE)
    assert asked(engine) == {0: THIRD}


def test_a_model_that_nobody_sends_any_more_is_given_up() -> None:
    engine = newcomer()
    show(engine, PEER, other())
    assert engine.engine.state.switch
    fail(engine, PEER, 0)
    assert not engine.engine.state.switch


def test_while_another_model_comes_nothing_of_ours_is_asked_for() -> None:
    engine = newcomer()
    show(engine, PEER, other())
    show(engine, THIRD, OURS)
    engine.receive(replace(seal_of(OURS), fragment=3))
    assert asked(engine) == {0: PEER}


def test_an_anchor_to_which_this_learner_yields_waits_for_nothing() -> None:
    engine = newcomer(zone=HERE)
    show(engine, PEER, OURS, zone=HERE)
    show(engine, THIRD, OURS, zone=THERE)
    assert asked(engine) == {0: PEER}
    pulling, fragment = engine.engine.pulling, engine.engine.state.fragments[3]
    pulling.want(engine.now, fragment, THIRD, OURS.key, whole=True, gives_way=True)
    assert asked(engine) == {3: THIRD}


def test_all_who_sent_a_model_have_kept_their_word() -> None:
    engine = newcomer()
    anchor = other()
    for peer in (PEER, THIRD):
        show(engine, peer, anchor)
    claims, waited_s = engine.engine.state.claims, 50.0
    claims.failed(engine.now, THIRD, waited_s, 1.0)
    for p in range(PARTS):
        come(engine, anchor, p, THIRD if p == 1 else PEER)
    (install,) = engine.jobs(Install)
    engine.done(install)
    engine.tick(2.0)
    assert claims.failed(engine.now, THIRD, waited_s, 1.0) == engine.now + 1.0


def test_one_that_has_not_been_heard_yet_may_be_asked() -> None:
    """By a seal, a go-between tells of an anchor before its first beat does."""
    engine = newcomer()
    sources, fragment = engine.engine.pulling.sources, engine.fragment
    assert sources.may_ask(engine.now, fragment, FOURTH, OURS.key)


def test_a_neighbour_that_others_are_held_back_for_is_asked_itself() -> None:
    """It has less work than this learner, which is alone, in as many rounds as the others."""
    engine = newcomer(zone=HERE)
    assert engine.engine.state.alone
    show(engine, PEER, other(), zone=THERE)
    assert asked(engine) == {0: PEER}
    show(engine, THIRD, replace(other(), tokens=1), zone=HERE)
    assert asked(engine) == {1: THIRD}
