"""Mutants of what a learner owes to the script that drives it."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

ENDS = of("together/test_finish", "no_step_has_moved")
CLOSURES = of("unit/model/test_token_count", "closure")
FOREIGN = of("together/test_foreign_states")
ARGUMENTS = of("together/test_bad_input", "other_libraries or another_library")

SCRIPT_MUTANTS = (
    Mutant(
        "a-number-of-numpy-stays-what-it-is",
        7,
        "errors",
        "return float(value) if is_fraction else index(value)",
        "return value",
        ARGUMENTS,
    ),
    Mutant(
        "two-threads-join-beside-each-other",
        7,
        "runtime/one_joiner",
        "if learner and learner.closed:",
        "if True:",
        of("together/test_threads"),
    ),
    Mutant(
        "a-forked-child-waits-for-a-thread-of-its-parent",
        7,
        "runtime/one_joiner",
        "setdefault(os.getpid(), ",
        "setdefault(0, ",
        of("unit/runtime/test_one_joiner"),
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
    Mutant(
        "a-closure-that-clears-gradients-loses-the-tokens-of-its-step",
        7,
        "model/token_count",
        "self._kept = len(self._counts)",
        "self._kept = 0",
        CLOSURES,
    ),
    Mutant(
        "a-step-that-failed-keeps-its-tokens-for-the-next",
        7,
        "model/token_count",
        "        finally:\n            self._kept = 0\n",
        "        finally:\n            pass\n",
        CLOSURES,
    ),
    Mutant(
        "a-whole-checkpoint-raises-the-error-of-a-dict",
        7,
        "given_state",
        "    except KeyError as error:\n",
        "    except ZeroDivisionError as error:\n",
        FOREIGN,
    ),
    Mutant(
        "an-error-of-an-optimizers-own-format-is-hidden",
        7,
        "given_state",
        "if not is_missing or not _is_of_torch(error):",
        "if False:",
        FOREIGN,
    ),
    Mutant(
        "an-error-about-what-a-hook-returned-is-hidden",
        7,
        "given_state",
        "error.args == (key,) and key not in state for",
        "error.args == (key,) for",
        FOREIGN,
    ),
    Mutant(
        "an-error-of-a-hook-is-hidden",
        7,
        "given_state",
        "if not is_missing or not _is_of_torch(error):",
        "if not is_missing:",
        FOREIGN,
    ),
    Mutant(
        "the-optimizers-part-of-a-checkpoint-is-not-named",
        7,
        "given_state",
        "pass {_entry_with(INNER, state) or WHOLE}",
        "pass {WHOLE}",
        FOREIGN,
    ),
    Mutant(
        "a-whole-checkpoint-is-called-damaged-by-rollback",
        7,
        "given_state",
        "    if MEND not in state_dict and FORMAT not in state_dict:\n",
        "    if False:\n",
        FOREIGN,
    ),
    Mutant(
        "the-learners-part-alone-is-refused-by-rollback",
        7,
        "given_state",
        "    if MEND not in state_dict and FORMAT not in state_dict:\n",
        "    if MEND not in state_dict:\n",
        FOREIGN,
    ),
)
