"""Mutants of joint offers: of the relay that joins, of the sealer, and of the mean of means."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

JOINING = of("unit/engine/test_joint_offers")
INBOX = of("unit/engine/test_round")
MEANS = of("unit/worker/test_joint")
AVERAGES = of("unit/worker/test_moment_packet", "mean_of_means")
MOMENTS = of("unit/worker/test_moment_means", "joint or zone or counts")
WIRE = of("unit/transport/test_wire", "joint")
GATHER, ROUND = "engine/joint_offers", "engine/round"
WORKER = "worker/joint"


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...] = JOINING) -> Mutant:
    return Mutant(name, 5, room, old, new, tests)


JOINT_MUTANTS = (
    mutant(
        "moments-that-the-relay-does-not-know-are-lost",
        "engine/joint_offers",
        "fits = is_near and is_known and",
        "fits = is_near and",
    ),
    mutant(
        "a-neighbour-keeps-offers-out",
        GATHER,
        "    if are_neighbours(state.roster, state.me, offer.peer):\n        return False\n",
        "",
    ),
    # ── the relay ─────────────────────────────────────────────────────────────────────────────────
    mutant(
        "joint-offers-are-joined-again",
        GATHER,
        "not offer.others and offer.carrier",
        "offer.carrier",
    ),
    mutant("parts-are-joined-again", GATHER, "offer.carrier is None and offer.inh", "offer.inh"),
    mutant("inherited-work-is-joined", GATHER, " and offer.inherited is None", ""),
    mutant("offers-of-nothing-are-joined", GATHER, "offer.steps > 0 and", ""),
    mutant("residuals-are-joined", GATHER, " and offer.again == NO_SHARE", ""),
    mutant(
        "sections-of-any-name-are-joined",
        GATHER,
        'set(offer.sections) - moments == {"delta"}',
        '"delta" in offer.sections',
    ),
    mutant(
        "moments-are-joined-without-a-delta",
        GATHER,
        'set(offer.sections) - moments == {"delta"}',
        'set(offer.sections) - moments <= {"delta"}',
    ),
    mutant(
        "moments-are-joined-for-a-former-version",
        GATHER,
        "level >= (JOINT_MOMENTS if moments else JOINT_DELTAS)",
        "level >= JOINT_DELTAS",
        of("virtual/test_joint_offers", "moments_of_a_zone"),
    ),
    mutant(
        "deltas-are-not-joined-for-a-former-version",
        GATHER,
        "level >= (JOINT_MOMENTS if moments else JOINT_DELTAS)",
        "level >= JOINT_MOMENTS",
    ),
    mutant(
        "a-later-version-is-none",
        GATHER,
        "level >= (JOINT_MOMENTS if moments else JOINT_DELTAS)",
        "level == (JOINT_MOMENTS if moments else JOINT_DELTAS)",
    ),
    mutant(
        "a-relay-does-not-wait", GATHER, "if (own and not missing) or now >= until:", "if True:"
    ),
    mutant("a-relay-waits-for-ever", GATHER, " or now >= until:", ":"),
    mutant(
        "neighbours-are-not-called", GATHER, "self._call(p, missing, calls_own=own is None)", "pass"
    ),
    mutant("neighbours-are-called-for-ever", GATHER, "            self._since[p] = now\n", ""),
    mutant(
        "neighbours-do-not-wait-for-our-own",
        GATHER,
        "comes = bool(joined) and self._expects_own(p)",
        "comes = False",
    ),
    mutant(
        "orphans-wait-for-our-own",
        GATHER,
        "comes = bool(joined) and",
        "comes = bool(others) and",
    ),
    mutant(
        "neighbours-wait-for-a-sealer-that-takes-none",
        GATHER,
        "self._joins(offer, level)]",
        "self._joins(offer, JOINT_MOMENTS)]",
    ),
    mutant(
        "our-own-waits-for-a-sealer-that-takes-none",
        GATHER,
        "not self._joins(own, level)",
        "not self._joins(own, JOINT_MOMENTS)",
    ),
    mutant(
        "no-sealer-is-asked-for-its-guard",
        "engine/state",
        "return takes if self.joins(p) else",
        "return JOINT_MOMENTS if self.joins(p) else",
    ),
    mutant(
        "a-relay-goes-by-its-own-guard",
        "engine/state",
        "return takes if self.joins(p) else",
        "return takes if self.takes_joint(p) else",
    ),
    mutant("joined-twice", GATHER, "        if p in self._joining:\n            return True\n", ""),
    mutant("joined-again-and-again", GATHER, "fits and not self._is_tried(offer)", "fits"),
    mutant(
        "another-zones-offers-are-joined",
        GATHER,
        "offer.peer == roster.me or are_neighbours(roster, roster.me, offer.peer)",
        "True",
    ),
    mutant("an-older-offer-goes-out", GATHER, "self.waiting(job.fragment) != own or ", ""),
    mutant(
        "joined-for-a-former-sealer",
        GATHER,
        " or state.sealer(job.fragment) != job.sealer:",
        ":",
    ),
    mutant(
        "others-travel-with-their-bytes",
        GATHER,
        "replace(other, sections={}) for other",
        "other for other",
    ),
    mutant(
        "members-are-passed-on-at-once",
        "engine/relaying",
        "self._wait(now, self._passing_of(now, offer, job.sealer))",
        "pass",
    ),
    mutant(
        "parts-are-passed-on",
        "engine/relaying",
        "separate = offer.carrier is None and (not offer.others or self._is_left(offer))",
        "separate = not offer.others or self._is_left(offer)",
    ),
    mutant(
        "joint-offers-go-down-with-their-relay",
        "engine/relaying",
        " and (not offer.others or self._is_left(offer))",
        " and not offer.others",
    ),
    mutant(
        "joint-offers-of-the-living-are-passed-on",
        "engine/relaying",
        " and (not offer.others or self._is_left(offer))",
        "",
    ),
    mutant(
        "the-relay-alone-may-be-gone",
        "engine/relaying",
        "any(self._lives(each.peer) for each in joint.together)",
        "self._lives(joint.peer)",
    ),
    mutant(
        "a-joint-offer-of-a-living-relay-may-be-passed-on",
        "engine/relaying",
        "return self._may_be_gone({each.peer for each in offer.together})",
        "return True",
    ),
    mutant(
        "room-for-one-unknown-learner-is-room-for-all-of-a-joint-offer",
        "engine/relaying",
        "len(unknown | authors) <= state",
        "len(unknown) < state",
    ),
    mutant(
        "joint-offers-of-forgotten-learners-are-not-taken",
        GATHER,
        "    if offer.passed_by:\n        return joins ",
        "    if False:\n        return joins ",
    ),
    mutant(
        "parts-of-a-joint-offer-came-from-its-relay",
        "protocol/messages",
        "by = self.passed_by or self.peer",
        "by = self.peer",
    ),
    mutant(
        "a-relay-that-is-gone-is-blamed",
        "engine/sealer",
        'state.refuse(offer.passed_by or offer.peer, f"offer {offer.seq}", flaw)',
        'state.refuse(offer.peer, f"offer {offer.seq}", flaw)',
    ),
    mutant(
        "only-the-relay-of-a-lost-joint-offer-is-named",
        "engine/relaying",
        "(each.peer.name for each in offer.together)",
        "(each.peer.name for each in [offer])",
    ),
    mutant(
        "own-offer-goes-round",
        "engine/offers",
        "return sealer if hop == self.state.me and not self._gathers(p, sealer) else hop",
        "return hop",
    ),
    mutant(
        "a-waiting-offer-goes-again",
        "engine/offers",
        "(target, sealer) if target == self.state.me else (target,)",
        "(target,)",
    ),
    mutant(
        "a-call-drives-out-what-waits",
        "engine/offers",
        "        if relay == self.state.me:\n            return False",
        "        if False:\n            return False",
    ),
    # ── the sealer ────────────────────────────────────────────────────────────────────────────────
    mutant(
        "joint-offers-of-anybody",
        GATHER,
        'zone_of(state.roster, other.peer) not in ("", zone)',
        "False",
    ),
    mutant("joint-offers-of-any-model", GATHER, "other.genesis != offer.genesis or ", ""),
    mutant("joint-offers-of-anything", GATHER, "genesis or not may_join(bare):", "genesis:"),
    mutant("strangers-to-each-other", GATHER, " and all(near)", ""),
    mutant(
        "joint-where-nobody-joins",
        GATHER,
        "joins = state.takes_joint(offer.fragment) > NO_JOINT",
        "joins = True",
    ),
    mutant(
        "a-sealer-that-clips-takes-joint-offers",
        "engine/state",
        "if self.joins(p) and not self.policies.clips else",
        "if self.joins(p) else",
    ),
    mutant(
        "no-sealer-says-that-it-takes-joint-offers",
        "engine/beats",
        "            takes_joint=state.takes_joint(0),\n",
        "",
    ),
    mutant(
        "the-word-of-joint-offers-is-not-sent",
        "transport/wire",
        "        zone=beat.zone,\n        takes_joint=beat.takes_joint,\n",
        "        zone=beat.zone,\n",
        of("unit/transport/test_wire", "beat"),
    ),
    mutant(
        "the-engine-does-not-know-that-its-guard-clips",
        "settings",
        "        clips=guard is not None and guard.clip,\n",
        "",
        of("unit/test_settings", "guard"),
    ),
    mutant(
        "signed-offers-are-joined",
        "engine/state",
        "self.policies.joins and not self.policies.signed",
        "self.policies.joins",
    ),
    mutant(
        "buffers-are-joined",
        "engine/state",
        " and not self.is_buffers(p)\n\n    def takes_joint",
        "\n\n    def takes_joint",
    ),
    mutant(
        "one-fresh-part-is-enough",
        "engine/sealer",
        "elif all(state.rounds[p].fresh(o,",
        "elif any(state.rounds[p].fresh(o,",
    ),
    mutant(
        "the-others-are-not-held",
        "engine/sealer",
        "round.add(*offer.together)",
        "round.add(offer)",
    ),
    mutant(
        "parts-without-the-rest", ROUND, "first.carrier is None and here", "first.carrier is None"
    ),
    mutant("parts-of-another-joint-offer", ROUND, "p and p.carrier == first.peer and", "p and"),
    mutant("parts-of-another-number", ROUND, " and p.seq == other.seq", ""),
    mutant(
        "parts-that-are-not-named",
        ROUND,
        "if first.carrier is None and here:",
        "if here:",
    ),
    mutant(
        "parts-of-a-joint-offer-count", ROUND, "        return bool(lost)", "        return False"
    ),
    mutant(
        "parts-of-a-joint-offer-are-kept",
        ROUND,
        "            self.drop(peer)\n        return",
        "            pass\n        return",
    ),
    mutant(
        "a-seal-below-quorum",
        "engine/sealer",
        "(self._leave_out_parts(view) or self._refuse_outlier(view))",
        "self._refuse_outlier(view)",
    ),
    mutant("nothing-that-is-joint", ROUND, "        others=(),\n        carrier=None,\n", ""),
    mutant(
        "a-sealer-takes-no-moments",
        "engine/state",
        "return JOINT_MOMENTS if self.joins(p) and",
        "return JOINT_DELTAS if self.joins(p) and",
    ),
    # ── moments ───────────────────────────────────────────────────────────────────────────────────
    mutant(
        "a-group-counts-as-one-member",
        "worker/moment_packet",
        "have = [(parts[i], count[i]) for",
        "have = [(parts[i], 1) for",
        AVERAGES,
    ),
    mutant(
        "a-mean-tells-the-number-of-packets",
        "worker/moment_packet",
        "counts.append(total)",
        "counts.append(len(have))",
        AVERAGES,
    ),
    mutant(
        "a-sealer-overlooks-the-counts",
        "worker/moment_means",
        "if offer.others else (1,)",
        "if False else (1,)",
        MOMENTS,
    ),
    mutant(
        "moments-get-lost-where-they-are-joined",
        "worker/fragment_anchor",
        "Done(sections={**found, **self.means.joined(job.offers)})",
        "Done(sections=found)",
        MOMENTS,
    ),
    mutant(
        "counts-without-moments",
        "worker/moment_means",
        "        if not means:\n            return {}\n",
        "",
        MOMENTS,
    ),
    mutant(
        "joint-moments-are-not-checked",
        "worker/fragment_anchor",
        "                self.means.check_joint(offer)\n",
        "",
        MOMENTS,
    ),
    mutant(
        "counts-of-tensors-that-are-not-there",
        "worker/moment_means",
        "if [count > 0 for count in counts[name]] != held:",
        "if False:",
        MOMENTS,
    ),
    mutant("counts-that-are-not-whole", WORKER, "value.is_integer() and 0 <=", "0 <=", MOMENTS),
    mutant("counts-of-more-than-all", WORKER, "0 <= value <= members", "0 <= value", MOMENTS),
    mutant("counts-below-none", WORKER, "0 <= value <= members", "value <= members", MOMENTS),
    mutant(
        "no-room-for-counts",
        "settings",
        " + counts_nbytes(tensors, kinds)",
        "",
        of("unit/test_settings", "largest"),
    ),
    # ── the bytes ─────────────────────────────────────────────────────────────────────────────────
    mutant(
        "joint-offers-in-joint-offers",
        "transport/wire_bulk",
        "not any(other.others for other in others)",
        "True",
        WIRE,
    ),
    mutant(
        "one-learner-twice", "transport/wire_bulk", "len(names) == 1 + len(others)", "True", WIRE
    ),
    mutant("joint-over-fragments", "transport/wire_bulk", "len(fragments) == 1", "True", WIRE),
    mutant(
        "a-joint-delta-of-any-length",
        WORKER,
        "if not length <= longest * (1 + ROUNDING):",
        "if False:",
        MEANS,
    ),
    mutant(
        "a-joint-delta-as-long-as-the-shortest",
        WORKER,
        "longest = max(norms",
        "longest = min(norms",
        MEANS,
    ),
    mutant(
        "joint-deltas-are-not-checked",
        "worker/fragment_anchor",
        "            if offer.others:\n",
        "            if False:\n",
        MEANS,
    ),
    mutant(
        "a-joint-delta-that-is-not-finite",
        WORKER,
        "if not math.isfinite(found.most):",
        "if False:",
        MEANS,
    ),
    mutant("norms-of-any-number", WORKER, " or packet.nbytes != 4 * numel", "", MEANS),
    mutant(
        "no-room-for-norms",
        "settings",
        "        if self.policies.joins:\n",
        "        if False:\n",
        of("unit/test_settings", "largest"),
    ),
    mutant("joint-offers-of-any-number", GATHER, "[:OTHERS_LIMIT]", ""),
    mutant(
        "joint-offers-by-nothing",
        GATHER,
        "if offer.others and not may_join(",
        "if False and not may_join(",
    ),
    mutant("joint-offers-of-the-sealers-work", GATHER, "if state.is_me(other.peer):", "if False:"),
    mutant(
        "other-sealers-are-not-answered",
        "engine/offers",
        "joins and sealer == self.state.sealer(p)\n",
        "joins\n",
    ),
    mutant(
        "norms-that-are-no-lengths", WORKER, "math.isfinite(value) and value >= 0", "True", MEANS
    ),
    mutant(
        "a-joint-offer-has-the-senders-weight",
        WORKER,
        "math.fsum(weights[member] for member in members)",
        "weights[i]",
        MEANS,
    ),
    mutant(
        "norms-of-the-first-for-all",
        "worker/seal_payload",
        "            if len(members) > 1:\n                told",
        "            if False:\n                told",
        MEANS,
    ),
    mutant(
        "packets-of-joint-offers-are-relayed",
        "worker/seal_payload",
        "relay and not held.joint and",
        "relay and",
        MEANS,
    ),
    mutant(
        "a-later-offer-drives-a-joint-one-out",
        ROUND,
        "if _came_joint(held) and held.claim",
        "if False and held.claim",
    ),
    mutant(
        "a-later-offer-of-the-relay-drives-its-joint-one-out",
        ROUND,
        "return offer.carrier is not None or bool(offer.others)",
        "return offer.carrier is not None",
    ),
    mutant(
        "a-joint-offer-loses-the-later-offers-of-neighbours",
        ROUND,
        "return offer.carrier is not None or bool(offer.others)",
        "return bool(offer.others)",
        of("virtual/test_joint_offers"),
    ),
    mutant("an-invented-part-stays", ROUND, " and held.seq < offer.seq:", ":"),
    mutant(
        "a-part-stays-that-its-author-cannot-have-made",
        ROUND,
        "held.claim.author == offer.claim.author and held.seq",
        "held.seq",
    ),
    mutant(
        "any-later-offer-is-kept-out",
        ROUND,
        "if _came_joint(held) and held.claim",
        "if held.claim",
        INBOX,
    ),
    mutant(
        "the-word-of-others-stays",
        ROUND,
        "    return differs and offer.passed_by is None\n",
        "    return False\n",
        INBOX,
    ),
    mutant(
        "the-word-of-others-replaces-the-senders",
        ROUND,
        "    return differs and offer.passed_by is None\n",
        "    return differs\n",
        INBOX,
    ),
    mutant(
        "an-offer-leaves-its-joint-one",
        ROUND,
        "    return differs and offer.passed_by is None\n",
        "    return offer.passed_by is None\n",
        INBOX,
    ),
    mutant(
        "the-word-of-others-is-like-the-senders",
        ROUND,
        "    if (offer.passed_by is None) == (held.passed_by is None):\n",
        "    if True:\n",
        INBOX,
    ),
)
