"""Work of a learner that the account of its last process lacks.

A process that starts from a checkpoint goes on with the account of that checkpoint, and one that
starts without has an account of its own alone. But its predecessor may have merged more by the time
it died. That work is in the common model, under the learner's name, so the ledger counts it. Nobody
tells it to the new process: `status()` and `finish()` don't count it.

The first line of the new process has the anchor of its checkpoint (`restored`). Offers of its
predecessors that were merged after that anchor are the work in question. Those that were on their
way in the checkpoint are not: they are in its account, and its line says that the offer is `mine`.
The last process of a name may never hear of them, as it met nobody, or ended before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mend_optim.cli.ledger.chains import AnchorKey, Chains, key_of
from mend_optim.cli.ledger.lines import Line
from mend_optim.engine.ledger import MemberRecord
from mend_optim.protocol.lineage import PeerId


def uncounted_tokens(chains: Chains, lines: Iterable[Line]) -> Mapping[str, int]:
    """By learner's name, the tokens in a fragment's trunk that the account of its last process
    lacks.

    Args:
        chains: the fragment.
        lines: of the fragment, those of one process in the order in which it wrote them.
    """
    places = {key: i for i, key in enumerate(chains.trunk)}
    # An offer comes once, though several processes may have started from one checkpoint.
    lost: defaultdict[str, dict[tuple[int, int], int]] = defaultdict(dict)
    by_process = _by_process(lines)
    last = {process.name: process for process in sorted(by_process)}
    for process, own in by_process.items():
        offers = [*_uncounted(chains, places, process, own)]
        if last[process.name] == process:
            offers += _unheard(chains, places, process, own)
        for version, member in offers:
            lost[process.name][version, member.incarnation] = member.tokens
    return {name: sum(tokens.values()) for name, tokens in lost.items()}


def _by_process(lines: Iterable[Line]) -> Mapping[PeerId, list[Line]]:
    """The lines of each process. A process whose clock is behind gets another incarnation after it
    was restored: that line is one of its own."""
    found: defaultdict[PeerId, list[Line]] = defaultdict(list)
    newest: defaultdict[str, int] = defaultdict(int)
    behind: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        name, incarnation = line.by
        if line.record.reason == "restored" and incarnation < newest[name]:
            behind[name].append(line)
            continue
        found[line.by] += [*behind.pop(name, []), line]
        newest[name] = max(newest[name], incarnation)
    return found


def _uncounted(
    chains: Chains, places: dict[AnchorKey, int], process: PeerId, own: Sequence[Line]
) -> Iterator[tuple[int, MemberRecord]]:
    """The offers of its predecessors that a process does not count, with the versions that have
    them."""
    at = -1
    for line in own:
        place = _place(chains, places, key_of(line.record))
        if line.record.reason != "restored":
            keys = chains.trunk[at + 1 : place + 1]
            offers = [(key[1], m) for key in keys for m in chains.anchors[key].members]
            former = [(version, m) for version, m in offers if _is_former(m, process)]
            is_by_itself = any(PeerId(m.name, m.incarnation) == process for _, m in offers)
            yield from former[1:] if line.record.mine and not is_by_itself else former
        at = max(at, place)


def _unheard(
    chains: Chains, places: dict[AnchorKey, int], process: PeerId, own: Sequence[Line]
) -> list[tuple[int, MemberRecord]]:
    """The offers of its predecessors in anchors that came after its last line."""
    at = max(_place(chains, places, key_of(line.record)) for line in own)
    offers = [(key[1], m) for key in chains.trunk[at + 1 :] for m in chains.anchors[key].members]
    return [(version, m) for version, m in offers if _is_former(m, process)]


def _is_former(member: MemberRecord, process: PeerId) -> bool:
    return member.name == process.name and member.incarnation < process.incarnation


def _place(chains: Chains, places: dict[AnchorKey, int], key: AnchorKey) -> int:
    """Where an anchor is in the trunk, or the one that its branch began at; -1 if there is none.
    Branches may be long, so each of their anchors is looked up once."""
    passed = []
    place = -1
    for each in chains.ancestry(key):
        if each in places:
            place = places[each]
            break
        passed.append(each)
    places.update(dict.fromkeys(passed, place))
    return place
