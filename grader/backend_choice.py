"""Where a grading runs: `--backend` and `--inventory`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.interface import ClusterError

if TYPE_CHECKING:
    from cluster.interface import Backend
    from cluster.inventory import Inventory

BACKENDS = ("netns", "local", "ssh")


class BackendMistake(Exception):
    """The options do not name a place to run: one sentence for the user."""


@dataclass(frozen=True)
class Place:
    """A backend by name, and the machines it needs, if any."""

    backend: str
    inventory: Inventory | None = None

    @property
    def needs_enclosure(self) -> bool:
        return self.backend == "netns"

    def factory(self) -> Callable[[], Backend]:
        """What makes the backend. Call it where clusters are built, not before."""
        # Imported here: what one backend needs, the machine of another may not have.
        if self.backend == "local":
            from cluster.backends.local import LocalBackend

            return LocalBackend
        if self.inventory is not None:
            from cluster.backends.ssh import SshBackend

            inventory = self.inventory
            return lambda: SshBackend(inventory)
        from cluster.backends.netns import NetnsBackend

        return NetnsBackend


def choose(backend: str | None, inventory: Path | None) -> Place:
    """The place that the options ask for; without any, the best one of this system.

    Raises BackendMistake.
    """
    if backend is None:
        backend = "ssh" if inventory else "netns" if sys.platform == "linux" else "local"
    if backend not in BACKENDS:
        raise BackendMistake(f"there is no backend {backend!r}; choose from {', '.join(BACKENDS)}")
    if backend != "ssh":
        if inventory is not None:
            raise BackendMistake(f"--inventory goes with --backend ssh, not with {backend}")
        return Place(backend)
    if inventory is None:
        raise BackendMistake("--backend ssh needs --inventory FILE, which lists the machines")
    from cluster.inventory import load_inventory

    try:
        return Place("ssh", load_inventory(inventory))
    except ClusterError as error:
        raise BackendMistake(str(error)) from error
