from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.protocol.handshake import PROTOCOL, Hello, Life, Namesake, first_difference, refusal
from mend_optim.protocol.lineage import Entry, Key, PeerId
from mend_optim.protocol.messages import YOURS, Offer, Packet, Seal, nbytes

MODEL = (("number of parameters", "1"), ("parameter w", "[2] torch.float32"))
POLICY = (("sync_every", "128"), ("codec", "none"))
HERE = Hello(peer=PeerId("a", 1), address="a:1", model=MODEL, policy=POLICY)
THERE = Hello(peer=PeerId("b", 1), address="b:1", model=MODEL, policy=POLICY)
fingerprints = st.lists(
    st.tuples(st.sampled_from("vwxyz"), st.sampled_from("123")),
    max_size=5,
    unique_by=lambda field: field[0],
).map(tuple)


@given(fingerprints, fingerprints)
def test_fingerprints_agree_exactly_if_they_have_the_same_fields(
    mine: tuple[tuple[str, str], ...], theirs: tuple[tuple[str, str], ...]
) -> None:
    assert (first_difference(mine, theirs) is None) == (dict(mine) == dict(theirs))
    assert (first_difference(theirs, mine) is None) == (first_difference(mine, theirs) is None)


def test_the_first_field_that_differs_is_named_with_both_values() -> None:
    mine, theirs = (("a", "1"), ("b", "2"), ("c", "3")), (("a", "1"), ("b", "9"), ("c", "8"))
    assert first_difference(mine, theirs) == "b: here 2, there 9"


def test_a_field_that_one_side_lacks_is_absent_there() -> None:
    assert first_difference((("a", "1"), ("b", "2")), (("a", "1"),)) == "b: here 2, there absent"
    assert first_difference((("a", "1"),), (("a", "1"), ("b", "2"))) == "b: here absent, there 2"


def test_learners_of_one_model_and_policy_may_train_together() -> None:
    assert refusal(HERE, THERE) == refusal(THERE, HERE) == ""


def test_another_protocol_is_refused_before_anything_else() -> None:
    theirs = replace(THERE, protocol=PROTOCOL + 1, model=())
    assert refusal(HERE, theirs) == (
        f"protocol version: here {PROTOCOL}, there {PROTOCOL + 1};"
        " install the same mend-optim on both"
    )


def test_one_name_twice_is_refused() -> None:
    other = PeerId("a", 10**18)
    assert refusal(HERE, replace(THERE, peer=other)) == (
        "name: 'a' on both sides, here started 1970-01-01 00:00:00 UTC, there 2001-09-09 01:46:40"
        " UTC; give every learner a name of its own, or end one of the two"
    )


def test_a_visitor_with_the_name_of_the_learner_that_it_asks_is_answered() -> None:
    """Such as `mend check` with the credentials of the learner of its machine."""
    asks = replace(THERE, peer=PeerId(HERE.peer.name, 1), model=(), policy=(("sync_every", "?"),))
    for mine, theirs in ((HERE, asks), (asks, HERE)):
        assert refusal(mine, theirs).partition(":")[0] != "name"


def test_a_process_that_is_turned_away_hears_of_both_starts_and_the_remedy() -> None:
    known, other = PeerId("a", 10**18), PeerId("a", 5 * 10**17)
    text = Namesake(known, Life.ALIVE).reason(other)
    assert known.started in text
    assert other.started in text
    assert text.endswith("give each a name of its own, or end one of them")
    assert "is gone" in Namesake(known, Life.GONE).reason(other)
    assert "not given up yet" in Namesake(known, Life.SUSPECTED).reason(other)


def test_starts_in_one_second_are_told_apart() -> None:
    known, other = PeerId("a", 10**18 + 250 * 10**6), PeerId("a", 10**18)
    text = Namesake(known, Life.ALIVE).reason(other)
    assert f"started {known.started}, so the one started 250 ms earlier is turned away" in text


def test_another_model_is_named_before_another_policy() -> None:
    theirs = replace(THERE, model=(MODEL[0], ("parameter w", "[3] torch.float32")), policy=())
    assert refusal(HERE, theirs) == (
        "parameter w: here [2] torch.float32, there [3] torch.float32; build the same model on both"
    )


def test_buffers_correspond_by_their_order() -> None:
    def with_buffers(peer: Hello, **buffers: str) -> Hello:
        fields = tuple((f"buffer {name}", kind) for name, kind in buffers.items())
        told = (("buffers", f"{len(buffers)} tensors"),) if buffers else ()
        return replace(peer, model=MODEL + fields, policy=POLICY + told)

    here = with_buffers(HERE, mean="[3] torch.float32", n="[] torch.int64")
    assert refusal(here, with_buffers(THERE, m="[3] torch.float32", k="[] torch.int64")) == ""
    assert refusal(here, with_buffers(THERE, mean="[3] torch.float32", k="[] torch.int32")) == (
        "buffer n, there buffer k: here [] torch.int64, there [] torch.int32; build the same model "
        "on both"
    )
    assert refusal(here, THERE) == (
        "buffers: here 2 tensors, there absent; pass the same buffers to both"
    )


def test_another_policy_is_named() -> None:
    theirs = replace(THERE, policy=(POLICY[0], ("codec", "bf16")))
    assert refusal(HERE, theirs) == ("codec: here none, there bf16; pass the same codec to both")


def test_the_size_of_a_message_is_that_of_its_sections() -> None:
    assert nbytes({}) == 0
    assert (
        nbytes(
            {
                "anchor": Packet("none", 1, memoryview(b"1234")),
                "velocity": Packet("none", 0, memoryview(b"")),
            }
        )
        == 4
    )


def test_an_offer_resent_is_the_same_offer() -> None:
    """Its bytes are never compared: they may be large, and on their way."""
    offer = Offer(
        peer=PeerId("a", 1),
        fragment=0,
        seq=7,
        tokens=30,
        steps=3,
        genesis=b"g",
        key=Key(0, 0, b""),
        due=True,
    )
    assert replace(offer, sections={"delta": Packet("none", 0, memoryview(b""))}) == offer
    assert offer.entry == Entry(PeerId("a", 1), 7, 30, 3)


A, B, C = (PeerId(name, 1) for name in "abc")
ENTRIES = (Entry(A, 3, 10, 1), Entry(B, 4, 10, 1), Entry(C, 3, 0, 0))
RELAYED = {
    name: Packet("packed", 8, memoryview(bytes(size)))
    for name, size in (("0", 24), ("1", 20), ("moment:m", 8))
}
SEAL = Seal(
    sealer=B,
    fragment=0,
    base=b"",
    key=Key(1, 1, b""),
    members=ENTRIES,
    weights=(0.5, 0.5, 0.0),
    absent=(),
    reason="",
    payload=b"",
    sections=RELAYED,
)


def offered(peer: PeerId, seq: int, packet: Packet | None = None) -> Offer:
    return Offer(
        peer=peer,
        fragment=0,
        seq=seq,
        tokens=10,
        steps=1,
        genesis=b"",
        key=Key(0, 0, b""),
        due=True,
        sections={"delta": packet} if packet else {},
    )


def test_a_seal_goes_to_an_author_without_the_packet_that_it_has() -> None:
    sent = SEAL.without(A, 3)
    assert sent == SEAL
    assert [(name, p.codec, p.numel, p.nbytes) for name, p in sent.sections.items()] == [
        ("0", YOURS, 8, 0),
        ("1", "packed", 8, 20),
        ("moment:m", "packed", 8, 8),
    ]
    assert sent.completed(offered(A, 3, RELAYED["0"])).sections == RELAYED
    assert sent.completed(offered(A, 4)).sections == sent.sections  # nothing to complete it with


def test_whoever_made_another_offer_gets_all_of_a_seal() -> None:
    for peer, seq in ((A, 4), (B, 3), (C, 3), (PeerId("a", 2), 3)):
        assert SEAL.without(peer, seq).sections == RELAYED
    merged = replace(SEAL, sections={"merged": RELAYED["0"]})
    assert merged.without(A, 3).sections == merged.sections
    assert merged.completed(offered(A, 3, RELAYED["1"])).sections == merged.sections
