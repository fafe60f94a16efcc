# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""Length and checksum stand in the file's name, and snapshots go into buffers that are kept.

torch.save writes to the temporary path itself; the file is opened again to be summed and synced.
"""

import glob
import math
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from os import fsync, replace

import torch


class CheckpointError(RuntimeError):
    pass


def optimal_interval(save_cost, failure_rate):
    if not save_cost > 0 or not failure_rate > 0 or math.inf in (save_cost, failure_rate):
        raise ValueError("cost and rate must be positive numbers")
    # T = M (1 + W(-exp(-1 - C/M))), by Newton's method on w exp(w) = -exp(-1 - C/M).
    share = save_cost * failure_rate
    target, w = -math.exp(-1 - share), -1 + math.sqrt(min(2 * share, 0.9))
    for _ in range(60):
        w -= (w * math.exp(w) - target) / (math.exp(w) * (1 + w))
    return (1 + w) / failure_rate


class Checkpointer:
    def __init__(self, folder, rank, world_size, keep=2):
        self.folder, self.rank, self.world_size, self.keep = str(folder), rank, world_size, keep
        os.makedirs(self.folder, exist_ok=True)
        self.pool = ThreadPoolExecutor(1)
        self.running = None
        self.buffers = {}

    def save_async(self, step, state):
        self.wait()  # also: the buffers are free again
        self.running = self.pool.submit(self.write, step, self.copied(state, ()))

    def wait(self):
        running, self.running = self.running, None
        if running is not None:
            running.result()

    def copied(self, value, place):
        if isinstance(value, torch.Tensor):
            buffer = self.buffers.get(place)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                buffer = self.buffers[place] = torch.zeros(value.shape, dtype=value.dtype)
            with torch.no_grad():
                return buffer.copy_(value)
        if isinstance(value, dict):
            return {key: self.copied(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.copied(item, (*place, i)) for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return tuple(self.copied(item, (*place, i)) for i, item in enumerate(value))
        return value

    def write(self, step, state):
        partial = os.path.join(self.folder, f"partial-{self.rank}")
        try:
            torch.save(state, partial)
            with open(partial, "rb+") as file:
                total = checksum(file)
                size = file.tell()
                fsync(file)
            name = f"{step}_{self.rank}_{self.world_size}_{size}_{total}.pt"
            for path, *_ in self.shards().get(step, {}).values():
                if path.rsplit("/", 1)[1].split("_")[1] == str(self.rank):
                    os.remove(path)  # of this step, from a life before
            replace(partial, os.path.join(self.folder, name))
            self.sync()
        except (OSError, RuntimeError) as error:
            if os.path.exists(partial):
                os.remove(partial)
            raise CheckpointError(f"step {step} is not saved: {error}") from error
        steps = self.shards()
        complete = sorted(s for s, found in steps.items() if len(found) == self.world_size)
        for old, found in steps.items():
            if old in complete[: -self.keep] or (complete and old < complete[0]):
                drop([found[self.rank][0]] if self.rank in found else [])

    def sync(self):
        number = os.open(self.folder, os.O_RDONLY)
        fsync(number)
        os.close(number)

    def shards(self):
        """step -> rank -> (path, size, checksum)"""
        steps = {}
        for path in glob.glob(os.path.join(self.folder, f"*_*_{self.world_size}_*_*.pt")):
            step, rank, _, size, total = map(int, os.path.basename(path)[:-3].split("_"))
            steps.setdefault(step, {})[rank] = (path, size, total)
        return steps

    def restore(self):
        self.wait()
        steps = self.shards()
        result, bound = None, -1
        for step in sorted(steps, reverse=True):
            found = steps[step]
            if len(found) == self.world_size and all(map(intact, found.values())):
                result = step, torch.load(found[self.rank][0], weights_only=True)
                bound = step
                break
        drop(found[self.rank][0] for s, found in steps.items() if s > bound and self.rank in found)
        drop([os.path.join(self.folder, f"partial-{self.rank}")])
        return result


def checksum(file):
    total = 0
    while block := file.read(1 << 20):
        total = zlib.adler32(block, total)
    return total


def intact(shard):
    path, size, total = shard
    try:
        with open(path, "rb") as file:
            return checksum(file) == total and file.tell() == size
    except FileNotFoundError:
        return False


def drop(paths):
    for path in paths:
        if os.path.exists(path):
            os.remove(path)


def training_state(trainer):
    return {
        "objects": [o.state_dict() for o in (trainer.model, trainer.optimizer, trainer.scheduler)],
        "batches": {k: v for k, v in vars(trainer.batches).items() if k != "generator"},
        "generators": [trainer.batches.generator.get_state(), torch.get_rng_state()],
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "step": trainer.step,
    }


def load_training_state(trainer, state):
    objects = (trainer.model, trainer.optimizer, trainer.scheduler)
    for target, saved in zip(objects, state["objects"], strict=True):
        target.load_state_dict(saved)
    vars(trainer.batches).update(state["batches"])
    trainer.batches.generator.set_state(state["generators"][0])
    torch.set_rng_state(state["generators"][1])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
    trainer.step = state["step"]
