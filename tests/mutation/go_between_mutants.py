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
PULLING = "engine/pulling"
PASSED = "engine/passed_seals"
CHAIN = "engine/seal_chain"
REACH = "membership/reach"
TRANSFERS = of("unit/transport/test_transfers")


def mutant(
    name: str, room: str, old: str, new: str, tests: tuple[str, ...] = ENGINE, law: int = 7
) -> Mutant:
    return Mutant(name, law, room, old, new, tests)


GO_BETWEEN_MUTANTS = (
    mutant(
        "an-orphan-waits-until-its-sealer-is-reached",
        RELAYING,
        "roster.find(between or sealer.id)",
        "roster.find(sealer.id)",
    ),
    mutant(
        "an-orphan-that-a-go-between-holds-is-sent-again",
        RELAYING,
        "to.beat.reports if to.beat",
        "sealer.beat.reports if sealer.beat",
    ),
    Mutant(
        "a-learner-between-two-models-stands-for-neither",
        8,
        "protocol/lineage",
        "begun=STEPPED if tokens else begun",
        "begun=begun",
        of("unit/engine/test_model_key"),
    ),
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
        "a-stream-counts-on-which-nothing-comes",
        ROSTER,
        "peer.lost = peer.lost or peer.linked",
        "pass",
        CHOICE,
    ),
    mutant(
        "a-standing-stream-is-heard",
        ROSTER,
        "if peer.heard and now >= peer.sign_at",
        "if not peer.linked and now >= peer.sign_at",
        CHOICE,
    ),
    mutant(
        "beats-are-as-frequent-in-a-big-roster",
        ROSTER,
        "rare = 1 + self.size // FANOUT if peer.linked else 1",
        "rare = 1",
        CHOICE,
    ),
    mutant(
        "bytes-of-a-peer-are-no-sign-of-it",
        ROSTER,
        "            peer.heard_at = peer.sign_at = now\n            peer.silent",
        "            peer.heard_at = now\n            peer.silent",
        CHOICE,
    ),
    mutant(
        "a-new-stream-is-no-sign",
        ROSTER,
        "                peer.heard_at = peer.sign_at = now\n                peer.lost",
        "                peer.heard_at = now\n                peer.lost",
        CHOICE,
    ),
    mutant(
        "a-learner-suspects-where-it-has-hung-up",
        ROSTER,
        "not (up or (peer.lost and not peer.heard))",
        "not up",
        CHOICE,
    ),
    mutant(
        "last-words-after-an-eviction-are-no-death",
        ROSTER,
        "not (up or (peer.lost and not peer.heard))",
        "not (up or peer.lost)",
        of("unit/engine/test_presence"),
    ),
    mutant(
        "a-stop-is-silence-of-the-unlinked",
        ROSTER,
        "                peer.sign_at = min(now, peer.sign_at + seconds)\n",
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
        "any(id.name in f.lineage.names for f in",
        "any(False for f in",
        ENGINE,
    ),
    mutant(
        "a-learner-that-has-restarted-seals-for-its-room-alone",
        "engine/state",
        "any(id.name in f.lineage.names for f in",
        "any(f.lineage.last_merged(id) > 0 for f in",
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
        REACH,
        "other.linked and roster.me in other.reaches",
        "other.linked",
    ),
    mutant(
        "offers-are-passed-on-into-the-blue",
        REACH,
        "return apart and other.linked and",
        "return apart and",
    ),
    mutant(
        "offers-of-the-sealer-go-back-to-it",
        REACH,
        " or author == sealer:",
        ":",
    ),
    mutant(
        "one-side-says-that-both-are-apart",
        REACH,
        "author not in other.reaches and sealer not in one.reaches",
        "author not in other.reaches",
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
        "if is_near or are_apart(state.roster, peer, seal.sealer):",
        "if is_near:",
    ),
    mutant(
        "seals-from-between-are-refused",
        ADOPTION,
        "    if is_between(state, fragment, seal.passed_by, seal.sealer):\n        return True\n"
        "    sealer, passed_by",
        "    sealer, passed_by",
    ),
    mutant(
        "anybody-hands-seals-on",
        PULLING,
        "pending.sent_to == peer and not reached",
        "not reached",
        ENGINE,
        8,
    ),
    mutant(
        "seals-of-the-reached-come-from-anybody",
        PULLING,
        "pending.sent_to == peer and not reached",
        "pending.sent_to == peer",
        ENGINE,
        8,
    ),
    mutant("nobody-waits-for-those-afar", "engine/sealer", "*here, *self._from_afar(p)]", "*here]"),
    mutant(
        "no-seal-is-asked-for-between",
        PULLING,
        "return peer == sealer or passes_on",
        "return peer == sealer",
    ),
    mutant(
        "a-sealer-out-of-reach-is-asked-for-a-missed-seal",
        PULLING,
        "sealer = seal.sender if through else seal.sealer",
        "sealer = seal.sealer",
    ),
    mutant(
        "the-peer-that-was-asked-may-not-pass-a-seal-on",
        ADOPTION,
        "self.pulling.is_answer(seal, fragment) or _may_come",
        "_may_come",
    ),
    mutant(
        "a-peer-answers-with-a-seal-to-an-anchor-that-nobody-has",
        PULLING,
        "return asked and self.majority.believes(fragment, seal.key, seal.sender)",
        "return asked",
        ENGINE,
        8,
    ),
    mutant(
        "a-peer-answers-that-nobody-asked",
        PULLING,
        "return asked and self.majority.believes(fragment, seal.key, seal.sender)",
        "return self.majority.believes(fragment, seal.key, seal.sender)",
        ENGINE,
        8,
    ),
    mutant(
        "an-answer-in-vain-is-waited-for",
        ADOPTION,
        "            self.pulling.in_vain(now, seal.sender, seal.fragment)\n",
        "            pass\n",
    ),
    mutant(
        "an-answer-in-vain-may-come-at-once-again",
        PULLING,
        "            del self.state.wants[p]\n            self.doubt(now, peer, wanted.since)\n",
        "            del self.state.wants[p]\n",
        ENGINE,
        8,
    ),
    mutant(
        "anybody-ends-a-want",
        PULLING,
        "if wanted and wanted.peer == peer and wanted.held is None:",
        "if wanted:",
        ENGINE,
        8,
    ),
    mutant("go-betweens-keep-no-seals", RELAYING, "        self.passed_seals.keep(seal)\n", ""),
    mutant(
        "go-betweens-answer-with-no-seals",
        "engine/answers",
        "return made or self.passed_seals.answer_to(want)",
        "return made",
    ),
    mutant(
        "seals-are-passed-on-to-those-that-reach-the-sealer",
        PASSED,
        "return seal if seal and are_apart(state.roster, want.peer, seal.sealer) else None",
        "return seal",
    ),
    mutant(
        "seals-are-kept-for-all",
        PASSED,
        "if key < last.key and any(are_apart(roster, id, sealer) for sealer in sealers)",
        "if key < last.key",
        ENGINE,
        8,
    ),
    mutant(
        "seals-of-a-former-sealer-are-let-go",
        PASSED,
        "self._lacking(seal, {seal.sealer, *chain.sealers})",
        "self._lacking(seal, {seal.sealer})",
    ),
    mutant(
        "passed-seals-are-never-reviewed",
        "engine/engine",
        "            self.sealer.relaying.passed_seals.review()\n",
        "",
        ENGINE,
        8,
    ),
    mutant(
        "passed-seals-that-lead-elsewhere-stay",
        "engine/state",
        "        self.passed_seals[p].moved(lineage.key)\n",
        "",
        ENGINE,
        8,
    ),
    mutant(
        "what-all-have-gone-past-stays",
        CHAIN,
        "if least is not None and kept.key > least]",
        "if least is not None]",
        ENGINE,
        8,
    ),
    mutant(
        "a-want-takes-seals-on-any-anchor",
        "transport/transfers",
        "if seal.passed_by and seal.base != want.have:",
        "if False:",
        TRANSFERS,
        8,
    ),
    mutant(
        "a-want-takes-no-seal-of-another",
        "transport/transfers",
        "            message = await self._carrier.download(link, stream, passed_on=True)\n",
        "            message = await self._carrier.download(link, stream)\n",
        TRANSFERS,
    ),
    mutant(
        "seals-are-pushed-by-anybody",
        "transport/transfers",
        "message = await self._carrier.download(link, stream, limit=limit)",
        "message = await self._carrier.download(link, stream, limit=limit, passed_on=True)",
        TRANSFERS,
        8,
    ),
)
