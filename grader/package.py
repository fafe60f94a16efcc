"""Problem packages: found by looking into a folder, described by a validated problem.toml."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_FOLDER = re.compile(r"p(\d\d)_([a-z0-9_]+)$")
PUBLIC_FILES = ("card.md", "problem.toml", "stub.py", "driver.py", "test_grade.py")
SHARED_FILES = ("data.py", "model.py")  # optional; driver and checks may import them
EXTRA_PUBLIC_FILES = ("sample_submission.py", *SHARED_FILES)


class PackageError(Exception):
    """A problem package is wrong or cannot be found: one sentence for the user."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClusterNeeds(_Strict):
    """Hosts, rank slots per host, and what one host may use (MiB, processes)."""

    hosts: Annotated[int, Field(ge=1, le=12)] = 4
    slots: Annotated[int, Field(ge=1, le=16)] = 1
    memory_mb: Annotated[int, Field(ge=64)] = 3072
    tmp_mb: Annotated[int, Field(ge=1)] = 512
    pids: Annotated[int, Field(ge=16)] = 512


class TimeLimits(_Strict):
    """Seconds: `case` for one call of the submission, `load` to import it."""

    case: Annotated[float, Field(gt=0, le=600)] = 20.0
    load: Annotated[float, Field(gt=0, le=120)] = 20.0


class Refused(_Strict):
    """calls: methods that may not be called, by name. names: modules or dotted names that may not
    be used at all. why: what the learner is told."""

    calls: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    why: str = ""


class Metric(_Strict):
    name: str
    unit: str = ""
    about: str


class Hint(_Strict):
    """cost: points that reading it takes off."""

    cost: Annotated[float, Field(ge=0)]
    text: Annotated[str, Field(min_length=10)]


class _Toml(_Strict):
    number: Annotated[int, Field(ge=1, le=99)]
    title: Annotated[str, Field(min_length=3)]
    summary: Annotated[str, Field(min_length=10)]
    level: Literal["basic", "advanced", "expert"]
    topics: Annotated[tuple[str, ...], Field(min_length=1)]
    points: Annotated[float, Field(gt=0)]
    runtime: Literal["mpi", "torch", "python"]
    functions: Annotated[tuple[str, ...], Field(min_length=1)]
    faults: tuple[str, ...] = ()
    cluster: ClusterNeeds = ClusterNeeds()
    limits: TimeLimits = TimeLimits()
    refused: Refused = Refused()
    metrics: tuple[Metric, ...] = ()
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One exercise. folder: its public half; private_folder: its private half, if present."""

    folder: Path
    private_folder: Path | None
    slug: str
    number: int
    title: str
    summary: str
    level: str
    topics: tuple[str, ...]
    points: float
    runtime: str
    functions: tuple[str, ...]
    faults: tuple[str, ...]
    cluster: ClusterNeeds
    limits: TimeLimits
    refused: Refused
    metrics: tuple[Metric, ...]
    hints: tuple[Hint, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def names(self) -> frozenset[str]:
        """What people may call it."""
        return _names(f"{self.number:02d}", self.slug)

    @property
    def visible_checks(self) -> Path:
        return self.folder / "test_grade.py"

    @property
    def hidden_checks(self) -> Path | None:
        path = self.private_folder / "test_hidden.py" if self.private_folder else None
        return path if path is not None and path.exists() else None


def root_folder() -> Path:
    """The folder that holds problems/ and solutions/."""
    return Path(__file__).resolve().parent.parent


def load(folder: Path) -> Problem:
    """Read and validate one problem package. Raises PackageError naming file, line and fault."""
    match = _FOLDER.fullmatch(folder.name)
    if not match:
        raise PackageError(f"{folder} is not named like p03_allreduce_mpi")
    path = folder / "problem.toml"
    try:
        text = path.read_text()
        values = _Toml.model_validate(tomllib.loads(text))
    except FileNotFoundError:
        raise PackageError(f"{path} is missing; every problem package has one") from None
    except tomllib.TOMLDecodeError as error:
        raise PackageError(f"{path}: {error}") from None
    except ValidationError as error:
        raise PackageError(_explain(path, text, error)) from None
    if values.number != int(match.group(1)):
        raise PackageError(
            f"{path}: number = {values.number}, but the folder says {match.group(1)}"
        )
    private = root_folder() / "solutions" / folder.name
    fields: dict[str, Any] = {name: getattr(values, name) for name in _Toml.model_fields}
    return Problem(folder, private if private.is_dir() else None, match.group(2), **fields)


def _explain(path: Path, text: str, error: ValidationError) -> str:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    line = _line_of(text, location)
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        return f"{path}:{line}: unknown key `{key}`; CONTRIBUTING.md lists the valid ones"
    if first["type"] == "missing":
        return f"{path}: key `{key}` is missing"
    return f"{path}:{line}: `{key}`: {first['msg'].lower()}, got {first['input']!r}"


def _line_of(text: str, location: list[str]) -> int:
    """Line of a key in a TOML text: the last table of its path, then the key itself."""
    keys = [part for part in location if not part.isdigit()]
    lines = text.splitlines()
    start = 0
    for depth in range(1, len(keys)):
        header = re.compile(
            r"\s*\[{1,2}\s*" + r"\s*\.\s*".join(map(re.escape, keys[:depth])) + r"\s*\]"
        )
        start = next((i for i, line in enumerate(lines) if header.match(line)), start)
    key = re.compile(rf"\s*\[*\s*(?:[\w.]+\.)?[\"']?{re.escape(keys[-1])}[\"']?\s*[=\].]")
    found = next((i for i in range(start, len(lines)) if key.match(lines[i])), start)
    return found + 1


def discover(root: Path | None = None) -> tuple[Problem, ...]:
    """All problem packages below `root`/problems, by number."""
    return tuple(map(load, _folders(root)))


def find(wanted: str, root: Path | None = None) -> Problem:
    """The problem called `wanted`: a number, a slug, or a folder's name.

    Others are not read: a package that somebody is still writing is in nobody's way.
    """
    numbers = []
    for folder in _folders(root):
        match = _FOLDER.fullmatch(folder.name)
        assert match is not None
        number, slug = match.groups()
        if wanted in _names(number, slug):
            return load(folder)
        numbers.append(number)
    known = ", ".join(numbers)
    raise PackageError(f"there is no problem {wanted!r}; there are {known} (see `distlab list`)")


def all_names(root: Path | None = None) -> frozenset[str]:
    """What people may call any problem there is. Reads no package."""
    matches = (_FOLDER.fullmatch(folder.name) for folder in _folders(root))
    return frozenset(name for match in matches if match for name in _names(*match.groups()))


def _names(number: str, slug: str) -> frozenset[str]:
    """number: of two digits, as in the folder's name."""
    return frozenset({slug, f"p{number}_{slug}", number, str(int(number)), f"p{number}"})


def _folders(root: Path | None) -> list[Path]:
    folder = (root or root_folder()) / "problems"
    if not folder.is_dir():
        raise PackageError(f"{folder} is missing; run distlab from a complete checkout")
    return [path for path in sorted(folder.iterdir()) if _FOLDER.fullmatch(path.name)]
