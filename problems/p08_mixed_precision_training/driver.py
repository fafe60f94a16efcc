"""Runs on every rank: builds model, optimizer and the learner's scaler, makes the steps of a case,
and hands in what each step left behind."""

import math
import time

import model as models
import numpy as np
import torch


def run(solution, group, case):
    {"scaler": scaler, "bad scaler": bad_scaler, "clip": clip, "train": train}[case.params["mode"]](
        solution, group, case
    )


def scaler(solution, group, case):
    """Feed a scaler with `found`; hand in its scale after each."""
    made = solution.DynamicLossScaler(**case.params["scaler"])
    scales = [float(made.scale)]
    for found in case.params["found"]:
        made.update(bool(found))
        scales.append(float(made.scale))
    case.save("scales", np.array(scales))


def bad_scaler(solution, group, case):
    raised = []
    for settings in case.params["scalers"]:
        try:
            solution.DynamicLossScaler(**settings)
            raised.append("nothing")
        except Exception as error:
            raised.append(type(error).__name__)
    case.save("raised", np.array(raised, dtype="U60"))


def clip(solution, group, case):
    names = sorted(case.inputs)
    grads = [torch.from_numpy(np.array(case.inputs[name])).to(group.device) for name in names]
    norm = solution.clip_global_norm(grads, _bound(case.params["max_norm"]))
    for name, grad in zip(names, grads, strict=True):
        case.save(name, grad)
    case.save("norm", np.array(float(norm)))


def train(solution, group, case):
    """A step for each row of x; its micro-batches are the second dimension."""
    params = case.params
    model = models.build(**params["model"]).to(group.device)
    load(model, case.inputs.get("start"))
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, params["optimizer"])(learning, lr=params["rate"])
    loss_scaler = solution.DynamicLossScaler(**params["scaler"])
    given = [np.array(case.inputs[name]) for name in ("x", "y") if name in case.inputs]
    data = [torch.from_numpy(array).to(group.device) for array in given]
    made, scales, kept = [], [], []
    steps, count = given[0].shape[:2]
    for step in range(steps):
        time.sleep(params.get("sleep_s", 0))
        micro_batches = [tuple(tensor[step, i] for tensor in data) for i in range(count)]
        was_made = solution.train_step(
            model,
            optimizer,
            loss_scaler,
            micro_batches,
            group.process_group,
            compute_dtype=getattr(torch, params["compute"]),
            wire_dtype=getattr(torch, params["wire"]),
            max_norm=_bound(params["max_norm"]),
        )
        made.append(bool(was_made))
        scales.append(float(loss_scaler.scale))
        if (step + 1) % params["keep_every"] == 0 or step + 1 == steps:
            kept.append(flat(model))
    case.save("made", np.array(made))
    case.save("scales", np.array(scales))
    case.save("parameters", np.stack(kept))


def _bound(max_norm):
    return math.inf if max_norm is None else max_norm


def load(model, start):
    """Put one vector into all parameters, in their order."""
    if start is None:
        return
    vector = torch.from_numpy(np.array(start))
    pieces = vector.split([p.numel() for p in model.parameters()])
    with torch.no_grad():
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))


def flat(model):
    """All parameters in one vector, in the type that they have."""
    return torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters()]).numpy()
