"""Mutants of the judgement which learners are late."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

LATENESS = of("unit/engine/test_lateness")
SEALER = of("unit/engine/test_sealer", "late or all_wait")
WEAK = of("virtual/test_weak_links")

LATENESS_MUTANTS = (
    Mutant(
        "rounds-wait-for-weak-links",
        7,
        "engine/stragglers",
        "round.lateness.late() if judges else frozenset[PeerId]()",
        "frozenset[PeerId]()",
        WEAK,
    ),
    Mutant(
        "lockstep-depends-on-how-long-offers-take",
        9,
        "engine/stragglers",
        "self._watch is not None and not self.state.schedule.lockstep",
        "self._watch is not None",
        SEALER,
    ),
    Mutant(
        "the-late-are-judged-where-nobody-is",
        7,
        "engine/stragglers",
        "self._watch is not None and not self.state.schedule.lockstep",
        "not self.state.schedule.lockstep",
        SEALER,
    ),
    Mutant(
        "no-answer-is-timed",
        7,
        "engine/sealer",
        "            round.lateness.came(now, each.peer, self.stragglers.late_after_s(round))\n",
        "            pass\n",
        WEAK,
    ),
    Mutant(
        "the-late-stay-late",
        7,
        "engine/lateness",
        "            self._times.pop(peer, None)\n",
        "            pass\n",
        LATENESS,
    ),
    Mutant(
        "a-repeated-call-is-new",
        7,
        "engine/lateness",
        "self._calls.setdefault(peer, _Call(now))",
        "self._calls[peer] = _Call(now)",
        LATENESS,
    ),
    Mutant(
        "one-pause-counts-twice",
        7,
        "engine/lateness",
        "call is None or call.missed",
        "call is None",
        LATENESS,
    ),
    Mutant(
        "who-never-answers-is-waited-for",
        7,
        "engine/lateness",
        "                call.missed = True\n                self._add(peer)\n",
        "                pass\n",
        LATENESS,
    ),
    Mutant(
        "calls-of-another-sealer-count",
        7,
        "engine/lateness",
        "        self._calls.clear()\n",
        "        pass\n",
        LATENESS,
    ),
    Mutant(
        "a-short-wait-is-too-long",
        7,
        "engine/lateness",
        "max(again, LATE_STEPS * step_s, LATE_S, period_s)",
        "max(again, period_s)",
        LATENESS,
    ),
    Mutant(
        "nobody-may-take-as-long-as-a-period",
        7,
        "engine/stragglers",
        "period_s = 0.0 if state.policies.auto else state.schedule.sync_every * step_s",
        "period_s = 0.0",
        of("unit/engine/test_stragglers", "late"),
    ),
    Mutant(
        "a-period-that-grows-with-the-wait-excuses-it",
        7,
        "engine/stragglers",
        "period_s = 0.0 if state.policies.auto else state.schedule.sync_every * step_s",
        "period_s = state.schedule.sync_every * step_s",
        of("unit/engine/test_stragglers", "late"),
    ),
)
