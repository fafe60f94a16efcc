"""Ranks that are killed at set times of a case."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from cluster.interface import Unfit


class Killing:
    """Kills ranks while its block runs. Made by RankJob.killing; entered by RankJob.run.

    Leaving the block raises Unfit if a rank could not be killed, which is the machine's fault.
    """

    def __init__(self, kill: Callable[[int], None], times: Mapping[int, float]) -> None:
        """kill: ends a rank, or raises Unfit. times: by rank, seconds into the block."""
        self._kill, self._times = kill, dict(times)
        self._killed: set[int] = set()
        self._trouble: list[Unfit] = []
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Killing:
        self._timers = [
            threading.Timer(after_s, self._end, (rank,)) for rank, after_s in self._times.items()
        ]
        for timer in self._timers:
            timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
        for timer in self._timers:
            timer.join()
        interrupted = kind is not None and not issubclass(kind, Exception)
        if self._trouble and not interrupted:
            raise self._trouble[0]

    def must_have_fired(self) -> None:
        """Raise Unfit unless every rank was killed. Call it once the answers have been compared: a
        submission that ends early and wrong is wrong."""
        for rank, after_s in self._times.items():
            if rank not in self._killed:
                raise Unfit(
                    f"rank {rank} was to be killed after {after_s:g} s; the case ended before"
                )

    def _end(self, rank: int) -> None:
        try:
            self._kill(rank)
        except Unfit as error:
            self._trouble.append(error)
        else:
            self._killed.add(rank)
