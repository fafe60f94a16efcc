"""Machines for the ssh backend: real sshd processes, each with a network and a name of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute, netns

from cluster import enclosure, linux


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection((address, 2222), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, f"sshd does not answer on {address}"
            time.sleep(0.02)
        else:
            return


def _obstacle() -> str | None:
    if not enclosure.inside():
        return "needs an enclosure"
    if Path("/proc/self/uid_map").read_text().split()[2] == "1":
        return "needs an enclosure made by root: sshd changes users"
    if not Path("/usr/sbin/sshd").exists():
        return "needs openssh-server"
    return None


def _make_links(names: list[str]) -> None:
    with IPRoute() as ip:
        for network, (prefix, head) in {"sc": ("10.68.0", True), "sd": ("10.67.0", False)}.items():
            ip.link("add", ifname=network, kind="bridge")
            bridge = ip.link_lookup(ifname=network)[0]
            if head:
                ip.addr("add", index=bridge, address=f"{prefix}.254", prefixlen=24)
            ip.link("set", index=bridge, state="up")
            for number, name in enumerate(names, start=1):
                port, inner = f"{network}{number}", "eth0" if head else "eth1"
                peer = {"ifname": inner, "net_ns_fd": name}
                ip.link("add", ifname=port, kind="veth", peer=peer)
                ip.link("set", index=ip.link_lookup(ifname=port)[0], master=bridge, state="up")
                with IPRoute(netns=name) as inside:
                    for link, address in (("lo", None), (inner, f"{prefix}.{number}")):
                        index = inside.link_lookup(ifname=link)[0]
                        if address:
                            inside.addr("add", index=index, address=address, prefixlen=24)
                        inside.link("set", index=index, state="up")


def _become_machine(name: str) -> Callable[[], None]:
    def enter() -> None:
        with open(f"/run/netns/{name}") as namespace:
            linux.setns(namespace.fileno(), linux.CLONE_NEWNET)
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        # A sysfs of its own shows the namespace's interfaces; the control groups go back into it.
        linux.mount("/sys/fs/cgroup", "/mnt", "", linux.MS_BIND | linux.MS_REC)
        linux.mount("sysfs", "/sys", "sysfs", linux.MS_NOSUID)
        linux.mount("/mnt", "/sys/fs/cgroup", "", linux.MS_BIND | linux.MS_REC)
        socket.sethostname(name)

    return enter


@pytest.fixture(scope="session")
def inventory_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if why_not := _obstacle():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("it's a folder")
    names = ["alpha", "beta"]
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for key in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    for name in names:
        netns.create(name)
    _make_links(names)
    plain = Path("/run/distlab-sshd")
    plain.mkdir()
    (plain / "authorized_keys").write_text((folder / "user_key.pub").read_text())
    servers = []
    for number, name in enumerate(names, start=1):
        configuration = plain / f"{name}.conf"
        (plain / "host_key").write_bytes((folder / "host_key").read_bytes())
        (plain / "host_key").chmod(0o600)
        configuration.write_text(
            f"Port 2222\nListenAddress 10.68.0.{number}\nHostKey {plain}/host_key\n"
            f"AuthorizedKeysFile {plain}/authorized_keys\nPidFile none\nUsePAM no\n"
            "StrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        )
        servers.append(
            subprocess.Popen(
                ["/usr/sbin/sshd", "-D", "-e", "-f", str(configuration)],
                preexec_fn=_become_machine(name),
                stdin=subprocess.DEVNULL,
                stderr=(folder / f"{name}.log").open("wb"),
            )
        )
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known hosts").write_text(
        "".join(f"[10.68.0.{number}]:2222 {host_key}\n" for number in (1, 2))
    )
    hosts = "".join(
        f'[[hosts]]\nname = "{name}"\naddress = "10.68.0.{number}"\n'
        f'data_address = "10.67.0.{number}"\n'
        for number, name in enumerate(names, start=1)
    )
    inventory = folder / "inventory.toml"
    inventory.write_text(
        '[head]\naddress = "10.68.0.254"\nknown_hosts = "known hosts"\n'
        'control_network = "10.68.0.0/24"\ndata_network = "10.67.0.0/24"\n'
        '[defaults]\nuser = "root"\nport = 2222\nidentity_file = "user_key"\nslots = 2\n'
        'data_interface = "eth1"\ncontrol_interface = "eth0"\n'
        f'python = "{sys.executable}"\ngpu = {{ kind = "H200", count = 8 }}\n{hosts}'
    )
    for number in (1, 2):
        _wait_for(f"10.68.0.{number}")
    yield inventory
    for server in servers:
        server.kill()
        server.wait()
    for name in names:
        netns.remove(name)
    with IPRoute() as ip:
        for network in ("sc", "sd"):
            ip.link("del", index=ip.link_lookup(ifname=network)[0])
