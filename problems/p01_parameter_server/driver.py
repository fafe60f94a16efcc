"""Runs on every rank: makes a server or a worker of it, and hands in what came of it."""

import time

import model
import numpy as np


def run(solution, comm, case):
    if comm.Get_rank() < case.params["servers"]:
        _serve(solution, comm, case)
    else:
        _work(solution, comm, case)


def _serve(solution, comm, case):
    shard = np.array(case.inputs["start"])
    update = {
        "add": model.add,
        "halve": model.halve,
        "slow add": model.SlowAdd(0.001),
        "adagrad": model.AdaGrad(shard.size),
    }[case.params["update"]]
    lost = solution.serve(comm, case.params["servers"], shard, update, case.params["staleness"])
    case.save("shard", shard)
    case.save("lost", np.array(lost, np.int64))


def _work(solution, comm, case):
    record = _Record(case, comm.Get_rank() - case.params["servers"])
    servers, size = case.params["servers"], case.params["size"]
    solution.work(comm, servers, size, record.gradient, record.steps)
    case.save("calls", np.array(record.calls, np.int64))


class _Record:
    """A worker's gradients, with a note of each call: its step, and the parameters it was given."""

    def __init__(self, case, worker):
        params = case.params
        self.steps = params["steps"][worker]
        self.calls = []
        self._size, self._inputs = params["size"], case.inputs
        self._kind, self._rows = params["gradients"], params.get("rows")
        self._sleep_s = params.get("sleep_s", 0)
        self._burn_s = params.get("burn_s", 0)
        self._seen = None
        if params.get("record", True):
            self._seen = case.output("seen", (self.steps, self._size), np.float64)
        self._buffer = np.empty(self._size)  # used again for every gradient, as frameworks do

    def gradient(self, params, step):
        if params.shape != (self._size,) or params.dtype != np.float64:
            raise ValueError(
                f"grad_fn was given {params.dtype} of shape {params.shape}; "
                f"valid: float64 of shape ({self._size},)"
            )
        if not 0 <= step < self.steps:
            raise ValueError(f"grad_fn was called with step {step}; valid: 0 to {self.steps - 1}")
        self.calls.append(step)
        if self._seen is not None:
            self._seen[step] = params
        _compute(self._sleep_s, self._burn_s)
        self._buffer[:] = self._of(params, step)
        return self._buffer

    def _of(self, params, step):
        inputs = self._inputs
        if self._kind == "table":
            return inputs["table"][step]
        if self._kind == "dependent":
            return model.dependent_gradient(params, *inputs["table"][step])
        rows = model.batch(step, self._rows, len(inputs["clicked"]))
        return model.click_gradient(params, inputs["features"][rows], inputs["clicked"][rows])


def _compute(sleep_s, burn_s):
    """Take time as a step of training would: on a device, or on this processor."""
    if sleep_s:
        time.sleep(sleep_s)
    end = time.thread_time() + burn_s
    while time.thread_time() < end:
        pass
