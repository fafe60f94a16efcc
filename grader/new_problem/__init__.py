"""Lay out a new problem: a package that runs from the start, to be replaced part by part."""

from __future__ import annotations

import re
import string
from pathlib import Path

from grader.package import PackageError, root_folder

_TEMPLATES = Path(__file__).resolve().parent
_SLUG = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def lay_out(number: int, slug: str, root: Path | None = None) -> tuple[Path, Path]:
    """Make problems/pNN_slug and solutions/pNN_slug; return both. Raises PackageError.

    What is laid out is graded as it stands: all-gather on four ranks, with one check.
    """
    if not 1 <= number <= 99:
        raise PackageError(f"{number} is no number of a problem; 1 to 99 are")
    if not _SLUG.fullmatch(slug):
        raise PackageError(f"{slug!r} is no name of a problem; lower-case words joined by _ are")
    place = root or root_folder()
    taken = sorted((place / "problems").glob(f"p{number:02d}_*"))
    if taken:
        raise PackageError(f"number {number} is taken by {taken[0].name}; choose another")
    name = f"p{number:02d}_{slug}"
    folders = place / "problems" / name, place / "solutions" / name
    words = {"number": str(number), "title": slug.replace("_", " ").capitalize()}
    for source, target in zip(("public", "private"), folders, strict=True):
        for template in sorted((_TEMPLATES / source).rglob("*.txt")):
            file = target / template.relative_to(_TEMPLATES / source).with_suffix("")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(string.Template(template.read_text()).safe_substitute(words))
    return folders
