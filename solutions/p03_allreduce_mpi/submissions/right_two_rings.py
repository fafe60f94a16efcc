# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""Two rings in opposite directions for long vectors, Bruck's all-gather for short ones."""

from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI


@dataclass
class Lane:
    """One ring: half of the vector, always passed in one direction."""

    comm: MPI.Comm
    half: np.ndarray
    step: int
    reduce: object
    piece: int = 30 * 1024
    ahead: int = 16
    sends: list = field(default_factory=list)
    landing: dict = field(default_factory=dict)

    def __post_init__(self):
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.count = max(1, -(-self.half.nbytes // (self.size * self.piece)))
        self.parts = [
            np.array_split(chunk, self.count) for chunk in np.array_split(self.half, self.size)
        ]
        self.total = (2 * self.size - 2) * self.count
        self.tag = 7 + self.step

    def part(self, turn, at):
        return self.parts[(self.rank - self.step * turn) % self.size][at]

    def expect(self, number):
        if number >= self.total:
            return
        turn, at = divmod(number, self.count)
        target = self.part(turn + 1, at)
        if turn < self.size - 1:
            target = np.empty_like(target)
        else:
            self.sends[number - (self.size - 1) * self.count].Wait()
        source = (self.rank - self.step) % self.size
        request = self.comm.Irecv(target.view(np.uint8), source, self.tag)
        self.landing[number] = target, request

    def send(self, part):
        dest = (self.rank + self.step) % self.size
        self.sends.append(self.comm.Isend(part.view(np.uint8), dest, self.tag))

    def start(self):
        self.ahead = min(self.ahead, self.count)
        for number in range(self.ahead):
            self.expect(number)
        for at in range(self.count):
            self.send(self.part(0, at))

    def advance(self, number):
        if number >= self.total:
            return
        turn, at = divmod(number, self.count)
        target, request = self.landing.pop(number)
        request.Wait()
        part = self.part(turn + 1, at)
        if turn < self.size - 1:
            self.reduce(target, part)
        if turn < 2 * self.size - 3:
            self.send(part)
        self.expect(number + self.ahead)


class AllReduce:
    def __init__(self, comm, op):
        self.comm, self.op = comm, op
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def reduce(self, low, high):
        """high = low op high"""
        for known, function in ((MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.PROD, np.multiply)):
            if self.op == known:
                function(low, high, out=high)
                return
        self.op.Reduce_local(low, high)

    def run(self, vector):
        if self.size == 1 or vector.size == 0:
            return
        if vector.nbytes <= 16 * 1024:
            self.gather_and_reduce(vector)
        elif not self.op.Is_commutative():
            for begin in range(0, vector.size, 65_536):
                self.gather_and_reduce(vector[begin : begin + 65_536])
        else:
            middle = vector.size // 2
            lanes = [
                Lane(self.comm, vector[:middle], 1, self.reduce),
                Lane(self.comm, vector[middle:], -1, self.reduce),
            ]
            for lane in lanes:
                lane.start()
            for number in range(max(lane.total for lane in lanes)):
                for lane in lanes:
                    lane.advance(number)
            for lane in lanes:
                MPI.Request.Waitall(lane.sends)

    def gather_and_reduce(self, vector):
        """Bruck: after ceil(log2 n) rounds row i holds the vector of rank r + i, for any n."""
        rows = np.empty((self.size, vector.size), vector.dtype)
        rows[0] = vector
        have = 1
        while have < self.size:
            count = min(have, self.size - have)
            dest, source = (self.rank - have) % self.size, (self.rank + have) % self.size
            self.comm.Sendrecv(
                rows[:count].view(np.uint8),
                dest,
                recvbuf=rows[have : have + count].view(np.uint8),
                source=source,
            )
            have += count
        in_order = [rows[(rank - self.rank) % self.size] for rank in range(self.size)]
        result = in_order[-1]
        for row in reversed(in_order[:-1]):
            self.reduce(row, result)
        vector[:] = result


def allreduce(comm, sendbuf, recvbuf, op):
    in_place = sendbuf is MPI.IN_PLACE
    for name, array in [("recvbuf", recvbuf)] + ([] if in_place else [("sendbuf", sendbuf)]):
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} has gaps between its elements (strides {array.strides})")
    if not in_place:
        if (sendbuf.dtype, sendbuf.size) != (recvbuf.dtype, recvbuf.size):
            raise ValueError("sendbuf and recvbuf differ in dtype or size")
        recvbuf.ravel()[...] = sendbuf.ravel()
    AllReduce(comm, op).run(recvbuf.ravel())
