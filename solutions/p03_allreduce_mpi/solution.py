"""All-reduce from point-to-point messages: recursive doubling when short, direct when long.

A short message costs rounds, a long one costs bytes. Recursive doubling takes log2 n rounds, and
the direct exchange sends 2(n-1)/n of the vector from every rank, the least possible. Both keep rank
order, so one pair of algorithms serves every operation. Messages travel as raw bytes, so a type
that MPI lacks (float16) is no special case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

# A message up to Open MPI's eager limit for TCP (64 KiB with its header) leaves at once. A longer
# one first asks for permission, and the answer queues behind whatever the peer is sending.
SHORT_BYTES = 60 * 1024
# What a rank has under way, (AHEAD + 1) * (n-1) * SEGMENT_BYTES, acts as a window: enough to hide a
# late peer, and too little to fill a switch's queue and lose packets in it.
SEGMENT_BYTES = 30 * 1024
AHEAD = 4
TAG = 3

# fold(left, right) computes right = left op right, `left` being the lower ranks' share: the
# argument order of MPI_Reduce_local.
Fold = Callable[[np.ndarray, np.ndarray], None]


def allreduce(
    comm: MPI.Intracomm, sendbuf: np.ndarray | MPI.InPlaceType, recvbuf: np.ndarray, op: MPI.Op
) -> None:
    """Combine `sendbuf` of all ranks with `op` into `recvbuf` of every rank; see stub.py."""
    _check_buffers(sendbuf, recvbuf)
    work = recvbuf.reshape(-1)  # contiguous, hence a view
    if sendbuf is not MPI.IN_PLACE:
        work[:] = sendbuf.reshape(-1)
    if comm.Get_size() == 1 or work.size == 0:
        return
    fold = _fold_for(op)
    if work.nbytes <= SHORT_BYTES:
        _recursive_doubling(comm, work, fold)
    else:
        _direct_exchange(comm, work, fold)


def _check_buffers(sendbuf: np.ndarray | MPI.InPlaceType, recvbuf: np.ndarray) -> None:
    """Refuse on every rank alike, before a message could leave a peer waiting."""
    buffers = {"recvbuf": recvbuf}
    if sendbuf is not MPI.IN_PLACE:
        buffers["sendbuf"] = sendbuf
    for name, buffer in buffers.items():
        if not isinstance(buffer, np.ndarray):
            raise ValueError(f"{name} is a {type(buffer).__name__}; valid: a numpy array")
        if not buffer.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
    if not recvbuf.flags.writeable:
        raise ValueError("recvbuf is read-only; pass an array that the result can be written to")
    if sendbuf is MPI.IN_PLACE:
        return
    if sendbuf.dtype != recvbuf.dtype:
        raise ValueError(f"sendbuf is {sendbuf.dtype}, recvbuf {recvbuf.dtype}; use one dtype")
    if sendbuf.size != recvbuf.size:
        raise ValueError(f"sendbuf holds {sendbuf.size} elements, recvbuf {recvbuf.size}")
    if np.may_share_memory(sendbuf, recvbuf):
        raise ValueError("sendbuf and recvbuf overlap; pass MPI.IN_PLACE as sendbuf")


def _fold_for(op: MPI.Op) -> Fold:
    # numpy knows every dtype; Reduce_local only those that MPI has a name for.
    for known, ufunc in ((MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MAX, np.maximum)):
        if op == known:
            return lambda left, right: ufunc(left, right, out=right)
    return op.Reduce_local


def _raw(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


def _recursive_doubling(comm: MPI.Intracomm, work: np.ndarray, fold: Fold) -> None:
    """Each round exchanges the whole vector with the rank whose number differs in one more bit.

    After round k a rank holds the result of its own aligned block of 2^k ranks. Partners fold the
    same two operands in the same order, lower block first: ranks stay bit-identical and in order.
    """
    rank, n = comm.Get_rank(), comm.Get_size()
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    mine, theirs = work, np.empty_like(work)
    # n is no power of two: in the first 2 * extra ranks, even ones hand over to their neighbour
    # and wait for the result. Pairing neighbours keeps blocks contiguous, thus rank order.
    paired = rank < 2 * extra
    if paired and rank % 2 == 0:
        comm.Send(_raw(mine), rank + 1, TAG)
        comm.Recv(_raw(mine), rank + 1, TAG)
        return
    if paired:
        comm.Recv(_raw(theirs), rank - 1, TAG)
        fold(theirs, mine)
    place = rank // 2 if paired else rank - extra
    distance = 1
    while distance < power:
        other = place ^ distance
        peer = 2 * other + 1 if other < extra else other + extra
        comm.Sendrecv(_raw(mine), peer, TAG, _raw(theirs), peer, TAG)
        if other < place:
            fold(theirs, mine)
        else:
            fold(mine, theirs)
            mine, theirs = theirs, mine
        distance *= 2
    if paired:
        comm.Send(_raw(mine), rank - 1, TAG)
    if mine is not work:
        work[:] = mine


def _direct_exchange(comm: MPI.Intracomm, work: np.ndarray, fold: Fold) -> None:
    """Reduce-scatter, then all-gather, each in one round in which everybody talks to everybody.

    `work` is cut into blocks, and every block into one segment per rank. A rank collects its
    segment of a block from all others, folds it in rank order, and hands the result to all. Since
    each element is finished on one rank, all ranks hold the same bits.

    AHEAD further blocks are always under way: while one is folded, or waits for a late peer, they
    keep the link busy. This is what makes it fast; block by block it would idle between rounds.
    """
    rank, n = comm.Get_rank(), comm.Get_size()
    # Everybody begins with its right neighbour, so that no rank is everybody's first target.
    peers = [(rank + distance) % n for distance in range(1, n)]
    count = -(-work.nbytes // (n * SEGMENT_BYTES))
    blocks = [np.array_split(block, n) for block in np.array_split(work, count)]
    collecting: deque[tuple[list[np.ndarray], list[MPI.Request]]] = deque()
    handing_out: list[MPI.Request] = []

    def collect(block: list[np.ndarray]) -> None:
        shares = [np.empty_like(block[rank]) for _ in range(n)]
        shares[rank][:] = block[rank]
        requests = [comm.Irecv(_raw(shares[peer]), peer, TAG) for peer in peers]
        requests += [comm.Isend(_raw(block[peer]), peer, TAG) for peer in peers]
        collecting.append((shares, requests))

    def finish(block: list[np.ndarray]) -> None:
        shares, requests = collecting.popleft()
        MPI.Request.Waitall(requests)  # also frees block[peer], which results now overwrite
        for lower in reversed(shares[:-1]):
            fold(lower, shares[-1])
        block[rank][:] = shares[-1]
        handing_out.extend(comm.Irecv(_raw(block[peer]), peer, TAG) for peer in peers)
        handing_out.extend(comm.Isend(_raw(block[rank]), peer, TAG) for peer in peers)

    # All ranks post in the same order, so one tag is enough: MPI keeps messages of a pair in order.
    for step in range(count + AHEAD):
        if step < count:
            collect(blocks[step])
        if step >= AHEAD:
            finish(blocks[step - AHEAD])
    MPI.Request.Waitall(handing_out)
