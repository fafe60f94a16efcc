"""Make this checkout ready: system packages, a virtual environment, the locked Python packages.

    python bootstrap/install.py demo|test|packages
    python bootstrap/install.py missing     prints the Debian packages that a demo needs

Needs nothing but the standard library. Exit status 3: something is missing that only the
machine's owner may install; the one command that mends it is printed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bootstrap import classic  # noqa: E402
from cluster import enclosure, linux  # noqa: E402
from cluster.network.netlink import converse, open_route_socket  # noqa: E402

VENV = ROOT / ".venv"
STAMP = VENV / ".distlab-stamp"
APT = ("apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=120")
TUN = Path("/dev/net/tun")
UNFIT = 3


def stop(sentence: str) -> NoReturn:
    """End with one sentence on what is missing."""
    print(sentence, file=sys.stderr)
    sys.exit(UNFIT)


def kernel_has_netem() -> bool:
    """Whether this kernel delays packets: tried in a network namespace of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            user = 0 if os.geteuid() == 0 else linux.CLONE_NEWUSER
            linux.unshare(linux.CLONE_NEWNET | user)
            converse(open_route_socket(), _add_netem_to_loopback())
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _add_netem_to_loopback() -> bytes:
    new_qdisc, request_ack_create_exclusive, root = 36, 0x605, 0xFFFFFFFF
    kind = struct.pack("HH8s", 10, 1, b"netem\0")
    options = struct.pack("HHIIIIII", 28, 2, 0, 1000, 0, 0, 0, 0)
    body = struct.pack("BxxxiIII", 0, 1, 0, root, 0) + kind[:12] + options
    head = struct.pack("IHHII", 16 + len(body), new_qdisc, request_ack_create_exclusive, 1, 0)
    return head + body


def needed_for_grading() -> list[str]:
    """Debian packages that an emulated cluster needs and that are missing."""
    packages = [] if shutil.which("bwrap") else ["bubblewrap"]
    if not shutil.which("linux.uml") and not kernel_has_netem():
        packages.append(_netem_package())
    # Only root slows disks down.
    if os.geteuid() == 0 and not shutil.which("mkfs.ext4"):
        packages.append("e2fsprogs")
    return packages


def tun_is_closed() -> bool:
    """Whether network faults need a device here that this user may not open."""
    return TUN.exists() and not os.access(TUN, os.R_OK | os.W_OK) and not kernel_has_netem()


def _netem_package() -> str:
    """What brings netem: on Ubuntu a kernel's further modules, else another kernel."""
    modules = f"linux-modules-extra-{platform.release()}"
    if shutil.which("apt-cache"):
        known = subprocess.run(["apt-cache", "show", modules], capture_output=True, check=False)
        if known.returncode == 0:
            return modules
    return "user-mode-linux"


def needed_for_all_tests() -> list[str]:
    """Debian packages without which some tests are skipped."""
    packages = classic.missing_packages()
    # Elsewhere than in CI, installing it would open a machine to the network.
    if os.environ.get("CI") == "true" and not Path("/usr/sbin/sshd").exists():
        packages += ["openssh-server", "openssh-client"]
    return packages


def install_system_packages(packages: Sequence[str], without: str | None) -> None:
    """Install Debian packages as root; else say how. `without`: what goes on if they stay away,
    None if nothing does."""
    if not packages:
        return
    names = " ".join(packages)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"Installing system packages: {names}", flush=True)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        words = ""
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(
                [*APT, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            words += done.stdout
        if done.returncode == 0:
            return
        stop(f"{words}\nThese system packages could not be installed: {names}")
    mend = f"sudo apt-get install -y --no-install-recommends {names}"
    if "user-mode-linux" in packages and tun_is_closed():
        mend += f" && sudo chmod 666 {TUN}"
    if not shutil.which("apt-get"):
        mend = f"your package manager, for what Debian calls {names}"
    if without is None:
        stop(f"System packages are missing. This mends it:\n    {mend}")
    print(f"Going on without {without}. This brings it:\n    {mend}", flush=True)


def install_python_packages() -> None:
    """Bring .venv in line with requirements.lock, unless its stamp says that it is."""
    index = os.environ.get("TORCH_INDEX", "")
    wanted = hashlib.sha256()
    for part in (sys.version, str(VENV), index):
        wanted.update(part.encode())
    for file in ("requirements.lock", "pyproject.toml", "bootstrap/data.lock"):
        wanted.update((ROOT / file).read_bytes())
    if STAMP.exists() and STAMP.read_text() == wanted.hexdigest():
        return
    if not _reusable():
        print("Making .venv", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(VENV)], "The environment cannot be made")
    print("Installing Python packages into .venv; minutes the first time", flush=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--no-input"]
    pip += ["--disable-pip-version-check"] + ([] if sys.stdout.isatty() else ["--quiet"])
    extra = ["--extra-index-url", index] if index else []
    failed = "pip failed, its reason stands above; when the network is back, run again"
    _run([*pip, *extra, "-r", str(ROOT / "requirements.lock")], failed)
    _run([*pip, "--no-deps", "-r", str(ROOT / "bootstrap" / "data.lock")], failed)
    _run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], failed)
    STAMP.write_text(wanted.hexdigest())


def _reusable() -> bool:
    """Whether .venv was made here, by this version of Python, and still runs."""
    show = "import sys; print(sys.version, sys.prefix, sep='\\n')"
    python = VENV / "bin" / "python"
    try:
        made_for = (VENV / "bin" / "pip").read_text().partition("\n")[0]
        shown = subprocess.run([python, "-c", show], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return made_for.startswith(f"#!{VENV}/") and shown.stdout == f"{sys.version}\n{VENV}\n"


def _run(command: Sequence[str], failed: str) -> None:
    if subprocess.run(command, stdin=subprocess.DEVNULL, cwd=ROOT, check=False).returncode:
        stop(failed)


def main(purpose: str) -> int:
    """Install what `purpose` needs: a demo, all tests, or Python packages alone."""
    with (ROOT / "bootstrap").joinpath("setup.sh").open() as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if purpose != "packages":
            if reason := enclosure.obstacle():
                stop(f"Emulated hosts cannot be made: {reason}")
            install_system_packages(needed_for_grading(), without=None)
            if tun_is_closed():
                stop(f"Network faults need {TUN}. This opens it:\n    sudo chmod 666 {TUN}")
        if purpose == "test":
            tests = "the test of the distribution's MPI and those over ssh"
            install_system_packages(needed_for_all_tests(), without=tests)
        install_python_packages()
        if purpose == "test" and classic.obstacle() is None:
            try:
                classic.build()
            except classic.BuildFailed as error:
                stop(str(error))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["missing"]:
        print(*needed_for_grading())
        sys.exit()
    if sys.argv[1:] not in (["demo"], ["test"], ["packages"]):
        sys.exit("usage: python bootstrap/install.py demo|test|packages|missing")
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
