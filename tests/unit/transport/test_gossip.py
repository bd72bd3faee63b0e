"""A learner dials at once those of whom a peer's beat is the first to tell. Its own next beat is
far away here."""

from __future__ import annotations

from typing import Any

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Rumor
from mend_optim.protocol.timing import Timing
from tests.unit.transport.test_grpc_transport import Crew, Learner, scenario

RARE = Timing(beat_s=1000.0, round_timeout_s=600.0, evict_after_s=1e5)
NOBODY, NOWHERE = PeerId("nobody", 1), "127.0.0.1:1"


def dials(learner: Learner) -> set[str]:
    return {address for address, seed in learner.transport._dialler._dials if not seed}


async def a_pair(crew: Crew) -> tuple[Learner, Learner]:
    """A learner, and a peer that may tell it of others."""
    return await crew.pair(timing=RARE)


async def tell(by: Learner, to: Learner, count: int, *rumors: tuple[PeerId, str]) -> None:
    """Return once the other one has taken the beat, and what follows from it."""
    told = tuple(Rumor(id, address, 1) for id, address in rumors)
    by.transport.send(to.id, Beat(peer=by.id, address=by.address, count=count, roster=told), "")
    await to.until(lambda: any(beat.count == count for beat in to.messages(Beat)))


def count_looks(learner: Learner) -> list[None]:
    """One entry for each time that the transport asks whom to dial."""
    looks: list[None] = []
    listed = learner.contacts

    def contacts() -> Any:
        looks.append(None)
        return listed()

    learner.contacts = contacts  # type: ignore[method-assign]
    return looks


@scenario
async def test_a_learner_of_whom_a_peer_tells_is_dialled_at_once(crew: Crew) -> None:
    a, b = await a_pair(crew)
    c = await crew("c", timing=RARE)
    a.known = [(b.id, b.address), (c.id, c.address)]
    await tell(b, a, 1, (c.id, c.address))
    await a.linked_with(c)


@scenario
async def test_one_that_the_roster_does_not_take_is_not(crew: Crew) -> None:
    a, b = await a_pair(crew)
    c = await crew("c", timing=RARE)
    await tell(b, a, 1, (c.id, c.address))
    assert dials(a) == set()


@scenario
async def test_of_the_others_none_is_dialled_for_that(crew: Crew) -> None:
    """A peer may tell of new names with each beat. Those that are dialled now and then wait for
    that as long as before."""
    a, b = await a_pair(crew)
    c, d = [await crew(name, timing=RARE) for name in "cd"]
    a.known = [(c.id, c.address), (d.id, d.address)]
    await tell(b, a, 1, (d.id, d.address))
    assert dials(a) == {d.address}


@scenario
async def test_nobody_is_looked_at_twice_in_a_beat(crew: Crew) -> None:
    a, b = await a_pair(crew)
    looks = count_looks(a)
    for count in (1, 2, 3):
        await tell(b, a, count, (NOBODY, NOWHERE))
    await tell(b, a, 4, (NOBODY, NOWHERE), (PeerId("another", 1), NOWHERE))
    assert len(looks) == 2


@scenario
async def test_those_that_were_listed_at_the_last_beat_are_no_news(crew: Crew) -> None:
    b = await crew("b", timing=RARE)
    a = Learner("a", b.address, timing=RARE)
    crew.learners.append(a)
    a.known = [(NOBODY, NOWHERE)]
    a.address = await a.transport.start()
    await a.linked_with(b)
    await b.linked_with(a)
    looks = count_looks(a)
    await tell(b, a, 1, (NOBODY, NOWHERE))
    assert looks == []


@scenario
async def test_before_others_can_dial_a_learner_it_dials_nobody(crew: Crew) -> None:
    """Its hello would say that nobody can."""
    c = await crew("c", timing=RARE)
    a = Learner("a", timing=RARE)
    a.known = [(c.id, c.address)]
    beat = Beat(peer=c.id, address=c.address, count=1, roster=(Rumor(c.id, c.address, 1),))
    a.transport._dialler.told(beat)
    assert dials(a) == set()


@scenario
async def test_a_learner_that_stops_dials_nobody_of_whom_it_is_told(crew: Crew) -> None:
    a, b = await a_pair(crew)
    c = await crew("c", timing=RARE)
    a.known = [(c.id, c.address)]
    await a.transport.stop()
    beat = Beat(peer=b.id, address=b.address, count=1, roster=(Rumor(c.id, c.address, 1),))
    a.transport._dialler.told(beat)
    assert dials(a) == set()
