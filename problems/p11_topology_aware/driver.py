"""Runs on a rank: asks the learner's functions about one text, and runs the fixed ring."""

import numpy as np

MOST_CPUS = 2048
TAG = 11


def run(solution, comm, case):
    ask = case.params["ask"]
    text = case.inputs["text"].tobytes().decode()
    if ask == "refuse":
        _save_refusal(solution, case, text)
    elif ask == "all-reduce":
        _all_reduce(solution, comm, case, text)
    else:
        topology = solution.parse_topology(text)
        answers = {"parse": _topology, "ring": _ring, "bind": _bindings}
        _save(case, answers[ask], solution, topology)


def _save(case, answer, solution, topology):
    """Hand in the arrays that `answer` gives, or the sentence that says what is wrong with it."""
    try:
        arrays = answer(solution, topology)
    except Malformed as error:
        arrays = {"malformed": np.array(str(error)[:400], dtype="U400")}
    for name, array in arrays.items():
        case.save(name, array)


class Malformed(Exception):
    """What the learner's function returned is not of the type that the stub states."""


def _array(name, value, dtype):
    try:
        return np.array(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"{name} cannot be read as the stub describes it: {error}") from None


def _field(topology, name):
    try:
        return list(getattr(topology, name))
    except (AttributeError, TypeError) as error:
        raise Malformed(f"Topology.{name}: {error}") from None


def _cpu_row(name, cpus):
    row = np.zeros(MOST_CPUS, bool)
    try:
        numbers = np.array(sorted(cpus), dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"{name} is no set of CPU numbers: {error}") from None
    if numbers.size and not 0 <= numbers[0] <= numbers[-1] < MOST_CPUS:
        ends = f"{numbers[0]} to {numbers[-1]}"
        raise Malformed(f"{name} holds CPUs {ends}; valid: 0 to {MOST_CPUS - 1}")
    row[numbers] = True
    return row


def _topology(_solution, topology):
    nodes = [-1 if node is None else node for node in _field(topology, "numa")]
    speeds = [np.nan if speed is None else speed for speed in _field(topology, "nic_gbit")]
    rows = [_cpu_row(f"cpus[{i}]", cpus) for i, cpus in enumerate(_field(topology, "cpus"))]
    return {
        "kinds": _array("kinds", _field(topology, "kinds"), "U16"),
        "bandwidth": _array("bandwidth", _field(topology, "bandwidth"), np.float64),
        "cpus": np.array(rows, bool),
        "numa": _array("numa", nodes, np.int64),
        "nics": _array("nics", _field(topology, "nics"), "U64"),
        "nic_kinds": _array("nic_kinds", _field(topology, "nic_kinds"), "U16"),
        "nic_gbit": _array("nic_gbit", speeds, np.float64),
    }


def _ring(solution, topology):
    order = solution.ring_order(topology)
    try:
        whole = [int(gpu) for gpu in order]
    except (TypeError, ValueError) as error:
        raise Malformed(f"ring_order gave no list of GPU numbers: {error}") from None
    return {"order": _array("the order", whole, np.int64)}


def _bindings(solution, topology):
    cpus, nodes, nics = [], [], []
    for rank in range(len(_field(topology, "kinds"))):
        answer = solution.bind(topology, rank)
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise Malformed(f"bind gave {answer!r} for rank {rank}; valid: (cpus, node, nic)")
        cpus.append(_cpu_row(f"cpus of rank {rank}", answer[0]))
        nodes.append(-1 if answer[1] is None else answer[1])
        nics.append("" if answer[2] is None else str(answer[2]))
    return {
        "cpus": np.array(cpus, bool),
        "numa": _array("the NUMA nodes", nodes, np.int64),
        "nic": _array("the NICs", nics, "U64"),
    }


def _save_refusal(solution, case, text):
    try:
        topology = solution.parse_topology(text)
        rank = case.params.get("rank")
        if rank is not None:
            solution.bind(topology, rank)
        raised = ("nothing", "")
    except Exception as error:
        raised = (type(error).__name__, str(error)[:200])
    case.save("raised", np.array(raised, dtype="U200"))


def _all_reduce(solution, comm, case, text):
    """Sum `vector` of all ranks along a ring; rank 0 finds the order and tells the others."""
    rank, n = comm.Get_rank(), comm.Get_size()
    order = np.arange(n)
    if case.params["order"] == "yours":
        if rank == 0:
            order = _agreed_order(solution, case, text, n)
        _tell(comm, order, rank, n)
    if order[0] < 0:
        return
    case.save("order", order)
    vector = case.inputs["vector"]
    total = case.output("total", vector.shape, vector.dtype)
    total[:] = vector
    _ring_sum(comm, total, [int(gpu) for gpu in order])


def _agreed_order(solution, case, text, n):
    try:
        order = _ring(solution, solution.parse_topology(text))["order"]
    except Malformed as error:
        case.save("malformed", np.array(str(error)[:400], dtype="U400"))
        return np.full(n, -1)
    if sorted(order.tolist()) == list(range(n)):
        return order
    case.save("order", order)  # no permutation: the grader says so, and nobody waits in a ring
    return np.full(n, -1)


def _tell(comm, order, rank, n):
    if rank == 0:
        for other in range(1, n):
            comm.Send(order.view(np.uint8), other, TAG)
    else:
        comm.Recv(order.view(np.uint8), 0, TAG)


def _ring_sum(comm, total, order):
    n, place = len(order), order.index(comm.Get_rank())
    right, left = order[(place + 1) % n], order[(place - 1) % n]
    chunks = np.array_split(total, n)
    for step in range(n - 1):
        arrived = np.empty_like(chunks[(place - step - 1) % n])
        _shift(comm, chunks[(place - step) % n], right, arrived, left)
        chunks[(place - step - 1) % n] += arrived
    for step in range(n - 1):
        _shift(comm, chunks[(place + 1 - step) % n], right, chunks[(place - step) % n], left)


def _shift(comm, outgoing, right, incoming, left):
    comm.Sendrecv(outgoing.view(np.uint8), right, TAG, incoming.view(np.uint8), left, TAG)
