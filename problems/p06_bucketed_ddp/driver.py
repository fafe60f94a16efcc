"""Runs on every rank: wraps a model of model.py in the learner's class, trains it, hands in what
came of it. A wrapper stays from one case to the next, so that each can be counted by itself."""

import contextlib
import time

import model
import numpy as np
import torch

kept = {}


def run(solution, group, case):
    if case.params.get("bad_cap"):
        build_with_bad_cap(solution, group, case)
    elif "model" in case.params:
        build(solution, group, case.params)
    if "alone" in case.params:
        evaluate_alone(group, case)
    elif "x" in case.inputs:
        train(group, case)
    if case.params.get("state"):
        hand_in_state(case)


def build(solution, group, params):
    kept.clear()
    module = model.build(**params["model"], rank=group.rank).to(group.device)
    kept["module"] = module
    kept["wrapper"] = solution.BucketedDDP(
        module,
        group.process_group,
        bucket_cap_mb=params.get("cap_mb", 25.0),
        find_unused_parameters=params.get("find_unused", False),
    )
    learning = [p for p in kept["wrapper"].parameters() if p.requires_grad]
    kept["optimizer"] = torch.optim.SGD(learning, lr=params.get("rate", 0.125))


def build_with_bad_cap(solution, group, case):
    raised = "nothing"
    try:
        build(solution, group, {**case.params, "cap_mb": 0})
    except Exception as error:
        raised = type(error).__name__
    case.save("raised", np.array(raised, dtype="U100"))


def train(group, case):
    """One update for every `accumulate` batches; the gradients of each are handed in."""
    wrapper, optimizer = kept["wrapper"], kept["optimizer"]
    wrapper.train()
    batches = list(batches_of(group, case))
    accumulate, always_off = case.params.get("accumulate", 1), case.params.get("never_sync", False)
    gradients = []
    try:
        with wrapper.join() if case.params.get("join") else contextlib.nullcontext():
            for number, batch in enumerate(batches, start=1):
                syncs = (number % accumulate == 0 or number == len(batches)) and not always_off
                with contextlib.nullcontext() if syncs else wrapper.no_sync():
                    wrapper(*batch).backward()
                time.sleep(case.params.get("sleep_s", 0))
                if syncs:
                    gradients.append(flat_gradients())
                    optimizer.step()
                    optimizer.zero_grad()
    except RuntimeError as error:
        if not case.params.get("may_raise"):
            raise
        case.save("raised", np.array(str(error)[:300], dtype="U300"))
    if gradients and case.params.get("gradients", True):
        case.save("gradients", np.stack(gradients))


def batches_of(group, case):
    """Arguments of the model's forward for each step of this rank."""
    x = torch.from_numpy(np.array(case.inputs["x"])).to(group.device)
    if "y" in case.inputs:
        return zip(x, torch.from_numpy(np.array(case.inputs["y"])).to(group.device), strict=True)
    return zip(x, case.params["orders"][group.rank], strict=True)


def flat_gradients():
    """All gradients in the order of `parameters()`, in float64; NaN where there is none."""
    pieces = [
        torch.full((p.numel(),), float("nan")).double()
        if p.grad is None
        else p.grad.detach().reshape(-1).double().cpu()
        for p in kept["module"].parameters()
        if p.requires_grad
    ]
    return torch.cat(pieces).numpy()


def evaluate_alone(group, case):
    """What one does between epochs: rank 0 looks at held-out data while the others go on."""
    if group.rank == case.params["alone"]:
        kept["wrapper"].eval()
        with torch.no_grad():
            loss = kept["wrapper"](*next(batches_of(group, case)))
        kept["wrapper"].train()
        case.save("loss", loss)


def hand_in_state(case):
    module = kept["module"]
    for name, tensors in (("parameters", module.parameters()), ("buffers", module.buffers())):
        pieces = [t.detach().reshape(-1).double().cpu() for t in tensors]
        case.save(name, torch.cat([torch.zeros(0).double(), *pieces]))
