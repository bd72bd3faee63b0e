"""A network that passes beats and drops what is larger is told of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.ledger import Event
from mend_optim.protocol.messages import Goodbye, Offer, Want
from mend_optim.protocol.transfer_fault import BROKEN, Cause, TransferFault
from tests.support.engines import (
    BASE,
    ME,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    seal_of,
    state_of,
)

#: For as long a transfer may stand still.
STILL_S = 60.0
WANT = Want(ME, 0, BASE.digest)


def stuck(engine: DrivenEngine) -> list[Event]:
    return engine.events("stuck", "unstuck")


def pass_beats(engine: DrivenEngine, seconds: float, *, trains: bool = True) -> None:
    for _ in range(round(seconds)):
        engine.beat(step=round(engine.now) if trains else 1)
        engine.tick(1.0)


def offered() -> tuple[DrivenEngine, Offer]:
    """A learner that has sent its offer to the sealer, and that offer."""
    engine = among_peers()
    engine.offer()
    ((_, offer),) = engine.sent(Offer)
    return engine, offer


def fail(engine: DrivenEngine, *messages: Offer | Want, trains: bool = True) -> list[Event]:
    """Each of these fails after it has stood still, and then there is news of it, or not."""
    for message in messages:
        pass_beats(engine, STILL_S, trains=trains)
        engine.engine.undelivered(engine.now, PEER, message, BROKEN)
    pass_beats(engine, 2.0, trains=trains)  # the offer is sent again
    return stuck(engine)


def test_offers_that_never_arrive_at_a_live_peer_are_told_once() -> None:
    engine, offer = offered()
    assert fail(engine, offer) == []
    (event,) = fail(engine, offer)
    assert event.kind == "stuck"
    assert event.facts == {
        "peer": "peer",
        "incarnation": 1,
        "for_s": STILL_S + 2,
        "cause": "broken",
        "refusal": "",
    }
    assert "peer is heard, but no offer of this learner gets through to it" in event.text
    assert fail(engine, offer, offer, offer) == []
    engine.engine.delivered(engine.now, PEER, offer)
    (event,) = stuck(engine)
    assert (event.kind, event.lifts) == ("unstuck", "stuck")
    assert event.facts == {"peer": "peer", "incarnation": 1}


def test_anchors_that_never_come_from_a_live_peer_are_told() -> None:
    engine = among_peers()
    assert fail(engine, WANT) == []
    (event,) = fail(engine, WANT)
    assert "peer is heard, but no anchor comes from it" in event.text
    engine.receive(state_of(grown(BASE)))
    assert [event.kind for event in stuck(engine)] == ["unstuck"]


def test_a_peer_that_takes_no_step_may_have_no_anchor_to_give() -> None:
    engine = among_peers()
    assert fail(engine, WANT, WANT, WANT, trains=False) == []
    (event,) = fail(engine, WANT)
    assert event.kind == "stuck"


def test_failures_that_lie_far_apart_are_not_one() -> None:
    engine = among_peers()
    assert fail(engine, WANT) == []
    pass_beats(engine, 10 * STILL_S)
    assert fail(engine, WANT) == []
    (event,) = fail(engine, WANT)
    assert event.facts["for_s"] == STILL_S + 2


@pytest.mark.parametrize("for_s", [1.5, 3.0, 10.0])
def test_attempts_that_take_long_are_one_after_the_other(for_s: float) -> None:
    """A transfer that moves now and then may fail after an hour."""
    engine, offer = offered()
    for _ in range(3):
        pass_beats(engine, for_s * STILL_S)
        engine.engine.undelivered(engine.now, PEER, offer, BROKEN)
        pass_beats(engine, 2.0)
    (event,) = stuck(engine)
    assert event.facts["for_s"] == for_s * STILL_S + 2


def test_offers_to_a_peer_that_takes_no_step_arrive_all_the_same() -> None:
    engine, offer = offered()
    (event,) = fail(engine, offer, offer, trains=False)
    assert event.kind == "stuck"


@pytest.mark.parametrize("message", [seal_of(BASE), state_of(grown(BASE))])
def test_an_anchor_that_comes_in_between_shows_that_others_may(message: object) -> None:
    engine = among_peers()
    fail(engine, WANT)
    engine.receive(message)  # type: ignore[arg-type]
    assert fail(engine, WANT) == []


def test_an_offer_that_arrives_in_between_shows_that_others_may() -> None:
    engine, offer = offered()
    fail(engine, offer)
    engine.engine.delivered(engine.now, PEER, offer)
    engine.engine.undelivered(
        engine.now, PEER, offer, BROKEN
    )  # the stream broke before the seal came
    pass_beats(engine, 2.0)
    assert fail(engine, offer) == []


def test_a_stream_that_breaks_before_the_seal_has_still_brought_the_offer() -> None:
    engine, offer = offered()
    for _ in range(3):
        engine.engine.delivered(engine.now, PEER, offer)
        assert fail(engine, offer) == []


def test_a_small_fragment_that_gets_through_says_nothing_of_a_large_one() -> None:
    """A slow link may bring an anchor of buffers in a minute, and one of the model never."""
    engine = among_peers(fragments=2)
    small = replace(state_of(BASE), fragment=1)
    assert fail(engine, WANT) == []
    engine.receive(small)
    assert [event.kind for event in fail(engine, WANT)] == ["stuck"]
    engine.receive(small)
    assert stuck(engine) == []
    engine.receive(state_of(grown(BASE)))
    assert [event.kind for event in stuck(engine)] == ["unstuck"]


def test_a_fragment_that_failed_long_ago_holds_back_no_all_clear() -> None:
    """Another peer seals it by now, so nothing of it goes that way any more."""
    engine = among_peers(fragments=2)
    fail(engine, WANT)
    engine.engine.undelivered(engine.now, PEER, replace(WANT, fragment=1), BROKEN)
    assert [event.kind for event in fail(engine, WANT)] == ["stuck"]
    engine.receive(state_of(grown(BASE)))
    assert stuck(engine) == []
    pass_beats(engine, 2 * STILL_S)
    engine.receive(state_of(grown(grown(BASE))))
    assert [event.kind for event in stuck(engine)] == ["unstuck"]


def test_many_fragments_that_fail_are_told_as_one() -> None:
    engine = among_peers(fragments=2)
    for _ in range(3):
        pass_beats(engine, STILL_S)
        for p in range(2):
            engine.engine.undelivered(engine.now, PEER, replace(WANT, fragment=p), BROKEN)
    assert [event.kind for event in stuck(engine)] == ["stuck"]


def test_one_way_says_nothing_of_the_other() -> None:
    engine, offer = offered()
    fail(engine, offer)
    engine.receive(state_of(BASE))
    (event,) = fail(engine, offer)
    assert event.kind == "stuck"


def test_a_peer_that_is_suspected_or_gone_says_nothing() -> None:
    engine = among_peers()
    fail(engine, WANT)
    for _ in range(5):
        engine.beat(THIRD, address="third:1")
        engine.tick(1.0)
    engine.engine.undelivered(engine.now, PEER, WANT, BROKEN)
    assert fail(engine, WANT) == []
    engine.receive(Goodbye(PEER))
    engine.engine.undelivered(engine.now + 9 * STILL_S, PEER, WANT, BROKEN)
    assert stuck(engine) == []


def test_what_failed_before_a_peer_was_suspected_does_not_count() -> None:
    engine = among_peers()
    fail(engine, WANT)
    for _ in range(round(1.5 * STILL_S)):
        engine.beat(THIRD, address="third:1")
        engine.tick(1.0)
    assert PEER not in engine.engine.state.roster.alive()
    pass_beats(engine, 2.0)
    engine.engine.undelivered(engine.now, PEER, WANT, BROKEN)
    assert stuck(engine) == []


def test_that_it_was_told_outlives_a_suspicion() -> None:
    engine = among_peers()
    fail(engine, WANT)
    assert [event.kind for event in fail(engine, WANT)] == ["stuck"]
    for _ in range(20):
        engine.beat(THIRD, address="third:1")
        engine.tick(1.0)
    assert PEER not in engine.engine.state.roster.alive()
    pass_beats(engine, 2.0)
    engine.receive(state_of(grown(BASE)))
    assert [event.kind for event in stuck(engine)] == ["unstuck"]


@pytest.mark.parametrize("kind", [Offer, Want])
def test_transfers_that_the_peer_ends_itself_are_told_with_its_words(kind: type) -> None:
    """It may have no room, or no answer. Its word came, so the network is not to blame."""
    engine, offer = offered()
    for _ in range(2):
        pass_beats(engine, STILL_S)
        message = offer if kind is Offer else WANT
        fault = TransferFault(Cause.ENDED, "no\nroom")
        engine.engine.undelivered(engine.now, PEER, message, fault)
        pass_beats(engine, 2.0)
    (event,) = stuck(engine)
    assert event.text.endswith(
        "peer itself has ended the last transfer, with 'no\\nroom': look at its log and its "
        "status().refused"
    )
    assert (event.facts["cause"], event.facts["refusal"]) == ("ended", "no\nroom")


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (Cause.BROKEN, "10 kB a second"),
        (Cause.DAMAGED, "look for what damages them between peer and this machine"),
        (Cause.UNTRUSTED, "does not accept the certificate that peer shows now"),
        (Cause.UNANSWERED, "peer has not answered the last question"),
    ],
)
def test_each_cause_has_its_remedy(cause: Cause, remedy: str) -> None:
    engine = among_peers()
    for _ in range(2):
        pass_beats(engine, STILL_S)
        engine.engine.undelivered(engine.now, PEER, WANT, TransferFault(cause))
        pass_beats(engine, 2.0)
    (event,) = stuck(engine)
    assert remedy in event.text
    assert event.facts["cause"] == cause.value


def test_a_stop_of_this_learner_is_not_counted() -> None:
    engine = among_peers()
    engine.engine.undelivered(engine.now, PEER, WANT, BROKEN)
    engine.now += 2 * STILL_S
    engine.engine.tick(engine.now)
    engine.beat(step=100)
    engine.engine.undelivered(engine.now, PEER, WANT, BROKEN)
    assert stuck(engine) == []


def test_nothing_is_told_before_a_learner_has_joined() -> None:
    engine = among_peers()
    engine.engine.state.joined = False
    peer = engine.engine.state.roster.find(PEER)
    assert peer is not None
    assert peer.beat is not None
    for step in range(3):
        peer.beat = replace(peer.beat, step=step)
        engine.engine.undelivered(engine.now, PEER, WANT, BROKEN)
        for _ in range(round(STILL_S)):
            engine.now += 1.0
            engine.engine.state.stops.look(engine.now)
            engine.engine.state.roster.touch(engine.now, PEER)
    assert stuck(engine) == []
