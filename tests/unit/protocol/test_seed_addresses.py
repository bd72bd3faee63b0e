"""A seed's addresses: which to dial, and what they tell of the seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.protocol.seed_addresses import Answer, SeedAddresses
from mend_optim.protocol.unreached import Unreached

V4 = [f"10.0.0.{n}:1" for n in range(4)]
V6 = [f"[fd00::{n}]:1" for n in range(3)]
LEARNER, ITSELF = Answer.LEARNER, Answer.ITSELF
REFUSED, ROUTE, ANSWER = Unreached.REFUSED, Unreached.ROUTE, Unreached.ANSWER

listings = st.lists(st.sampled_from(V4 + V6), max_size=5)
outcomes = st.sampled_from([*Answer, *Unreached])
steps = st.lists(st.one_of(listings, st.tuples(st.sampled_from(V4 + V6), outcomes)), max_size=20)


class Twin:
    """The same from the whole history: the last listing, and what was noted of each of its
    addresses since it has been in every listing."""

    def __init__(self) -> None:
        self.history: list[list[str] | tuple[str, Answer | Unreached]] = []

    def listed(self) -> list[str]:
        return next((list(dict.fromkeys(s)) for s in self.history[::-1] if isinstance(s, list)), [])

    def outcome(self, address: str) -> Answer | Unreached | None:
        for step in reversed(self.history):
            if isinstance(step, list):
                if address not in step:
                    return None
            elif step[0] == address:
                return step[1]
        return None

    def verdict(self) -> Answer | Unreached | None:
        here = {address: self.outcome(address) for address in self.listed()}
        if LEARNER in here.values():
            return LEARNER
        if not here or None in here.values():
            return None
        v4 = {at: outcome for at, outcome in here.items() if at in V4}
        v6 = {at: outcome for at, outcome in here.items() if at in V6}
        for mine, other in ((v4, v6), (v6, v4)):
            others = set(other.values())
            if set(mine.values()) == {ITSELF} and (ITSELF not in others or others == {ITSELF}):
                return ITSELF
        order = ["NAME", "ROUTE", "ANSWER", "REFUSED"]
        order += [cause.name for cause in Unreached if cause.name not in order]
        causes = [outcome.name for outcome in here.values() if isinstance(outcome, Unreached)]
        return Unreached[sorted(causes, key=order.index)[-1]]


@given(steps)
def test_it_does_what_its_slow_twin_does(steps):
    seed, twin = SeedAddresses(), Twin()
    for step in steps:
        before = twin.listed()
        twin.history.append(step)
        if isinstance(step, list):
            assert seed.renew(step) == [at for at in twin.listed() if at not in before]
        else:
            if step[0] not in before:
                twin.history.pop()  # of an address that it has not
            seed.note(*step)
        assert seed.verdict() == twin.verdict()
        assert [at for at in V4 + V6 if at in seed] == [at for at in V4 + V6 if at in twin.listed()]
        assert len(seed) == len(twin.listed())


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ({V4[0]: REFUSED}, REFUSED),
        ({V6[0]: ROUTE, V4[0]: REFUSED}, REFUSED),  # a machine without IPv6
        ({V6[0]: REFUSED, V4[0]: ITSELF}, ITSELF),  # this machine's name
        ({V4[0]: ITSELF, V4[1]: REFUSED}, REFUSED),  # a service: another one is still starting
        ({V4[0]: ITSELF, V4[1]: REFUSED, V6[0]: ITSELF, V6[1]: ROUTE}, REFUSED),
        ({V4[0]: ITSELF, V4[1]: LEARNER, V4[2]: ANSWER}, LEARNER),
        ({V4[0]: ITSELF, V4[1]: None}, None),
        ({}, None),
    ],
)
def test_the_verdict_on_a_name(outcomes, verdict):
    seed = SeedAddresses()
    seed.renew(list(outcomes))
    for address, outcome in outcomes.items():
        if outcome:
            seed.note(address, outcome)
    assert seed.verdict() == verdict


def test_an_address_that_comes_back_is_dialled_anew():
    """It may be another machine's by then, even if it was this learner's."""
    seed = SeedAddresses()
    assert seed.renew(V4[:2]) == V4[:2]
    seed.note(V4[0], ITSELF)
    assert seed.renew(V4[1:2]) == []
    seed.note(V4[0], ITSELF)
    assert seed.renew(V4[:2]) == V4[:1]
    assert seed.verdict() is None
