"""Prove a problem package: its files, its reference on its stub, and every submission's verdict."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.check_list import listed
from grader.grading_server import GradingServer
from grader.outcome import Outcome
from grader.package import EXTRA_PUBLIC_FILES, PUBLIC_FILES, PackageError, Problem

_BLOCK = re.compile(r"^# /// script\s*\n((?:#.*\n)*?)# ///\s*$", re.M)
_PRIVATE_FILES = ("solution.py", "notes.md")
_FEWEST_WRONG, _FEWEST_RIGHT, _HINTS = 6, 2, 3


@dataclass(frozen=True)
class Expectation:
    """The verdict that a file in submissions/ must get.

    outcome: of the check named `check`, or of the whole grading when there is none. says: words
    that the message must contain. score: least share of the points, for one that passes; below 1,
    a partial outcome will do too, for algorithms whose time lies near a limit.
    """

    path: Path
    outcome: Outcome
    check: str | None
    says: str
    score: float


def expectation(path: Path) -> Expectation:
    """Read the PEP 723 block of a submission. Raises PackageError when it is missing or wrong."""
    match = _BLOCK.search(path.read_text())
    if not match:
        raise PackageError(f"{path} has no `# /// script` block that states its verdict")
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in match[1].splitlines())
    try:
        table = tomllib.loads(text)["tool"]["distlab"]
        outcome = Outcome(table["outcome"])
    except (tomllib.TOMLDecodeError, KeyError, ValueError) as error:
        raise PackageError(f"{path}: its verdict block cannot be read: {error}") from None
    unknown = set(table) - {"outcome", "check", "says", "score"}
    if unknown:
        raise PackageError(f"{path}: unknown key {sorted(unknown)[0]!r} in its verdict block")
    least = 1 if outcome is Outcome.PASSED else 0
    return Expectation(
        path, outcome, table.get("check"), table.get("says", ""), float(table.get("score", least))
    )


def submissions(problem: Problem) -> tuple[Path, ...]:
    """The right and wrong submissions of a problem, in the checkout that has the private half."""
    if problem.private_folder is None:
        return ()
    return tuple(sorted((problem.private_folder / "submissions").glob("*.py")))


def complaints(problem: Problem) -> Iterator[str]:
    """What is wrong with the files of a package, each with what to do about it."""
    for name in PUBLIC_FILES:
        if not (problem.folder / name).is_file():
            yield f"{problem.name}: {name} is missing from problems/"
    for path in sorted(problem.folder.iterdir()):
        if path.name not in {*PUBLIC_FILES, *EXTRA_PUBLIC_FILES, "__pycache__"}:
            yield f"{problem.name}: {path.name} does not belong in problems/; remove it"
    if len(problem.hints) != _HINTS:
        yield f"{problem.name}: {len(problem.hints)} hints in problem.toml; write {_HINTS}"
    total = sum(check.points for check in listed(problem))
    if total != problem.points and problem.private_folder is not None:
        stated = f"problem.toml says {problem.points:g}"
        yield f"{problem.name}: the checks are worth {total:g} points, {stated}"
    yield from _stub_complaints(problem)
    if problem.private_folder is None:
        return
    for name in _PRIVATE_FILES:
        if not (problem.private_folder / name).is_file():
            yield f"{problem.name}: {name} is missing from solutions/"
    names = [path.name for path in submissions(problem)]
    for prefix, fewest in (("wrong_", _FEWEST_WRONG), ("right_", _FEWEST_RIGHT)):
        count = sum(name.startswith(prefix) for name in names)
        if count < fewest:
            yield f"{problem.name}: {count} {prefix}*.py; write at least {fewest}"
    for path in submissions(problem):
        if not path.name.startswith(("wrong_", "right_")):
            yield f"{problem.name}: {path.name} is named neither wrong_*.py nor right_*.py"


def _stub_complaints(problem: Problem) -> Iterator[str]:
    """The reference must fit on the stub: same names, same parameters."""
    stub = _signatures(problem.folder / "stub.py")
    for name in problem.functions:
        if name not in stub:
            yield f"{problem.name}: stub.py does not define {name}, which problem.toml names"
    if problem.private_folder is None:
        return
    reference = _signatures(problem.private_folder / "solution.py")
    for name, parameters in stub.items():
        if reference.get(name) != parameters:
            yield (
                f"{problem.name}: {name} takes {parameters} in stub.py and "
                f"{reference.get(name)} in solution.py; make them the same"
            )


def _signatures(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if not path.is_file():
        return found
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = [a.arg for a in node.args.args]
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                    found[f"{node.name}.{part.name}"] = [a.arg for a in part.args.args]
            found[node.name] = []
    return found


@dataclass(frozen=True)
class Verdict:
    """What a submission really got. problem: a sentence if that is not what it must get."""

    expectation: Expectation
    complaint: str | None
    seconds: float
    result: dict[str, Any]


def prove(server: GradingServer, path: Path) -> Verdict:
    """Grade one submission and compare with what it must get.

    A wrong one is given the stated check alone (with those it builds on). Raises
    GradingServerDied.
    """
    stated = expectation(path)
    result = server.grade(path, [stated.check] if stated.check else [])
    return Verdict(stated, _compare(stated, result), float(result["duration_s"]), result)


def run_grading(
    problem: Problem, path: Path, only: list[str], timeout_s: float = 300
) -> tuple[dict[str, Any], int]:
    """Run `distlab grade` as a user would; return its JSON result and exit code."""
    with tempfile.TemporaryDirectory(prefix="distlab-check-") as folder:
        target = Path(folder) / "result.json"
        command = [sys.executable, "-m", "grader.cli", "grade", problem.name, str(path)]
        command += ["--json", str(target)]
        for name in only:
            command += ["--only", name]
        environment = {**os.environ, "DISTLAB_RUNS": folder, "DISTLAB_STATE": f"{folder}/state"}
        environment.pop("DISTLAB_ENCLOSURE", None)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment
        )
        if not target.exists():
            return {"error": done.stderr.strip() or done.stdout.strip()}, done.returncode
        return json.loads(target.read_text()), done.returncode


def _compare(stated: Expectation, result: dict[str, Any]) -> str | None:
    name, checks = stated.path.name, result["checks"]
    seen = {c["name"]: c for c in checks}
    summary = "; ".join(
        f"{c['name']} {c['outcome']}: {c['message'][:300]}"
        for c in checks
        if c["outcome"] != "passed"
    )
    if stated.check is None:
        earned, possible = float(result["score"]), float(result["max_score"])
        acceptable = {stated.outcome}
        if stated.outcome is Outcome.PASSED and stated.score < 1:
            acceptable.add(Outcome.PARTIAL)
        if result["outcome"] not in acceptable or earned < stated.score * possible:
            return (
                f"{name}: must be {stated.outcome} with {stated.score:.0%} of the points, is "
                f"{result['outcome']} with {earned:g} of {possible:g} ({summary})"
            )
        said = " ".join(str(c["message"]) for c in checks)
        return None if stated.says in said else f"{name}: {stated.says!r} is not in {said!r}"
    check = seen.get(stated.check) or seen.get("submission")
    if check is None:
        return f"{name}: {stated.check} did not run ({summary})"
    if check["outcome"] != stated.outcome:
        return f"{name}: {stated.check} must be {stated.outcome}, is {check['outcome']} ({summary})"
    if stated.says not in check["message"]:
        return (
            f"{name}: {stated.says!r} is not in the message of {stated.check}: {check['message']!r}"
        )
    return None
