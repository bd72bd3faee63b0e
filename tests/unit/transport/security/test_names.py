"""Names in certificates: each learner has one URI and one host of its own, and nothing else passes
for them."""

from __future__ import annotations

import base64
import hashlib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import PeerError
from mend_optim.transport.security.names import ANY_LEARNER, host_of_name, name_in, uri_of

SIGNS = st.characters(codec="utf-8", exclude_categories=["C", "Z"])
NAMES = st.text(SIGNS, min_size=1).filter(lambda name: len(name.encode()) <= 200)
#: With letters that are not as NFC writes them.
ANY_NAMES = NAMES | st.lists(st.sampled_from(["e\u0301", "\u212b", "\u2000", "a"]), min_size=1).map(
    "".join
)


@given(ANY_NAMES)
def test_a_name_comes_back_from_its_uri_if_peers_may_have_it(name: str) -> None:
    uri = uri_of(name)
    if name.isprintable() and unicodedata.is_normalized("NFC", name):
        assert name_in([uri]) == name
    else:
        with pytest.raises(PeerError, match="not printable text in NFC"):
            name_in([uri])


@given(NAMES, NAMES, st.binary(min_size=1), st.binary(min_size=1))
def test_a_host_is_of_one_name_and_one_authority(a: str, b: str, key: bytes, other: bytes) -> None:
    digest = hashlib.sha256(key + a.encode()).digest()
    label = host_of_name(a, key).partition(".")[0]
    assert base64.b32decode(label[1:].upper() + "====") == digest
    assert (host_of_name(a, key) == host_of_name(b, key)) == (a == b)
    if key + a.encode() != other + a.encode():
        assert host_of_name(a, key) != host_of_name(a, other)


def test_hosts_are_names_of_the_domain_system() -> None:
    host = host_of_name("ä" * 100, b"key")
    assert len(host.partition(".")[0]) == 53 <= 63
    assert host == host.lower()
    assert host.partition(".")[2] == ANY_LEARNER.partition(".")[2]


@pytest.mark.parametrize(
    ("uris", "fault"),
    [
        ([], "has 0 URIs; a learner's has exactly one"),
        ([uri_of("a"), uri_of("b")], "has 2 URIs; a learner's has exactly one"),
        ([uri_of("a"), uri_of("a")], "has 2 URIs; a learner's has exactly one"),
        (["spiffe://there/a"], "is no learner's"),
        (["MEND-OPTIM:YQ"], "is no learner's"),
        (["mend-optim:Y"], "holds no name"),
        (["mend-optim:Y!Q"], "holds no name"),
        (["mend-optim:_w"], "holds no name"),
        (["mend-optim:"], "name is empty"),
        (["mend-optim:YQ=="], "is misspelt"),
        (["mend-optim:YR"], "is misspelt"),
        (["mend-optim:Cg"], "is not printable text in NFC"),
    ],
)
def test_what_is_not_one_name_is_refused(uris: list[str], fault: str) -> None:
    with pytest.raises(PeerError, match=fault):
        name_in(uris)
