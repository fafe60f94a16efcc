"""What a learner hands in: taken as it is, read but never imported by the grader."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.package import Problem

_MOST_BYTES = 32 * 2**20
_MOST_FILES = 1000
_MOST_SOURCE_BYTES = 2**20  # parsing takes some 150 times as much memory


class SubmissionError(Exception):
    """The submission cannot be graded: one sentence for the user."""


@dataclass(frozen=True)
class RefusedUse:
    """A forbidden call or name, and the line on which it stands."""

    name: str
    line: int


@dataclass(frozen=True)
class Submission:
    """A file, or a folder with solution.py and what it imports.

    files: target name below `submission/` -> source, as the hosts will see them.
    """

    path: Path
    entry: str
    files: dict[str, Path]
    source: str
    tree: ast.Module


def read(path: Path, problem: Problem) -> Submission:
    """Take in a submission. Raises SubmissionError for whatever the learner can put right."""
    if not path.exists():
        raise SubmissionError(
            f"there is no file {path}; `distlab start {problem.number:02d}` writes a stub"
        )
    main = path / "solution.py" if path.is_dir() else path
    if not main.is_file():
        raise SubmissionError(f"{path} has no solution.py; put your code there")
    if main.suffix != ".py":
        raise SubmissionError(f"{main} is not a Python file; hand in solution.py")
    if main != path and main.is_symlink():
        raise SubmissionError(f"{main} is a link; hand in the file itself")
    files = files_of(path)
    source_bytes = sum(p.stat().st_size for n, p in files.items() if n.endswith(".py"))
    if source_bytes > _MOST_SOURCE_BYTES:
        raise SubmissionError(f"{path} holds more than 1 MiB of Python source; hand in less")
    try:
        source = main.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SubmissionError(f"{main} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise SubmissionError(f"{main} cannot be read: {error.strerror}") from None
    try:
        tree = ast.parse(source, filename=main.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        reason = getattr(error, "msg", None) or str(error) or "nested too deeply"
        raise SubmissionError(f"{main.name}{where}: syntax error: {reason}") from None
    return Submission(path, main.name, files, source, tree)


def files_of(handed_in: Path) -> dict[str, Path]:
    """What a submission is made of, by its name on the hosts. Raises SubmissionError if too much.

    Links in a folder are not followed.
    """
    if not handed_in.is_dir():
        return {f"submission/{handed_in.name}": handed_in}
    return _files_below(handed_in)


def _files_below(folder: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    total = 0
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or "__pycache__" in path.parts:
            continue
        total += path.stat().st_size
        files[f"submission/{path.relative_to(folder)}"] = path
        if total > _MOST_BYTES or len(files) > _MOST_FILES:
            raise SubmissionError(
                f"{folder} holds more than {_MOST_BYTES >> 20} MiB or {_MOST_FILES} files; "
                "hand in the solution alone"
            )
    return files


def missing_functions(submission: Submission, problem: Problem) -> list[str]:
    """A sentence for each name of the API that the submission does not define at top level."""
    defined = set(_top_level_names(submission.tree))
    if "*" in defined:
        return []
    sentences = []
    for name in problem.functions:
        if name not in defined:
            near = difflib.get_close_matches(name, defined, n=1)
            guess = f"; did you misname it {near[0]!r}?" if near else ""
            sentences.append(f"{submission.entry} defines no {name!r}{guess}")
    return sentences


def _top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name


def refused_uses(submission: Submission, problem: Problem) -> list[RefusedUse]:
    """Forbidden calls and names that can be seen in the source, by line.

    Lenient where a name has an innocent reading (`np.add.reduce`, a method of the learner's own):
    what slips through is refused when it is called.
    """
    calls, names = set(problem.refused.calls), set(problem.refused.names)
    found: set[RefusedUse] = set()
    for relative, path in submission.files.items():
        if not relative.endswith(".py"):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        innocent, meant = _names_from_elsewhere(tree), _imported_names(tree)
        own = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        for node in ast.walk(tree):
            for name in _called(node, innocent):
                if name in calls - own:
                    found.add(RefusedUse(name, getattr(node, "lineno", 0)))
            for name in _named(node, meant):
                if name in names:
                    found.add(RefusedUse(name, getattr(node, "lineno", 0)))
    return sorted(found, key=lambda use: (use.line, use.name))


def _names_from_elsewhere(tree: ast.Module) -> set[str]:
    """Names bound by imports of anything but mpi4py."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] != "mpi4py":
                    bound.add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("mpi4py"):
            bound |= {alias.asname or alias.name for alias in node.names}
    return bound


def _called(node: ast.AST, innocent: set[str]) -> list[str]:
    """Method names that `node` reaches for, unless on something imported from elsewhere."""
    if isinstance(node, ast.Attribute):
        root: ast.expr = node.value
        while isinstance(root, (ast.Attribute, ast.Call)):
            root = root.value if isinstance(root, ast.Attribute) else root.func
        return [] if isinstance(root, ast.Name) and root.id in innocent else [node.attr]
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
        function = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if function in ("getattr", "methodcaller", "attrgetter", "__getattribute__"):
            constants = [a.value for a in node.args if isinstance(a, ast.Constant)]
            return [value for value in constants if isinstance(value, str)]
    return []


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """What names bound by imports stand for: `dist` for `torch.distributed`."""
    meant: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meant |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            meant |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return meant


def _named(node: ast.AST, meant: dict[str, str]) -> list[str]:
    """Modules, names and attributes that `node` mentions, dotted ones with all they begin with."""
    if isinstance(node, ast.Attribute):
        return [node.attr, *_dotted(node, meant)]
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Import):
        return [part for alias in node.names for part in _beginnings(alias.name)]
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [alias.name for alias in node.names]
        whole = [part for name in names for part in _beginnings(f"{node.module}.{name}")]
        return [*whole, *names]
    return _called(node, set()) if isinstance(node, ast.Call) else []


def _dotted(node: ast.Attribute, meant: dict[str, str]) -> list[str]:
    """The whole name of an attribute of an imported module, if that is what it is."""
    parts, root = [node.attr], node.value
    while isinstance(root, ast.Attribute):
        parts.append(root.attr)
        root = root.value
    if not isinstance(root, ast.Name):
        return []
    return [".".join([meant.get(root.id, root.id), *reversed(parts)])]


def _beginnings(name: str) -> list[str]:
    """a, a.b and a.b.c for a.b.c."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
