"""Mutants of the command `mend`, of what it reads from learners, of what scripts report, and of what
is exported."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

CROWD = of("unit/cli/test_crowd", "not docs")
WATCHING = of("unit/transport/test_watching")
REPORTED = of("unit/test_reported")
EXPORTED = of("unit/integrations/test_prometheus", "twice_a_second or alive")
FINDINGS = of("unit/cli/test_check_findings")
CREW = of("unit/cli/test_run_crew")
VERDICT = of("unit/cli/test_ledger_verdict")
PACE = of("unit/cli/test_ledger_pace")
RESTARTS = of("unit/cli/test_ledger_restarts")
FOUNDERS = of("unit/cli/test_ledger_founders")
VERSION = of("unit/cli/test_command")
PLANS = of("unit/cli/test_plan", "joins or joined")
SITES = of("unit/cli/test_plan_sites", "not measured")
COMMAND = of("unit/cli/test_ledger_command", "gap_has_a_status")


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    """Mistakes of users and of other learners are named (law 8)."""
    return Mutant(name, 8, room, old, new, tests)


CLI_MUTANTS = (
    mutant(
        "a-plan-has-seals-cross-for-each-learner",
        "cli/plan/sites",
        "(others, 1) if zoned else (outside, inside)",
        "(outside, inside)",
        SITES,
    ),
    mutant(
        "a-plan-has-one-offer-of-each-site-cross",
        "cli/plan/sites",
        "sent=(1 - seals) * _mixed(inside, 1, joined) +",
        "sent=(1 - seals) * (1 if zoned else inside) +",
        SITES,
    ),
    mutant(
        "relays-of-a-plan-pass-on-only-their-own",
        "cli/plan/sites",
        "self.relayed * self.leaving + self.direct if",
        "self.relayed + self.direct if",
        SITES,
    ),
    mutant(
        "a-plan-joins-no-offers",
        "cli/plan/sites",
        "return (1 - joined) * apart + joined * together",
        "return apart",
        SITES,
    ),
    mutant(
        "a-plan-joins-offers-of-any-codec",
        "cli/plan/model",
        "if not (setup.zoned and coding.joins):",
        "if not setup.zoned:",
        PLANS,
    ),
    mutant(
        "a-plan-joins-offers-with-moments",
        "cli/plan/model",
        "return WITHOUT_MOMENTS if extra else 1.0",
        "return 1.0",
        PLANS,
    ),
    mutant(
        "relays-of-a-plan-hand-down-no-seals",
        "cli/plan/sites",
        "self.seals_sent + hops + relayed",
        "self.seals_sent + relayed",
        SITES,
    ),
    Mutant(
        "each-scrape-asks-the-learner",
        7,
        "integrations/prometheus",
        "now - last[0] < FRESH_S",
        "now - last[0] < 0",
        EXPORTED,
    ),
    Mutant(
        "metrics-hold-the-optimizer",
        7,
        "integrations/prometheus",
        "self._optimizer = weakref.ref(optimizer)",
        "self._optimizer = lambda: optimizer",
        EXPORTED,
    ),
    Mutant(
        "each-look-asks-the-learner",
        7,
        "transport/watching",
        "now - self._made_at >= FRESH_S",
        "now - self._made_at >= 0",
        WATCHING,
    ),
    Mutant(
        "looks-have-no-limit",
        7,
        "transport/watching",
        "if self._looks <= MOST_LOOKS else None",
        "if self._looks else None",
        WATCHING,
    ),
    mutant(
        "any-version-of-a-look-is-read",
        "transport/wire_sight",
        "check(look.version == VERSION,",
        "check(look.version >= VERSION,",
        WATCHING,
    ),
    mutant(
        "reported-names-of-any-length-arrive",
        "transport/wire_sight",
        "check(len(name) <= REPORTED_NAME,",
        "check(len(name) > 0,",
        WATCHING,
    ),
    mutant(
        "a-script-reports-any-number-of-numbers",
        "reported",
        "len(merged) <= REPORTED_LIMIT",
        "len(newer) <= REPORTED_LIMIT + 1",
        REPORTED,
    ),
    mutant(
        "a-report-takes-the-place-of-the-former",
        "reported",
        "{**former, **newer}",
        "{**newer}",
        REPORTED,
    ),
    mutant(
        "an-earlier-process-of-a-name-is-shown",
        "cli/watch/crowd",
        "former.peer.incarnation <= sight.peer.incarnation",
        "former.peer.incarnation >= sight.peer.incarnation",
        CROWD,
    ),
    mutant(
        "the-given-address-is-forgotten",
        "cli/watch/crowd",
        "n > PATIENCE and a != self.address",
        "n > PATIENCE",
        CROWD,
    ),
    mutant(
        "runs-without-zones-have-a-column-of-them",
        "cli/watch/text",
        "if any(row.zone for row in rows)",
        "if rows",
        CROWD,
    ),
    mutant(
        "a-suspected-peer-is-somebody-to-merge-with",
        "protocol/sight",
        'any(peer.state == "alive" for',
        'any(peer.state != "" for',
        CROWD,
    ),
    mutant(
        "nobody-is-told-who-waits-in-finish",
        "cli/watch/crowd",
        "    if told and told.finishing:\n        return FINISHING\n",
        "",
        CROWD,
    ),
    mutant(
        "a-learner-that-has-not-joined-merges",
        "protocol/sight",
        "return self.joined and alive and",
        "return alive and",
        CROWD,
    ),
    mutant(
        "rounds-that-stopped-are-not-missed",
        "protocol/sight",
        "self.quiet_s > max(QUIET_S, QUIET_ROUNDS * usual_s)",
        "self.quiet_s > 10 * max(QUIET_S, QUIET_ROUNDS * usual_s)",
        CROWD,
    ),
    mutant(
        "rounds-that-take-long-are-missed",
        "protocol/sight",
        "max(QUIET_S, QUIET_ROUNDS * usual_s)",
        "QUIET_S",
        CROWD,
    ),
    mutant(
        "others-name-no-slow-learner",
        "cli/watch/crowd",
        'peer.state != "alive" or peer.slow',
        'peer.state != "alive"',
        CROWD,
    ),
    mutant(
        "silence-is-told-in-the-transports-words",
        "cli/check/findings",
        "    if visit.silent_s:\n",
        "    if False:\n",
        of("unit/cli/test_check_findings"),
    ),
    mutant(
        "another-version-is-no-fault",
        "cli/check/findings",
        "if visit.answer.protocol != PROTOCOL:",
        "if visit.answer.protocol < 0:",
        FINDINGS,
    ),
    mutant(
        "one-process-at-two-addresses-is-two",
        "cli/check/findings",
        "if len(processes) > 1",
        "if len(processes) > 0",
        FINDINGS,
    ),
    mutant(
        "a-learner-starts-once-more-than-agreed",
        "cli/run/crew",
        "member.ends > self._restarts",
        "member.ends > self._restarts + 1",
        CREW,
    ),
    mutant(
        "pauses-grow-without-end",
        "cli/run/crew",
        "min(LONGEST_PAUSE_S, self._pause_s",
        "max(LONGEST_PAUSE_S, self._pause_s",
        CREW,
    ),
    mutant(
        "a-signal-is-a-status-below-zero",
        "cli/run/crew",
        "return 128 - code if code < 0",
        "return code if code < 0",
        CREW,
    ),
    mutant(
        "a-run-with-gaps-is-sound",
        "cli/ledger/verdict",
        "Severity.INCOMPLETE: 3",
        "Severity.INCOMPLETE: 0",
        COMMAND,
    ),
    mutant(
        "a-lacking-line-is-no-finding",
        "cli/ledger/verdict",
        "        found += _missing_lines(chains, where)\n",
        "",
        VERDICT,
    ),
    mutant(
        "each-line-of-any-file-is-a-finding",
        "cli/ledger/verdict",
        "if damage.good and len(damage.lines) <= FEW_LINES:",
        "if len(damage.lines) <= 100:",
        VERDICT,
    ),
    mutant(
        "a-damaged-line-is-told-whatever-its-length",
        "cli/ledger/lines",
        "return told if len(told) <= WHY else",
        "return told if told else",
        VERDICT,
    ),
    mutant(
        "a-night-counts-as-training",
        "cli/ledger/pace",
        "            pauses.append(span)\n",
        "            pauses.append(span)\n            seconds += span\n",
        PACE,
    ),
    mutant(
        "slow-rounds-are-pauses",
        "cli/ledger/pace",
        "max(QUIET_S, QUIET_ROUNDS * median_low(around))",
        "QUIET_S",
        PACE,
    ),
    mutant(
        "short-gaps-are-pauses",
        "cli/ledger/pace",
        "max(QUIET_S, QUIET_ROUNDS * median_low(around))",
        "QUIET_ROUNDS * median_low(around)",
        PACE,
    ),
    mutant(
        "a-longer-period-is-a-pause",
        "cli/ledger/pace",
        "around = spans[max(0, i - AROUND) : i + AROUND + 1]",
        "around = spans",
        PACE,
    ),
    mutant(
        "lines-of-others-end-no-pause",
        "cli/ledger/pace",
        "pairwise([begin, *within, end])",
        "pairwise([begin, end])",
        PACE,
    ),
    mutant(
        "work-before-a-checkpoint-is-lost-to-its-account",
        "cli/ledger/restarts",
        'if line.record.reason != "restored":',
        "if line:",
        RESTARTS,
    ),
    mutant(
        "an-offer-on-its-way-in-a-checkpoint-is-lost-to-its-account",
        "cli/ledger/restarts",
        "former[1:] if line.record.mine and not is_by_itself else former",
        "former",
        RESTARTS,
    ),
    mutant(
        "an-offer-is-lost-at-each-start-from-a-checkpoint",
        "cli/ledger/restarts",
        "lost[process.name][version, member.incarnation]",
        "lost[process.name][process.incarnation, len(lost[process.name])]",
        RESTARTS,
    ),
    mutant(
        "nobody-tells-why-two-counts-differ",
        "cli/ledger/verdict",
        "    found += _uncounted(story)\n",
        "",
        RESTARTS,
    ),
    mutant(
        "a-founder-has-nothing-in-common-with-its-run",
        "cli/ledger/chains",
        "_base_of_founded(anchor, founded_on.get(key))",
        "(None, Link.START)",
        FOUNDERS,
    ),
    mutant(
        "a-founder-goes-on-where-any-process-of-its-name-was",
        "cli/ledger/chains",
        "if before.by == line.by or (follows and",
        "if before.by or (follows and",
        FOUNDERS,
    ),
    mutant(
        "a-founder-with-another-incarnation-begins-anew",
        "cli/ledger/chains",
        'or (follows and before.record.reason == "restored")',
        "",
        FOUNDERS,
    ),
    mutant(
        "lines-that-a-founder-lost-are-not-missed",
        "cli/ledger/chains",
        "Link.FOUNDED if before[1] == anchor.version - 1 else Link.COVERED",
        "Link.FOUNDED",
        FOUNDERS,
    ),
    mutant(
        "a-founder-with-a-lost-ledger-began-the-run",
        "cli/ledger/chains",
        "if before is None and anchor.version <= ALONE + 1:",
        "if before is None:",
        FOUNDERS,
    ),
    mutant(
        "work-of-a-founder-is-nobodys",
        "cli/ledger/chains",
        "if not self.founded or self.link not in",
        "if True or self.link not in",
        FOUNDERS,
    ),
    mutant(
        "a-restored-process-with-another-incarnation-has-no-checkpoint",
        "cli/ledger/restarts",
        "incarnation < newest[name]:",
        "incarnation < 0:",
        FOUNDERS,
    ),
    mutant(
        "a-double-merge-is-no-finding",
        "cli/ledger/verdict",
        "        found += _double_merges(chains, where)\n",
        "",
        VERDICT,
    ),
    mutant(
        "a-second-run-came-back-from-the-first",
        "cli/ledger/forks",
        "if _is_at_another_time(chains, at, keys):",
        "if ended and _is_at_another_time(chains, at, keys):",
        VERDICT,
    ),
    mutant(
        "learners-that-never-met-are-known-to-be-another-run",
        "cli/ledger/forks",
        "if _shares_a_name(chains, at, keys):",
        "if keys:",
        VERDICT,
    ),
    mutant(
        "first-weights-without-work-leave-the-verdict-open",
        "cli/ledger/forks",
        "return Fate.UNRELATED if any(tokens for tokens, _, _ in keys) else Fate.EMPTY",
        "return Fate.UNRELATED",
        VERDICT,
    ),
    mutant(
        "a-change-of-models-is-another-run",
        "cli/ledger/forks",
        "return not ours & theirs and (over",
        "return (over",
        VERDICT,
    ),
    mutant(
        "who-worked-for-two-runs-is-overlooked",
        "cli/ledger/forks",
        "return wrote | {PeerId",
        "return wrote or {PeerId",
        VERDICT,
    ),
    mutant(
        "a-fork-before-a-restart-is-another-run",
        "cli/ledger/forks",
        "return not tokens and not version",
        "return True",
        VERDICT,
    ),
    mutant(
        "an-absent-dependency-ends-the-command",
        "cli/command",
        "except metadata.PackageNotFoundError:",
        "except ImportWarning:",
        VERSION,
    ),
)
