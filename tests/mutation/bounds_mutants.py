"""Mutants of the other checks of what peers, surveyors and files say: each left out."""

from __future__ import annotations

from tests.mutation.mutant_list import (
    ANCHOR,
    FRAMES,
    PRESENCE,
    RECEIVING,
    ROSTER,
    SIZES,
    WIRE,
    Mutant,
    of,
)
from tests.mutation.peer_mutants import (
    BLOCKS,
    EVIDENCE,
    GRPC,
    MOMENTS,
    NOTARY,
    PACKING,
    TRANSFERS,
    never,
    unchecked,
)
from tests.mutation.security_mutants import CHANNELS
from tests.mutation.survey_mutants import SURVEYOR, TURNS
from tests.mutation.survey_mutants import WIRE as SURVEY_WIRE

WATCHING = of("unit/transport/test_watching")
PROOFS, SIGNING = of("unit/protocol/test_proofs"), of("unit/worker/test_signing")
CERTIFICATE = of("unit/transport/security/test_certificate")
CODECS_CHECKED = of("unit/codecs/test_powersgd unit/codecs/test_packing")
READER = of(
    "unit/worker/test_checkpoint_reader", "hostile or another or refused or missing or finite"
)


def without(name: str, room: str, call: str, tests: tuple[str, ...], law: int = 8) -> Mutant:
    """A mutant that does not make this check."""
    return Mutant(name, law, room, f"{call}\n", "pass\n", tests)


BOUNDS_MUTANTS = (
    # Messages and frames.
    without(
        "messages-of-any-size",
        "transport/wire_parts",
        "check_size(kind.__name__, len(data), MESSAGE_LIMIT)",
        WIRE,
    ),
    without(
        "names-of-any-length",
        "transport/limits",
        "check_size(what, len(text.encode()), NAME_LIMIT)",
        FRAMES,
    ),
    unchecked("names-of-any-characters", "transport/limits", "is_plain(text)", WIRE),
    never("checks-raise-nothing", "transport/limits", "not holds", WIRE),
    # Transfers: of the right kind, and from the peer itself.
    *(
        without(f"{name}-in-anothers-name", "transport/transfers", call, TRANSFERS)
        for name, call in (
            ("wants", "check_sender(want, link.id)"),
            ("own-seals", "check_sender(seal, link.id)"),
            ("pushes-and-offers", "check_sender(message, link.id)"),
            ("anchors", "check_sender(answer, link.id)"),
        )
    ),
    without(
        "control-in-anothers-name", "transport/control", "check_sender(message, link.id)", GRPC
    ),
    without(
        "wants-of-no-fragment",
        "transport/transfers",
        "check_fragment(self._carrier.limit, want.fragment)",
        TRANSFERS,
    ),
    Mutant(
        "exchanges-of-anything",
        8,
        "transport/transfers",
        'if not isinstance(offer, Offer):\n            raise PeerError(f"peer {link.id} began',
        'if False:\n            raise PeerError(f"peer {link.id} began',
        TRANSFERS,
    ),
    Mutant(
        "anything-is-passed-on",
        8,
        "transport/transfers",
        'if not isinstance(offer, Offer):\n            raise PeerError(f"peer {link.id} passed',
        'if False:\n            raise PeerError(f"peer {link.id} passed',
        TRANSFERS,
    ),
    never(
        "offers-that-wait-for-ever",
        "transport/receiving",
        "not arrival.admitted.is_set()",
        RECEIVING,
    ),
    without(
        "unproven-goodbyes",
        "transport/goodbyes",
        "check_goodbye(peer, proof, self._notary)",
        of("unit/transport/test_goodbyes"),
        4,
    ),
    # Watchers and surveys.
    without(
        "strangers-watch",
        "transport/watching",
        "self._security.check_caller(context, caller.name)",
        WATCHING,
    ),
    without(
        "any-look-is-answered",
        "transport/watching",
        "check_look(await self._first_messages.read(context))",
        WATCHING,
    ),
    unchecked(
        "any-version-of-a-sight", "transport/wire_sight", "told.version == VERSION", WATCHING
    ),
    unchecked("empty-chunks", "transport/wire_survey", "bool(data)", SURVEY_WIRE),
    without(
        "survey-chunks-of-any-size",
        "transport/wire_survey",
        'check_size("a chunk", len(data), CHUNK_BYTES)',
        SURVEY_WIRE,
    ),
    without(
        "ip-addresses-of-any-length",
        "transport/wire_survey",
        'check_size("an IP address", len(turn.seen_ip), IP_LIMIT)',
        SURVEY_WIRE,
    ),
    unchecked(
        "ip-addresses-of-any-form",
        "transport/wire_survey",
        "not turn.seen_ip or is_ip(turn.seen_ip)",
        SURVEY_WIRE,
    ),
    without(
        "any-size-is-taken",
        "transport/wire_survey",
        'check_size("the transfer", told.take, MOST_BYTES)',
        SURVEY_WIRE,
    ),
    unchecked(
        "tokens-of-any-length",
        "transport/wire_survey",
        "len(told.token) == TOKEN_BYTES",
        SURVEY_WIRE,
    ),
    unchecked("turns-of-any-size", "transport/surveying", "nbytes <= TURN_BYTES", TURNS),
    unchecked("dialled-twice", "transport/surveying", "not self._has_dialled", TURNS),
    unchecked("transfers-that-break-off", "transport/surveying", "frame is not None", TURNS),
    unchecked("questions-in-a-transfer", "transport/surveying", "isinstance(ask, Chunk)", TURNS),
    unchecked("fewer-bytes-arrived", "transport/survey", "taken.nbytes == nbytes", SURVEYOR),
    unchecked("more-bytes-than-asked-for", "transport/survey", "left == 0", SURVEYOR),
    unchecked("surveys-that-end-early", "transport/survey", "frame is not None", SURVEYOR),
    unchecked("answers-of-any-kind", "transport/survey", "isinstance(reply, kind)", SURVEYOR),
    unchecked("many-machines-are-dialled", "transport/dial_back", "is_one", TURNS),
    without("anything-is-dialled-back", "transport/dial_back", "check_target(ip)", TURNS),
    # Signatures and certificates.
    never("sections-that-are-missing", "protocol/messages", "name not in sections", SIGNING),
    without("work-of-others-is-signed", "protocol/proofs", "_check_author(told)", PROOFS, 4),
    without(
        "offers-signed-by-anybody",
        "protocol/proofs",
        "_check_signer(proof, told, notary, merged=False)",
        PROOFS,
        4,
    ),
    without(
        "packets-that-were-changed", "protocol/proofs", "_check_packets(seal, told)", PROOFS, 4
    ),
    never("members-that-are-not-proven", "protocol/proofs", "flaw", PROOFS, 4),
    without(
        "offers-without-a-signature",
        "worker/signing",
        "check_offer(offer, content, self._notary)",
        SIGNING,
        4,
    ),
    unchecked("the-ledger-proves-anything", "transport/security/evidence", "not flaw", EVIDENCE, 4),
    unchecked("the-denied-sign", "transport/security/notary", "not is_denied", NOTARY, 4),
    without(
        "the-expired-sign",
        "transport/security/notary",
        "signer.check_valid(time.time(), grace_s)",
        NOTARY,
        4,
    ),
    without(
        "chains-of-any-certificates",
        "transport/security/signers",
        "_check_issued(child, issuer, below)",
        NOTARY,
        4,
    ),
    never(
        "keys-of-any-kind-sign",
        "transport/security/notary",
        "not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)",
        NOTARY,
    ),
    never(
        "keys-of-any-kind-count",
        "transport/security/signers",
        "not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)",
        NOTARY,
    ),
    without(
        "the-denied-call",
        "transport/security/channels",
        "self.check_peer(name, certificate)",
        CHANNELS,
    ),
    # Tensors.
    *(
        without(f"{name}-of-any-moments", "worker/fragment_anchor", call, ANCHOR)
        for name, call in (
            ("offers", "self.means.check(offer.sections)"),
            ("seals", "self.means.check(seal.sections)"),
            ("anchors", "self.means.check(state.sections)"),
            ("velocities", "self.velocity.check(state.sections, self.fragment.shapes)"),
        )
    ),
    never(
        "moments-beyond-their-bounds",
        "worker/moment_packet",
        "not is_between(part, precise.least, precise.most)",
        MOMENTS,
    ),
    without(
        "moments-of-any-form",
        "worker/moment_packet",
        "part.form.check(part.data, part.shape, part.param)",
        MOMENTS,
    ),
    never(
        "sizes-of-other-members",
        "worker/offer_sizes",
        "(packet.codec, packet.numel, packet.nbytes) != (RAW, count, 4 * count)",
        SIZES,
    ),
    without(
        "codes-that-are-none",
        "codecs/blockwise",
        "self.check_codes(codes, math.prod(shape) % param)",
        BLOCKS,
    ),
    Mutant(
        "parameters-where-none-is-taken",
        8,
        "codecs/packing",
        '        if param:\n            raise PeerError(f"Form parameter',
        '        if False:\n            raise PeerError(f"Form parameter',
        PACKING,
    ),
    # The roster, and hellos.
    never(
        "another-version-is-no-reason",
        "protocol/handshake",
        "mine.protocol != theirs.protocol",
        of("unit/protocol/test_handshake"),
    ),
    never(
        "two-learners-of-one-name",
        "protocol/handshake",
        "mine.peer.name == theirs.peer.name and not asks",
        GRPC,
    ),
    never(
        "all-that-were-turned-away-are-kept",
        "membership/turned_away",
        "len(self._last) > TURNED_AWAY",
        ROSTER,
    ),
    never(
        "older-beats-count",
        "membership/roster",
        "known and known.beat and beat.count <= known.beat.count",
        ROSTER,
    ),
    never(
        "hearsay-fills-the-roster",
        "membership/roster",
        "self.closed or not (isinstance(news, Beat) or self._may_be(name))",
        ROSTER,
    ),
    never(
        "beats-fill-the-roster",
        "membership/roster",
        "known is None and isinstance(news, Beat) and not self._make_room()",
        ROSTER,
    ),
    Mutant(
        "hellos-fill-the-roster",
        8,
        "membership/roster",
        "self.closed or (known is None and not self._make_room())",
        "self.closed",
        ROSTER,
    ),
    Mutant(
        "goodbyes-of-former-processes",
        8,
        "membership/roster",
        "if known and known.id.incarnation > id.incarnation:\n            return False",
        "if False:\n            return False",
        ROSTER,
    ),
    never("names-of-the-gone-are-kept", "engine/presence", "len(self._gone) > GONE", PRESENCE),
    # Checks of what the others say of themselves and of us.
    Mutant(
        "others-say-our-goodbye",
        8,
        "membership/roster",
        "if id.name == self.me.name or self._graves.last(id.name) >= (id.incarnation, LEFT):",
        "if self._graves.last(id.name) >= (id.incarnation, LEFT):",
        ROSTER,
    ),
    Mutant(
        "anchors-to-those-that-have-them",
        8,
        "engine/answers",
        "if want.have != job.lineage.digest:",
        "if True:",
        of("unit/engine/test_answers"),
    ),
    Mutant(
        "newcomers-that-ask-before-their-beat-get-no-answer",
        1,
        "engine/answers",
        "return shown > lineage.key and",
        "return False and",
        of("unit/engine/test_answers"),
    ),
    Mutant(
        "newcomers-with-other-weights-take-what-is-founded-upon",
        1,
        "engine/answers",
        "(want.have == lineage.digest or not is_heard)",
        "want.have == lineage.digest",
        of("unit/engine/test_answers"),
    ),
    Mutant(
        "no-newcomer-is-answered-while-a-learner-is-alone",
        8,
        "engine/answers",
        "is_heard = asker is not None and asker.heard",
        "is_heard = False",
        of("unit/engine/test_answers"),
    ),
    Mutant(
        "wants-of-those-that-are-gone-pile-up",
        8,
        "engine/answers",
        " and find(w.peer)]",
        "]",
        of("unit/engine/test_answers"),
    ),
    never(
        "offers-for-any-model",
        "engine/sealer",
        "offer.genesis != state.genesis",
        of("unit/engine/test_sealer", "another_model"),
    ),
    Mutant(
        "more-than-was-shown-is-taken",
        8,
        "engine/adoption",
        "not asked.seal_only and key <= asked.key",
        "not asked.seal_only",
        of("unit/engine/test_majority"),
    ),
    Mutant(
        "reasons-without-end",
        8,
        "transport/control",
        "elif len(self._reported) >= REASONS:",
        "elif False:",
        of("unit/transport/test_links"),
    ),
    Mutant(
        "reasons-of-one-name-without-end",
        8,
        "transport/control",
        "if len(of_one) >= REASONS_OF_ONE:",
        "if False:",
        of("unit/transport/test_links"),
    ),
    Mutant(
        "the-newest-refusal-is-forgotten",
        8,
        "transport/control",
        "del self._reported[next(iter(self._reported))]",
        "return",
        of("unit/transport/test_links"),
    ),
    Mutant(
        "refused-hellos-are-not-counted",
        8,
        "transport/control",
        '            self.refusals.add("", HELLO)\n',
        "",
        of("unit/transport/test_links"),
    ),
    Mutant(
        "refused-hellos-are-counted-by-name",
        8,
        "transport/control",
        'self.refusals.add("", HELLO)',
        "self.refusals.add(theirs.peer.name, HELLO)",
        of("unit/transport/test_links"),
    ),
    Mutant(
        "refused-hellos-are-counted-by-their-words",
        8,
        "transport/control",
        'self.refusals.add("", HELLO)',
        'self.refusals.add("", reason)',
        of("unit/transport/test_links"),
    ),
    Mutant(
        "packets-of-any-values",
        8,
        "codecs/registry",
        "        part.form.check(part.data, part.shape, part.param)\n",
        "        pass\n",
        CODECS_CHECKED,
    ),
    never(
        "certificates-cut-short",
        "transport/security/certificate",
        "len(data) < at + size",
        CERTIFICATE,
    ),
    Mutant(
        "times-of-any-kind",
        8,
        "transport/security/certificate",
        "elif tag != _GENERALIZED_TIME:",
        "elif False:",
        CERTIFICATE,
    ),
    never(
        "streams-that-are-over",
        "transport/stream",
        "self._rpc.done()",
        of("unit/transport/test_stream"),
    ),
    Mutant(
        "added-groups-of-any-number",
        8,
        "worker/checkpoint_reader",
        '    if here != there:\n        raise OtherModelError(\n            f"state_dict must have the groups',
        '    if False:\n        raise OtherModelError(\n            f"state_dict must have the groups',
        of("together/test_groups", "wants_groups"),
    ),
    # Checkpoints.
    *(
        never(name, "worker/checkpoint_reader", flaw, READER)
        for name, flaw in (
            ("any-format-is-read", "form != FORMAT"),
            ("tensors-that-are-missing", "needed - set(tensors)"),
            ("tensors-without-end", "not finite(values)"),
            ("tensors-of-any-kind", "not isinstance(value, Tensor)"),
            ("lists-for-dicts", "not isinstance(values, Mapping)"),
            ("keys-that-are-missing", "key not in self._values"),
            ("values-of-any-type", "wrong and not (optional and value is None)"),
            ("rates-without-end", "not (math.isfinite(value) and value >= 0)"),
            ("digests-of-any-length", "len(digest) != DIGEST_BYTES"),
            ("numbers-below-zero", "name in tensors and float(tensors[name]) < 0"),
        )
    ),
    Mutant(
        "a-number-that-no-float-can-hold",
        8,
        "errors",
        "    except OverflowError:\n        return False\n",
        "    except OverflowError:\n        return True\n",
        of("unit/test_errors", "is_number"),
    ),
    Mutant(
        "a-step-of-any-number-of-tokens",
        8,
        "settings",
        "few = (tokens_per_step or 1) <= MOST_TOKENS",
        "few = True",
        of("together/test_bad_input", "bad_argument"),
    ),
    Mutant(
        "any-number-of-tokens-is-counted",
        8,
        "training_run",
        "require(n <= MOST_TOKENS,",
        "require(n <= n,",
        of("together/test_bad_input", "no_more_tokens"),
    ),
    Mutant(
        "a-disk-that-cannot-be-read-stops-a-learner",
        8,
        "settings",
        "not os.path.isdir(ledger)",
        "not Path(ledger).is_dir()",
        of("unit/test_settings", "refuses_to_look_up"),
    ),
    Mutant(
        "a-disk-that-cannot-tell-of-links-stops-a-learner",
        8,
        "settings",
        "os.path.islink(ledger)",
        "Path(ledger).is_symlink()",
        of("unit/test_settings", "refuses_to_look_up"),
    ),
    Mutant(
        "a-ledger-of-half-a-path",
        8,
        "settings",
        'is_file and "\\0" not in str(ledger)',
        "is_file",
        of("unit/test_settings", "refused"),
    ),
    Mutant(
        "names-are-encoded-before-they-are-checked",
        8,
        "given_names",
        "name.isprintable() and 0 < len(name.encode()) <= 200",
        "0 < len(name.encode()) <= 200 and name.isprintable()",
        of("unit/test_settings", "refused or variable"),
    ),
    Mutant(
        "issued-names-are-encoded-before-they-are-checked",
        8,
        "certs",
        "given.name.isprintable() and 0 < len(given.name.encode()) <= 200",
        "0 < len(given.name.encode()) <= 200 and given.name.isprintable()",
        of("unit/test_certs", "no_learner_may_have"),
    ),
    Mutant(
        "names-that-no-peer-takes-are-issued",
        8,
        "certs",
        "if not is_plain(given.name):",
        "if False:",
        of("unit/test_certs", "no_peer_takes"),
    ),
    Mutant(
        "a-certificate-outlives-its-authority",
        8,
        "certs",
        "    _check_end(given.directory / CA, authority.end(), given.days)\n",
        "",
        of("unit/test_certs", "authority"),
    ),
    Mutant(
        "an-authority-whose-key-is-elsewhere-is-replaced",
        8,
        "certs",
        "is_free = not os.path.lexists(folder / CA)",
        "is_free = True",
        of("unit/test_certs", "elsewhere_stays"),
    ),
    Mutant(
        "a-link-to-an-authority-is-replaced",
        8,
        "certs",
        "os.path.lexists(folder / CA)",
        "(folder / CA).exists()",
        of("unit/test_certs", "elsewhere_stays"),
    ),
    without(
        "sizes-of-anything-are-loaded",
        "worker/checkpoint_reader",
        "_check_sizes(read, tensors)",
        READER,
    ),
)
