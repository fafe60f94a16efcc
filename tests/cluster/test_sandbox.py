"""What a program on an emulated host can and cannot do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import block_disk, cgroup
from cluster.backends.netns import NetnsBackend, NetnsCluster
from cluster.interface import ClusterSpec, Limits, OversizedFile, Unfit

# Not by the user's id: in the tests' enclosure an ordinary user's is 0 as well.
needs_control_groups = pytest.mark.skipif(
    not cgroup.usable(), reason="needs control groups; run as root"
)


@pytest.fixture(scope="module")
def backend() -> Iterator[NetnsBackend]:
    with NetnsBackend() as backend:
        yield backend


@pytest.fixture
def cluster(backend: NetnsBackend) -> Iterator[NetnsCluster]:
    limits = Limits(memory_mb=256, tmp_mb=16, pids=64)
    with backend.cluster(ClusterSpec(hosts=2, limits=limits)) as cluster:
        yield cluster


def run(cluster: NetnsCluster, host: int, script: str, timeout: float = 20) -> tuple[int, str]:
    process = cluster.hosts[host].start(
        ["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    out, _ = process.communicate(timeout=timeout)
    return process.returncode, out.decode()


def python(cluster: NetnsCluster, host: int, code: str) -> tuple[int, str]:
    process = cluster.hosts[host].start(
        [cluster.hosts[host].python, "-I", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out, _ = process.communicate(timeout=30)
    return process.returncode, out.decode()


def test_each_host_has_its_own_name_processes_and_files(cluster: NetnsCluster) -> None:
    assert run(cluster, 0, "hostname; echo mine > /tmp/x; echo $$ > /dev/shm/y")[1] == "node1\n"
    _, out = run(cluster, 1, "hostname; ls /tmp /dev/shm; ls /proc | grep -c '^[0-9]'")
    assert out.splitlines()[0] == "node2"
    assert "x" not in out.splitlines()
    assert "y" not in out.splitlines()
    assert int(out.splitlines()[-1]) < 8


def test_no_right_is_left(cluster: NetnsCluster) -> None:
    _, status = run(cluster, 0, "id -u; cat /proc/self/status")
    assert status.startswith("1000\n")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


@pytest.mark.parametrize(
    "command",
    [
        "unshare -U true",
        "unshare -n true",
        "mount -t tmpfs x /tmp",
        "ip link set data0 down",
        "tc qdisc add dev data0 root netem delay 1ms",
        "touch /usr/x",
        "touch /distlab/x",
        "touch /distlab/in/x",
        "cat /etc/shadow",
        "ls /root/* /home/* /srv/* /run/distlab",
        "kill -9 1",
    ],
)
def test_what_must_not_work_does_not(cluster: NetnsCluster, command: str) -> None:
    code, _ = run(cluster, 0, command)
    still_there = cluster.hosts[0].alive()
    assert still_there
    assert code != 0 or command.startswith("kill")


@pytest.mark.parametrize(
    "call",
    [
        "socket.socket(40, 1)",  # vsock
        "socket.socket(17, 3, 0)",  # packets
        "socket.socket(38, 5)",  # AF_ALG
        "refused(libc.syscall(101, 16, 1, 0, 0))",  # ptrace
        "refused(libc.syscall(425, 1, 0))",  # io_uring_setup
        "refused(libc.syscall(321, 0, 0, 0))",  # bpf
        "refused(libc.syscall(56, 0x10000011, 0, 0, 0, 0))",  # clone into a user namespace
    ],
)
def test_system_calls_round_the_network_are_refused(cluster: NetnsCluster, call: str) -> None:
    code = (
        "import ctypes, socket\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def refused(result):\n"
        "    if result == -1 and ctypes.get_errno() == 1: raise PermissionError\n"
        f"try:\n    {call}\nexcept OSError as error:\n    print('refused', error.errno)\n"
    )
    assert python(cluster, 0, code)[1].startswith("refused")


def test_a_host_reaches_the_head_and_its_peers_and_nothing_else(cluster: NetnsCluster) -> None:
    probe = (
        "import socket\n"
        "def reach(address):\n"
        "    s = socket.socket(); s.settimeout(0.5)\n"
        "    try: s.connect((address, 9))\n"
        "    except ConnectionRefusedError: return True\n"
        "    except OSError: return False\n"
        "print([reach(a) for a in ('10.77.0.2', '10.78.0.254', '10.78.0.2', '192.0.2.1')])\n"
    )
    assert python(cluster, 0, probe)[1] == "[True, True, False, False]\n"


def test_a_disk_ends_where_the_limit_says(cluster: NetnsCluster) -> None:
    _, out = run(cluster, 0, "dd if=/dev/zero of=/tmp/x bs=1M count=64 2>&1 | head -1")
    assert "No space left" in out


@needs_control_groups
def test_memory_and_processes_end_where_the_limits_say(cluster: NetnsCluster) -> None:
    code, _ = python(cluster, 0, "x = bytearray(400 << 20); x[::4096] = b'1' * (100 << 10)")
    assert code != 0
    forks = "for i in $(seq 200); do sleep 5 & done; wait"
    assert "fork" in run(cluster, 1, forks, timeout=30)[1].lower()


def test_a_killed_host_is_down_and_the_other_is_not(cluster: NetnsCluster) -> None:
    process = cluster.hosts[0].start(["sleep", "60"])
    cluster.hosts[0].kill()
    assert process.wait(timeout=5) != 0
    assert [host.alive() for host in cluster.hosts] == [False, True]


def test_what_runs_on_a_paused_host_stands_still_and_goes_on(cluster: NetnsCluster) -> None:
    host = cluster.hosts[0]
    process = host.start(["sh", "-c", "echo; sleep 0.1; exit 7"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    host.pause()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    host.resume()
    assert process.wait(timeout=5) == 7


@needs_control_groups
def test_what_starts_on_a_paused_host_waits_as_well(cluster: NetnsCluster) -> None:
    host = cluster.hosts[0]
    host.pause()
    process = host.start(["true"])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    host.resume()
    assert process.wait(timeout=5) == 0


def test_a_full_disk_is_full_until_freed(cluster: NetnsCluster) -> None:
    host = cluster.hosts[0]
    host.fill_disk()
    assert run(cluster, 0, "echo x > /tmp/y")[0] != 0
    host.free_disk()
    assert run(cluster, 0, "echo x > /tmp/y")[0] == 0


def test_counters_see_what_crosses_the_wire(cluster: NetnsCluster) -> None:
    size = 3_000_000
    server = cluster.hosts[1].start(
        [
            cluster.hosts[1].python,
            "-I",
            "-c",
            "import socket; s = socket.create_server(('10.77.0.2', 5000)); c, _ = s.accept()\n"
            "while c.recv(65536): pass",
        ]
    )
    before = [host.data_bytes() for host in cluster.hosts]
    code = (
        "import socket, time\n"
        "for _ in range(100):\n"
        "    try: s = socket.create_connection(('node2', 5000)); break\n"
        "    except OSError: time.sleep(0.05)\n"
        f"s.sendall(bytes({size}))\n"
    )
    assert python(cluster, 0, code)[0] == 0
    server.wait(timeout=10)
    sent, received = (host.data_bytes() - b for host, b in zip(cluster.hosts, before, strict=True))
    assert size <= sent.sent_bytes <= 1.08 * size
    assert received.received_bytes == sent.sent_bytes
    assert sent.control_bytes < 1000


def test_the_mailbox_takes_files_and_nothing_else(cluster: NetnsCluster) -> None:
    box = cluster.hosts[0].mailbox
    box.stage("hello", b"secret")
    assert run(cluster, 0, "cat /distlab/in/hello")[0] != 0
    box.reveal(["hello"])
    assert run(cluster, 0, "cat /distlab/in/hello")[1] == "secret"
    run(
        cluster,
        0,
        "cd /distlab/out; echo -n ok > plain; ln -s /etc/passwd link; mkfifo pipe; mkdir folder;"
        "truncate -s 1T sparse",
    )
    assert box.fetch("plain", 10) == b"ok"
    for name in ("link", "pipe", "folder", "missing"):
        assert box.size(name) is None
        with pytest.raises(FileNotFoundError):
            box.fetch(name, 10)
    with pytest.raises(OversizedFile):
        box.fetch("sparse", 1 << 20)


def test_fresh_hosts_know_nothing_of_the_last(backend: NetnsBackend) -> None:
    for _ in range(2):
        with backend.cluster(ClusterSpec(hosts=1)) as cluster:
            process = cluster.hosts[0].start(
                ["sh", "-c", "ls /tmp /distlab/out; touch /tmp/x /distlab/out/x"],
                stdout=subprocess.PIPE,
            )
            assert b"x" not in process.communicate(timeout=10)[0].split()


def test_a_host_that_could_not_be_made_leaves_nothing_in_the_next_ones_way() -> None:
    with NetnsBackend() as backend:
        with pytest.raises(FileNotFoundError):
            backend.cluster(ClusterSpec(hosts=1, files={"driver.py": Path("/nowhere")}))
        with backend.cluster(ClusterSpec(hosts=1)) as cluster:
            assert cluster.hosts[0].alive()


@needs_control_groups
def test_a_slow_disk_syncs_at_its_speed_until_it_is_lifted() -> None:
    spec = ClusterSpec(2, limits=Limits(tmp_mb=64), block_disk=True)
    with NetnsBackend() as backend, backend.cluster(spec) as made:
        loops = block_disk.device(made.hosts[0].folders.disk)
        assert loops.startswith("7:")
        proof = made.hosts[0].slow_disk(2e6)
        assert proof.startswith("node1 synced 1 MB at ")
        began = time.monotonic()
        sync = "dd if=/dev/zero of=/tmp/x bs=1M count=4 conv=fsync 2>/dev/null"
        assert run(made, 0, sync)[0] == 0
        slow = time.monotonic() - began
        assert run(made, 1, sync)[0] == 0
        other = time.monotonic() - began - slow
        made.hosts[0].slow_disk(None)
        began = time.monotonic()
        assert run(made, 0, sync)[0] == 0
        assert slow > 0.9 * (4 << 20) / 2e6 > 1.5 * max(other, time.monotonic() - began)
        made.hosts[0].fill_disk()
        assert run(made, 0, "echo x > /tmp/y")[0] != 0
    assert not Path(f"/sys/dev/block/{loops}/loop").exists()


def test_a_disk_in_memory_is_not_slowed(cluster: NetnsCluster) -> None:
    with pytest.raises(Unfit, match=r"slow disk needs control groups|is memory"):
        cluster.hosts[0].slow_disk(1e6)
