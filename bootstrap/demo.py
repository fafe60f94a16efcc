"""Grade the sample submission of problem 03 on an emulated four-host cluster.

The sample is right and not the fastest, so anything from part of the points up is a success here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = Path("problems", "p03_allreduce_mpi", "sample_submission.py")
UNFIT = 3
DISTLAB = str(Path(sys.prefix, "bin", "distlab"))


def main() -> int:
    """Exit status: 0 when the sample was judged as it should be, else what `grade` ended with."""
    print(f"Grading {SAMPLE} on four emulated hosts,", flush=True)
    print("with 20 ms delay on every link and a partition in mid-transfer.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [DISTLAB, "grade", "03", str(SAMPLE), "--json", str(result)]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code == UNFIT:
            print("What this machine lacks, and what brings it:", flush=True)
            subprocess.run([DISTLAB, "doctor"], cwd=ROOT, check=False)
        if code > 1 or not result.exists():
            return code
        outcome = json.loads(result.read_text())["outcome"]
    if outcome not in ("passed", "partial"):
        print(f"The sample should have got part of the points; it was {outcome}.", file=sys.stderr)
        return 1
    print("Next: . .venv/bin/activate, then `distlab list` and `distlab start 03`")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
