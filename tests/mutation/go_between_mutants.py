"""Mutants of go-betweens: of learners that do not reach the sealer, and of the peers between."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

CHOICE = of("unit/membership/test_go_betweens")
ENGINE = of("unit/engine/test_go_betweens")
ROOM = "membership/go_betweens"
DETOURS = "engine/detours"
RELAYING = "engine/relaying"
ROSTER = "membership/roster"
ADOPTION = "engine/adoption"


def mutant(
    name: str, room: str, old: str, new: str, tests: tuple[str, ...] = ENGINE, law: int = 7
) -> Mutant:
    return Mutant(name, law, room, old, new, tests)


GO_BETWEEN_MUTANTS = (
    mutant(
        "a-sealer-is-chosen-from-those-that-are-heard",
        ROOM,
        "if p.heard or (p.id in reached and self.believes_in(p.id))]",
        "if p.heard]",
        CHOICE,
    ),
    mutant(
        "learners-without-work-seal",
        ROOM,
        "(p.id in reached and self.believes_in(p.id))",
        "(p.id in reached)",
        CHOICE,
        8,
    ),
    mutant(
        "learners-that-nobody-reaches-seal",
        ROOM,
        "(p.id in reached and self.believes_in(p.id))",
        "self.believes_in(p.id)",
        CHOICE,
    ),
    mutant(
        "a-sealer-that-is-reached-has-a-go-between",
        ROOM,
        "peer.id != to or peer.linked:",
        "peer.id != to:",
        CHOICE,
    ),
    mutant("peers-between-that-must-not-be", ROOM, "if p.id not in without]", "]", CHOICE),
    mutant(
        "a-go-between-without-an-address",
        ROOM,
        "            if peer.address\n            and",
        "            if",
        CHOICE,
    ),
    mutant("a-go-between-that-has-not-joined", ROOM, "            and peer.training\n", "", CHOICE),
    mutant("go-betweens-are-far-away", ROOM, "for p in near or able}", "for p in able}", CHOICE),
    mutant("a-go-between-without-a-stream", ROOM, "            and peer.linked\n", "", CHOICE),
    mutant("a-silent-go-between", ROOM, "            and not peer.suspected\n", "", CHOICE),
    mutant(
        "doubts-do-not-count", ROOM, "            and peer.id not in self._doubted\n", "", CHOICE, 8
    ),
    mutant(
        "all-doubts-last-as-long",
        ROOM,
        "max(seconds, 2 * self._lasted",
        "max(seconds, 0 * self._lasted",
        CHOICE,
        8,
    ),
    mutant(
        "doubts-last-for-ever",
        ROOM,
        "in self._doubted.items() if now < until",
        "in self._doubted.items()",
        CHOICE,
    ),
    mutant(
        "doubts-of-the-gone-are-kept",
        ROOM,
        "in self._lasted.items() if id in here",
        "in self._lasted.items()",
        CHOICE,
        8,
    ),
    mutant(
        "go-betweens-do-not-count-doubts-down",
        ROSTER,
        "        self.go_betweens.expire(now)\n",
        "",
        ENGINE,
    ),
    mutant(
        "beats-do-not-tell-whom-a-learner-reaches",
        ROSTER,
        "Rumor(peer.id, peer.address, peer.count, reached=peer.reached)",
        "Rumor(peer.id, peer.address, peer.count)",
        CHOICE,
    ),
    mutant(
        "a-peer-without-a-stream-is-reached",
        "membership/peer",
        "return self.heard and self.linked and not self.suspected",
        "return self.heard",
        CHOICE,
    ),
    mutant(
        "last-words-of-the-unheard-count-for-ever",
        ROSTER,
        "peer.beat, peer.reaches = None, frozenset()",
        "pass",
        CHOICE,
    ),
    mutant(
        "a-stop-is-silence-of-the-unlinked",
        ROSTER,
        "                peer.beat_at = min(now, peer.beat_at + seconds)\n",
        "",
        of("unit/membership/test_roster", "stopped"),
    ),
    mutant("hearsay-brings-the-lost-back", ROSTER, "            known.lost = lost\n", "", CHOICE),
    mutant("the-lost-stay-lost", ROSTER, "                peer.lost = False\n", "", CHOICE),
    mutant(
        "offers-go-to-sealers-that-are-not-reached",
        "membership/zones",
        "    if between:\n",
        "    if False:\n",
        CHOICE,
    ),
    mutant(
        "no-work-is-known",
        "engine/state",
        "any(f.lineage.last_merged(id) > 0 for f in",
        "any(False for f in",
        ENGINE,
    ),
    mutant(
        "a-new-run-believes-in-nobody",
        "engine/state",
        "return self.is_young or any(",
        "return any(",
        ENGINE,
    ),
    mutant(
        "everybody-is-believed-in",
        "engine/state",
        "return self.is_young or any(",
        "return True or any(",
        ENGINE,
        8,
    ),
    mutant(
        "nothing-is-doubted",
        DETOURS,
        "        state.roster.go_betweens.doubt(now, via, patience_s)\n",
        "",
        ENGINE,
        8,
    ),
    mutant(
        "stops-count-as-waits",
        DETOURS,
        "min(now - known.looked_at, BEATS * timing.beat_s)",
        "now - known.looked_at",
        ENGINE,
        8,
    ),
    mutant(
        "every-look-begins-anew", DETOURS, "            self._detours[p] = known\n", "", ENGINE, 8
    ),
    mutant(
        "nobody-looks-for-detours",
        "engine/offers",
        "        self._detours.look(now, fragment)\n",
        "",
        ENGINE,
        8,
    ),
    mutant(
        "offers-from-afar-stay",
        RELAYING,
        "wanted = relayed or apart or not",
        "wanted = relayed or not",
    ),
    mutant(
        "older-versions-reach-nobody",
        RELAYING,
        "sealer.linked and self.state.me in known",
        "sealer.linked",
    ),
    mutant(
        "offers-are-passed-on-into-the-blue",
        RELAYING,
        "return apart and sealer.linked and",
        "return apart and",
    ),
    mutant(
        "offers-of-the-sealer-go-back-to-it",
        RELAYING,
        "{sealer.id, *sealer.reaches}",
        "{*sealer.reaches}",
    ),
    mutant(
        "one-side-says-that-both-are-apart",
        RELAYING,
        "author not in known and sealer.id not in peer.reaches",
        "author not in known",
    ),
    mutant(
        "offers-from-afar-are-refused",
        RELAYING,
        "return not is_here or",
        "return not self._lives(author) or",
    ),
    mutant(
        "seals-stay-between",
        RELAYING,
        "if is_near or (sealer and self._is_out_of_reach(peer, sealer)):",
        "if is_near:",
    ),
    mutant(
        "seals-from-between-are-refused",
        ADOPTION,
        "    if _is_from_go_between(seal, state):\n        return True\n    sealer, passed_by",
        "    sealer, passed_by",
    ),
    mutant(
        "anybody-hands-seals-on",
        ADOPTION,
        "pending.sent_to == seal.passed_by and not reached",
        "not reached",
        ENGINE,
        8,
    ),
    mutant(
        "seals-of-the-reached-come-from-anybody",
        ADOPTION,
        "pending.sent_to == seal.passed_by and not reached",
        "pending.sent_to == seal.passed_by",
        ENGINE,
        8,
    ),
    mutant("nobody-waits-for-those-afar", "engine/sealer", "*here, *self._from_afar(p)]", "*here]"),
)
