"""Problem 17: checkpoints that survive whatever ends the job. card.md tells the story."""

from __future__ import annotations

import os
from typing import Any


class CheckpointError(RuntimeError):
    """A checkpoint could not be written. Say which step, and why."""


def optimal_interval(save_cost: float, failure_rate: float) -> float:
    """Return how long to train between one save and the next, so that the least time is lost.

    save_cost: seconds for which a save stops training. failure_rate: failures per second, the
    inverse of the mean time between failures. Returns seconds of training, the save itself not
    counted. After a failure the job goes on at once from the last save.

    Must be near the optimum also when save_cost is as large as the mean time between failures.
    Raises ValueError unless both arguments are positive and finite.
    """
    raise NotImplementedError


class Checkpointer:
    """Writes and finds one rank's share of the checkpoints in a folder that all ranks see."""

    def __init__(
        self, folder: str | os.PathLike[str], rank: int, world_size: int, keep: int = 2
    ) -> None:
        """folder: made if it is missing; files there are yours alone. keep: complete steps to keep,
        at least 1. Several ranks may do this at the same moment."""
        raise NotImplementedError

    def save_async(self, step: int, state: Any) -> None:
        """Begin to save this rank's `state` as of now, and return while it is being written.

        state: nested dict, list, tuple of tensors (any dtype, shape and layout, on any device),
        int, float, bool, str, None. The caller changes it the moment this returns. An earlier save
        that still runs is waited for. A step counts once every rank has saved it. Steps grow.

        Raises what `wait` would, if the earlier save failed.
        """
        raise NotImplementedError

    def wait(self) -> None:
        """Return once this rank's share of every save begun is on disk, and old steps are gone.

        On disk: os.fsync (or os.fdatasync) of each file before it gets its final name, os.replace
        or os.rename, then os.fsync of the folder. os.sync does not count.

        Knows nothing of other ranks' saves: a rank that died must not keep this one waiting.
        Raises CheckpointError or OSError, once, if a save failed; older checkpoints are untouched
        then, half-written files are gone, and the next save may succeed.
        """
        raise NotImplementedError

    def restore(self) -> tuple[int, Any] | None:
        """Return the newest step that is complete, and this rank's state of it; None without one.

        Complete: saved by all `world_size` ranks, every byte as it was written. All ranks call
        this when a job begins, and get the same step; none saves before all have returned.

        Tensors come back on the CPU, with their dtype, shape and bits. Also removes what this rank
        left unfinished when it was killed, so that no later save can be completed by it.
        """
        raise NotImplementedError


def training_state(trainer: Any) -> Any:
    """Everything that decides how `trainer` goes on, as a state for `save_async`.

    trainer (see driver.py): model, optimizer, scheduler, step; batches, with order, position,
    epoch and generator (a torch.Generator). Dropout draws from torch's global generator of the
    model's device. Must not change how training goes on.
    """
    raise NotImplementedError


def load_training_state(trainer: Any, state: Any) -> None:
    """Put a state of `training_state` into a trainer that was just made with other seeds."""
    raise NotImplementedError
