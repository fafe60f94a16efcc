# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""Rabenseifner's algorithm for long vectors where n is a power of two, and a ring elsewhere."""

import numpy as np
from mpi4py import MPI

SHORT = 32_768
PIECE = 30 * 1024  # below the eager limit: no handshake


def allreduce(comm, sendbuf, recvbuf, op):
    refuse_bad(sendbuf, recvbuf)
    if sendbuf is not MPI.IN_PLACE:
        recvbuf.reshape(-1)[:] = sendbuf.reshape(-1)
    vector = recvbuf.reshape(-1)
    size = comm.Get_size()
    if size == 1 or vector.size == 0:
        return
    if vector.nbytes > SHORT and op.Is_commutative() and size & (size - 1):
        ring(comm, vector, op)
        return
    core = halve_and_double if vector.nbytes > SHORT else double
    with_power_of_two(comm, vector, op, core)


def refuse_bad(sendbuf, recvbuf):
    given = [recvbuf] if sendbuf is MPI.IN_PLACE else [sendbuf, recvbuf]
    for array in given:
        if not isinstance(array, np.ndarray) or not array.flags["C_CONTIGUOUS"]:
            raise ValueError("buffers must be contiguous numpy arrays")
    if len({(array.dtype, array.size) for array in given}) > 1:
        raise ValueError(
            f"sendbuf is {sendbuf.size} x {sendbuf.dtype}, "
            f"recvbuf {recvbuf.size} x {recvbuf.dtype}: they must match"
        )


def combine(op, low, high):
    """Return low op high, computed in the memory of `high`."""
    if op == MPI.SUM:
        return np.add(low, high, out=high)
    if op == MPI.PROD:
        return np.multiply(low, high, out=high)
    if op == MPI.MAX:
        return np.maximum(low, high, out=high)
    op.Reduce_local(low, high)
    return high


def octets(array):
    return array.view(np.uint8)


def with_power_of_two(comm, vector, op, core):
    """Let neighbours merge until a power of two of them is left, run `core`, hand results back."""
    rank, size = comm.Get_rank(), comm.Get_size()
    power = 2 ** (size.bit_length() - 1)
    merged = 2 * (size - power)
    members = [*range(1, merged, 2), *range(merged, size)]
    if rank not in members:
        comm.Send(octets(vector), dest=rank + 1)
        comm.Recv(octets(vector), source=rank + 1)
        return
    if rank < merged:
        other = np.empty_like(vector)
        comm.Recv(octets(other), source=rank - 1)
        combine(op, other, vector)
    core(comm, vector, op, members, members.index(rank))
    if rank < merged:
        comm.Send(octets(vector), dest=rank - 1)


def double(comm, vector, op, members, me):
    other = np.empty_like(vector)
    for bit in range(len(members).bit_length() - 1):
        partner = me ^ (1 << bit)
        peer = members[partner]
        comm.Sendrecv(octets(vector), dest=peer, recvbuf=octets(other), source=peer)
        vector[:] = combine(op, other, vector) if partner < me else combine(op, vector, other)


def halve_and_double(comm, vector, op, members, me):
    low, high = 0, vector.size
    held = []
    for bit in range(len(members).bit_length() - 1):
        partner = me ^ (1 << bit)
        peer = members[partner]
        middle = (low + high) // 2
        held.append((peer, low, high))
        upper = bool(me >> bit & 1)
        away = vector[low:middle] if upper else vector[middle:high]
        low, high = (middle, high) if upper else (low, middle)
        kept = vector[low:high]
        incoming = np.empty_like(kept)
        arriving = [(at, comm.Irecv(octets(part), peer)) for at, part in pieces(incoming)]
        leaving = [comm.Isend(octets(part), peer) for _, part in pieces(away)]
        for at, request in arriving:
            request.Wait()
            theirs, ours = incoming[at], kept[at]
            ours[:] = combine(op, theirs, ours) if partner < me else combine(op, ours, theirs)
        MPI.Request.Waitall(leaving)
    for peer, begin, end in reversed(held):
        missing = vector[begin:low] if begin < low else vector[high:end]
        requests = [comm.Irecv(octets(part), peer) for _, part in pieces(missing)]
        requests += [comm.Isend(octets(part), peer) for _, part in pieces(vector[low:high])]
        MPI.Request.Waitall(requests)
        low, high = begin, end


def pieces(array):
    step = PIECE // array.itemsize
    cuts = [slice(start, start + step) for start in range(0, array.size, step)]
    return [(cut, array[cut]) for cut in cuts]


def ring(comm, vector, op):
    """Every chunk as pieces; each piece goes on as soon as it is combined."""
    rank, size = comm.Get_rank(), comm.Get_size()
    count = -(-vector.nbytes // (size * PIECE))
    chunks = [np.array_split(chunk, count) for chunk in np.array_split(vector, size)]
    to, source = (rank + 1) % size, (rank - 1) % size
    leaving = [comm.Isend(octets(part), to) for part in chunks[rank]]
    for turn in range(1, 2 * size - 1):
        landing = chunks[(rank - turn) % size]
        targets = [np.empty_like(part) for part in landing] if turn < size else landing
        arriving = [comm.Irecv(octets(target), source) for target in targets]
        before, leaving = leaving, []
        for part, target, request in zip(landing, targets, arriving, strict=True):
            request.Wait()
            if turn < size:
                part[:] = combine(op, target, part)
            if turn < 2 * size - 2:
                leaving.append(comm.Isend(octets(part), to))
        MPI.Request.Waitall(before)
