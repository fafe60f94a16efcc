"""What ranks train and checks compute again: a click model, and Adam without compression."""

from __future__ import annotations

import numpy as np

RATE, BETAS, EPS = 0.04, (0.9, 0.99), 1e-8


def scores(weights, features):
    """Logistic regression over categorical fields. weights: one for each feature, then the bias.

    features: (rows, fields) feature numbers. Returns one score a row.
    """
    return weights[:-1][features].sum(axis=1) + weights[-1]


def loss_and_gradient(weights, features, clicked):
    """Mean log loss over the rows, and its gradient, float32 like `weights`."""
    score = scores(weights, features)
    loss = np.mean(np.logaddexp(0, score) - clicked * score)
    error = (1 / (1 + np.exp(-score)) - clicked) / len(clicked)
    by_feature = np.bincount(
        features.ravel(), np.repeat(error, features.shape[1]), minlength=len(weights) - 1
    )
    return float(loss), np.append(by_feature, error.sum()).astype(np.float32)


class Adam:
    """Adam in numpy, float32 (Kingma and Ba, 2015). weights: changed in place by `step`."""

    def __init__(self, weights, rate=RATE, betas=BETAS, eps=EPS):
        self.weights, self.rate, self.betas, self.eps = weights, rate, betas, eps
        self.steps, self.m, self.v = 0, np.zeros_like(weights), np.zeros_like(weights)

    def step(self, gradient):
        self.steps += 1
        b1, b2 = self.betas
        self.m += (1 - b1) * (gradient - self.m)
        self.v += (1 - b2) * (gradient * gradient - self.v)
        mean, variance = self.m / (1 - b1**self.steps), self.v / (1 - b2**self.steps)
        self.weights -= (self.rate * mean / (np.sqrt(variance) + self.eps)).astype(np.float32)
