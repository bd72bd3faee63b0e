"""Mutants of standoffs: of the learner that stands in for its sealer."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

STANDOFFS = of("unit/engine/test_standoffs")
FORMER = of("unit/engine/test_former_sealers")
ROOM = "engine/standoffs"


def mutant(
    name: str, old: str, new: str, tests: tuple[str, ...] = STANDOFFS, room: str = ROOM
) -> Mutant:
    return Mutant(name, 7, room, old, new, tests)


STANDOFF_MUTANTS = (
    mutant(
        "a-former-sealer-shows-its-own-offer",
        "if sealer == state.me:\n            return held",
        "if True:\n            return held",
        room="engine/beats",
    ),
    mutant(
        "nobody-looks-for-standoffs",
        "sealer = self.standoffs.look(now, p, by_roster)",
        "sealer = by_roster",
        room="engine/sealer",
    ),
    mutant(
        "nobody-stands-in",
        "return self.me if stands_in else sealer",
        "return sealer",
        room="engine/state",
    ),
    mutant(
        "stands-in-for-others",
        "sealer is not None and self.stands_in.get(p) == sealer",
        "p in self.stands_in",
        room="engine/state",
    ),
    mutant("a-stop-is-a-standoff", "state.stops.awake_s(now)", "now"),
    mutant("both-begin-at-once", "(1 if is_first else 2)", "1"),
    mutant(
        "the-greater-name-begins",
        "self.state.me.name < sealer.name",
        "self.state.me.name > sealer.name",
    ),
    mutant(
        "each-round-is-waited-for",
        "return stands or (last is not None and last.key.digest == anchor)",
        "return stands",
    ),
    mutant(
        "several-stand-in-for-good",
        "state.stands_in.get(p) == sealer and self._got_on_by_itself(p, anchor):",
        "state.stands_in.get(p) == sealer:",
    ),
    mutant("a-sealer-with-its-own-offer-is-replaced", " or self._seals(p, sealer):", ":"),
    mutant(
        "a-sealer-that-calls-is-replaced",
        "        if peer == self.state.roster.sealer(p):\n            self._end(p)\n",
        "        pass\n",
    ),
    mutant("anybodys-call-ends-it", "if peer == self.state.roster.sealer(p):", "if True:"),
    mutant(
        "calls-are-not-told",
        "        self.standoffs.called(p, caller)\n",
        "",
        room="engine/offers",
    ),
    mutant(
        "a-moving-anchor-is-no-sign",
        "(known.sealer, known.anchor) != (sealer, anchor)",
        "known.sealer != sealer",
    ),
    mutant("without-an-offer", "        if offer is None or not offer.steps:", "        if False:"),
    mutant("for-an-empty-offer", "if offer is None or not offer.steps:", "if offer is None:"),
    mutant(
        "for-a-former-sealer",
        "        state.stands_in.pop(p, None)\n        offer =",
        "        offer =",
    ),
    mutant(
        "what-a-sealer-holds-is-searched-in-python",
        "sealer in dict(beat.reports[p].held)",
        "any(holder == sealer for holder, _ in beat.reports[p].held)",
        of("unit/engine/test_work_of_a_message"),
    ),
    mutant("a-beat-is-searched-each-time", "if seen is not beat:", "if True:"),
    mutant(
        "its-own-offer-stays-away",
        "else state.sealer(fragment.fragment)\n        target",
        "else state.roster.sealer(fragment.fragment)\n        target",
        room="engine/offers",
    ),
    mutant(
        "nobody-remembers-former-sealers",
        "        state.former_sealers.look(p, sealer, state.fragments[p].lineage.digest)\n",
        "",
        FORMER,
    ),
    mutant(
        "former-sealers-are-not-asked",
        "return peer == sealer or passes_on or (former and is_next)",
        "return peer == sealer or passes_on",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "former-sealers-are-asked-for-any-seal",
        "return peer == sealer or passes_on or (former and is_next)",
        "return peer == sealer or passes_on or former",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "the-last-seal-of-a-former-sealer-is-refused",
        "if state.former_sealers.may_have_sealed(seal.fragment, sealer, seal.base):",
        "if False:",
        FORMER,
        "engine/adoption",
    ),
    mutant(
        "a-former-sealer-seals-on-and-on",
        "former.sealer if former and former.anchor == anchor else None",
        "former.sealer if former else None",
        FORMER,
        "engine/former_sealers",
    ),
    mutant(
        "whoever-shows-a-last-seal-first-is-asked-for-it",
        "        return former if shown >= key else None\n",
        "        return peer\n",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "a-former-sealer-is-asked-before-it-shows-its-last-seal",
        "        return former if shown >= key else None\n",
        "        return former\n",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "a-former-sealer-is-waited-for-without-end",
        "        if not holder and now - since < state.policies.timing.suspect_after_s:\n",
        "        if not holder:\n",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "a-former-sealer-is-asked-for-a-later-anchor",
        " or shown is None or key.version != own.version + 1:",
        " or shown is None:",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "a-former-sealer-is-waited-for-without-an-offer",
        "if pending is None or self._is_left_out(pending, p, key):",
        "if pending is not None and self._is_left_out(pending, p, key):",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "a-former-sealer-is-waited-for-by-those-left-out",
        "if pending is None or self._is_left_out(pending, p, key):",
        "if pending is None:",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "a-former-sealer-that-hands-nothing-over-is-waited-for",
        "if doubted or are_neighbours(state.roster, state.me, peer):",
        "if are_neighbours(state.roster, state.me, peer):",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "a-seal-from-afar-is-waited-for-where-a-neighbour-has-the-anchor",
        "if doubted or are_neighbours(state.roster, state.me, peer):",
        "if doubted:",
        FORMER,
        "engine/pulling",
    ),
    mutant(
        "the-place-of-a-former-sealer-moves-on",
        "sealer is None or sealer == present:",
        "sealer is None:",
        FORMER,
        "engine/former_sealers",
    ),
    mutant(
        "nobody-is-a-sealer",
        "sealer is None or sealer == present:",
        "sealer == present:",
        FORMER,
        "engine/former_sealers",
    ),
)
