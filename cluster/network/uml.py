"""Engine for a kernel without netem: a User-Mode Linux process serves what that kernel lacks.

The host kernel's fabric, in a network namespace of its own, carries everything and shapes rates
with its token buckets. Packets with any other fault to meet make a detour: a filter hands them to
the tap "trunk", which UML has opened as its vec0; the guest's fabric, with netem on it, switches
them; they come back out of the trunk. So ranks pay for the guest only while a fault needs it, and
packets under way in the guest are not lost when its faults are healed.

One trunk, and not a tap for each host: UML's interrupt handler can be interrupted by itself, and
then forgets one of three files that became readable at once, until more comes in on that one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath

from cluster import linux
from cluster.network import qdiscs
from cluster.network.counters import disable_offload
from cluster.network.errors import EngineError
from cluster.network.fabric import Fabric
from cluster.network.guest_fabric import VEC, GuestFabric
from cluster.network.kernel import NamespaceChannel
from cluster.network.namespaces import new_netns
from cluster.network.netem import NO_FAULT, Netem
from cluster.network.paths import Path
from cluster.network.steering import TRUNK, Steering
from cluster.network.switch import Switch
from cluster.network.uml_console import ConsoleChannel, module_files

PROGRAM = "linux.uml"
MODULE_ROOT = FilePath("/usr/lib/uml/modules")
MODULES = (
    "sch_netem",
    "sch_prio",
    "cls_u32",
    "bridge",
    "veth",
    "sch_ingress",
    "act_mirred",
    "act_pedit",
)
_MEMORY = "256M"
_BOOT_S, _END_S = 60.0, 1.0
BOOT_ARGUMENTS = (
    "rootfstype=hostfs",
    "root=/dev/root",
    "hostfs=/",
    "quiet",
    # Self-tests, checksum races and file systems that a switch never uses: a second of boot time.
    "cryptomgr.notests",
    "initcall_blacklist=raid6_select_algo,register_xor_blocks,calibrate_xor_blocks,"
    "init_jfs_fs,init_xfs_fs,init_btrfs_fs,init_zswap",
)


class UmlEngine:
    """Faults by the netem of a User-Mode Linux guest.

    `boot_s` is the measured time from `start` to ready, once ready. The guest ends when its
    console closes, that is with this process; a frozen one ends with the enclosure.
    """

    name = "uml"

    def __init__(self, mtu: int = 9000) -> None:
        """`mtu` in bytes is the largest packet that the switch passes."""
        self.boot_s: float | None = None
        self._mtu = mtu
        self._lock = threading.Lock()
        self._booting: threading.Thread | None = None
        self._failure: EngineError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._netns: int
        self._folder: FilePath
        self._console: ConsoleChannel
        self._outer: NamespaceChannel
        self._guest: Switch
        self._shapers: Switch
        self._steering: Steering

    @property
    def netns(self) -> int:
        """An open file that stands for the switch's outer namespace. Raises EngineError."""
        self._check_ready()
        return self._netns

    @property
    def process_id(self) -> int:
        """The guest's process. Raises EngineError before it runs."""
        if self._process is None:
            raise EngineError("the UML switch does not run")
        return self._process.pid

    def start(self, ports: int) -> None:
        """Begin to boot the switch and return. Raises EngineError, ValueError."""
        if self._booting is not None:
            raise EngineError("the switch has been started already")
        program = shutil.which(PROGRAM)
        if program is None:
            raise EngineError(f"{PROGRAM} is not installed: apt-get install -y user-mode-linux")
        ours, guests = socket.socketpair()
        self._console = ConsoleChannel(ours, dead=self._has_ended)
        inside = GuestFabric(self._console, ports, self._mtu)
        try:
            self._netns = new_netns()
            self._outer = NamespaceChannel(self._netns)
        except OSError as error:
            raise EngineError(f"no network namespace can be made: {error}") from error
        outside = Fabric(self._outer, ports, self._mtu)
        self._guest = Switch(inside)
        self._shapers = Switch(outside, put=partial(qdiscs.put_shaper, mtu=self._mtu))
        self._steering = Steering(outside)
        self._folder = _guest_folder()
        started = time.monotonic()

        def boot() -> None:
            try:
                self._launch(program, guests)
                self._wire(inside, outside)
                self.boot_s = time.monotonic() - started
            except EngineError as error:
                self._failure = EngineError(f"{error}{self._last_words()}")
            except OSError as error:
                self._failure = EngineError(f"the UML switch cannot be started: {error}")

        self._booting = threading.Thread(target=boot, name="uml-boot", daemon=True)
        self._booting.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the switch takes plugs and rules. Raises EngineError."""
        if self._booting is None:
            raise EngineError("the switch is not running: call start() first")
        self._booting.join(timeout_s)
        if self._booting.is_alive():
            raise EngineError(f"the UML switch was not ready after {timeout_s:g} s")
        if self._failure:
            raise self._failure

    def plug(self, port: int, ifname: str) -> None:
        """Connect an interface of the switch's namespace to a port. Raises EngineError."""
        with self._lock:
            self._check_ready()
            self._shapers.attach(port, ifname)

    def unplug(self, port: int) -> None:
        """Disconnect a port; its interface may have gone already."""
        with self._lock:
            if self.boot_s is None:
                return  # nothing was ever plugged in
            self._shapers.detach(port)

    def apply(self, rules: Mapping[Path, Netem]) -> None:
        """Make `rules` the complete set of faults. Raises EngineError."""
        with self._lock:
            self._check_ready()
            rates, others = _divide(rules)
            self._guest.apply(others)
            self._shapers.apply(rates)
            self._steering.apply(others)

    def read_back(self) -> Mapping[Path, Netem]:
        """The faults as the two kernels report them. Raises EngineError."""
        with self._lock:
            self._check_ready()
            found = self._guest.read_back()
            for path, fault in self._shapers.read_back().items():
                found[path] = replace(found.get(path, NO_FAULT), rate_mbit=fault.rate_mbit)
            return found

    def alive(self) -> bool:
        """Whether the guest still runs and answers."""
        try:
            self.read_back()
        except EngineError:
            return False
        return True

    def stop(self) -> None:
        """End the guest and remove the namespace and files. Does nothing when never started."""
        if self._booting is None:
            return
        self._console.close()
        if self._process is None:
            self._booting.join()  # about to find its console closed
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._booting.join()
        self._outer.close()
        os.close(self._netns)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._booting = self._process = self.boot_s = None

    def _check_ready(self) -> None:
        if self.boot_s is None or self._process is None:
            raise EngineError("the UML switch is not ready: call wait_ready() first")
        if self._has_ended():
            raise EngineError("the UML switch has died")

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _launch(self, program: str, guests: socket.socket) -> None:
        linux.setns(self._netns, linux.CLONE_NEWNET)  # of this thread only; UML inherits it
        with guests, (self._folder / "boot.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, *self._command_line(guests.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[guests.fileno()],
                start_new_session=True,
            )
        version = self._console.hello(_BOOT_S)
        self._console.load_modules(module_files(MODULE_ROOT / version, MODULES))

    def _wire(self, inside: Fabric, outside: Fabric) -> None:
        inside.build()  # opening vec0 is what creates the trunk
        outside.build()
        self._steering.build()
        # The guest is given packets as they are on the wire, whatever offloads the hosts use.
        disable_offload(self._netns, TRUNK)

    def _command_line(self, console: int) -> list[str]:
        arguments = [
            f"mem={_MEMORY}",
            *BOOT_ARGUMENTS,
            "ro",
            f"uml_dir={self._folder}",
            "con=null",
            f"con1=fd:{console}",
            "sysctl.net.core.netdev_max_backlog=20000",
        ]
        arguments += [f"{VEC}:transport=tap,ifname={TRUNK},depth=128,mtu={self._mtu}"]
        arguments += [f"init={self._folder}/python", "--", "-I", "-S", "-B"]
        return [*arguments, f"{self._folder}/uml_guest.py"]

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self._folder / "boot.log").read_text(errors="replace").split("\n")
            said = [line.strip() for line in lines if line.strip()]
            return f"; its last words: {said[-1]}" if said else ""
        return ""


def _divide(
    rules: Mapping[Path, Netem],
) -> tuple[dict[Path, Netem], dict[Path, Netem]]:
    """Split rules into rates that the host kernel shapes, and what the guest has to do.

    A rate on a link, or one with a queue of a stated length, is netem's own business.
    """
    rates, others = {}, {}
    for path, fault in rules.items():
        whole = None not in (path.src, path.dst) or fault.limit_packets is not None
        if fault.rate_mbit is not None and not whole:
            rates[path] = Netem(rate_mbit=fault.rate_mbit)
            fault = replace(fault, rate_mbit=None)
        if fault != NO_FAULT:
            others[path] = fault
    return rates, others


def _guest_folder() -> FilePath:
    """A private folder with what the guest runs, under a name that a kernel command line takes."""
    base = "/run" if os.access("/run", os.W_OK) else "/tmp"
    folder = FilePath(tempfile.mkdtemp(prefix="distlab-uml-", dir=base))
    here = FilePath(__file__).parent
    for name in ("uml_guest.py", "frames.py", "netlink.py"):
        shutil.copyfile(here / name, folder / name)
    (folder / "python").symlink_to(FilePath(sys.executable).resolve())
    return folder
