"""Messages as Hypothesis makes them up."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from mend_optim.protocol.handshake import Hello, Life, Namesake
from mend_optim.protocol.lineage import (
    DIGEST_BYTES,
    INCARNATIONS,
    MOST_ROLLBACKS,
    Claim,
    Entry,
    Key,
    Lineage,
    PeerId,
    Rollback,
)
from mend_optim.protocol.messages import (
    Beat,
    Call,
    Goodbye,
    Level,
    Offer,
    Packet,
    Report,
    Rumor,
    Seal,
    State,
    Want,
)
from mend_optim.protocol.peer_limits import COUNTER_LIMIT
from mend_optim.transport.limits import DIGEST_LIMIT

COUNTER = st.integers(0, COUNTER_LIMIT)
U64 = st.integers(0, 2**64 - 1)
TEXT = (
    st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), max_size=40)
    .map(partial(unicodedata.normalize, "NFC"))
    .filter(str.isprintable)
)
NAME = st.just("é") | TEXT.map(lambda text: text or "name")
DIGEST = st.binary(max_size=DIGEST_LIMIT)
NUMBER = st.floats(0, allow_infinity=False, allow_nan=False)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False)
# Of first weights, or of a rollback.
GENESIS = st.binary(max_size=DIGEST_BYTES) | st.builds(
    lambda number, by: Rollback(number, by).genesis(), st.integers(1, MOST_ROLLBACKS), NAME
)
LEVEL = st.builds(Level, POSITIVE, POSITIVE, NUMBER, st.integers(0, 2**32 - 1))
FRAGMENT = st.integers(0, 2**32 - 1)
ID = st.builds(PeerId, NAME, st.integers(0, INCARNATIONS - 1))
KEY = st.builds(Key, COUNTER, COUNTER, DIGEST)
HELD = st.lists(st.tuples(ID, COUNTER), max_size=3).map(tuple)
FIELDS = st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple)
PACKET = st.builds(
    lambda codec, numel, data: Packet(codec, numel, memoryview(data)),
    NAME,
    U64,
    st.binary(max_size=64),
)
SECTIONS = st.dictionaries(NAME, PACKET, max_size=4)
KNOWN_SECTIONS = st.dictionaries(
    st.sampled_from(["delta", "moment.exp_avg", "moment.exp_avg_sq", "0", "17"]), PACKET, max_size=4
)
MEMBERS = st.lists(
    st.tuples(
        st.builds(Entry, ID, COUNTER, COUNTER, COUNTER),
        st.floats(0, 1),
        st.tuples(COUNTER, COUNTER),
    ),
    max_size=4,
)

HELLO = st.builds(
    Hello,
    peer=ID,
    address=TEXT,
    model=FIELDS,
    policy=FIELDS,
    protocol=st.integers(0, 2**32 - 1),
    refusal=TEXT,
    namesake=st.none() | st.builds(Namesake, ID, st.sampled_from(Life)),
)
BEAT = st.builds(
    Beat,
    peer=ID,
    address=TEXT,
    count=COUNTER,
    step=COUNTER,
    tokens=COUNTER,
    seconds_per_step=NUMBER,
    training=st.booleans(),
    genesis=GENESIS,
    reports=st.lists(st.builds(Report, KEY, HELD, DIGEST), max_size=3).map(tuple),
    roster=st.lists(st.builds(Rumor, ID, TEXT, COUNTER, st.booleans()), max_size=3).map(tuple),
    ping=COUNTER,
    pong=COUNTER,
    position=COUNTER,
    paces=st.lists(st.tuples(NAME, LEVEL), max_size=3).map(tuple),
    latency=COUNTER,
    turned_away=st.lists(ID, max_size=3).map(tuple),
    takes_joint=st.integers(0, 2**32 - 1),
)
WANT = st.builds(Want, ID, FRAGMENT, DIGEST)
CONTROL = st.one_of(BEAT, st.builds(Goodbye, ID), st.builds(Call, ID, FRAGMENT, KEY), WANT)
ONE_OFFER = st.builds(
    lambda offer, claim: replace(
        offer, seq=max(offer.seq, claim.settled + 1) if claim else offer.seq, inherited=claim
    ),
    st.builds(
        Offer,
        peer=ID,
        fragment=FRAGMENT,
        seq=COUNTER,
        tokens=COUNTER,
        steps=COUNTER,
        rate=st.floats(0, allow_infinity=False),
        genesis=GENESIS,
        key=KEY,
        due=st.booleans(),
        sections=KNOWN_SECTIONS,
        follows=COUNTER,
        again=st.tuples(COUNTER, COUNTER),
    ),
    st.none() | st.builds(Claim, ID, st.integers(0, COUNTER_LIMIT - 1)),
)


def _joint(offers: list[Offer]) -> Offer:
    """The first one, with the others in it."""
    first, *rest = offers
    return replace(
        first, others=tuple(replace(o, fragment=first.fragment, sections={}) for o in rest)
    )


OFFER = ONE_OFFER | st.lists(
    ONE_OFFER, min_size=2, max_size=4, unique_by=lambda offer: offer.peer.name
).map(_joint)
SEAL = st.builds(
    lambda of, **rest: Seal(
        members=tuple(m for m, _, _ in of),
        weights=tuple(w for _, w, _ in of),
        shares=tuple(s for _, _, s in of) if any(any(s) for _, _, s in of) else (),
        **rest,
    ),
    MEMBERS,
    sealer=ID,
    fragment=FRAGMENT,
    base=DIGEST,
    key=KEY,
    absent=st.lists(NAME, max_size=3).map(tuple),
    reason=TEXT,
    payload=DIGEST,
    period=COUNTER,
    sections=SECTIONS,
)
LINEAGE = st.builds(
    Lineage,
    tokens=COUNTER,
    version=COUNTER,
    digest=DIGEST,
    genesis=GENESIS,
    merged=st.dictionaries(ID, COUNTER, max_size=4),
)
STATE = st.builds(
    State,
    peer=ID,
    fragment=FRAGMENT,
    lineage=LINEAGE,
    content=DIGEST,
    period=COUNTER,
    sections=SECTIONS,
)
BULK = st.one_of(OFFER, SEAL, STATE)
