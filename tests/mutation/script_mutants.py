"""Mutants of what a learner owes to the script that drives it."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ENDS = of("together/test_finish", "no_step_has_moved")
ARGUMENTS = of("together/test_bad_input", "other_libraries or another_library")

SCRIPT_MUTANTS = (
    Mutant(
        "a-number-of-numpy-stays-what-it-is",
        7,
        "errors",
        "return float(value) if is_broken else index(value)",
        "return value",
        ARGUMENTS,
    ),
    Mutant(
        "two-threads-join-beside-each-other",
        7,
        "runtime/one_joiner",
        "nullcontext() if learner and learner.closed else self._lock",
        "nullcontext()",
        of("together/test_threads"),
    ),
    Mutant(
        "weights-that-no-step-has-moved-stay-at-the-end",
        7,
        "handover",
        "fresh=ended.agreed and not ended.alone",
        "fresh=False",
        ENDS,
    ),
    Mutant(
        "a-learner-alone-loses-what-no-step-has-moved",
        7,
        "handover",
        "fresh=ended.agreed and not ended.alone",
        "fresh=ended.agreed",
        ENDS,
    ),
    Mutant(
        "weights-that-were-replaced-before-an-end-are-not-told-of",
        7,
        "handover",
        "self._replaced |= self._tensors",
        "self._tensors",
        ENDS,
    ),
    Mutant(
        "what-the-library-adds-before-the-first-step-is-a-jump",
        7,
        "model/weights_watch",
        "after if is_as_left else [",
        "[",
        of("unit/model/test_weights_watch"),
    ),
)
