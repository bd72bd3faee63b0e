"""Mutants of zones: each rule of relays, left out."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

HOPS, ZONES = of("unit/membership/test_zones"), of("unit/engine/test_zones")
RULES, OFFERS, RELAYING = "membership/zones", "engine/offers", "engine/relaying"


def mutant(
    name: str, room: str, old: str, new: str, tests: tuple[str, ...] = ZONES, law: int = 5
) -> Mutant:
    return Mutant(name, law, room, old, new, tests)


ZONE_MUTANTS = (
    mutant("no-zone-is-a-zone", RULES, 'return zone != "" and zone ==', "return zone ==", HOPS),
    mutant("relays-need-no-address", RULES, "bool(peer.address) and ", "", HOPS),
    mutant("relays-need-not-train", RULES, "peer.training and ", "", HOPS),
    mutant(
        "who-cannot-be-dialled-relays",
        RULES,
        "if roster.address else [])",
        "if True else [])",
        HOPS,
    ),
    mutant(
        "who-does-not-reach-the-sealer-relays",
        RULES,
        " and not stay_apart(roster, peer.id, to)",
        "",
        HOPS,
    ),
    mutant(
        "learners-that-have-just-met-are-apart",
        "membership/reach",
        "known_s >= BEATS * roster.timing.beat_s and ",
        "",
        HOPS,
    ),
    mutant("all-may-relay", RULES, "p.id not in without and ", "", HOPS),
    mutant(
        "no-relays",
        OFFERS,
        "hop = first_hop(self.state.roster",
        "hop = sealer or first_hop(self.state.roster",
    ),
    mutant("withheld-for-ever", OFFERS, "pending.astray()", "return False"),
    mutant(
        "withheld-at-once",
        OFFERS,
        "if may_be_merged or waited < 2 * self._relayed_s(pending, caller, p):",
        "if False:",
    ),
    mutant("withheld-although-merged", OFFERS, "if may_be_merged or waited", "if waited"),
    mutant(
        "slow-ways-withhold",
        OFFERS,
        "max(self.patience(pending), usual * state.step_s if usual else unknown_s)",
        "self.patience(pending)",
    ),
    mutant(
        "offers-on-their-way-begin-anew",
        RELAYING,
        "passing.next_at = NEVER\n",
        "self._wait(now, passing)\n",
        of("unit/engine/test_sealer"),
    ),
    mutant(
        "joint-offers-on-their-way-go-again",
        RELAYING,
        " or self.joint.is_on_its_way(offer, to.id)",
        "",
        of("unit/engine/test_joint_offers"),
    ),
    mutant(
        "merged-offers-go-again",
        RELAYING,
        "return not passing.arrived or not self._may_be_merged(passing, offer.fragment)",
        "return True",
    ),
    mutant(
        "refused-offers-wait-for-ever",
        RELAYING,
        "return own < passing.until",
        "return True",
    ),
    mutant(
        "an-offer-that-has-arrived-again-may-not-be-merged",
        RELAYING,
        "            passing.until = None\n",
        "",
    ),
    mutant("a-withholder-relays-on", OFFERS, "self._withholding[relay] = now +", "now +"),
    mutant(
        "neighbours-offers-are-kept",
        RELAYING,
        "wanted = relayed or apart or behind or not",
        "wanted = apart or behind or not",
    ),
    mutant("offers-go-round-in-a-zone", RELAYING, "relayed = is_far and ", "relayed = "),
    mutant("the-living-are-given-up", RELAYING, " and not self._lives(offer.peer):", ":"),
    mutant("seals-are-not-handed-down", "engine/sealer", "self.relaying.hand_down(seal)", "pass"),
    mutant(
        "anybody-passes-seals-on",
        "engine/adoption",
        "seal.passed_by is None or are_neighbours",
        "True or are_neighbours",
        law=4,
    ),
    mutant(
        "neighbours-may-not-pass-offers-on",
        RELAYING,
        "return is_near or self._may_be_gone",
        "return self._may_be_gone",
    ),
    mutant(
        "a-relays-seal-is-its-sealers",
        "transport/transfers",
        "return replace(seal, passed_by=link.id)",
        "return seal",
        of("unit/transport/test_transfers"),
    ),
)
