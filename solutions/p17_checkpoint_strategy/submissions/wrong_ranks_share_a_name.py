# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_state_survives_the_process"
# says = "in a new job"
# ///
"""Every rank writes the same file name: the last one wins."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import struct
import threading
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import torch

# Ends every shard: a file that was cut short, or has other bytes than were written, is no shard.
_FOOTER = struct.Struct("<8sQI")  # magic, bytes before the footer, their CRC-32
_MAGIC = b"SHARD-17"
_NAME = re.compile(r"step-(\d+)\.rank-(\d+)-of-(\d+)$")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written."""


def optimal_interval(save_cost: float, failure_rate: float) -> float:
    """Daly's estimate of the best interval (2006, eq. 37); see stub.py.

    Young's sqrt(2 C M) is its first term. The others matter once a save takes more than a few
    percent of the mean time between failures M.
    """
    if not (0 < save_cost < math.inf and 0 < failure_rate < math.inf):
        raise ValueError(
            f"save_cost = {save_cost}, failure_rate = {failure_rate}: both must be positive, finite"
        )
    between_failures = 1 / failure_rate
    if save_cost >= 2 * between_failures:
        return between_failures
    x = math.sqrt(save_cost / (2 * between_failures))
    return math.sqrt(2 * save_cost * between_failures) * (1 + x / 3 + x * x / 9) - save_cost


class Checkpointer:
    """See stub.py. At most one save is under way, on a thread of its own."""

    def __init__(
        self, folder: str | os.PathLike[str], rank: int, world_size: int, keep: int = 2
    ) -> None:
        if not 0 <= rank < world_size or keep < 1:
            raise ValueError(f"rank {rank} of {world_size}, keep = {keep}: keep at least 1 step")
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rank, self._world_size, self._keep = 0, 1, keep
        self._writer: threading.Thread | None = None
        self._error: CheckpointError | None = None

    def save_async(self, step: int, state: Any) -> None:
        self.wait()
        snapshot = _snapshot(state)
        self._writer = threading.Thread(target=self._save, args=(step, snapshot))
        self._writer.start()

    def wait(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def restore(self) -> tuple[int, Any] | None:
        self.wait()
        found = None
        for step in reversed(self._complete_steps()):
            # Everybody looks at every shard, so that all come to the same answer without a message.
            shards = [_payload(self._path(step, rank)) for rank in range(self._world_size)]
            if all(shard is not None for shard in shards):
                own = io.BytesIO(shards[self._rank])
                found = step, torch.load(own, map_location="cpu", weights_only=True)
                break
        self._remove_own_leftovers(found[0] if found else -1)
        return found

    def _save(self, step: int, snapshot: Any) -> None:
        """Runs on the writer thread. Every line's place in this order matters."""
        final = self._path(step, self._rank)
        temporary = final.with_name(f"{final.name}.tmp{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                _write_shard(file, snapshot)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
            _sync_folder(self._folder)
            self._prune()
        except (OSError, RuntimeError) as error:  # torch.save turns a full disk into the latter
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._error = CheckpointError(f"step {step} was not saved: {error}")
            self._error.__cause__ = error

    def _path(self, step: int, rank: int) -> Path:
        return self._folder / f"step-{step:012d}.rank-0-of-1"

    def _shards(self) -> dict[int, set[int]]:
        """Which ranks' shards there are, by step."""
        ranks: dict[int, set[int]] = {}
        for name in os.listdir(self._folder):
            match = _NAME.match(name)
            if match and int(match[3]) == self._world_size:
                ranks.setdefault(int(match[1]), set()).add(int(match[2]))
        return ranks

    def _complete_steps(self) -> list[int]:
        return sorted(s for s, ranks in self._shards().items() if len(ranks) == self._world_size)

    def _prune(self) -> None:
        """Remove all that is older than the `keep` newest complete steps.

        Whoever finishes a step last sees it complete, and removes the other ranks' shards as well.
        """
        complete = self._complete_steps()
        if len(complete) < self._keep:
            return
        for step, ranks in self._shards().items():
            if step < complete[-self._keep]:
                for rank in ranks:
                    self._path(step, rank).unlink(missing_ok=True)

    def _remove_own_leftovers(self, restored: int) -> None:
        """This rank's unfinished files, and its shards of steps that never became complete.

        Such a shard would make a later run's step complete with half of an earlier run's.
        """
        for path in self._folder.glob(f"step-*.rank-{self._rank}-of-{self._world_size}*"):
            match = _NAME.match(path.name)
            if match is None or int(match[1]) > restored:
                path.unlink(missing_ok=True)
        _sync_folder(self._folder)


def _snapshot(value: Any) -> Any:
    """A copy that shares no memory with `value`. Cloning a view leaves its large base behind."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        return {key: _snapshot(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_snapshot(item) for item in value)
    return value


class _Summing:
    """Counts and sums up what is written to a file, so that no shard is in memory twice."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.length, self.crc = file, 0, 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.length += len(data)
        self.crc = zlib.crc32(data, self.crc)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _write_shard(file: BinaryIO, snapshot: Any) -> None:
    summing = _Summing(file)
    torch.save(snapshot, summing)
    file.write(_FOOTER.pack(_MAGIC, summing.length, summing.crc))


def _payload(path: Path) -> memoryview | None:
    """What was written to a shard; None unless every byte of it is there."""
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError:  # its rank came to the same verdict first, and removed it
        return None
    if len(content) < _FOOTER.size:
        return None
    payload = content[: -_FOOTER.size]
    magic, length, crc = _FOOTER.unpack(content[-_FOOTER.size :])
    whole = magic == _MAGIC and length == len(payload) and crc == zlib.crc32(payload)
    return payload if whole else None


def _sync_folder(folder: Path) -> None:
    """A rename is on disk when its folder is."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def training_state(trainer: Any) -> dict[str, Any]:
    """Model and buffers, moments, schedule, place in the data, and both kinds of dice."""
    batches = trainer.batches
    device = next(trainer.model.parameters()).device
    return {
        "step": trainer.step,
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "order": batches.order,
        "position": batches.position,
        "epoch": batches.epoch,
        "shuffles": batches.generator.get_state(),
        "cpu_dice": torch.get_rng_state(),
        "cuda_dice": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def load_training_state(trainer: Any, state: dict[str, Any]) -> None:
    trainer.step = state["step"]
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.scheduler.load_state_dict(state["scheduler"])
    batches = trainer.batches
    batches.order, batches.position = state["order"], state["position"]
    batches.epoch = state["epoch"]
    batches.generator.set_state(state["shuffles"])
    torch.set_rng_state(state["cpu_dice"])
    if state["cuda_dice"] is not None:
        torch.cuda.set_rng_state(state["cuda_dice"], next(trainer.model.parameters()).device)
