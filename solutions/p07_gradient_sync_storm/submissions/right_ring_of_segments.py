# /// script
# [tool.distlab]
# outcome = "passed"
# score = 0.94
# ///
"""A ring for each block, as many blocks under way as the window allows."""

import numpy as np
from mpi4py import MPI


class GradientSynchronizer:
    """A ring that never stops: segment after segment goes round, several at a time.

    The layout is one long vector in forward order, cut into blocks of one chunk for each rank.
    `windows` maps a chunk to the submitted arrays it covers.
    """

    def __init__(self, comm, layout, fusion_bytes, window_bytes):
        self.comm, self.rank, self.n = comm, comm.Get_rank(), comm.Get_size()
        self.names = [name for name, _ in layout]
        self.size = dict(layout)
        self.ends = np.cumsum([0] + [length for _, length in layout])
        self.at = dict(zip(self.names, self.ends, strict=False))
        self.total = int(self.ends[-1])
        self.block = max(self.n, fusion_bytes // 4)
        self.count = -(-self.total // self.block)
        # A block has one chunk of this rank on the wire at any time. Half of the window does:
        # all blocks under way advance together, and the first should not wait for too many.
        self.width = max(1, window_bytes // (8 * -(-self.block // self.n)))
        self.mine, self.blocks, self.next, self.open = {}, {}, 0, True

    def submit(self, name, tensor):
        if not self.open:
            raise ValueError("the step is closed until flush")
        if name not in self.size:
            raise ValueError(f"no tensor {name} in the layout")
        if name in self.mine:
            raise ValueError(f"{name} came twice")
        if tensor.dtype != np.dtype("f4") or len(tensor) != self.size[name]:
            raise ValueError(f"{name}: expected {self.size[name]} x float32")
        self.mine[name] = tensor

    def wait(self, name):
        if name not in self.mine:
            raise ValueError(f"{name} is not in this step")
        self.open = False
        last = int(self.at[name]) + self.size[name]
        self.drive(-(-last // self.block))

    def flush(self):
        self.open = False
        self.drive(self.count)
        self.mine, self.blocks, self.next, self.open = {}, {}, 0, True

    def drive(self, target):
        """Run rounds until blocks 0 to target - 1 are back in their tensors."""
        finished = self.next - len(self.blocks)
        while finished < target:
            while len(self.blocks) < self.width and self.next < self.count:
                self.blocks[self.next] = self.start(self.next)
                self.next += 1
            for number in list(self.blocks):
                if self.round(self.blocks[number]):
                    self.move(number, self.blocks.pop(number)["data"], back=True)
                    finished += 1

    def start(self, number):
        length = min(self.block, self.total - number * self.block)
        data = np.zeros(length, np.float32)
        self.move(number, data, back=False)
        state = {"data": data, "chunks": np.array_split(data, self.n), "turn": 0, "number": number}
        self.post(state)
        return state

    def post(self, state):
        turn, chunks = state["turn"], state["chunks"]
        if turn == 2 * (self.n - 1):
            return
        outgoing = chunks[(self.rank - turn) % self.n]
        target = chunks[(self.rank - turn - 1) % self.n]
        state["arriving"] = np.empty_like(target)
        tag = state["number"] % 30_000
        state["requests"] = [
            self.comm.Irecv(state["arriving"], (self.rank - 1) % self.n, tag),
            self.comm.Isend(outgoing, (self.rank + 1) % self.n, tag),
        ]

    def round(self, state):
        """Finish the round under way and post the next one; True when the block is complete."""
        turn, n = state["turn"], self.n
        if n == 1:
            return True
        MPI.Request.Waitall(state["requests"])
        target = state["chunks"][(self.rank - turn - 1) % n]
        if turn < n - 1:
            target += state["arriving"]
        else:
            target[:] = state["arriving"]
        state["turn"] += 1
        self.post(state)
        return state["turn"] == 2 * (n - 1)

    def move(self, number, data, back):
        begin = number * self.block
        first = int(np.searchsorted(self.ends, begin, side="right")) - 1
        for position in range(first, len(self.names)):
            start = int(self.ends[position])
            if start >= begin + data.size:
                return
            tensor = self.mine.get(self.names[position])
            low, high = max(start, begin), min(int(self.ends[position + 1]), begin + data.size)
            if tensor is None or high <= low:
                continue
            inside, outside = slice(low - begin, high - begin), slice(low - start, high - start)
            if back:
                tensor[outside] = data[inside]
            else:
                data[inside] = tensor[outside]
