"""Runs on every rank: gives the learner's classes their tensors, and hands in what came of them.
An optimizer stays from one case to the next, so that each part can be counted by itself."""

import json
import time

import model
import numpy as np
import torch

kept = {}


def run(solution, group, case):
    modes = {"fp16": average, "adam": adam, "train": train, "quadratic": quadratic}
    modes |= {"report": report, "mistakes": mistakes}
    modes[case.params["mode"]](solution, group, case)


def tensors_of(flat, shapes, group):
    """Cut a flat array into tensors of `shapes`."""
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes]
    pieces = np.split(np.array(flat), np.cumsum(sizes)[:-1])
    return [
        torch.from_numpy(piece.reshape(shape).copy()).to(group.device)
        for piece, shape in zip(pieces, shapes, strict=True)
    ]


def flat_of(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).cpu().numpy()


def average(solution, group, case):
    tensors = tensors_of(case.inputs["x"], case.params["shapes"], group)
    given = list(tensors)
    solution.Fp16Allreduce(group.process_group).average(tensors)
    case.save("mean", flat_of(given))


def adam(solution, group, case):
    """A step for each row of `gradients`; the parameters after each of them are handed in.

    without: [rank, number] of a parameter that has no gradient on that rank. every: hand in one
    element of so many.
    """
    params = case.params
    if "start" in case.inputs:
        tensors = tensors_of(case.inputs["start"], params["shapes"], group)
        kept["params"] = [torch.nn.Parameter(t) for t in tensors]
        kept["optimizer"] = solution.OneBitAdam(
            kept["params"], group.process_group, **params["optimizer"]
        )
    after = []
    for row in case.inputs["gradients"]:
        gradients = tensors_of(row, params["shapes"], group)
        for number, (parameter, gradient) in enumerate(zip(kept["params"], gradients, strict=True)):
            parameter.grad = None if [group.rank, number] == params.get("without") else gradient
        kept["optimizer"].step()
        after.append(flat_of(kept["params"]))
    case.save("parameters", np.stack(after)[:, :: params.get("every", 1)])


def quadratic(solution, group, case):
    """Minimise mean_r |x - a_r|^2 / 2, of which each rank knows its own a_r."""
    wanted = torch.from_numpy(np.array(case.inputs["wanted"])).to(group.device)
    x = torch.nn.Parameter(torch.zeros_like(wanted))
    optimizer = solution.OneBitAdam([x], group.process_group, **case.params["optimizer"])
    tail = torch.zeros_like(wanted)
    steps, last = case.params["steps"], case.params["last"]
    for step in range(steps):
        x.grad = x.detach() - wanted
        optimizer.step()
        if step >= steps - last:
            tail += x.detach() / last
    case.save("x", tail)


def train(solution, group, case):
    """Train the click model on this rank's batches, a step for each of sleep_s at least."""
    weights = np.zeros(case.params["features"] + 1, np.float32)
    make = fp16_steps if case.params["way"] == "fp16" else one_bit_steps
    step = make(solution, group, weights, case.params)
    for features, clicked in zip(case.inputs["features"], case.inputs["clicked"], strict=True):
        _, gradient = model.loss_and_gradient(weights, features, clicked)
        time.sleep(case.params["sleep_s"])
        step(gradient)
    case.save("weights", weights)


def fp16_steps(solution, group, weights, params):
    compressed, optimizer = (
        solution.Fp16Allreduce(group.process_group),
        model.Adam(weights, params["rate"]),
    )

    def step(gradient):
        tensor = torch.from_numpy(gradient).to(group.device)
        compressed.average([tensor])
        optimizer.step(tensor.cpu().numpy())

    return step


def one_bit_steps(solution, group, weights, params):
    shapes = [[len(weights) - 1], []]
    parameters = [torch.nn.Parameter(t) for t in tensors_of(weights, shapes, group)]
    optimizer = solution.OneBitAdam(
        parameters,
        group.process_group,
        lr=params["rate"],
        warmup_steps=params["warmup_steps"],
        betas=model.BETAS,
        eps=model.EPS,
    )

    def step(gradient):
        pieces = tensors_of(gradient, shapes, group)
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece
        optimizer.step()
        weights[:] = flat_of(parameters)

    return step


def report(solution, group, case):
    """Hand in the report on each set of runs, or what was raised, as JSON."""
    answers = []
    for arguments in case.params["reports"]:
        runs = {name: [point_of(p) for p in points] for name, points in arguments["runs"].items()}
        try:
            answers.append(
                solution.convergence_report(runs, arguments["target_auc"], arguments["baseline"])
            )
        except Exception as error:
            answers.append({"raised": type(error).__name__, "text": str(error)[:200]})
    text = json.dumps(answers, default=float)
    case.save("answers", np.frombuffer(text.encode(), np.uint8))


def point_of(values):
    """[bytes, loss, auc], where None stands for NaN, as a point of a run."""
    names = ("bytes", "loss", "auc")
    return {n: float("nan") if v is None else v for n, v in zip(names, values, strict=True)}


def mistakes(solution, group, case):
    one = [torch.nn.Parameter(torch.ones(4, device=group.device))]
    double = [torch.ones(4, dtype=torch.float64, device=group.device)]
    here = group.process_group
    calls = [
        lambda: solution.OneBitAdam(one, here, lr=0.1, warmup_steps=0),
        lambda: solution.OneBitAdam(one, here, lr=0.0, warmup_steps=1),
        lambda: solution.OneBitAdam([], here, lr=0.1, warmup_steps=1),
        lambda: solution.Fp16Allreduce(here).average(double),
    ]
    raised = []
    for call in calls:
        try:
            call()
            raised.append("nothing")
        except Exception as error:
            raised.append(type(error).__name__)
    case.save("raised", np.array(raised, dtype="U60"))
