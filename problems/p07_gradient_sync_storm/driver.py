"""Runs on every rank: submits a step's gradients in the case's order, and hands the sums back."""

import time
import tracemalloc

import numpy as np

_kept = {}  # synchronizers outlive a case: a job is a training run, a case one step of it


def run(solution, comm, case):
    params = case.params
    mode = params.get("mode", "step")
    if mode == "misuse":
        _misuse(solution, comm, case)
        return
    if mode == "rest":
        synchronizer, total = _kept.pop("unfinished")
        synchronizer.flush()
        case.save("sum", total)
        return
    total = case.output("sum", case.inputs["gradient"].shape, np.float32)
    total[:] = case.inputs["gradient"]
    tensors = _tensors(total, case.inputs["lengths"])
    synchronizer = _synchronizer(solution, comm, params, tensors)
    if mode == "memory":
        tracemalloc.start()
    _submit(synchronizer, tensors, case)
    if mode == "until":
        name = params["until"]
        synchronizer.wait(name)
        case.save("tensor", tensors[name].copy())
        _kept["unfinished"] = synchronizer, total
        return
    synchronizer.flush()
    if mode == "memory":
        case.save("peak", np.array([tracemalloc.get_traced_memory()[1]]))
        tracemalloc.stop()


def _tensors(flat, lengths):
    """Views of one flat array by name, in forward order."""
    parts = np.split(flat, np.cumsum(lengths)[:-1])
    return {f"t{number:04d}": part for number, part in enumerate(parts)}


def _synchronizer(solution, comm, params, tensors):
    layout = [(name, tensor.size) for name, tensor in tensors.items()]
    key = comm.Get_size(), params["fusion_bytes"], params["window_bytes"], tuple(layout)
    if key not in _kept:
        _kept[key] = solution.GradientSynchronizer(
            comm, layout, params["fusion_bytes"], params["window_bytes"]
        )
    return _kept[key]


def _submit(synchronizer, tensors, case):
    """Submit in this rank's order, of which some tensors may be missing; a slow rank pauses."""
    order = case.inputs["order"]
    pauses = set(case.params.get("pauses", ())) if case.inputs["slow"] else set()
    names = list(tensors)
    for position, number in enumerate(order):
        if position in pauses:
            time.sleep(case.params["pause_s"])
        synchronizer.submit(names[number], tensors[names[number]])


def _misuse(solution, comm, case):
    """Wrong calls, each of which must raise ValueError and leave the step as it was."""
    tensors = {"a": np.ones(8, np.float32), "b": np.ones(4, np.float32)}
    layout = [("a", 8), ("b", 4), ("c", 2)]
    synchronizer = solution.GradientSynchronizer(comm, layout, 1 << 15, 1 << 16)
    synchronizer.submit("a", tensors["a"])
    wrong = [
        ("an unknown name", "d", np.ones(4, np.float32)),
        ("a wrong length", "b", np.ones(5, np.float32)),
        ("float64", "b", np.ones(4, np.float64)),
        ("a name submitted twice", "a", np.ones(8, np.float32)),
    ]
    raised = [(what, *_raised(synchronizer.submit, *call)) for what, *call in wrong]
    synchronizer.submit("b", tensors["b"])
    raised.append(("waiting for what was left out", *_raised(synchronizer.wait, "c")))
    synchronizer.wait("a")
    late = np.ones(2, np.float32)
    raised.append(("a submit after wait", *_raised(synchronizer.submit, "c", late)))
    synchronizer.flush()
    case.save("raised", np.array(raised, dtype="U200"))
    case.save("sum", np.concatenate(list(tensors.values())))


def _raised(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)[:200]
    return "nothing", ""
