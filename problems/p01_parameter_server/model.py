"""What workers compute and servers apply in the cases: for the driver, and for the checks."""

import time

import numpy as np


def dependent_gradient(params, factor, offset):
    """Whole numbers from -500 to 508 that depend on the parameters they were computed from."""
    return np.mod(factor * params + offset, 1009) - 500


def click_gradient(params, features, clicked):
    """Gradient of the mean logistic loss. A row's score is the sum of its features' parameters."""
    predicted = 1 / (1 + np.exp(-params[features].sum(axis=1)))
    error = (predicted - clicked) / len(clicked)
    each = np.repeat(error, features.shape[1])
    return np.bincount(features.ravel(), each, minlength=params.size)


def batch(step, size, rows):
    """Rows of a worker's step: they are gone through again and again, whole batches only."""
    start = step % (rows // size) * size
    return slice(start, start + size)


def add(shard, gradient):
    shard += gradient


def halve(shard, gradient):
    """Not linear: the update of a sum is not the sum of the updates."""
    shard -= np.floor(gradient / 2)


class SlowAdd:
    """Reads, thinks, writes. Two calls at the same time lose one of the updates."""

    def __init__(self, seconds):
        self._seconds = seconds

    def __call__(self, shard, gradient):
        new = shard + gradient
        time.sleep(self._seconds)
        shard[:] = new


class AdaGrad:
    """Duchi, Hazan and Singer, 2011. Its state lies beside the shard, on the server."""

    def __init__(self, size, rate=0.1):
        self._rate, self._squares = rate, np.full(size, 1e-8)

    def __call__(self, shard, gradient):
        self._squares += gradient**2
        shard -= self._rate * gradient / np.sqrt(self._squares)
