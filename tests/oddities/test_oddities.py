"""Honest code with habits of its own earns what plain code earns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grader.check import run_grading
from grader.package import find

ODDITIES = sorted(Path(__file__).with_name("submissions").iterdir())
CHECKS = ["test_sum_on_four_ranks", "test_every_type_and_operation"]


@pytest.mark.parametrize("path", ODDITIES, ids=lambda path: path.stem)
def test_an_odd_submission_earns_full_points(path: Path, tmp_path: Path) -> None:
    if path.stem == "windows_line_ends":  # git and formatters would put such a file right
        plain, path = path, tmp_path / path.name
        path.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n"))
    result: dict[str, Any]
    result, exit_code = run_grading(find("03"), path, CHECKS, timeout_s=120)
    assert exit_code == 0, result
    assert [(check["name"], check["outcome"]) for check in result["checks"]] == [
        (name, "passed") for name in CHECKS
    ]
    assert result["score"] == result["max_score"] == 16
