"""Runs on every rank: asks for plans, or builds the learner's layers and takes training steps.

Layers stay from one case to the next, so that a step can be counted and timed by itself.
"""

import model
import numpy as np
import torch

kept = {}


def run(solution, group, case):
    if "plans" in case.params:
        hand_in_plans(solution, case)
    if "layers" in case.params:
        build(solution, group, case)
    for name in case.params.get("steps", ()):
        step(name, case)
    if "chain" in case.params:
        step_of_chain(case)


def hand_in_plans(solution, case):
    """For each question: the strategy or "refused", the plan's three numbers, what would fit."""
    names, numbers, needs = [], [], []
    for layer, cluster in case.params["plans"]:
        number, need = [np.nan] * 3, [np.nan] * 3
        try:
            plan = solution.choose_strategy(model.Layer(**layer), model.Cluster(**cluster))
            names.append(str(plan.strategy)[:20])
            number = [plan.sent_bytes, plan.seconds, plan.memory_bytes]
        except model.DoesNotFit as error:
            names.append("refused")
            need = [error.needs.get(strategy, np.nan) for strategy in model.STRATEGIES]
        numbers.append(number)
        needs.append(need)
    case.save("strategies", np.array(names, dtype="U20"))
    case.save("numbers", np.array(numbers, np.float64))
    case.save("needs", np.array(needs, np.float64))


def build(solution, group, case):
    """Layers and, for each, this rank's part of x and of the gradient of y."""
    kept.clear()
    kinds = {
        "data": solution.DataParallelLinear,
        "column": solution.ColumnParallelLinear,
        "row": solution.RowParallelLinear,
    }
    for name, (strategy, shape) in case.params["layers"].items():
        layer = model.Layer(**shape)
        weight, bias = whole(case, f"weight_{name}", group), whole(case, f"bias_{name}", group)
        module = kinds[strategy](layer, weight, bias if layer.bias else None, group.process_group)
        for stored in (weight, bias):
            if stored is not None:
                stored.fill_(float("nan"))  # the checkpoint is closed
        x, dy = whole(case, f"x_{name}", group), whole(case, f"dy_{name}", group)
        kept[name] = (
            module,
            None if x is None else part(x, {"data": 0, "row": 1}.get(strategy), group),
            None if dy is None else part(dy, y_is_cut_along(strategy, layer), group),
        )


def y_is_cut_along(strategy, layer):
    return None if layer.whole_output else {"data": 0, "column": 1}.get(strategy)


def whole(case, name, group):
    if name not in case.inputs:
        return None
    return torch.from_numpy(np.array(case.inputs[name])).to(group.device)


def part(tensor, dim, group):
    if dim is None:
        return tensor
    return torch.tensor_split(tensor, group.world_size, dim)[group.rank].clone()


def step(name, case):
    """Forward and backward; once more for each of `again`, gradients adding up."""
    module, x, dy = kept[name]
    module.zero_grad()
    x.grad = None
    x.requires_grad_(case.params.get("x_learns", True))
    for _ in range(1 + case.params.get("again", 0)):
        y = module(x)
        # A wrong shape shows in y itself; ranks where it is right must not wait for the others.
        y.backward(dy if y.shape == dy.shape else torch.zeros_like(y))
    found = {"y": y, "dx": x.grad, "dw": gradient(module, "weight"), "db": gradient(module, "bias")}
    for key, tensor in found.items():
        if tensor is not None:
            tensor = tensor.detach().cpu().numpy()
            if case.params.get("sums") and tensor.ndim == 2:
                tensor = np.concatenate([tensor.sum(0), tensor.sum(1)])
            case.save(f"{key}_{name}", tensor)


def gradient(module, name):
    parameter = getattr(module, name, None)
    return None if parameter is None else parameter.grad


def step_of_chain(case):
    """One layer after the other, with a ReLU between: y of one is x of the next."""
    names = case.params["chain"]
    x = kept[names[0]][1].requires_grad_()
    y = kept[names[0]][0](x)
    for name in names[1:]:
        y = kept[name][0](torch.relu(y))
    y.backward(kept[names[-1]][2])
    case.save("y", y)
    case.save("dx", x.grad)
    for name in names:
        case.save(f"dw_{name}", gradient(kept[name][0], "weight"))
        case.save(f"db_{name}", gradient(kept[name][0], "bias"))
