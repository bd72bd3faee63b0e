"""Mutants of learners that train several models or branches, and of who comes between them."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ADOPTION = "engine/adoption"
JOINING = "engine/joining"
OTHERS = "engine/other_models"
ASKED = of("unit/engine/test_pulling")
JOIN = of("unit/engine/test_joining")
PARTED = of("unit/engine/test_other_models")


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...] = PARTED) -> Mutant:
    return Mutant(name, 4, room, old, new, tests)


PARTING_MUTANTS = (
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
        "self._is_outdone_by(beat) and self._is_outdone_by(first)",
        "self._is_outdone_by(beat)",
        JOIN,
    ),
    mutant(
        "a-newcomer-must-catch-up-with-what-nobody-has",
        JOINING,
        "self._is_outdone_by(beat) and self._is_outdone_by(first)",
        "self._is_outdone_by(first)",
        JOIN,
    ),
    mutant(
        "a-newcomer-joins-before-it-has-caught-up",
        JOINING,
        "(self._is_complete(beats) and not outdone)",
        "self._is_complete(beats)",
        JOIN,
    ),
    mutant("parted-at-once", OTHERS, "apart.since <= since and", "True and"),
    mutant("parted-from-who-stands-still", OTHERS, " and apart.shown != _shown(beat)", ""),
    mutant(
        "parted-is-told-at-every-beat", OTHERS, "if lasting and not self._is_told:", "if lasting:"
    ),
    mutant("no-end-of-parted", OTHERS, "if self._is_told and not others:", "if False:"),
    mutant(
        "parted-is-told-once-for-all",
        OTHERS,
        " or (self._is_told and bool(others))",
        " or self._is_told",
    ),
    mutant(
        "parted-from-who-starts",
        OTHERS,
        "(state.joined and beat.step and beat.genesis)",
        "state.joined",
    ),
    mutant(
        "branches-are-one-model",
        OTHERS,
        "        return any(_is_of_a_branch(",
        "        return False and any(_is_of_a_branch(",
    ),
    mutant("a-slow-peer-is-a-branch", OTHERS, " and not fragment.has_had(key.digest)", ""),
    mutant(
        "what-is-to-come-is-a-branch",
        OTHERS,
        "return key < fragment.lineage.key and not",
        "return not",
    ),
    mutant(
        "a-model-that-was-taken-counts-for-the-next",
        OTHERS,
        "self._own, self._apart = self.state.genesis, {}",
        "self._own = self.state.genesis",
    ),
    mutant("the-lesser-model-is-always-theirs", OTHERS, "theirs > ours for", "False for"),
)
