"""Forbidden calls are seen in the source, and innocent namesakes are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grader.package import Refused, find
from grader.submission import read, refused_uses

PROBLEM = find("03")


def uses(tmp_path: Path, source: str) -> list[tuple[str, int]]:
    path = tmp_path / "solution.py"
    path.write_text(source)
    return [(use.name, use.line) for use in refused_uses(read(path, PROBLEM), PROBLEM)]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def allreduce(comm, s, r, op):\n    comm.Allreduce(s, r, op)\n", "Allreduce"),
        ("def allreduce(comm, s, r, op):\n    getattr(comm, 'Bcast')(r)\n", "Bcast"),
        ("from mpi4py import MPI\nw = MPI.COMM_WORLD\n", "COMM_WORLD"),
        ("x = 1\nimport ctypes\n", "ctypes"),
        ("import os\nfrom ctypes import CDLL\n", "ctypes"),
        ("def allreduce(comm, s, r, op):\n    comm.Dup().reduce(s)\n", "reduce"),
    ],
)
def test_a_forbidden_use_is_named_with_its_line(tmp_path: Path, source: str, name: str) -> None:
    assert (name, 2) in uses(tmp_path, source)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nimport torch.distributed.nn\n",
        "import os\nimport torch.distributed.nn.functional as f\n",
        "import os\nfrom torch.distributed import nn\n",
        "import os\nfrom torch.distributed.nn.functional import all_reduce\n",
        "import torch.distributed as dist\nf = dist.nn.functional.all_reduce\n",
        "from torch import distributed\nf = distributed.nn\n",
        "import torch\nf = torch.distributed.nn.all_reduce\n",
    ],
)
def test_a_dotted_name_is_found_however_it_is_imported(tmp_path: Path, source: str) -> None:
    problem = replace(PROBLEM, refused=Refused(names=("torch.distributed.nn",)))
    path = tmp_path / "solution.py"
    path.write_text(source)
    found = refused_uses(read(path, problem), problem)
    assert [(use.name, use.line) for use in found] == [("torch.distributed.nn", 2)]


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nx = np.add.reduce([1, 2])\n",
        "from functools import reduce\nx = reduce(max, [1])\n",
        "class Ring:\n    def reduce(self): pass\n\n    def go(self): self.reduce()\n",
        "phase = 'reduce'\nprint('Bcast is what we replace')\n",
    ],
)
def test_a_namesake_is_allowed(tmp_path: Path, source: str) -> None:
    assert uses(tmp_path, source) == []
