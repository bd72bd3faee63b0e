"""When a learner is ready to end, and what it takes from others' word."""

from __future__ import annotations

from typing import Any

import pytest

from mend_optim.engine.ending import RETURN_BEATS
from mend_optim.engine.ledger import Event
from mend_optim.membership.seeds import Seeds
from mend_optim.protocol.lineage import Lineage, PeerId, content_digest
from mend_optim.protocol.messages import Beat, Goodbye, Report, Rumor
from mend_optim.protocol.timing import Timing
from tests.support.engines import BASE, GENESIS, ME, PEER, THIRD, DrivenEngine, grown


class Finishing:
    """A learner that finishes beside one peer. A third learner is known by that peer's word
    only. `seals`: whether it can be dialled, and its peer cannot be."""

    def __init__(self, quorum: int | None = None, steps: int = 0, seals: bool = True) -> None:
        self.driven = DrivenEngine(quorum=quorum, seals=seals)
        self.address = "" if seals else "peer:1"
        self.driven.step(steps)
        self.engine, self.state = self.driven.engine, self.driven.engine.state
        self.beats = 0
        self.hear(finishes=False)
        self.engine.rest(self.driven.now, finishing=True)

    def hear(
        self,
        anchor: Lineage = BASE,
        *,
        finishes: bool = True,
        ready: bytes = b"",
        ended: bytes = b"",
        rumors: tuple[Rumor, ...] = (),
    ) -> None:
        self.beats += 1
        self.engine.met(self.driven.now, PEER, self.address)
        self.engine.receive(
            self.driven.now,
            Beat(
                peer=PEER,
                address=self.address,
                count=self.beats,
                step=1,
                tokens=10,
                training=True,
                genesis=GENESIS,
                reports=(Report(anchor.key),),
                roster=rumors,
                finishes=finishes,
                ready=ready,
                ended=ended,
            ),
        )

    def rumor(self, *, finishes: bool = True, ready: bytes = b"", left: bool = False) -> Rumor:
        count = 2**62 if left else self.beats + 1
        return Rumor(THIRD, "", count, left, finishes=finishes, ready=ready, tokens=70)


def test_it_is_ready_once_its_peer_finishes_on_its_anchor() -> None:
    end = Finishing()
    end.hear(finishes=False)
    assert not end.state.ready
    end.hear(BASE.found({}, 0, b"another model"))
    assert not end.state.ready
    assert not end.state.roster.closed
    end.hear()
    assert end.state.ready
    assert end.state.roster.closed


def test_one_that_leaves_tells_all_that_it_was_ready() -> None:
    """Its last beat may have gone to others only, and nobody asks it any more."""
    end = Finishing()
    end.hear()
    end.driven.sent(Beat)
    end.engine.leave(end.driven.now)
    ((to, beat),) = end.driven.sent(Beat)
    assert to == PEER
    assert beat.ready == end.state.ready
    assert [to for to, _ in end.driven.sent(Goodbye)] == [PEER]


@pytest.mark.parametrize(
    ("steps", "peers", "finishing", "told"),
    [
        (3, (PEER,), False, [{"unmerged_tokens": 30}]),
        (3, (PEER,), True, []),  # `finish()` has told it
        (3, (), False, []),  # nobody has another model
        (0, (PEER,), False, []),
    ],
)
def test_one_that_ends_without_finish_tells_of_work_that_others_lose(
    steps: int, peers: tuple[PeerId, ...], finishing: bool, told: list[dict[str, int]]
) -> None:
    driven = DrivenEngine()
    driven.step(steps, tokens=10)
    for peer in peers:
        driven.beat(peer, step=1)
    if finishing:
        driven.engine.rest(driven.now, finishing=True)
    driven.engine.ending.tell_unfinished()
    assert [event.facts for event in driven.events("unfinished")] == told


def test_work_that_no_quorum_can_merge_holds_nobody_up() -> None:
    for quorum in (2, 3):
        end = Finishing(quorum=quorum, steps=1)
        end.hear()
        assert bool(end.state.ready) is (quorum == 3)


@pytest.mark.parametrize("merged", [False, True])
def test_those_that_only_others_hear_are_of_a_quorum_once_there_was_a_round(merged: bool) -> None:
    """Of two learners that nobody can dial, neither hears the other, and the sealer hears both.
    Before the first round, nobody knows whether it does."""
    end = Finishing(quorum=3, steps=1)
    (fragment,) = end.state.fragments
    fragment.lineage = grown(BASE) if merged else BASE
    end.hear(fragment.lineage, rumors=(end.rumor(),))
    assert bool(end.state.ready) is not merged


def test_work_waits_while_all_that_can_seal_are_suspected() -> None:
    """Their stream broke: they come back, or are evicted."""
    end = Finishing(steps=1, seals=False)
    end.hear()
    end.engine.linked(end.driven.now, PEER, False)
    end.driven.tick(0.1)
    assert not end.state.ready
    end.driven.tick(Timing().evict_after_s)
    ended = end.engine.ending.end()
    assert ended
    assert ended.keeps_own


@pytest.mark.parametrize("shared", [False, True])
def test_a_group_that_nobody_can_seal_holds_no_other_work_back(shared: bool) -> None:
    """Nor does its own work hold up the end, although another one that nobody can dial has it."""
    end = Finishing(seals=False)
    end.state.extend(b"group", end.state.totals, (b"", b"added"))
    end.driven.step(1)
    end.engine.rest(end.driven.now, finishing=True)
    end.hear()
    group = Report(end.state.fragments[1].lineage.key, group=b"added")
    end.engine.met(end.driven.now, THIRD, "")
    end.engine.receive(
        end.driven.now,
        Beat(
            peer=THIRD,
            address="",
            count=1,
            training=True,
            genesis=GENESIS,
            reports=(Report(BASE.key), group)[: 1 + shared],
            finishes=True,
        ),
    )
    end.driven.tick(0.1)
    assert not end.state.ready
    end.state.fragments[0].drop(end.state.totals)
    end.driven.tick(0.1)
    assert end.state.ready


def test_work_that_is_not_finite_holds_nobody_up() -> None:
    """Nor is the anchor that was to replace it. With another anchor, there is hope again."""
    end = Finishing(quorum=2, steps=1)
    (fragment,) = end.state.fragments
    fragment.move()
    fragment.retake_refused()
    end.hear()
    assert end.state.ready
    fragment.lineage = grown(BASE)
    end.hear(grown(BASE))
    assert not end.state.ready


@pytest.mark.parametrize("quorum", [1, 2])
def test_a_learner_that_is_left_alone_ends_without_those_that_it_expects(quorum: int) -> None:
    driven = DrivenEngine(quorum=quorum)
    driven.beat(PEER)
    driven.step(1)
    driven.receive(Goodbye(PEER))
    driven.tick(1.0)
    driven.engine.state.seeds = Seeds(("third:1",))
    driven.engine.rest(driven.now, finishing=True)
    driven.tick(RETURN_BEATS * Timing().beat_s)
    ended = driven.engine.ending.end()
    assert ended
    assert ended.keeps_own


def test_a_learner_whose_last_peer_leaves_keeps_its_work() -> None:
    """It ends at once. Nobody is left to merge the work, so no anchor may take its place."""
    for end in (Finishing(quorum=2, steps=1), Finishing(quorum=2, steps=0)):
        end.hear()
        assert end.engine.ending.end() is None
        end.engine.receive(end.driven.now, Goodbye(PEER))
        ended = end.engine.ending.end()
        assert ended
        assert ended.alone
        assert ended.agreed
        assert ended.keeps_own is bool(end.state.totals.step)


@pytest.mark.parametrize("how", ["left", "evicted", "finished"])
def test_it_waits_a_moment_for_one_that_leaves_in_mid_run(how: str) -> None:
    """It loads a checkpoint, and comes back. Else the two would end on two models."""
    end = Finishing()
    end.driven.tick(0.1)
    if how == "finished":
        end.hear()
        end.hear(BASE.found({}, 0, b"another model"))
    if how == "evicted":
        end.driven.tick(Timing().evict_after_s + 1.0)
    else:
        end.engine.receive(end.driven.now, Goodbye(PEER))
    waits = end.engine.ending.end() is None
    assert waits is (how == "left")
    if waits:
        end.driven.tick(RETURN_BEATS * Timing().beat_s - 0.5)
        assert end.engine.ending.end() is None
        end.driven.tick(1.0)
        assert end.engine.ending.end()


def test_one_that_comes_back_is_waited_for() -> None:
    end = Finishing()
    end.driven.tick(0.1)
    end.engine.receive(end.driven.now, Goodbye(PEER))
    end.engine.met(end.driven.now, PEER._replace(incarnation=2), "")
    end.driven.tick(2 * RETURN_BEATS * Timing().beat_s)
    assert end.engine.ending.end() is None


def test_it_waits_for_a_peer_that_is_behind() -> None:
    end = Finishing()
    end.state.fragments[0].lineage = grown(BASE)
    end.hear(BASE)
    assert not end.state.ready
    end.hear(grown(BASE))
    assert end.state.ready


def test_a_run_that_is_about_to_end_admits_nobody() -> None:
    late = PeerId("late", 1)
    for ready in (True, False):
        end = Finishing()
        end.hear(finishes=ready)
        assert end.engine.met(end.driven.now, late, "") is not ready


def test_it_has_ended_although_the_others_have_left_since() -> None:
    """Else a learner would wait for others that are gone, because it looked too late: here for the
    third, which never hears that the peer has left."""
    end = Finishing()
    end.hear(rumors=(end.rumor(),))
    ready = end.state.ready
    end.hear(ready=ready, rumors=(end.rumor(ready=ready),))
    ended = end.engine.ending.end()
    assert ended
    end.engine.receive(end.driven.now, Goodbye(PEER))
    assert end.state.ready not in (b"", ready)
    assert end.engine.ending.end() == ended
    end.driven.step()
    end.engine.rest(end.driven.now, finishing=True)
    assert end.engine.ending.end() != ended


@pytest.mark.parametrize("overtaken", [False, True])
def test_learners_that_are_no_quorum_end_apart_whichever_word_comes_first(overtaken: bool) -> None:
    """The goodbye of a peer takes each of its streams, and the beat before it takes one."""
    end = Finishing(quorum=3, steps=1)
    end.hear()
    if not overtaken:
        end.hear(ready=end.state.ready, ended=end.state.ready)
    end.engine.receive(end.driven.now, Goodbye(PEER))
    ended = end.engine.ending.end()
    assert ended
    assert (ended.agreed, ended.alone, ended.keeps_own) == (False, False, False)
    assert (ended.here, ended.needed) == (2, 3)
    assert set(ended.tokens) == {ME.name, PEER.name}


def test_the_last_one_keeps_work_that_no_quorum_merges_on_anchors_of_a_run() -> None:
    end = Finishing(quorum=3, steps=1)
    (fragment,) = end.state.fragments
    fragment.lineage = grown(BASE)
    end.hear(fragment.lineage)
    assert end.state.ready
    end.engine.receive(end.driven.now, Goodbye(PEER))
    ended = end.engine.ending.end()
    assert ended
    assert (ended.agreed, ended.alone, ended.keeps_own) == (True, True, True)


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_learner_is_alone_without_one_that_may_have_merged_more(is_silent: bool) -> None:
    """A peer that fell silent before the end, or trained on and left."""
    end = Finishing(quorum=3, steps=1)
    end.hear()
    assert end.state.ready
    if is_silent:
        end.driven.tick(Timing().evict_after_s)
    else:
        end.hear(finishes=False)
        end.engine.receive(end.driven.now, Goodbye(PEER))
        end.driven.tick(RETURN_BEATS * Timing().beat_s)
    ended = end.engine.ending.end()
    assert ended
    assert (ended.agreed, ended.alone, ended.keeps_own) == (True, True, True)


def test_a_peer_that_left_another_anchor_is_in_no_account() -> None:
    end = Finishing()
    end.hear(grown(BASE), ready=b"x" * 16)
    end.engine.receive(end.driven.now, Goodbye(PEER))
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0}


def test_it_waits_for_a_learner_that_it_knows_by_hearsay() -> None:
    """Of two learners that nobody can dial, neither ever hears the other itself."""
    end = Finishing()
    end.hear(rumors=(end.rumor(finishes=False),))
    assert not end.state.ready
    end.hear(rumors=(end.rumor(),))
    ready = end.state.ready
    assert ready
    end.hear(ready=ready, rumors=(end.rumor(),))
    assert not end.engine.ending.end()
    end.hear(ready=ready, rumors=(end.rumor(ready=b"other"),))
    assert not end.engine.ending.end()
    end.hear(ready=ready, rumors=(end.rumor(ready=ready),))
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0, "peer": 10, "third": 70}


def test_all_that_left_after_they_had_finished_are_in_the_account() -> None:
    end = Finishing()
    end.hear(rumors=(end.rumor(),))
    end.hear(rumors=(end.rumor(left=True),))
    end.engine.receive(end.driven.now, Goodbye(PEER))
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0, "peer": 10, "third": 70}


def test_a_peer_that_trains_on_is_in_no_account() -> None:
    end = Finishing()
    end.hear()
    assert end.state.ready
    end.hear(finishes=False)
    end.engine.receive(end.driven.now, Goodbye(PEER))
    end.driven.tick(RETURN_BEATS * Timing().beat_s)
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0}


def test_a_peer_that_fell_silent_is_in_no_account() -> None:
    """It may have evicted this learner, too, and have ended on what it merged since."""
    end = Finishing()
    end.hear()
    assert end.state.ready
    end.driven.tick(100.0)
    found = end.engine.ending.end()
    assert found
    assert found.alone
    assert PEER.name not in found.tokens


def test_a_learner_passes_on_how_far_others_are() -> None:
    end = Finishing()
    end.hear(ready=b"r" * 16, rumors=(end.rumor(),))
    told = {rumor.peer: rumor for rumor in end.state.roster.rumors()}
    assert (told[PEER].finishes, told[PEER].ready, told[PEER].tokens) == (True, b"r" * 16, 10)
    assert (told[THIRD].finishes, told[THIRD].tokens) == (True, 70)


def test_before_it_finishes_nothing_of_it_is_told() -> None:
    end = Finishing()
    end.hear(finishes=False)
    (told,) = end.state.roster.rumors()
    assert told == Rumor(PEER, "", told.count)
    end.engine.receive(end.driven.now, Goodbye(PEER))
    (goodbye,) = end.state.roster.rumors()
    assert goodbye == Rumor(PEER, "", 2**62, left=True)


def test_it_ends_as_a_peer_did_that_had_heard_from_all() -> None:
    """Behind a hub, the word of the third may never come: the hub ends, and leaves."""
    end = Finishing()
    end.hear(rumors=(end.rumor(),))
    ready = end.state.ready
    end.hear(ended=b"what others were ready for")
    assert not end.engine.ending.end()
    end.hear(ready=b"later", ended=ready, rumors=(end.rumor(),))
    ended = end.engine.ending.end()
    assert ended
    assert set(ended.tokens) == {"me", "peer", "third"}
    assert end.state.ended == ready


def test_one_that_fell_silent_is_in_the_account_of_an_end_that_it_was_ready_for() -> None:
    end = among_two()
    ready = end.state.ready
    for _ in range(4):
        end.driven.tick(Timing().evict_after_s / 2)
        end.hear()
    assert on_the_roster(end) == {PEER}
    end.hear(ended=ready)
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0, "peer": 10, "third": 70}


def test_one_that_fell_silent_is_not_there_when_the_last_peer_leaves() -> None:
    end = among_two(quorum=5, steps=1)
    for _ in range(4):
        end.driven.tick(Timing().evict_after_s / 2)
        end.hear()
    end.engine.receive(end.driven.now, Goodbye(PEER))
    ended = end.engine.ending.end()
    assert ended
    assert (ended.agreed, ended.here, ended.needed) == (False, 2, 5)
    assert set(ended.tokens) == {"me", "peer"}


def test_one_that_fell_silent_and_is_back_is_in_the_account() -> None:
    end = among_two()
    end.hear(finishes=False, rumors=(end.rumor(),))
    for _ in range(4):
        end.driven.tick(Timing().evict_after_s / 2)
        end.hear(finishes=False)
    assert on_the_roster(end) == {PEER}
    end.hear(finishes=False, rumors=(end.rumor(),))
    assert on_the_roster(end) == {PEER, THIRD}
    end.hear(rumors=(end.rumor(),))
    end.hear(rumors=(end.rumor(left=True),))
    end.engine.receive(end.driven.now, Goodbye(PEER))
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0, "peer": 10, "third": 70}


def test_an_end_of_before_it_trained_on_is_none() -> None:
    end = Finishing()
    end.hear()
    ready = end.state.ready
    end.driven.step()
    end.engine.rest(end.driven.now, finishing=True)
    end.hear(finishes=False, ended=ready)
    assert not end.engine.ending.end()
    assert end.state.ended == b""


def test_an_end_on_anchors_that_are_not_ours_any_more_is_none() -> None:
    end = Finishing()
    end.hear()
    ready = end.state.ready
    end.state.fragments[0].lineage = grown(BASE)
    end.hear(grown(BASE), finishes=False, ended=ready)
    assert not end.engine.ending.end()
    end.engine.receive(end.driven.now, Goodbye(PEER))
    end.driven.tick(RETURN_BEATS * Timing().beat_s)
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0}


def test_an_account_is_of_the_last_anchors() -> None:
    end = Finishing()
    end.hear()
    end.state.fragments[0].lineage = grown(BASE)
    end.engine.receive(end.driven.now, Goodbye(PEER))
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0}


def digest_of(end: Finishing, *learners: PeerId) -> bytes:
    """The digest with which these learners end on the anchors of this one."""
    return content_digest(repr(sorted(learners)).encode(), end.state.anchors_digest())


def others_ready(end: Finishing, *with_me: PeerId, left: tuple[PeerId, ...] = ()) -> None:
    """The peer is ready to end with these learners alone, and knows that those have left."""
    known = tuple(Rumor(id, "", 1) for id in with_me if id != PEER)
    gone = tuple(Rumor(id, "", 2**62, left=True) for id in left)
    end.hear(ready=digest_of(end, PEER, *with_me), rumors=(*known, *gone))


def among_two(**facts: Any) -> Finishing:
    """A learner that is ready to end with its peer and with the third."""
    end = Finishing(**facts)
    end.hear(rumors=(end.rumor(),))
    assert end.state.ready
    end.engine.drain(end.driven.now)
    return end


def on_the_roster(end: Finishing) -> set[PeerId]:
    return {peer.id for peer in end.state.roster}


def test_it_leaves_out_a_latecomer_that_those_who_are_ready_do_not_know() -> None:
    """They admit nobody any more. Without this, nobody would ever end."""
    end = among_two()
    others_ready(end, ME)
    assert on_the_roster(end) == {PEER}
    assert end.state.ready == digest_of(end, ME, PEER)
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0, "peer": 10}
    events = [e for e in end.engine.drain(end.driven.now) if isinstance(e, Event)]
    assert "third evicted: others were ready to end when it came" in [e.text for e in events]


def test_those_that_are_ready_without_this_learner_leave_nobody_out() -> None:
    others = (THIRD, PeerId("fourth", 1), PeerId("fifth", 1))
    end = Finishing()
    end.hear(rumors=tuple(Rumor(id, "", 1, finishes=True) for id in others))
    assert end.state.ready
    others_ready(end, *others)
    assert on_the_roster(end) == {PEER, *others}


def test_it_leaves_out_nobody_for_another_model() -> None:
    end = among_two()
    other = content_digest(repr(sorted([ME, PEER])).encode(), b"other anchors")
    end.hear(ready=other, rumors=(Rumor(ME, "", 1),))
    assert on_the_roster(end) == {PEER, THIRD}


def test_it_leaves_out_nobody_while_it_is_not_ready_itself() -> None:
    end = Finishing(quorum=2, steps=1)
    end.hear(rumors=(end.rumor(),))
    assert not end.state.ready
    others_ready(end, ME)
    assert on_the_roster(end) == {PEER, THIRD}


def test_a_learner_that_has_left_is_not_left_out_but_says_so_itself() -> None:
    """Its tokens are in the account. Its goodbye may reach one learner after the other."""
    end = among_two()
    end.engine.linked(end.driven.now, THIRD, True)
    others_ready(end, ME, left=(THIRD,))
    assert on_the_roster(end) == {PEER, THIRD}
    end.engine.receive(end.driven.now, Goodbye(THIRD))
    others_ready(end, ME)
    ended = end.engine.ending.end()
    assert ended
    assert ended.tokens == {"me": 0, "peer": 10, "third": 70}


def test_the_greater_part_is_not_left_out() -> None:
    many = [PeerId(f"late-{n}", 1) for n in range(3)]
    for late in (many[:2], many):
        end = Finishing()
        end.hear(rumors=tuple(Rumor(id, "", 1, finishes=True) for id in late))
        assert end.state.ready
        others_ready(end, ME)
        assert on_the_roster(end) == ({PEER} if len(late) == 2 else {PEER, *late})
