"""What runs on a rank: load the driver and the submission, take cases in, hand results out.

Nothing here judges. This process is untrusted once the submission is imported: all it can do is
write files of its own host's outbox.

    rank_main.py ROOT JOB      ROOT: folder with in/, out/, runtime/, problem/, submission/

Files of a job start with its name, so that what an earlier one left on the host is not taken for
this one's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from grader.rank.runtime import Runtime

_POLL_S = 0.0005
_IDLE_POLL_S = 0.003
_IDLE_AFTER_S = 0.1
STACK_SIGNAL = signal.SIGUSR2


class Outbox:
    """Writes results so that a reader never sees half of one."""

    def __init__(self, folder: Path, job: str, rank: int) -> None:
        self._folder, self._job, self._rank = folder, job, rank

    def path(self, name: str) -> Path:
        """Where this rank's file `name` belongs."""
        return self._folder / f"{self._job}.{name}"

    def write_json(self, name: str, value: Any) -> None:
        partial = self._folder / f".{self._job}.{name}.{self._rank}"
        partial.write_text(json.dumps(value))
        partial.rename(self.path(name))

    def array(self, name: str, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        """A new array that lives in the outbox: filling it is handing it in. Zero at first."""
        if not np.prod(shape):
            np.save(self.path(name), np.empty(shape, dtype))
            return np.empty(shape, dtype)
        return np.lib.format.open_memmap(self.path(name), "w+", np.dtype(dtype), tuple(shape))

    def save(self, name: str, array: Any) -> None:
        if hasattr(array, "detach"):  # a tensor, on whatever device
            array = array.detach().cpu().numpy()
        np.save(self.path(name), np.asarray(array), allow_pickle=False)


class Case:
    """One call of the submission: what a driver sees.

    params: the case's plain values. inputs: arrays for this rank, private copies. `output` gives
    an array whose contents are the result; `save` hands in a finished one, array or tensor.
    """

    def __init__(self, inbox: Path, outbox: Outbox, prefix: str, params: Mapping[str, Any]) -> None:
        self._inbox, self._outbox, self._prefix = inbox, outbox, prefix
        self.params = params
        self.inputs: dict[str, np.ndarray[Any, Any]] = {}
        self.outputs: list[str] = []

    def _file(self, name: str) -> str:
        if name not in self.outputs:
            self.outputs.append(name)
        return f"{self._prefix}.{name}.npy"

    def output(self, name: str, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        return self._outbox.array(self._file(name), shape, dtype)

    def save(self, name: str, array: Any) -> None:
        self._outbox.save(self._file(name), array)

    def load_inputs(self, job: str, names: list[str]) -> None:
        for name in names:
            path = self._inbox / f"{job}.{self._prefix}.{name}.npy"
            if path.stat().st_size > 4096:  # too small a file may hold no data to map
                self.inputs[name] = np.load(path, mmap_mode="c", allow_pickle=False)
            else:
                self.inputs[name] = np.load(path, allow_pickle=False)


def _wait_for(path: Path, progress: Callable[[], None], eager_s: float = math.inf) -> None:
    """Wait for a file: eagerly at first, then so that ranks that wait do not fill the machine."""
    idle_from = time.monotonic() + eager_s
    while not path.exists():
        progress()
        time.sleep(_POLL_S if time.monotonic() < idle_from else _IDLE_POLL_S)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the submission may have put anything there
            stream.flush()


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _describe(error: BaseException, folder: str) -> dict[str, Any]:
    """The error in the learner's terms: type, text, and the frames of their own files."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f"{Path(f.filename).name}:{f.lineno} in {f.name}"
        for f in frames
        if f.filename.startswith(folder)
    ]
    kind = type(error).__name__
    return {
        "status": "refused" if kind == "RefusedCall" else "error",
        "type": kind,
        "text": str(error)[:2000],
        "frames": own[-8:],
        "at": time.monotonic(),
    }


def _report_stack_on_signal(path: Path) -> None:
    faulthandler.register(STACK_SIGNAL, file=path.open("w"), all_threads=True, chain=False)


def _run_cases(
    runtime: Runtime, root: Path, job: str, outbox: Outbox, driver: Any, solution: Any
) -> None:
    inbox, source, number = root / "in", str(root / "submission"), 0
    while True:
        announcement = inbox / f"{job}.case{number}.json"
        _wait_for(announcement, runtime.progress, _IDLE_AFTER_S)
        request = json.loads(announcement.read_text())
        if request.get("end"):
            return
        size = request["ranks"]
        if runtime.rank < size:
            prefix = f"case{number}.r{runtime.rank}"
            group = runtime.group(size)
            runtime.barrier(size)
            outbox.write_json(f"{prefix}.ready", {})
            # Parameters come with the inputs: the clock runs from the moment they can be read.
            go = inbox / f"{job}.case{number}.go"
            _wait_for(go, runtime.progress)
            given = json.loads(go.read_text())
            case = Case(inbox, outbox, prefix, given["params"])
            case.load_inputs(job, given["inputs"])
            try:
                driver.run(solution, group, case)
                verdict: dict[str, Any] = {"status": "done", "outputs": case.outputs}
            except BaseException as error:  # SystemExit included: leaving early is not an answer
                verdict = _describe(error, source)
            refused = runtime.refused_use()
            if refused is not None:
                verdict = _describe(refused, source)
            _flush()
            outbox.write_json(f"{prefix}.done", verdict)
        number += 1


def main() -> None:
    """Serve cases until the grader says end."""
    root, job = Path(sys.argv[1]), sys.argv[2]
    sys.path.insert(0, str(root / "runtime"))
    from grader.rank.runtime import join

    out = root / "out"
    settings = json.loads((root / "in" / f"{job}.json").read_text())
    source = str(root / "submission")
    runtime = join(settings["runtime"], {**settings, "job": job}, out, source)
    outbox = Outbox(out, job, runtime.rank)
    started = {"pid": os.getpid(), "host": os.uname().nodename}
    outbox.write_json(f"started.r{runtime.rank}", started)
    with contextlib.suppress(OSError):
        _report_stack_on_signal(outbox.path(f"stack.r{runtime.rank}"))
    sys.path += [str(root / "problem"), source]  # the driver's model.py, not a submission's
    # Until the grader has seen that all have started, nothing that could hide it may run.
    _wait_for(root / "in" / f"{job}.import", runtime.progress)
    try:
        solution = _load("solution", root / "submission" / settings["entry"])
        driver = _load("driver", root / "problem" / "driver.py")
    except BaseException as error:
        cause = runtime.refused_use() or error
        outbox.write_json(f"loaded.r{runtime.rank}", _describe(cause, source))
        os._exit(1)
    outbox.write_json(f"loaded.r{runtime.rank}", {"status": "done"})
    _run_cases(runtime, root, job, outbox, driver, solution)
    _flush()
    # Every answer has been read. What the submission left running, or left to be done at the end,
    # is not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
