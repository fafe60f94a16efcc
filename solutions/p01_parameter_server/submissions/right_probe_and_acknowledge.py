# /// script
# [tool.distlab]
# outcome = "passed"
# ///
"""Blocks in a probe for anybody instead of polling. A death makes such a probe fail until it is
acknowledged; the failed group tells who it was."""

import numpy as np
from mpi4py import MPI

WANT, GRADIENT, BYE = 11, 12, 13


class Server:
    def __init__(self, comm, servers, shard, apply_update, staleness):
        self.comm, self.shard, self.staleness = comm, shard, staleness
        self.apply_update = apply_update
        self.members = list(range(servers, comm.Get_size()))
        self.applied = dict.fromkeys(self.members, 0)
        self.arrived = {}
        self.parked = []
        self.lost = set()
        self.flying = []

    def run(self):
        buffer = np.empty_like(self.shard)
        status = MPI.Status()
        while self.members:
            try:
                self.comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
                rank, tag = status.Get_source(), status.Get_tag()
                self.comm.Recv(buffer, rank, tag)
            except MPI.Exception:
                self.bury()
            else:
                self.take(rank, tag, buffer)
            self.close_step()
            self.release()
        MPI.Request.Waitall([request for rank, request, _ in self.flying if rank not in self.lost])
        return sorted(self.lost)

    def bury(self):
        self.comm.Ack_failed()
        failed = self.comm.Get_failed()
        everybody = self.comm.Get_group()
        places = list(range(failed.Get_size()))
        for rank in MPI.Group.Translate_ranks(failed, places, everybody):
            if rank in self.members:
                self.members.remove(rank)
                self.lost.add(rank)

    def take(self, rank, tag, gradient):
        if rank in self.lost:
            return
        if tag == WANT:
            self.parked.append(rank)
        elif tag == BYE:
            self.members.remove(rank)
        elif self.staleness == 0:
            self.arrived[rank] = gradient.copy()
        else:
            self.apply_update(self.shard, gradient)
            self.applied[rank] += 1

    def close_step(self):
        if self.staleness != 0 or not self.arrived:
            return
        if all(rank in self.arrived for rank in self.members):
            self.apply_update(self.shard, np.sum(list(self.arrived.values()), axis=0))
            for rank in self.arrived:
                self.applied[rank] += 1
            self.arrived = {}

    def release(self):
        still = []
        for rank in self.parked:
            if rank not in self.members:
                continue
            lead = self.applied[rank] - min(self.applied[member] for member in self.members)
            if rank in self.arrived or (self.staleness is not None and lead > self.staleness):
                still.append(rank)
                continue
            copy = self.shard.copy()
            try:
                self.flying.append((rank, self.comm.Isend(copy, rank), copy))
            except MPI.Exception:
                continue
        self.parked = still
        self.flying = [item for item in self.flying if item[0] in self.lost or not done(item[1])]


def done(request):
    try:
        return request.Test()
    except MPI.Exception:
        return True


def serve(comm, servers, shard, apply_update, staleness):
    return Server(comm, servers, shard, apply_update, staleness).run()


def work(comm, servers, size, grad_fn, steps):
    own = np.array_split(np.arange(size), servers)
    params = np.empty(size)
    for step in range(steps):
        for server in range(servers):
            comm.Send([None, 0, MPI.BYTE], server, WANT)
        for server in range(servers):
            part = np.empty(len(own[server]))
            comm.Recv(part, server)
            params[own[server]] = part
        gradient = grad_fn(params, step)
        for server in range(servers):
            comm.Send(gradient[own[server]], server, GRADIENT)
    for server in range(servers):
        comm.Send([None, 0, MPI.BYTE], server, BYE)
