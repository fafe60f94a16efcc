"""Collectives are told by the tags of their messages, and nothing else passes for one."""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path

import pytest

from cluster.backends.netns import NetnsBackend
from cluster.interface import ClusterSpec
from cluster.launchers.mpirun import MpirunLauncher
from cluster.launchers.program import Program
from cluster.network.mpi_messages import CollectiveMessage, MessageWatch, parse


def frame(tag: int, kind: int = 0x41, size: int = 8000, options: int = 3) -> bytes:
    """A packet that begins with a message of Open MPI. options: words of TCP options."""
    ethernet = bytes(12) + b"\x08\x00"
    ip = b"\x45" + bytes(8) + b"\x06" + bytes(10)
    tcp = bytes(12) + bytes([(5 + options) << 4]) + bytes(7 + 4 * options)
    match = struct.pack("<BBHiiH", kind, 0, 3, 1, tag, 9)
    return ethernet + ip + tcp + struct.pack("<BBHI", kind, 1, 0, 14 + size) + match + bytes(40)


@pytest.mark.parametrize("options", [0, 3, 10])
def test_a_collective_is_known_by_its_tag(options: int) -> None:
    message = parse(frame(-12, options=options))
    assert message == CollectiveMessage(-12, 8000)
    assert message.sources == ("Allreduce",)
    assert not message.housekeeping


@pytest.mark.parametrize("tag", [0, 3, 77, 2**31 - 1, -1, -2, -9, -(2**31)])
def test_other_messages_are_none(tag: int) -> None:
    assert parse(frame(tag)) is None


@pytest.mark.parametrize("packet", [b"", bytes(60), frame(-12)[:60], frame(-12, kind=0x44)])
def test_what_is_no_message_is_none(packet: bytes) -> None:
    assert parse(packet) is None


@pytest.mark.parametrize(
    ("tag", "kind", "size", "housekeeping"),
    [
        (-10, 0x41, 96, True),  # Split of twelve ranks
        (-34, 0x41, 4, True),  # agreement on a communicator's number
        (-12, 0x41, 4, True),  # the first use of one
        (-12, 0x41, 8, False),
        (-10, 0x41, 8000, False),
        (-34, 0x42, 32, False),  # the first part of a long message
        (-17, 0x41, 8, False),
    ],
)
def test_making_a_communicator_is_housekeeping(
    tag: int, kind: int, size: int, housekeeping: bool
) -> None:
    message = parse(frame(tag, kind, size))
    assert message is not None
    assert message.housekeeping is housekeeping


@pytest.mark.parametrize("network_faults", [False, True])
def test_a_real_job_shows_its_collective_and_nothing_besides(
    tmp_path: Path, network_faults: bool
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, pathlib, time\n"
        "from mpi4py import MPI\n"
        "world, own = MPI.COMM_WORLD, np.ones(1000)\n"
        "peer = 1 - world.Get_rank()\n"
        "world.Dup().Split(0, 0).Create_group(world.Get_group())\n"
        "world.Sendrecv(own, peer, 3, np.empty(1000), peer, 3)\n"
        "pathlib.Path('/distlab/out/before').touch()\n"
        "while not pathlib.Path('/distlab/in/go').exists(): time.sleep(0.01)\n"
        "world.Allreduce(own, np.empty(1000))\n"
    )
    files = {"program.py": program}
    spec = ClusterSpec(hosts=2, network_faults=network_faults, files=files)
    with NetnsBackend() as backend, backend.cluster(spec) as cluster, MpirunLauncher() as launcher:
        watch = cluster.watch_messages()
        assert isinstance(watch, MessageWatch), sys.platform
        job = launcher.start(cluster, lambda host: Program(host.path("program.py")), 2)
        deadline = time.monotonic() + 30
        while any(host.mailbox.size("before") is None for host in cluster.hosts):
            assert time.monotonic() < deadline, job.output()
            time.sleep(0.01)
        assert [message for message in watch.seen() if not message.housekeeping] == []
        for host in cluster.hosts:
            host.mailbox.stage("go", b"")
            host.mailbox.reveal(["go"])
        assert job.wait(30) == 0, job.output()
        seen = {message.tag for message in watch.seen() if not message.housekeeping}
        watch.close()
    assert seen == {-12}
