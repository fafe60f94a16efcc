"""Gradients in buckets of the forward order, a few under way at a time.

Every rank knows the layout, so all know which elements make up bucket k without a message. Buckets
leave in forward order whatever order the tensors came in; what a rank did not submit is zeros in
its bucket. How many are under way is fixed by the window, so the switch's queue never overflows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

_ITEM = np.dtype(np.float32).itemsize
_COLLECT, _HAND_OUT = 1, 2


@dataclass(frozen=True)
class _Piece:
    """Elements start to stop of tensor `name`."""

    name: str
    start: int
    stop: int


@dataclass
class _Flight:
    """A bucket under way. shares[r]: the part of it that rank r finishes."""

    pieces: list[_Piece]
    shares: list[np.ndarray]
    arriving: list[np.ndarray]
    requests: list[MPI.Request] = field(default_factory=list)


class GradientSynchronizer:
    """See stub.py."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        layout: Sequence[tuple[str, int]],
        fusion_bytes: int,
        window_bytes: int,
    ) -> None:
        self._comm, self._rank, n = comm, comm.Get_rank(), comm.Get_size()
        # Everybody begins with its right neighbour, so that no rank is everybody's first target.
        self._peers = [(self._rank + distance) % n for distance in range(1, n)]
        self._lengths = dict(layout)
        # A bucket is sent twice, (n-1)/n of it as shares and as much as results. The window takes
        # both, so a bucket may have half of it.
        room = window_bytes * n // max(1, n - 1)
        elements = max(1, min(fusion_bytes, room // 2) // _ITEM)
        under_way = max(2, room // (elements * _ITEM))
        self._handed_out_at_once = under_way // 2
        self._collected_at_once = under_way - self._handed_out_at_once
        self._buckets, self._buckets_until = _plan(layout, elements)
        self._begin_step()

    def _begin_step(self) -> None:
        self._tensors: dict[str, np.ndarray] = {}
        self._closed = False
        self._turn = self._done = 0
        self._collecting: deque[_Flight] = deque()
        self._handing_out: deque[_Flight] = deque()

    def submit(self, name: str, tensor: np.ndarray) -> None:
        if self._closed:
            raise ValueError(f"{name}: this step is closed; flush() begins the next one")
        if name not in self._lengths:
            raise ValueError(f"{name} is not in the layout")
        if tensor.dtype != np.float32 or tensor.shape != (self._lengths[name],):
            raise ValueError(
                f"{name} is {tensor.dtype} of shape {tensor.shape}; "
                f"the layout says float32 of shape ({self._lengths[name]},)"
            )
        if name in self._tensors:
            raise ValueError(f"{name} was submitted in this step already")
        self._tensors[name] = tensor

    def wait(self, name: str) -> None:
        if name not in self._tensors:
            raise ValueError(f"{name} was not submitted in this step")
        self._advance(self._buckets_until[name])

    def flush(self) -> None:
        self._advance(len(self._buckets))
        self._begin_step()

    def _advance(self, buckets: int) -> None:
        """Work until the first `buckets` buckets are done.

        A turn takes in the results of one bucket, finishes this rank's share of a later one, and
        begins another, later still. Waiting comes first: what is new is sent when the others are
        known to have come this far.
        """
        self._closed = True
        collected, both = (
            self._collected_at_once,
            self._collected_at_once + self._handed_out_at_once,
        )
        while self._done < buckets:
            if self._turn >= both:
                self._take_in()
                self._done += 1
            if collected <= self._turn < len(self._buckets) + collected:
                self._hand_out()
            if self._turn < len(self._buckets):
                self._collect(self._buckets[self._turn])
            self._turn += 1

    def _collect(self, pieces: list[_Piece]) -> None:
        """Send each peer the share that it finishes, and expect everybody's part of mine."""
        shares = np.array_split(self._packed(pieces), len(self._peers) + 1)
        flight = _Flight(pieces, shares, [np.empty_like(shares[self._rank]) for _ in self._peers])
        for peer, arriving in zip(self._peers, flight.arriving, strict=True):
            flight.requests.append(self._comm.Irecv(arriving, peer, _COLLECT))
        for peer in self._peers:
            flight.requests.append(self._comm.Isend(shares[peer], peer, _COLLECT))
        self._collecting.append(flight)

    def _hand_out(self) -> None:
        """Finish my share of the oldest bucket, and exchange finished shares."""
        flight = self._collecting.popleft()
        MPI.Request.Waitall(flight.requests)  # also frees shares[peer] for the results
        mine = flight.shares[self._rank]
        for arrived in flight.arriving:
            mine += arrived
        flight.arriving.clear()
        flight.requests = [
            self._comm.Irecv(flight.shares[peer], peer, _HAND_OUT) for peer in self._peers
        ]
        flight.requests += [self._comm.Isend(mine, peer, _HAND_OUT) for peer in self._peers]
        self._handing_out.append(flight)

    def _take_in(self) -> None:
        flight = self._handing_out.popleft()
        MPI.Request.Waitall(flight.requests)
        self._unpack(flight.shares[0].base, flight.pieces)

    def _packed(self, pieces: list[_Piece]) -> np.ndarray:
        """The bucket's elements of this rank, one after the other."""
        bucket = np.zeros(sum(piece.stop - piece.start for piece in pieces), np.float32)
        at = 0
        for piece in pieces:
            size = piece.stop - piece.start
            if piece.name in self._tensors:
                bucket[at : at + size] = self._tensors[piece.name][piece.start : piece.stop]
            at += size
        return bucket

    def _unpack(self, bucket: np.ndarray, pieces: list[_Piece]) -> None:
        at = 0
        for piece in pieces:
            size = piece.stop - piece.start
            if piece.name in self._tensors:
                self._tensors[piece.name][piece.start : piece.stop] = bucket[at : at + size]
            at += size


def _plan(
    layout: Sequence[tuple[str, int]], elements: int
) -> tuple[list[list[_Piece]], dict[str, int]]:
    """Cut the tensors, laid end to end, every `elements` elements.

    Returns the pieces of each bucket, and by name how many buckets complete that tensor.
    """
    total = sum(length for _, length in layout)
    buckets: list[list[_Piece]] = [[] for _ in range(-(-total // elements))]
    until, at = {}, 0
    for name, length in layout:
        start = 0
        while start < length:
            number, used = divmod(at, elements)
            stop = min(length, start + elements - used)
            buckets[number].append(_Piece(name, start, stop))
            at += stop - start
            start = stop
        until[name] = -(-at // elements)
    return buckets, until
