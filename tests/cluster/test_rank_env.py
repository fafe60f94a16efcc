"""Which rank a process is, from the environment of each launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.launchers import rank_env
from cluster.launchers.mpirun import mpirun_program
from cluster.launchers.rank_env import LAUNCHERS, RankError, RankPlace, read_rank

_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
_SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2),2",
}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (_MPIRUN, RankPlace(3, 4, 1, 2, "mpirun")),
        (_SLURM, RankPlace(2, 4, 0, 2, "slurm")),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, RankPlace(0, 2, 0, 1, "mpich")),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, RankPlace(5, 8, 1, 2, "torchrun")),
    ],
)
def test_each_launcher_is_understood(environ: dict[str, str], place: RankPlace) -> None:
    assert read_rank(environ) == place


def test_mpirun_inside_a_slurm_allocation_is_mpirun() -> None:
    assert read_rank({**_SLURM, **_MPIRUN}).launcher == "mpirun"


def test_what_torchrun_sets_is_read_back() -> None:
    place = RankPlace(3, 6, 1, 2, "torchrun")
    environ = rank_env.torchrun_environment(place, node=1, nodes=3)
    assert read_rank(environ) == place
    assert environ["GROUP_RANK"] == "1"


def test_nothing_set_lists_what_was_looked_for() -> None:
    with pytest.raises(RankError) as failure:
        read_rank({"RANK": "0", "HOME": "/"})
    text = str(failure.value)
    assert all(names.rank in text and names.world_size in text for names in LAUNCHERS)
    assert "only RANK is set" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"OMPI_COMM_WORLD_RANK": "4"}, "rank 4 is not in 0..3"),
        ({"OMPI_COMM_WORLD_RANK": "-1"}, "OMPI_COMM_WORLD_RANK='-1' is not a whole number"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "local rank 2 is not in 0..1"),
        ({"OMPI_COMM_WORLD_SIZE": "four"}, "OMPI_COMM_WORLD_SIZE='four'"),
    ],
)
def test_an_impossible_value_is_named(change: dict[str, str], says: str) -> None:
    with pytest.raises(RankError, match=says.replace(".", r"\.")):
        read_rank({**_MPIRUN, **change})


@pytest.mark.parametrize(("tasks", "says"), [("2(y3)", "not a list like"), ("1,1", "no entry")])
def test_a_wrong_slurm_list_is_named(tasks: str, says: str) -> None:
    with pytest.raises(RankError, match=says):
        read_rank({**_SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks})


def test_a_real_mpirun_is_understood(tmp_path: Path) -> None:
    program = tmp_path / "where.py"
    program.write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(str(rank_env.__file__)).parent)!r})\n"
        "import rank_env\np = rank_env.read_rank(os.environ)\n"
        "print(p.launcher, p.rank, p.world_size, p.local_rank, p.local_world_size)\n"
    )
    command = [mpirun_program(), "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    shown = subprocess.run(
        [*command, sys.executable, "-S", str(program)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert sorted(shown.stdout.splitlines()) == ["mpirun 0 2 0 2", "mpirun 1 2 1 2"]
