"""`distlab new` lays out a package that holds, and refuses what would not be one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grader.check import complaints
from grader.new_problem import lay_out
from grader.package import PackageError, load


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return lay_out(26, "two_words", tmp_path_factory.mktemp("checkout"))


def test_only_further_submissions_are_missing(folders) -> None:
    problem = replace(load(folders[0]), private_folder=folders[1])
    assert list(complaints(problem)) == [
        "p26_two_words: 1 wrong_*.py; write at least 6",
        "p26_two_words: 1 right_*.py; write at least 2",
    ]


@pytest.mark.parametrize(
    ("file", "outcome"),
    [
        ("solution.py", "passed"),
        ("submissions/right_pairwise.py", "passed"),
        ("submissions/wrong_own_block_only.py", "failed"),
    ],
)
def test_it_can_be_graded_as_it_stands(folders, tmp_path: Path, file: str, outcome: str) -> None:
    environment = {**os.environ, "DISTLAB_STATE": str(tmp_path)}
    environment.pop("DISTLAB_ENCLOSURE", None)
    program = Path(__file__).with_name("grade_folder.py")
    done = subprocess.run(
        [sys.executable, str(program), str(folders[0]), str(folders[1] / file), "netns"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    checks = json.loads(done.stdout)["checks"]
    assert [check["outcome"] for check in checks] == [outcome], checks


@pytest.mark.parametrize(
    ("number", "slug", "says"),
    [
        (26, "other_words", "number 26 is taken by p26_two_words"),
        (0, "words", "0 is no number of a problem"),
        (27, "Two Words", "'Two Words' is no name of a problem"),
    ],
)
def test_what_would_be_no_package_is_refused(folders, number: int, slug: str, says: str) -> None:
    with pytest.raises(PackageError, match=says):
        lay_out(number, slug, folders[0].parents[1])
