"""Sum thousands of small gradients over all ranks: fused, in forward order, and paced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI


class GradientSynchronizer:
    """Adds up the gradients of one model over the ranks of a communicator, step after step.

    A step is: any number of `submit`, then any number of `wait`, then one `flush`. The first `wait`
    or the `flush` closes the step. What a rank has not submitted by then counts as zeros there, so
    a rank may leave tensors out, each rank others. One synchronizer serves many steps.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        layout: Sequence[tuple[str, int]],
        fusion_bytes: int,
        window_bytes: int,
    ) -> None:
        """All ranks construct together, with the same arguments.

        comm: 1 to 4 ranks. Nobody else communicates on it. Every call of MPI is allowed.
        layout: (name, number of elements) of every tensor, in the order in which the next forward
            pass needs them. Lengths are 0 to 4,000,000.
        fusion_bytes: the most gradient bytes that travel as one buffer. A longer tensor goes in
            pieces.
        window_bytes: the most bytes that this rank may have sent without knowing that they
            have arrived, all peers taken together: what links and queue hold without a loss.
        """
        raise NotImplementedError

    def submit(self, name: str, tensor: np.ndarray) -> None:
        """Hand over this rank's gradient `name`: float32, one-dimensional, contiguous, writable.

        Ranks submit in different orders and at different times. Does not wait for other ranks. The
        array is the caller's; leave its memory where it is and keep no copy: the sum goes into it.

        Raises ValueError, and changes nothing, when the layout has no such name, when length or
        dtype do not fit, when the name was submitted in this step already, or when the step is
        closed.
        """
        raise NotImplementedError

    def wait(self, name: str) -> None:
        """Return once the array submitted as `name` holds the sum over all ranks.

        All ranks wait for the same name. Takes no longer than what stands before `name` in the
        layout needs. Raises ValueError when this rank has not submitted `name` in this step.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Return once every array submitted in this step holds its sum, and begin the next step.

        Arrays of other ranks' tensors that this rank left out are not touched.
        """
        raise NotImplementedError
