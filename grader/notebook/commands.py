"""`distlab notebook`: problems as nbgrader notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from grader import package
from grader.outcome import EXIT_USER_MISTAKE
from grader.package import Problem, root_folder

notebook_app = typer.Typer(help="Problems as notebooks for a class.", no_args_is_help=True)
_FILES = Path(__file__).with_name("course_files")


@notebook_app.callback()
def notebook() -> None:
    """Problems as notebooks for a class."""


@notebook_app.command()
def build(
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[NN...]", help="Problems; default: all.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="The course's folder; default: notebooks/.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if a file is not up to date.")
    ] = False,
) -> None:
    """Write an nbgrader course: a notebook for each problem, and the course's settings."""
    try:
        import nbformat  # noqa: F401
    except ImportError:
        _stop("notebooks need nbgrader; install it with `pip install -e '.[class]'`")
    problems = [package.find(one) for one in wanted] if wanted else package.discover()
    course = to or root_folder() / "notebooks"
    texts = dict(pair for problem in problems for pair in _files(problem, course).items())
    settings = course / "nbgrader_config.py"
    if not settings.exists():  # what an instructor changed in them stays
        texts[settings] = (_FILES / "course.txt").read_text()
    stale = [path for path, text in texts.items() if not _holds(path, text)]
    for path in stale:
        try:
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(texts[path], encoding="utf-8")
        except OSError as error:
            _stop(f"{path} cannot be written: {error.strerror}; name another folder with --to")
        word = "is not up to date; run `distlab notebook build`" if check else "written"
        _say(f"{path} {word}")
    if not stale:
        _say(f"{len(texts)} files are up to date")
    raise typer.Exit(1 if check and stale else 0)


def _files(problem: Problem, course: Path) -> dict[Path, str]:
    from grader.notebook.layout import notebook_text

    folder = course / "source" / problem.name
    return {
        folder / f"{problem.name}.ipynb": notebook_text(problem),
        folder / "nbgrader_config.py": (_FILES / "assignment.txt").read_text(),
    }


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _say(line: str) -> None:
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def _stop(sentence: str) -> NoReturn:
    Console(stderr=True).print(
        f"distlab: {sentence}", markup=False, highlight=False, soft_wrap=True
    )
    raise typer.Exit(EXIT_USER_MISTAKE)
