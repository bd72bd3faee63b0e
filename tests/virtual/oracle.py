"""DESIGN's laws 3 to 6 as assertions over a virtual cluster, and an account of every unit of
work.

A unit leaves a learner's weights only in ways that the learner counts: it is dropped
(`dropped_tokens`), or superseded (the ledger names the peers whose merged work a newer anchor
lacks), or it dies with the process. So if a unit is missing at the end, then the last learner that
held it either reported the loss or died."""

from __future__ import annotations

from collections import Counter, defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from mend_optim.engine.effects import Merge
from mend_optim.engine.ledger import RoundRecord
from mend_optim.engine.progress import Motion
from mend_optim.protocol.lineage import FORGOTTEN, Key, Lineage, PeerId, rollbacks
from mend_optim.protocol.messages import Seal
from tests.virtual.units import Vector

if TYPE_CHECKING:
    from tests.virtual.cluster import Cluster
    from tests.virtual.process import Learner

Unit = tuple[int, Any]  # (fragment, (author, step))
_author = itemgetter(0)  # of a unit
MOST_OFFERS = 1000  # no process of a virtual cluster makes more


def _knew(learner: Learner, p: int, unit: Any) -> bool:
    """Whether work is the learner's own, or was in its checkpoint: of what the process that saved
    it has done since, it knows no more than others do."""
    saved = learner.saved.weights if learner.saved else []
    return unit[0] == learner.id or (p < len(saved) and unit in saved[p])


def _is_work(unit: Any) -> bool:
    """Whether somebody trained it. First weights, and weights that a user loads, are no work."""
    return isinstance(unit[0], PeerId)


class Oracle:
    """The history of every learner and of the whole cluster, and the laws that they must keep."""

    counts = True  # every unit of work; a long run without faults may turn this off

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.contents: dict[tuple[int, bytes, bytes], frozenset[Any]] = {}
        self.last_keys: dict[tuple[PeerId, int], tuple[bytes, Key]] = {}
        self.checked: dict[tuple[PeerId, int], tuple[Any, ...]] = {}
        self.superseded: defaultdict[tuple[PeerId, int], set[str]] = defaultdict(set)
        self.trained: defaultdict[int, set[Any]] = defaultdict(set)
        self.dropped: set[Unit] = set()  # by a living learner that reported it
        self.named: set[tuple[int, str]] = set()  # authors that some ledger names as superseded
        self.origins: dict[PeerId, set[bytes]] = {}  # of the dead: the models they had
        # Models that a learner gave up for another; a checkpoint may bring them back.
        self.left: set[bytes] = set()
        # Former models that are still in its weights.
        self.former: defaultdict[tuple[PeerId, int], set[bytes]] = defaultdict(set)
        # Of a model after a rollback: what was given up for it, and may never be in it. Groups that
        # the learner which rolled back had not added are no part of that.
        self.given_up: defaultdict[tuple[int, bytes], set[Any]] = defaultdict(set)
        self.taken_back: dict[bytes, int] = {}  # of a model: the fragments its first learner had
        # Of that: what was in the anchor of a group that went on from there, because no learner in
        # sight had taken it back.
        self.went_on: defaultdict[tuple[int, bytes], set[Any]] = defaultdict(set)
        # Fragments in which a learner has just given way to a lesser anchor of most learners.
        self.yielded: dict[tuple[PeerId, int], bool] = {}
        self.at_death: set[Unit] = set()  # in a process that died, and in no other

    # after every event

    def check(self, learner: Learner) -> None:
        """Check laws 3, 4 and 5 for the learner of the last event."""
        if not self.counts:
            return
        state, awaited = learner.engine.state, learner.awaited()
        founding = state.mode.founding
        for p, fragment in enumerate(state.fragments):
            still, applied = fragment.motion is Motion.STILL and not founding, p not in awaited
            counters = state.totals.tokens, fragment.settled.tokens
            # Vectors never change in place, so those of the last look are compared in no time.
            vectors = learner.units.theta[p], learner.weights[p], learner.disagreement[p]
            now = (*vectors, fragment.lineage, still, applied, counters)
            if self.checked.get((learner.id, p)) == now:
                continue
            self.checked[learner.id, p] = now
            theta, weights = self.judged(learner.units.theta[p]), self.judged(learner.agreed(p))
            assert set(theta.values()) <= {1}, ("merged twice", learner.id, p)
            assert set(weights.values()) <= {1}, ("wrong weights", learner.id, p, weights)
            # Weights that a user loads in mid-run.
            assert "loaded" not in map(_author, weights), ("loaded weights are no work", learner.id)
            if still:
                self._check_lineage(learner, p, fragment.lineage)
            if still and applied:
                own = weights.keys() - theta.keys()
                unmerged = fragment.unmerged(state.totals).tokens
                assert len(own) == unmerged, ("unmerged tokens are not the units", learner.id)
                authors = {unit[0] for unit in own}
                assert authors <= learner.heirs | {learner.id}, (
                    "somebody else's work in the weights",
                    learner.id,
                )

    def _check_lineage(self, learner: Learner, p: int, lineage: Lineage) -> None:
        units = frozenset(learner.units.theta[p])
        self.taken_back.setdefault(lineage.genesis, len(learner.engine.state.fragments))
        self.check_tokens(learner, lineage, units)
        if self._goes_on(learner, p, lineage):
            self.went_on[p, lineage.genesis] |= units
        again = units & self.given_up[p, lineage.genesis] - self.went_on[p, lineage.genesis]
        assert not again, ("back after a rollback", learner.id, p, again)
        key = (p, lineage.genesis, lineage.digest)
        assert self.contents.setdefault(key, units) == units, (
            "one digest, two contents",
            learner.id,
        )
        genesis, last = self.last_keys.get((learner.id, p), (b"", None))
        if last and genesis != lineage.genesis:
            self.left.add(genesis)
            self.former[learner.id, p].add(genesis)
        elif last:
            yielded = self.yielded.pop((learner.id, p), False)
            assert yielded or lineage.key >= last, (
                "adopted a smaller lineage",
                learner.id,
                p,
                last,
                lineage,
            )
        self.last_keys[learner.id, p] = (lineage.genesis, lineage.key)

    def _goes_on(self, learner: Learner, p: int, lineage: Lineage) -> bool:
        """Whether a learner has just followed a rollback with its own anchor of this fragment, and
        no other one that it reaches has taken the fragment back."""
        genesis, last = self.last_keys.get((learner.id, p), (b"", None))
        is_same = last is not None and last.digest == lineage.digest
        if not is_same or rollbacks(genesis) >= rollbacks(lineage.genesis):
            return False
        return bool(self.went_on[p, lineage.genesis]) or not any(
            other.engine.state.genesis == lineage.genesis
            and other.engine.state.has_fragment(p)
            and not self.cluster.parted(learner.name, other.name)
            for other in self.cluster.processes.values()
            if other is not learner
        )

    def judged(self, vector: Vector) -> Vector:
        """The units whose way is followed: all of them, where all learners are honest."""
        return vector

    def check_tokens(self, learner: Learner, lineage: Lineage, units: frozenset[Any]) -> None:
        """An anchor tells the truth about its work."""
        assert lineage.tokens == len(units) - 1, (
            "tokens of the lineage are not its units",
            learner.id,
        )

    def check_quorum(self, learner: Learner, job: Merge) -> None:
        """Laws 3 and 6: the learner that seals is the sealer by its own roster, merges on its own
        anchor, and has a quorum of that roster."""
        state = learner.engine.state
        assert state.sealer(job.fragment) == learner.me, ("sealed by another", learner.id)
        assert len(job.offers) >= self.cluster.policies.quorum.needed(state.roster.heard), (
            "sealed below quorum"
        )
        self.cluster.seen["merge"] += 1
        self.cluster.seen["closing"] += not any(offer.tokens for offer in job.offers)

    # the account of every unit

    def recorded(self, learner: Learner, record: RoundRecord) -> None:
        """This learner's ledger names the peers whose merged work it gives up for a newer
        anchor."""
        self.superseded[learner.id, record.fragment] |= set(record.superseded)
        if record.reason == "yielded":
            self.yielded[learner.id, record.fragment] = True
            self.cluster.seen["yielded"] += 1
        self.named |= {(record.fragment, name) for name in record.superseded}

    def refused(self, p: int, author: str) -> None:
        """A round refused an offer, and every learner tells whose. If the author is gone by then,
        nobody else counts its work."""
        self.named.add((p, author))

    def unpublished(self, seal: Seal) -> None:
        """A seal dies with its sealer. It would have told whose offers the round refused."""
        for i in getattr(seal.sections.get("sizes"), "outsized", {}):
            self.refused(seal.fragment, seal.members[i].peer.name)

    def worked(self, learner: Learner, unit: Any) -> None:
        for p in range(len(learner.weights)):
            self.trained[p].add(unit)

    def moved(
        self, learner: Learner, p: int, before: Vector, after: Vector, dropped_tokens: int
    ) -> None:
        """A correction was applied. Each unit that left the weights must be accounted for:

        - it was counted as dropped,
        - or the ledger names its author,
        - or its author had given it up before, which an anchor with later work of it does not show,
          or has said so and is about to,
        - or the anchor has forgotten its author, a former process of a name: such work counts as
          merged, and its author drops it,
        - or another process went on from its author's checkpoint, so one name has two histories.
        """
        former = self.former.pop((learner.id, p), set())
        gone = [unit for unit in before.keys() - after.keys() if _is_work(unit)]
        genesis = learner.engine.state.genesis
        is_back = any(rollbacks(genesis) > rollbacks(other) for other in former)
        if is_back and p < self.taken_back[genesis]:
            self.given_up[p, genesis].update(gone)
        named = self.superseded.pop((learner.id, p), set())
        for former in learner.heirs:  # it may have said so, and died before it applied that
            named = named | self.superseded.get((former, p), set())
        unnamed = [
            u for u in gone if not named & self._claimants(u[0]) and (p, u) not in self.dropped
        ]
        unnamed = [
            u for u in unnamed if not self.superseded.get((u[0], p), set()) & self._claimants(u[0])
        ]
        own = learner.heirs - self._forked_twice | {learner.id}
        unnamed = [
            u for u in unnamed if u[0] not in self._forked or (u[0] in own and _knew(learner, p, u))
        ]
        # Work that was done since may have been offered in the name of the checkpoint's author,
        # of whom there are two.
        unnamed = [
            u for u in unnamed if not self.cluster.heirs.get(u[0], frozenset()) & self._forked_twice
        ]
        lineage = learner.engine.state.fragments[p].lineage
        unnamed = [u for u in unnamed if lineage.last_merged(u[0]) != FORGOTTEN]
        # Or there is an offer in its own name that it did not make.
        if self._has_heirs_offer(learner, p):
            unnamed = [u for u in unnamed if u[0] != learner.id]
        assert len(unnamed) <= dropped_tokens, ("work vanished unsaid", learner.id, p, unnamed)
        self.dropped |= {(p, unit) for unit in gone}

    def _has_heirs_offer(self, learner: Learner, p: int) -> bool:
        """Whether the last offer in the learner's name that its anchor has is an heir's: its number
        begins with one of the heir's incarnations. An heir may have started by an earlier clock,
        and then have gone beyond a process of its name."""
        last = learner.engine.state.fragments[p].lineage.last_merged(learner.id)
        heirs = (heir for heir, authors in self.cluster.heirs.items() if learner.id in authors)
        called = (id for heir in heirs for id in (heir, *self.cluster.renamed[heir]))
        return any(0 <= last - id.incarnation < MOST_OFFERS for id in called)

    def _claimants(self, author: PeerId) -> set[str]:
        """The names under which a seal may have merged this author's work."""
        return {author.name, *(heir.name for heir in self.cluster.heirs.get(author, ()))}

    def died(self, learner: Learner) -> None:
        """Work that only this process held dies with it."""
        state = learner.engine.state
        former = (self.former[learner.id, p] for p in learner.awaited())
        # it may have died before it let go of a former model
        self.origins[learner.id] = {state.genesis}.union(*former)
        others = [x for x in self.cluster.processes.values() if x is not learner]
        self._note_refused(learner)
        for p in range(len(learner.weights)):
            held = self._held(others, p)
            # Also what it was about to hand to who seals now.
            everything = {
                *learner.agreed(p),
                *self._anchor(learner, p),
                *self._offered(learner, p, safe=False),
            }
            self.at_death |= {(p, unit) for unit in everything - held if _is_work(unit)}

    def _note_refused(self, learner: Learner) -> None:
        """As a sealer it may have refused offers, and not have said so yet."""
        for p, round in enumerate(learner.engine.state.rounds):
            self.named |= {(p, peer.name) for peer in (*round.outsized, *round.untold)}

    def _held(self, learners: list[Learner], p: int) -> set[Any]:
        """Units in the weights of any of these learners, in an anchor not applied yet, or in an
        offer that has arrived."""
        held: set[Any] = set()
        for learner in [x for x in learners if p < len(x.weights)]:
            held |= {*learner.agreed(p), *self._anchor(learner, p), *self._offered(learner, p)}
        return held

    def _anchor(self, learner: Learner, p: int) -> Vector:
        thetas = learner.units.theta  # of a group just added there is none yet
        return thetas[p] if p < len(thetas) else {}

    def _offered(self, learner: Learner, p: int, safe: bool = True) -> set[Any]:
        """The units in the offers that a sealer holds, or with `safe=False` any learner. An offer
        of work from a checkpoint is not safe: another process may have offered the same work. Nor
        is a joint one: another part of it may be merged before."""
        state = learner.engine.state
        if p >= len(state.rounds) or (safe and state.roster.sealer(p) != learner.me):
            return set()
        offers = [
            offer
            for offer in state.rounds[p].inbox.values()
            if offer.claim.author == offer.peer and not (safe and offer.others)
        ]
        return {unit for offer in offers for unit in offer.sections.get("delta", {})}

    def check_agreement(self) -> None:
        """At rest every learner has given up its disagreement: its weights are the anchor."""
        for learner in self.cluster.learners.values():
            for p, fragment in enumerate(learner.engine.state.fragments):
                held = (learner.disagreement[p], learner.units.disagreement[p])
                assert not fragment.disagrees, ("disagrees at rest", learner.id, p)
                assert held == ({}, {}), ("a disagreement in the weights", learner.id, p)
                if self.counts:
                    assert learner.weights[p] == learner.units.theta[p], ("apart", learner.id, p)

    def check_accounts(self) -> None:
        """At the end, every missing unit must be accounted for:

        - it died with the last process that held it,
        - or a learner reported that it gave the unit up,
        - or it was in a dead learner's offer that followed superseded work.

        Every living learner that began with nothing, and from whose checkpoint no process went on,
        must report exactly how much of its own work is missing."""
        for learner in self.cluster.learners.values():
            self._note_refused(learner)
        missing = self.missing()
        lost = {
            unit for unit in missing - self.at_death - self.dropped if not self._followed(*unit)
        }
        assert not lost, ("lost", lost)
        counting = (
            x
            for x in self.cluster.learners.values()
            if x.saved is None and x.id not in self._forked
        )
        for learner in counting:
            for p, fragment in enumerate(learner.engine.state.fragments):
                gone = sum(unit[0] == learner.id for q, unit in missing if q == p)
                said = fragment.superseded_tokens + fragment.dropped_tokens
                doubted = fragment.dropped_tokens > 0  # then what was dropped may have been merged
                assert gone <= said if doubted else gone == said, (
                    "lost unsaid",
                    learner.id,
                    p,
                    gone,
                    said,
                )

    def _followed(self, p: int, unit: Any) -> bool:
        """Further ways to lose a unit: another process offered it first, from a checkpoint of its
        author; or it was offered to a learner that then took another model whole."""
        author, final = unit[0], {x.engine.state.genesis for x in self.cluster.learners.values()}
        named = any((p, name) in self.named for name in self._claimants(author))
        if named or author in self._forked or author not in self.origins:
            return True
        return bool(self.origins[author] - final | self.origins[author] & self.left)

    @property
    def _forked(self) -> frozenset[PeerId]:
        return frozenset().union(*self.cluster.heirs.values())

    @property
    def _forked_twice(self) -> frozenset[PeerId]:
        """Authors from whose checkpoint two processes went on. Each may have offered their work, on
        a branch of its own."""
        heirs = Counter(author for authors in self.cluster.heirs.values() for author in authors)
        return frozenset(author for author, count in heirs.items() if count > 1)

    def missing(self) -> set[Unit]:
        """Work that was done and is not in the final model."""
        thetas = next(iter(self.cluster.learners.values())).units.theta
        return {
            (p, unit)
            for p, theta in enumerate(thetas)
            for unit in self.trained[p]
            if unit not in theta
        }
