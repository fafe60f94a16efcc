"""Make torch.distributed record what is called on it, with peer, tag, bytes and learner's line.

The functions themselves are replaced, before the submission is imported; results stay the same.
What torch does inside C++ (the reducer of DistributedDataParallel) is not seen. With NCCL an
operation's end is that of its enqueueing, as for any caller.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from grader.rank.refusal import refuse
from grader.rank.trace import (
    BLOCKING,
    COLLECTIVE,
    POSTED,
    POSTED_COLLECTIVE,
    Recorder,
    member_bits,
)
from grader.rank.traced_work import TracedWork

ANY, NOBODY = -2, -1
_TORCH = str(Path(torch.__file__).parent)
_WRAPPERS_ARE_IN = ("torch.distributed", "torch.nn.parallel", "torch.distributed.fsdp")


@dataclass(frozen=True)
class _Operation:
    """data: the argument whose bytes count. peer: the arguments that name the peer or root, on the
    whole job and in the group. without_peer: what no such argument means."""

    name: str
    data: str = ""
    peer: str = ""
    group_peer: str = ""
    collective: bool = True
    always_posted: bool = False
    without_peer: int = NOBODY


_OPERATIONS = (
    _Operation("send", "tensor", "dst", "group_dst", collective=False),
    _Operation("isend", "tensor", "dst", "group_dst", collective=False, always_posted=True),
    _Operation("recv", "tensor", "src", "group_src", collective=False, without_peer=ANY),
    _Operation(
        "irecv",
        "tensor",
        "src",
        "group_src",
        collective=False,
        always_posted=True,
        without_peer=ANY,
    ),
    _Operation("all_reduce", "tensor"),
    _Operation("reduce", "tensor", "dst", "group_dst"),
    _Operation("broadcast", "tensor", "src", "group_src"),
    _Operation("all_gather", "tensor"),
    _Operation("all_gather_into_tensor", "input_tensor"),
    _Operation("all_gather_single", "input_tensor"),
    _Operation("_all_gather_base", "input_tensor"),
    _Operation("reduce_scatter", "input_list"),
    _Operation("reduce_scatter_tensor", "input"),
    _Operation("reduce_scatter_single", "input"),
    _Operation("_reduce_scatter_base", "input"),
    _Operation("all_to_all", "input_tensor_list"),
    _Operation("all_to_all_single", "input"),
    _Operation("gather", "tensor", "dst", "group_dst"),
    _Operation("scatter", "scatter_list", "src", "group_src"),
    _Operation("barrier"),
    _Operation("monitored_barrier"),
)


class TorchTracer:
    """Puts the recording functions in place. Made once per rank."""

    def __init__(self, recorder: Recorder, refused: Collection[str]) -> None:
        self._recorder, self._refused = recorder, frozenset(refused)
        self._inside = threading.local()

    def install(self) -> None:
        """Replace the functions, and refuse what the problem forbids."""
        for operation in _OPERATIONS:
            original = getattr(distributed_c10d, operation.name, None)
            if original is not None:
                self._replace(original, self._traced(operation, original))
        batched = distributed_c10d.batch_isend_irecv
        self._replace(batched, self._traced_batch(batched))
        for name in self._refused:
            function = getattr(dist, name, None)
            if inspect.isfunction(function) and getattr(function, "_traces", None) is None:
                self._replace(function, self._refusing(name, function))
            for place in _WRAPPERS_ARE_IN:
                self._seal(getattr(sys.modules.get(place), name, None), name)

    def _seal(self, wrapper: Any, name: str) -> None:
        """Refuse to make objects of the class `wrapper`, if it is one; torch itself may."""
        if isinstance(wrapper, type) and "_refuses" not in vars(wrapper):
            sealed: Any = wrapper
            sealed.__init__ = self._refusing(name, sealed.__init__)
            sealed._refuses = True

    def _replace(self, original: Any, replacement: Any) -> None:
        functools.update_wrapper(replacement, original)
        replacement.__signature__ = inspect.signature(original)
        replacement._traces = original.__name__
        del replacement.__wrapped__  # not a way round
        for module in (dist, distributed_c10d):
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, replacement)

    def _traced(self, operation: _Operation, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def function(*args: Any, **kwargs: Any) -> Any:
            self._check(operation.name)
            if getattr(self._inside, "depth", 0):  # `send` is an `isend` and a wait
                return original(*args, **kwargs)
            index = self._begin(operation, signature, args, kwargs)
            self._inside.depth = 1
            try:
                result = original(*args, **kwargs)
            except BaseException:
                self._recorder.finish(index)
                raise
            finally:
                self._inside.depth = 0
            if isinstance(result, dist.Work):
                return TracedWork(result, self._recorder, (index,))
            # Within a batch that the backend joins to one operation, the batch's handle ends it.
            joined = getattr(self._inside, "batch", None)
            if operation.always_posted and joined is not None:
                joined.append(index)
            else:
                self._recorder.finish(index)
            return result

        return function

    def _traced_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The operations of a batch come by one by one; here only their common handle is made."""

        def function(*args: Any, **kwargs: Any) -> Any:
            self._check("batch_isend_irecv")
            joined: list[int] = []
            self._inside.batch = joined
            try:
                works = original(*args, **kwargs)
            except BaseException:
                for index in joined:
                    self._recorder.finish(index)
                raise
            finally:
                self._inside.batch = None
            return [
                work
                if isinstance(work, TracedWork)
                else TracedWork(work, self._recorder, tuple(joined))
                for work in works
            ]

        return function

    def _refusing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            self._check(name)
            return original(*args, **kwargs)

        return function

    def _check(self, name: str) -> None:
        """Refuse a forbidden call, unless torch itself makes it on behalf of an allowed one."""
        if name in self._refused:
            caller = sys._getframe(2).f_code.co_filename
            if not caller.startswith(_TORCH):
                refuse(name)

    def _begin(
        self,
        operation: _Operation,
        signature: inspect.Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> int:
        given: dict[str, Any] = {}
        peer, members = operation.without_peer, 0
        with contextlib.suppress(Exception):  # a wrong call is for the original to complain about
            given = signature.bind_partial(*args, **kwargs).arguments
            group = given.get("group")
            if operation.peer:
                peer = _job_rank(given, operation, group)
            if operation.collective:
                members = member_bits(dist.get_process_group_ranks(group))
        posted = operation.always_posted or bool(given.get("async_op"))
        if operation.collective:
            way = POSTED_COLLECTIVE if posted else COLLECTIVE
        else:
            way = POSTED if posted else BLOCKING
        tag = given.get("tag", 0 if not operation.collective else -1)
        return self._recorder.begin(
            operation.name,
            way,
            peer,
            tag if isinstance(tag, int) else -1,
            _bytes(given.get(operation.data)),
            members=members,
        )


def _job_rank(given: dict[str, Any], operation: _Operation, group: Any) -> int:
    in_group = given.get(operation.group_peer)
    if in_group is not None:
        group = group or distributed_c10d._get_default_group()
        return dist.get_global_rank(group, int(in_group))
    on_job = given.get(operation.peer)
    if on_job is not None:
        return int(on_job)
    return 0 if operation.collective else operation.without_peer


def _bytes(data: Any) -> int:
    tensors: Iterable[Any] = data if isinstance(data, (list, tuple)) else (data,)
    sizes = (t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
    return sum(sizes)
