"""Mutants of learners that train several models or branches, and of who comes between them."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ADOPTION = "engine/adoption"
JOINING = "engine/joining"
OTHERS = "engine/other_models"
ASKED = of("unit/engine/test_pulling")
JOIN = of("unit/engine/test_joining")
PAUSING = of("unit/engine/test_pausing")
PAUSES = "engine/pauses"
PARTED = of("unit/engine/test_other_models")


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...] = PARTED) -> Mutant:
    return Mutant(name, 4, room, old, new, tests)


PARTING_MUTANTS = (
    mutant(
        "weights-that-never-came-are-not-told",
        JOINING,
        "        unsent = [] if is_met else sorted(",
        "        unsent = [] if beats else sorted(",
        of("virtual/test_long_ways", "never_gets_the_weights"),
    ),
    mutant(
        "a-branch-is-taken-over-in-silence",
        OTHERS,
        "        self._told_at = now\n",
        "        return None\n",
    ),
    mutant(
        "a-branch-that-costs-nothing-is-told",
        OTHERS,
        " or most.superseded_tokens <= 0",
        "",
    ),
    mutant(
        "a-branch-is-told-for-each-fragment",
        OTHERS,
        "        self._told_at = now\n",
        "",
    ),
    mutant(
        "a-learner-that-yields-has-lost-to-a-greater-branch",
        OTHERS,
        'if record.reason == "pulled"',
        "if record",
    ),
    mutant(
        "who-is-asked-may-seal-anything",
        ADOPTION,
        "    if sealer.name == state.me.name or (",
        "    wanted = state.wants.get(seal.fragment)\n"
        "    if (wanted and wanted.peer == sealer) or (",
        ASKED,
    ),
    mutant(
        "an-answer-that-is-not-taken-is-waited-for",
        ADOPTION,
        "        else:\n            self.pulling.in_vain(now, seal.sender, seal.fragment)\n",
        "",
        ASKED,
    ),
    mutant(
        "a-newcomer-must-be-ahead-of-all-at-once",
        JOINING,
        "self._is_outdone_by(beat, camps, own) and self._is_outdone_by(first, camps, own)",
        "self._is_outdone_by(beat, camps, own)",
        JOIN,
    ),
    mutant(
        "a-newcomer-trains-first-weights-beside-a-trained-model",
        JOINING,
        " or _is_trained(beat) > _is_trained(first)",
        "",
        JOIN,
    ),
    mutant(
        "a-newcomer-remembers-what-a-peer-showed-before-it-was-cut-off",
        JOINING,
        "if peer in here}",
        "if True}",
        JOIN,
    ),
    mutant(
        "a-newcomer-must-catch-up-with-what-nobody-has",
        JOINING,
        "self._is_outdone_by(beat, camps, own) and self._is_outdone_by(first, camps, own)",
        "self._is_outdone_by(first, camps, own)",
        JOIN,
    ),
    mutant(
        "a-newcomer-joins-before-it-has-caught-up",
        JOINING,
        "(self._is_complete(beats) and not outdone)",
        "self._is_complete(beats)",
        JOIN,
    ),
    mutant(
        "a-lone-learner-that-evaluates-is-not-waited-for",
        JOINING,
        "return max(join_by, self._pause_by) if self.waiting.pausing else join_by",
        "return join_by",
        PAUSING,
    ),
    mutant(
        "a-lone-learner-that-goes-on-is-still-doubted",
        JOINING,
        "            self.state.claims.kept(peer)\n",
        "",
        PAUSING,
    ),
    mutant(
        "a-learner-that-steps-and-hands-nothing-over-is-waited-for",
        JOINING,
        " and self._pauses.lasts(beat)",
        "",
        PAUSING,
    ),
    mutant(
        "a-learner-that-has-company-is-waited-for",
        JOINING,
        "if sizes[b.genesis] == 1 and self._is_pausing(b)",
        "if self._is_pausing(b)",
        PAUSING,
    ),
    mutant(
        "a-learner-that-has-not-joined-is-waited-for",
        JOINING,
        "is_other = beat.training and ",
        "is_other = ",
        PAUSING,
    ),
    mutant(
        "a-stop-shortens-the-wait-for-a-lone-learner",
        JOINING,
        "        self._pause_by += stopped_s - self._stopped_s\n",
        "",
        PAUSING,
    ),
    mutant(
        "a-step-before-it-was-asked-ends-the-wait",
        PAUSES,
        "now <= known.asked_at",
        "False",
        PAUSING,
    ),
    mutant(
        "a-learner-that-pauses-again-is-not-asked-again",
        PAUSES,
        "            known.asked_at = now + self._patience_s  # it is asked again\n",
        "            pass\n",
        PAUSING,
    ),
    mutant(
        "a-learner-that-steps-is-asked-for-ever",
        PAUSES,
        "is_over = now - known.since >= pause_s",
        "is_over = True",
        PAUSING,
    ),
    mutant(
        "a-slow-step-is-a-pause",
        PAUSES,
        "max(self._patience_s, PAUSE_STEPS * beat.seconds_per_step)",
        "self._patience_s",
        PAUSING,
    ),
    mutant(
        "another-incarnation-waits-no-longer-for-a-lone-learner",
        JOINING,
        "        self._pause_by = max(self._pause_by, now + PAUSE * timing.round_timeout_s)\n",
        "",
        PAUSING,
    ),
    mutant(
        "weights-of-one-that-is-gone-come-with-its-next-step",
        JOINING,
        "            self.waiting.pausing = pausing.intersection(self.waiting.pausing)\n",
        "",
        PAUSING,
    ),
    mutant("parted-at-once", OTHERS, "if now - apart.since >= patience_s and ", "if "),
    mutant("parted-from-who-stands-still", OTHERS, " and apart.moves >= GETS_ON", ""),
    mutant(
        "parted-is-told-at-every-beat", OTHERS, "if lasting and not self._is_told:", "if lasting:"
    ),
    mutant("no-end-of-parted", OTHERS, "if self._is_told and not shown:", "if False:"),
    mutant(
        "parted-is-told-once-for-all", OTHERS, "(self._is_told and bool(shown))", "self._is_told"
    ),
    mutant(
        "parted-from-who-starts", OTHERS, "elif beat.step and beat.genesis:", "elif beat.genesis:"
    ),
    mutant("branches-are-one-model", OTHERS, "yield from self._branches(own, beat)", "pass"),
    mutant(
        "a-slow-peer-is-a-branch", OTHERS, " and not self.state.fragments[p].has_had(digest)", ""
    ),
    mutant("what-is-to-come-is-a-branch", OTHERS, "if report.key < key and not", "if not"),
    mutant(
        "a-model-that-was-taken-counts-for-the-next", OTHERS, " or self._own != state.genesis:", ":"
    ),
    mutant(
        "parted-from-a-model-on-its-way",
        OTHERS,
        "if state.switch or not state.joined",
        "if not state.joined",
    ),
    mutant(
        "one-fragment-that-lags-parts",
        OTHERS,
        "yield (beat.peer, p), digest",
        "yield (beat.peer, p), beat.count",
    ),
    mutant(
        "a-restart-gets-on",
        OTHERS,
        "yield (beat.peer, MODEL), tuple(",
        "yield (beat.peer._replace(incarnation=0), MODEL), tuple(",
    ),
    mutant("the-lesser-model-is-always-theirs", OTHERS, "theirs > ours for", "False for"),
    mutant(
        "a-newcomer-tells-of-a-loss",
        OTHERS,
        "    if given_up(most) <= 0:\n",
        "    if given_up(most) < 0:\n",
    ),
    mutant(
        "a-model-is-taken-over-in-silence",
        "engine/outcomes",
        "            elif state.genesis != former:\n",
        "            elif False:\n",
    ),
    mutant(
        "a-rollback-is-another-model",
        "engine/outcomes",
        "            elif state.genesis != former:\n",
        "            if state.genesis != former:\n",
    ),
)
