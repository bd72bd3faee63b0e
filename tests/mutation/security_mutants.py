"""Mutants of what secures links: each check that a stranger, an insider or a user's mistake meets,
left out."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

CHANNELS = of("unit/transport/security/test_channels")
FILES = of("unit/transport/security/test_files")
NAMES = of("unit/transport/security/test_names")
SECRETS = of("unit/transport/security/test_shared_secret")
ARGUMENTS = of("unit/test_security")
SECRECY = of("together/test_security", "no_secret_is_in or pickle_has_no_path")

ADDRESS = of("unit/transport/test_address")


def mutant(name: str, room: str, old: str, new: str, tests: tuple[str, ...] = CHANNELS) -> Mutant:
    """Garbage is refused and named (law 8): so are a stranger and an impostor."""
    is_whole = room in ("security", "settings") or room.startswith("worker/")
    place = room if is_whole else f"transport/{room}"
    return Mutant(name, 8, place, old, new, tests)


RENEWAL = of("unit/transport/security/test_renewal")
PROBE = of("unit/transport/security/test_probe")
REFUSALS = of("unit/transport/test_grpc_transport", "nobodys_name or different_policy")
SECURITY_MUTANTS = (
    mutant(
        "ssl-is-asked-for-files-that-are-missing",
        "security/files",
        "of credentials nor its name.\n    _content(source, directory)\n",
        "of credentials nor its name.\n",
        of("unit/test_certs", "missing"),
    ),
    mutant(
        "a-caller-refuses-in-the-name-of-a-seed",
        "control",
        "            if seed:\n                self._handler.refused_at(seed, reason)\n",
        "            self._handler.refused_at(seed or address, reason)\n",
        REFUSALS,
    ),
    mutant(
        "a-seed-that-refuses-is-waited-for",
        "control",
        "            if seed:\n                self._handler.refused_at(seed, reason)\n",
        "",
        REFUSALS,
    ),
    mutant(
        "a-new-certificate-is-not-shown",
        "renewal",
        "            await self._rebind()\n",
        "",
        RENEWAL,
    ),
    mutant(
        "bulk-shows-a-former-certificate",
        "renewal",
        "                link.close_connection()\n",
        "                pass\n",
        RENEWAL,
    ),
    mutant(
        "the-denied-stay",
        "renewal",
        "                self._links.expel(link, str(fault))\n",
        "                pass\n",
        RENEWAL,
    ),
    mutant(
        "no-look-after-a-fault",
        "renewal",
        "            except Exception:\n",
        "            except PeerError:\n",
        RENEWAL,
    ),
    mutant(
        "certificates-of-callers-are-forgotten",
        "server",
        "            link.certificate = certificate\n",
        "",
        RENEWAL,
    ),
    mutant(
        "a-server-ends-what-is-open",
        "server",
        "former.stop(patience_s)",
        "former.stop(0)",
        RENEWAL,
    ),
    mutant(
        "a-taken-port-is-given-up",
        "server",
        "while not await self._serve_at(self._host, self._port):",
        "if not await self._serve_at(self._host, self._port):",
        RENEWAL,
    ),
    mutant(
        "wrong-files-are-told-each-minute",
        "security/channels",
        "if str(error) != self._complaint:",
        "if True:",
        RENEWAL,
    ),
    mutant(
        "new-files-are-not-taken",
        "security/channels",
        "        self._identity = present\n",
        "",
        RENEWAL,
    ),
    mutant(
        "the-denied-are-dialled",
        "dialler",
        "            self._security.check_peer(name, None)\n",
        "",
        RENEWAL,
    ),
    mutant(
        "files-are-never-read-again",
        "security/loading",
        "if self._stamps() != self._seen else None",
        "if False else None",
        RENEWAL,
    ),
    mutant(
        "secrets-are-read-again",
        "security/loading",
        "if self._credentials.source is Source.SECRET:",
        "if False:",
        RENEWAL,
    ),
    mutant(
        "no-probe",
        "dialler",
        "if cause is Unreached.PROTOCOL and failures >= PROBE_AFTER:",
        "if False:",
        PROBE,
    ),
    mutant("a-probe-at-once", "dialler", "failures >= PROBE_AFTER:", "failures >= 0:", PROBE),
    mutant(
        "nobody-wants-tls",
        "security/channels",
        "return Unreached.WANTS_TLS if await speaks_tls(address) else None",
        "return None",
        PROBE,
    ),
    mutant(
        "everybody-wants-tls",
        "security/channels",
        "return Unreached.WANTS_TLS if await speaks_tls(address) else None",
        "return Unreached.WANTS_TLS",
        PROBE,
    ),
    mutant(
        "a-probe-trusts-anybody",
        "security/probe",
        "return _VERDICTS.get(error.verify_code, Unreached.AUTHORITY)",
        "return Unreached.AUTHORITY",
        PROBE,
    ),
    mutant(
        "impostors-are-unknown",
        "diagnosis",
        '    ("hostname verification", Unreached.IMPOSTOR),\n',
        "",
        PROBE,
    ),
    mutant(
        "tls-needs-no-client",
        "security/channels",
        "require_client_auth=True",
        "require_client_auth=False",
    ),
    mutant(
        "tls-for-any-learner",
        "security/channels",
        "own.host_of(name) if name else ANY_LEARNER",
        "ANY_LEARNER",
    ),
    mutant(
        "tls-port-in-plaintext",
        "security/channels",
        "server.add_secure_port(address, credentials)",
        "server.add_insecure_port(address)",
    ),
    mutant(
        "tls-is-not-looked-for",
        "security/channels",
        'check(shown.get("transport_security_type") == [b"ssl"],',
        "check(True,",
    ),
    mutant(
        "any-certificate-speaks-for-all",
        "security/channels",
        "check(proven == name, f",
        "check(True, f",
    ),
    mutant(
        "the-denied-by-name-get-in",
        "security/channels",
        "check(name not in denied, f",
        "check(True, f",
    ),
    mutant(
        "denied-certificates-get-in",
        "security/channels",
        "check(certificate.sha256 not in denied, f",
        "check(True, f",
    ),
    mutant(
        "the-expired-stay",
        "security/channels",
        "check(late_s <= EXPIRY_GRACE_S, f",
        "check(True, f",
    ),
    mutant(
        "the-expired-go-at-once",
        "security/channels",
        "check(late_s <= EXPIRY_GRACE_S, f",
        "check(late_s <= 0, f",
    ),
    mutant(
        "hello-to-anybody-inside",
        "server",
        "            self._security.check_caller(context, theirs.peer.name)\n",
        "",
    ),
    mutant(
        "streams-for-anybody-inside",
        "server",
        "            certificate = self._security.check_caller(context, caller.name)\n",
        "            certificate = None\n",
    ),
    mutant(
        "bulk-to-any-learner",
        "grpc_transport",
        "self._connect(link.address, patience_s, link.id.name)",
        'self._connect(link.address, patience_s, "")',
    ),
    mutant(
        "seeds-say-who-they-are",
        "dialler",
        'return (await self._ask(connection, address, seed, "")).peer.name',
        'return ""',
    ),
    mutant(
        "contacts-say-who-they-are",
        "dialler",
        "            return contact.name\n",
        '            return ""\n',
    ),
    mutant(
        "names-change-between-hellos",
        "dialler",
        'check(name in ("", theirs.peer.name), f',
        "check(True, f",
    ),
    mutant(
        "a-refusal-tells-the-fingerprint",
        "control",
        "return replace(mine, model=(), policy=(), refusal=told,",
        "return replace(mine, refusal=told,",
        of("unit/transport/test_grpc_transport", "no_more_than_the_first"),
    ),
    mutant(
        "a-refusal-has-the-wrong-side-first",
        "control",
        "told = refusal(theirs, mine) or reason",
        "told = reason",
        of("unit/transport/test_grpc_transport", "different_policy"),
    ),
    mutant(
        "certificates-of-many-uris",
        "security/names",
        "check(len(uris) == 1, f",
        "check(len(uris) >= 1, f",
        NAMES,
    ),
    mutant(
        "uris-of-any-scheme", "security/names", "check(scheme == _SCHEME, f", "check(True, f", NAMES
    ),
    mutant(
        "uris-of-many-spellings",
        "security/names",
        'check(uri_of(checked_name("name", name)) == uris[0], f',
        "check(True, f",
        NAMES,
    ),
    mutant(
        "hosts-without-salt",
        "security/names",
        "hashlib.sha256(authority_key + name.encode())",
        "hashlib.sha256(name.encode())",
        NAMES,
    ),
    mutant(
        "keys-for-all-eyes",
        "security/files",
        'if os.name == "posix" and mode & OTHERS:',
        "if False:",
        FILES,
    ),
    mutant(
        "files-that-change-meanwhile",
        "security/files",
        "if (authorities, chain, key) != _content(source, directory):",
        "if False:",
        FILES,
    ),
    mutant("expired-files", "security/files", "if now > own.not_after:", "if False:", FILES),
    mutant("files-of-tomorrow", "security/files", "if now < own.not_before:", "if False:", FILES),
    mutant(
        "files-of-another-learner",
        "security/files",
        "if uris != [uri_of(name)]:",
        "if False:",
        FILES,
    ),
    mutant("files-without-hosts", "security/files", "    if missing:\n", "    if False:\n", FILES),
    mutant(
        "files-of-another-authority",
        "security/files",
        "    except ssl.SSLCertVerificationError as error:\n        raise UsageError(_distrust(source, directory, error)) from None\n",
        "    except ssl.SSLCertVerificationError:\n        return ()\n",
        FILES,
    ),
    mutant("edwards-keys", "security/files", "if own.has_edwards_key:", "if False:", FILES),
    mutant(
        "denied-in-one-spelling",
        "security/files",
        "return plain if _SHA256.fullmatch(plain) else entry",
        "return entry",
        FILES,
    ),
    mutant(
        "keys-may-be-pickled",
        "security/identity",
        'raise TypeError("an Identity holds a private key, so it is never pickled or copied")',
        "return super().__reduce_ex__(protocol)",
        FILES,
    ),
    mutant(
        "keys-are-shown",
        "security/identity",
        "    key: bytes = field(repr=False)\n",
        "    key: bytes\n",
        FILES,
    ),
    mutant(
        "secrets-for-all-eyes",
        "security/shared_secret",
        "    refuse_open_key(source, file)\n",
        "",
        SECRETS,
    ),
    mutant(
        "secrets-of-any-length",
        "security/shared_secret",
        "or len(secret) != SECRET_BYTES:",
        "or not secret:",
        SECRETS,
    ),
    mutant(
        "secrets-of-any-kind",
        "security/shared_secret",
        "if not text.startswith(_PREFIX) or",
        "if",
        SECRETS,
    ),
    mutant(
        "one-authority-for-all-secrets",
        "security/issuing",
        "info=_PURPOSE).derive(secret)",
        "info=_PURPOSE).derive(bytes(32))",
        SECRETS,
    ),
    mutant(
        "links-beyond-this-machine",
        "security",
        "require(is_loopback(host), listen_from, listen, bound, REMEDY)",
        "pass",
        ARGUMENTS,
    ),
    mutant(
        "dials-beyond-this-machine",
        "security",
        "require(is_loopback(host), source, peer, bound, REMEDY)",
        "pass",
        ARGUMENTS,
    ),
    mutant(
        "insecure-beside-credentials",
        "security",
        "contradicts = insecure and credentials is not None",
        "contradicts = False",
        ARGUMENTS,
    ),
    mutant(
        "insecure-in-silence",
        "security",
        "        log.warning(WARNING, name)\n",
        "        pass\n",
        ARGUMENTS,
    ),
    mutant(
        "credentials-are-not-used",
        "settings",
        "                security=security,\n            ),",
        "            ),",
        of("together/test_security", "trains_alone"),
    ),
    mutant(
        "copies-have-credentials",
        "settings",
        "return replace(self, place=None, group=",
        "return replace(self, group=",
        SECRECY,
    ),
    mutant(
        "brackets-hold-anything",
        "address",
        "require(is_sound, argument",
        "require(True, argument",
        ADDRESS,
    ),
    mutant(
        "other-spellings-of-every-address",
        "address",
        "return ip.is_unspecified if ip else not host",
        'return host in ("", "0.0.0.0", "::")',
        ADDRESS,
    ),
    mutant(
        "ipv4-hides-in-ipv6",
        "address",
        "(ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None) or ip",
        "ip",
        ADDRESS,
    ),
    mutant(
        "silent-callers-stay",
        "grpc_options",
        "min(HANDSHAKE_S, timing.evict_after_s)",
        "120.0",
        of("unit/transport/test_grpc_options"),
    ),
    mutant(
        "moments-of-less-than-no-update",
        "worker/checkpoint_reader",
        "if bool((updates < 0).any()):",
        "if False:",
        of("unit/worker/test_checkpoint_reader", "hostile"),
    ),
    mutant(
        "impossible-means-end-a-load",
        "worker/moment_means",
        "with suppress(PeerError):",
        "if True:",
        of("unit/worker/test_moment_means", "left_out"),
    ),
    mutant(
        "weights-of-nothing-scale",
        "worker/scale",
        "if not squares:",
        "if False:",
        of("unit/worker/test_scale"),
    ),
)
