"""README and CONTRIBUTING say what is so."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from grader.cli import app
from grader.package import _Toml, discover
from grader.release.readme import table_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_table_of_problems_is_what_discovery_finds() -> None:
    match = re.search(r"<!-- problems -->\n(.*?)\n<!-- end of problems -->", README, re.S)
    assert match is not None
    assert match[1] == table_of(discover()), "put this table into README.md"


def test_every_command_is_in_the_readme_and_every_one_there_exists() -> None:
    existing = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    commands = README.partition("## Commands")[2].partition("FILE is")[0]
    assert set(re.findall(r"^\| `distlab (\w+)", commands, re.M)) == existing


def test_every_key_of_a_problem_is_in_contributing() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("### Keys of problem.toml")[2]
    keys = re.findall(r"^\| `\[*(\w+)\]*` \|", table.partition("### A check")[0], re.M)
    assert sorted(keys) == sorted(_Toml.model_fields)


def test_the_readme_shows_all_before_the_reference_on_one_page() -> None:
    before = README.partition("# Reference")[0]
    without_table = re.sub(r"<!-- problems -->.*<!-- end of problems -->", "", before, flags=re.S)
    assert len(without_table.splitlines()) < 60
    assert (ROOT / "docs" / "report.png").stat().st_size < 400_000
