"""Runs on every rank: member, spare or both in turn. Notes what `gradient` was asked for."""

import time

import model
import numpy as np


def run(solution, comm, case):
    params = case.params
    given = {**params["work"], "plan": tuple((s, tuple(r)) for s, r in params["work"]["plan"])}
    work = model.Work(**given)
    start = np.array(case.inputs["start"])
    state = model.State(start, np.zeros_like(start))
    record = _Record(case)
    commits = solution.train(comm, work, state, record.gradient)
    case.save("params", state.params)
    case.save("velocity", state.velocity)
    case.save("place", np.array([state.step, state.epoch, state.position], np.int64))
    steps = sorted(commits)
    case.save("steps", np.array(steps, np.int64))
    case.save("members", np.array([_bits(commits[step]) for step in steps], np.int64))
    record.hand_in()


def _bits(ranks):
    return sum(1 << int(rank) for rank in set(ranks))


class _Record:
    """The gradient function, with a note of each call: when it came, and with which parameters."""

    def __init__(self, case):
        params, self._inputs, self._case = case.params, case.inputs, case
        self._kind, self._sleep_s = params["gradient"], params.get("sleep_s", 0)
        self._last = params["work"]["epochs"] * params["work"]["samples"]
        self._keep = params.get("keep", 1)
        self._times, self._seen = [], []

    def gradient(self, params, numbers):
        numbers = np.asarray(numbers)
        if params.shape != self._inputs["start"].shape or params.dtype != np.float64:
            raise ValueError(
                f"gradient was given {params.dtype} of shape {params.shape}; "
                f"valid: float64 of shape {self._inputs['start'].shape}"
            )
        if not numbers.size or numbers.min() < 0 or numbers.max() >= self._last:
            raise ValueError(
                f"gradient was given {numbers.size} samples, {str(numbers[:3])[1:-1]} ...; "
                f"valid: one or more, numbers from 0 to {self._last - 1}"
            )
        self._times.append(time.monotonic())
        if len(self._seen) < self._keep:
            self._seen.append(params.copy())
        if self._sleep_s:
            time.sleep(self._sleep_s)
        if self._kind == "counting":
            return model.counting_gradient(params, numbers)
        tables = ("curvature", "centre") if self._kind == "bowl" else ("features", "clicked")
        of = {"bowl": model.bowl_gradient, "clicks": model.click_gradient}[self._kind]
        return of(params, numbers, *(self._inputs[name] for name in tables))

    def hand_in(self):
        self._case.save("times", np.array(self._times))
        self._case.save("seen", np.array(self._seen))
