"""Run a file as `__main__` in a process that was forked, as if it had been started afresh."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

_OWN_PACKAGE = "cluster"
# Where this text was handed to an interpreter with -c, no repository is on its path.
_REPOSITORY = str(Path(__file__).resolve().parents[2]) if "__file__" in globals() else None


def run_as_main(
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    search_path: Sequence[str],
) -> NoReturn:
    """Run the file `program` and end the process with the exit status Python would give.

    environment replaces the inherited one; search_path goes before the standard module path.
    Interpreter teardown is left out: it would copy the pages shared with the parent.
    """
    status = 1
    try:
        _forget_parent(environment, search_path)
        sys.argv = [program, *arguments]
        module = types.ModuleType("__main__")
        module.__dict__.update(__file__=program, __builtins__=__builtins__)
        sys.modules["__main__"] = module
        code = compile(Path(program).read_bytes(), program, "exec")
        exec(code, module.__dict__)
        status = 0
    except SystemExit as stop:
        status = _exit_status(stop.code)
    except BaseException as error:
        _show(error)
    finally:
        status = _finish(status)
    os._exit(status)


def _forget_parent(environment: Mapping[str, str], search_path: Sequence[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    sys.path[:] = [*search_path, *(entry for entry in sys.path if entry != _REPOSITORY)]
    for name in [n for n in sys.modules if n.partition(".")[0] == _OWN_PACKAGE]:
        del sys.modules[name]
    sys.dont_write_bytecode = True
    _open_streams(unbuffered=bool(environment.get("PYTHONUNBUFFERED")))
    _draw_fresh_seeds()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and "TORCH_DISTRIBUTED_DEBUG" in environment:
        distributed.set_debug_level_from_env()


def _open_streams(*, unbuffered: bool) -> None:
    """Make stream objects for descriptors 0 to 2, which are not the parent's any more."""
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    _open_output("stdout", 1, "surrogateescape", write_through=unbuffered)
    _open_output("stderr", 2, "backslashreplace", write_through=unbuffered)


def _open_output(name: str, descriptor: int, errors: str, *, write_through: bool) -> None:
    stream = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
        encoding="utf-8",
        errors=errors,
        line_buffering=descriptor == 2 or os.isatty(descriptor),
        write_through=write_through,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _draw_fresh_seeds() -> None:
    # numpy's global generator was seeded in the parent: all ranks would draw the same numbers,
    # which separately started processes never do. `random` reseeds itself after a fork.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(Exception):
        print(code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    with contextlib.suppress(Exception):
        # The frames of this module and of its callers are nobody's business.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, trace)


def _finish(status: int) -> int:
    """Do what the interpreter does at its end: join threads, run exit handlers, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as stop:
        status = _exit_status(stop.code)
    except BaseException as error:
        _show(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return status
