"""Which hosts show a fault, what they should show, and how far chance may carry it from that."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.network.netem import NETEM_DEFAULT_LIMIT, Netem
from cluster.network.paths import Path

# Half of 0.1% in each tail.
_TAIL = 0.0005
_QUANTILE = 3.2905


@dataclass(frozen=True)
class Expected:
    """What packets from one host to another meet on the way, all faults taken together."""

    delay_ms: float
    jitter_ms: float
    loss: float
    """Share of packets lost, 0 to 1."""
    corrupt: float
    """Share of packets damaged, which the receiver's checksum then drops."""
    reorder: float
    rate_mbit: float | None
    burstiness: float
    """How many times the variance of independent loss; 1 without burst loss."""
    queue_packets: int
    """What the shortest queue on the way holds: more sent at once would be dropped there."""

    @property
    def cut(self) -> bool:
        """Whether nothing gets through."""
        return self.loss >= 1


def faults_between(rules: Mapping[Path, Netem], src: int, dst: int) -> list[Netem]:
    """The faults that packets from `src` to `dst` pass, in order."""
    stages = (Path(src, None), Path(src, dst), Path(None, dst))
    return [rules[path] for path in stages if path in rules]


def expected_between(rules: Mapping[Path, Netem], src: int, dst: int) -> Expected:
    """What packets from `src` to `dst` should meet under `rules`."""
    faults = faults_between(rules, src, dst)
    rates = [fault.rate_mbit for fault in faults if fault.rate_mbit is not None]
    return Expected(
        delay_ms=sum(fault.delay_ms for fault in faults),
        jitter_ms=sum(fault.jitter_ms for fault in faults),
        loss=_either(fault.mean_loss_pct for fault in faults),
        corrupt=_either(fault.corrupt_pct for fault in faults),
        reorder=_either(fault.reorder_pct for fault in faults),
        rate_mbit=min(rates, default=None),
        burstiness=max((_burstiness(fault) for fault in faults), default=1.0),
        queue_packets=min((f.queue_limit for f in faults), default=NETEM_DEFAULT_LIMIT),
    )


def _either(percents: Iterable[float]) -> float:
    passing = 1.0
    for percent in percents:
        passing *= 1 - percent / 100
    return 1 - passing


def _burstiness(fault: Netem) -> float:
    if fault.gemodel is None:
        return 1.0
    memory = 1 - (fault.gemodel.p_pct + fault.gemodel.r_pct) / 100
    return max(1.0, (1 + memory) / max(1 - memory, 1e-6))


def loss_interval(sent: int, loss: float, burstiness: float = 1.0) -> tuple[int, int]:
    """Least and most packets that may be lost of `sent`, at 99.9%.

    Independent losses are binomial; the interval of burst loss is widened by its variance.
    """
    if loss <= 0 or loss >= 1:
        return (0, 0) if loss <= 0 else (sent, sent)
    if burstiness > 1:
        spread = _QUANTILE * math.sqrt(sent * loss * (1 - loss) * burstiness) + 1
        return max(0, math.floor(sent * loss - spread)), min(sent, math.ceil(sent * loss + spread))
    low, high, below = 0, sent, 0.0
    for count in range(sent + 1):
        chance = math.exp(
            math.lgamma(sent + 1)
            - math.lgamma(count + 1)
            - math.lgamma(sent - count + 1)
            + count * math.log(loss)
            + (sent - count) * math.log1p(-loss)
        )
        if below + chance <= _TAIL:
            low = count + 1
        below += chance
        if below >= 1 - _TAIL:
            high = count
            break
    return low, high


def choose_pairs(rules: Mapping[Path, Netem], hosts: set[int]) -> list[tuple[int, int, Expected]]:
    """Pairs of hosts that between them pass every path with a fault."""
    load: dict[int, int] = defaultdict(int)
    chosen: dict[tuple[int, int], Expected] = {}
    # Links first: they leave no choice, and may cover the hosts' own paths.
    for path in sorted(rules, key=lambda p: (None in (p.src, p.dst), str(p))):
        covered = any(path in _paths(*pair) for pair in chosen)
        if covered:
            continue
        sources = [path.src] if path.src is not None else sorted(hosts, key=lambda h: load[h])
        targets = [path.dst] if path.dst is not None else sorted(hosts, key=lambda h: load[h])
        pairs = [
            (src, dst)
            for src in sources
            for dst in targets
            if src != dst and src in hosts and dst in hosts
        ]
        expectations = [(pair, expected_between(rules, *pair)) for pair in pairs]
        # A pair that is cut anyway tells nothing about the fault in question.
        expectations.sort(key=lambda item: item[1].cut)
        if expectations:
            pair, expected = expectations[0]
            chosen[pair] = expected
            load[pair[0]] += 1
            load[pair[1]] += 1
    return [(src, dst, expected) for (src, dst), expected in chosen.items()]


def _paths(src: int, dst: int) -> tuple[Path, Path, Path]:
    return Path(src, None), Path(src, dst), Path(None, dst)
