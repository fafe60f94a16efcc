"""Runs on a rank: puts one question to the learner's code, and hands the answer back as arrays."""

import numpy as np
import torch
import torch.distributed as dist

KINDS = {"reduce": 0, "copy": 1}
MOST_MOVES = 2_200_000  # a ring of 1,024 needs 2,095,104
GROUPS = {}


def run(solution, group, case):
    {
        "schedule": answer_schedule,
        "cost": answer_cost,
        "crossover": answer_crossover,
        "refusals": answer_refusals,
        "all_reduce": answer_all_reduce,
    }[case.params["part"]](solution, group, case)


def answer_schedule(solution, _group, case):
    """moves: int16, one row (src, dst, chunk, kind) a move. rounds: moves in each round. trouble:
    why the schedule cannot be read, empty if it can."""
    n, moves, trouble = case.params["n"], [np.empty((0, 4), np.int16)], ""
    schedule = solution.ring_schedule(n)
    try:
        rounds = iter(schedule)
    except TypeError:
        rounds, trouble = iter(()), f"ring_schedule({n}) is a {type(schedule).__name__}, no rounds"
    total = 0
    for number, one_round in enumerate(rounds):
        try:
            rows = as_rows(one_round, n)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            trouble = f"round {number} of ring_schedule({n}) cannot be read: {error}"
            break
        moves.append(rows)
        total += len(rows) + 1
        if total > MOST_MOVES:
            trouble = f"ring_schedule({n}) has more than {MOST_MOVES:,} rounds and moves"
            break
    case.save("moves", np.concatenate(moves))
    case.save("rounds", np.array([len(rows) for rows in moves[1:]], np.int32))
    case.save("trouble", np.array(trouble[:300], "U300"))


def as_rows(moves, n):
    moves = list(moves)
    if not moves:
        return np.empty((0, 4), np.int16)
    for move in moves:
        if len(move) != 4:
            raise ValueError(f"{move!r} is no (src, dst, chunk, kind)")
    src, dst, chunk, kind = zip(*moves, strict=True)
    rows = np.array([src, dst, chunk, [kind_code(word) for word in kind]])
    if rows.dtype.kind not in "iu" or rows.shape != (4, len(moves)):
        raise ValueError("src, dst and chunk must be whole numbers")
    outside = np.argwhere((rows[:3] < 0) | (rows[:3] >= n))
    if len(outside):
        raise ValueError(f"{moves[outside[0][1]]!r} names a rank or chunk outside 0..{n - 1}")
    return rows.T.astype(np.int16)


def kind_code(word):
    if word not in KINDS:
        raise ValueError(f"kind {word!r}; valid: 'reduce', 'copy'")
    return KINDS[word]


def answer_cost(solution, _group, case):
    """One row of `questions` (n, size, alpha, beta) and one column of the answer an algorithm."""
    answers = [
        [
            number(solution.cost(int(n), int(size), float(alpha), float(beta), algorithm))
            for algorithm in case.params["algorithms"]
        ]
        for n, size, alpha, beta in case.inputs["questions"]
    ]
    case.save("seconds", np.array(answers, np.float64))


def answer_crossover(solution, _group, case):
    answers = [
        number(solution.crossover(int(n), float(alpha), float(beta)))
        for n, alpha, beta in case.inputs["questions"]
    ]
    case.save("sizes", np.array(answers, np.float64))


def number(value):
    """NaN where the answer is no number, so that the comparison says so."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def answer_refusals(solution, _group, case):
    """What each call raised: the name of the error and its text."""
    raised = []
    for name, arguments in case.params["calls"]:
        try:
            answer = getattr(solution, name)(*arguments)
            if name == "ring_schedule":
                list(answer)  # a generator refuses when it is first asked
            raised.append(("nothing", ""))
        except Exception as error:
            raised.append((type(error).__name__, str(error)[:200]))
    case.save("raised", np.array(raised, "U200"))


def answer_all_reduce(solution, group, case):
    """The tensor after the call. params["members"]: ranks of the group to work in, in its order."""
    x = case.inputs["x"]
    result = case.output("x", x.shape, x.dtype)
    result[...] = x
    members = case.params.get("members")
    if members is None:
        process_group = group.process_group
    elif group.rank in members:
        process_group = group_of(tuple(members))
    else:
        return
    # On the CPU the tensor lies in the output itself; on a GPU it is copied there and back.
    tensor = torch.from_numpy(result).to(group.device)
    solution.ring_all_reduce(tensor, process_group)
    if group.device.type != "cpu":
        result[...] = tensor.cpu().numpy()


def group_of(members):
    if members not in GROUPS:
        GROUPS[members] = dist.new_group(
            list(members), use_local_synchronization=True, group_desc="part"
        )
    return GROUPS[members]
