"""The ssh backend against real sshd processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.backends.ssh import SshBackend, SshCluster
from cluster.interface import ClusterError, ClusterSpec, OversizedFile, Unfit
from cluster.inventory import load_inventory
from cluster.launchers import mpirun
from cluster.network.paths import partition

_ODD_WORDS = ["a b", "it's", 'say "x"', "two\nlines", "$HOME", "`id`", "", "*", "\\", "ü"]


@pytest.fixture(scope="module")
def cluster(inventory_file: Path) -> Iterator[SshCluster]:
    program = inventory_file.parent / "hello.py"
    program.write_text(
        "from mpi4py import MPI\nimport numpy as np, os, sys\n"
        "c = MPI.COMM_WORLD\nx = np.ones(1 << 18); c.Allreduce(MPI.IN_PLACE, x)\n"
        "assert (x == c.size).all()\n"
        "open(f'{sys.argv[1]}/r{c.rank}', 'w').write(os.uname().nodename)\n"
    )
    spec = ClusterSpec(hosts=2, files={"job/hello.py": program})
    with SshBackend(load_inventory(inventory_file)).cluster(spec) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(inventory_file: Path) -> Iterator[SshCluster]:
    with SshBackend(load_inventory(inventory_file)).cluster(ClusterSpec(hosts=2)) as cluster:
        yield cluster


def test_a_host_is_the_machine_of_the_inventory(cluster: SshCluster) -> None:
    told = [
        host.start(["hostname"], stdout=subprocess.PIPE).communicate()[0].decode().strip()
        for host in cluster.hosts
    ]
    assert told == [host.name for host in cluster.hosts] == ["alpha", "beta"]
    assert cluster.hosts[0].gpus is not None and cluster.hosts[0].gpus.count == 8


def test_arguments_and_environment_arrive_unchanged(cluster: SshCluster) -> None:
    code = "import os, sys, json; print(json.dumps([sys.argv[1:], os.environ['ODD']]))"
    odd = "'\n\"$(id) ü"
    process = cluster.hosts[0].start(
        [sys.executable, "-c", code, *_ODD_WORDS], env={"ODD": odd}, stdout=subprocess.PIPE
    )
    assert json.loads(process.communicate()[0]) == [_ODD_WORDS, odd]


def test_the_launcher_agent_passes_shell_words_on(cluster: SshCluster) -> None:
    words = [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *_ODD_WORDS]
    command = [cluster.launcher_agent(), "beta", shlex.join(words)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == ascii(_ODD_WORDS)
    unknown = subprocess.run(
        [command[0], "gamma", "true"], check=False, capture_output=True, text=True
    )
    assert unknown.returncode == 255 and "no host gamma" in unknown.stderr


def test_mailbox_round_trip(cluster: SshCluster) -> None:
    host, box = cluster.hosts[1], cluster.hosts[1].mailbox
    content = os.urandom(3 << 20)
    box.stage("data", content)
    box.stage("again", b"1")
    box.stage("again", b"2")
    look = f"cd {host.path('in')}; ls; find {host.connection.root} -size +2M"
    hidden = host.start(["sh", "-c", look], stdout=subprocess.PIPE).communicate()[0]
    assert hidden == b"", "staged files must not be visible"
    box.reveal(["data", "again"])
    copy = f"cd {host.path('out')} && cp ../in/* . && ln -s /etc/passwd link && mkfifo fifo"
    assert host.start(["sh", "-c", copy]).wait(10) == 0
    assert box.fetch("data", 3 << 20) == content
    assert box.fetch("again", 9) == b"2"
    assert box.size("data") == 3 << 20
    assert box.size("link") is None
    assert box.names() == ["again", "data", "fifo", "link"]
    with pytest.raises(OversizedFile):
        box.fetch("data", (3 << 20) - 1)
    for name in ("link", "fifo", "nothing"):
        with pytest.raises(FileNotFoundError):
            box.fetch(name, 1 << 30)
    with pytest.raises(ValueError, match="not the name"):
        box.fetch("../owner", 100)
    box.remove("")
    assert box.names() == []


def test_mpirun_runs_over_it_and_its_bytes_are_counted(cluster: SshCluster) -> None:
    before = [host.data_bytes() for host in cluster.hosts]
    job = mpirun.launch(
        cluster, lambda h: [h.python, "-I", h.path("job/hello.py"), h.path("out")], ranks=2
    )
    status = job.wait(30)
    job.end()
    assert status == 0, job.output()
    places = [host.mailbox.fetch(f"r{host.index}", 99) for host in cluster.hosts]
    assert places == [b"alpha", b"beta"]
    sent = [
        h.data_bytes().sent_bytes - b.sent_bytes for h, b in zip(cluster.hosts, before, strict=True)
    ]
    assert all(2 << 20 < count < 3 << 20 for count in sent), sent  # half out, half back: 2 MiB


def test_statuses_and_the_end_of_either_side(cluster: SshCluster) -> None:
    host = cluster.hosts[0]
    assert host.start(["sh", "-c", "exit 7"]).wait(10) == 7
    assert host.start(["sh", "-c", "kill -9 $$"]).wait(10) == 137
    assert host.start(["/no/such/program"], stderr=subprocess.DEVNULL).wait(10) == 127
    sleeping = host.start(["sleep", "1000"], stdout=subprocess.PIPE)
    _until(lambda: len(host.processes()) == 1)
    sleeping.kill()
    sleeping.wait()
    _until(lambda: host.processes() == [])


def test_pause_quota_and_kill(own_cluster: SshCluster) -> None:
    alpha, beta = own_cluster.hosts
    daemon = "import os, time\nif os.fork(): os._exit(0)\nos.setsid(); os.closerange(0, 3)\n"
    assert alpha.start([sys.executable, "-c", daemon + "time.sleep(1000)"]).wait(10) == 0
    alpha.start(["sleep", "1000"])
    staying = beta.start(["sleep", "1000"])
    _until(lambda: len(alpha.processes()) == 2)
    alpha.pause()
    _until(lambda: all(_state(pid) == "T" for pid in alpha.processes()))
    alpha.resume()
    _until(lambda: all(_state(pid) == "S" for pid in alpha.processes()))
    pids = alpha.processes()
    alpha.kill()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not alpha.alive() and beta.alive() and staying.poll() is None
    with pytest.raises(ClusterError, match="alpha is down"):
        alpha.start(["true"])


def test_a_cpu_quota_slows_a_host(own_cluster: SshCluster) -> None:
    host = own_cluster.hosts[0]
    burn = "import time\ne = time.monotonic() + .4\nwhile time.monotonic() < e: pass\n"
    burn += "print(time.process_time())"

    def used() -> float:
        process = host.start([sys.executable, "-S", "-c", burn], stdout=subprocess.PIPE)
        return float(process.communicate()[0])

    try:
        host.set_cpus(0.2)
    except Unfit as reason:
        pytest.skip(str(reason))
    assert used() < 0.2
    host.set_cpus(None)


def test_closing_leaves_nothing(inventory_file: Path) -> None:
    with SshBackend(load_inventory(inventory_file)).cluster(ClusterSpec(hosts=2)) as cluster:
        roots = [Path(host.connection.root) for host in cluster.hosts]
        cluster.hosts[0].start(["sleep", "1000"])
        _until(lambda: cluster.hosts[0].processes() != [])
        pids = cluster.hosts[0].processes()
        assert all(root.is_dir() for root in roots)
    assert not any(root.exists() for root in roots)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_killed_agent_is_cleaned_up_by_the_next(inventory_file: Path) -> None:
    backend = SshBackend(load_inventory(inventory_file))
    with backend.cluster(ClusterSpec(hosts=1)) as cluster:
        root = Path(cluster.hosts[0].connection.root)
        cluster.hosts[0].start(["sleep", "1000"])
        _until(lambda: cluster.hosts[0].processes() != [])
        os.kill(int((root / "owner").read_text().split()[0]), signal.SIGKILL)
        _until(lambda: not cluster.hosts[0].alive())
        assert root.exists()
    with backend.cluster(ClusterSpec(hosts=1)):
        assert not root.exists()


def test_an_unreachable_machine_is_named_with_the_next_step(inventory_file: Path) -> None:
    text = inventory_file.read_text().replace("port = 2222", "port = 2223")
    path = inventory_file.with_name("wrong.toml")
    path.write_text(text)
    with pytest.raises(ClusterError, match=r"alpha: .*refused; try `ssh -p 2223 -l root 10.68.0.1"):
        SshBackend(load_inventory(path)).cluster(ClusterSpec(hosts=1))


def test_too_few_machines_or_slots(inventory_file: Path) -> None:
    backend = SshBackend(load_inventory(inventory_file))
    with pytest.raises(ClusterError, match="3 hosts asked for; the inventory has 2"):
        backend.cluster(ClusterSpec(hosts=3))
    with pytest.raises(ClusterError, match="alpha has 2"):
        backend.cluster(ClusterSpec(hosts=1, slots=3))


def test_a_fault_takes_or_says_why_not(own_cluster: SshCluster) -> None:
    rules = partition([[0], [1]])
    assert own_cluster.network is not None
    try:
        proof = own_cluster.network.impose(rules)
    except Unfit as reason:
        assert "tc qdisc" in str(reason)
        pytest.skip(f"this kernel has no netem: {reason}")
    assert "alpha" in proof
    ping = ["ping", "-c1", "-W1", own_cluster.hosts[1].data_address]
    assert own_cluster.hosts[0].start(ping).wait(5) != 0
    own_cluster.network.impose({})
    assert own_cluster.hosts[0].start(ping).wait(5) == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
