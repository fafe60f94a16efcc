"""README as a learner gets it: what is there is there, and no link leads nowhere."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence

from grader.package import Problem
from grader.release.contents import ReleaseError

_FOR_INSTRUCTORS = re.compile(
    r"^<!-- for instructors -->\n.*?^<!-- end of for instructors -->\n", re.M | re.S
)
_TABLE = re.compile(r"(?<=<!-- problems -->\n).*?(?=\n<!-- end of problems -->)", re.S)
_LINK = re.compile(r"\]\(([^)\s]+)")


def for_learners(text: str, problems: Sequence[Problem]) -> str:
    """README without what is marked as being for instructors, its table cut to `problems`.

    Raises ReleaseError where a mark has lost its counterpart.
    """
    short = _FOR_INSTRUCTORS.sub("", text)
    if "for instructors -->" in short:
        raise ReleaseError(
            "README.md has a mark `for instructors` without its other end; put that in"
        )
    short = re.sub(r"\n{3,}", "\n\n", short)
    return _TABLE.sub(lambda _: table_of(problems), short)


def table_of(problems: Sequence[Problem]) -> str:
    """README's table of problems."""
    rows = ["| NN | problem | level | topics | what you write |", "|---|---|---|---|---|"]
    for problem in problems:
        cells = [f"{problem.number:02d}", problem.title, problem.level]
        cells += [", ".join(problem.topics), f"`{problem.summary}`"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def dangling_links(path: str, text: str, there: Collection[str]) -> Iterator[str]:
    """The targets of a Markdown file's links that are not among the paths `there`."""
    for target in _LINK.findall(text):
        plain = target.partition("#")[0]
        if plain and not re.match(r"[a-z]+:", plain):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), plain))
            if place not in there and not any(name.startswith(f"{place}/") for name in there):
                yield target
