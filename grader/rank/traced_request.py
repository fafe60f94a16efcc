"""Requests whose completion is recorded: mpi4py's own otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from mpi4py import MPI

from grader.rank.trace import BLOCKING, EVERYTHING, Recorder

_Request = MPI.Request  # the name in MPI is replaced once requests are traced


class TracedRequest(MPI.Request):
    """A request whose completion is recorded."""

    indices: tuple[int, ...]
    recorder: ClassVar[Recorder]

    @classmethod
    def wrap(cls, request: MPI.Request, *indices: int) -> TracedRequest:
        traced = cls(request)
        traced.indices = indices
        return traced

    def _done(self) -> None:
        for index in getattr(self, "indices", ()):
            self.recorder.finish(index)
        self.indices = ()

    def _waiting(self, name: str, call: Callable[[], Any]) -> Any:
        own: tuple[int, ...] = getattr(self, "indices", ())
        index = self.recorder.begin(name, BLOCKING, awaits=own[0] if len(own) == 1 else EVERYTHING)
        try:
            result = call()
        finally:
            self.recorder.finish(index)
        self._done()
        return result

    def Wait(self, *args: Any, **kwargs: Any) -> Any:
        return self._waiting("Wait", lambda: super(TracedRequest, self).Wait(*args, **kwargs))

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        return self._waiting("wait", lambda: super(TracedRequest, self).wait(*args, **kwargs))

    def Test(self, *args: Any, **kwargs: Any) -> Any:
        flag = super().Test(*args, **kwargs)
        if flag:
            self._done()
        return flag

    def test(self, *args: Any, **kwargs: Any) -> Any:
        result = super().test(*args, **kwargs)
        if result[0]:
            self._done()
        return result

    @classmethod
    def _all(cls, name: str, requests: Sequence[Any], call: Callable[[], Any]) -> Any:
        index = cls.recorder.begin(name, BLOCKING)
        try:
            result = call()
        finally:
            cls.recorder.finish(index)
        for request in requests:
            if isinstance(request, TracedRequest):
                request._done()
        return result

    @classmethod
    def Waitall(cls, requests: Any, *args: Any, **kwargs: Any) -> Any:
        return cls._all("Waitall", requests, lambda: _Request.Waitall(requests, *args, **kwargs))

    @classmethod
    def waitall(cls, requests: Any, *args: Any, **kwargs: Any) -> Any:
        return cls._all("waitall", requests, lambda: _Request.waitall(requests, *args, **kwargs))

    @classmethod
    def Waitany(cls, requests: Any, *args: Any, **kwargs: Any) -> Any:
        index = cls.recorder.begin("Waitany", BLOCKING)
        try:
            which = _Request.Waitany(requests, *args, **kwargs)
        finally:
            cls.recorder.finish(index)
        if 0 <= which < len(requests) and isinstance(requests[which], TracedRequest):
            requests[which]._done()
        return which

    @classmethod
    def Testall(cls, requests: Any, *args: Any, **kwargs: Any) -> Any:
        flag = _Request.Testall(requests, *args, **kwargs)
        if flag:
            for request in requests:
                if isinstance(request, TracedRequest):
                    request._done()
        return flag
