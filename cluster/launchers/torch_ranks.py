"""Start torch ranks on the hosts of a cluster, as torchrun would, without one agent per host.

The rendezvous store runs on the head and is reached over the control network: a partition of the
data network does not kill it, and its traffic is not taken for the job's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.interface import Cluster, Host
from cluster.launchers.job import RankEnd, spread
from cluster.launchers.output import CappedOutput
from cluster.launchers.program import Program, RankStarter, RunningRank, RunningStore
from cluster.launchers.rank_env import RankPlace, torchrun_environment

_POLL_S = 0.005
_GRACE_S = 1.0


class TorchJob:
    """Running torch ranks and their store. Judge by the ranks' own results, not by statuses."""

    def __init__(self, store: RunningStore, placement: Sequence[Host]) -> None:
        self._store = store
        self._placement = tuple(placement)
        self.ranks: list[RunningRank] = []
        self._outputs: list[CappedOutput] = []
        self._seen: dict[int, RankEnd] = {}

    @property
    def placement(self) -> tuple[Host, ...]:
        return self._placement

    def add(self, rank: RunningRank, output: CappedOutput) -> None:
        self.ranks.append(rank)
        self._outputs.append(output)

    def running(self) -> bool:
        """Whether any rank has not ended yet."""
        return len(self.ends()) < len(self.ranks)

    def ends(self) -> list[RankEnd]:
        """The ranks that have ended so far, in the order in which that was seen."""
        for number, (rank, host) in enumerate(zip(self.ranks, self._placement, strict=False)):
            if number not in self._seen and (status := rank.poll()) is not None:
                self._seen[number] = RankEnd(number, host.name, status)
        return list(self._seen.values())

    def first_failure(self) -> RankEnd | None:
        """The rank that was first seen to end with a status other than 0, if any has."""
        return next((end for end in self.ends() if end.status != 0), None)

    def wait(self, timeout_s: float) -> int | None:
        """Status of the job: 0, or that of the rank that failed first; None if ranks still run.

        A rank that fails does not end the others: whether they can go on is theirs to show.
        """
        deadline = time.monotonic() + timeout_s
        while self.running():
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
        failure = self.first_failure()
        return 0 if failure is None else failure.status

    def wait_for_ranks(self, timeout_s: float) -> None:
        """Wait until every rank has ended."""
        self.wait(timeout_s)

    def output(self, rank: int | None = None) -> str:
        """What one rank, or every rank in turn, printed so far; capped."""
        if rank is not None:
            return self._outputs[rank].text()
        texts = ((number, output.text()) for number, output in enumerate(self._outputs))
        return "".join(f"[rank {number}]\n{text.rstrip()}\n" for number, text in texts if text)

    def end(self) -> None:
        """End every rank and the store."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
        deadline = time.monotonic() + _GRACE_S
        for rank in self.ranks:
            # A rank on a paused host dies only when the host goes on or is closed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, deadline - time.monotonic()))
        self._store.kill()
        for output in self._outputs:
            output.wait(0.2)


def launch(
    cluster: Cluster, program: Callable[[Host], Program], ranks: int, starter: RankStarter
) -> TorchJob:
    """Start `ranks` ranks, filling host after host; `program(host)` is what runs there.

    Raises ClusterError when the cluster has fewer slots than ranks or a start is impossible.
    """
    counts = spread(cluster, ranks)
    address = cluster.launcher_access.head_address
    store = starter.start_store(address)
    job = TorchJob(store, [host for host, count in counts for _ in range(count)])
    try:
        number = 0
        for node, (host, count) in enumerate(counts):
            plain = program(host)
            for local in range(count):
                place = RankPlace(number, ranks, local, count, "torchrun")
                environment = {
                    **torchrun_environment(place, node, len(counts)),
                    **rendezvous_environment(host, place, address, store.port),
                    **plain.environment,
                }
                _start(job, host, replace(plain, environment=environment), starter)
                number += 1
    except BaseException:
        job.end()
        raise
    return job


def backend_for(host: Host) -> str:
    """The torch.distributed backend to use on `host`: nccl with GPUs, gloo without."""
    return "gloo" if host.gpus is None else "nccl"


def rendezvous_environment(host: Host, place: RankPlace, address: str, port: int) -> dict[str, str]:
    """Return where the ranks meet and over which interface they talk."""
    # NCCL refuses two ranks on one GPU of one host; as ranks of two hosts they may share it.
    shares_gpu = host.gpus is not None and place.local_world_size > host.gpus.count
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 is a client of the store as well
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "distlab",
        "GLOO_SOCKET_IFNAME": host.data_interface,
        "NCCL_SOCKET_IFNAME": host.data_interface,
        "TP_SOCKET_IFNAME": host.data_interface,
        "NCCL_HOSTID": f"{host.name}-{place.local_rank}" if shares_gpu else host.name,
        "DISTLAB_TORCH_BACKEND": backend_for(host),
    }


def _start(job: TorchJob, host: Host, program: Program, starter: RankStarter) -> None:
    read, write = os.pipe()
    try:
        rank = starter.start_rank(host, program, stdout=write, stderr=write)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    job.add(rank, CappedOutput(os.fdopen(read, "rb", closefd=True)))
