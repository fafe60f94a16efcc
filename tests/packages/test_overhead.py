"""What the grader adds to the bare MPI jobs it starts, and how soon the first verdict comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
@pytest.mark.xfail(reason="measured 21 to 31%: hosts are made one by one")
def test_the_grader_adds_at_most_a_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parent / "overhead" / "record_and_replay.py"
    environment = {k: v for k, v in os.environ.items() if k != "DISTLAB_ENCLOSURE"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    overhead = seen["graded_s"] / seen["bare_s"] - 1
    with capsys.disabled():
        print(f"\n{seen}, overhead {overhead:.0%}")
    assert seen["score"] == 100
    assert seen["first_verdict_s"] < 5
    assert seen["graded_s"] < 60
    assert overhead <= 0.25
