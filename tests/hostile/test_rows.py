"""The audit of what a hostile or broken peer can do, row by row, and the test that says the row is
held. A row of `OPEN` is not: the reason is what docs/security.md does not promise, either.

I is identity, M the model, L liveness, R memory, streams and connections, T texts and files. Where
a row needs credentials or signed offers to be held, its test has them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ATTACKS, RAW = "hostile/test_attacks", "hostile/test_raw_peers"
DOOR, FUZZ = "hostile/test_handshakes", "fuzz/test_targets"
SIGNED = "together/test_signed_offers"
TAP = "hostile/test_path"
WIRE = "unit/transport/test_wire"
CLAIMS = "unit/engine/test_claims"
MAJORITY = "virtual/test_majority"
ATTESTED = "virtual/test_attestations"
PHANTOMS = "virtual/test_phantoms"
SURVEYS = "hostile/test_surveys"
FALSE, DIALS = "hostile/test_false_work", "hostile/test_calls_and_dials"
CERTIFIED = "hostile/test_certified"
WATCH = "unit/transport/test_watching"

HELD = {
    "I1 learn the fingerprint": (RAW, "test_i1_a_hello_with_nothing_right_learns_neither"),
    "I2 take the model": (CERTIFIED, "test_i2_strangers_get_no_answer"),
    "I3 speak for another": (CERTIFIED, "test_i3_an_insider_speaks_for_nobody_else"),
    "I4 take a name": (CERTIFIED, "test_i3_an_insider_speaks_for_nobody_else"),
    "I5 answer at a seed's address": (CERTIFIED, "test_i5_an_insider_at_the_address_of_a_seed"),
    "I6 call for offers": (DIALS, "test_i6_calls_of_anybody"),
    "I7 read what passes on the path": (TAP, "test_i7_nothing_of_a_run_with_credentials"),
    "I7b change what passes": (TAP, "test_i7_whatever_is_changed_on_the_path"),
    "M1 an anchor of an insider's choice": (MAJORITY, "test_no_single_learner_foists_an_anchor"),
    "M1e an anchor of an insider, shown to a real learner": (
        ATTACKS,
        "test_m1_nobody_asks_for_an_anchor",
    ),
    "M1b the same of another genesis": (MAJORITY, "test_no_single_learner_foists_an_anchor"),
    "M1c not a number": (FALSE, "test_m1c_an_offer_that_is_not_finite"),
    "M1g other bytes under the key of an anchor": (
        ATTESTED,
        "test_an_anchor_is_refused_in_which_honest_learners_have_something_else",
    ),
    "M1f an anchor that is pushed": (FALSE, "test_m1f_nobody_takes_an_anchor"),
    "M2 an offer of 2^62 tokens": (FALSE, "test_m2_tokens_beyond_measure"),
    "M3 an offer of 2^64 - 1 tokens": (ATTACKS, "test_m3_an_offer_of_all_tokens"),
    "M3b an anchor of 2^63 tokens": (FALSE, "test_m3b_an_anchor_of_all_tokens"),
    "M4 a forged seal": (FALSE, "test_m4_a_false_seal_is_refused"),
    "M4b a member that did not offer": (CERTIFIED, "test_m4b_a_seal_of_members_that_signed"),
    "M5 a claim to another's work": (CERTIFIED, "test_m5_unsigned_work_and_that_of_others"),
    "M6 an offer in the sealer's name": (ATTACKS, "test_m6_an_offer_in_the_learners_own_name"),
    "M7 an offer again and again": (FALSE, "test_m7_an_offer_is_merged_once"),
    "M8 a position beyond all": (ATTACKS, "test_m8_a_position_beyond_all"),
    "M9 an accident": (FALSE, "test_m9_an_accident_at_one_learner"),
    "M9b weights that are ruined": (FALSE, "test_m9b_weights_that_are_ruined"),
    "L1 rumors of thousands": (ATTACKS, "test_l1_rumors_of_thousands"),
    "L1b phantoms that take the turns of others": (PHANTOMS, "test_phantoms_do_not_part"),
    "L2 goodbyes of others": (ATTACKS, "test_l2_nobody_says_goodbye"),
    "L2b goodbyes of those behind a hub": (SIGNED, "test_nobody_says_goodbye_for_a_learner"),
    "L3 hellos of many names": (ATTACKS, "test_l3_hellos_make_no_quorum"),
    "L4 anchors that nobody gets": (CLAIMS, "test_no_round_waits_for_what_a_doubted"),
    "L4b the same of another model, at a real learner": (ATTACKS, "test_l4_anchors_that_nobody"),
    "L5 a phantom that seals": (ATTACKS, "test_l5_a_phantom_seals_nothing"),
    "L6 thousands of wants": (ATTACKS, "test_l6_thousands_of_wants"),
    "L7 thousands of pings": (ATTACKS, "test_l7_thousands_of_questions"),
    "L8 so many authors that no anchor can be sent": (
        WIRE,
        "test_the_authors_of_an_anchor_always_fit",
    ),
    "L8b the same, sent to a real learner": (FALSE, "test_l8_an_anchor_of_too_many_authors"),
    "L9 the greatest beat count": (RAW, "test_l9_nobody_makes_another_look_silent"),
    "L10 a beat in another's name": (ATTACKS, "test_l10_a_beat_in_the_name_of_another"),
    "L11 a refusal in a seed's name": (DIALS, "test_l11_nobody_refuses_in_the_name"),
    "L12 messages of any content": (RAW, "test_l12_well_formed_messages_of_any_content"),
    "R1 long refusals": (ATTACKS, "test_r1_long_texts_in_a_hello"),
    "R2 forty exchanges of one peer": (ATTACKS, "test_r2_of_forty_exchanges"),
    "R3 unknown sections": (ATTACKS, "test_r3_sections_that_nobody_knows"),
    "R4 headers that announce the most": (ATTACKS, "test_r4_headers_that_announce"),
    "R5 impossible headers": (ATTACKS, "test_r5_impossible_headers"),
    "R6 mutated packets": (FUZZ, "test_mutations_of_the_corpus_break_no_law"),
    "R7 garbage": (ATTACKS, "test_r7_garbage_is_no_learner"),
    "R8 idle connections": (ATTACKS, "test_r8_idle_connections"),
    "R9 all files taken": (ATTACKS, "test_r9_training_can_open_its_own_files"),
    "R10 silent connections": (DOOR, "test_handshakes_that_never_end_keep_nobody_out"),
    "R11 pings of HTTP/2": (RAW, "test_r11_pings_end_their_connection"),
    "R12 streams that are reset": (ATTACKS, "test_r12_streams_that_are_reset"),
    "R13 headers without end": (RAW, "test_r13_headers_without_end"),
    "R14 callers without a name": (ATTACKS, "test_r14_a_caller_without_a_name"),
    "R14b metadata of megabytes": (ATTACKS, "test_r14b_metadata_beyond_measure"),
    "R15 addresses of any kind": (ATTACKS, "test_r15_no_socket_is_dialled"),
    "R16 many dials of one address": (DIALS, "test_r16_one_address_of_many_names"),
    "R16b dials of many addresses": (DIALS, "test_r16b_of_many_addresses"),
    "R17 a flood of looks": (DIALS, "test_r17_a_flood_of_looks"),
    "R17b looks that keep the learner busy": (WATCH, "test_however_many_watch_the_learner"),
    "I8 a stranger watches": (CERTIFIED, "test_i2_strangers_get_no_answer"),
    "R18 a survey that moves too much": (SURVEYS, "test_r18_nobody_moves_more"),
    "R18b many transfers in one survey": (SURVEYS, "test_r18b_all_transfers"),
    "R19 a learner as a dialler of others": (SURVEYS, "test_r19_a_learner_dials_the_surveyor"),
    "R19b a learner as a scanner of ports": (SURVEYS, "test_r19b_services_of_the_surveyors"),
    "R20 a flood of surveys": (SURVEYS, "test_r20_of_a_flood_of_surveyors"),
    "R21 a survey that stalls": (SURVEYS, "test_r21_a_surveyor_that_stalls"),
    "I9 a stranger surveys": (CERTIFIED, "test_i2_strangers_get_no_answer"),
    "T1 names that forge lines": (ATTACKS, "test_t1_no_name_forges_a_line"),
    "T2 the same in the ledger": (FUZZ, "test_mutations_of_the_corpus_break_no_law"),
    "T3 checkpoints": ("unit/worker/test_checkpoint_reader", "test_a_hostile_checkpoint"),
    "T4 a ledger that hangs": ("unit/runtime/test_ledger_file", "test_a_disk_that_hangs"),
    "T5 a ledger by a link": ("unit/runtime/test_ledger_file", "test_a_ledger_that_becomes_a_link"),
    "T6 secrets in pickles": ("together/test_security", "test_no_secret_is_in_a_repr_log_pickle"),
}
OPEN = {
    "M1d the word of one to a learner that has just started": "insiders and the model",
    "L3b beats of as many names as there are learners": "insiders and the rounds",
    "M4c a member that nobody knows, without signatures": "offers without signatures",
}


@cache
def functions_in(name: str) -> set[str]:
    tree = ast.parse((TESTS / f"{name}.py").read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, functions)}


@pytest.mark.parametrize("row", HELD)
def test_each_row_that_is_held_has_its_test(row: str) -> None:
    name, start = HELD[row]
    assert len([test for test in functions_in(name) if test.startswith(start)]) == 1


def test_no_row_is_both_held_and_open() -> None:
    numbers = [row.split()[0] for row in (*HELD, *OPEN)]
    assert len(set(numbers)) == len(numbers)
