"""`distlab release`: a learner's copy, and the scan by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from grader import package
from grader.user_mistake import stop

if TYPE_CHECKING:
    from grader.release.contents import Checkout

release_app = typer.Typer()
console = Console(soft_wrap=True, highlight=False, markup=False)


@release_app.command(rich_help_panel="For instructors")
def release(
    to: Annotated[Path | None, typer.Option(help="Folder to make: new, or empty.")] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(metavar="NN", help="Release this problem; repeat for more. Default: all."),
    ] = None,
    git: Annotated[
        bool, typer.Option("--git", help="Make it a git repository with one commit.")
    ] = False,
    scan: Annotated[
        Path | None,
        typer.Option(
            help="Make nothing; look for private contents in this folder, before it is used: an "
            "installed .venv takes long, and holds files too large to look into."
        ),
    ] = None,
) -> None:
    """Make a learner's copy, without hidden checks and solutions, and prove that it has none."""
    from grader.release.contents import ReleaseError

    if (to is None) == (scan is None):
        stop("say --to DIR to make a learner's copy, or --scan DIR to look into one")
    try:
        if scan is not None:
            _scan(scan)
        elif to is not None:
            _release(to, problem or [], git)
    except ReleaseError as error:
        stop(str(error))


def _release(to: Path, wanted: list[str], git: bool) -> None:
    from grader.release.contents import DEMO_PROBLEM
    from grader.release.learner_copy import PrivateHalfInside, make_copy

    checkout = _checkout()
    in_git = {f.path.split("/")[1] for f in checkout.files if f.path.startswith("problems/")}
    names = {package.find(number).name for number in wanted} or set(in_git)
    for name in sorted(names - in_git):
        stop(f"{name} is not committed; a release is made of what git tracks, so commit it")
    if DEMO_PROBLEM not in names:
        names.add(DEMO_PROBLEM)
        console.print("Problem 03 goes along: `make demo` grades its sample.")
    folder = package.root_folder() / "problems"
    problems = [package.load(folder / name) for name in sorted(names)]
    try:
        made = make_copy(checkout, problems, to, as_repository=git)
    except PrivateHalfInside as refused:
        for finding in refused.findings:
            console.print(str(finding))
        stop(f"{to} was not made: what is named above is private; take it out, commit, run again")
    numbers = " ".join(f"{problem.number:02d}" for problem in problems)
    console.print(f"{to}: {made.files} files, problems {numbers}")
    console.print(f"scanned: nothing of {len(checkout.private())} private files is in it")
    console.print(f"from commit {checkout.commit[:12]}, contents sha256 {made.digest}")
    if made.commit is not None:
        console.print(f"its only commit is {made.commit}")
    if checkout.untracked:
        count, first = len(checkout.untracked), checkout.untracked[0]
        console.print(f"left out: {count} that git does not track, such as {first}")


def _scan(folder: Path) -> None:
    from grader.release.private_half import PrivateHalf
    from grader.release.scan import scan

    if not folder.is_dir():
        stop(f"{folder} is not a folder; name the one to look into")
    checkout = _checkout()
    problems = [problem.name for problem in package.discover()]
    private = checkout.private()
    findings = scan(folder, PrivateHalf(private, checkout.released(problems)))
    for finding in findings:
        console.print(str(finding))
    if findings:
        raise typer.Exit(1)
    console.print(f"nothing of {len(private)} private files is in {folder}")


def _checkout() -> Checkout:
    from grader.release.contents import read_checkout

    checkout = read_checkout(package.root_folder())
    if not checkout.private():
        stop("there is no solutions/ here: this is a learner's copy already, hand it on as it is")
    return checkout
