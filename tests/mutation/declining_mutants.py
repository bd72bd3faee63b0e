"""Mutants of the judgement which sealers have a weak link, and of what follows from it."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ROOM = "engine/declining"
TESTS = of("unit/engine/test_declining")
LATENCIES = of("unit/engine/test_round_latencies")
SEALERS = of("unit/membership/test_roster", "decline")
AGAIN = of("unit/membership/test_roster", "again")
RESUMED = of("unit/membership/test_roster", "again or gossip_was_faster")
STATUS = of("unit/test_status")
CANNOT = of("unit/membership/test_roster", "cannot_seal or another_model")
LACKING = of("unit/engine/test_lacking_anchors")
NEWCOMER = of("virtual/test_weak_links", "newcomer")
WEAK = of("virtual/test_weak_links", "seals_for_nobody")


def mutant(name: str, old: str, new: str, room: str = ROOM, tests: str = TESTS) -> Mutant:
    return Mutant(name, 7, room, old, new, tests)


DECLINING_MUTANTS = (
    mutant(
        "half-of-the-learners-make-one-decline",
        "if 2 * len(found) > len(told) > 1",
        "if 2 * len(found) >= len(told) > 1",
    ),
    mutant(
        "one-learner-makes-another-decline",
        "if 2 * len(found) > len(told) > 1",
        "if 2 * len(found) > len(told)",
    ),
    mutant("the-seconds-of-one-liar-count", "return median_low(found)", "return max(found)"),
    mutant(
        "a-few-steps-make-a-learner-decline",
        "max(RATIO * usual, usual + STEPS_MORE)",
        "RATIO * usual",
    ),
    mutant(
        "slow-by-a-few-steps-is-weak",
        "max(RATIO * usual, usual + STEPS_MORE)",
        "usual + STEPS_MORE",
    ),
    mutant("rounds-within-the-period-are-slow", " and slow > period", ""),
    mutant(
        "the-sealer-of-a-large-fragment-is-weak",
        "steps / max(1.0, sizes[p] / size)",
        "float(steps)",
    ),
    mutant(
        "the-sealer-of-a-small-fragment-is-weak",
        "steps / max(1.0, sizes[p] / size)",
        "steps / max(0.01, sizes[p] / size)",
    ),
    mutant(
        "rounds-that-nobody-has-seen-count",
        "in enumerate(told.steps[: len(sizes)]) if steps]",
        "in enumerate(told.steps[: len(sizes)])]",
    ),
    mutant("fragments-of-another-model-count", "told.steps[: len(sizes)]", "told.steps"),
    mutant("seconds-are-steps", "slow * told.step_s", "float(slow)"),
    mutant(
        "one-weak-look-makes-a-learner-decline",
        "max(WEAK_ROUNDS * round_s, timing.evict_after_s)",
        "0.0",
    ),
    mutant(
        "a-weak-look-lasts-for-a-while-only",
        "max(WEAK_ROUNDS * round_s, timing.evict_after_s)",
        "timing.evict_after_s",
    ),
    mutant(
        "weak-looks-add-up",
        "            self._since = None\n            return False\n",
        "            return False\n",
    ),
    mutant(
        "fragments-that-others-seal-now-count",
        "if self._since is None or self._since[1] != own:",
        "if self._since is None:",
    ),
    mutant(
        "a-stop-is-a-weak-look",
        "            self._since = None  # a process",
        "            pass  # a process",
    ),
    mutant(
        "a-learner-that-tries-again-declines-at-once",
        "self._until, self._since = now + self._for_s, None",
        "self._until = now + self._for_s",
    ),
    mutant("nobody-seals-again", "roster.place.is_weak and now >= self._until:", "False:"),
    mutant("it-tries-again-as-soon-each-time", "min(2 * self._for_s, LAST_S)", "FIRST_S"),
    mutant("it-waits-ever-longer", "min(2 * self._for_s, LAST_S)", "2 * self._for_s"),
    mutant("what-was-long-ago-counts", "FIRST_S if has_recovered else min(", "min("),
    mutant(
        "all-may-decline",
        "return 2 * sum(not peer.is_weak for peer in peers) >= len(peers) + 1",
        "return True",
    ),
    mutant(
        "those-that-nobody-dials-count",
        "[peer for peer in self.state.roster if peer.address and",
        "[peer for peer in self.state.roster if",
    ),
    mutant("a-learner-declines-in-lockstep", "and self.stragglers.judges and", "and"),
    mutant("nobody-declines", "self.declining.review(now)", "False", "engine/beats", WEAK),
    mutant(
        "nobody-hears-that-a-learner-declines",
        "            declines=state.roster.declines_to_seal(state.me),\n",
        "",
        "engine/beats",
    ),
    mutant(
        "beats-do-not-tell-how-long-rounds-take",
        "state.round_latencies.of(p, sealer, fragment.pending, state.totals.step)",
        "0",
        "engine/beats",
        WEAK,
    ),
    mutant(
        "rounds-of-a-former-sealer-count",
        "known is None or known.sealer != sealer:",
        "known is None:",
        "engine/round_latencies",
        LATENCIES,
    ),
    mutant(
        "an-offer-to-a-former-sealer-counts",
        "step - max(began, rounds.since)))",
        "step - began))",
        "engine/round_latencies",
        LATENCIES,
    ),
    mutant(
        "a-round-counts-only-once-it-has-ended",
        "max(median_high(rounds.last), age)",
        "median_high(rounds.last)",
        "engine/round_latencies",
        LATENCIES,
    ),
    mutant(
        "rounds-that-nobody-can-seal-count",
        "        if not rounds.last:\n            return 0\n",
        "",
        "engine/round_latencies",
        LATENCIES,
    ),
    mutant(
        "a-round-within-a-step-is-not-known",
        "max(1, step - max(began, rounds.since))",
        "step - max(began, rounds.since)",
        "engine/round_latencies",
        LATENCIES,
    ),
    mutant(
        "seals-on-their-way-count-for-the-next-sealer",
        "        if rounds.sealer == sealer:",
        "        if True:",
        "engine/round_latencies",
        LATENCIES,
    ),
    mutant("sizes-that-are-not-known-are-small", 'in others) or float("inf")', "in others) or 1"),
    mutant("a-learner-at-rest-declines", " or state.resting or", " or"),
    mutant(
        "all-that-declined-at-once-stay",
        "elif roster.place.is_weak and self._is_one_too_many():",
        "elif False:",
    ),
    mutant(
        "all-that-declined-at-once-come-back",
        ' and self.state.me.name > max(names, default="")',
        "",
    ),
    mutant(
        "some-hear-late-that-a-learner-declines",
        "state.roster.alive() if has_changed else []",
        "[]",
        "engine/beats",
    ),
    mutant(
        "learners-that-decline-seal",
        "if declines(chosen) else chosen",
        "if False else chosen",
        "membership/sealers",
        SEALERS,
    ),
    mutant(
        "nobody-seals-if-all-decline",
        "if declines(chosen) and all(map(declines, ids.values())):\n        return chosen",
        "if declines(chosen) and all(map(declines, ids.values())):\n        return None",
        "membership/sealers",
        SEALERS,
    ),
    mutant(
        "other-fragments-move-too",
        "return _next(fragment, ids, declines) if declines(chosen) else chosen",
        "return _next(fragment, {k: v for k, v in ids.items() if not declines(v)}, declines)",
        "membership/sealers",
        SEALERS,
    ),
    mutant(
        "a-second-one-that-declines-moves-fragments-of-the-first",
        "        declining.add(chosen)\n",
        "        declining |= {name for name, id in ids.items() if declines(id)}\n",
        "membership/sealers",
        of("unit/membership/test_sealers", "each_moves_its_own"),
    ),
    mutant(
        "rows-as-if-nobody-declined",
        "left = len(learners) - len(declining)",
        "left = len(learners)",
        "membership/sealers",
        of("unit/membership/test_sealers", "one_after_the_other"),
    ),
    mutant(
        "hashes-for-each-that-declines",
        "@lru_cache(maxsize=256)\ndef _ranked(",
        "def _ranked(",
        "membership/sealers",
        of("unit/membership/test_sealers", "hashes"),
    ),
    mutant(
        "rounds-of-a-substitute-are-refused-once-its-learner-seals-again",
        "(other in self._until or declines(other))",
        "declines(other)",
        "membership/resumed",
        AGAIN,
    ),
    mutant(
        "newcomers-seal-again",
        "not peer.is_weak or word.declines",
        "not peer.declines or word.declines",
        "membership/resumed",
        of("unit/membership/test_roster", "newcomers"),
    ),
    mutant(
        "the-place-of-a-substitute-never-ends",
        "if now < until and is_here(id)",
        "if is_here(id)",
        "membership/resumed",
        AGAIN,
    ),
    mutant(
        "a-rumor-of-a-learner-that-seals-again-is-not-noted",
        "isinstance(word, Beat) or not peer.heard",
        "isinstance(word, Beat)",
        "membership/resumed",
        AGAIN,
    ),
    mutant(
        "processes-that-have-gone-seal-again",
        "if now < until and is_here(id)",
        "if now < until",
        "membership/resumed",
        RESUMED,
    ),
    mutant(
        "an-older-word-tells-that-a-learner-seals-again",
        "        if isinstance(news, Rumor):\n            self.resumed.hear(now, known, news)\n",
        "        if isinstance(news, Rumor):\n",
        "membership/roster",
        RESUMED,
    ),
    mutant(
        "a-beat-that-gossip-has-told-does-not-count",
        "        self.resumed.hear(now, known, beat)\n",
        "",
        "membership/roster",
        RESUMED,
    ),
    mutant(
        "a-learner-that-does-not-train-keeps-a-sealer-from-declining",
        " if id in training)",
        ")",
    ),
    mutant(
        "a-learner-that-seals-again-takes-no-seal-of-its-substitute",
        "            roster.resumed.add(now, roster.me)\n",
        "            pass\n",
    ),
    mutant(
        "a-learner-declines-while-its-seals-are-on-their-way",
        "any(key < f.lineage.key for id, key in state.shown(f.fragment) if id in training)",
        "False",
    ),
    mutant(
        "a-learner-declines-while-it-merges",
        "state.rounds[f.fragment].phase is Phase.MERGING",
        "False",
    ),
    mutant(
        "one-that-takes-no-seal-keeps-a-learner-from-declining",
        " or now >= self._latest_at:",
        ":",
    ),
    mutant(
        "a-learner-that-is-about-to-decline-begins-rounds",
        "(state.roster.place.hands_over or self.adoption",
        "(self.adoption",
        "engine/sealer",
        of("unit/engine/test_sealer", "about_to_decline"),
    ),
    mutant(
        "a-learner-that-seals-on-begins-no-round",
        "        roster.place.hands_over = False\n",
        "",
    ),
    mutant(
        "rounds-of-long-ago-are-missed-in-a-row",
        "                ended.add(record.fragment)\n",
        "                pass\n",
        "status",
        STATUS,
    ),
    mutant(
        "an-anchor-that-came-whole-ends-the-missed-rounds",
        "if record.members and record.fragment < len(missed)",
        "if record.fragment < len(missed)",
        "status",
        STATUS,
    ),
    mutant(
        "one-missed-round-is-late",
        "if rounds >= LATE_ROUNDS]",
        "if rounds]",
        "protocol/sight",
        STATUS,
    ),
    mutant(
        "a-watcher-is-not-told-who-is-late",
        "max(self.missed, default=0) >= LATE_ROUNDS",
        "False",
        "protocol/sight",
        of("unit/cli/test_crowd", "late"),
    ),
    mutant(
        "a-weak-link-relays",
        "return choose(fragment, ids, roster.declines_to_seal) or to",
        "return choose(fragment, ids, lambda id: False) or to",
        "membership/zones",
        of("unit/membership/test_zones", "declines"),
    ),
    mutant(
        "a-weak-link-is-a-go-between",
        "lambda id: self._peers[id.name].declines",
        "lambda id: False",
        "membership/go_betweens",
        of("unit/membership/test_go_betweens", "declines"),
    ),
    mutant(
        "rounds-begun-before-their-sealer-declined-are-refused",
        "other != id and (other in",
        "(other in",
        "membership/resumed",
        SEALERS,
    ),
    mutant(
        "peers-that-decline-seal",
        "return peer.declines or (",
        "return (",
        "membership/roster",
        SEALERS,
    ),
    mutant(
        "no-rumor-tells-that-a-peer-declines",
        "        declines=peer.declines,\n",
        "",
        "membership/roster",
        SEALERS,
    ),
    mutant(
        "a-rumor-counts-for-more-than-a-beat",
        "return self.beat or self.rumor",
        "return self.rumor or self.beat",
        "membership/peer",
        SEALERS,
    ),
    mutant(
        "a-weak-learner-does-not-know-it",
        "self.is_weak or self.is_behind or self.lacks_model",
        "self.is_behind or self.lacks_model",
        "membership/own_place",
        CANNOT,
    ),
    mutant(
        "who-joins-seals",
        "self.is_weak or self.is_behind or self.lacks_model",
        "self.is_weak or self.is_behind",
        "membership/own_place",
        CANNOT,
    ),
    mutant(
        "who-is-behind-seals",
        "self.is_weak or self.is_behind or self.lacks_model",
        "self.is_weak or self.lacks_model",
        "membership/own_place",
        CANNOT,
    ),
    mutant(
        "who-has-another-model-seals-here",
        " or (peer.beat is not None and self.trains_other(peer.beat))",
        "",
        "membership/roster",
        CANNOT,
    ),
    mutant(
        "any-model-is-ours",
        "return beat.genesis != self.genesis",
        "return False",
        "engine/state",
        NEWCOMER,
    ),
    mutant(
        "a-new-learner-has-anchors",
        "        self.roster.place.lacks_model = True\n",
        "",
        "engine/state",
        LACKING,
    ),
    mutant(
        "a-change-of-mode-tells-nothing",
        "        self.roster.place.lacks_model = self.mode.lacks_model\n",
        "",
        "engine/state",
        LACKING,
    ),
    mutant(
        "who-joins-has-anchors",
        "LACKING = (Mode.NEW, Mode.JOINING, *FETCHING)",
        "LACKING = (Mode.NEW, *FETCHING)",
        "engine/mode",
        LACKING,
    ),
    mutant(
        "nobody-is-behind", "roster.place.is_behind = self._is_behind(now)", "pass", tests=LACKING
    ),
    mutant(
        "behind-by-the-word-of-one",
        "any(state.mode.lacks_model or self._most_have_more(p) for p in fetched)",
        "bool(fetched)",
        tests=LACKING,
    ),
    mutant(
        "behind-by-the-word-of-half",
        "return 2 * sum(ahead) > len(ahead)",
        "return 2 * sum(ahead) >= len(ahead)",
        tests=LACKING,
    ),
    mutant(
        "seals-keep-a-learner-behind",
        "return self.whole and not (self.gives_way or self.mends)",
        "return not (self.gives_way or self.mends)",
        "engine/wanted",
        LACKING,
    ),
    mutant(
        "odd-anchors-keep-a-learner-behind",
        "return self.whole and not (self.gives_way or self.mends)",
        "return self.whole",
        "engine/wanted",
        LACKING,
    ),
    mutant(
        "who-has-caught-up-is-behind",
        "            self._fetches_since = None\n",
        "            pass\n",
        tests=LACKING,
    ),
    mutant(
        "who-has-joined-seals-at-once",
        '            self._fetches_since = float("-inf")\n',
        "            self._fetches_since = now\n",
        tests=LACKING,
    ),
    mutant(
        "seals-after-an-anchor-are-nothing",
        "if not (fetches or self._fetches_on()):",
        "if not fetches:",
        tests=LACKING,
    ),
    mutant("behind-by-one-seal", "rounds=2", "rounds=1", tests=LACKING),
    mutant(
        "behind-without-a-whole-anchor",
        "if self._fetches_since is None or self.state.mode.lacks_model:",
        "if self.state.mode.lacks_model:",
        tests=LACKING,
    ),
    mutant("behind-at-once", "now - since >= timing.suspect_after_s", "True", tests=LACKING),
    mutant(
        "each-beat-begins-to-be-behind",
        "elif self._fetches_since is None:",
        "else:",
        tests=LACKING,
    ),
    mutant(
        "who-joins-looks-weak",
        "return self.declines and (self.training or not self.heard)",
        "return self.declines",
        "membership/peer",
        of("unit/membership/test_roster", "yet_to_join"),
    ),
    mutant(
        "the-unheard-are-never-weak",
        "return self.declines and (self.training or not self.heard)",
        "return self.declines and self.training",
        "membership/peer",
        of("unit/membership/test_roster", "yet_to_join"),
    ),
)
