"""Cases of problem 01: drawn from a random stream, and read back from what the ranks hand in.

Gradients are whole numbers drawn in the grader. Parameters that are a sum of them tell which of
them they contain: a worker need not be believed about what it was given.
"""

from dataclasses import dataclass

import numpy as np

from cluster.interface import Unfit
from grader.compare import explain, output
from grader.ended import Failed

LOST = "an update overwritten by another, applied twice, or a reply sent while the shard changes."
ROW = "print who pushed and who pulled, in the order in which the server saw it."


def cuts(size, servers):
    """Start and end of each server's shard."""
    parts = np.array_split(np.arange(size), servers)
    ends = np.cumsum([len(part) for part in parts])
    return list(zip(ends - [len(part) for part in parts], ends, strict=True))


@dataclass(frozen=True)
class Sums:
    """A case whose gradients are drawn beforehand and added up. tables[w]: (steps, size), the
    gradients of worker w. Element w of every shard is changed by worker w alone."""

    servers: int
    start: np.ndarray
    tables: list

    @property
    def workers(self):
        return range(len(self.tables))

    def inputs(self):
        ranks = [{"start": self.start[a:b]} for a, b in cuts(self.start.size, self.servers)]
        ranks += [{"start": np.empty(0)} for _ in self.tables]
        tables = [np.empty(0)] * self.servers + self.tables
        return [{**rank, "table": table} for rank, table in zip(ranks, tables, strict=True)]

    def params(self, staleness, **more):
        return {
            "servers": self.servers,
            "size": self.start.size,
            "staleness": staleness,
            "steps": [len(table) for table in self.tables],
            "gradients": "table",
            "update": "add",
            **more,
        }

    def contained(self, shard, server, where):
        """How many gradients of each worker a shard contains. Raises Failed unless it is the start
        and, of every worker, its first gradients, each once and whole."""
        begin, end = cuts(self.start.size, self.servers)[server]
        want, counts = self.start[begin:end].copy(), []
        for worker, table in enumerate(self.tables):
            sums = np.concatenate([[0], np.cumsum(table[:, begin + worker])])
            value = shard[worker] - self.start[begin + worker]
            counts.append(int(np.searchsorted(sums, value, side="right")) - 1)
            want += table[: counts[-1], begin:end].sum(axis=0) if counts[-1] > 0 else 0
        if not np.array_equal(shard, want):
            at = int(np.argmax(shard != want))
            wrong = f"{shard[at]:.17g} at element [{begin + at}]"
            raise Failed(explain("whole gradients, each once", wrong, where, LOST, ROW))
        return counts

    def pulled(self, run, lost=()):
        """pulled[w][t, server, v]: gradients of worker v in what worker w computed its step t
        from. Raises Failed when a step is missing or its parameters are no sum of gradients."""
        pulled = {}
        for worker in self.workers:
            rank = self.servers + worker
            if rank in lost:
                continue
            seen = given(run, rank, len(self.tables[worker]), self.start.size)
            pulled[worker] = np.array(
                [
                    [
                        self.contained(row[a:b], server, f"in what rank {rank} got for step {step}")
                        for server, (a, b) in enumerate(cuts(self.start.size, self.servers))
                    ]
                    for step, row in enumerate(seen)
                ]
            ).reshape(-1, self.servers, len(self.tables))
            self._must_contain_its_own(pulled[worker], worker, rank)
        return pulled

    def _must_contain_its_own(self, pulled, worker, rank):
        for step, counts in enumerate(pulled):
            if counts[:, worker].min() < step:
                server = int(counts[:, worker].argmin())
                raise Failed(
                    explain(
                        f"all {step} gradients that it has pushed itself",
                        f"{counts[server, worker]} of them",
                        f"in what rank {rank} got from server {server} for step {step}",
                        "the pull overtakes the push, or is sent before it.",
                        "answer a pull only when that worker's push before it has been applied.",
                    )
                )

    def final(self, run, lost=()):
        """final[server][w]: gradients of each worker in the shards at the end. Raises Failed
        unless those that were not lost are there with all of theirs."""
        final = []
        for server in range(self.servers):
            shard = output(run.outputs[server], "shard", server)
            begin, end = cuts(self.start.size, self.servers)[server]
            if shard.shape != (end - begin,):
                raise Failed(f"server {server} handed in a shard of shape {shard.shape}")
            counts = self.contained(shard, server, f"in the shard of server {server} at the end")
            for worker in self.workers:
                steps = len(self.tables[worker])
                if self.servers + worker not in lost and counts[worker] != steps:
                    got = f"{counts[worker]} of them"
                    where = f"in the shard of server {server} at the end"
                    want = f"all {steps} gradients of rank {self.servers + worker}"
                    raise Failed(explain(want, got, where, LOST, ROW))
            final.append(counts)
        return np.array(final)


def given(run, rank, steps, size):
    """What a worker was given in each step: (steps, size). Raises Failed unless it called grad_fn
    once for each step, in order."""
    calls = output(run.outputs[rank], "calls", rank).tolist()
    if calls != list(range(steps)):
        raise Failed(
            f"expected grad_fn to be called for steps 0 to {steps - 1} in order, got "
            f"{len(calls)} calls ({str(calls[:8])[1:-1]} ...) on rank {rank}."
        )
    seen = output(run.outputs[rank], "seen", rank)
    if seen.shape != (steps, size):
        raise Failed(f"rank {rank} handed in parameters of shape {seen.shape}")
    return seen


def draw_sums(rng, servers, steps, size):
    """A case of `Sums`: steps[w] gradients from worker w, of whole numbers."""
    workers = len(steps)
    tables = []
    for worker, count in enumerate(steps):
        table = rng.integers(-1000, 1000, (count, size)).astype(np.float64)
        for begin, _ in cuts(size, servers):
            table[:, begin : begin + workers] = 0
            table[:, begin + worker] = rng.integers(1, 1000, count)
        tables.append(table)
    return Sums(servers, rng.integers(-1000, 1000, size).astype(np.float64), tables)


def gaps(pulled, worker, other):
    """How many gradients of `other` each step of `worker` was behind: 0 when all of the same
    steps were there. The largest over the servers."""
    steps = np.arange(len(pulled[worker]))
    return steps - pulled[worker][:, :, other].min(axis=1)


def must_have_survived(case, run, dead):
    """Raise Failed unless the others did all their steps, what had been pulled of a dead worker
    is there to the end, and the servers name the dead ones."""
    pulled, final = case.pulled(run, lost=dead), case.final(run, lost=dead)
    for server in range(case.servers):
        for rank in sorted(dead):
            worker = rank - case.servers
            if final[server, worker] == len(case.tables[worker]):
                raise Unfit(f"rank {rank} had done all its steps before it could be killed")
            most = max(int(rows[:, server, worker].max()) for rows in pulled.values())
            if final[server, worker] < most:
                raise Failed(
                    f"expected the {most} gradients of rank {rank} that others had pulled, got "
                    f"{final[server, worker]} of them in the shard of server {server} at the end."
                )
        lost = output(run.outputs[server], "lost", server).tolist()
        if lost != sorted(dead):
            raise Failed(
                f"expected serve to return {sorted(dead)}, got {lost} on server {server}.\n"
                "Usual cause: an MPI.Exception that was caught and not noted, or noted twice.\n"
                "Next step: return the ranks in comm of the workers that were killed."
            )
