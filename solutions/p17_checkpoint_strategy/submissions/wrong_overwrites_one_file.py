# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_kill_9_at_any_moment_of_saving"
# says = "after kill"
# ///
"""One file per rank, overwritten where it lies: after a kill it holds two steps' numbers.

It always loads, without any error. Nothing but a comparison shows what it is.
"""

import json
import os
import threading
from pathlib import Path

import numpy as np
import torch


class CheckpointError(RuntimeError):
    pass


def optimal_interval(save_cost, failure_rate):
    return (2 * save_cost / failure_rate) ** 0.5


class Checkpointer:
    def __init__(self, folder, rank, world_size, keep=2):
        self.path, self.thread = Path(folder) / f"rank{rank}", None
        self.path.mkdir(parents=True, exist_ok=True)

    def save_async(self, step, state):
        self.wait()
        self.thread = threading.Thread(target=self.write, args=(step, take_apart(state)))
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()

    def write(self, step, parts):
        plain, tensors = parts
        for number, tensor in enumerate(tensors):
            raw = tensor.reshape(-1).view(torch.uint8).numpy()
            path = self.path / f"tensor{number}"
            if not path.exists() or path.stat().st_size != raw.nbytes:
                path.write_bytes(bytes(raw.nbytes))
            with path.open("r+b") as file:
                for start in range(0, raw.nbytes, 4096):
                    file.write(raw[start : start + 4096])
                os.fsync(file.fileno())
        (self.path / "plain.new").write_text(json.dumps([step, plain]))
        (self.path / "plain.new").replace(self.path / "plain")

    def restore(self):
        if not (self.path / "plain").exists():
            return None
        step, plain = json.loads((self.path / "plain").read_text())
        return step, put_together(plain, self.path)


def take_apart(state):
    tensors = []

    def plain(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value.detach().cpu().clone().contiguous())
            name = str(value.dtype).removeprefix("torch.")
            return {"tensor": len(tensors) - 1, "dtype": name, "shape": list(value.shape)}
        if isinstance(value, dict):
            return {"items": [[plain(k), plain(v)] for k, v in value.items()]}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [plain(v) for v in value]}
        return value

    return plain(state), tensors


def put_together(plain, path):
    if not isinstance(plain, dict):
        return plain
    if "tensor" in plain:
        raw = np.fromfile(path / f"tensor{plain['tensor']}", np.uint8)
        dtype = getattr(torch, plain["dtype"])
        flat = torch.from_numpy(raw).view(dtype) if raw.size else torch.empty(0, dtype=dtype)
        return flat.reshape(plain["shape"])
    if "items" in plain:
        return {put_together(k, path): put_together(v, path) for k, v in plain["items"]}
    [(kind, values)] = plain.items()
    return {"list": list, "tuple": tuple}[kind](put_together(v, path) for v in values)


def training_state(trainer):
    raise NotImplementedError


def load_training_state(trainer, state):
    raise NotImplementedError
