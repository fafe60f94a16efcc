# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""A ring in which no round waits for the one before; rank order by a direct reduce-scatter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

# A message up to Open MPI's eager limit for TCP (64 KiB with its header) leaves at once. A longer
# one first asks for permission, and the answer queues behind whatever the peer is sending.
SHORT_BYTES = 60 * 1024
SEGMENT_BYTES = 30 * 1024
WINDOW = 32  # receives posted ahead, so that segments land in place instead of being buffered
TAG = 3

# fold(left, right) computes right = left op right, `left` being the lower ranks' share: the
# argument order of MPI_Reduce_local.
Fold = Callable[[np.ndarray, np.ndarray], None]


def allreduce(
    comm: MPI.Intracomm, sendbuf: np.ndarray | MPI.InPlaceType, recvbuf: np.ndarray, op: MPI.Op
) -> None:
    """Combine `sendbuf` of all ranks with `op` into `recvbuf` of every rank."""
    _check_buffers(sendbuf, recvbuf)
    work = recvbuf.reshape(-1)  # contiguous, hence a view
    if sendbuf is not MPI.IN_PLACE:
        work[:] = sendbuf.reshape(-1)
    if comm.Get_size() == 1 or work.size == 0:
        return
    fold = _fold_for(op)
    if work.nbytes <= SHORT_BYTES:
        _recursive_doubling(comm, work, fold)
        return
    chunks = np.array_split(work, comm.Get_size())
    if op.Is_commutative():
        _ring(comm, chunks, fold)
    else:
        _reduce_scatter_in_rank_order(comm, chunks, fold)
        _ring(comm, chunks, None)


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


def _ring(comm: MPI.Intracomm, chunks: list[np.ndarray], fold: Fold | None) -> None:
    """In round t rank r sends chunk r - t to its right: n-1 rounds that fold, n-1 that copy.

    Without `fold` only the copying half runs; rank r must then hold chunk r + 1 finished.

    No round waits for the one before it. Chunks travel as segments, and message m, once folded,
    goes out as message m + per_chunk: the link has a whole chunk queued while the next segment
    arrives, which hides latency, the folding, and neighbours that are briefly late.
    """
    rank, n = comm.Get_rank(), comm.Get_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    per_chunk = -(-chunks[0].nbytes // SEGMENT_BYTES)
    segments = [np.array_split(chunk, per_chunk) for chunk in chunks]
    first_round = 0 if fold else n - 1
    messages = (2 * n - 2 - first_round) * per_chunk
    folded = messages - (n - 1) * per_chunk
    window = min(WINDOW, per_chunk)
    arrivals = [np.empty_like(segments[0][0]) for _ in range(window if fold else 0)]
    receives: deque[tuple[np.ndarray, MPI.Request]] = deque()
    sends: list[MPI.Request] = []

    def segment(message: int) -> np.ndarray:
        """What this rank sends as `message`; its left neighbour sent it `per_chunk` earlier."""
        return segments[(rank - first_round - message // per_chunk) % n][message % per_chunk]

    def post_receive(message: int) -> None:
        target = segment(message + per_chunk)
        if message < folded:
            target = arrivals[message % window][: target.size]
        elif fold:
            sends[message - folded].Wait()  # it read this memory; MPI must be done with it
        receives.append((target, comm.Irecv(_raw(target), left, TAG)))

    for message in range(window):
        post_receive(message)
    for message in range(per_chunk):
        sends.append(comm.Isend(_raw(segment(message)), right, TAG))
    for message in range(messages):
        arrived, request = receives.popleft()
        request.Wait()
        forward = message + per_chunk
        if fold and message < folded:
            fold(arrived, segment(forward))
        if forward < messages:
            sends.append(comm.Isend(_raw(segment(forward)), right, TAG))
        if message + window < messages:
            post_receive(message + window)
    MPI.Request.Waitall(sends)


def _reduce_scatter_in_rank_order(
    comm: MPI.Intracomm, chunks: list[np.ndarray], fold: Fold
) -> None:
    """Leave chunk r + 1 finished on rank r, folded as x0 op x1 op ... op x(n-1).

    A ring starts every chunk at a different rank, which a non-commutative operation does not
    allow. Here each owner gets its chunk from all ranks directly: the same bytes as the ring, but
    n chunks of memory and n-1 peers sending to one at once.
    """
    rank, n = comm.Get_rank(), comm.Get_size()
    mine = chunks[(rank + 1) % n]
    shares = [np.empty_like(mine) for _ in range(n)]
    shares[rank][:] = mine
    others = [(rank + distance) % n for distance in range(1, n)]
    requests = [comm.Irecv(_raw(shares[peer]), peer, TAG) for peer in others]
    requests += [comm.Isend(_raw(chunks[(peer + 1) % n]), peer, TAG) for peer in others]
    MPI.Request.Waitall(requests)
    for peer in reversed(range(n - 1)):
        fold(shares[peer], shares[n - 1])
    mine[:] = shares[n - 1]
