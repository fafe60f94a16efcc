"""Hand a job's cases to its hosts: staged out of sight, revealed by a rename."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.interface import ClusterError, Host
from grader.rank_files import Array
from grader.wire import encode_array


class CaseInbox:
    """The inboxes of `hosts`, for the job called `job`."""

    def __init__(self, job: str, hosts: Sequence[Host]) -> None:
        self._job, self._hosts = job, hosts

    def settings(self, settings: Mapping[str, Any]) -> None:
        """What every rank reads first. Raises what the mailbox does."""
        for host in self._hosts:
            host.mailbox.stage(f"{self._job}.json", json.dumps(settings).encode())
            host.mailbox.reveal([f"{self._job}.json"])

    def may_import(self) -> None:
        """Let the ranks import the submission."""
        self._reveal("import", b"")

    def announce(self, number: int, request: Mapping[str, Any]) -> None:
        """Tell all ranks what case `number` is, or that there is none: {"end": True}."""
        self._reveal(f"case{number}.json", json.dumps(request).encode())

    def stage(
        self,
        number: int,
        inputs: Sequence[Mapping[str, Array]],
        params: Mapping[str, Any],
        placement: Sequence[Host],
    ) -> dict[Host, list[str]]:
        """Put everything of a case where a rename reveals it; return the files by host.

        inputs[r] goes to rank r, on the host placement[r].
        """
        case = f"{self._job}.case{number}"
        go = json.dumps({"params": params, "inputs": sorted(inputs[0])}).encode()
        files: dict[Host, list[str]] = {}
        for rank, arrays in enumerate(inputs):
            host = placement[rank]
            files.setdefault(host, [])
            for name, array in arrays.items():
                file = f"{case}.r{rank}.{name}.npy"
                host.mailbox.stage(file, encode_array(array))
                files[host].append(file)
        for host, host_files in files.items():
            host.mailbox.stage(f"{case}.go", go)
            host_files.append(f"{case}.go")
        return files

    def clear(self, number: int, hosts: Mapping[Host, object]) -> None:
        """Remove a case's arrays, inputs and answers, from the hosts that are still there."""
        for host in hosts:
            if host.alive():
                host.mailbox.remove(f"{self._job}.case{number}.r")

    def _reveal(self, name: str, content: bytes) -> None:
        """Put a file into the inbox of every host that is still there."""
        file = f"{self._job}.{name}"
        for host in self._hosts:
            with contextlib.suppress(OSError, ClusterError):
                host.mailbox.stage(file, content)
                host.mailbox.reveal([file])
