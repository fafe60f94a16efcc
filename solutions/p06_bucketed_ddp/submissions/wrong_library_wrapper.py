# /// script
# [tool.distlab]
# outcome = "refused"
# says = "DistributedDataParallel"
# ///
"""The exercise is handed over to torch."""

from torch.nn.parallel import DistributedDataParallel


class BucketedDDP(DistributedDataParallel):
    def __init__(self, module, process_group, bucket_cap_mb=25.0, find_unused_parameters=False):
        super().__init__(
            module,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            find_unused_parameters=find_unused_parameters,
        )
