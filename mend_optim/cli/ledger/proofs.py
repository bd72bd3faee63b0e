"""The signatures in ledgers. To check them needs the package `cryptography`."""

from __future__ import annotations

from mend_optim.cli.ledger.story import Story
from mend_optim.cli.ledger.verdict import Finding, Severity
from mend_optim.errors import PeerError, UsageError

NO_EXTRA = "--ca must have the package cryptography; run pip install 'mend-optim[certs]'"


def unchecked_proofs(story: Story) -> list[Finding]:
    """What to say of signatures that nobody checks."""
    signed = sum(bool(line.record.proofs) for line in story.lines)
    if not signed:
        return []
    text = f"{signed} of {len(story.lines)} lines have signatures, which were not checked"
    return [Finding(severity=Severity.NOTE, text=text, remedy="give the run's ca.pem with --ca")]


def check_proofs(story: Story, ca_pem: bytes) -> list[Finding]:
    """Every line whose members are not proven.

    Args:
        story: the ledgers.
        ca_pem: the authorities, as in `ca.pem`.

    Raises:
        UsageError: `ca_pem` holds no certificate, or the extra is missing.
    """
    try:
        from mend_optim.transport.security.evidence import statements_of
        from mend_optim.transport.security.signers import Authorities
    except ImportError:
        raise UsageError(NO_EXTRA) from None
    try:
        authorities = Authorities(ca_pem)
    except ValueError as error:
        raise UsageError(f"--ca must be the ca.pem of the run: {error}") from None
    found = []
    proven = 0
    for line in story.lines:
        try:
            proven += bool(statements_of(line.raw, authorities))
        except (PeerError, KeyError, TypeError, ValueError) as fault:
            text = f"{line.place}: version {line.record.version} is not proven: {fault}"
            found.append(Finding(severity=Severity.BROKEN, text=text))
    text = f"the signatures of {proven} rounds in these ledgers hold"
    return [*found, Finding(severity=Severity.NOTE, text=text)]
