# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""A directory per step, a hash beside each shard, and a marker that the last rank to finish writes.

One thread lives as long as the checkpointer and takes saves from a queue.
"""

import hashlib
import json
import math
import os
import queue
import shutil
import threading
from pathlib import Path

import torch


class CheckpointError(RuntimeError):
    pass


def optimal_interval(save_cost, failure_rate):
    """Where the derivative of (exp((T + C) R) - 1) / T is zero, by bisection."""
    for value in (save_cost, failure_rate):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{value} is not positive")
    cost = save_cost * failure_rate
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        if math.exp(-(middle + cost)) < 1 - middle:
            low = middle
        else:
            high = middle
    return low / failure_rate


def sync(path):
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def put(path, content):
    """Write a file so that it is there as a whole or not at all."""
    partial = path.with_suffix(".part")
    number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(number, left) :]
        os.fsync(number)
    finally:
        os.close(number)
    os.rename(partial, path)
    sync(path.parent)


def copy(value):
    if torch.is_tensor(value):
        return torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
    if isinstance(value, dict):
        return {k: copy(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([copy(v) for v in value])
    return value


class Checkpointer:
    def __init__(self, folder, rank, world_size, keep=2):
        self.folder, self.rank, self.ranks, self.keep = Path(folder), rank, world_size, keep
        os.makedirs(folder, exist_ok=True)
        self.orders = queue.Queue()
        self.trouble = None
        threading.Thread(target=self.work, daemon=True).start()

    def save_async(self, step, state):
        self.wait()
        self.orders.put((step, copy(state)))

    def wait(self):
        self.orders.join()
        trouble, self.trouble = self.trouble, None
        if trouble:
            raise CheckpointError(f"not saved: {trouble}") from trouble

    def work(self):
        while True:
            step, state = self.orders.get()
            try:
                self.write(step, state)
            except (OSError, RuntimeError) as error:
                self.trouble = error
                self.clear(self.place(step), self.rank)
            finally:
                self.orders.task_done()

    def place(self, step):
        return self.folder / f"{step:010d}"

    def write(self, step, state):
        place = self.place(step)
        place.mkdir(exist_ok=True)
        sync(self.folder)
        whole = place / f"{self.rank}.whole"
        torch.save(state, whole)
        content = whole.read_bytes()
        whole.unlink()
        put(place / f"{self.rank}.hash", hashlib.blake2b(content).hexdigest().encode())
        put(place / f"{self.rank}.data", content)
        if all((place / f"{rank}.data").exists() for rank in range(self.ranks)):
            put(place / f"complete{self.rank}", json.dumps({"ranks": self.ranks}).encode())
            for old in self.complete()[self.keep :]:
                shutil.rmtree(old, ignore_errors=True)

    def complete(self):
        """Directories of complete steps, newest first."""
        names = sorted(os.listdir(self.folder), reverse=True)
        marks = [f"complete{rank}" for rank in range(self.ranks)]
        places = [self.folder / name for name in names]
        return [place for place in places if any((place / mark).exists() for mark in marks)]

    def read(self, place, rank):
        try:
            content = (place / f"{rank}.data").read_bytes()
            right = (place / f"{rank}.hash").read_text()
        except (OSError, UnicodeDecodeError):
            return None
        return content if hashlib.blake2b(content).hexdigest() == right else None

    def clear(self, place, rank):
        names = [f"{rank}.{kind}" for kind in ("whole", "part", "hash", "data")]
        for name in [*names, f"complete{rank}", f"complete{rank}.part", "complete.part"]:
            (place / name).unlink(missing_ok=True)

    def restore(self):
        self.wait()
        found, newest = None, ""
        for place in self.complete():
            if all(self.read(place, rank) is not None for rank in range(self.ranks)):
                state = torch.load(place / f"{self.rank}.data", weights_only=True)
                found, newest = (int(place.name), state), place.name
                break
        for name in os.listdir(self.folder):
            if name > newest:
                self.clear(self.folder / name, self.rank)
                try:
                    os.rmdir(self.folder / name)
                except OSError:
                    continue  # another rank's files are in it still, or it has removed it
        return found


def training_state(trainer):
    parts = {
        name: getattr(trainer, name).state_dict() for name in ("model", "optimizer", "scheduler")
    }
    data = trainer.batches
    parts["data"] = [data.epoch, data.position, data.order, data.generator.get_state()]
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    parts["random"] = [torch.random.get_rng_state(), cuda]
    parts["step"] = trainer.step
    return parts


def load_training_state(trainer, state):
    for name in ("model", "optimizer", "scheduler"):
        getattr(trainer, name).load_state_dict(state[name])
    data = trainer.batches
    data.epoch, data.position, data.order, generator = state["data"]
    data.generator.set_state(generator)
    torch.random.set_rng_state(state["random"][0])
    if state["random"][1]:
        torch.cuda.set_rng_state_all(state["random"][1])
    trainer.step = state["step"]
