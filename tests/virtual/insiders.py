"""Storms in virtual time with one learner that lies, whatever it says (`insider.py`). The laws hold
for the others, and they keep merging: while the insider is there, and when it has gone.

    play many; failures are made smaller and printed:
        python -m tests.virtual.insiders --seeds 0:2000 --jobs 2
        python -m tests.virtual.insiders --joint --seeds 0:500 --jobs 2
        python -m tests.virtual.insiders --apart --seeds 0:500 --jobs 2
    play one that was printed:
        python -m tests.virtual.insiders --replay "Infiltrated(...)"

Not promised, and so not asked of the honest (docs/security.md):

- The insider's own units, trained or made up: they may be in an anchor twice, or not at all.
- A fragment that the insider seals has rounds only if it likes. If it seals others out of turn,
  again and again, their rounds are delayed, too.
- Where it lies in the name of another ("names"), and offers are not signed, that learner may
  believe that its work was merged. Nothing is merged twice all the same.
- A relay has the work of its neighbours, and may offer it as its own once more. It does not do so
  here."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from typing import Any, ClassVar

from mend_optim.engine.effects import Merge
from mend_optim.engine.ledger import Event
from mend_optim.engine.majority import PAUSES
from mend_optim.engine.pending import NEVER
from mend_optim.engine.state import EngineState
from mend_optim.membership.sealers import sealer_of
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Offer
from tests.virtual import playing
from tests.virtual.cluster import Cluster
from tests.virtual.insider import LIES, MADE_UP, WAYS, Insider
from tests.virtual.oracle import Oracle
from tests.virtual.process import Learner, Saved
from tests.virtual.storms import LIMIT_S, TIMING, Fault, policies
from tests.virtual.units import Vector

#: Virtual seconds: until all have joined, for rounds beside the insider, and for rounds without it.
#: A peer that is gone without a word counts for the quorum until it is evicted.
JOIN_S, BESIDE_S, AFTER_S = 10.0, 25.0, TIMING.evict_after_s + 20.0
#: For as long one peer can keep another waiting by anchors that it shows and does not hand over. It
#: is doubted for a beat after the first failure, and for as long as that took after the second:
#: see `engine/claims.py`. Then there is time for a round.
HELD_UP_S = 2 * TIMING.round_timeout_s + TIMING.beat_s
#: For as long an anchor stands still before its learner believes a single peer: see
#: `engine/majority.py`.
STILL_S = 40.0
#: Lies of which storms have others than they had before there were these.
DRAWN_APART = ("joint", "paces", "ways")
#: By then all have joined, or give up waiting for the others.
LATEST_S = JOIN_S + TIMING.join_timeout_s
#: Rounds of each fragment that honest learners are to have in these times, at least.
ROUNDS_BESIDE, ROUNDS_AFTER = 1, 1


class HonestOracle(Oracle):
    """The laws for the honest: of what the insider trained or made up, nothing is promised."""

    cluster: InsiderCluster

    def judged(self, vector: Vector) -> Vector:
        liars = self.cluster.liars
        return {unit: count for unit, count in vector.items() if unit[0] not in liars}

    def check_tokens(self, learner: Learner, lineage: Lineage, units: frozenset[Any]) -> None:
        """The insider says of its work what it likes."""

    def moved(
        self, learner: Learner, p: int, before: Vector, after: Vector, dropped_tokens: int
    ) -> None:
        if self.cluster.is_insider(learner):
            return
        if learner.name in self.cluster.impersonated:
            dropped_tokens = len(before)
        before, after = (self._unforged(self.judged(units)) for units in (before, after))
        super().moved(learner, p, before, after, dropped_tokens)

    def _unforged(self, vector: Vector) -> Vector:
        """The units of those in whose name nobody lied. An anchor with an invented offer shows the
        author's work as merged, to everybody."""
        forged = self.cluster.impersonated
        kept = (unit for unit in vector if getattr(unit[0], "name", "") not in forged)
        return {unit: vector[unit] for unit in kept}

    def worked(self, learner: Learner, unit: Any) -> None:
        if not self.cluster.is_insider(learner):
            super().worked(learner, unit)

    def died(self, learner: Learner) -> None:
        if not self.cluster.is_insider(learner):
            super().died(learner)

    def _held(self, learners: list[Learner], p: int) -> set[Any]:
        return super()._held([x for x in learners if not self.cluster.is_insider(x)], p)

    def check_accounts(self) -> None:
        if not self.cluster.impersonated:
            super().check_accounts()

    def check_quorum(self, learner: Learner, job: Merge) -> None:
        super().check_quorum(learner, job)
        packets = (offer.sections.get("delta") for offer in job.offers if offer.others)
        self.cluster.seen["joint lie: merged"] += sum(p.lied for p in packets)  # type: ignore[union-attr,misc]


class InsiderCluster(Cluster):
    """A cluster in which the learner of one name lies, until it has gone for good."""

    outranks = True

    def __init__(self, storm: Infiltrated) -> None:
        schedule = {
            "sync_every": 3 + storm.fragments,
            "fragments": storm.fragments,
            "adopt_after": storm.adopt_after,
        }
        chosen = policies(storm.quorum, stays=storm.stays, **schedule)
        self.seed, self.lies, self.lies_per_s = storm.seed, storm.lies, storm.lies_per_s
        self.insider = f"learner-{storm.insider}"
        self.has_gone = False
        #: When the insider begins to claim anchors that it does not have.
        self.foists_from = NEVER
        #: When it begins to hand over something else under the key of its anchor.
        self.swaps_from = NEVER
        #: The first parts of units that are not judged.
        self.liars: set[PeerId | str] = {MADE_UP}
        #: Names of honest learners in whose name the insider has lied.
        self.impersonated: set[str] = set()
        #: By fragment, the anchors that a round led to with an honest member, and when the first
        #: honest learner had each.
        self.rounds: defaultdict[int, dict[str, float]] = defaultdict(dict)
        walls = storm.walls if storm.apart else ()
        super().__init__(
            storm.n, storm.seed, chosen, loss=storm.loss, zones=storm.zones, walls=walls
        )
        self.oracle = HonestOracle(self)
        if storm.zones:  # an insider says the zone in which it can do most
            near = f"learner-{(storm.insider + 1) % storm.n}"
            self.zones[self.insider] = self.zones[near]

    def make(self, id: PeerId, address: str, saved: Saved | None) -> Learner:
        if id.name != self.insider:
            return Learner(self, id, address, saved)
        self.liars.add(id)
        return Insider(self, id, address, saved)

    def start(self, name: str, begin_after: float = 0.5, saved: Saved | None = None) -> None:
        if not (self.has_gone and name == self.insider):
            super().start(name, begin_after, saved)

    def is_insider(self, learner: Learner) -> bool:
        return learner.name == self.insider

    def impersonates(self, author: PeerId) -> None:
        if author.name in self.names and author.name != self.insider:
            self.seen["impersonated"] += 1
            self.impersonated.add(author.name)

    def receiver(self, to: PeerId) -> Learner | None:
        """The insider has all processes of its name."""
        return self.learners.get(to.name) if to.name == self.insider else super().receiver(to)

    def evict_insider(self, says_goodbye: bool) -> None:
        """It is gone, and never comes back."""
        self.has_gone = True
        if self.insider in self.learners:
            (self.leave if says_goodbye else self.crash)(self.insider)

    def note(self, learner: Learner, event: Event) -> None:
        super().note(learner, event)
        record = event.facts.get("round")
        if record and any(m.steps and m.name in self.honest_names for m in record.members):
            self.rounds[record.fragment].setdefault(record.digest, self.now)

    def check_fault(self, learner: Learner, event: Event) -> None:
        """Nobody but the insider is blamed, unless it lied in another's name."""
        self.seen["blamed"] += 1
        fair = self.insider in event.text or "phantom" in event.text
        # A relay may not get through to a sealer.
        fair = fair or (self.zones and event.text.startswith("relaying of offer"))
        # Beside a made-up rate, an offer that came by way of another learner has no say.
        fair = fair or ("huge" in self.lies and event.text.endswith("has passed it on"))
        # An anchor stands still behind a go-between that gets nothing from the insider.
        fair = fair or (self.walls and " refused: no anchor has come for " in event.text)
        assert fair or self.impersonated, (learner.name, event.text)

    def _awaits(self, state: EngineState, p: int, offer: Offer) -> bool:
        """An offer of the insider may be passed on and refused for ever."""
        return offer.peer.name != self.insider and super()._awaits(state, p, offer)

    @property
    def all_have_joined(self) -> bool:
        """Whether all honest learners that are there have joined."""
        there = [x for name, x in self.learners.items() if name in self.honest_names]
        return all(learner.engine.state.joined for learner in there)

    @property
    def honest_names(self) -> list[str]:
        return [name for name in self.names if name != self.insider]

    def rounds_in(self, p: int, since: float, until: float) -> int:
        return sum(since <= at < until for at in self.rounds[p].values())

    def rounds_since(self, since: float, fragments: int) -> dict[int, int]:
        """By fragment, the rounds from then until now."""
        return {p: self.rounds_in(p, since, self.now) for p in range(fragments)}

    def longest_pause_s(self) -> float:
        """The longest time between two anchors that an honest learner took one after the other."""
        taken: dict[tuple[PeerId, int], list[float]] = defaultdict(list)
        for id, at, record in self.ledger:
            if id.name != self.insider:
                taken[id, record.fragment].append(at)
        return max((b - a for ats in taken.values() for a, b in pairwise(ats)), default=0.0)

    def rounds_beside(self) -> list[int]:
        """The rounds until now of each fragment that the insider does not seal."""
        fragments = range(self.policies.schedule.fragments)
        others = [p for p in fragments if not self.sealed_by_insider(p)]
        return [self.rounds_in(p, 0.0, self.now) for p in others]

    def await_rounds(self) -> None:
        """Play on as long as the insider may have held up the rounds beside it. Lost messages may
        not hold them up meanwhile: a learner doubts an honest peer, too, whose anchors got lost."""
        self.loss, loss = 0.0, self.loss
        self.until(lambda: min(self.rounds_beside(), default=1) >= ROUNDS_BESIDE, HELD_UP_S)
        self.loss = loss

    def sealed_by_insider(self, p: int) -> bool:
        """Whether the insider is the one that all learners expect to seal a fragment."""
        return sealer_of(p, self.names) == self.insider


@dataclass(frozen=True)
class Infiltrated:
    """A cluster of `n` learners, of which one lies, and the faults of the first seconds. `seed`
    determines the network's delays and losses, and the lies."""

    seed: int
    n: int
    insider: int
    lies: tuple[str, ...]
    lies_per_s: float = 2.0
    fragments: int = 1
    quorum: int | None = None
    adopt_after: int | None = None
    stays: bool = False
    loss: float = 0.05
    #: How many zones there are; 0: the learners are in none.
    zones: int = 0
    #: Whether each honest learner reaches the next one in a line alone, and the insider. Then that
    #: one is on the shortest way between most of them, and may keep what it gets.
    apart: bool = False
    says_goodbye: bool = False
    faults: tuple[Fault, ...] = ()
    module: ClassVar[str] = "tests.virtual.insiders"

    @property
    def floods(self) -> bool:
        """Whether the insider seals out of turn, and so often that it may void all other rounds."""
        return "seal" in self.lies and (self.lies_per_s > 1 or self.adopt_after is not None)

    @property
    def walls(self) -> list[tuple[str, str]]:
        """The pairs that never reach each other, if the honest are in a line."""
        honest = [f"learner-{i}" for i in range(self.n) if i != self.insider]
        near = set(pairwise(honest))
        return [pair for pair in combinations(honest, 2) if pair not in near]

    def play(self) -> InsiderCluster:
        """Play it. Raises `AssertionError` if a law is broken for an honest learner."""
        cluster = InsiderCluster(self)
        cluster.start_all()
        for fault in self.faults:
            cluster.at(fault.at, getattr(cluster, fault.kind), *fault.facts)
        cluster.run(JOIN_S)
        # An insider may keep those that join waiting, by an anchor that it does not hand over.
        while cluster.now < LATEST_S and not cluster.all_have_joined:
            cluster.run(1.0)
        # In lockstep every round waits for one that is there and does not offer.
        cluster.run(BESIDE_S + TIMING.round_timeout_s * (self.adopt_after is not None))
        cluster.await_rounds()
        beside = cluster.rounds_beside()
        cluster.evict_insider(self.says_goodbye)
        gone_at = cluster.now
        # An honest peer whose messages get lost again and again is doubted for ever longer.
        cluster.loss = 0.0
        cluster.run(AFTER_S)
        after = cluster.rounds_since(gone_at, self.fragments)
        if min(after.values()) < ROUNDS_AFTER:
            # One learner alone may have its last seal. The others take that learner's word once
            # their own anchors have stood still, for some of the pauses of before. In lockstep,
            # one pause may be as long as the wait for a round.
            in_lockstep = self.adopt_after is not None
            pause_s = max(cluster.longest_pause_s(), TIMING.round_timeout_s * in_lockstep)
            cluster.run(max(STILL_S, PAUSES * pause_s))
            after = cluster.rounds_since(gone_at, self.fragments)
        cluster.seen["rounds beside"] += sum(beside)
        cluster.seen["rounds after"] += sum(after.values())
        assert self.floods or self.apart or min(beside, default=ROUNDS_BESIDE) >= ROUNDS_BESIDE, (
            "no rounds beside the insider",
            beside,
        )
        assert min(after.values()) >= ROUNDS_AFTER, ("no rounds when it has gone", after)
        # In a line, one after the other takes an anchor on the word of the next one alone.
        limit_s = LIMIT_S * (self.n if self.apart else 1)
        assert cluster.settle(limit_s), (
            f"no common model {limit_s:g} s after the last fault: {cluster.keys()}"
        )
        return cluster

    def smaller(self) -> Iterator[Infiltrated]:
        """The storm without one of its faults, lies or fragments."""
        for i in range(len(self.faults)):
            yield replace(self, faults=self.faults[:i] + self.faults[i + 1 :])
        for lie in self.lies:
            yield replace(self, lies=tuple(other for other in self.lies if other != lie))
        if self.loss:
            yield replace(self, loss=0.0)
        if self.fragments > 1:
            yield replace(self, fragments=self.fragments - 1)
        if self.stays:
            yield replace(self, stays=False)
        if self.zones:
            yield replace(self, zones=0)
        if self.apart:
            yield replace(self, apart=False)


def draw(seed: int) -> Infiltrated:
    """Two to four honest learners, and one that lies in some ways."""
    r = random.Random(f"insiders {seed}")
    n = r.choice([3, 3, 3, 4, 4, 5])
    kinds = [lie for lie in (*LIES, *WAYS) if lie not in DRAWN_APART]
    if r.random() < 0.5:  # else nothing that is said in another's name, which weakens the account
        kinds.remove("names")
    lies = tuple(sorted(r.sample(kinds, r.choice([1, 2, 4, len(kinds)]))))
    storm = Infiltrated(
        seed,
        n,
        r.randrange(n),
        lies,
        lies_per_s=r.choice([0.3, 1.0, 4.0]),
        fragments=r.choice([1, 1, 1, 2]),
        adopt_after=r.choice([None, None, None, 0, 2]),
        stays=r.random() < 0.3,
        loss=r.choice([0.0, 0.05, 0.1]),
        says_goodbye=r.random() < 0.5,
    )
    names = [f"learner-{i}" for i in range(n)]
    drawn = (_draw_fault(r, names, storm.insider) for _ in range(r.choice([0, 0, 1, 2])))
    faults = sorted((f for faults in drawn for f in faults), key=lambda fault: fault.at)
    return _draw_paces(_draw_zones(replace(storm, faults=tuple(faults))))


def draw_joint(seed: int) -> Infiltrated:
    """A relay that lies in joint offers, and in nothing else."""
    r = random.Random(f"joint offers of insiders {seed}")
    storm = draw(seed)
    n = r.choice([4, 5])
    lies = ("joint", "names", "size") if seed % 2 else ("joint", "size")
    return replace(
        storm,
        n=n,
        insider=r.randrange(n),
        lies=lies,
        lies_per_s=r.choice([0.5, 4.0]),
        zones=2,
        faults=(),
    )


def draw_apart(seed: int) -> Infiltrated:
    """Honest learners in a line, and an insider between all of them, that lies in the ways that it
    knows, or keeps what it gets, or both, and perhaps in something else. It tells of no later
    processes of others: those that know them by hearsay alone would believe that."""
    r = random.Random(f"ways of insiders {seed}")
    storm = draw(seed)
    n = r.choice([4, 5, 6])
    others = r.choice([(), (), ("pass on",), ("seal",), storm.lies])
    lies = {*r.choice([("ways",), ("silence",), ("silence", "ways")]), *others}
    lies -= {"joint", "rumor", "beat"}
    return replace(
        storm,
        n=n,
        insider=r.randrange(n),
        lies=tuple(sorted(lies)),
        zones=0,
        apart=True,
        faults=(),
    )


def _draw_zones(storm: Infiltrated) -> Infiltrated:
    """Drawn apart, so that a seed has the lies and faults that it had before there were these."""
    r = random.Random(f"zones of insiders {storm.seed}")
    zones = r.choice([0, 0, 2, 2, 3])
    lies = {"joint"} if zones and r.random() < 0.7 else set()
    if lies and r.random() < 0.4:  # and no other ones, so that more of them come to be merged
        return replace(storm, zones=zones, lies=("joint", "names"))
    return replace(storm, zones=zones, lies=tuple(sorted({*storm.lies, *lies})))


def _draw_paces(storm: Infiltrated) -> Infiltrated:
    """Drawn apart, as zones are."""
    r = random.Random(f"paces of insiders {storm.seed}")
    more = {"paces"} if r.random() < 0.3 else set()
    return replace(storm, lies=tuple(sorted({*storm.lies, *more})))


def _draw_fault(r: random.Random, names: list[str], insider: int) -> Iterator[Fault]:
    """A fault that lasts no longer than rounds may be late for."""
    at, lasting = JOIN_S + r.random() * (BESIDE_S - 15), r.uniform(0.5, 3.0)
    name, other = r.sample([n for i, n in enumerate(names) if i != insider], 2)
    kind = r.choice(["crash", "cut", "slow", "freeze", "rest", "pause", "reset_progress"])
    if kind == "crash":
        yield Fault(at, "crash", (name,))
        yield Fault(at + lasting, "start", (name,))
    elif kind == "cut":
        yield Fault(at, "cut", (((name, other),), lasting))
    elif kind == "slow":
        yield Fault(at, "slow", (name, other, 5.0, lasting))
    elif kind == "freeze":
        yield Fault(at, "freeze", (name, lasting, r.random() < 0.5))
    elif kind == "pause":
        yield Fault(at, "pause", (name, lasting))
    else:
        yield Fault(at, kind, (name,))


# Playing many


#: By what is asked for on the command line.
DRAWS = {"any": draw, "joint": draw_joint, "apart": draw_apart}


def seen_in(seeds: range, kind: str = "any") -> tuple[Counter[str], list[str]]:
    """Counts of the events in the storms of these seeds, and the failure of each that failed."""
    return playing.seen_in(seeds, DRAWS[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description="Storms with one learner that lies.")
    parser.add_argument("--seeds", default="0:2000", metavar="FROM:TO")
    for kind, what in (
        ("joint", "relays that lie in joint offers"),
        ("apart", "go-betweens that lie, or keep what they get"),
    ):
        parser.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=what)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--replay", metavar="STORM", help="play one that was printed")
    arguments = parser.parse_args()
    if arguments.replay:
        known = {"Infiltrated": Infiltrated, "Fault": Fault}
        cluster = eval(arguments.replay, known).play()
        print(f"nothing went wrong: {dict(cluster.seen)}")
        return
    first, last = map(int, arguments.seeds.split(":"))
    started, seen, failed = time.monotonic(), Counter[str](), 0
    parts = [range(i, min(i + 20, last)) for i in range(first, last, 20)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for some, wrong in pool.map(partial(seen_in, kind=arguments.kind or "any"), parts):
            seen.update(some)
            failed += len(wrong)
            print(*wrong, sep="\n", end="\n" * bool(wrong), flush=True)
    count, took = last - first, time.monotonic() - started
    print(f"{count} insiders, {failed} failed, {took:.0f} s; seen: {dict(sorted(seen.items()))}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
