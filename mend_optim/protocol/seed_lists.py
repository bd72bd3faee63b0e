"""The seeds that are wanted: those that the user gave, and those of lists that change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The present content of a list of peers.

    Args:
        seeds: Addresses "host:port".
        awaited: Why others are still to come; empty if the list is complete.
    """

    seeds: tuple[str, ...]
    awaited: str = ""


#: A list that nobody has read yet.
UNREAD = Listing(seeds=(), awaited="not read yet")


class SeedLists:
    """Which seeds are wanted. A seed in several lists is wanted until none of them has it.

    Args:
        given: Seeds that are wanted for ever.
    """

    def __init__(self, given: Sequence[str]) -> None:
        self._given = tuple(given)
        self._listings: dict[str, Listing] = {}

    def take(self, source: str, listing: Listing) -> None:
        """Take what a list has now, in place of what it had."""
        self._listings[source] = listing

    def wanted(self) -> list[str]:
        """Return each wanted seed once."""
        listed = [seed for listing in self._listings.values() for seed in listing.seeds]
        return list(dict.fromkeys([*self._given, *listed]))

    def awaited(self) -> dict[str, str]:
        """Return why others are still to come, by list."""
        listings = self._listings.items()
        return {source: listing.awaited for source, listing in listings if listing.awaited}

    def naming(self) -> list[str]:
        """Return the lists that have any seed."""
        return [source for source, listing in self._listings.items() if listing.seeds]
