"""`distlab batch`: the command."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from grader.user_mistake import stop

if TYPE_CHECKING:
    from grader.batch.journal import Verdict
    from grader.class_folder import Entry, Survey

_NAMED_AT_MOST = 12


def batch(
    submissions: Annotated[
        Path, typer.Argument(help="Folder with a folder for each learner: WHO/NN/solution.py.")
    ],
    problem: Annotated[
        list[str] | None, typer.Option(help="Only this problem; give it again for more.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Folder for results and reports; default: SUBMISSIONS-graded."),
    ] = None,
    for_staff: Annotated[
        Path | None,
        typer.Option(help="Folder for the same with what hidden checks saw, which is kept back."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Gradings at a time.")] = 1,
    csv: Annotated[
        Path | None, typer.Option(help="The grades; default: grades.csv in the results' folder.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Grade anew what was graded.")] = False,
    deadline: Annotated[
        float | None, typer.Option(min=1, help="Seconds after which a grading has hung.")
    ] = None,
) -> None:
    """Grade many submissions of several problems; go on where an earlier call ended."""
    from cluster import enclosure
    from grader.batch import workplace
    from grader.outcome import EXIT_UNFIT

    folder = Path(os.path.abspath(submissions))
    target = Path(os.path.abspath(to or folder.with_name(f"{folder.name}-graded")))
    found = _survey(folder, problem or [])
    if not found.entries:
        from grader.class_folder import LAYOUT

        stop(f"{submissions} holds no submission that is recognised; lay it out as {LAYOUT}")
    _must_lie_outside(target, "--to", folder)
    if for_staff is not None:
        for_staff = Path(os.path.abspath(for_staff))
        _must_lie_outside(for_staff, "--for-staff", folder, target)
    if csv is not None and not csv.absolute().parent.is_dir():
        stop(f"the folder of {csv} does not exist")
    obstacle = enclosure.obstacle()
    if obstacle is not None:
        stop(obstacle, EXIT_UNFIT)
    processors = len(os.sched_getaffinity(0))
    if jobs > processors:
        stop(f"--jobs {jobs} is more than this machine's processors; give {processors} at most")
    if found.strangers:
        _print_error(f"not recognised, so not graded: {_some(found.strangers)}")
    workplace.prepare(target)
    try:
        with workplace.held(folder, target):
            csv = csv or target / "grades.csv"
            code = _run(found, target, for_staff, csv, jobs, again, deadline)
    except workplace.AnotherBatch as error:
        stop(str(error))
    raise typer.Exit(code)


def _must_lie_outside(path: Path, option: str, *folders: Path) -> None:
    for folder, what in zip(folders, ("the submissions", "what is handed back"), strict=False):
        if path == folder or folder in path.parents:
            stop(f"{option} {path} lies among {what}; name a folder outside")
    if path.exists() and not path.is_dir():
        stop(f"{path} is a file; name another folder with {option}")


def _survey(folder: Path, wanted: list[str]) -> Survey:
    from grader import package
    from grader.class_folder import survey

    problems = [package.find(name) for name in wanted]
    unique = list({problem.name: problem for problem in problems}.values())
    known = package.discover() if not wanted else tuple(unique)
    try:
        return survey(folder, known, unique, package.all_names() if wanted else ())
    except OSError as error:
        stop(f"{folder} cannot be read: {error.strerror}; name the folder of all submissions")


def _run(
    found: Survey,
    target: Path,
    for_staff: Path | None,
    csv: Path,
    jobs: int,
    again: bool,
    deadline_s: float | None,
) -> int:
    from rich.console import Console

    from grader.batch import grade_sheet, summary, workplace
    from grader.batch.delivery import Delivery
    from grader.batch.journal import Journal
    from grader.batch.progress import BatchProgress
    from grader.batch.runner import Ended, Runner, Work
    from grader.class_folder import digest
    from grader.outcome import EXIT_INTERRUPTED
    from grader.turns import Manners, Turns

    journal = Journal(target / ".journal.sqlite")
    delivery = Delivery(target, for_staff, journal)
    verdicts: dict[Entry, Verdict] = {}
    turns = Turns(Manners.SHARED)

    def give_back(verdict: Verdict) -> None:
        with turns.take(alone=False):
            delivery.deliver(verdict)

    works = []
    handed_in = [entry for entry in found.entries if entry.paths]
    for entry in handed_in:
        work = Work(entry, digest(entry))
        earlier = journal.find(entry, work.digest)
        if earlier is None or again or not earlier.is_final:
            works.append(work)
        else:
            verdicts[entry] = earlier
    signal.signal(signal.SIGTERM, _as_interrupt)
    interrupted = False
    try:
        for verdict in verdicts.values():
            if not delivery.is_done(verdict):
                give_back(verdict)
        progress = BatchProgress(Console(stderr=True), len(verdicts), len(handed_in))
        with progress, Runner(works, jobs, deadline_s) as runner:
            for event in runner.events():
                if isinstance(event, Ended):
                    journal.keep(event.verdict, event.result)
                    verdicts[event.work.entry] = event.verdict
                    give_back(event.verdict)
                    workplace.has_room(target)
                progress.show(event)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        journal.close()
    with workplace.telling_of_trouble(csv):
        grade_sheet.write(csv, target, found.entries, verdicts)
    console = Console()
    summary.show(found.entries, verdicts, console)
    console.print(f"\ngrades: {csv}", markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        done = f"{len(verdicts)} of {len(handed_in)}"
        _print_error(f"interrupted; {done} are graded, and the same command goes on from there")
        return EXIT_INTERRUPTED
    return _exit_code(verdicts)


def _exit_code(verdicts: dict[Entry, Verdict]) -> int:
    """0 when every submission has a verdict; else as `distlab grade` says unfit, inconclusive."""
    from grader.outcome import EXIT_INCONCLUSIVE, EXIT_UNFIT, Outcome

    outcomes = {verdict.outcome for verdict in verdicts.values()}
    if Outcome.UNFIT in outcomes:
        return EXIT_UNFIT
    return EXIT_INCONCLUSIVE if Outcome.INCONCLUSIVE in outcomes else 0


def _as_interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _some(names: tuple[str, ...]) -> str:
    from grader.report.plain_text import one_line

    shown = ", ".join(one_line(name) for name in names[:_NAMED_AT_MOST])
    more = len(names) - _NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _print_error(sentence: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(
        f"distlab: {sentence}", markup=False, highlight=False, soft_wrap=True
    )
