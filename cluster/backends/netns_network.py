"""The data network of one emulated cluster: faults put into force, and proven on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cluster.backends.netns_host import NetnsHost
from cluster.interface import Unfit
from cluster.network.errors import EngineError
from cluster.network.netem import Netem
from cluster.network.paths import Path as LinkPath
from cluster.network.probe import Measured, Prober

if TYPE_CHECKING:
    from cluster.network.engine import Engine


class EngineNetwork:
    """The links of one cluster's hosts through the backend's fault engine."""

    def __init__(self, engine: Engine, hosts: Sequence[NetnsHost]) -> None:
        self._engine = engine
        self._names = {host.index: host.name for host in hosts}
        try:
            self._prober = Prober(
                engine,
                self._names,
                {host.index: host.data_address for host in hosts},
            )
        except OSError as error:
            raise Unfit(f"the links cannot be probed: {error}") from error

    def impose(self, rules: Mapping[LinkPath, Netem], *, idle: bool = True) -> str:
        try:
            self._engine.apply(rules)
            measured = self._prober.confirm(rules, idle=idle)
        except EngineError as error:
            raise Unfit(f"a network fault did not take: {error}") from error
        seen = "; ".join(_in_words(one, self._names) for one in measured[:4])
        return f"read back from the {self._engine.name} engine; probed: {seen or 'nothing to see'}"

    def close(self) -> None:
        """Close the probe's sockets, so that the hosts' namespaces can go."""
        self._prober.close()


def _in_words(measured: Measured, names: Mapping[int, str]) -> str:
    parts = [f"{names[measured.src]}->{names[measured.dst]}"]
    if measured.delay_ms is not None:
        parts.append(f"{measured.delay_ms:.1f} ms")
    if measured.lost:
        parts.append(f"{measured.lost} of {measured.sent} lost")
    if measured.rate_mbit is not None:
        low, high = measured.rate_mbit
        parts.append(f"{low:.0f} to {high:.0f} Mbit/s")
    return " ".join(parts)
