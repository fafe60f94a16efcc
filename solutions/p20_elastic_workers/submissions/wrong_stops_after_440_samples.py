# /// script
# [tool.distlab]
# outcome = "failed"
# check = "test_survivors_go_on_when_a_member_dies"
# says = "each sample once in its epoch"
# ///
"""A limit from debugging was left in: training ends after 440 samples, before anybody is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from model import State, Work
from mpi4py import MPI

LETTER = 1  # to a spare: the state, and join; empty: training is over
CREW = 2
# How long a spare sleeps between two looks: much less than a step, and the processor is free.
SPARE_POLL_S = 0.001


def train(
    comm: MPI.Intracomm,
    work: Work,
    state: State,
    gradient: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> dict[int, tuple[int, ...]]:
    """Train until all epochs are through, whoever dies or joins. See stub.py."""
    return _Rank(comm, work, state, gradient).train()


class _Rank:
    """One rank, member or spare. world: communicator of `living`; crew: of `members`, None on a
    spare. Both lists have ranks in `comm`, rising, as the ranks of the two communicators do."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        work: Work,
        state: State,
        gradient: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        self.comm, self.work, self.state, self.gradient = comm, work, state, gradient
        self.world, self.living = comm, list(range(comm.Get_size()))
        self.rank = comm.Get_rank()
        self.plan = dict(work.plan)
        self.settled = 0  # the last step whose entry of the plan has been carried out here
        self.crew: MPI.Intracomm | None = None
        self.members: list[int] = []
        self.commits: dict[int, tuple[int, ...]] = {}
        self.order = work.order(0)

    def train(self) -> dict[int, tuple[int, ...]]:
        self._form(self.plan[0])
        while self.crew is not None or self._wait_to_join():
            if self.state.epoch == self.work.epochs or self._seen() >= 440:
                self._release_spares()
                break
            if self.state.step in self.plan and self.state.step != self.settled:
                self._resize(self.plan[self.state.step])
            else:
                self._step()
        return self.commits

    def _seen(self) -> int:
        return self.state.epoch * self.work.samples + self.state.position

    # A step

    def _step(self) -> None:
        """Try one step; commit it everywhere or nowhere."""
        assert self.crew is not None
        start = self.state.position
        numbers = self.order[start : start + self.work.per_rank * len(self.members)]
        own = np.array_split(numbers, len(self.members))[self.crew.Get_rank()]
        total = np.zeros_like(self.state.params)
        mine = self.gradient(self.state.params, own) if len(own) else np.zeros_like(total)
        try:
            self.crew.Allreduce(np.ascontiguousarray(mine, np.float64), total)
            done = True
        except MPI.Exception:
            # Others may wait in the collective for somebody who has left it by this exception.
            self.crew.Revoke()
            done = False
        if self._all_agree(done):
            self._commit(total, len(numbers))
        else:
            self._shrink()

    def _all_agree(self, done: bool) -> bool:
        """The same answer on all members that are left; no when somebody has died meanwhile."""
        assert self.crew is not None
        try:
            return bool(self.crew.Agree(int(done)))
        except MPI.Exception:
            return False

    def _commit(self, total: np.ndarray, batch: int) -> None:
        state, work = self.state, self.work
        rate = work.rate * batch / work.base_batch
        # The velocity contains the rate it was made with (Goyal et al. 2017, section 3).
        state.velocity *= work.momentum * (rate / state.rate if state.rate else 0.0)
        state.velocity += rate / batch * total
        state.params -= state.velocity
        self.commits[state.step] = tuple(self.members)
        state.rate = rate
        state.step += 1
        state.position += batch
        if state.position == work.samples:
            state.epoch, state.position = state.epoch + 1, 0
            self.order = work.order(state.epoch)

    # Changes of membership

    def _shrink(self) -> None:
        """Go on without the dead. Should another die meanwhile, the next step finds out.

        Spares leave the dead behind as well, because MPI makes no new communicator out of one that
        has dead members. They learn of it by the revocation.
        """
        assert self.crew is not None
        self.crew = self.crew.Shrink()
        self.members = self._ranks_of(self.crew)
        self.world.Revoke()
        self._shrink_world()

    def _shrink_world(self) -> None:
        self.world = self.world.Shrink()
        self.living = self._ranks_of(self.world)

    def _ranks_of(self, group_comm: MPI.Intracomm) -> list[int]:
        """Ranks in `comm` of a communicator's ranks."""
        group = group_comm.Get_group()
        own = list(range(group.Get_size()))
        return list(MPI.Group.Translate_ranks(group, own, self.comm.Get_group()))

    def _resize(self, planned: Sequence[int]) -> None:
        """Carry out an entry of the plan: the lowest member sends newcomers the state."""
        target = [rank for rank in self.living if rank in planned]
        if self.rank == self.members[0]:
            letter = self._letter(target)
            for rank in target:
                if rank not in self.members:
                    self.world.Send(letter, self.living.index(rank), LETTER)
        self.settled = self.state.step
        self._form(target)

    def _form(self, members: Sequence[int]) -> None:
        """Make the crew anew; only its members have one."""
        self.crew, self.members = None, []
        if self.rank in members:
            self.members = list(members)
            inside = [self.living.index(rank) for rank in members]
            self.crew = self.world.Create_group(self.world.Get_group().Incl(inside), CREW)

    def _letter(self, members: Sequence[int]) -> np.ndarray:
        """All that a newcomer must know, in one message."""
        state = self.state
        head = [state.rate, state.step, state.epoch, state.position]
        member = [float(rank in members) for rank in range(self.comm.Get_size())]
        return np.concatenate([head, member, state.params, state.velocity])

    def _wait_to_join(self) -> bool:
        """Wait until a member writes. False when training is over."""
        status = MPI.Status()
        while not self._somebody_writes(status):
            time.sleep(SPARE_POLL_S)
        state, size = self.state, self.comm.Get_size()
        letter = np.empty(4 + size + 2 * state.params.size)
        self.world.Recv(letter, status.Get_source(), LETTER, status)
        if not status.Get_count(MPI.DOUBLE):
            return False
        head, member, rest = np.split(letter, [4, 4 + size])
        state.rate = float(head[0])
        state.step, state.epoch, state.position = (int(value) for value in head[1:])
        state.params[:], state.velocity[:] = np.split(rest, 2)
        self.order, self.settled = self.work.order(state.epoch), state.step
        self._form(np.flatnonzero(member).tolist())
        return True

    def _somebody_writes(self, status: MPI.Status) -> bool:
        """Look once. Keeps up with the members, who revoke the world when one of them has died."""
        try:
            return bool(self.world.Iprobe(MPI.ANY_SOURCE, LETTER, status))
        except MPI.Exception:
            if self.world.Is_revoked():
                self._shrink_world()
            else:
                # The letter might have been the dead one's. No: the living write another.
                self.world.Ack_failed()
            return False

    def _release_spares(self) -> None:
        """Tell those who wait that no letter will come."""
        if self.rank == self.members[0]:
            for at, rank in enumerate(self.living):
                if rank not in self.members:
                    self.world.Send(np.empty(0), at, LETTER)
