"""Work handles of torch.distributed whose completion is recorded: torch's own otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed import Work

from grader.rank.trace import BLOCKING, EVERYTHING, Recorder


class TracedWork(Work):
    """A handle that passes every call on to the one it stands for."""

    def __init__(self, work: Any, recorder: Recorder, indices: tuple[int, ...]) -> None:
        super().__init__()
        self._traced, self._recorder, self._indices = work, recorder, indices

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        own = self._indices
        awaits = own[0] if len(own) == 1 else EVERYTHING
        index = self._recorder.begin("wait", BLOCKING, awaits=awaits)
        try:
            result = self._traced.wait(*args, **kwargs)
        finally:
            self._recorder.finish(index)
        self._done()
        return result

    def is_completed(self) -> Any:
        completed = self._traced.is_completed()
        if completed:
            self._done()
        return completed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traced, name)

    def _done(self) -> None:
        for index in self._indices:
            self._recorder.finish(index)
        self._indices = ()


def _pass_on(name: str) -> Callable[..., Any]:
    def method(self: TracedWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._traced, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in dir(Work):
    if not _name.startswith("__") and _name not in vars(TracedWork):
        setattr(TracedWork, _name, _pass_on(_name))
