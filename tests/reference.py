"""Slow and obvious twins of the numeric kernels: textbook formulas in float64, one element at a
time."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import statistics
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction

Vector = Sequence[float]


def smallest_load(sizes: Sequence[int], fragments: int) -> int:
    """The least possible size of the largest fragment, by trying every partition."""
    choices = itertools.product(range(fragments), repeat=len(sizes))
    return min(
        max(sum(s for s, b in zip(sizes, bins, strict=True) if b == f) for f in range(fragments))
        for bins in choices
    )


def fewest_waits(rounds: Fraction, most: int) -> int:
    """The number P of fragments, from 1 to `most`, with the least rounds / P + P; of two that are
    equally good, the lesser."""
    return min(range(1, most + 1), key=lambda p: (rounds / p + p, p))


def weights(scheme: str, work: Sequence[tuple[int, int]]) -> list[Decimal]:
    """The weights of members whose work is (tokens, steps), to 28 digits; some work is not zero."""
    formula = {
        "tokens_and_batch": lambda tokens, steps: tokens * (tokens / steps).sqrt(),
        "tokens": lambda tokens, steps: tokens,
        "throughput": lambda tokens, steps: tokens * tokens / steps,
        "uniform": lambda tokens, steps: Decimal(1),
    }[scheme]
    raw = [formula(Decimal(tokens), steps) if steps else Decimal(0) for tokens, steps in work]
    return [w / sum(raw) for w in raw]


def beyond_spread(work: Sequence[tuple[int, int]], spread: int) -> set[int]:
    """The indices of the members whose tokens per step are more than `spread` times the median, of
    those that have any."""
    rates = {i: Fraction(tokens, steps) for i, (tokens, steps) in enumerate(work) if tokens * steps}
    if not rates:
        return set()
    ordered = sorted(rates.values())
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return {i for i, rate in rates.items() if rate > spread * middle}


def next_period(present: int, latencies: Sequence[int], least: int, most: int) -> int:
    """The period after `present`: the median latency. A change of one step, or of a quarter of the
    present period, counts as none."""
    latency = sorted(latencies)[len(latencies) // 2]
    wanted = max(least, min(most, latency))
    close = [n for n in range(1, 1000) if abs(n - present) == 1 or 4 * abs(n - present) <= present]
    return present if wanted in close else wanted


def weighted_mean(deltas: Sequence[Vector], w: Sequence[float]) -> list[float]:
    """Σ wᵢ Δᵢ, coordinate by coordinate, correctly rounded."""
    return [
        math.fsum(weight * value for weight, value in zip(w, column, strict=True))
        for column in zip(*deltas, strict=True)
    ]


def norm(x: Vector) -> float:
    return math.sqrt(math.fsum(value * value for value in x))


def direction(x: Vector) -> list[float]:
    """φ(x) = x/‖x‖, φ(0) = 0."""
    length = norm(x)
    return [value / length if length else 0.0 for value in x]


def radial_directional(deltas: Sequence[Vector], w: Sequence[float]) -> list[float]:
    """R φ(Σ wᵢ φ(Δᵢ)) with R = Σ wᵢ ‖Δᵢ‖, for one tensor."""
    radius = math.fsum(weight * norm(delta) for weight, delta in zip(w, deltas, strict=True))
    return [
        radius * value
        for value in direction(weighted_mean([direction(delta) for delta in deltas], w))
    ]


def trimmed_mean(deltas: Sequence[Vector], cut: int) -> list[float]:
    """Per coordinate, the mean without the `cut` smallest and the `cut` largest values."""
    kept = [sorted(column)[cut : len(column) - cut] for column in zip(*deltas, strict=True)]
    return [math.fsum(column) / len(column) for column in kept]


def centered_clip(deltas: Sequence[Vector]) -> list[float]:
    """The mean of the members, clipped to a ball around their median, for one tensor. The ball is
    as large as the lower median of their distances to it."""
    centre = [statistics.median(column) for column in zip(*deltas, strict=True)]
    offsets = [[x - c for x, c in zip(delta, centre, strict=True)] for delta in deltas]
    radius = statistics.median_low([norm(offset) for offset in offsets])
    clipped = [
        [x * min(1.0, radius / norm(offset)) if norm(offset) else 0.0 for x in offset]
        for offset in offsets
    ]
    return [
        c + math.fsum(column) / len(deltas)
        for c, column in zip(centre, zip(*clipped, strict=True), strict=True)
    ]


def nesterov(
    lr: float, momentum: float, start: Vector, deltas: Sequence[Vector]
) -> Iterator[list[float]]:
    """The anchor after each outer step, by the textbook: b ← μ b + Δ; Θ ← Θ - η (Δ + μ b)."""
    theta, b = list(start), [0.0] * len(start)
    for delta in deltas:
        for i, d in enumerate(delta):
            b[i] = momentum * b[i] + d
            theta[i] = theta[i] - lr * (d + momentum * b[i])
        yield list(theta)


def round_rate(
    members: Sequence[tuple[float, int, float]], momentum: float, period: int
) -> tuple[float, float]:
    """S and m of a round whose members are (weight, steps, sum of the inner learning rates)."""
    rate = math.fsum(w * rate for w, _, rate in members)
    steps = math.fsum(w * steps for w, steps, _ in members)
    return rate, momentum ** (steps / period)


def gain_normalised(
    gain: float, start: Vector, deltas: Sequence[Vector], rounds: Sequence[tuple[float, float]]
) -> Iterator[list[float]]:
    """The anchor after each outer step; `rounds` are (S, m): b ← m b + Δ; s ← m s + S;
    Θ ← Θ - g S / (S + m s) (Δ + m b). A round with S = 0 is Θ ← Θ - g Δ."""
    theta, b, s = list(start), [0.0] * len(start), 0.0
    for delta, (rate, m) in zip(deltas, rounds, strict=True):
        if rate == 0:
            theta = [x - gain * d for x, d in zip(theta, delta, strict=True)]
        else:
            s = m * s + rate
            for i, d in enumerate(delta):
                b[i] = m * b[i] + d
                theta[i] -= gain * rate / (rate + m * s) * (d + m * b[i])
        yield list(theta)


Matrix = Sequence[Vector]


def product(
    p: Sequence[Sequence[int]], q: Sequence[Sequence[int]], exponents: Sequence[int]
) -> list[list[float]]:
    """Σₖ pₖ qₖᵀ 2^exponentₖ, exactly, then rounded to float32."""

    def element(row: Sequence[int], column: Sequence[int]) -> float:
        exact = sum(
            Fraction(x * y) * Fraction(2) ** e
            for x, y, e in zip(row, column, exponents, strict=True)
        )
        return float(struct.unpack("<f", struct.pack("<f", exact))[0])

    return [[element(row, column) for column in q] for row in p]


def projected(a: Matrix, onto: Matrix) -> list[list[float]]:
    """A projected onto the columns of another matrix, by Gram-Schmidt, one column after another.
    Those columns are independent."""
    basis: list[list[float]] = []
    for column in zip(*onto, strict=True):
        rest = list(column)
        # Twice, because one pass leaves rounding errors as large as the rest itself.
        for unit in basis * 2:
            along = math.fsum(x * u for x, u in zip(rest, unit, strict=True))
            rest = [x - along * u for x, u in zip(rest, unit, strict=True)]
        basis.append(direction(rest))
    columns = list(zip(*a, strict=True))
    along = [
        [math.fsum(x * u for x, u in zip(column, unit, strict=True)) for unit in basis]
        for column in columns
    ]
    return [
        [math.fsum(s * unit[i] for s, unit in zip(shares, basis, strict=True)) for shares in along]
        for i in range(len(a))
    ]


def largest_of_chunks(x: Vector, density: float, chunk: int = 4096) -> list[float]:
    """The ⌈density · length⌉ greatest magnitudes of every chunk, and 0 elsewhere. Of equal ones the
    first count."""
    kept = [0.0] * len(x)
    for start in range(0, len(x), chunk):
        places = range(start, min(start + chunk, len(x)))
        best = sorted(places, key=lambda i: (-abs(x[i]), i))[: math.ceil(density * len(places))]
        for i in best:
            kept[i] = x[i]
    return kept


def bits_to_bytes(ones: Sequence[int], count: int) -> bytes:
    """`count` bits, the lowest of a byte first, set at these places."""
    data = bytearray(math.ceil(count / 8))
    for one in set(ones):
        data[one // 8] += 1 << one % 8
    return bytes(data)


def listed(places: Sequence[int], numel: int) -> bytes:
    """Positions in the Elias–Fano code: the lowest byte of each, then the rest in unary, as
    differences to the one before."""
    upper = [place // 256 + i for i, place in enumerate(places)]
    return bytes(place % 256 for place in places) + bits_to_bytes(
        upper, len(places) + math.ceil(numel / 256)
    )


def positions(places: Sequence[int], numel: int) -> bytes:
    """Positions as a bitmap, or as a list if that is smaller. No positions take no bytes."""
    return min(bits_to_bytes(places, numel), listed(places, numel), key=len) if places else b""


def float32(x: float) -> float:
    """Rounded to float32: to nearest, ties to even."""
    rounded: float = struct.unpack("<f", struct.pack("<f", x))[0]
    return rounded


def bfloat16(x: float) -> float:
    """A float32 rounded to its upper 16 bits: to nearest, ties to even."""
    bits: int = struct.unpack("<I", struct.pack("<f", x))[0]
    upper, lower = bits >> 16, bits & 0xFFFF
    upper += lower > 0x8000 or (lower == 0x8000 and upper % 2 == 1)
    rounded: float = struct.unpack("<f", struct.pack("<I", upper << 16))[0]
    return rounded


def float16(x: float) -> float:
    """Rounded to float16: to nearest, ties to even."""
    rounded: float = struct.unpack("<e", struct.pack("<e", x))[0]
    return rounded


def moved(
    weight: float,
    step: float,
    lost: float | None,
    replace: bool,
    narrowed: Callable[[float], float],
) -> tuple[float, float | None]:
    """A weight after a correction, and what its dtype has rounded away since. Before it, `lost` was
    that; None: nothing is kept of it."""
    exact = step if replace else float32(float32(weight + (lost or 0.0)) + step)
    now = narrowed(exact)
    return now, None if lost is None else float32(exact - now)


def coalesced(shapes: Sequence[tuple[int, ...]], coalesce: int) -> list[tuple[int, ...]]:
    """The shapes, with neighbours whose sizes are multiples of `coalesce` joined to one flat shape.
    0 joins none."""
    found: list[tuple[int, ...]] = []
    before = False
    for shape in shapes:
        size = math.prod(shape)
        whole = coalesce > 0 and size % coalesce == 0
        if whole and before:
            found[-1] = (found[-1][0] + size,)
        else:
            found.append((size,) if whole else shape)
        before = whole
    return found


def quantized(
    values: Vector, block: int, magnitudes: Sequence[int]
) -> tuple[list[float], list[int]]:
    """A scale for every block, and for every value the place of the magnitude nearest to |x| / s,
    with the sign of x. Of two magnitudes that are equally near, it is the even one if all are
    equally far apart, or else the greater one."""
    even = magnitudes[-1] == len(magnitudes) - 1
    scales, codes = [], []
    for start in range(0, len(values), block):
        x = values[start : start + block]
        scales.append(bfloat16(max(float32(max(map(abs, x)) / magnitudes[-1]), 2.0**-126)))
        for value in x:
            y = float32(value * float32(1 / scales[-1]))
            near = [(abs(abs(y) - m), k % 2 if even else -k, k) for k, m in enumerate(magnitudes)]
            codes.append(min(near)[2] * (-1 if y < 0 else 1))
    return scales, codes


def dequantized(
    scales: Vector, codes: Sequence[int], block: int, magnitudes: Sequence[int]
) -> list[float]:
    """± magnitude × s for every code."""
    return [math.copysign(magnitudes[abs(c)], c) * scales[i // block] for i, c in enumerate(codes)]


def averaged(
    states: Sequence[Vector], counts: Sequence[int], decay: float, corrected: bool
) -> list[list[float]]:
    """The moment of each member after averaging. All have the same moment s or, if the optimizer
    corrects, the same s / (1 - β^t)."""
    seen = [1 - decay**t if corrected else 1.0 for t in counts]
    columns = zip(*states, strict=True)
    mean = [
        math.fsum(s / w for s, w in zip(column, seen, strict=True)) / len(seen)
        for column in columns
    ]
    return [[w * value for value in mean] for w in seen]


def mean_of_those_that_have_it(members: Sequence[Vector | None], numel: int) -> list[float]:
    """The mean over the members that are not None; zeros if all are."""
    have = [member for member in members if member is not None]
    return [
        math.fsum(member[i] for member in have) / len(have) if have else 0.0 for i in range(numel)
    ]


def mean_of_means(
    means: Sequence[Vector | None], members: Sequence[int], numel: int
) -> list[float]:
    """The mean over all members of groups, each of which has told its mean and how many members it
    is of; zeros if no group has one."""
    each = [mean for mean, count in zip(means, members, strict=True) for _ in range(count)]
    return mean_of_those_that_have_it(each, numel)


def rooted(x: float) -> float:
    """x after its root has been rounded to bfloat16 and squared."""
    return bfloat16(float32(math.sqrt(x))) ** 2


def adam_moments(beta1: float, beta2: float, gradients: Vector) -> tuple[float, float, float]:
    """m, √v and u of Adam and Adamax after these gradients."""
    m = v = u = 0.0
    for g in gradients:
        m, v, u = (
            beta1 * m + (1 - beta1) * g,
            beta2 * v + (1 - beta2) * g * g,
            max(beta2 * u, abs(g)),
        )
    return m, math.sqrt(v), u


def predicted(
    x: float, seen: Vector, noise: float = 0.05, shape: float = 2.0, width: float = 0.7
) -> float:
    """The density of the next observation of a normal law after these observations: Student's t, by
    the conjugate prior μ ~ N(0, σ² (width / noise)²), 1/σ² ~ Gamma(shape, shape noise²)."""
    n, kappa0 = len(seen), (noise / width) ** 2
    kappa, alpha, average = kappa0 + n, shape + n / 2, math.fsum(seen) / max(1, len(seen))
    beta = shape * noise**2 + math.fsum((value - average) ** 2 for value in seen) / 2
    beta += kappa0 * n * average**2 / (2 * kappa)
    nu, scale = 2 * alpha, math.sqrt(beta * (kappa + 1) / (alpha * kappa))
    t = (x - n * average / kappa) / scale
    log = (
        math.lgamma((nu + 1) / 2)
        - math.lgamma(nu / 2)
        - math.log(nu * math.pi) / 2
        - math.log(scale)
    )
    return math.exp(log - (nu + 1) / 2 * math.log1p(t * t / nu))


def run_lengths(observations: Vector, hazard: float = 0.01) -> list[float]:
    """P(the present level has held for r observations) for r = 0, 1, …, from the definition (Adams
    and MacKay)."""
    masses = [1.0]
    for t, x in enumerate(observations):
        grown = [mass * predicted(x, observations[t - r : t]) for r, mass in enumerate(masses)]
        masses = [hazard, *((1 - hazard) * mass / math.fsum(grown) for mass in grown)]
    return masses


def failing(
    levels: Sequence[tuple[float, float, float, int]], threshold: float, score: float, patience: int
) -> set[int]:
    """The learners that fail by the four conditions, given (now, before, spread, run) of each."""
    found = set()
    for i, (now, before, spread, run) in enumerate(levels):
        others = [level for j, level in enumerate(levels) if j != i]
        changes = [math.log(now) - math.log(before) for now, before, _, _ in others]
        usual = statistics.median(changes) if changes else 0.0
        mad = statistics.median([abs(change - usual) for change in changes]) if changes else 0.0
        change = math.log(now) - math.log(before) - usual
        slower_than_before = change >= math.log(threshold)
        slower_than_others = not others or now >= threshold * statistics.median(
            [other[0] for other in others]
        )
        beyond_doubt = change >= score * max(1.4826 * mad, spread)
        if slower_than_before and slower_than_others and beyond_doubt and run >= patience:
            found.add(i)
    return found


# ── adaptive grace ────────────────────────────────────────────────────────────────────────────────


def grace_s(cap: float, fraction: float, overlap_s: float, quorum_s: float, sync_s: float) -> float:
    """Decoupled DiLoCo, eq. 3."""
    slack = overlap_s - quorum_s - sync_s
    if overlap_s == 0:
        return cap
    if slack < 0:
        return 0.0
    return min(cap, fraction * slack)


# ── late adoption, and the norm-preserving mean ───────────────────────────────────────────────────


def kept(own: Vector, mean: Vector, gain: float) -> tuple[list[float], list[float]]:
    """What a learner keeps of its disagreement with the mean, and what it gives up."""
    rest = [(1 - gain) * (d - m) for d, m in zip(own, mean, strict=True)]
    return rest, [d - r for d, r in zip(own, rest, strict=True)]


def headway(work: Sequence[tuple[float, int]], present: Sequence[bool]) -> float:
    """ρ of members with these (weight, steps): the anchor moves so much further than their mean. So
    it goes as far as the fastest of those that were in the last round."""
    weights, steps = [w for w, _ in work], [n for _, n in work]
    mean = sum(map(operator.mul, weights, steps))
    seen = [n for n, here in zip(steps, present, strict=True) if here and n] or steps
    if mean == 0 or max(seen) <= mean:
        return 1.0
    return min(max(seen) / mean, 1.75, greatest_factor(weights))


def weight_due(own: int, brought: Sequence[int]) -> float:
    """The weight of a learner's work in one round with all that others brought to the rounds that
    it missed, and to the one after them, which has as much as they had on average."""
    others = sum(brought) + Fraction(sum(brought), len(brought))
    return float(own / (own + others))


def greatest_factor(w: Sequence[float]) -> float:
    """1/√Σ wᵢ²."""
    return 1 / math.sqrt(math.fsum(weight * weight for weight in w))


def factor(deltas: Sequence[Vector], w: Sequence[float]) -> float:
    """The mean length of the deltas over the length of their mean, from 1 to `greatest_factor`."""
    length = norm(weighted_mean(deltas, w))
    mean_length = math.fsum(weight * norm(delta) for weight, delta in zip(w, deltas, strict=True))
    if length == 0:
        return 1.0
    return max(1.0, min(mean_length / length, greatest_factor(w)))


# ── buffers ───────────────────────────────────────────────────────────────────────────────────────


def buffer_mean(column: Sequence[float], w: Sequence[float]) -> float:
    """The weighted mean of one element of a buffer, among the members that weigh something."""
    members = [(value, weight) for value, weight in zip(column, w, strict=True) if weight]
    mean = math.fsum(value * weight for value, weight in members)
    values = [value for value, _ in members]
    return max(min(values), min(max(values), mean))


def followed(now: float, anchor: float, base: float) -> float:
    """One element of a buffer, moved by anchor − base, but not past the anchor."""
    if now == base:
        return anchor
    moved = now + (anchor - base)
    low, high = sorted((now, anchor))
    return max(low, min(high, moved))


def replaced(now: int, anchor: int, base: int) -> int:
    """One integer of a buffer: the anchor's if others changed it."""
    return now if anchor == base else anchor


# ── the sizes of offers ───────────────────────────────────────────────────────────────────────────


def judged(
    known: Sequence[tuple[float, int]],
    found: Sequence[tuple[float, int] | None],
    refusals: int,
    norm: float,
    clip: bool,
) -> list[tuple[float, float]]:
    """(times, factor) of each offer (RMS, steps) of a round, after these merged ones. No offer
    beyond 2^64 is merged as it is, and none is scaled by less than 2^-126. No number above 1e30 is
    told."""

    def expected(of: list[tuple[float, int]], steps: int) -> list[float]:
        return [size * steps / n if steps > n else size for size, n in of]

    verdicts = []
    for i, offer in enumerate(found):
        if offer is None:
            verdicts.append((0.0, 1.0))
            continue
        size, steps = offer
        if len(known) < 5:
            verdicts.append((0.0, 1.0) if size <= 2.0**64 else (min(size, 1e30), 0.0))
            continue
        taken = expected(list(known), steps)
        usual = next(t for t in sorted(taken) if 4 * sum(u <= t for u in taken) > 3 * len(taken))
        others = [o for k, o in enumerate(found) if o is not None and k != i]
        alike = bool(others) and size <= norm * statistics.median(expected(others, steps))
        scaled = norm * usual / size
        if size <= norm * usual:
            verdicts.append((0.0, 1.0))
        elif size <= 2.0**64 and (alike or refusals >= 3):
            verdicts.append((-size / usual, 1.0))
        else:
            verdicts.append(
                (min(size / usual, 1e30), scaled if clip and scaled >= 2.0**-126 else 0.0)
            )
    return verdicts


def signed_bytes(
    genesis: bytes, sender: str, author: str, counters: Sequence[int], rate: float, content: bytes
) -> bytes:
    """The bytes that the author of an offer signs, by the table in `statement.py`: each part after
    its length. The counters are in the order of that table."""
    numbers = b"".join(counter.to_bytes(8, "big", signed=True) for counter in counters)
    numbers += bytes(reversed(struct.pack("<d", rate)))
    out = b""
    for part in (b"mend-optim offer 2", genesis, sender, author, numbers, content):
        whole = part.encode("utf-8") if isinstance(part, str) else part
        out += len(whole).to_bytes(4, "big") + whole
    return out


def elements_held(where: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, ...]]:
    """The coordinates of all elements of a piece, in the order of the local tensor."""
    return list(itertools.product(*([i for run in runs for i in range(*run)] for runs in where)))


def covers(shape: Sequence[int], pieces: Sequence[list[tuple[int, ...]]]) -> bool:
    """Whether every element of a tensor of this shape is in exactly one of the pieces, once."""
    everything = sorted(element for piece in pieces for element in piece)
    return everything == list(itertools.product(*map(range, shape)))


def dealt_out(size: int, ways: int, blocks: int) -> list[list[int]]:
    """The indices of each rank if `size` of them are cut into blocks of ⌈size / blocks⌉, and each
    block into parts of ⌈its own size / ways⌉, one part for each rank; one index at a time."""
    ranks: list[list[int]] = [[] for _ in range(ways)]
    each_block = max(1, math.ceil(size / blocks))
    for index in range(size):
        block, place = divmod(index, each_block)
        its_size = min(size - block * each_block, each_block)
        ranks[place // math.ceil(its_size / ways)].append(index)
    return ranks


# ── digests ───────────────────────────────────────────────────────────────────────────────────────


def naive_tree_digest(parts: Sequence[bytes], leaf: int) -> bytes:
    """The root over all leaves, as one concatenation."""
    told = b"\1"
    for part in parts:
        told += len(part).to_bytes(8, "big")
        rest = part
        while rest:
            told += hashlib.sha256(b"\0" + rest[:leaf]).digest()
            rest = rest[leaf:]
    return hashlib.sha256(told).digest()


def added_at(staged: Sequence[Sequence[int]], due: Sequence[int]) -> list[int]:
    """The step at whose end all ranks add each correction. `staged`: for each rank and correction,
    the first step whose word said that the rank has it. A word is heard one step later. `due`: the
    first step at which it may be added."""
    steps = []
    for number, earliest in enumerate(due):
        heard = [rank[number] + 1 for rank in staged]
        steps.append(max([*heard, earliest]))
    return steps


def sealers(fragments: int, names: Sequence[str]) -> list[str]:
    """The sealer of each fragment: one by one, each goes to the greatest hash of those that have
    got fewer than they may have by then."""
    sealed: list[str] = []
    for fragment in range(fragments):
        most = math.ceil((fragment + 1) / len(names))
        free = [name for name in names if sealed.count(name) < most]
        sealed.append(
            max(
                free,
                key=lambda name: hashlib.blake2b(
                    f"{fragment}/{name}".encode(), digest_size=16
                ).digest(),
            )
        )
    return sealed


def first_hop(zones: dict[str, str], me: str, to: str, fragment: int) -> str:
    """The learner that `me` gives its offer to, so that it reaches `to`: of its zone, the one that
    would seal the fragment if there were no others; none if both are in one zone."""
    if not zones[me] or me == to or zones[me] == zones[to]:
        return to
    inside = [name for name, zone in zones.items() if zone == zones[me]]
    return sealers(fragment + 1, inside)[fragment]


def chain_of_seals(
    shown: Sequence[Sequence[int]], jumps: set[int], costs: Sequence[float], few: int, most: int
) -> list[int]:
    """The places of the seals that a sealer keeps once it has made `len(shown)` of them. The seal
    at place i leads from anchor i to anchor i + 1; with it, peers showed the anchors `shown[i]`.
    The chain begins anew before each place in `jumps`. A seal stays while each newer one came when
    some peer had an anchor before the one that it leads to, and while it and the newer ones are at
    most `few`, or at most `most` and no dearer than a whole anchor."""
    made = len(shown)
    start = max([0, *(j for j in jumps if j < made)])
    lacked = [
        i
        for i in range(start, made)
        if all(any(place <= i for place in shown[later]) for later in range(i + 1, made))
    ]
    return [i for i in lacked if made - i <= few or (made - i <= most and sum(costs[i:made]) <= 1)]


def whole_offers(
    parts: dict[str, tuple[int, list[tuple[str, int]]]], carriers: dict[str, str]
) -> set[str]:
    """The senders of the offers that can be merged. `parts`: by sender, the number of its offer,
    and the (sender, number) of all others that are in it. `carriers`: by sender, the one in whose
    offer its own is."""
    stay = set(parts)
    for _ in parts:
        for name in list(stay):
            carrier = carriers.get(name, name)
            _, others = parts.get(carrier, (0, []))
            needed = {(carrier, parts.get(carrier, (0, []))[0]), *others}
            here = {(each, parts[each][0]) for each in stay}
            carried = all(carriers.get(each) == carrier for each, _ in others)
            mentioned = name == carrier or (name, parts[name][0]) in others
            if not (needed <= here and carried and mentioned):
                stay.discard(name)
    return stay


def outvoted(own: bytes, others: Sequence[bytes]) -> bool:
    """Whether more than half of all learners have one thing, and this one another."""
    return any(
        sum(theirs == said for theirs in others) > (len(others) + 1) / 2
        for said in set(others) - {own, b""}
    )


def is_late(happened: Sequence[tuple[str, float]], limit_s: float, late: int) -> bool:
    """Whether a learner is late: `late` more verdicts have said so than not, and not as many since
    that it is in time; or none has ever said that it is in time, and its answer is due.

    `happened` are calls ("call"), its offers ("come"), seals ("seal") and losses of the sealer's
    role ("void"), with their times. A seal without the answer to a call that is too old is a
    verdict, and so is the answer to a call unless a seal was one before. So is the seal of another
    sealer, with it ("member") or without it ("absent")."""
    verdicts: list[bool] = []
    for at, (what, now) in enumerate(happened):
        since = max((i for i in range(at) if happened[i][0] in ("come", "void")), default=-1)
        calls = [i for i in range(since + 1, at) if happened[i][0] == "call"]
        if what in ("member", "absent"):
            verdicts.append(what == "absent")
        if what not in ("seal", "come") or not calls:
            continue
        too_old = now - happened[calls[0]][1] > limit_s
        between = [i for i in range(calls[0], at) if happened[i][0] == "seal"]
        missed = any(happened[i][1] - happened[calls[0]][1] > limit_s for i in between)
        if what == "seal" and too_old:
            verdicts.append(True)
        if what == "come" and not missed:
            verdicts.append(too_old)
    level, is_on = 0, False
    for verdict in verdicts:
        level = min(late, level + 1) if verdict else max(0, level - 1)
        is_on = level == late or (is_on and level > 0)
    ends = [i for i, (what, _) in enumerate(happened) if what in ("come", "void")]
    open_calls = [now for what, now in happened[ends[-1] + 1 if ends else 0 :] if what == "call"]
    is_due = bool(open_calls) and happened[-1][1] - open_calls[0] >= limit_s
    return is_on or (is_due and False not in verdicts)


def weak_s(
    own: set[int],
    told: Sequence[tuple[Sequence[int], float]],
    sizes: Sequence[int],
    period: int,
    ratio: int,
    more: int,
) -> float | None:
    """How long the rounds of a weak sealer take. More than half of the learners find it weak, and
    at least two: the lower median of the rounds of `own` takes as many times longer than that of
    all others, and as many steps, and more than the period. A fragment that is so many times as
    large as the lower median of the others may take as many times longer. A 0 is no word. Of what
    they find, it is the lower median."""
    found = []
    for latencies, step_s in told:
        mine = [p for p, x in enumerate(latencies) if x and p in own]
        others = [p for p, x in enumerate(latencies) if x and p not in own]
        if not mine or not others:
            continue
        middle = (len(others) - 1) // 2
        usual = sorted(latencies[p] for p in others)[middle]
        size = sorted(sizes[p] for p in others)[middle]
        times = [sizes[p] / size if size and sizes[p] > size else 1.0 for p in mine]
        even = sorted(latencies[p] / t for p, t in zip(mine, times, strict=True))
        slow = sorted(latencies[p] for p in mine)[(len(mine) - 1) // 2]
        slowest = even[(len(mine) - 1) // 2]
        if slowest >= ratio * usual and slowest - usual >= more and slow > period:
            found.append(slow * step_s)
    if len(found) < 2 or len(found) <= len(told) / 2:
        return None
    return sorted(found)[(len(found) - 1) // 2]
