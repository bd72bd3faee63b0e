"""Mutants of the limits of the fields that peers fill in: each field taken as it comes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.mutant_list import FRAMES, Mutant, of

FIELDS = of("unit/transport/test_wire_limits")
# By module, each check, and the value that it holds to its limit.
CHECKS = {
    "transport/frames": (
        ('checked_list("sections", header.sections, SECTION_LIMIT)', "header.sections"),
        ('checked_name("section name", section.name)', "section.name"),
        ('checked_name("codec", section.codec)', "section.codec"),
    ),
    "transport/wire": (
        ('checked_digest("digest", want.have)', "want.have"),
        ('checked_name("address", hello.address, may_be_empty=True)', "hello.address"),
        ('checked_text("refusal", hello.refusal)', "hello.refusal"),
        ('checked_name("address", beat.address, may_be_empty=True)', "beat.address"),
        ('checked_count("number of a beat", beat.count)', "beat.count"),
        ('checked_count("steps", beat.step)', "beat.step"),
        ('checked_count("tokens", beat.tokens)', "beat.tokens"),
        ('checked_number("seconds per step", beat.seconds_per_step)', "beat.seconds_per_step"),
        ("checked_genesis(beat.genesis)", "beat.genesis"),
        ('checked_count("ping", beat.ping)', "beat.ping"),
        ('checked_count("pong", beat.pong)', "beat.pong"),
        ('checked_count("position", beat.position)', "beat.position"),
        ('checked_count("latency", beat.latency)', "beat.latency"),
        ('checked_digest("ready", beat.ready)', "beat.ready"),
        ('checked_digest("ended", beat.ended)', "beat.ended"),
        ('checked_name("zone", beat.zone, may_be_empty=True)', "beat.zone"),
        ('checked_digest("group", report.group)', "report.group"),
        ('checked_count("latency", report.latency)', "report.latency"),
        ('checked_name("address", rumor.address, may_be_empty=True)', "rumor.address"),
        ('checked_count("number of a beat", rumor.count)', "rumor.count"),
        ('checked_digest("ready", rumor.ready)', "rumor.ready"),
        ('checked_count("tokens", rumor.tokens)', "rumor.tokens"),
        ("checked_proof(rumor.proof)", "rumor.proof"),
        ('checked_count("hops", rumor.hops)', "rumor.hops"),
        ("checked_proof(control.goodbye.proof)", "control.goodbye.proof"),
        ("checked_reports(beat.reports)", "beat.reports"),
        ('checked_list("paces", beat.paces, PACE_LIMIT)', "beat.paces"),
    ),
    "transport/wire_bulk": (
        ('checked_list("members", seal.members, MOST_LEARNERS)', "seal.members"),
        ('checked_count("tokens of a residual", told.again_tokens)', "told.again_tokens"),
        ('checked_count("steps of a residual", told.again_steps)', "told.again_steps"),
        ('checked_count("number of an offer", member.seq)', "member.seq"),
        ('checked_count("tokens of a member", member.tokens)', "member.tokens"),
        ('checked_count("steps of a member", member.steps)', "member.steps"),
        ('checked_count("number of an offer", offer.seq)', "offer.seq"),
        ('checked_count("tokens of an offer", offer.tokens)', "offer.tokens"),
        ('checked_count("steps of an offer", offer.steps)', "offer.steps"),
        ("checked_genesis(offer.genesis)", "offer.genesis"),
        ('checked_count("number of an offer", offer.follows)', "offer.follows"),
        ('checked_digest("digest", seal.base)', "seal.base"),
        ('checked_name("reason", seal.reason, may_be_empty=True)', "seal.reason"),
        ('checked_digest("digest", seal.payload)', "seal.payload"),
        ('checked_count("period", seal.period)', "seal.period"),
        ('checked_digest("content", state.content)', "state.content"),
        ("checked_genesis(lineage.genesis)", "lineage.genesis"),
        ('checked_name("peer name", name)', "name"),
        ('checked_list("absent peers", seal.absent, MOST_LEARNERS)', "seal.absent"),
    ),
    "transport/wire_parts": (
        ('checked_name("peer name", peer.name)', "peer.name"),
        ('checked_count("tokens of an anchor", owner.key.tokens)', "owner.key.tokens"),
        ('checked_count("version of an anchor", owner.key.version)', "owner.key.version"),
        ('checked_digest("digest", owner.key.digest)', "owner.key.digest"),
        ('checked_count("number of an offer", pair.seq)', "pair.seq"),
        ("checked_list(what, pairs)", "pairs"),
        ('checked_text("field name", field.name)', "field.name"),
        ('checked_text("field value", field.value)', "field.value"),
        ('checked_list("fields", fields)', "fields"),
    ),
    "transport/wire_paces": (
        ('checked_name("cause", pace.cause)', "pace.cause"),
        ('checked_number("pace", pace.now)', "pace.now"),
        ('checked_number("pace", pace.before)', "pace.before"),
        ('checked_number("spread", pace.spread)', "pace.spread"),
    ),
    "transport/wire_sight": (
        ('checked_name("name of a number", each.name)', "each.name"),
        ('checked_name("address", told.address, may_be_empty=True)', "told.address"),
        ('checked_number("seconds of a step", told.seconds_per_step)', "told.seconds_per_step"),
        ('checked_number("seconds since a round", told.quiet_s)', "told.quiet_s"),
        ('checked_name("codec", told.codec, may_be_empty=True)', "told.codec"),
        ('checked_name("address", peer.address, may_be_empty=True)', "peer.address"),
        ('checked_name("state", peer.state)', "peer.state"),
        ('checked_count("step", peer.step)', "peer.step"),
        ('checked_count("tokens", peer.tokens)', "peer.tokens"),
        ('checked_number("slowness", peer.slow)', "peer.slow"),
        ('checked_count("version of an anchor", each.version)', "each.version"),
        ('checked_count("tokens of an anchor", each.tokens)', "each.tokens"),
        ('checked_name("reason", each.reason, may_be_empty=True)', "each.reason"),
        ('checked_name("peer name", each.sealer, may_be_empty=True)', "each.sealer"),
        ("checked_count(name, getattr(told, name))", "getattr(told, name)"),
        ('checked_list("peers", told.roster, MOST_LEARNERS)', "told.roster"),
        ('checked_list("rounds", told.last, ROUNDS_SHOWN)', "told.last"),
        ('checked_list("reported numbers", told.reported, REPORTED_LIMIT)', "told.reported"),
        ('checked_list("members", each.members, MOST_LEARNERS)', "each.members"),
        ('checked_list("absent peers", each.absent, MOST_LEARNERS)', "each.absent"),
    ),
    "transport/wire_survey": (
        ('checked_number("a wait", turn.wait_s, MOST_WAIT_S)', "turn.wait_s"),
        ('checked_count("a time", told.clock.received_ns)', "told.clock.received_ns"),
        ('checked_count("a time", told.clock.answered_ns)', "told.clock.answered_ns"),
    ),
}


def mutants() -> Iterator[Mutant]:
    """Garbage is refused and named (law 8)."""
    for room, checks in CHECKS.items():
        tests = FRAMES if room == "transport/frames" else FIELDS
        for check, value in checks:
            name = "-".join(re.findall(r"[a-z]+", f"{room.split('/')[1]} {value}"))
            yield Mutant(f"unlimited-{name}", 8, room, check, value, tests)


FIELD_MUTANTS = (
    *mutants(),
    Mutant(
        "digests-without-limit",
        8,
        "transport/limits",
        "    check_size(what, len(digest), DIGEST_LIMIT)\n",
        "",
        FIELDS,
    ),
    Mutant(
        "signatures-without-limit",
        8,
        "transport/limits",
        '    check_size("a proof", len(proof), PROOF_LIMIT)\n',
        "",
        FIELDS,
    ),
    Mutant(
        "members-of-a-sight-without-names",
        8,
        "transport/wire_sight",
        'checked_name("peer name", name)\n            for name in checked_list("members"',
        'name\n            for name in checked_list("members"',
        FIELDS,
    ),
    Mutant(
        "absent-peers-of-a-sight-without-names",
        8,
        "transport/wire_sight",
        'checked_name("peer name", name)\n            for name in checked_list("absent peers"',
        'name\n            for name in checked_list("absent peers"',
        FIELDS,
    ),
)
