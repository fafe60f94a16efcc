"""The file system a host sees and the bubblewrap sandbox it runs in.

A host sees the system's programs and libraries, the Python installation, and the files given to
it, all read-only; /tmp, /dev/shm and its outbox are its own. It sees no home folder, no
repository, no other host.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster import block_disk, linux
from cluster.enter import INNER_UID
from cluster.interface import ClusterError, Limits

RUN = Path("/run/distlab")
_ROOT_IMAGE = RUN / "rootfs"
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "openmpi", "pmix")
_MOUNT_POINTS = ("proc", "dev", "tmp", "run", "root", "distlab")
# For programs that lead into a host. Whatever runs there can read with what environment they were
# started, so that it must not be the grader's, which may hold an instructor's passwords.
HEAD_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_FIRST_HOST_UID = 800_000
_COPY_LIMIT = 64 * 2**20


@dataclass(frozen=True)
class HostFolders:
    """Where a host's own files live in the enclosure: one size-limited tmpfs."""

    base: Path

    @property
    def disk(self) -> Path:
        return self.base / "disk"

    @property
    def tmp(self) -> Path:
        return self.disk / "tmp"

    @property
    def outbox(self) -> Path:
        return self.disk / "out"

    @property
    def inbox(self) -> Path:
        return self.base / "mail" / "in"

    @property
    def staging(self) -> Path:
        return self.base / "mail" / "staging"

    @property
    def shown(self) -> Path:
        return self.base / "shown"

    @property
    def shm(self) -> Path:
        return self.base / "shm"


def host_uid(index: int) -> int:
    """Real user id of everything on host `index`, when the cluster is made by root."""
    return _FIRST_HOST_UID + index


def build_root_image() -> Path:
    """Assemble the read-only file system that all hosts share; done once in an enclosure."""
    if _ROOT_IMAGE.exists():
        return _ROOT_IMAGE
    _ROOT_IMAGE.mkdir(parents=True)
    for name in _MOUNT_POINTS:
        (_ROOT_IMAGE / name).mkdir()
    for name in ("in", "out"):
        (_ROOT_IMAGE / "distlab" / name).mkdir()
    for folder in _SYSTEM_FOLDERS:
        source = Path(folder)
        if source.is_symlink():
            (_ROOT_IMAGE / folder[1:]).symlink_to(source.readlink())
        elif source.is_dir():
            _bind(source)
    for prefix in sorted({sys.prefix, sys.base_prefix}):
        if not any(Path(prefix).is_relative_to(folder) for folder in _SYSTEM_FOLDERS):
            _bind(Path(prefix))
    etc = _ROOT_IMAGE / "etc"
    etc.mkdir()
    for name in _ETC:
        source = Path("/etc") / name
        if source.is_dir():
            shutil.copytree(source, etc / name, symlinks=True)
        elif source.exists():
            shutil.copy(source, etc / name)
    (etc / "passwd").write_text(
        f"root:x:0:0::/root:/bin/sh\nlearner:x:{INNER_UID}:{INNER_UID}::/tmp:/bin/sh\n"
    )
    (etc / "group").write_text(f"root:x:0:\nlearner:x:{INNER_UID}:\n")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    return _ROOT_IMAGE


def _bind(source: Path) -> None:
    target = _ROOT_IMAGE / str(source)[1:]
    target.mkdir(parents=True, exist_ok=True)
    linux.mount(str(source), str(target), "", linux.MS_BIND | linux.MS_REC)


def write_hosts_file(addresses: Mapping[str, str]) -> None:
    """Let the hosts resolve each other's names."""
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    (_ROOT_IMAGE / "etc" / "hosts").write_text("\n".join(lines) + "\n")


def make_folders(
    folders: HostFolders, limits: Limits, owner: int | None, *, on_device: bool = False
) -> None:
    """Mount a host's scratch space. `owner`: its real user id, None to leave it to the caller.
    on_device: its disk is a block device. Raises Unfit where there is none."""
    base = folders.base
    base.mkdir(parents=True)
    for folder, size_mb in ((folders.disk, limits.tmp_mb), (folders.shm, limits.shm_mb)):
        folder.mkdir()
        if on_device and folder == folders.disk:
            block_disk.mount(base / "disk.image", folder, size_mb)
            continue
        data = f"size={size_mb}m,mode=755"
        linux.mount("tmpfs", str(folder), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, data)
    (base / "mail").mkdir()
    for own in (folders.tmp, folders.outbox):
        own.mkdir()
    for folder in (folders.inbox, folders.staging, folders.shown):
        folder.mkdir(parents=True)
    folders.staging.chmod(0o700)
    for own in (folders.tmp, folders.outbox, folders.shm):
        if owner is not None:
            os.chown(own, owner, owner)
        own.chmod(0o700)


def remove_folders(folders: HostFolders) -> None:
    """Unmount and remove a host's scratch space, as far as it was made."""
    for folder in (folders.disk, folders.shm):
        with contextlib.suppress(OSError):
            linux.unmount(str(folder))
    shutil.rmtree(folders.base, ignore_errors=True)


def show(folders: HostFolders, files: Mapping[str, Path]) -> None:
    """Copy the files that a host may read. Links and special files are left out.

    Raises ClusterError when they exceed 64 MiB.
    """
    total = 0
    for name, source in files.items():
        target = folders.shown / name
        pairs = [(source, target)]
        if source.is_dir():
            pairs = [
                (path, target / path.relative_to(source))
                for path in sorted(source.rglob("*"))
                if "__pycache__" not in path.parts
            ]
            target.mkdir(parents=True, exist_ok=True)
        for path, destination in pairs:
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                destination.mkdir(parents=True, exist_ok=True)
            elif stat.S_ISREG(mode):
                total += path.stat().st_size
                if total > _COPY_LIMIT:
                    raise ClusterError(f"{source} holds more than 64 MiB; hand in less")
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, destination)
                destination.chmod(0o644)


def bubblewrap_command(
    name: str,
    folders: HostFolders,
    environment: Mapping[str, str],
    info_fd: int,
    without: Sequence[str] = (),
) -> list[str]:
    """The command line that becomes host `name`. without: Python packages that are not there."""
    command = ["bwrap", "--die-with-parent", "--new-session", "--hostname", name]
    command += ["--unshare-user", "--unshare-pid", "--unshare-uts", "--unshare-ipc"]
    command += ["--uid", str(INNER_UID), "--gid", str(INNER_UID), "--cap-drop", "ALL"]
    command += ["--info-fd", str(info_fd), "--ro-bind", str(_ROOT_IMAGE), "/"]
    command += ["--proc", "/proc", "--dev", "/dev", "--bind", str(folders.shm), "/dev/shm"]
    for device in sorted(Path("/dev").glob("nvidia*")):
        command += ["--dev-bind-try", str(device), str(device)]
    command += ["--bind", str(folders.tmp), "/tmp"]
    for prefix in sorted({sys.prefix, sys.base_prefix}):
        if Path(prefix).is_relative_to("/tmp"):
            command += ["--ro-bind", f"{_ROOT_IMAGE}{prefix}", prefix]
    for package in without:
        for folder in _package_folders():
            if package.isidentifier() and (Path(folder) / package).is_dir():
                command += ["--tmpfs", f"{folder}/{package}"]
    command += ["--tmpfs", "/distlab", "--bind", str(folders.outbox), "/distlab/out"]
    command += ["--ro-bind", str(folders.inbox), "/distlab/in"]
    for shown in sorted(folders.shown.iterdir()):
        command += ["--ro-bind", str(shown), f"/distlab/{shown.name}"]
    command += ["--remount-ro", "/distlab", "--chdir", "/tmp", "--clearenv"]
    for key, value in environment.items():
        command += ["--setenv", key, value]
    return [*command, "sleep", "infinity"]


@functools.cache
def _package_folders() -> frozenset[str]:
    return frozenset({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


@dataclass(frozen=True)
class StartingHost:
    """A sandbox that is being set up. info: where it tells its first process's pid, and ends."""

    process: subprocess.Popen[bytes]
    info: IO[bytes]

    def pid(self) -> int:
        """Wait until it is up. Raises ClusterError when it does not come up."""
        with self.info:
            text = self.info.read()
        if not text:
            self.process.wait()
            assert self.process.stderr is not None
            reason = self.process.stderr.read().decode(errors="replace").strip()
            raise ClusterError(f"bubblewrap could not make a host: {reason}")
        return int(json.loads(text)["child-pid"])

    def abandon(self) -> None:
        """End it, however far it has come: its processes go with it."""
        self.process.kill()
        self.process.wait()
        self.info.close()


def start_host(
    command: Callable[[int], Sequence[str]], netns: Path, owner: int | None
) -> StartingHost:
    """Start the sandbox in network namespace `netns`. command: takes the descriptor for its pid."""

    def become_owner() -> None:
        with netns.open() as namespace:
            linux.setns(namespace.fileno(), linux.CLONE_NEWNET)
        for interfaces in ("all", "default"):  # no neighbour discovery among the counted packets
            with contextlib.suppress(OSError):
                Path(f"/proc/sys/net/ipv6/conf/{interfaces}/disable_ipv6").write_text("1")
        # The machine's default may be one that probes (BBR) or that a namespace may not choose.
        with contextlib.suppress(OSError):
            Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
        if owner is not None:
            os.setgroups([])
            os.setresgid(owner, owner, owner)
            os.setresuid(owner, owner, owner)

    info_read, info_write = os.pipe()
    try:
        process = subprocess.Popen(
            command(info_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[info_write],
            env=HEAD_ENVIRONMENT,
            preexec_fn=become_owner,
        )
    except BaseException:
        os.close(info_read)
        raise
    finally:
        os.close(info_write)
    return StartingHost(process, os.fdopen(info_read, "rb"))
