"""Offers, seals and anchors that are well formed and false, and accidents in the weights: more rows
of the audit on two real learners."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import grpc
import pytest
import torch

from mend_optim.codecs.packing import raw
from mend_optim.engine.seal_checks import MOST_TOKENS
from mend_optim.membership.sealers import sealer_of
from mend_optim.protocol.lineage import MOST_AUTHORS, Entry, Key, Lineage, PeerId
from mend_optim.protocol.messages import Offer, Seal, State
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.frames import to_frames
from tests.hostile.attacker import Attacker, control, header
from tests.hostile.ground import NUMEL, Ground, await_refusal
from tests.hostile.listener import Listener
from tests.hostile.test_attacks import held

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
INVALID = grpc.StatusCode.INVALID_ARGUMENT
#: A learner of this name seals the fragment of the model, beside "a" and "b".
NAMES = (f"sealer {n}" for n in range(99))
SEALER = next(name for name in NAMES if sealer_of(0, ["a", "b", name]) == name)


def zeros(at: dict[int, float] | None = None) -> torch.Tensor:
    """A delta of nothing, but for some of its values."""
    values = torch.zeros(NUMEL)
    for index, value in (at or {}).items():
        values[index] = value
    return values


def offer_of(ground: Ground, author: Attacker, delta: torch.Tensor, **facts: Any) -> Offer:
    known = {"seq": 1, "tokens": 10, "steps": 10, "due": True, "key": Key(0, 0, b"")}
    return Offer(
        peer=author.id,
        fragment=0,
        genesis=ground.genesis,
        sections={"delta": raw(delta)},
        **{**known, **facts},
    )


@held
def test_m1c_an_offer_that_is_not_finite_is_refused(ground: Ground, mallory: Attacker) -> None:
    values = (float("nan"), float("inf"), 2.0**127)
    for seq, value in enumerate(values, start=1):
        mallory.hello()  # on a busy machine "a" may have forgotten the last one
        mallory.offers(offer_of(ground, mallory, zeros({5: value}), seq=seq))
        with ground.lasts():
            await_refusal(ground.a, mallory.me.name, "offer refused: Values are not finite", seq)


def test_m2_tokens_beyond_measure_are_merged_by_nobody(ground: Ground) -> None:
    """At the door of "b", which seals."""
    for name, tokens in (("m2 most", MOST_TOKENS + 1), ("m2 rate", 10 * 1000**2)):
        with ground.held(), ground.attacker(name, at=ground.b) as mallory:
            mallory.hello()
            mallory.control(mallory.beat())
            mallory.offers(offer_of(ground, mallory, zeros(), tokens=tokens))
            await_refusal(ground.b, name, "tokens")


@held
def test_m3b_an_anchor_of_all_tokens_is_refused(ground: Ground, mallory: Attacker) -> None:
    lineage = pb.Lineage(key=pb.Key(tokens=2**63, version=2, digest=b"m" * 16))
    lineage.genesis = ground.genesis
    anchor = pb.State(peer=mallory.me, lineage=lineage, content=b"c" * 16)
    call = mallory.open("Push", header([("anchor", 4 * NUMEL)], state=anchor))
    assert call.ended()
    assert call.code is INVALID
    assert "tokens" in call.details


@held
def test_l8_an_anchor_of_too_many_authors_is_refused(ground: Ground, mallory: Attacker) -> None:
    merged = {PeerId(f"author {n}", n): 1 for n in range(2 * MOST_AUTHORS)}
    beyond = Lineage(tokens=2**40, version=9, digest=b"m" * 16, genesis=ground.genesis)
    call = mallory.push(anchor_of(mallory, replace(beyond, merged=merged)))
    assert call.ended()
    assert call.code is not grpc.StatusCode.OK, call.details


@held
def test_m1f_nobody_takes_an_anchor_that_it_did_not_ask_for(
    ground: Ground, mallory: Attacker
) -> None:
    mallory.control(mallory.beat())
    greater = Lineage(tokens=2**40, version=2**20, digest=b"m" * 16, genesis=ground.genesis)
    for lineage in (greater, replace(greater, genesis=b"\xff" * 16)):
        call = mallory.push(anchor_of(mallory, lineage))
        assert call.ended()
        with ground.lasts():
            pass
    await_refusal(ground.a, mallory.me.name, "pushed fragment", 2)
    assert ground.a.report()["genesis"] == ground.genesis.hex()
    assert ground.a.rounds[-1]["tokens"] < greater.tokens


def anchor_of(author: Attacker, lineage: Lineage) -> State:
    sections = {"anchor": raw(torch.ones(NUMEL))}
    return State(peer=author.id, fragment=0, lineage=lineage, content=b"c" * 16, sections=sections)


def test_m4_a_false_seal_is_refused_and_its_sealer_named(ground: Ground) -> None:
    """By a learner that "a" takes for the sealer, and on the anchor that "a" has."""
    with ground.held(), ground.attacker(SEALER) as mallory:
        other = Entry(mallory.id, 1, 10, 10)
        own = Entry(PeerId("a", ground.hello.peer.incarnation), 10**6, 10, 10)
        false: dict[str, dict[str, Any]] = {
            "its weights do not follow": {"members": (other,), "weights": (0.5,)},
            "it merges work twice": {"members": (other, other._replace(seq=2))},
            "its lineage does not follow": {"members": (other,), "key": Key(2**40, 9, b"k" * 16)},
            "it merges what this learner never offered": {"members": (own,)},
            " has N tokens; the limit is": {"members": (other._replace(tokens=MOST_TOKENS + 1),)},
        }

        def seals(offer: pb.Offer) -> Iterator[bytes]:
            for facts in false.values():
                yield from to_frames(seal_of(mallory, offer, **facts))

        with Listener(mallory, seals) as there:
            beat = seal_in_the_eyes_of_a(ground, mallory, there)
            for words in false:
                await_refusal(ground.a, SEALER, words, meanwhile=beat)


def seal_in_the_eyes_of_a(ground: Ground, mallory: Attacker, there: Listener) -> Callable[[], None]:
    """Returns what is to be called again and again: "a" gives its offers to nobody that has fallen
    silent."""
    mallory.hello(address=there.address)
    hears = [pb.Rumor(peer=ground.hello.peer, count=2**40)]  # else it would pass for deaf
    reports = [pb.Report(key=pb.Key())]
    shown = {"genesis": ground.genesis, "reports": reports, "roster": hears}
    counts, stream = count(1), mallory.control()

    def beat() -> None:
        told = mallory.beat(address=there.address, count=next(counts), **shown)
        stream.put(control(told))

    beat()
    return beat


def seal_of(mallory: Attacker, offer: pb.Offer, **facts: Any) -> Seal:
    """A seal on the anchor that the author of an offer had."""
    key, payload, members = offer.key, b"p" * 16, facts["members"]
    base = Lineage(tokens=key.tokens, version=key.version, digest=key.digest, genesis=offer.genesis)
    known = {
        "key": base.seal(members, payload).key,
        "weights": tuple(1 / len(members) for _ in members),
    }
    return Seal(
        sealer=mallory.id,
        fragment=0,
        base=base.digest,
        absent=(),
        reason="all_present",
        payload=payload,
        sections={"merged": raw(torch.ones(NUMEL))},
        **{**known, **facts},
    )


def test_m7_an_offer_is_merged_once_however_often_it_comes(ground: Ground) -> None:
    name = "m7"
    with ground.held(merged=("a", "b", name)), ground.attacker(name, at=ground.b) as mallory:
        mallory.hello()
        mallory.control(mallory.beat())
        offer = offer_of(ground, mallory, zeros())
        before = len(ground.b.rounds)
        for _ in range(100):
            mallory.offers(offer)
        ground.supervisor.until(lambda: merged_of(ground, name, before), f"{name} to be merged")
        for _ in range(20):
            mallory.offers(offer)
        with ground.lasts():
            pass
        assert merged_of(ground, name, before) == 1


def merged_of(ground: Ground, name: str, since: int) -> int:
    """In how many rounds there was work of that name."""
    members = [m for round in ground.b.rounds[since:] for m in round["members"] if m["steps"]]
    return sum(member["name"] == name for member in members)


def test_m9_an_accident_at_one_learner_stays_there(ground: Ground) -> None:
    with ground.held():
        seen = len(ground.b.events["outsized"])
        ground.b.order("ruin", factor=1e4)
        ground.b.await_event("outsized", seen)
        with ground.lasts():
            pass


def test_m9b_weights_that_are_ruined_are_healed(ground: Ground) -> None:
    with ground.held():
        seen = len(ground.b.events["healed"])
        ground.b.order("ruin", factor=float("nan"))
        ground.b.await_event("healed", seen)
        with ground.lasts():
            pass
    assert float.fromhex(ground.b.losses[-1]) < 1e3
