"""Data-parallel training with bucketed gradient averaging that runs during backward."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist


class BucketedDDP(torch.nn.Module):
    """Wraps a module so that n ranks, each with its own batches, train one model.

    Every rank wraps the same architecture, then trains as on one machine:

        ddp = BucketedDDP(module, group)
        loss = ddp(x, y); loss.backward(); optimizer.step()

    When `backward()` returns, `.grad` of every parameter that requires it holds the mean over the
    ranks, bit-identical on all of them: what one process would have got from n batches.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        process_group: dist.ProcessGroup,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
    ) -> None:
        """Give every rank the parameters and buffers of the group's rank 0, frozen ones included.

        module: on one device; parameters of any shape, in float32 or float64 or both. A parameter
            may be used several times, or be frozen. `self.module` is this very object.
        process_group: the ranks that take part; not always all of the job. Communicate over it.
        bucket_cap_mb: MiB (2^20 bytes) that a bucket holds at most; may be a fraction. Buckets are
            filled in reverse order of `module.parameters()`, by parameters that require a
            gradient, each once. A bucket is closed when the next parameter would exceed the cap,
            or has another dtype; one that is larger than the cap has a bucket of its own. One
            reduction a bucket and backward.
        find_unused_parameters: False: in each window (the micro-batches from one reduction to the
            next) backward reaches every parameter on every rank. One that it does not reach is a
            mistake: RuntimeError with its name, raised by that `backward()`, after all reductions.
            True: a rank may leave parameters out, and counts as having a gradient of zero for
            them. A parameter that no rank has used in the window keeps `.grad` as it was (None
            after `zero_grad()`).

        Raises ValueError when bucket_cap_mb is not above 0.
        """
        super().__init__()
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module. In training mode its buffers are set to rank 0's before.

        Outside `no_sync()`, a forward with gradients enabled is followed by one backward. Under
        `torch.no_grad()`, nothing is sent: one rank may evaluate alone.
        """
        raise NotImplementedError

    def no_sync(self) -> AbstractContextManager[None]:
        """Within, forward and backward send nothing; gradients add up in `.grad`.

        The next backward outside averages all that has added up.
        """
        raise NotImplementedError

    def join(self) -> AbstractContextManager[None]:
        """Within, ranks may have different numbers of batches, 0 included.

            with ddp.join():
                for x, y in my_batches: ...

        A rank that leaves the block waits there until the last one does, and meanwhile takes its
        part in the reductions of those that still train. A gradient is the mean over *those*: its
        sum over their number. Buffers come from the lowest rank that still trains. When all have
        left, all hold the parameters and buffers of the lowest rank that trained to the end. Goes
        together with `no_sync()`: what is counted then is windows, not micro-batches. An exception
        within the block is passed on, without waiting.
        """
        raise NotImplementedError
