"""`distlab export`: results in the format of a learning platform. One subcommand a sink."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grader import sinks
from grader.result import GradeResult
from grader.user_mistake import stop
from grader.whole_file import write_whole

Results = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULT...",
        help="result.json of a grading, or a batch's folder of results.",
    ),
]
To = Annotated[Path | None, typer.Option("--to", help="File to write; default: standard output.")]


class _Sinks(TyperGroup):
    """Imports a sink when it is asked for: some need packages that not everybody has."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(name for name in names() if self.get_command(ctx, name) is not None)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module = _load(cmd_name) if cmd_name in names() else None
        if module is None or not hasattr(module, "command"):
            return None
        app = typer.Typer(add_completion=False)
        app.command(cmd_name, help=module.command.__doc__)(module.command)
        return typer.main.get_command(app)


export_app = typer.Typer(
    cls=_Sinks,
    help="Hand results to a learning platform, in its own format.",
    no_args_is_help=True,
)


def names() -> list[str]:
    """What may be a sink: the modules of `grader.sinks`, with dashes."""
    return [module.name.replace("_", "-") for module in pkgutil.iter_modules(sinks.__path__)]


def _load(name: str) -> ModuleType | None:
    with suppress(ImportError):
        return importlib.import_module(f"{sinks.__name__}.{name.replace('-', '_')}")
    return None


@dataclass(frozen=True)
class Graded:
    """One result. who: the learner, where the file lies in a batch's folder, else ""."""

    who: str
    result: GradeResult


def read(paths: Sequence[Path]) -> tuple[Graded, ...]:
    """The results in these files and folders; ends the command in a sentence if one is not."""
    found = []
    for path in paths:
        inside = sorted(path.glob("*/*/result.json")) if path.is_dir() else [path]
        if not inside:
            stop(f"{path} holds no WHO/PROBLEM/result.json; `distlab batch` makes such a folder")
        found += [_read(file) for file in inside]
    return tuple(found)


def read_submission(paths: Sequence[Path]) -> list[GradeResult]:
    """The same, of one learner who has handed in each problem once."""
    graded = read(paths)
    numbers = [one.result.problem.number for one in graded]
    if len({one.who for one in graded}) > 1 or len(set(numbers)) < len(numbers):
        stop("these are results of several submissions; give those of one learner")
    return [one.result for one in graded]


def _read(path: Path) -> Graded:
    from grader.batch.handback import who_of
    from grader.result_json import BadResult, from_json

    try:
        result = from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        stop(f"there is no file {path}; `distlab grade NN FILE --json {path.name}` writes one")
    except (OSError, UnicodeDecodeError, BadResult) as error:
        stop(f"{path} is not the result of a grading: {error}")
    absolute = path.absolute()
    in_batch = absolute.parent.name.endswith(f"_{result.problem.slug}")
    return Graded(who_of(absolute.parents[1].name) if in_batch else "", result)


def deliver(text: str, to: Path | None) -> None:
    """Write a sink's text where the user wants it, whole or not at all."""
    if to is None:
        sys.stdout.write(text)
        return
    try:
        write_whole(to, text)
    except OSError as error:
        stop(f"{to} cannot be written: {error.strerror}; name another file with --to")
