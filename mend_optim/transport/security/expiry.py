"""Reminds the user that a certificate is about to end."""

from __future__ import annotations

from collections.abc import Sequence

from mend_optim.transport.security.certificate import Certificate, day

_HOUR = 3600.0
#: The user is reminded once so many seconds before the end. The last time is at the end itself.
BEFORE_S = (7 * 24 * _HOUR, 24 * _HOUR, _HOUR, 0.0)
#: A certificate that was issued for a short time is worth no word before the last of so many parts.
PARTS = 3
_REMEDY = "issue it again, and replace its files: a learner that runs reads them within a minute"


class Reminder:
    """The words for one learner, each of which comes once for a certificate."""

    def __init__(self) -> None:
        #: The certificate that the last words were about, and how many there were.
        self._about = ""
        self._said = 0

    def due(self, chain: Sequence[Certificate], now: float) -> str:
        """The words for the user now; empty: none are due.

        Args:
            chain: The learner's certificate, and those between it and an authority. It ends with
                the first of them.
            now: Unix seconds.
        """
        first = min(chain, key=lambda certificate: certificate.not_after)
        if first.sha256 != self._about:
            self._about, self._said = first.sha256, 0
        left_s = first.not_after - now
        longest_s = (first.not_after - first.not_before) / PARTS
        passed = sum(left_s <= min(before, longest_s) for before in BEFORE_S)
        if passed <= self._said:
            return ""
        self._said = passed
        which = "its certificate" if first is chain[0] else "a certificate of its cert.pem"
        ends = "expired" if left_s <= 0 else "expires"
        return f"{which} {ends} on {day(first.not_after)}: {_REMEDY}"
