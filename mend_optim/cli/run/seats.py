"""The place of each learner of `mend run`: its command and its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mend_optim.environment import JOINED_FILE, VARIABLES

#: Words in a command that each learner gets its own value of.
PLACES = ("{name}", "{index}", "{count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One learner."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The settings that all learners share.

    Attributes:
        names: of the learners.
        addresses: at which they listen.
        command: of each; `PLACES` in it stand for the learner's own values.
        secret: the path of their secret; empty if there is none.
        credentials: the directory that has one of each name; empty if there is none.
        joined: the path of a directory, in which each learner that has joined makes a file.
        gpus: the devices, which learners take in turns; empty if nothing is said of them.
    """

    names: Sequence[str]
    addresses: Sequence[str]
    command: Sequence[str]
    secret: str = ""
    credentials: str = ""
    joined: str = ""
    gpus: Sequence[str] = ()

    def seats(self, environment: Mapping[str, str]) -> list[Seat]:
        """The learners. Variables of the environment that a learner reads are replaced."""
        others = {key: value for key, value in environment.items() if key not in _OURS}
        return [self._seat(index, others) for index in range(len(self.names))]

    def _seat(self, index: int, environment: Mapping[str, str]) -> Seat:
        name = self.names[index]
        peers = [address for i, address in enumerate(self.addresses) if i != index]
        own = {
            VARIABLES["name"]: name,
            VARIABLES["listen"]: self.addresses[index],
            VARIABLES["peers"]: ",".join(peers),
            # So that lines come when they are printed.
            "PYTHONUNBUFFERED": "1",
        }
        if self.secret:
            own[VARIABLES["secret"]] = self.secret
        if self.credentials:
            own[VARIABLES["credentials"]] = f"{self.credentials}/{name}"
        if self.joined:
            own[JOINED_FILE] = f"{self.joined}/{index}"
        if self.gpus:
            own["CUDA_VISIBLE_DEVICES"] = self.gpus[index % len(self.gpus)]
        values = dict(zip(PLACES, (name, str(index), str(len(self.names))), strict=True))
        command = tuple(_filled(word, values) for word in self.command)
        return Seat(name=name, command=command, environment={**environment, **own})


_OURS = frozenset([*VARIABLES.values(), JOINED_FILE])


def _filled(word: str, values: Mapping[str, str]) -> str:
    for place, value in values.items():
        word = word.replace(place, value)
    return word
