"""One linear layer on n ranks in three ways, and the choice between them.

Sizes that n does not divide are cut as `torch.tensor_split` cuts: the first ranks get one more. A
size below n leaves the last ranks with nothing. "Whole" means the same on every rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from model import Cluster, DoesNotFit, Layer, Plan  # noqa: F401


def choose_strategy(layer: Layer, cluster: Cluster) -> Plan:
    """The strategy whose communication takes least time among those whose memory fits.

    One step is a forward and a backward, at the end of which the gradient of x is known. With
    n = cluster.ranks, an all-reduce of S bytes is a ring: 2(n-1) rounds; an all-gather that ends
    with S bytes on every rank is one of n-1 rounds. In each round a rank sends S/n bytes, and a
    round takes 2 latency_s + (S/n) / bytes_per_s: in gloo, the receiver says that it is ready, and
    then the data come. What the strategies must send: see the classes.

    memory_bytes: for the rank that holds most, its numbers of W, b, x and y, each as it lies under
    the strategy (y as the layer returns it), times dtype_bytes, times 2, for each has a gradient.
    Buffers for communication are left out.

    Equally fast: either. Raises model.DoesNotFit when no strategy has memory_bytes <=
    cluster.memory_bytes, with what each of the three would need.
    """
    raise NotImplementedError


class DataParallelLinear(torch.nn.Module):
    """Rows of x are cut, W and b are whole.

    forward: x (this rank's rows, in_features) -> y (the same rows, out_features), or all of y
    (batch, out_features) when layer.whole_output, by one all-gather.
    backward: the gradients of W and b are added up over the ranks, in one all-reduce.
    """

    def __init__(
        self,
        layer: Layer,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        process_group: dist.ProcessGroup,
    ) -> None:
        """Take this rank's part of the parameters.

        weight: (out_features, in_features); bias: (out_features,), or None. Both are whole, lie on
        the device and in the dtype (float32 or float64) of the layer, and belong to the caller, who
        overwrites them afterwards: copy your part, and no more. Parameters of the module: `weight`
        and `bias` (None without), of this rank's part. process_group: the ranks that take part, not
        always all of the job; communicate over it.
        """
        super().__init__()
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of y, or all of it, as the class says. x and y: two dimensions.

        The gradient that backward is given lies as y does. It belongs to one loss of the whole
        batch (or, where y is whole, every rank has computed the same loss), so contributions are
        summed, never averaged, and after backward `.grad` of x, weight and bias are the parts of
        what one process would have. Two backwards add up in `.grad`. What does not require a
        gradient costs no communication in backward.
        """
        raise NotImplementedError


class ColumnParallelLinear(torch.nn.Module):
    """The out_features are cut: rows of W, numbers of b, columns of y. x is whole.

    forward: x (batch, in_features) -> y (batch, this rank's out_features), or all of y when
    layer.whole_output, by one all-gather.
    backward: the gradient of x is added up over the ranks, in one all-reduce.
    """

    def __init__(
        self,
        layer: Layer,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        process_group: dist.ProcessGroup,
    ) -> None:
        """As DataParallelLinear; weight and bias of this rank's out_features are kept."""
        super().__init__()
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As DataParallelLinear."""
        raise NotImplementedError


class RowParallelLinear(torch.nn.Module):
    """The in_features are cut: columns of W, columns of x. b and y are whole.

    forward: x (batch, this rank's in_features) -> y (batch, out_features), by one all-reduce; y is
    whole whether or not layer.whole_output asks for it.
    backward: sends nothing.
    """

    def __init__(
        self,
        layer: Layer,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        process_group: dist.ProcessGroup,
    ) -> None:
        """As DataParallelLinear; the weight of this rank's in_features and all of bias are kept."""
        super().__init__()
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As DataParallelLinear."""
        raise NotImplementedError
