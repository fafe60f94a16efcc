"""The `distlab` command. Exit codes: 0 full marks, 1 judged below, 2 a mistake of the user's,
3 unfit, 4 inconclusive, 130 interrupted."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from cluster.ledger import clean_leftovers
from grader import hints, package
from grader.backend_choice import BackendMistake, Place, choose
from grader.batch.command import batch
from grader.cluster_commands import cluster_app
from grader.export import export_app
from grader.notebook.commands import notebook_app
from grader.outcome import EXIT_INTERRUPTED, EXIT_UNFIT, EXIT_USER_MISTAKE
from grader.package import PackageError, Problem
from grader.release.commands import release_app
from grader.run_folder import NoSpace, find_run
from grader.similar.commands import similar_app
from grader.user_mistake import stop

_FOR_INSTRUCTORS = "For instructors"

app = typer.Typer(
    name="distlab",
    help="Distributed-training exercises, judged on a cluster that misbehaves on command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cluster_app, name="cluster")
app.command(rich_help_panel=_FOR_INSTRUCTORS)(batch)
app.add_typer(export_app, name="export", rich_help_panel=_FOR_INSTRUCTORS)
app.add_typer(notebook_app, name="notebook", rich_help_panel=_FOR_INSTRUCTORS)
app.add_typer(release_app)
app.add_typer(similar_app)
console = Console()
errors = Console(stderr=True)

ProblemArgument = Annotated[str, typer.Argument(metavar="NN", help="Number or name of a problem.")]
FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]", help="Your solution: a .py file, or a folder with solution.py."
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help="Where to run: netns (emulated hosts, the default on Linux), local (plain processes, "
        "no network faults), or ssh (real machines).",
    ),
]
InventoryOption = Annotated[
    Path | None,
    typer.Option("--inventory", help="The machines for --backend ssh, a TOML file."),
]


@app.command("list")
def list_problems(
    topic: Annotated[str | None, typer.Option(help="Only problems with this topic.")] = None,
) -> None:
    """Show the problems there are."""
    table = Table(box=None, pad_edge=False)
    for heading in ("NN", "problem", "level", "topics", "what you write"):
        table.add_column(heading, no_wrap=heading in ("NN", "problem", "level"))
    for problem in package.discover():
        if topic is None or topic in problem.topics:
            table.add_row(
                f"{problem.number:02d}",
                problem.slug,
                problem.level,
                ", ".join(problem.topics),
                problem.summary,
            )
    console.print(table)


@app.command()
def start(
    wanted: ProblemArgument,
    to: Annotated[Path | None, typer.Option(help="Folder to write to.")] = None,
) -> None:
    """Read the card and get a stub to fill in."""
    problem = package.find(wanted)
    folder = to or Path(problem.name)
    solution = folder / "solution.py"
    if solution.exists():
        stop(f"{solution} exists; edit it, or name another folder with --to")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(problem.folder / "stub.py", solution)
        shutil.copyfile(problem.folder / "card.md", folder / "card.md")
    except OSError as error:
        stop(f"{folder} cannot be written: {error.strerror}; name another folder with --to")
    console.print(Markdown((problem.folder / "card.md").read_text()))
    number = f"{problem.number:02d}"
    console.print(f"\nWrite your solution in {solution}, then: distlab test {number}", markup=False)


@app.command()
def hint(wanted: ProblemArgument) -> None:
    """Show the next hint. Each costs the points it says."""
    problem = package.find(wanted)
    shown = hints.show_next(problem)
    if shown is None:
        stop(f"problem {problem.number:02d} has no further hint", code=0)
    number, text = shown
    cost = problem.hints[number - 1].cost
    console.print(f"Hint {number} of {len(problem.hints)} (costs {cost:g} points)\n", markup=False)
    console.print(Markdown(text))


@app.command()
def test(
    wanted: ProblemArgument,
    file: FileArgument = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this check alone.")] = None,
    backend: BackendOption = None,
    inventory: InventoryOption = None,
) -> None:
    """Run the visible checks of a problem on your solution."""
    place = _place(backend, inventory)
    _judge(package.find(wanted), file, place, hidden=False, only=only)


@app.command()
def grade(
    wanted: ProblemArgument,
    file: FileArgument = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the result to this file as well.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeat the inputs of an earlier grading.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this check alone.")] = None,
    backend: BackendOption = None,
    inventory: InventoryOption = None,
) -> None:
    """Judge a solution by visible and hidden checks; a learner's copy has no hidden ones."""
    place = _place(backend, inventory)
    _judge(
        package.find(wanted), file, place, hidden=True, only=only, json_path=json_path, seed=seed
    )


@app.command()
def report(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run's folder; default: the newest.")
    ] = None,
) -> None:
    """Show a run's verdict again and write its HTML report anew."""
    from grader.judge import show_again
    from grader.result_json import BadResult

    folder = find_run(run)
    if folder is None:
        stop("there is no such run here; `distlab grade NN FILE` makes one")
    try:
        code = show_again(folder, console)
    except BadResult as error:
        stop(f"{folder.result} cannot be shown: {error}")
    raise typer.Exit(code)


@app.command(rich_help_panel=_FOR_INSTRUCTORS)
def check(
    wanted: ProblemArgument,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Look at the files, run nothing.")
    ] = False,
) -> None:
    """Prove a problem package: files, reference, and the verdict of every submission."""
    from grader.check import complaints, prove, submissions
    from grader.grading_server import GradingServer, GradingServerDied
    from grader.submission import SubmissionError

    problem = package.find(wanted)
    wrong = list(complaints(problem))
    for line in wrong:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if problem.private_folder is None:
        console.print(
            f"{problem.name}: only its public files were looked at, solutions/ is not here"
        )
    elif not files_only:
        with GradingServer(problem) as server:
            for path in submissions(problem):
                try:
                    verdict = prove(server, path)
                except (GradingServerDied, SubmissionError) as error:
                    stop(f"{path.name} could not be graded: {error}")
                word = verdict.complaint or f"{path.name}: {verdict.expectation.outcome}, as stated"
                console.print(f"{word} ({verdict.seconds:.1f} s)", markup=False, highlight=False)
                wrong += [verdict.complaint] if verdict.complaint else []
    raise typer.Exit(1 if wrong else 0)


@app.command(rich_help_panel=_FOR_INSTRUCTORS)
def new(
    number: Annotated[int, typer.Argument(metavar="NN", help="Its number, 1 to 99.")],
    slug: Annotated[str, typer.Argument(help="Its name: lower-case words joined by _.")],
) -> None:
    """Lay out a new problem that can be graded as it stands."""
    from grader.new_problem import lay_out

    for folder in lay_out(number, slug):
        console.print(f"made {folder}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"next: replace its parts, and prove them with `distlab check {number:02d}`")


@app.command()
def doctor() -> None:
    """Say what this machine can do, and what mends what it cannot."""
    from grader.doctor import examine

    raise typer.Exit(examine(console))


def _place(backend: str | None, inventory: Path | None) -> Place:
    try:
        return choose(backend, inventory)
    except BackendMistake as error:
        stop(str(error))


def _judge(
    problem: Problem,
    file: Path | None,
    place: Place,
    *,
    hidden: bool,
    only: list[str] | None,
    json_path: Path | None = None,
    seed: int | None = None,
) -> None:
    from grader import submission
    from grader.check_list import listed
    from grader.judge import Wish, judge

    path = file or _default_file(problem)
    try:
        handed_in = submission.read(path, problem)
    except submission.SubmissionError as error:
        stop(str(error))
    known = [check.name for check in listed(problem)]
    for name in only or ():
        if name not in known:
            stop(f"problem {problem.number:02d} has no check {name!r}; it has {', '.join(known)}")
    if seed is not None and not 0 <= seed < 2**63:
        stop("a seed is a whole number from 0 to 2^63 - 1")
    if json_path is not None and not json_path.absolute().parent.is_dir():
        stop(f"the folder of {json_path} does not exist")
    wish = Wish(problem, handed_in, hidden, frozenset(only or ()), json_path, seed, place)
    raise typer.Exit(judge(wish, console, errors))


def _default_file(problem: Problem) -> Path:
    for path in (Path(problem.name), Path("solution.py")):
        if path.exists():
            return path
    return Path(problem.name) / "solution.py"


def main() -> None:
    """Entry point of the console script."""
    try:
        clean_leftovers()
        app()
    except PackageError as error:
        errors.print(f"distlab: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(EXIT_USER_MISTAKE)
    except NoSpace as error:
        errors.print(f"distlab: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(EXIT_UNFIT)
    except KeyboardInterrupt:
        errors.print("distlab: interrupted", markup=False)
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # a fault of distlab's own must not look like a verdict
        log = _keep_traceback()
        errors.print(
            f"distlab: internal error: {type(error).__name__}: {error}; details are in {log}, "
            "please report them",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(EXIT_UNFIT)


def _keep_traceback() -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="distlab-error-", suffix=".txt", delete=False
    ) as stream:
        traceback.print_exc(file=stream)
    return stream.name


if __name__ == "__main__":
    main()
