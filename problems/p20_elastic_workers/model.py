"""What an elastic training run is made of: for the driver, the submission and the checks."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Work:
    """What is to be trained, the same on every rank.

    epochs, samples: each epoch goes once through `order(epoch)`, which has `samples` entries.
    per_rank: samples that one member takes in a step.
    base_batch, rate: a step over `base_batch` samples has the learning rate `rate`.
    momentum: 0 up to below 1.
    plan: (step, ranks) in rising order of steps. From that step on the members are those ranks,
        less the dead. The first entry is for step 0; steps are counted through all epochs.
    """

    epochs: int
    samples: int
    per_rank: int
    base_batch: int
    rate: float
    momentum: float
    plan: tuple[tuple[int, tuple[int, ...]], ...]
    seed: int

    def order(self, epoch):
        """Numbers of an epoch's samples in the order in which they are consumed: int64
        (samples,). Each epoch has numbers of its own: epoch * samples and up."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
        return epoch * self.samples + order


@dataclass
class State:
    """Where training stands on one rank. All of it changes at a committed step.

    params, velocity: float64 of the same shape (size,), updated in place.
    rate: learning rate of the last committed step, which `velocity` contains; 0 before the first.
    step: committed steps so far. epoch, position: position samples of that epoch are consumed.
    """

    params: np.ndarray
    velocity: np.ndarray
    rate: float = 0.0
    step: int = 0
    epoch: int = 0
    position: int = 0


def counting_gradient(params, numbers):
    """1 for each sample at the element with its number: who is consumed twice, counts twice."""
    return np.bincount(numbers, minlength=params.size).astype(np.float64)


def bowl_gradient(params, numbers, curvature, centre):
    """Sum over samples of curvature * (params - centre): each pulls towards a centre of its own."""
    rows = numbers % len(centre)
    return (curvature[rows] * (params - centre[rows])).sum(axis=0)


def click_gradient(params, numbers, features, clicked):
    """Sum over rows of the logistic loss's gradient. A row's score is the sum of its features'
    parameters."""
    rows = numbers % len(clicked)
    shown = features[rows]
    error = 1 / (1 + np.exp(-params[shown].sum(axis=1))) - clicked[rows]
    return np.bincount(shown.ravel(), np.repeat(error, shown.shape[1]), minlength=params.size)
