"""The mutants of `mutants.py`: rules of the engine, each broken in one place, and where that must be noticed.

By the law that is broken first."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """In `mend_optim/{room}.py`, `old` becomes `new`; `tests`, pytest's arguments, are where it must be noticed."""

    name: str
    law: int
    room: str
    old: str
    new: str
    tests: tuple[str, ...]


def of(files: str, only: str = "") -> tuple[str, ...]:
    """These test files; `only` some of their tests."""
    return (*(f"tests/{file}.py" for file in files.split()), *(["-k", only] if only else []))


ALONE, HOUSE = of("contract/test_alone"), of("house/test_architecture")
LINEAGE, PROGRESS, ROUND, QUORUM, ROSTER = (
    of("unit/protocol/test_lineage"),
    of("unit/engine/test_progress"),
    of("unit/engine/test_round"),
    of("unit/engine/test_quorum"),
    of("unit/membership/test_roster"),
)
OUTER, ANCHOR, JOINING, FEEDBACK = (
    of("unit/worker/test_outer"),
    of("unit/worker/test_anchors"),
    of("unit/engine/test_model_key"),
    of("unit/worker/test_feedback"),
)
ADOPTING, OFFERING, SEALING, TRAINING = (
    of("unit/engine/test_adoption"),
    of("unit/engine/test_offers"),
    of("unit/engine/test_sealer"),
    of("unit/engine/test_boundaries"),
)
THREADS, SHARE, BRANCHES, WIRE = (
    of("together/test_rounds"),
    of("unit/engine/test_superseded"),
    of("together/test_branches"),
    of("unit/transport/test_wire"),
)
PASSED_ON = of("unit/transport/test_grpc_transport", "passed_on")
STORM = (
    "tests/virtual/test_storms.py::test_laws_hold_under_hundreds_of_fault_schedules[0]",
)  # 150 fault schedules

# fmt: off
MUTANTS = (
    # ── 1: alone is identity ─────────────────────────────────────────────────────────────────────────────────────────
    Mutant("alone-starts-a-thread", 1, "settings",
           "        if place is None:\n            return None\n        me =",
           "        if place is None:\n"
           "            import threading\n"
           "\n"
           "            threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
           "            return None\n"
           "        me =", ALONE),
    Mutant("alone-makes-a-copy", 1, "optimizer",
           "self._run.check_saved()",
           ("self._run.check_saved()\n"
"            self._copies = [p.clone() for p in self._run.parameters]"), ALONE),
    Mutant("alone-groups-are-copies", 1, "optimizer",
           "return self.inner.param_groups", "return [dict(group) for group in self.inner.param_groups]", ALONE),
    Mutant("alone-closure-is-called-twice", 1, "optimizer",
           "else self.inner.step(closure)", "else (closure(), self.inner.step(closure))[1]", ALONE),
    # ── 2: only step() writes parameters ─────────────────────────────────────────────────────────────────────────────
    Mutant("anchor-shares-the-parameters-memory", 2, "handover",
           "        gather(fragment, self._parameters, buffer, self._rounding[p])\n        return buffer",
           "        gather(fragment, self._parameters, buffer, self._rounding[p])\n"
           "        return self._parameters[fragment.tensors[0]].detach().view(-1)", THREADS),
    Mutant("worker-applies-corrections", 2, "runtime/learner",
           "       self.worker.mailbox[correction.fragment] = correction",
           "       self.engine.correction_applied(0.0, correction.fragment, correction.replace)", THREADS),
    Mutant("step-while-the-anchor-is-swapped-in", 2, "optimizer",
           'self._refuse_swapped("step")', "pass", of("together/test_optimizer")),
    Mutant("global-weights-stay", 2, "handover",
           "                    parameter.copy_(value)", "                    pass", of("together/test_optimizer")),
    # ── 3: one seal, the same bits everywhere ────────────────────────────────────────────────────────────────────────
    Mutant("everybody-seals", 3, "engine/sealer", ("        if (\n"
"            not self.state.joined\n"
"            or self.state.roster.sealer(p) != self.state.me\n"
"            or fragment.deferred_news\n"
"        ):"), "        if not self.state.joined or fragment.deferred_news:", SEALING),
    Mutant("merge-in-arrival-order", 3, "engine/round", "in sorted(self.inbox.items()))", "in self.inbox.items())", ROUND),
    Mutant("digest-in-arrival-order", 3, "protocol/lineage", "members = sorted(members)", "members = list(members)", LINEAGE),
    Mutant("digest-without-payload", 3, "protocol/lineage", "[self.digest, payload, *", "[self.digest, *", LINEAGE),
    Mutant("digest-without-base", 3, "protocol/lineage", "[self.digest, payload, *", "[payload, *", LINEAGE),
    Mutant("seal-of-another-base", 3, "engine/adoption", "if seal.base != fragment.lineage.digest:", "if False:", ADOPTING),
    Mutant("seal-that-does-not-follow", 3, "engine/adoption", "if lineage.key != seal.key:", "if False:", ADOPTING),
    Mutant("merge-while-merging", 3, "engine/sealer", (("        if (\n"
"            round.phase is Phase.MERGING\n"
"            or fragment.motion is Motion.MOVING\n"
"            or self.state.founding\n"
"            or self.state.switch\n"
"        ):")), "        if fragment.motion is Motion.MOVING or self.state.founding or self.state.switch:", SEALING),
    Mutant("sealers-differ", 3, "membership/roster", "candidates.append(self.me)", "return self.me", ROSTER),
    # ── 4: anchors form a max-register ───────────────────────────────────────────────────────────────────────────────
    Mutant("version-before-tokens", 4, "protocol/lineage",
           "return Key(self.tokens, self.version,", "return Key(self.version, self.tokens,", LINEAGE),
    Mutant("fresh-model-has-tokens", 4, "protocol/lineage",
           "return cls(tokens=0, version=0,", "return cls(tokens=1, version=0,", LINEAGE),
    Mutant("founders-fragments-are-ordered-apart", 4, "protocol/lineage",
           "content_digest(self.genesis, model)", "content_digest(self.digest, model)", LINEAGE),
    Mutant("pull-the-smaller", 4, "engine/adoption",
           "if key <= fragment.lineage.key:", "if key >= fragment.lineage.key:", ADOPTING),
    Mutant("take-the-smaller", 4, "engine/adoption",
           (("        if (\n"
"            lineage.genesis != self.state.genesis\n"
"            or lineage.key <= fragment.lineage.key\n"
"            or self.state.founding\n"
"        ):")), "        if lineage.genesis != self.state.genesis or self.state.founding:", ADOPTING),
    Mutant("take-another-model-as-ours", 4, "engine/adoption", (("        if (\n"
"            lineage.genesis != self.state.genesis\n"
"            or lineage.key <= fragment.lineage.key\n"
"            or self.state.founding\n"
"        ):")), "        if lineage.key <= fragment.lineage.key or self.state.founding:", ADOPTING),
    Mutant("fresh-model-wins", 4, "engine/adoption", "elif not same and theirs > ours and", "elif not same and", ADOPTING),
    Mutant("model-order-without-tokens", 4, "protocol/lineage", "ModelKey(sum(k.tokens for k in listed)", "ModelKey(0", JOINING),
    Mutant("carry-progress-across-genesis", 4, "engine/adoption",
           "    replace=True,", "    replace=False,", ADOPTING),
    Mutant("take-a-model-in-pieces", 4, "engine/adoption", (("        if (\n"
"            switch\n"
"            and switch.complete\n"
"            and all(f.motion is Motion.STILL for f in self.state.fragments)\n"
"        ):")), "        if switch and True and all(f.motion is Motion.STILL for f in self.state.fragments):", ADOPTING),
    Mutant("take-any-piece-for-a-model", 4, "engine/adoption", (("            if (\n"
"                lineage.genesis == self.state.switch.genesis\n"
"                and state.fragment < self.state.switch.fragments\n"
"            ):")), "            if lineage.genesis == self.state.switch.genesis:",
           ADOPTING),
    Mutant("keep-the-latest-not-the-greatest", 4, "engine/adoption",
           "held is None or _key_of(news) > _key_of(held)", "True", ADOPTING),
    Mutant("restart-keeps-its-incarnation", 4, "settings",
           "PeerId(self.name, time.time_ns())",
           "PeerId(self.name, 1)", of("together/test_copies together/test_restore", "another or goes_on or going_on")),
    Mutant("admit-a-stale-incarnation", 4, "membership/roster",
           "if id.name == self.me.name or (known and known.id.incarnation > id.incarnation):",
           "if id.name == self.me.name:", ROSTER),
    Mutant("hear-a-stale-incarnation", 4, "membership/roster",
           "(incarnation, rumor.count) <= last:", "rumor.count <= last[1]:", ROSTER),
    Mutant("found-without-tokens", 4, "engine/boundaries",
           "         if not any(f.unmerged(self.state.totals).step for f in self.state.fragments):", "         if False:", TRAINING),
    # ── 5: exactly once ──────────────────────────────────────────────────────────────────────────────────────────────
    Mutant("merged-offers-are-fresh", 5, "engine/round", ("        return _fits(offer, lineage) and (\n"
"            held is None or offer.order > held.order or not held.steps\n"
"        )"), "        return held is None or offer.order > held.order or not held.steps", ROUND),
    Mutant("held-offers-are-fresh", 5, "engine/round",
           ("        return _fits(offer, lineage) and (\n"
"            held is None or offer.order > held.order or not held.steps\n"
"        )"), "        return _fits(offer, lineage)", ROUND),
    Mutant("twins-are-merged-both", 5, "engine/round", ("        self.members = tuple(\n"
"            o if not o.steps or first[o.claim.author] is o else _nothing(o) for o in held\n"
"        )"), "        self.members = tuple(o if not o.steps or True else _nothing(o) for o in held)", ROUND),
    Mutant("the-later-twin-counts", 5, "engine/round", ("        stepped = sorted(\n"
"            (o for o in self.inbox.values() if o.steps), key=lambda o: (o.seq, o.peer), reverse=True\n"
"        )"), "        stepped = sorted((o for o in self.inbox.values() if o.steps), key=lambda o: (o.seq, o.peer))", ROUND),
    Mutant("purge-keeps-the-merged", 5, "engine/round", "offer.steps and _fits(offer, lineage)", "offer.steps", ROUND),
    Mutant("nothing-counts-for-two-seals", 5, "engine/round",
           "offer.genesis == lineage.genesis and offer.steps and", "offer.genesis == lineage.genesis and", ROUND),
    Mutant("merged-with-a-gap", 5, "engine/round",
           "== offer.follows <= offer.claim.settled", "<= offer.claim.settled", SEALING),
    Mutant("merged-whatever-it-claims", 5, "engine/round",
           "== offer.follows <= offer.claim.settled", "== offer.follows", SEALING),
    Mutant("sent-again-while-the-seal-comes", 7, "engine/offers",
           "pending.resend_at = max(pending.resend_at, now + self.patience(pending))", "pass", of("unit/engine/test_offers")),
    Mutant("no-patience-with-slow-links", 7, "engine/offers",
           "self.state.policies.timing.suspect_after_s * rare + pending.seal_s",
           "self.state.policies.timing.suspect_after_s * rare", of("unit/engine/test_offers")),
    Mutant("no-patience-with-long-seals", 7, "engine/offers",
           "took * max(1.0, longer)", "took", of("unit/engine/test_offers")),
    Mutant("asked-again-while-the-seal-comes", 7, "engine/offers",
           "                if fragment.behind_since is not None:", "                if False:", of("unit/engine/test_offers")),
    Mutant("seal-with-who-has-just-come", 5, "engine/sealer", "        if now < known_at:", "        if False:", SEALING),
    Mutant("seal-while-behind", 5, "engine/sealer", "if self._must_catch_up(now, fragment):", "if False:", SEALING),
    Mutant("wait-forever-while-behind", 7, "engine/sealer", "        return now < until", "        return True", SEALING),
    Mutant("offer-follows-nothing", 5, "engine/progress",
           "follows = self.lineage.last_merged(claim.author)\n", "follows = 0\n", OFFERING),
    Mutant("offer-does-not-say-what-it-follows", 5, "engine/progress",
           "    follows=pending.follows,", "    follows=0,", OFFERING),
    Mutant("wire-forgets-what-an-offer-follows", 5, "transport/wire", (("        due=offer.due,\n"
"        follows=offer.follows,")), "        due=offer.due,", WIRE),
    Mutant("wire-forgets-whose-work-it-is", 5, "transport/wire",
           "  inherited=inherited,", "  inherited=None,", WIRE),
    Mutant("checkpoint-forgets-what-an-offer-follows", 5, "worker/checkpoint",
           ("        follows=follows,\n"), "", of("unit/worker/test_checkpoint_reader", "back")),
    Mutant("heirs-offer-follows-nothing", 5, "engine/progress",
           " earlier=(),", (" earlier=(),\n"
"                follows=0,"), PROGRESS),
    Mutant("nothing-has-a-number", 5, "engine/offers",
           "        seq=0,", (("        seq=fragment.seq,")), OFFERING),
    Mutant("offer-follows-the-former-branch", 5, "engine/progress", "self._rebase(pending)", "pass", OFFERING),
    Mutant("another-number-with-every-anchor", 5, "engine/progress",
           "        if follows == pending.follows:\n            return\n", "", OFFERING),
    Mutant("one-number-on-two-branches", 5, "engine/progress",
           "            pending.seq = self.seq = self.seq + 1\n", "            pass\n", OFFERING),
    Mutant("number-taken-twice", 5, "engine/progress",
           "pending.seq = self.seq = self.seq + 1", "pending.seq = self.seq + 1", OFFERING),
    Mutant("heirs-other-number-may-be-used", 5, "engine/progress",
           "pending.seq = max(self.me.incarnation, pending.seq + 1)", "pending.seq = pending.seq + 1", PROGRESS),
    Mutant("heirs-offer-takes-the-number-of-what-follows", 5, "engine/progress",
           "            self.withdraw()", "            pass", PROGRESS),
    Mutant("another-authors-work-goes-into-one-offer", 5, "engine/progress",
           "if self.inherited and self.inherited.author == pending.claim.author:", "if self.inherited:", PROGRESS),
    Mutant("withdrawn-on-a-branch-and-not-called", 7, "engine/progress",
           ("                self.offer_requested = self.offer_requested or (\n"
"                    self.pending is None and not schedule.lockstep\n"
"                )"), "                self.offer_requested = self.offer_requested", PROGRESS),
    Mutant("lockstep-is-called-on-a-branch", 7, "engine/progress",
           ("                self.offer_requested = self.offer_requested or (\n"
"                    self.pending is None and not schedule.lockstep\n"
"                )"), "                self.offer_requested = self.offer_requested or self.pending is None", PROGRESS),
    Mutant("other-number-claims-less", 5, "engine/progress",
           ("            pending.offer = replace(\n"
"                pending.offer, seq=pending.seq, follows=follows, inherited=pending.claim\n"
"            )"), "            pending.offer = replace(pending.offer, seq=pending.seq, follows=follows)", OFFERING),
    Mutant("other-number-is-not-sent", 5, "engine/progress",
           "pending.delivered = follows, None, False", "pending.delivered = follows, pending.sent_to, True", OFFERING),
    Mutant("forget-the-former-number", 5, "engine/progress",
           "return {**dict(self.earlier), self.seq: self.follows}", "return {self.seq: self.follows}", OFFERING),
    Mutant("offers-of-the-dead-are-kept", 5, "engine/sealer", "            self._pass_on(now, round)\n", "", SEALING),
    Mutant("offers-of-the-living-are-passed-on", 5, "engine/sealer",
           "self.state.me, *roster.alive()})", "self.state.me})", SEALING),
    Mutant("passed-on-what-is-held", 5, "engine/sealer",
           "if offer.steps and (offer.peer, offer.seq) not in held:", "if offer.steps:", SEALING),
    Mutant("passed-on-all-the-time", 5, "engine/sealer",
           "            round.pass_on_at = now + self.state.policies.timing.suspect_after_s", "            pass", SEALING),
    Mutant("passed-on-instead-of-ones-own", 5, "transport/grpc_transport",
           "self._transfers.pass_on if reply else self._transfers.exchange", "self._transfers.exchange", PASSED_ON),
    Mutant("what-came-too-early-is-not-offered-again", 5, "engine/engine",
           (("            elif (\n"
"                pending\n"
"                and pending.sent_to == beat.peer\n"
"                and was_unknown\n"
"                and beat.genesis == self.state.genesis\n"
"            ):")), "            elif pending and pending.sent_to == beat.peer and False:", OFFERING),
    Mutant("offered-again-with-every-beat", 5, "engine/engine", (("            elif (\n"
"                pending\n"
"                and pending.sent_to == beat.peer\n"
"                and was_unknown\n"
"                and beat.genesis == self.state.genesis\n"
"            ):")), "            elif pending and pending.sent_to == beat.peer and beat.genesis == self.state.genesis:", OFFERING),
    Mutant("offered-again-to-another-model", 5, "engine/engine",
           (("            elif (\n"
"                pending\n"
"                and pending.sent_to == beat.peer\n"
"                and was_unknown\n"
"                and beat.genesis == self.state.genesis\n"
"            ):")), "            elif pending and pending.sent_to == beat.peer and was_unknown:", OFFERING),
    Mutant("offered-again-though-held", 5, "engine/engine",
           (("            if (\n"
"                pending\n"
"                and pending.sent_to == beat.peer\n"
"                and (self.state.me, pending.seq) in report.held\n"
"            ):")), "            if pending and False:", OFFERING),
    Mutant("offered-again-at-the-next-tick", 5, "engine/engine",
           (("                self.offers.resend(now, fragment)\n")), "", OFFERING),
    Mutant("group-stays-with-the-former-model", 5, "engine/engine",
           "            fragment.transplant(self.state.genesis)", "            pass", ADOPTING),
    Mutant("groups-offer-stays-with-the-former-model", 5, "engine/progress",
           "            self.pending.offer = replace(self.pending.offer, genesis=genesis)\n", "", ADOPTING),
    Mutant("groups-offer-is-not-sent-again", 5, "engine/progress",
           "            self.pending.sent_to = None\n", "", ADOPTING),
    Mutant("groups-inbox-outlives-the-model", 5, "engine/engine",
           ("                self.state.rounds[fragment.fragment].purge(fragment.lineage)\n"), "", ADOPTING),
    Mutant("merged-work-is-not-counted", 5, "engine/progress",
           ("        if merged_own_offer and pending:\n"
"            self.share.add(pending.claim.author, pending.numbers, pending.tokens)"),
           "        if merged_own_offer and pending:", BRANCHES),
    Mutant("founded-work-is-not-counted", 5, "engine/progress",
           "        self.share.add(self.me, {self.seq: follows}, tokens)\n", "", BRANCHES),
    Mutant("founders-offer-is-not-counted", 5, "engine/progress",
           "            self.share.add(pending.claim.author, pending.numbers, pending.tokens)\n            follows =",
           "            follows =", BRANCHES),
    Mutant("founders-offer-is-counted-twice", 5, "engine/progress", "            tokens -= pending.tokens\n", "", BRANCHES),
    Mutant("founders-work-does-not-follow-its-offer", 5, "engine/progress",
           "            follows = pending.seq if pending.claim.author == self.me else follows\n", "", BRANCHES),
    Mutant("superseded-since-ever", 5, "engine/engine",
           (("                self.state.record(\n"
"                    replace(record, superseded_tokens=fragment.superseded_tokens - superseded)\n"
"                )")), "                self.state.record(replace(record, superseded_tokens=fragment.superseded_tokens))",
           BRANCHES),
    Mutant("status-hides-what-was-superseded", 5, "status",
           "superseded_tokens=max((f.superseded_tokens for f in state.fragments), default=0),", "superseded_tokens=0,", BRANCHES),
    Mutant("branches-have-one-offer", 5, "engine/superseded",
           "seq, before = merged.follows, seq", "seq, before = 0, seq", SHARE),
    Mutant("account-without-an-end", 7, "engine/superseded", ("        # falling: it ends, whatever was added\n"
"        while seq < before and (merged := self._offers.get((author, seq))):"), "        while merged := self._offers.get((author, seq)):  # falling: it ends, whatever was added", SHARE),
    Mutant("heirs-hide-their-share", 5, "engine/superseded",
           "min(lineage.last_merged(author), newest)", "lineage.last_merged(author)", SHARE),
    Mutant("account-grows-for-ever", 5, "engine/superseded", "len(self._kept) > KEPT", "False", SHARE),
    Mutant("account-of-what-is-forgotten", 5, "engine/superseded",
           "            self._total -= oldest[0].tokens\n", "", SHARE),
    Mutant("deaf-ears-are-believed", 7, "membership/roster", "return self.silent or self.deaf", "return self.silent", ROSTER),
    Mutant("who-was-silent-finds-all-deaf", 7, "membership/roster",
           ("            peer.deaf = sum(count > peer.knows for count in self._broadcasts) >= min(\n"
"                patience, 2 * DEAF\n"
"            )"), "            peer.deaf = peer.knows == 0 or not min(patience, 2 * DEAF)", ROSTER),
    Mutant("wait-for-the-silent", 7, "engine/adoption", (("            p: (peer, until)\n"
"            for p, (peer, until) in self.state.wants.items()\n"
"            if now < until and peer in alive")), "            p: (peer, until) for p, (peer, until) in self.state.wants.items() if now < until", ADOPTING),
    Mutant("inbox-is-not-purged", 5, "engine/state", "        self.rounds[p].purge(lineage)", "        pass", SEALING),
    Mutant("merged-while-inspected", 5, "engine/sealer",
           (("        elif self.state.rounds[offer.fragment].fresh(\n"
"            offer, self.state.fragments[offer.fragment].lineage\n"
"        ):")),
           "        else:", SEALING),
    Mutant("merge-on-a-moved-anchor", 5, "engine/sealer",
           "            or fragment.lineage.key != job.base.key\n", "", SEALING),
    Mutant("merged-number-goes-back", 5, "protocol/lineage",
           (("            merged={\n"
"                **self.merged,\n"
"                **{entry.peer: max(entry.seq, self.last_merged(entry.peer)) for entry in members},\n"
"            },")), "            merged={**self.merged, **{entry.peer: entry.seq for entry in members}},", LINEAGE),
    Mutant("admit-one-more", 5, "protocol/lineage", "<= claim.settled", "<= claim.settled + 1", LINEAGE),
    Mutant("seal-adds-no-tokens", 5, "protocol/lineage",
           "self.tokens + sum(entry.tokens for entry in members)", "self.tokens", LINEAGE),
    Mutant("seal-counted-twice", 5, "engine/adoption",
           "       if seal.key <= fragment.lineage.key or self.state.switch", "       if self.state.switch", ADOPTING),
    Mutant("copy-while-the-anchor-moves", 5, "engine/progress",
           "self.correction_pending or self.motion is not Motion.STILL:", "self.correction_pending:", PROGRESS),
    Mutant("second-offer-beside-the-first", 5, "engine/progress",
           "    if self.pending or self.correction_pending", "    if self.correction_pending", PROGRESS),
    Mutant("seal-in-mid-snapshot", 5, "engine/adoption",
           "        if fragment.motion is not Motion.STILL:", "        if fragment.motion is Motion.MOVING:", ADOPTING),
    Mutant("anchor-in-mid-snapshot", 5, "engine/adoption",
           "        elif fragment.motion is not Motion.STILL:",
           "        elif fragment.motion is Motion.MOVING:", ADOPTING),
    Mutant("model-in-mid-snapshot", 5, "engine/adoption",
           (("        if (\n"
"            switch\n"
"            and switch.complete\n"
"            and all(f.motion is Motion.STILL for f in self.state.fragments)\n"
"        ):")), "        if switch and switch.complete and True:", ADOPTING),
    Mutant("resend-with-another-number", 5, "engine/offers",
           "       Send(target, replace(pending.offer, key=fragment.lineage.key, due=pending.due))", ("       Send(\n"
"                    target,\n"
"                    replace(\n"
"                        pending.offer,\n"
"                        seq=pending.seq + 1,\n"
"                        key=fragment.lineage.key,\n"
"                        due=pending.due,\n"
"                    ),\n"
"                )"), OFFERING),
    Mutant("nothing-has-tokens", 5, "engine/round", ("            # tokens without a step are nobody's work\n"
"            return not offer.tokens and offer.peer not in self.inbox"), "            return offer.peer not in self.inbox  # tokens without a step are nobody's work", ROUND),
    Mutant("forget-banked-tokens", 5, "engine/progress",
           (("            self.settled = Totals(\n"
"                self.settled.step + pending.steps, self.settled.tokens + pending.tokens\n"
"            )")), "            self.settled = Totals(self.settled.step + pending.steps, self.settled.tokens)", PROGRESS),
    Mutant("bank-what-was-trained-since", 5, "engine/progress",
           (("            self.settled = Totals(\n"
"                self.settled.step + pending.steps, self.settled.tokens + pending.tokens\n"
"            )")),
           "            self.settled = Totals(totals.step, totals.tokens)", PROGRESS),
    Mutant("in-doubt-double", 5, "engine/progress",
           "        return not lineage.admits(self.claim)", "        return False", PROGRESS),
    Mutant("in-doubt-double-the-pending", 5, "engine/progress",
           "     return True",
           "     return False", PROGRESS),
    Mutant("in-doubt-carry-by-a-seal", 5, "engine/adoption",
           ("            replace = (\n"
"                self._waits_exactly(fragment) if merged_own_offer else fragment.in_doubt(lineage)\n"
"            )"), "            replace = self._waits_exactly(fragment) if merged_own_offer else False", ADOPTING),
    Mutant("in-doubt-carry-by-an-anchor", 5, "engine/adoption",
           "doubt = fragment.in_doubt(lineage)", "doubt = False", ADOPTING),
    Mutant("a-later-offer-is-ours", 5, "engine/progress",
           "lineage.last_merged(self.pending.claim.author) in self.pending.numbers",
           "lineage.last_merged(self.pending.claim.author) >= self.pending.seq", PROGRESS),
    Mutant("a-drop-keeps-the-number", 5, "engine/progress",
           "        self.seq = max(self.seq, self.lineage.last_merged(self.me))\n", "", ADOPTING),
    Mutant("heirs-number-may-be-used", 5, "engine/progress",
           "max(self.me.incarnation, claim.settled + 1)", "claim.settled + 1", PROGRESS),
    Mutant("heirs-claim-as-their-own", 5, "engine/progress", "progress.inherited = standing.claim", "pass", PROGRESS),
    Mutant("heirs-forget-the-pending", 5, "engine/progress",
           "replace(standing.pending) if standing.pending else None", "None", PROGRESS),
    Mutant("founder-hides-what-it-inherited", 5, "engine/progress",
           "            merged[self.inherited.author] = self._past(self.inherited)", "            pass", PROGRESS),
    Mutant("copy-counts-as-offered", 5, "engine/progress",
           ("            claim, has_unsent_residual, pending = (\n"
"                pending.claim,\n"
"                has_unsent_residual or pending.flush,\n"
"                None,\n"
"            )"), "            pass", PROGRESS),
    Mutant("seal-in-doubt-is-added", 5, "worker/anchors",
           "            self._replace(p, values)\n", "            pass\n", ANCHOR),
    Mutant("seal-in-doubt-keeps-the-progress", 5, "worker/anchors",
           ("            if not job.merged_own_offer:\n"
"                self._drop(p)\n"), "", ANCHOR),
    Mutant("left-out-steps-tokens-stay", 5, "model/token_count",
           ("            self._counts = [\n"
"                (n, at) for n, at in self._counts if self._early and at == (self._clears, stamp)\n"
"            ]"), "            self._counts = [(n, at) for n, at in self._counts if self._early and at[1] == stamp]", of("unit/model/test_token_count")),
    # ── 6: no seal below quorum ──────────────────────────────────────────────────────────────────────────────────────
    Mutant("seal-below-quorum", 6, "engine/quorum", "if len(present) < needed:", "if len(present) < needed - 1:", QUORUM),
    Mutant("half-is-a-majority", 6, "engine/quorum", "roster // 2 + 1)", "roster // 2)", QUORUM),
    Mutant("suspects-do-not-count", 6, "engine/sealer",
           "policies.quorum.needed(self.state.roster.size),", "policies.quorum.needed(1 + len(self.state.roster.alive())),", SEALING),
    Mutant("nothing-is-sealed", 6, "engine/round",
           '            return Decision(False, "nothing_offered")', "            pass", ROUND),
    Mutant("quorum-remembered-when-lost", 6, "engine/round",
           "            self.quorum_at = None\n        elif", "            pass\n        elif", ROUND),
    Mutant("slow-ones-shrink-the-quorum", 6, "engine/sealer", " + slow[: max(0, needed - len(healthy))]", "", SEALING),
    Mutant("the-slowest-is-waited-for-first", 6, "engine/sealer",
           "(failing[id].ratio, id)", "(-failing[id].ratio, id)", SEALING),
    Mutant("slow-ones-are-waited-for", 6, "engine/sealer",
           "if id not in failing]\n", "if id in [*expected]]\n", SEALING),
    Mutant("slow-ones-are-not-called", 6, "engine/sealer",
           "self._call(now, round, expected)", "self._call(now, round, awaited)", SEALING),
    Mutant("grace-beyond-the-overlap", 6, "engine/quorum",
           ("        return min(\n"
"            self.max_s, self.fraction * max(0.0, overlap_s - delays.quorum_s - delays.sync_s)\n"
"        )"), "        return min(self.max_s, self.fraction * overlap_s)", QUORUM),
    Mutant("steady-hardware-is-failing", 6, "membership/failslow",
           "slower.ratio >= policy.threshold", "True", of("unit/membership/test_failslow")),
    Mutant("a-pause-makes-a-block", 6, "membership/failslow", "count * min(self._rates)", "sum(self._rates)", of("unit/membership/test_failslow")),
    Mutant("a-block-waits-for-the-slowest", 6, "membership/failslow", "if len(self._rates) == self._block or self._drags():",
           "if len(self._rates) == self._block:", of("unit/membership/test_failslow")),
    Mutant("as-slow-as-the-others-is-failing", 6, "membership/failslow",
           "slower.than_others >= policy.threshold", "True", of("unit/membership/test_failslow")),
    # ── 7: the network never stops training ──────────────────────────────────────────────────────────────────────────
    Mutant("garbage-raises", 7, "worker/anchors",
           "        except PeerError as error:",
           "        except ZeroDivisionError as error:", of("unit/worker/test_anchors", "refused or inspection")),
    Mutant("fault-raises-into-step", 7, "engine/state",
           'self.emit(Event("fault", text))', "raise RuntimeError(text)", of("together/test_rounds", "not_finite")),
    Mutant("callback-stops-the-worker", 7, "runtime/learner",
           '            except Exception:\n                log.exception("on_event failed, told of %r", event.kind)',
           "            except ZeroDivisionError:\n                pass", of("together/test_rounds", "callback")),
    Mutant("wait-without-being-asked", 7, "engine/boundaries",
           "        if overlap is None or self.state.solo", "        if self.state.solo", TRAINING),
    Mutant("never-give-up-waiting", 7, "engine/boundaries",
           "                fragment.pending.missed = True", "                pass", TRAINING),
    Mutant("the-dead-are-never-forgotten", 7, "membership/roster",
           "now >= p.heard_at + self.timing.evict_after_s]", "False]", ROSTER),
    Mutant("worker-outlives-the-process", 7, "runtime/merge_worker",
           "daemon=True", "daemon=False", of("together/test_rounds", "daemon")),
    Mutant("misuse-is-not-named", 7, "settings",
           '    require(merge in MERGES, "merge", merge, f"one of {MERGES}")\n', "", of("together/test_bad_input", "bad_argument")),
    Mutant("failed-connections-stay", 7, "transport/stream", "        del task, operation\n", "", of("unit/transport/test_grpc_transport", "failed_is_gone")),
    Mutant("goodbyes-for-ever", 7, "membership/roster", "        if len(self._tombstones) > GRAVES:", "        if False:", ROSTER),
    # ── 8: bad input is refused ──────────────────────────────────────────────────────────────────────────────────────
    Mutant("offers-need-not-be-good", 8, "worker/anchors",
           "        check_packet(section(job.offer.sections", "        (section(job.offer.sections",
           ANCHOR),
    Mutant("merges-need-not-be-finite", 8, "worker/seal_payload", "        if not merge.finite(scratch):", "        if False:",
           ANCHOR),
    Mutant("sections-need-not-be-good", 8, "worker/seal_payload",
           "            check_packet(packet, self.fragment.shapes)", "            pass", of("unit/worker/test_seal_payload", "bad_seal")),
    Mutant("anchors-need-not-be-good", 8, "worker/anchors",
           "            check_packet(section(state.sections", "            (section(state.sections", ANCHOR),
    Mutant("own-weights-need-not-be-finite", 8, "worker/feedback", "        if not bounded(whole):", "        if False:",
           ANCHOR),
    Mutant("payload-of-another-digest", 8, "worker/seal_payload",
           "         if payload_digest({**packets, **moments}, seal.weights) != seal.payload:", "         if False:", ANCHOR),
    Mutant("weights-are-no-payload", 8, "worker/seal_payload",
           'content_digest(*packets, struct.pack(f"<{len(weights)}d", *weights))',
           "content_digest(*packets)", of("unit/worker/test_seal_payload")),
    Mutant("anchor-of-another-digest", 8, "worker/anchors",
           "        if content_digest(*sections) != state.content:", "        if False:", ANCHOR),
    Mutant("a-sum-hides-infinities", 8, "worker/merge",
           "torch.isfinite(values.sum())", "not torch.isnan(values.sum())", of("unit/worker/test_merge", "finite or infinit")),
    Mutant("sizes-are-believed", 8, "codecs/registry",
           "packet.numel != numel or (packet.codec == RAW and packet.nbytes != 4 * numel)", "False", of("unit/codecs/test_registry")),
    Mutant("tensors-of-any-size", 8, "codecs/packing",
           "if size > most or at + size > len(data):", "if at + size > len(data):", of("unit/codecs/test_packing")),
    Mutant("bytes-left-over", 8, "codecs/packing", "    if at != len(data):", "    if False:", of("unit/codecs/test_packing")),
    Mutant("any-rank", 8, "codecs/powersgd", "if not 1 <= param <= min(n, m, RANKS):", "if False:", of("unit/codecs/test_powersgd")),
    Mutant("more-ranks-than-stay-exact", 8, "codecs/powersgd", "min(n, m, RANKS):", "min(n, m):", of("unit/codecs/test_powersgd")),
    Mutant("products-may-overflow", 8, "codecs/powersgd",
           " or too_great:", ":", of("unit/codecs/test_powersgd")),
    Mutant("products-may-be-subnormal", 8, "codecs/powersgd", "if low < LEAST or high", "if high", of("unit/codecs/test_powersgd")),
    Mutant("sums-may-be-rounded", 8, "codecs/powersgd", " or high > low + self.reach(param)", "", of("unit/codecs/test_powersgd")),
    Mutant("products-need-one-bit-more", 8, "codecs/powersgd", "(r - 1).bit_length()", "r.bit_length() + 1", of("unit/codecs/test_powersgd")),
    Mutant("left-factors-are-not-what-q-was-fitted-to", 9, "codecs/powersgd",
           "        torch.mul(torch.div(near, unit, out=whole).round_(), unit, out=near)",
           "        torch.div(near, unit, out=whole).round_()", of("unit/codecs/test_powersgd")),
    Mutant("offer-of-another-model", 8, "engine/round",
           "        if offer.genesis != lineage.genesis:", "        if False:", ROUND),
    Mutant("uninspected-offers-are-held", 8, "engine/sealer",
           "        if offer.steps and offer.peer != self.state.me:", "        if False:", SEALING),
    Mutant("void-merge-is-tried-again", 8, "engine/sealer",
           "                round.inbox.clear()", "                pass", SEALING),
    Mutant("fragment-that-is-not-here", 8, "engine/engine",
           (("        elif (\n"
"            self.state.fragments\n"
"            and not self.state.closed\n"
"            and 0 <= message.fragment < len(self.state.fragments)\n"
"        ):")), "        elif self.state.fragments and not self.state.closed:", ADOPTING),
    Mutant("another-policy-may-join", 8, "protocol/handshake",
           " or first_difference(mine.policy, theirs.policy)", "", of("unit/protocol/test_messages")),
    Mutant("damaged-checkpoint-is-believed", 8, "worker/checkpoint",
           "    if found != saved_content:", "    if False:", of("unit/worker/test_checkpoint_reader", "digest")),
    Mutant("checkpoint-of-other-weights-is-believed", 8, "handover",
           "        intact = saved.weights == sketches(self._layout, self._parameters)\n        kept",
           "        intact = True\n        kept", of("together/test_restore", "not_loaded")),
    # ── 9: error feedback is local and transactional ─────────────────────────────────────────────────────────────────
    Mutant("residual-committed-when-offered", 9, "worker/feedback",
           "        self.encoding_error, self._next, self._flush",
           "        self.residual, self._next, self._flush", FEEDBACK),
    Mutant("residual-committed-by-any-seal", 9, "worker/anchors",
           ("        if not merged_own_offer:\n"
"            return None\n"), "", ANCHOR),
    Mutant("residual-never-committed", 9, "worker/feedback",
           ("        self.residual, self.weights_residual = (\n"
"            (None, encoding_error) if residual_in_weights else (encoding_error, None)\n"
"        )\n"), "", FEEDBACK),
    Mutant("residual-not-offered", 9, "worker/feedback",
           "torch.add(values, self.residual, out=self.buffers.take(values.numel()))", "values", FEEDBACK),
    Mutant("residual-added-in-place", 9, "worker/feedback",
           "torch.add(values, self.residual, out=self.buffers.take(values.numel()))",
           "values.add_(self.residual)", FEEDBACK),
    Mutant("warm-start-of-a-lost-round", 9, "worker/feedback",
           "self.encoding_error, self._next, self._flush",
           "self.encoding_error, self.memory, self._flush", FEEDBACK),
    Mutant("offered-again-in-other-bytes", 9, "worker/feedback",
           "        if _alike(encoding_error, self.encoding_error):", "        if True:", FEEDBACK),
    Mutant("what-is-encoded-need-not-be-finite", 8, "worker/feedback",
           "            check_packet(packet, self.shapes)", "            pass", FEEDBACK),
    Mutant("heir-keeps-what-was-offered-since", 9, "worker/anchors",
           ("            way_back.drop()\n"
"        gone = self._forget(p) if job.forget else None"), ("            way_back.drop()\n"
"        gone = None"),
           of("unit/worker/test_anchors", "outlived")),
    Mutant("heir-keeps-what-an-anchor-has", 9, "worker/anchors",
           "        gone = self._forget(p) if job.forget else None\n        self", "        gone = None\n        self",
           of("unit/worker/test_anchors", "outlived")),
    Mutant("sealer-keeps-what-others-went-on-from", 9, "worker/anchors",
           "        self.way_back[p].drop()  # whatever", "        pass  # whatever", of("unit/worker/test_anchors", "went_on")),
    Mutant("heir-for-ever", 9, "engine/progress", "            self.restored_from = None  # what our", "            pass  # what our", PROGRESS),
    Mutant("former-seals-take-what-was-lost", 9, "engine/adoption",
           "not ours and not merged_own_offer and fragment.source_moved_on(lineage)",
           ("not ours and (\n"
"                former or (not merged_own_offer and fragment.source_moved_on(lineage))\n"
"            )"), ADOPTING),
    Mutant("way-back-outlives-its-process", 9, "worker/anchors",
           ("        if job.sealed_by_predecessor:\n"
"            way_back.drop()\n"), "", ANCHOR),
    Mutant("unasked-answers", 8, "engine/engine", "0 < beat.pong == self", "beat.pong == self", of("unit/engine/test_offers", "asked")),
    Mutant("what-was-lost-is-not-owed", 9, "engine/progress", "            self.has_unsent_residual = not pending.flush", "            pass", PROGRESS),
    Mutant("what-was-closed-is-owed-still", 9, "engine/progress",
           "self.has_unsent_residual = not pending.flush", "self.has_unsent_residual = True", PROGRESS),
    Mutant("closing-copy-is-forgotten", 9, "engine/progress",
           "            self.has_unsent_residual = self.has_unsent_residual or pending.flush", "            pass", PROGRESS),
    Mutant("heirs-rest-is-its-own", 9, "engine/progress",
           "            self.inherited = self.inherited or self.restored_from", "            pass", PROGRESS),
    Mutant("heirs-work-goes-with-the-rest", 9, "engine/progress",
           "self.me and (pending.steps or self.inherited):", "self.me:", PROGRESS),
    Mutant("heirs-work-leaves-the-rest", 9, "engine/progress",
           "(pending.steps or self.inherited)", "pending.steps", PROGRESS),
    Mutant("replaced-by-a-seal-and-owed", 9, "engine/engine",
           "if job.forget or (job.replace and not job.merged_own_offer):", "if job.forget:", ADOPTING),
    Mutant("replaced-by-an-anchor-and-owed", 9, "engine/engine",
           "if job.forget or job.replace:", "if job.forget:", ADOPTING),
    Mutant("given-up-and-sent-again", 5, "engine/progress",
           "        if replaced and not merged_own_offer:", "        if False:", ADOPTING),
    Mutant("given-up-and-unknown", 5, "engine/progress",
           "self.share.add(pending.claim.author, pending.numbers, 0)", "pass", PROGRESS),
    Mutant("merged-and-given-up", 5, "engine/progress",
           " if replaced and not merged_own_offer:", " if replaced:", ADOPTING),
    Mutant("another-model-has-nothing-of-ours", 5, "engine/engine",
           (("                # another model may have it, too\n"
"                merged_own_offer = job.merged_own_offer or fragment.includes_pending(state.lineage)")), "                merged_own_offer = job.merged_own_offer  # another model may have it, too", ADOPTING),
    Mutant("newcomers-are-waited-for", 7, "engine/sealer",
           "known_at(started=fragment.lineage.version > 0)", "known_at(started=False)", of("unit/engine/test_sealer", "began_with")),
    Mutant("nobody-new-is-waited-for", 3, "engine/sealer",
           "known_at(started=fragment.lineage.version > 0)", "known_at(started=True)", of("unit/engine/test_sealer", "began_with")),
    Mutant("who-has-worked-is-not-waited-for", 3, "membership/roster",
           "(peer.beat is None and beat.position == 0)", "peer.beat is None", of("unit/engine/test_sealer", "began_with")),
    Mutant("replaced-after-more-steps", 5, "engine/progress",
           "            self.adopt_at = None  # there is",
           "            pass  # there is", ADOPTING),
    Mutant("forgotten-by-a-seal-and-owed", 9, "engine/engine",
           "     if job.forget or (job.replace and not job.merged_own_offer):", "     if job.replace and not job.merged_own_offer:", ADOPTING),
    Mutant("forgotten-by-an-anchor-and-owed", 9, "engine/engine",
           "if job.forget or job.replace:", "if job.replace:", ADOPTING),
    Mutant("exactly-adopted-and-not-owed", 9, "engine/engine",
           "job.forget or (job.replace and not job.merged_own_offer):", "job.forget or job.replace:", ADOPTING),
    Mutant("other-weights-owe", 9, "worker/checkpoint", ("    standing = replace(\n"
"        kept.standing,\n"
"        pending=None,\n"
"        correction_pending=True,\n"
"        adopt_at=None,\n"
"        has_unsent_residual=False,\n"
"    )"), "    standing = replace(kept.standing, pending=None, correction_pending=True, adopt_at=None)",
           of("together/test_codecs", "replaced")),
    Mutant("former-checkpoints-are-damaged", 7, "worker/checkpoint",
           "return key in self and self.take(key, bool)", "return self.take(key, bool)", of("unit/worker/test_checkpoint_reader", "before")),
    Mutant("former-closing-offer-weighs-nothing", 9, "worker/checkpoint",
           "(last.step, last.tokens)  # what", "(0, 0)  # what", of("unit/worker/test_checkpoint_reader", "weighs")),
    Mutant("checkpoint-forgets-what-is-owed", 9, "engine/progress",
           ("            claim, has_unsent_residual, pending = (\n"
"                pending.claim,\n"
"                has_unsent_residual or pending.flush,\n"
"                None,\n"
"            )"),
           "            claim, pending = pending.claim, None", PROGRESS),
    Mutant("rest-weighs-as-little-as-what-it-goes-with", 9, "engine/progress",
           "self.has_unsent_residual and self.weight > (work.tokens, work.step)",
           "self.has_unsent_residual and not work.step", PROGRESS),
    Mutant("few-steps-weigh-as-many-without-a-rest", 9, "engine/progress",
           "flush and self.has_unsent_residual and self.weight > (work.tokens", "flush and self.weight > (work.tokens", PROGRESS),
    Mutant("long-offer-weighs-as-its-rest", 9, "engine/progress",
           "self.has_unsent_residual and self.weight > (work.tokens, work.step)",
           "self.has_unsent_residual", PROGRESS),
    Mutant("rest-makes-the-last-offer-short", 9, "engine/progress",
           "self.last = self.last if any(pending.again) else Totals(", "self.last = Totals(", PROGRESS),
    Mutant("share-in-rounds-that-went-on-without", 9, "engine/progress",
           "            self.last = Totals()  # of what", "            pass  # of what", PROGRESS),
    Mutant("no-share-in-what-was-merged-before-closing", 9, "engine/progress",
           "        if went_on and not (self.has_unsent_residual", "        if not (merged_own_offer or self.has_unsent_residual", PROGRESS),
    Mutant("who-owes-has-no-share", 9, "engine/progress",
           "went_on and not (self.has_unsent_residual or pending):", "went_on and not pending:", PROGRESS),
    Mutant("who-closes-has-no-share", 9, "engine/progress",
           "went_on and not (self.has_unsent_residual or pending):", "went_on and not self.has_unsent_residual:", PROGRESS),
    Mutant("closing-offer-weighs-nothing", 9, "protocol/messages",
           "(alone or self.steps > 0)", "False", of("unit/protocol/test_messages", "weighs")),
    Mutant("who-rests-dilutes-work", 9, "protocol/messages", "(alone or self.steps > 0)", "True", of("unit/protocol/test_messages", "weighs")),
    Mutant("way-back-at-rest-is-coded-as-ever", 9, "engine/sealer", (("            # at rest there may be no later round to take along what this loses\n"
"            flush = alone or self.state.flush")), "            flush = alone  # at rest there may be no later round to take along what this loses", SEALING),
    Mutant("way-back-is-never-coded-as-ever", 9, "engine/sealer", (("            # at rest there may be no later round to take along what this loses\n"
"            flush = alone or self.state.flush")), "            flush = True  # at rest there may be no later round to take along what this loses", SEALING),
    Mutant("who-closes-dilutes-work", 9, "engine/sealer", "offer.weighed(alone and ", "offer.weighed(", SEALING),
    Mutant("who-is-behind-has-a-share", 9, "engine/sealer", "alone and offer.key.tokens >= here", "alone", SEALING),
    Mutant("closing-offer-is-coded-as-ever", 9, "worker/feedback",
           "    codec = FLUSH_CODEC if flush else self.codec", "    codec = self.codec", FEEDBACK),
    Mutant("closing-offer-leaves-in-the-weights", 9, "worker/feedback",
           "self.residual_in_weights and not self._flush", "self.residual_in_weights", FEEDBACK),
    Mutant("closing-offer-forgets-the-start", 9, "worker/feedback",
           ("        self.encoding_error, self._next, self._flush = (\n"
"            encoding_error,\n"
"            self.memory if flush else memory,\n"
"            flush,\n"
"        )"), "        self.encoding_error, self._next, self._flush = encoding_error, memory, flush", FEEDBACK),
    Mutant("rests-with-nothing-before-it-closed", 9, "engine/state",
           "return lost or fragment.pending is not None or", "return fragment.pending is not None or",
           of("unit/engine/test_offers", "nothing")),
    Mutant("medians-close", 9, "settings", "encoded.residual_in_weights and merge in SHARED,", "encoded.residual_in_weights,",
           of("together/test_codecs", "shares")),
    Mutant("way-back-starts-cold", 9, "worker/anchors",
           ', "memory": "returned_memory"}', "}", of("unit/worker/test_anchors", "restored_sealer")),
    Mutant("heir-of-an-offer-made-before-it", 9, "engine/progress",
           "merged_own_offer and pending is not None and pending.claim.author == self.me", "merged_own_offer", PROGRESS),
    Mutant("codes-of-any-dtype", 3, "codecs/blockwise",
           "self.levels = torch.empty(size, dtype=torch.float32)", "self.levels = torch.empty(size)", of("unit/codecs/test_registry")),
    Mutant("pairs-beyond-the-last", 3, "codecs/blockwise",
           "if rest % 2 and abs(int(pairs[-1])) > 7:", "if False:", of("unit/codecs/test_blockwise", "after_the_last")),
    Mutant("pairs-of-any-byte", 3, "codecs/blockwise",
           "(pairs & 15 == 8).any() or pairs.min() < -119 or pairs.max() > 119", "(pairs & 15 == 8).any()",
           of("unit/codecs/test_blockwise", "pairs_that_are_none")),
    Mutant("rests-as-whole-blocks", 3, "codecs/blockwise",
           "torch.cat([x[:at], zeros[at:], x[at:], zeros[len(x) - at :]])",
           "torch.cat([x, x.new_zeros(block - len(x))])", of("unit/codecs/test_blockwise", "twin or alone")),
    Mutant("rounds-to-halves-below-zero", 3, "codecs/blockwise", "WHOLE = 1.5 * 2.0**23", "WHOLE = 2.0**23",
           of("unit/codecs/test_blockwise", "twin")),
    Mutant("coalesces-whatever-there-is", 8, "codecs/packing", "math.prod(shape) % coalesce == 0)", "True)",
           of("unit/codecs/test_packing", "coalesced")),
    Mutant("coalesced-are-told-apart-by-nobody", 8, "codecs/packing",
           "if head[:2] != [len(shapes), coalesce]:", "if head[1] != coalesce:", of("unit/codecs/test_packing", "number_of_tensors")),
    Mutant("coalesces-moments", 10, "worker/moment_packet", ", coalesces=False)", ")", of("unit/worker/test_moment_packet", "coalesced")),
    Mutant("nobody-forgets", 9, "engine/adoption",
           ("   forget = not merged_own_offer and any("), "   forget = False and any(", of("together/test_codecs", "restored")),
    Mutant("nobody-outlived", 9, "engine/progress",
           "     return self.restored_from is not None and not lineage.admits(self.restored_from)", "     return False", PROGRESS),
    Mutant("own-packet-comes-back", 3, "transport/transfers", "seal.without(peer, seq)", "seal", of("unit/transport/test_grpc_transport", "own_packet")),
    Mutant("own-packet-is-missed", 3, "transport/transfers", "seal.completed(offer)", "seal", of("unit/transport/test_grpc_transport", "own_packet")),
    Mutant("own-packet-of-any-offer", 3, "protocol/messages",
           "str(self.place(author, seq))", "str([m.peer for m in self.members].index(author))",
           of("unit/protocol/test_messages", "goes_to_an_author or all_of_a_seal")),
    Mutant("own-packet-counts-as-come", 9, "engine/ledger", "seal.sections.values() if packet is not own)", "seal.sections.values())", of("unit/engine/test_ledger", "own")),
    Mutant("own-packet-is-in-the-way", 3, "worker/seal_payload", "sum(sizes[1:])", "sum(sizes)", of("unit/worker/test_seal_payload", "smallest")),
    Mutant("seal-of-nothing", 8, "worker/seal_payload", "        if not packets:", "        if False:", of("unit/worker/test_seal_payload")),
    Mutant("any-number-is-relayed", 8, "worker/seal_payload",
           "len(packets) <= RELAYED", "True", of("unit/worker/test_seal_payload", "relayed")),
    Mutant("bytes-of-any-size-are-kept", 7, "codecs/buffers",
           "1 << (-(-nbytes // 4) - 1).bit_length()", "-(-nbytes // 4)", of("unit/worker/test_anchors", "sizes")),
    Mutant("bytes-are-lent-twice", 8, "codecs/buffers",
           "return torch.from_numpy(lent)", "return torch.from_numpy(lent.view())", of("unit/worker/test_anchors", "reused")),
    Mutant("drop-keeps-the-residual", 9, "worker/feedback",
           ("        self.residual = self.weights_residual = self.encoding_error = self.memory = self._next = (\n"
"            None\n"
"        )"), "        self.encoding_error = None", FEEDBACK),
    Mutant("what-stays-is-taken-for-merged", 9, "worker/anchors",
           "           progress.sub_(feedback.weights_residual)", "           pass", ANCHOR),
    Mutant("what-stays-leaves-with-a-replacement", 9, "worker/anchors",
           (("        values.copy_(self.theta[p]) if weights_residual is None else torch.sub(\n"
"            self.theta[p], weights_residual, out=values\n"
"        )")),
           "        values.copy_(self.theta[p])", ANCHOR),
    Mutant("what-is-forgotten-stays-in-the-weights", 5, "worker/anchors",
           "     return weights_residual if self.progress[fragment] is None else None", "     return None", ANCHOR),
    Mutant("what-is-pending-leaves-the-weights", 9, "worker/anchors",
           "weights_residual if self.progress[fragment] is None else None", "weights_residual", ANCHOR),
    Mutant("what-was-beside-the-weights-is-left-behind", 9, "worker/feedback",
           "self.residual is None:", "self.residual is None or self.residual_in_weights:", ANCHOR),
    Mutant("sealer-forgets-what-it-lost", 9, "worker/anchors",
           "            way_back.feedback.commit()", "            pass", of("unit/worker/test_anchors", "once_more")),
    Mutant("sealer-commits-what-others-sealed", 9, "worker/anchors",
           "        if job.sealed_here and way_back.feedback", "        if way_back.feedback", of("unit/worker/test_anchors", "once_more")),
    Mutant("fused-products-in-a-mean", 3, "worker/merge",
           "   out.add_(torch.mul(delta, weight, out=scratch[: out.numel()]))",
           "   out.add_(delta, alpha=weight)", of("unit/worker/test_merge", "rounded")),
    Mutant("one-turn-too-few", 8, "worker/merge", "for turn in range(len(rows)):", "for turn in range(len(rows) - 1):",
           of("unit/worker/test_merge", "trimmed or median")),
    Mutant("whole-deltas-of-a-mean", 7, "worker/seal_payload",
           'if self.scheme == "mean" and any(', "if False and any(", of("unit/worker/test_seal_payload", "whole")),
    Mutant("parts-all-at-the-start", 3, "codecs/packing",
           "yield slice(at, at + len(part)), part", "yield slice(0, len(part)), part", of("unit/worker/test_merge", "parts")),
    Mutant("parts-that-are-not-brought", 3, "codecs/packing",
           "if part.data_ptr() != here.data_ptr():", "if False:", of("unit/codecs/test_packing", "parts")),
    Mutant("sparse-parts-at-the-start", 3, "codecs/sparse",
           "return positions[low:high] - start", "return positions[low:high]", of("unit/codecs/test_packing", "parts")),
    # ── 10: late adoption is exact ───────────────────────────────────────────────────────────────────────────────────
    Mutant("correction-of-the-wrong-sign", 10, "worker/outer",
           "torch.sub(theta, change, out=change)", "torch.sub(change, theta, out=change)", OUTER),
    Mutant("merged-progress-added-again", 10, "worker/outer",
           "            change.add_(own[block])", "            pass", OUTER),
    Mutant("merged-progress-added-again-by-an-anchor", 10, "worker/outer",
           "  return out.add_(own) if own is not None else out", "  return out", OUTER),
    Mutant("heavy-ball-for-nesterov", 10, "worker/outer",
           "update = update + momentum * outer.momentum", "update = momentum", OUTER),
    Mutant("untaken-correction-is-lost", 10, "worker/correction", "    newer.values.add_(older.values)\n", "", ANCHOR),
    Mutant("replacement-added-instead", 10, "worker/correction",
           "Correction(newer.fragment, newer.values, older.replace, moments)",
           "Correction(newer.fragment, newer.values, newer.replace, moments)", ANCHOR),
    Mutant("moments-do-not-decay", 10, "model/moment_state",
           "factor = decay ** (now - t) * _seen", "factor = _seen", of("unit/model/test_moment_state")),
    Mutant("moments-of-any-age-are-alike", 10, "model/moment_state",
           "return 1 - decay**t if moment.corrected else 1.0", "return 1.0", of("unit/model/test_moment_state")),
    Mutant("second-moments-below-zero", 10, "model/moment_state",
           "            tensor.clamp_(min=0)", "            pass", of("unit/model/test_moment_state")),
    Mutant("first-moments-without-bound", 10, "model/moment_state",
           "m.clamp_(min=-most, max=most)", "pass", of("unit/model/test_moment_state")),
    Mutant("moments-under-no-digest", 8, "worker/seal_payload",
           "return content_digest(found, *named) if moments else found", "return found", of("unit/worker/test_moment_means")),
    Mutant("moments-adopted-by-who-sent-none", 10, "worker/moment_means",
           (("            self._corrected(sections, name)\n"
"            for name in self._known(sections)\n"
"            if merged_own_offer and name in self.own")), "            self._corrected(sections, name) for name in self._known(sections) if name in self.own", of("unit/worker/test_moment_means")),
    Mutant("position-of-who-stepped-on", 9, "engine/joining",
           "self._met_at.setdefault(beat.peer, beat.position)", "self._met_at[beat.peer] = beat.position",
           of("unit/engine/test_joining")),
    Mutant("quorum-that-never-comes-is-silent", 11, "engine/stragglers",
           "        elif now - self._short_since >= policies.timing.round_timeout_s:", "        elif False:",
           of("unit/engine/test_stragglers")),
    Mutant("moments-of-an-anchor-never-taken", 10, "engine/adoption",
           "     return self.state.policies.due(version) if one_on else ()", "     return ()", of("unit/worker/test_moment_means")),
    Mutant("moments-of-any-anchor-taken", 10, "engine/adoption", " if one_on else ()", "", of("unit/worker/test_moment_means")),
    Mutant("moments-sent-once-and-never-again", 10, "engine/policies",
           ("        since = {\n"
"            order: min(averaged.get(order, 0), max(0, version - 1))\n"
"            for order, _ in self.periods.rounds\n"
"        }"), "        since = {order: version - 1 for order, _ in self.periods.rounds}", of("unit/worker/test_moment_means")),
    Mutant("velocity-stays-behind", 10, "worker/anchors",
           '            velocity.copy_(decode_packet(state.sections["velocity"], self._shapes(p)))', "            pass",
           ANCHOR),
    Mutant("late-becomes-the-anchor", 10, "engine/adoption", (("        return (\n"
"            synchronous\n"
"            and pending is not None\n"
"            and not pending.missed\n"
"            and pending.step == self.state.totals.step\n"
"        )")), "        return synchronous and pending is not None and not pending.missed", ADOPTING),
    Mutant("adopt-before-the-overlap", 10, "engine/boundaries", "not None and self.state.totals.step < adopt_at", "not None and False", TRAINING),
    Mutant("overlap-from-the-adoption", 10, "engine/progress",
           "            pending.step + schedule.adopt_after", "            totals.step + schedule.adopt_after", PROGRESS),
    # ── 11: time is an argument ──────────────────────────────────────────────────────────────────────────────────────
    Mutant("clock-in-a-pure-room", 11, "engine/round",
           "from dataclasses import replace\n", "import time\nfrom dataclasses import replace\n", HOUSE),
    Mutant("hidden-clock-in-a-pure-room", 11, "engine/sealer",
           "            round.decided_at = now\n",
           '            round.decided_at = __import__("time").monotonic()\n', HOUSE),
    Mutant("thread-in-a-pure-room", 11, "engine/engine",
           "from dataclasses import replace\n", "import threading\nfrom dataclasses import replace\n", HOUSE),
    Mutant("output-in-a-pure-room", 11, "engine/state",
           "        self.records.append(record)\n",
           "        print(record)\n        self.records.append(record)\n", HOUSE),
    Mutant("chance-in-a-pure-room", 11, "codecs/buffers", "base = torch.empty(numel,", "base = torch.rand(numel,", HOUSE),
    Mutant("engine-imports-the-threads", 11, "engine/progress",
           "        work = self.unmerged(totals)\n",
           "        from .merge_thread import Todo\n\n        work = self.unmerged(totals)\n",
           HOUSE),
    # ── and the virtual cluster's oracle notices, too ────────────────────────────────────────────────────────────────
    Mutant("storm-takes-the-smaller", 4, "engine/adoption",
           (("        if (\n"
"            lineage.genesis != self.state.genesis\n"
"            or lineage.key <= fragment.lineage.key\n"
"            or self.state.founding\n"
"        ):")), "        if lineage.genesis != self.state.genesis or self.state.founding:", STORM),
    Mutant("storm-carries-across-genesis", 4, "engine/adoption",
           "    replace=True,", "    replace=False,", STORM),
    Mutant("storm-merges-twice", 5, "engine/round", ("        return _fits(offer, lineage) and (\n"
"            held is None or offer.order > held.order or not held.steps\n"
"        )"), "        return held is None or offer.order > held.order or not held.steps", STORM),
    Mutant("storm-doubles-in-doubt", 5, "engine/progress",
           "        return not lineage.admits(self.claim)", "        return False", STORM),
    Mutant("storm-moves-the-anchor-in-mid-snapshot", 5, "engine/adoption",
           "        if fragment.motion is not Motion.STILL:", "        if fragment.motion is Motion.MOVING:",
           ("tests/virtual/test_storms.py::test_laws_hold_under_hundreds_of_fault_schedules[1]",)),  # rarer than the rest
    Mutant("storm-seals-below-quorum", 6, "engine/quorum",
           "if len(present) < needed:", "if len(present) < needed - 1:", STORM),
)  # fmt: skip
