"""What serves network faults, and whether this machine can run it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Protocol

from cluster.network import uml
from cluster.network.errors import EngineError
from cluster.network.host_side import try_host_side
from cluster.network.kernel import KernelEngine, PlainEngine
from cluster.network.netem import Netem
from cluster.network.paths import Path
from cluster.network.uml import UmlEngine
from cluster.network.uml_console import module_files

CHOICE = "DISTLAB_NETWORK_ENGINE"
_NAMES = ("kernel", "uml", "none")
_TUN = FilePath("/dev/net/tun")


class Engine(Protocol):
    """A switch with a port for each host, which applies faults on the paths between them."""

    name: str

    def start(self, ports: int) -> None:
        """Begin to make the switch and return at once. Raises EngineError, ValueError."""

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the switch takes plugs and rules. Raises EngineError."""

    @property
    def netns(self) -> int:
        """An open file that stands for the namespace where an interface must be that is plugged
        in. Raises EngineError before the switch is ready."""

    def plug(self, port: int, ifname: str) -> None:
        """Connect an interface to a port. Raises EngineError."""

    def unplug(self, port: int) -> None:
        """Disconnect a port; an interface that has gone already does not matter."""

    def apply(self, rules: Mapping[Path, Netem]) -> None:
        """Make `rules` the complete set of faults in force; an empty one heals everything.

        Raises EngineError, and ValueError for a host the switch has no port for.
        """

    def read_back(self) -> Mapping[Path, Netem]:
        """The faults as the switch's kernel reports them. Raises EngineError."""

    def alive(self) -> bool:
        """Whether the switch still answers."""

    def stop(self) -> None:
        """Remove the switch and all it made."""


@dataclass(frozen=True)
class EngineAvailability:
    """Whether one engine can serve here; if not, why, and one shell command that mends it."""

    name: str
    usable: bool
    reason: str
    mend: str | None = None


def availability() -> list[EngineAvailability]:
    """What this machine offers, the preferred engine first.

    Tries the real thing in scratch namespaces; call it in an enclosure, or as root.
    """
    return [_kernel_availability(), _uml_availability()]


def choose_engine(mtu: int = 9000) -> Engine:
    """The engine that DISTLAB_NETWORK_ENGINE names, else the first usable one.

    Without any, a switch that serves no faults: `name` is "none". `mtu` in bytes is the largest
    packet between hosts. Raises EngineError when the one named cannot serve.
    """
    named = os.environ.get(CHOICE)
    if named is not None and named not in _NAMES:
        raise EngineError(f"{CHOICE} is {named!r}; valid: {', '.join(_NAMES)}")
    if named == "none":
        return PlainEngine("faults are switched off by " + CHOICE, mtu)
    complaints = []
    for test, make in ((_kernel_availability, KernelEngine), (_uml_availability, UmlEngine)):
        if named is not None and named != make.name:
            continue
        found = test()
        if found.usable:
            return make(mtu)
        advice = f" (mend it with `{found.mend}`)" if found.mend else ""
        complaints.append(f"{found.name}: {found.reason}{advice}")
    if named is not None:
        raise EngineError(f"no network faults: {complaints[0]}")
    return PlainEngine("; ".join(complaints), mtu)


def _kernel_availability() -> EngineAvailability:
    rule = {Path(0, None): Netem(delay_ms=1), Path(0, 1): Netem(loss_pct=1)}
    engine = KernelEngine()
    try:
        engine.start(2)
        try:
            engine.apply(rule)
        except EngineError:
            return EngineAvailability("kernel", False, "this kernel has no netem", _netem_mend())
        if engine.read_back().keys() != rule.keys():
            return EngineAvailability("kernel", False, "netem does not report what it was told")
    except EngineError as error:
        return EngineAvailability("kernel", False, str(error))
    finally:
        engine.stop()
    return EngineAvailability("kernel", True, "this kernel's netem works")


def _netem_mend() -> str | None:
    release = platform.release()
    listing = FilePath("/lib/modules") / release / "modules.dep"
    if listing.exists() and "/sch_netem.ko" in listing.read_text():
        return "modprobe sch_netem"
    identity = FilePath("/etc/os-release")
    if identity.exists() and "ID=ubuntu" in identity.read_text().splitlines():
        return f"apt-get install -y linux-modules-extra-{release} && modprobe sch_netem"
    return None  # a kernel built without it


def _uml_availability() -> EngineAvailability:
    def no(reason: str, mend: str | None = None) -> EngineAvailability:
        return EngineAvailability("uml", False, reason, mend)

    if sys.platform != "linux" or platform.machine() != "x86_64":
        return no(f"User-Mode Linux needs Linux on x86_64, not {platform.machine()}")
    program = shutil.which(uml.PROGRAM)
    if program is None:
        return no(f"{uml.PROGRAM} is not installed", "apt-get install -y user-mode-linux")
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    try:
        module_files(uml.MODULE_ROOT / asked.stdout.strip(), uml.MODULES)
    except EngineError as error:
        return no(str(error), "apt-get install -y --reinstall user-mode-linux")
    if not _TUN.exists():
        return no(f"there is no {_TUN}", "modprobe tun")
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return no(f"{_TUN} may not be opened by this user", f"sudo chmod 666 {_TUN}")
    try:
        try_host_side()
    except (EngineError, OSError) as error:
        return no(f"this kernel cannot steer packets through UML: {error}")
    return EngineAvailability("uml", True, "a User-Mode Linux guest serves netem")
