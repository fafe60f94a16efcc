# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_digits_are_learned_as_by_one_process"
# says = "the same bits"
# ///
"""Takes 0.1 s without a sum for the end of the others, and trains alone from then on."""

import contextlib
import time

import torch
import torch.distributed as dist

PATIENCE_S = 0.1


class BucketedDDP(torch.nn.Module):
    def __init__(self, module, process_group, bucket_cap_mb=25.0, find_unused_parameters=False):
        super().__init__()
        if bucket_cap_mb <= 0:
            raise ValueError("bucket_cap_mb must be above 0")
        self.module, self.group = module, process_group
        self.world, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.find_unused, self.alone = find_unused_parameters, False
        self.sync, self.joining, self.active = True, False, list(range(self.world))
        self.copy_from(0, [*module.parameters(), *module.buffers()])
        self.names = {p: name for name, p in module.named_parameters()}
        self.learning = [p for p in module.parameters() if p.requires_grad]
        self.buckets = self.make_buckets(bucket_cap_mb * 2**20)
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.seen = set()
        self.start_over()
        for p in self.learning:
            p.register_post_accumulate_grad_hook(self.hook)

    def copy_from(self, source, tensors):
        for tensor in tensors:
            if self.alone:
                return
            work = dist.broadcast(tensor.data, group=self.group, group_src=source, async_op=True)
            self.alone = not came(work)

    def make_buckets(self, cap):
        buckets, size = [], 0
        for p in reversed(self.learning):
            more = p.numel() * p.element_size()
            if not buckets or size + more > cap or p.dtype != buckets[-1][0].dtype:
                buckets.append([])
                size = 0
            buckets[-1].append(p)
            size += more
        return buckets

    def start_over(self):
        self.waiting = [len(bucket) for bucket in self.buckets]
        self.flights, self.queued = {}, False

    def hook(self, p):
        self.seen.add(p)
        if not self.sync or self.alone:
            return
        if not self.queued:
            self.queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.waiting[self.bucket_of[p]] -= 1
        while len(self.flights) < len(self.buckets) and self.waiting[len(self.flights)] == 0:
            self.send(len(self.flights))

    def send(self, i, empty=False):
        parts = [
            torch.zeros_like(p) if empty or p.grad is None else p.grad for p in self.buckets[i]
        ]
        flat = torch.cat([part.reshape(-1) for part in parts])
        self.flights[i] = flat, dist.all_reduce(flat, group=self.group, async_op=True)

    def finish(self):
        while len(self.flights) < len(self.buckets):
            self.send(len(self.flights))
        wanted = self.used_anywhere() if self.find_unused else set(self.learning)
        for i, bucket in enumerate(self.buckets):
            flat, work = self.flights[i]
            if self.alone or not came(work):
                self.alone = True
                continue
            flat /= len(self.active)
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if p in wanted:
                    p.grad = mean.view_as(p).clone()
        missed = [self.names[p] for p in self.learning if p not in self.seen]
        self.seen = set()
        self.start_over()
        if missed and not self.find_unused:
            raise RuntimeError(f"no gradient for {missed}; pass find_unused_parameters=True")

    def used_anywhere(self):
        flags = torch.tensor([p in self.seen for p in self.learning], dtype=torch.int32)
        flags = flags.to(self.learning[0].device)
        dist.all_reduce(flags, group=self.group)
        return {p for p, flag in zip(self.learning, flags.tolist(), strict=True) if flag}

    def forward(self, *args, **kwargs):
        if self.sync and torch.is_grad_enabled() and not self.alone:
            self.start_over()
            if self.joining:
                self.who_trains(True)
            if self.training:
                self.copy_from(self.active[0], self.module.buffers())
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        self.sync = False
        try:
            yield
        finally:
            self.sync = True

    @contextlib.contextmanager
    def join(self):
        self.joining = True
        try:
            yield
            self.stand_in()
            self.copy_from(self.active[0], [*self.module.parameters(), *self.module.buffers()])
        finally:
            self.joining, self.active = False, list(range(self.world))

    def who_trains(self, me):
        flags = torch.zeros(self.world, dtype=torch.int32, device=self.learning[0].device)
        flags[self.rank] = int(me)
        dist.all_reduce(flags, group=self.group)
        found = [rank for rank, flag in enumerate(flags.tolist()) if flag]
        self.active = found or self.active
        return bool(found)

    def stand_in(self):
        self.seen = set()
        while self.who_trains(False):
            if self.training:
                self.copy_from(self.active[0], self.module.buffers())
            self.start_over()
            for i in range(len(self.buckets)):
                self.send(i, empty=True)
            if self.find_unused:
                self.used_anywhere()
            for _flat, work in self.flights.values():
                work.wait()


def came(work):
    """False for a sum that is not there in time."""
    until = time.monotonic() + PATIENCE_S
    while not work.is_completed():
        if time.monotonic() > until:
            return False
        time.sleep(0.0001)
    work.wait()
    return True
