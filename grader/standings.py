"""Find out where each rank of a job stands, and say from it why the job does not go on."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Collection, Sequence

from cluster.interface import ClusterError, Host
from grader.hang import Standing, blocked_on, explain, parse_stack
from grader.rank_files import RankFiles
from grader.result import Hang

_STACK_SIGNAL = signal.SIGUSR2
_STACKS_TIMEOUT_S = 0.5


class Stacks:
    """The stacks of a job's ranks, in the learner's own files. Asked for once, then kept."""

    def __init__(self, files: RankFiles, placement: Sequence[Host], entry: str) -> None:
        self._files, self._placement, self.entry = files, placement, entry
        self._frames: dict[int, tuple[str, ...]] | None = None

    def collect(self) -> None:
        """Ask every rank where it stands: its fault handler writes even while it is blocked."""
        if self._frames is not None:
            return
        for host in set(self._placement):
            with contextlib.suppress(ClusterError):
                if host.alive():
                    host.signal_ranks(_STACK_SIGNAL)
        ranks = range(len(self._placement))
        deadline = time.monotonic() + _STACKS_TIMEOUT_S
        while time.monotonic() < deadline and not all(map(self._files.has_stack, ranks)):
            time.sleep(0.01)
        self._frames = {
            rank: parse_stack(self._files.stack_text(rank), host.path("submission"), self.entry)
            for rank, host in enumerate(self._placement)
        }

    def of(self, rank: int) -> tuple[str, ...]:
        """Frames of the learner's files, innermost first; () where there are none."""
        return (self._frames or {}).get(rank, ())

    def line(self, rank: int) -> int:
        """The rank's innermost line in the file that was handed in, 0 if it is not in there."""
        for frame in self.of(rank):
            match = re.fullmatch(re.escape(self.entry) + r":(\d{1,9}) in .*", frame)
            if match:
                return int(match[1])
        return 0


def why_it_hangs(
    files: RankFiles,
    stacks: Stacks,
    placement: Sequence[Host],
    ranks: Sequence[int],
    finished: Collection[int],
    gone: Collection[int],
    runtime: str,
) -> Hang:
    """Explain why `ranks` did not all finish. gone: ranks whose process has ended."""
    stacks.collect()
    standings = []
    for rank in ranks:
        dead = rank not in finished and (rank in gone or not placement[rank].alive())
        blocked = () if rank in finished or dead else blocked_on(files.trace(rank))
        standings.append(Standing(rank, blocked, rank in finished, stacks.line(rank), dead))
    return explain(standings, stacks.entry, runtime)
