"""Joint offers and single ones that reach a sealer in any order: a joint one stays until it is
merged, and all work is merged once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from mend_optim.engine.accounts import Accounts, Totals
from mend_optim.engine.round import Round
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Offer
from tests.support.engines import BASE, GENESIS

TOKENS = 10
#: The first one is the relay.
NAMES = ("a", "b", "c")


class Author:
    """A learner, without its tensors: its accounts, and the steps that each of its offers holds."""

    def __init__(self, name: str) -> None:
        self.totals = Totals()
        self.accounts = Accounts(PeerId(name, 1), 0, BASE)
        #: By number.
        self.steps: dict[int, range] = {}
        self.dropped: set[int] = set()

    def _in_hand(self) -> range:
        return range(self.accounts.settled.step, self.totals.step)

    def train(self) -> None:
        self.totals.step += 1
        self.totals.tokens += TOKENS

    def offer(self) -> None:
        if self.accounts.pending or not self._in_hand():
            return
        pending = self.accounts.make_pending(self.totals, due=True, flush=False)
        self.steps[pending.seq] = self._in_hand()
        self.accounts.offered(GENESIS, {})

    def give_up(self) -> None:
        """Its weights were not finite: it takes the anchor, and drops all that it has."""
        self.dropped |= set(self._in_hand())
        self.accounts.follow(
            self.accounts.lineage, self.totals, merged_own_offer=False, replaced=True
        )
        self.accounts.drop(self.totals)

    @property
    def pending(self) -> Offer | None:
        return self.accounts.pending.offer if self.accounts.pending else None

    def adopt(self, lineage: Lineage) -> None:
        accounts, pending = self.accounts, self.accounts.pending
        merged = accounts.includes_pending(lineage)
        assert not accounts.in_doubt(lineage)
        accounts.follow(lineage, self.totals, merged_own_offer=merged, replaced=False)
        if pending and not merged:
            held = self.steps[pending.seq]
            accounts.rebase(pending)
            self.steps[pending.seq] = held

    def check(self, merged: list[int]) -> None:
        """None of its steps is merged twice, or lost, or will be offered again."""
        assert len(merged) == len(set(merged))
        assert not set(merged) & set(self._in_hand())
        assert {*merged, *self._in_hand(), *self.dropped} == set(range(self.totals.step))


class Zone:
    """The authors of a zone, and a sealer far away."""

    def __init__(self) -> None:
        self.authors = {name: Author(name) for name in NAMES}
        for name in NAMES:
            self.work(name)
        self.round, self.lineage = Round(0), BASE
        self.merged: dict[str, list[int]] = {name: [] for name in NAMES}

    def work(self, name: str, *, anew: bool = False) -> None:
        """An author trains, and offers that. `anew`: it has given up all before."""
        author = self.authors[name]
        if anew:
            author.give_up()
        author.train()
        author.offer()

    def send(self, name: str, passed_by: str = "") -> None:
        """An author's offer reaches the sealer by itself."""
        offer = self.authors[name].pending
        if offer:
            by = PeerId(passed_by, 1) if passed_by else None
            self._arrive(replace(offer, passed_by=by))

    def join(self, *names: str) -> None:
        """The relay's offer reaches it, with those of others."""
        offers = [self.authors[name].pending for name in ("a", *names)]
        own, *others = offers
        # See `may_join`. A number of its own author's work may be one of another branch.
        if own and all(o and o.inherited is None for o in offers):
            self._arrive(replace(own, others=tuple(o for o in others if o)))

    def _arrive(self, offer: Offer) -> None:
        joint = self.joint()
        if all(self.round.fresh(each, self.lineage) for each in offer.together):
            self.round.add(*offer.together)
        assert joint <= self.joint(), "a joint offer was driven out"

    def joint(self) -> set[tuple[PeerId, int]]:
        """The parts of joint offers that are held."""
        inbox = self.round.inbox.values()
        return {(o.peer, o.seq) for o in inbox if o.others or o.carrier}

    def seal(self) -> None:
        round = self.round
        if not round.has_work:
            return
        round.launch(0.0)
        members = round.close(0.0, [], "all_present", 9)
        round.sealed(0.0)
        assert self.joint() <= {(o.peer, o.seq) for o in members}
        for entry in (offer.entry for offer in members if offer.steps):
            held = self.authors[entry.peer.name].steps[entry.seq]
            assert (entry.tokens, entry.steps) == (TOKENS * len(held), len(held))
            self.merged[entry.peer.name] += held
        self.lineage = self.lineage.seal([offer.entry for offer in members], b"payload")
        round.purge(self.lineage)
        for author in self.authors.values():
            author.adopt(self.lineage)


some = st.sampled_from(NAMES)
moves = st.one_of(
    st.tuples(st.just("work"), some),
    st.tuples(st.just("work anew"), some),
    st.tuples(st.just("send"), some),
    st.tuples(st.just("pass on"), some),
    st.tuples(st.just("join"), st.sampled_from([("b",), ("c",), ("b", "c")])),
    st.tuples(st.just("seal"), st.just("")),
)


@given(st.lists(moves, min_size=20, max_size=60))
@example([("join", ("b", "c")), ("work anew", "b"), ("send", "b"), ("seal", "")])
@example([("join", ("b", "c")), ("work anew", "b"), ("pass on", "b"), ("seal", "")])
@example([("join", ("b",)), ("work anew", "a"), ("send", "a"), ("seal", "")])
def test_a_joint_offer_stays_until_it_is_merged_and_all_work_is_merged_once(
    moves: list[tuple[str, str | tuple[str, ...]]],
) -> None:
    zone = Zone()
    for what, whose in moves:
        match what, whose:
            case "work", str(name):
                zone.work(name)
            case "work anew", str(name):
                zone.work(name, anew=True)
            case "send", str(name):
                zone.send(name)
            case "pass on", str(name):
                zone.send(name, passed_by="a")
            case "join", tuple(names):
                zone.join(*names)
            case "seal", _:
                zone.seal()
        for name, author in zone.authors.items():
            author.check(zone.merged[name])
