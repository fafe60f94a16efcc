"""The kernel engine needs a kernel with netem. Where this one has none, a guest kernel has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.network.engine import availability
from cluster.network.uml import BOOT_ARGUMENTS, MODULE_ROOT, MODULES, PROGRAM
from cluster.network.uml_console import module_files

ROOT = Path(__file__).parents[3]
ACCURACY = "tests/cluster/accuracy/test_accuracy.py"
CHOSEN = (
    "tests/cluster/network/test_engines.py",
    f"{ACCURACY}::test_delay_is_within_2_percent_or_half_a_millisecond[kernel-5-out of 0]",
    f"{ACCURACY}::test_delay_is_within_2_percent_or_half_a_millisecond[kernel-100-into 1]",
    f"{ACCURACY}::test_delays_of_all_three_stages_add_up[kernel]",
    f"{ACCURACY}::test_rate_is_within_5_percent[kernel-20-0 -> 1]",
    f"{ACCURACY}::test_rate_is_within_5_percent[kernel-20-out of 0]",
    f"{ACCURACY}::test_loss_is_within_its_interval[kernel-0 -> 1-5% loss]",
    f"{ACCURACY}::test_loss_is_within_its_interval[kernel-into 1-9.09091% loss in bursts]",
    f"{ACCURACY}::test_a_partition_cuts_all_and_heals_all[kernel]",
    f"{ACCURACY}::test_a_link_fault_hits_only_that_link[kernel]",
)


def test_the_kernel_engine_works_where_the_kernel_has_netem(tmp_path: Path) -> None:
    """Its own tests, and a choice of measurements, pass inside a guest."""
    program = shutil.which(PROGRAM)
    if program is None:
        pytest.skip("needs user-mode-linux")
    if next(state for state in availability() if state.name == "kernel").usable:
        pytest.skip("this kernel has netem: the tests run on it directly")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    modules = module_files(MODULE_ROOT / version.stdout.strip(), MODULES)
    order = tmp_path / "order.json"
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-s", "-k", "kernel", "--color=no"]
    order.write_text(
        json.dumps(
            {
                "modules": [str(file) for file in modules],
                "folder": str(ROOT),
                "status": str(tmp_path / "status"),
                "command": [*pytest_command, "-p", "no:cacheprovider", *CHOSEN],
            }
        )
    )
    arguments = [program, "mem=768M", "rw", f"uml_dir={tmp_path}", "con=null", "con0=null,fd:1"]
    arguments += [*BOOT_ARGUMENTS, f"init={sys.executable}", "--"]
    arguments += [str(Path(__file__).with_name("guest_init.py")), str(order)]
    said = tmp_path / "console"
    with said.open("wb") as console:
        subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            timeout=240,
            check=True,
        )
    text = said.read_text(errors="replace")
    print(
        "".join(f"\n  in the guest: {line}" for line in re.findall(r"kernel .* measured .*", text))
    )
    status = tmp_path / "status"
    assert status.exists() and status.read_text() == "0", text[-4_000:]
    assert re.search(r"\d{2,} passed", text), text[-4_000:]
