"""Mutants of the majority: each rule by which an anchor is believed or given up, left out."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

TESTS = of("unit/engine/test_majority")
FIRST = of("unit/engine/test_first_weights")
SEAL_LESS = of("unit/engine/test_seal_less")
RULES, TAKING, PULLING = "engine/majority", "engine/adoption", "engine/pulling"


def mutant(name: str, old: str, new: str, room: str = RULES) -> Mutant:
    return Mutant(name, 4, room, old, new, TESTS)


def of_newcomers(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, 4, "engine/first_weights", old, new, FIRST)


def of_the_seal_less(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, 4, PULLING, old, new, SEAL_LESS)


MAJORITY_MUTANTS = (
    mutant(
        "claims-ripen-in-a-stop",
        "self._now = now = self.state.stops.awake_s(now)",
        "self._now = now",
    ),
    of_newcomers(
        "greater-first-weights-are-no-reason-to-wait",
        "if any(self._key(rival) > self._key(beat) for rival in rivals):",
        "if False:",
    ),
    of_newcomers(
        "first-weights-are-fetched-as-they-come",
        "return self._is_complete() or now >= self._patience_ends()",
        "return True",
    ),
    of_newcomers(
        "nobody-knows-when-all-are-here",
        "return self._is_complete() or now",
        "return now",
    ),
    of_newcomers(
        "a-newcomer-waits-for-all-for-ever",
        "return self._is_complete() or now >= self._patience_ends()",
        "return self._is_complete()",
    ),
    of_newcomers("a-newcomer-waits-from-the-first", "            self._last = now\n", ""),
    of_newcomers(
        "newcomers-keep-one-another-waiting",
        "            self._first + timing.join_timeout_s / 2,\n",
        "",
    ),
    of_newcomers(
        "a-newcomer-that-joins-soon-waits",
        "            self.join_by - LAST_BEATS * timing.beat_s,\n",
        "",
    ),
    of_newcomers("the-last-beat-is-the-last-chance", "LAST_BEATS = 2", "LAST_BEATS = 1"),
    Mutant(
        "a-newcomer-is-always-about-to-join",
        4,
        "engine/joining",
        "first_weights.join_by = now + ",
        "first_weights.join_by = ",
        FIRST,
    ),
    of_newcomers("missing-learners-are-not-waited-for", "not self.state.seeds.missing and ", ""),
    of_newcomers("learners-without-weights-are-not-waited-for", "beat and beat.genesis", "True"),
    of_newcomers("doubted-newcomers-count", " or self.state.claims.doubts(peer.id)", ""),
    of_newcomers(
        "suspected-newcomers-count", "beat is None or peer.suspected or", "beat is None or"
    ),
    of_newcomers("those-that-have-joined-are-waited-for", "        and not beat.begun\n", ""),
    of_newcomers(
        "those-that-have-trained-are-waited-for",
        "        and not any(report.key.tokens for report in beat.reports)\n",
        "",
    ),
    mutant("half-of-the-voters-are-enough", "[len(shown) // 2]", "[(len(shown) - 1) // 2]"),
    mutant(
        "suspects-vote",
        "for beat in self._state.live_beats() if beat.step > 0",
        "for beat in self._state.beats() if beat.step > 0",
        "engine/others",
    ),
    mutant("the-untrained-vote", "live_beats() if beat.step > 0", "live_beats()", "engine/others"),
    mutant(
        "those-of-other-models-vote",
        "for b in voters if b.genesis == ours",
        "for b in voters",
        "engine/others",
    ),
    mutant("anybody-before-the-majority", "return most  # that one comes first", "pass"),
    mutant(
        "a-trial-for-ever",
        "return None if self.state.is_young or self._is_stuck(fragment.fragment) else most",
        "return None",
    ),
    mutant(
        "no-trial", "adopted_since_rollback < TRIAL", "adopted_since_rollback < 0", "engine/state"
    ),
    mutant(
        "no-trial-after-a-rollback",
        "                state.adopted_since_rollback = 0\n",
        "",
        "engine/outcomes",
    ),
    mutant("nobody-is-ever-stuck", "or self._is_stuck(fragment.fragment)", ""),
    mutant("stuck-after-any-pause", ", PAUSES * max(self.pauses, default=0.0))", ")"),
    mutant(
        "a-disturbance-is-the-pace-of-a-run",
        "min(now - self.at, self.patience_s(least_s))",
        "now - self.at",
    ),
    mutant(
        "the-end-has-the-pace-of-the-run",
        "return least_s if moves is None or self._all_finish else",
        "return least_s if moves is None else",
    ),
    mutant(
        "a-rest-is-the-end", "self.state.finishes and all(peer", "self.state.resting and all(peer"
    ),
    mutant(
        "who-ends-first-has-no-pace",
        "self.state.finishes and all(peer.rests for peer in self.state.roster)",
        "self.state.finishes",
    ),
    mutant("no-patience-at-all", "max(least_s, PAUSES * max(", "max(0.0, PAUSES * max("),
    mutant(
        "any-model-is-believed",
        "return not of_others and (state.is_young or self._is_stuck(MODEL))",
        "return True",
    ),
    mutant(
        "rollbacks-need-a-majority", "or rollbacks(beat.genesis) > rollbacks(state.genesis)", ""
    ),
    mutant("yields-to-half", "needed = (voters + 1) // 2 + 1", "needed = (voters + 1) // 2"),
    mutant("yields-to-those-behind", " and not fragment.has_had(key.digest)", ""),
    mutant("yields-to-those-that-rest", "and seen.moves >= GETS_ON", ""),
    mutant(
        "all-are-apart-since-now",
        "before.get(n, Apart(self._now, shown))",
        "Apart(self._now, shown)",
    ),
    mutant(
        "those-that-came-back-were-always-apart",
        "self._apart[p] = {n: ",
        "apart = {n: each.shown for n, each in before.items()} | apart\n"
        "        self._apart[p] = {n: ",
    ),
    mutant("yields-at-once", "seen.since <= since and ", ""),
    mutant(
        "an-unasked-anchor-is-taken",
        "if is_shown or self.majority.believes(",
        "if True or (",
        TAKING,
    ),
    mutant(
        "anybody-seals",
        "return self.majority.believes(fragment, seal.key, seal.sender)",
        "return True",
        TAKING,
    ),
    mutant("rests-make-patient", "if not (self.rested or resting):", "if True:"),
    mutant("a-rest-is-forgotten", "self.rested = self.rested or resting", "pass"),
    mutant("nothing-is-held", "if not is_believed and not", "if not", PULLING),
    # A peer without a seal on our anchor hands over its whole one.
    of_the_seal_less(
        "a-whole-anchor-for-a-seal-is-a-failure",
        "if wanted.seal_only and wanted.held:",
        "if False:",
    ),
    of_the_seal_less(
        "no-answer-is-no-failure",
        "if wanted.seal_only and wanted.held:",
        "if wanted.seal_only:",
    ),
    of_the_seal_less(
        "any-anchor-will-do",
        "if wanted.seal_only and wanted.held:",
        "if wanted.held:",
    ),
    Mutant(
        "a-peer-uses-up-two-patiences",
        8,
        "engine/claims",
        "if known and (doubt is None or doubt.failures < known.failures):",
        "if False:",
        of("unit/engine/test_claims"),
    ),
    Mutant(
        "two-patiences-are-not-one",
        8,
        PULLING,
        "        self.state.claims.count_in(peer, self._seal_less)\n",
        "",
        SEAL_LESS,
    ),
    of_the_seal_less(
        "the-seal-less-are-asked-for-seals-all-the-time",
        " or (seal_only and self._seal_less.doubts(peer))",
        "",
    ),
    of_the_seal_less(
        "the-seal-less-are-asked-for-nothing",
        "(seal_only and self._seal_less.doubts(peer))",
        "self._seal_less.doubts(peer)",
    ),
    of_the_seal_less(
        "the-seal-less-stay-so",
        "            self._seal_less.kept(peer)\n",
        "",
    ),
    of_the_seal_less(
        "the-seal-less-are-never-asked-again",
        "for claims in (state.claims, self._seal_less):",
        "for claims in (state.claims,):",
    ),
)
