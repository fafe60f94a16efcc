from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.network.bare_hosts import BareHosts
from cluster.network.engine import Engine, availability
from cluster.network.kernel import KernelEngine
from cluster.network.probe import Prober
from cluster.network.uml import UmlEngine

HOSTS = 4


@pytest.fixture(scope="session", params=[KernelEngine, UmlEngine], ids=lambda kind: kind.name)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each engine that this machine can run, in turn."""
    found = next(state for state in availability() if state.name == request.param.name)
    if not found.usable:
        pytest.skip(f"no {found.name} engine: {found.reason}")
    made: Engine = request.param()
    made.start(HOSTS)
    made.wait_ready(60)
    yield made
    made.stop()


@pytest.fixture
def hosts(engine: Engine) -> Iterator[BareHosts]:
    """Four fresh hosts on a switch without faults."""
    with BareHosts(engine, HOSTS) as made:
        yield made
        engine.apply({})


@pytest.fixture
def prober(engine: Engine, hosts: BareHosts) -> Iterator[Prober]:
    addresses = {host: hosts.address(host) for host in range(HOSTS)}
    with Prober(engine, dict(enumerate(hosts.netns)), addresses) as made:
        yield made
