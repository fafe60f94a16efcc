# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_a_planned_resize_consumes_each_sample_once"
# says = "in the parameters of rank"
# ///
"""Broadcasts the state from rank 0 of the new group, as DDP does: it may be the one that joins."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from model import State, Work
from mpi4py import MPI

# Who dies between its first and last word to a new group keeps the others waiting: for its address
# as long as this, for a connection to somebody who has given up already five times as long (gloo).
FORM = timedelta(seconds=0.5)
# Deaths are told by sockets, not by time. This limit of a collective is for the rest: without it
# one of some 330 trials hung. Should it be too short for a slow gradient, it is doubled each time.
PATIENCE_S = 2.0
EVER = timedelta(days=1)
CONNECT_S = 1.0
POLL_S = 0.005


def train(
    comm: MPI.Intracomm,
    work: Work,
    state: State,
    gradient: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> dict[int, tuple[int, ...]]:
    """Train until all epochs are through, whoever dies or joins. See stub.py."""
    return _Rank(comm, work, state, gradient).train()


def _exchange(comm: MPI.Intracomm, own: object) -> dict[int, Any]:
    """Tell everybody who lives `own`, and hear theirs. A dead rank is left out."""
    heard: dict[int, Any] = {}
    others = [rank for rank in range(comm.Get_size()) if rank != comm.Get_rank()]
    # Twice: what MPI has accepted it may send at a later call only, and there will be none. The
    # second message travels at once, over a connection that is there; whoever has it was heard.
    for _ in range(2):
        heard = {}
        sends = []
        for rank in others:
            try:
                sends.append(comm.isend(own, rank))
            except MPI.Exception:
                continue
        for rank in others:
            try:
                heard[rank] = comm.recv(source=rank)
            except MPI.Exception:
                continue
        for send in sends:
            try:
                send.wait()
            except MPI.Exception:
                continue
    return heard


class _Rank:
    """One rank, member or spare. members: of the group, or who is to form the next one. store: the
    own one, at which others meet if this rank is their lowest, and letters wait for it as a spare.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        work: Work,
        state: State,
        gradient: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        self.work, self.state, self.gradient = work, state, gradient
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        host = socket.gethostbyname(socket.gethostname())  # gloo listens there as well
        self.store = dist.TCPStore(host, 0, is_master=True, timeout=EVER, wait_for_workers=False)
        self.addresses = _exchange(comm, (host, self.store.port))
        self.dead = set(range(self.size)) - {self.rank, *self.addresses}
        self.stores = {self.rank: self.store}
        self.group: dist.ProcessGroupGloo | None = None
        self.members = self._planned(0)
        self.meetings = [0] * self.size  # with each rank, as the one who leads or is led
        self.letters = 0
        self.patience_s = PATIENCE_S / 2  # doubled when the first group is formed
        self.tried: tuple[int, ...] | None = None  # members of a step whose outcome is not known
        self.commits: dict[int, tuple[int, ...]] = {}
        self.order = work.order(0)

    def train(self) -> dict[int, tuple[int, ...]]:
        while self.rank in self.members or self._wait_to_join():
            over = self.state.epoch == self.work.epochs
            due = self.members if over else self._planned(self.state.step)
            if self.group is None or self.members != due:
                self._meet()
            elif not over:
                self._step()
            else:
                self._release_spares()
                # After that nobody is behind, and nobody needs this rank any more.
                if self._done(self.group.barrier):
                    break
        self._close_group()
        return self.commits

    def _planned(self, step: int) -> list[int]:
        ranks = [ranks for first, ranks in self.work.plan if first <= step][-1]
        return sorted(set(ranks) - self.dead)

    def _done(self, operation: Callable[..., dist.Work], *args: Any) -> bool:
        """Run a collective. False if a member died, or left the group for that reason."""
        try:
            operation(*args).wait()
        except RuntimeError:  # gloo has no class of its own
            self._close_group()
            return False
        return True

    def _close_group(self) -> None:
        if self.group is not None:
            self.group.shutdown()
            self.group = None

    # A step

    def _step(self) -> None:
        start = self.state.position
        numbers = self.order[start : start + self.work.per_rank * len(self.members)]
        own = np.array_split(numbers, len(self.members))[self.members.index(self.rank)]
        total = np.zeros_like(self.state.params)
        if len(own):
            total += self.gradient(self.state.params, own)
        self.tried = tuple(self.members)
        assert self.group is not None
        if self._done(self.group.allreduce, [torch.from_numpy(total)]):
            self._commit(total, len(numbers))

    def _commit(self, total: np.ndarray, batch: int) -> None:
        state, work = self.state, self.work
        rate = work.rate * batch / work.base_batch
        # The velocity contains the rate it was made with (Goyal et al. 2017, section 3).
        state.velocity *= work.momentum * (rate / state.rate if state.rate else 0.0)
        state.velocity += rate / batch * total
        state.params -= state.velocity
        self.commits[state.step] = tuple(self.members)
        self.tried = None
        state.rate = rate
        state.step += 1
        state.position += batch
        if state.position == work.samples:
            state.epoch, state.position = state.epoch + 1, 0
            self.order = work.order(state.epoch)

    # Changes of membership

    def _meet(self) -> None:
        """Form the next group with the members that live; the lowest of them says who is in it."""
        self._close_group()
        leader = next(rank for rank in self.members if self._lives(rank))
        # Somebody may die meanwhile, the leader perhaps: then those who are left meet again.
        with contextlib.suppress(RuntimeError):
            self._enter(self._lead() if leader == self.rank else self._follow(leader))

    def _lives(self, rank: int) -> bool:
        """Whether a rank's store accepts connections: the system closes it with the process."""
        if rank == self.rank:
            return True
        try:
            socket.create_connection(self.addresses[rank], CONNECT_S).close()
        except OSError:
            return False
        return True

    def _store_of(self, rank: int) -> dist.TCPStore:
        if rank not in self.stores:
            wait = timedelta(seconds=CONNECT_S)
            self.stores[rank] = dist.TCPStore(*self.addresses[rank], is_master=False, timeout=wait)
            self.stores[rank].set_timeout(EVER)
        return self.stores[rank]

    def _standing(self) -> list[float]:
        return [self.state.step, self.state.epoch, self.state.position, self.state.rate]

    def _follow(self, leader: int) -> dict[str, Any]:
        store, self.meetings[leader] = self._store_of(leader), self.meetings[leader] + 1
        meeting = f"{self.rank} {self.meetings[leader]}"
        store.set(f"here {meeting}", json.dumps(self._standing()))
        return json.loads(store.get(f"word {meeting}"))

    def _lead(self) -> dict[str, Any]:
        """Wait for all members but the dead; tell them, and who joins, what the next group is."""
        here, missing = {self.rank: self._standing()}, set(self.members) - {self.rank}
        while missing:
            for rank in sorted(missing):
                key = f"here {rank} {self.meetings[rank] + 1}"
                if self.store.check([key]):
                    here[rank] = json.loads(self.store.get(key))
                    self.meetings[rank] += 1
                elif self._lives(rank):
                    continue
                else:
                    self.dead.add(rank)
                missing.remove(rank)
            time.sleep(POLL_S)
        self.meetings[self.rank] += 1
        word = self._next_group(here)
        for rank in {*here, *word["members"]} - {self.rank}:
            if rank in here:
                self.store.set(f"word {rank} {self.meetings[rank]}", json.dumps(word))
            else:
                self._write_to(rank, word)
        return word

    def _next_group(self, here: dict[int, list[float]]) -> dict[str, Any]:
        """Who is in the plan, who must still be sent the last step, and where training stands."""
        furthest = max(here.values())
        over = furthest[1] == self.work.epochs
        due = set(here if over else self._planned(int(furthest[0])))
        ahead = {rank for rank in here if here[rank] == furthest}
        members = due | (set(here) - ahead)
        in_vain = sorted(members) == self.members  # nobody has died
        return {
            "name": f"group {self.meetings[self.rank]}",
            "leader": self.rank,
            "members": sorted(members),
            "dead": sorted(self.dead),
            "standing": furthest,
            "send": not members <= ahead,
            "patience_s": self.patience_s * (2 if in_vain else 1),
        }

    def _enter(self, word: dict[str, Any]) -> None:
        self.members, self.dead = word["members"], set(word["dead"])
        self.patience_s = word["patience_s"]
        if self.rank not in self.members:
            return
        store = dist.PrefixStore(word["name"], self._store_of(word["leader"]))
        place, size = self.members.index(self.rank), len(self.members)
        # Not init_process_group: it counts the groups of a process, those that failed as well, and
        # ranks that have counted differently never meet.
        self.group = dist.ProcessGroupGloo(store, place, size, FORM)
        self.group._set_default_timeout(timedelta(seconds=self.patience_s))
        if word["send"]:
            letter = torch.from_numpy(self._letter())
            source = dist.BroadcastOptions()
            source.rootRank = 0
            if self._done(self.group.broadcast, [letter], source):
                self._take_over(word["standing"], letter.numpy())

    def _letter(self) -> np.ndarray:
        return np.concatenate([self.state.params, self.state.velocity])

    def _take_over(self, standing: list[float], letter: np.ndarray) -> None:
        state, rate = self.state, standing[3]
        step, epoch, position = (int(value) for value in standing[:3])
        if self.tried is not None and step != state.step:  # it was committed
            self.commits[state.step], self.tried = self.tried, None
        state.rate, state.step, state.epoch, state.position = rate, step, epoch, position
        state.params[:], state.velocity[:] = np.split(letter, 2)
        if epoch < self.work.epochs:
            self.order = self.work.order(epoch)

    # Spares

    def _wait_to_join(self) -> bool:
        """Wait at the own store, which costs no network. False when training is over."""
        self._close_group()
        self.letters += 1
        word = json.loads(self.store.get(f"letter {self.letters}"))
        if word is None:
            return False
        # Where the group is not formed, those who were to be in it meet.
        with contextlib.suppress(RuntimeError):
            self._enter(word)
        return True

    def _write_to(self, spare: int, word: dict[str, Any] | None) -> None:
        store = self._store_of(spare)
        store.set(f"letter {store.add('letters', 1)}", json.dumps(word))

    def _release_spares(self) -> None:
        """Tell those who wait that training is over. Twice does no harm, should the lowest die."""
        if self.rank == self.members[0]:
            for spare in set(range(self.size)) - {*self.members} - self.dead:
                self._write_to(spare, None)
