"""`peers="file:PATH"`: addresses in a file that may change at any time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mend_optim.errors import PeerError, UsageError, require
from mend_optim.protocol.seed_lists import Listing
from mend_optim.runtime.off_loop import off_loop
from mend_optim.transport.address import parse_dialable

#: Bytes of the largest file that is read: more than any run has addresses.
LARGEST = 1 << 20
EMPTY = "it has no address yet"
_REMEDY = "give a text file with an address 'host:port' on each line"


@dataclass(frozen=True)
class PeerFile:
    """A file with an address on each line. Empty lines, and what follows a `#`, say nothing.

    Args:
        path: The file.
        source: The argument or variable that the path came from, for errors.
        check: Raises `UsageError`, given what to call an address and the address, if this learner
            must not dial it.
    """

    path: Path
    source: str
    check: Callable[[str, str], object]

    @property
    def name(self) -> str:
        """As the user wrote it, with the whole path."""
        return f"file:{self.path}"

    async def read(self, address: str) -> Listing:
        """Return the addresses that the file has now. This learner's own may be among them."""
        try:
            seeds = await off_loop(self.addresses, "mend-peers")
        except (UsageError, OSError) as error:
            raise PeerError(str(error)) from error
        return Listing(seeds=tuple(seeds), awaited="" if seeds else EMPTY)

    def addresses(self) -> list[str]:
        """Do the same, and block.

        Raises:
            UsageError: The file is missing or broken; the error names the line.
        """
        lines = enumerate(self._text().splitlines(), 1)
        written = {number: line.partition("#")[0].strip() for number, line in lines}
        for number, address in written.items():
            if address:
                called = f"{self.source}: line {number} of {self.path}"
                parse_dialable(called, address)
                self.check(called, address)
        return list(dict.fromkeys(filter(None, written.values())))

    def _text(self) -> str:
        try:
            with self.path.open("rb") as file:
                data = file.read(LARGEST + 1)
            text = data.decode()
        except OSError as error:
            bound = f"the path of a file that can be read ({error.strerror})"
            raise _refusal(self.source, self.name, bound) from error
        except UnicodeDecodeError as error:
            raise _refusal(self.source, self.name, "the path of a file in UTF-8") from error
        bound = f"the path of a file of at most {LARGEST} bytes"
        require(len(data) <= LARGEST, self.source, self.name, bound, _REMEDY)
        return text


def _refusal(source: str, value: str, bound: str) -> UsageError:
    return UsageError(f"{source} must be {bound}, got {value!r}; {_REMEDY}")
