"""`distlab similar`: pairs of submissions to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grader import package
from grader.class_folder import LAYOUT, Survey, survey
from grader.package import EXTRA_PUBLIC_FILES, PUBLIC_FILES, Problem
from grader.user_mistake import stop

if TYPE_CHECKING:
    from grader.similar.compare import Entry
    from grader.similar.page import Found

similar_app = typer.Typer()
console = Console()


@similar_app.command(rich_help_panel="For instructors")
def similar(
    submissions: Annotated[
        Path,
        typer.Argument(metavar="SUBMISSIONS", help=f"Folder of {LAYOUT}."),
    ],
    problem: Annotated[
        list[str] | None,
        typer.Option(metavar="NN", help="Compare this problem; repeat for more. Default: all."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page, side by side.")
    ] = None,
    base: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A text that all may share, besides the public files."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Compare with these too, such as last year's."),
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Compare with the reference solution too.")
    ] = False,
    threshold: Annotated[
        int | None, typer.Option(metavar="PERCENT", help="List pairs from here. Default: 40.")
    ] = None,
) -> None:
    """Find submissions that have much in common, whatever the names in them."""
    if threshold is not None and not 1 <= threshold <= 100:
        stop(f"--threshold is a percentage from 1 to 100, not {threshold}")
    if to is not None and not to.absolute().parent.is_dir():
        stop(f"the folder of {to} does not exist")
    known = package.discover()
    wanted = [package.find(number) for number in problem or ()]
    remarks: list[str] = []
    handed_in = _read(submissions, wanted, known, remarks)
    earlier = [(place, _read(place, wanted, known, remarks)) for place in against or ()]
    texts = [_text(path) for path in base or ()]
    if not any(entry.paths for entry in handed_in.entries):
        stop(f"{submissions} holds no submission; it needs {LAYOUT}")
    try:  # with copydetect comes matplotlib: seconds
        from grader.similar.compare import DEFAULT_PERCENT, compare
        from grader.similar.page import Found, render
    except ModuleNotFoundError as error:
        stop(f"{error.name} is not installed; `pip install 'distlab[class]'` brings it")
    percent = DEFAULT_PERCENT if threshold is None else threshold
    found = []
    for one in wanted or known:
        entries = _entries(handed_in, one, "", True, remarks)
        if not entries:
            continue
        for place, folder in earlier:
            entries += _entries(folder, one, f"{place.name}/", False, remarks)
        if reference:
            entries += _reference(one, remarks)
        comparison = compare(entries, [*texts, *_given_out(one)], percent / 100)
        remarks += [
            f"{entry.who}, problem {one.number:02d}: too little of its own to compare"
            for entry in comparison.too_short
        ]
        found.append(Found(one, comparison))
    _show(found, percent, remarks)
    if to is not None:
        try:
            to.write_text(render(found, percent, remarks), encoding="utf-8")
        except OSError as error:
            stop(f"{to} cannot be written: {error.strerror}; name another file with --to")
        console.print(Text(f"Side by side: {to}"), soft_wrap=True)


def _read(
    folder: Path, wanted: Sequence[Problem], known: Sequence[Problem], remarks: list[str]
) -> Survey:
    try:
        read = survey(folder, known, wanted)
    except OSError as error:
        stop(f"{folder} cannot be read: {error.strerror}; name the folder of submissions")
    remarks += [f"not recognised, and not compared: {folder / path}" for path in read.strangers]
    return read


def _entries(
    folder: Survey, problem: Problem, prefix: str, of_class: bool, remarks: list[str]
) -> list[Entry]:
    from grader.similar.compare import Entry
    from grader.similar.source import NotComparable, read_source

    entries = []
    for who, path in (
        (f"{prefix}{entry.who}", path)
        for entry in folder.entries
        if entry.problem == problem
        for path in entry.paths
    ):
        try:
            source = read_source(path)
        except NotComparable as error:
            remarks.append(f"{who}, problem {problem.number:02d}: {error}; not compared")
            continue
        remarks += [f"{who}, problem {problem.number:02d}: {note}" for note in source.notes]
        entries.append(Entry(who, source, of_class))
    return entries


def _reference(problem: Problem, remarks: list[str]) -> list[Entry]:
    from grader.similar.compare import Entry
    from grader.similar.source import read_source

    if problem.private_folder is None:
        remarks.append(f"problem {problem.number:02d} has no reference here")
        return []
    source = read_source(problem.private_folder / "solution.py")
    return [Entry("the reference", source, of_class=False)]


def _given_out(problem: Problem) -> list[str]:
    """What learners have from the problem itself."""
    paths = (problem.folder / name for name in (*PUBLIC_FILES, *EXTRA_PUBLIC_FILES))
    return [path.read_text() for path in paths if path.suffix in (".py", ".md") and path.exists()]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        stop(f"{path} cannot be read: {error.strerror}; name a file with --base")


def _show(found: Sequence[Found], percent: int, remarks: Sequence[str]) -> None:
    from grader.report.plain_text import one_line
    from grader.report.quantity import counted
    from grader.similar.page import percent as in_words

    pairs = [(entry.problem, pair) for entry in found for pair in entry.comparison.pairs]
    compared = sum(entry.comparison.compared for entry in found)
    if pairs:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for heading, right in (
            ("NN", False),
            ("one", False),
            ("in common", True),
            ("the other", False),
            ("in common", True),
            ("tokens", True),
        ):
            table.add_column(heading, justify="right" if right else "left", overflow="fold")
        for problem, pair in pairs:
            cells = [f"{problem.number:02d}"]
            for entry, share in zip((pair.left, pair.right), pair.shares, strict=True):
                cells += [one_line(entry.who), in_words(share)]
            table.add_row(*map(Text, (*cells, f"{pair.tokens:,}")))
        console.print(table)
        console.print()
    said = (
        f"{counted(compared, 'pair')} compared, {len(pairs):,} with {percent} % or more in common"
    )
    console.print(Text(f"{said}{'; look at them' if pairs else ''}."))
    for remark in remarks:
        console.print(Text(one_line(remark)), soft_wrap=True)
