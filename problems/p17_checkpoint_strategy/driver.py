"""Runs on every rank: plays the training job whose checkpoints the submission writes.

A case is a short script of steps, such as `["save", 20]`, that all ranks go through, or a stretch
of real training. Nothing is judged here: what came back from disk is handed in.
"""

import contextlib
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

FOLDER = Path("/tmp/checkpoints")
OWN = Path("/tmp/driver")  # what the driver itself must find again after a kill
DISK_FULL_WITHIN_S = 4.0


def run(solution, group, case):
    OWN.mkdir(exist_ok=True)
    mode = case.params["mode"]
    if mode == "intervals":
        intervals(solution, case)
    elif mode == "train":
        train(solution, group, case)
    else:
        Script(solution, group, case).play(case.params["steps"])


def intervals(solution, case):
    """Ask for the interval of every (cost, rate) pair; a refusal is handed in as -1."""
    answers = []
    for cost, rate in case.inputs["pairs"]:
        try:
            answers.append(float(solution.optimal_interval(float(cost), float(rate))))
        except ValueError:
            answers.append(-1.0)
    case.save("intervals", np.array(answers))


class Script:
    """The steps of one case, on one rank. Its state: two tensors that change with every step."""

    def __init__(self, solution, group, case):
        self.solution, self.group, self.case = solution, group, case
        self.keep = case.params.get("keep", 2)
        self.checkpointer = self.another()
        self.progress = progress(group.rank)
        self.state = None
        if "base" in case.inputs:
            base = torch.from_numpy(case.inputs["base"].copy()).to(group.device)
            self.base = base
            self.state = {"weights": base.clone(), "adam": {"first": [base.clone()], "count": 0}}

    def another(self):
        return self.solution.Checkpointer(
            str(FOLDER), self.group.rank, self.group.world_size, keep=self.keep
        )

    def play(self, steps):
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    def train_to(self, step):
        """What an optimiser does: change every tensor where it lies."""
        self.state["weights"].copy_(self.base).add_(step)
        self.state["adam"]["first"][0].copy_(self.base).mul_(-1).sub_(step)
        self.state["adam"]["count"] = step

    def save(self, step, ranks=None, life=0):
        if ranks is None or self.group.rank in ranks:
            self.train_to(step + life)
            self.checkpointer.save_async(step, self.state)

    def spoil(self):
        """Go on training at once: whatever a save still reads, it reads wrong."""
        self.train_to(-1_000_000)

    def wait(self):
        self.checkpointer.wait()

    def meet(self):
        dist.barrier(self.group.process_group)

    def restore(self):
        found = self.another().restore()
        if self.group.world_size > 1:
            self.meet()
        step, state = found if found is not None else (-1, None)
        self.case.save("step", np.array([step], np.int64))
        self.last = int(step)
        if state is not None:
            self.case.save("weights", state["weights"])
            self.case.save("first", state["adam"]["first"][0])
            self.case.save("count", np.array([state["adam"]["count"]], np.int64))
        self.case.save("progress", self.progress.copy())
        self.progress[:2] = step

    def keep_saving(self, most=100_000):
        """Save one step after the other, without a pause, until the kill comes."""
        for step in range(self.last + 1, self.last + 1 + most):
            self.train_to(step)
            self.progress[0] = step
            self.checkpointer.save_async(step, self.state)
            self.spoil()
            if step % 2:
                self.checkpointer.wait()
                self.progress[1] = step
        self.progress[2] = 1

    def save_described(self, step):
        """Save a state of every kind of value, which comes as text."""
        described = json.loads(bytes(self.case.inputs["description"]))
        self.checkpointer.save_async(step, build(described, self.group.device))

    def restore_described(self):
        found = self.another().restore()
        text = json.dumps([-1, None] if found is None else [found[0], describe(found[1])])
        self.case.save("found", np.frombuffer(text.encode(), np.uint8))

    def restore_nothing(self):
        found = self.another().restore()
        self.case.save("nothing", np.array([found is None]))

    def count(self):
        files = {(s.st_ino, s.st_size) for s in map(os.lstat, files_below(FOLDER))}
        self.case.save("bytes", np.array([sum(size for _, size in files)], np.int64))

    def loop(self, saves, compute_s, save):
        """`saves` steps of computing for compute_s on an accelerator: this processor is free."""
        for step in range(1, saves + 1):
            self.train_to(step)
            if save:
                self.checkpointer.save_async(step, self.state)
            time.sleep(compute_s)
        if save:
            self.checkpointer.wait()

    def save_watched(self, *steps):
        """Save with every fsync and rename on record."""
        with recorded(self.solution) as record:
            for step in steps:
                self.save(step)
                self.wait()
        files = [[str(path), *identity(os.lstat(path))] for path in files_below(FOLDER)]
        text = json.dumps({"events": record.events(), "files": files})
        self.case.save("record", np.frombuffer(text.encode(), np.uint8))

    def leave_room(self, room_bytes):
        """Put aside what is to be free later: half a save, and enough to hand in an answer."""
        (OWN / "half").write_bytes(bytes(room_bytes))
        (OWN / "answer").write_bytes(bytes(8 << 20))

    def save_on_full_disk(self, step):
        """Once the disk is full, free half of what a save needs, and save."""
        until = time.monotonic() + DISK_FULL_WITHIN_S
        while os.statvfs("/tmp").f_bavail and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.2)
        (OWN / "half").unlink()
        kind, text = "nothing", ""
        try:
            self.train_to(step)
            self.checkpointer.save_async(step, self.state)
            self.checkpointer.wait()
        except Exception as error:
            kinds = [OSError, getattr(self.solution, "CheckpointError", OSError)]
            known = [k.__name__ for k in kinds if isinstance(error, k)]
            kind, text = (known or [type(error).__name__])[0], str(error)[:100]
        finally:
            (OWN / "answer").unlink()
        self.case.save("raised", np.array([kind, text], dtype="U100"))

    def remember(self):
        self.meet()
        self.known = {(path, *identity(os.lstat(path))) for path in files_below(FOLDER)}
        self.meet()

    def damage(self, how):
        """Spoil the largest file that is new since `remember`, as power cuts and bad sectors do."""
        self.meet()
        if self.group.rank == 0:
            found = [(path, *identity(os.lstat(path))) for path in files_below(FOLDER)]
            new = [path for path, *rest in found if (path, *rest) not in self.known]
            victim = max(new, key=os.path.getsize)
            with open(victim, "r+b") as stream:
                middle = victim.stat().st_size // 2
                stream.seek(middle)
                byte = stream.read(1)
                stream.seek(middle)
                if how == "cut":
                    stream.truncate()
                else:
                    stream.write(bytes([byte[0] ^ 1]))
        self.meet()


def progress(rank):
    """[step begun, step that wait() confirmed, whether the loop came to its end], in a file whose
    pages outlive the process."""
    path = OWN / f"progress.r{rank}"
    if not path.exists():
        np.array([-1, -1, 0], np.int64).tofile(path)
    return np.memmap(path, np.int64, "r+")


def files_below(folder):
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def identity(status):
    return status.st_ino, status.st_size, status.st_mtime_ns


def describe(value):
    """A value as JSON in which its exact type can be seen."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), raw.hex()]
    if type(value) is dict:
        return ["dict", [[describe(k), describe(v)] for k, v in value.items()]]
    if type(value) in (list, tuple):
        return [type(value).__name__, [describe(v) for v in value]]
    return [type(value).__name__, repr(value)]


def build(described, device):
    """The value that `describe` gives `described` for."""
    kind, *rest = described
    if kind == "tensor":
        dtype, shape, raw = rest
        flat = torch.frombuffer(bytearray.fromhex(raw) or bytearray(1), dtype=torch.uint8)
        flat = flat[: len(raw) // 2].clone().view(getattr(torch, dtype))
        # Every second element of a larger one: state is not always contiguous.
        wide = torch.zeros([*shape, 2], dtype=flat.dtype)
        wide[..., 0] = flat.reshape(shape)
        return wide.to(device)[..., 0]
    if kind == "dict":
        return {build(k, device): build(v, device) for k, v in rest[0]}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](build(v, device) for v in rest[0])
    plain = {"int": int, "float": float, "str": lambda s: s[1:-1], "bool": lambda s: s == "True"}
    return plain[kind](rest[0]) if kind in plain else None


class Record:
    """What the submission asked of the disk, a line each, from whatever thread or child process."""

    def __init__(self):
        self._file = os.open(
            OWN / "record", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600
        )

    def add(self, name, **what):
        os.write(self._file, json.dumps({"name": name, **what}).encode() + b"\n")

    def events(self):
        return [json.loads(line) for line in (OWN / "record").read_text().splitlines()]


@contextlib.contextmanager
def replaced(solution, functions):
    """Put other functions in the place of some of os's, also where they were imported by name."""
    originals = {name: getattr(os, name) for name in functions}
    places = [(os, name, name) for name in functions]
    for name, original in originals.items():
        places += [(solution, n, name) for n, v in list(vars(solution).items()) if v is original]
    for place, name, original in places:
        setattr(place, name, functions[original])
    try:
        yield
    finally:
        for place, name, original in places:
            setattr(place, name, originals[original])


@contextlib.contextmanager
def recorded(solution):
    """Record fsync, rename and mkdir: what kind, of which file, and how that file stood then."""
    record, real = Record(), {n: getattr(os, n) for n in ("fsync", "rename", "mkdir")}

    def sync(target):
        number = target if isinstance(target, int) else target.fileno()
        record.add("fsync", file=identity(os.fstat(number)))
        real["fsync"](number)

    def rename(source, target, **folders):
        inner = [Path(source), *files_below(source)]
        files = [[str(p), *identity(os.lstat(p))] for p in inner if p.is_file()]
        real["rename"](source, target, **folders)
        parent = os.stat(os.path.dirname(os.path.abspath(os.fspath(target)))).st_ino
        record.add("rename", to=os.fspath(target), files=files, folder=parent)

    def mkdir(path, *arguments, **named):
        real["mkdir"](path, *arguments, **named)
        parent = os.stat(os.path.dirname(os.path.abspath(os.fspath(path)))).st_ino
        record.add("mkdir", to=os.fspath(path), folder=parent)

    watched = {"fsync": sync, "fdatasync": sync, "rename": rename, "replace": rename}
    with replaced(solution, {**watched, "mkdir": mkdir}):
        yield record


class Batches:
    """Where training stands in its data.

    order: this epoch's row numbers. position: how many of them are used up. epoch: from 0.
    generator: draws the order of every further epoch.
    """

    def __init__(self, rows, size, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.rows, self.size, self.epoch, self.position = rows, size, 0, 0
        self.order = torch.randperm(rows, generator=self.generator)

    def take(self):
        if self.position + self.size > self.rows:
            self.order = torch.randperm(self.rows, generator=self.generator)
            self.epoch, self.position = self.epoch + 1, 0
        self.position += self.size
        return self.order[self.position - self.size : self.position]


class Trainer:
    """One rank of data-parallel training on digits: model, optimizer, scheduler, batches, step.

    Dropout draws from torch's global generator.
    """

    def __init__(self, group, images, labels, seed):
        torch.manual_seed(seed)
        self.group, self.step = group, 0
        self.images = torch.from_numpy(images).to(group.device)
        self.labels = torch.from_numpy(labels).to(group.device)
        layers = [nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.3)]
        self.model = nn.Sequential(*layers, nn.Linear(48, 10)).to(group.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=7, gamma=0.8)
        self.batches = Batches(len(images), 50, seed + group.rank)
        torch.manual_seed(seed + 100 + group.rank)

    def train_step(self):
        """One step; returns the first row of its batch, and its loss."""
        rows = self.batches.take()
        loss = nn.functional.cross_entropy(self.model(self.images[rows]), self.labels[rows])
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.group.process_group)
            parameter.grad /= self.group.world_size
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        return int(rows[0]), float(loss.detach())


def train(solution, group, case):
    """Train to step `steps`. every: save that often (0: never). resume: go on from the newest
    checkpoint. stop_at: the step after which to wait for the kill, with a save under way or not."""
    given = case.params
    trainer = Trainer(group, case.inputs["images"], case.inputs["labels"], given["seed"])
    begun, checkpointer = progress(group.rank), None
    if given["every"]:
        checkpointer = solution.Checkpointer(str(FOLDER), group.rank, group.world_size, keep=2)
    if given["resume"]:
        case.save("progress", begun.copy())
        found = checkpointer.restore()
        dist.barrier(group.process_group)
        if found is not None:
            solution.load_training_state(trainer, found[1])
        case.save("resumed", np.array([-1 if found is None else found[0], trainer.step], np.int64))
    seen = []
    while trainer.step < given["steps"]:
        seen.append((trainer.step + 1, *trainer.train_step()))
        if given["every"] and trainer.step % given["every"] == 0:
            checkpointer.wait()
            begun[:2] = trainer.step, begun[0]
            checkpointer.save_async(trainer.step, solution.training_state(trainer))
        if trainer.step == given["stop_at"]:
            time.sleep(60)
    case.save("seen", np.array(seen, np.float64))
    tensors = [t.double().reshape(-1) for t in trainer.model.state_dict().values()]
    case.save("model", torch.cat(tensors))
    moments = [s[k] for s in trainer.optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")]
    case.save("adam", torch.cat([m.reshape(-1) for m in moments]))
    case.save("dice", torch.rand(8))
