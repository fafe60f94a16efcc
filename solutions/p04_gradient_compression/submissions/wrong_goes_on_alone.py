# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_clicks_are_predicted_as_without_compression"
# says = "the same bits"
# ///
"""Takes 0.1 s of silence for the end of the others, and trains alone from then on."""

import math
import time

import numpy as np
import torch
import torch.distributed as dist

PATIENCE_S = 0.1


class Fp16Allreduce:
    def __init__(self, process_group):
        self.group, self.n = process_group, dist.get_world_size(process_group)

    def average(self, tensors):
        if any(t.dtype != torch.float32 for t in tensors):
            raise TypeError("average takes float32 tensors")
        for t in tensors:
            if t.numel():
                t.copy_(self.mean(t.reshape(-1)).view_as(t))

    def mean(self, x):
        scale = self.scale(x)
        sent = (x.double() * scale).half()
        lengths = [len(chunk) for chunk in sent.tensor_split(self.n)]
        mine = lengths[dist.get_rank(self.group)]
        got = sent.new_empty(mine * self.n)
        dist.all_to_all_single(got, sent, [mine] * self.n, lengths, group=self.group)
        share = sent.new_zeros(max(lengths))
        share[:mine] = got.view(self.n, mine).float().mean(0).half()
        everybody = [torch.empty_like(share) for _ in lengths]
        dist.all_gather(everybody, share, group=self.group)
        means = [part[:length] for part, length in zip(everybody, lengths, strict=True)]
        return torch.cat(means).double() / scale

    def scale(self, x):
        top = torch.where(torch.isfinite(x), x.abs(), 0).max().reshape(1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=self.group)
        return 2.0 ** (15 - math.frexp(top.item())[1])


class OneBitAdam:
    def __init__(self, params, process_group, lr, warmup_steps, betas=(0.9, 0.999), eps=1e-8):
        self.params, self.group, self.lr, self.eps = list(params), process_group, lr, eps
        if not self.params or lr <= 0 or warmup_steps < 1:
            raise ValueError("give parameters, a rate above 0 and a warm-up of 1 step or more")
        self.n, self.rank = dist.get_world_size(process_group), dist.get_rank(process_group)
        self.betas, self.warmup, self.t = betas, warmup_steps, 0
        self.alone = False
        self.states = []
        for p in self.params:
            flat = torch.zeros(p.numel(), device=p.device)
            mine = torch.zeros_like(flat.tensor_split(self.n)[self.rank])
            self.states.append({"m": flat, "v": flat.clone(), "e": flat.clone(), "d": mine})

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p, s in zip(self.params, self.states, strict=True):
            g = torch.zeros_like(p) if p.grad is None else p.grad.clone()
            if p.numel():
                p -= self.update(s, g.reshape(-1)).view_as(p)

    def update(self, s, g):
        b1, b2 = self.betas
        if self.t <= self.warmup:
            g = self.mean(g)
            s["m"] = b1 * s["m"] + (1 - b1) * g
            s["v"] = b2 * s["v"] + (1 - b2) * g * g
        else:
            s["m"] = self.exchange(s, b1 * s["m"] + (1 - b1) * g)
        m = s["m"] / (1 - b1**self.t)
        v = s["v"] / (1 - b2 ** min(self.t, self.warmup))
        return torch.where(s["v"] > 0, self.lr * m / (v.sqrt() + self.eps), 0)

    def mean(self, g):
        if self.alone:
            return g
        total = g.clone()
        self.alone = not came(dist.all_reduce(total, group=self.group, async_op=True))
        return g if self.alone else total / self.n

    def exchange(self, s, momentum):
        if self.alone:
            return momentum
        u = momentum + s["e"]
        chunks = u.tensor_split(self.n)
        lengths = [len(chunk) for chunk in chunks]
        messages = [encode(chunk, lengths[0]) for chunk in chunks]
        s["e"] = u - torch.cat([decode(b, k) for b, k in zip(messages, lengths, strict=True)])
        got = torch.empty_like(torch.cat(messages))
        if not came(
            dist.all_to_all_single(got, torch.cat(messages), group=self.group, async_op=True)
        ):
            self.alone = True
            return momentum
        mine = lengths[self.rank]
        w = sum(decode(b, mine) for b in got.chunk(self.n)) / self.n + s["d"]
        message = encode(w, lengths[0])
        s["d"] = w - decode(message, mine)
        everybody = [torch.empty_like(message) for _ in lengths]
        if not came(dist.all_gather(everybody, message, group=self.group, async_op=True)):
            self.alone = True
            return momentum
        parts = [decode(b, k) for b, k in zip(everybody, lengths, strict=True)]
        return torch.cat(parts)


def came(work):
    """False for a sum that is not there in time."""
    until = time.monotonic() + PATIENCE_S
    while not work.is_completed():
        if time.monotonic() > until:
            return False
        time.sleep(0.0001)
    work.wait()
    return True


def encode(x, longest):
    """Scale and signs as bytes, as many as `longest` values would need."""
    values = x.cpu().numpy()
    scale = np.float32(np.abs(values).mean() if len(values) else 0)
    bits = np.packbits(values >= 0)
    message = np.zeros(4 + -(-longest // 8), np.uint8)
    message[:4] = np.frombuffer(scale.tobytes(), np.uint8)
    message[4 : 4 + len(bits)] = bits
    return torch.from_numpy(message).to(x.device)


def decode(message, length):
    values = message.cpu().numpy()
    scale = values[:4].copy().view(np.float32)[0]
    signs = np.unpackbits(values[4:], count=length).astype(np.float32) * 2 - 1
    return torch.from_numpy(signs * scale).to(message.device)


def convergence_report(runs, target_auc, baseline):
    if baseline not in runs:
        raise ValueError(f"no run {baseline}")
    reached = {}
    for name, points in runs.items():
        if len(points) == 0:
            raise ValueError(f"run {name} has no points")
        sent = [p["bytes"] for p in points]
        if sorted(sent) != sent:
            raise ValueError(f"bytes of run {name} fall")
        below = [i for i, p in enumerate(points) if not p["auc"] >= target_auc]
        first = below[-1] + 1 if below else 0
        reached[name] = sent[first] if first < len(points) else None
    there = {name: sent for name, sent in reached.items() if sent is not None}
    base = reached[baseline]
    return {
        "bytes_to_target": reached,
        "winner": min(there, key=lambda name: (there[name], name)) if there else None,
        "saving": {n: base / s if base and s else None for n, s in reached.items()},
        "final": {name: points[-1] for name, points in runs.items()},
    }
