"""The inventory: which real machines there are, and how to reach and use them. A TOML file:

[head]
address = "10.0.0.9"            # of this machine, as the hosts reach it
known_hosts = "known_hosts"     # optional; else as ssh is configured
control_network = "10.0.0.0/24" # optional, CIDR; so is data_network

[defaults]                      # any key of a host but name and address
user = "train"
python = "/opt/distlab/bin/python"
gpu = { kind = "H200", count = 8 }

[[hosts]]
name = "node1"
address = "10.0.0.1"
data_interface = "eth1"
"""

from __future__ import annotations

import ipaddress
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cluster.interface import ClusterError, GpuInfo
from cluster.toml_lines import Location, line_of

_NAME = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$"
_ADDRESS = r"^[A-Za-z0-9:\[]([A-Za-z0-9.:%_\]-]*)$"
_INTERFACE = r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}$"
_USER = r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*\$?$"


class InventoryError(ClusterError):
    """The inventory file is absent or wrong. The message names the file, the line and the key."""


@dataclass(frozen=True)
class Machine:
    """One real machine. port: of sshd. data_rate_mbit: what its data interface can carry.

    control_interface is counted as the launcher's network where it is not the data interface.
    """

    name: str
    address: str
    user: str | None
    port: int
    identity_file: Path | None
    slots: int
    gpus: GpuInfo | None
    data_interface: str
    data_address: str
    data_rate_mbit: float | None
    control_interface: str | None
    python: str
    sudo: bool


@dataclass(frozen=True)
class Inventory:
    """All machines, in the order of the file, and the head's side of things."""

    head_address: str
    known_hosts: Path | None
    control_network: str | None
    data_network: str | None
    machines: tuple[Machine, ...]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Gpu(_Strict):
    kind: Annotated[str, Field(min_length=1, max_length=64)]
    count: Annotated[int, Field(ge=1, le=64)]


class _Defaults(_Strict):
    user: Annotated[str, Field(pattern=_USER)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    identity_file: str | None = None
    slots: Annotated[int, Field(ge=1, le=64)] = 1
    gpu: _Gpu | None = None
    data_interface: Annotated[str, Field(pattern=_INTERFACE)] = "eth0"
    data_rate_mbit: Annotated[float, Field(gt=0)] | None = None
    control_interface: Annotated[str, Field(pattern=_INTERFACE)] | None = None
    python: Annotated[str, Field(min_length=1)] = "python3"
    sudo: bool = False


class _Host(_Defaults):
    name: Annotated[str, Field(pattern=_NAME)]
    address: Annotated[str, Field(pattern=_ADDRESS)]
    data_address: Annotated[str, Field(pattern=_ADDRESS)] | None = None


class _Head(_Strict):
    address: Annotated[str, Field(pattern=_ADDRESS)]
    known_hosts: str | None = None
    control_network: str | None = None
    data_network: str | None = None

    @field_validator("control_network", "data_network")
    @classmethod
    def _is_network(cls, value: str | None) -> str | None:
        if value is not None:
            ipaddress.ip_network(value)
        return value


class _File(_Strict):
    head: _Head
    defaults: _Defaults = _Defaults()
    hosts: Annotated[list[_Host], Field(min_length=1)]


def load_inventory(path: Path) -> Inventory:
    """Read and check an inventory. Relative paths in it start from its own folder.

    Raises InventoryError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InventoryError(f"the inventory {path} cannot be read: {error}") from error
    try:
        entries = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InventoryError(f"{path}: not valid TOML: {error}") from error
    return _resolve(path.absolute().parent, _check(path, text, entries))


def _check(path: Path, text: str, entries: dict[str, Any]) -> _File:
    defaults, hosts = entries.get("defaults"), entries.get("hosts")
    merged = dict(entries)
    if isinstance(defaults, dict) and isinstance(hosts, list):
        # Defaults with a mistake are left out here, so that it is told once and at its own line.
        usable = defaults if _is_valid(defaults) else {}
        merged["hosts"] = [{**usable, **h} if isinstance(h, dict) else h for h in hosts]
    try:
        checked = _File.model_validate(merged)
    except ValidationError as failure:
        wrong = [_describe(path, text, error) for error in failure.errors()]
        raise InventoryError("\n".join(wrong)) from failure
    for field in ("name", "address"):
        first: dict[object, int] = {}
        for index, host in enumerate(checked.hosts):
            value = getattr(host, field), host.port if field == "address" else 0
            if value in first:
                line = line_of(text, ("hosts", index, field))
                raise InventoryError(
                    f"{path}:{line}: {field} {value[0]!r} is already that of host "
                    f"{checked.hosts[first[value]].name!r}"
                )
            first[value] = index
    return checked


def _is_valid(defaults: dict[str, Any]) -> bool:
    try:
        _Defaults.model_validate(defaults)
    except ValidationError:
        return False
    return True


def _describe(path: Path, text: str, error: Any) -> str:
    location: Location = error["loc"]
    line = line_of(text, location)
    key = ".".join(str(part) for part in location)
    if error["type"] == "extra_forbidden":
        valid = ", ".join(_fields_at(location))
        return f"{path}:{line}: unknown key {key!r}; valid here: {valid}"
    if error["type"] == "missing":
        return f"{path}:{line}: {key!r} is missing"
    return f"{path}:{line}: {key} is {error['input']!r}: {error['msg']}"


def _fields_at(location: Location) -> list[str]:
    models: dict[str, type[_Strict]] = {
        "head": _Head,
        "defaults": _Defaults,
        "hosts": _Host,
        "gpu": _Gpu,
    }
    named = [models[part] for part in location[:-1] if isinstance(part, str) and part in models]
    return list((named[-1] if named else _File).model_fields)


def _resolve(folder: Path, checked: _File) -> Inventory:
    def located(name: str | None) -> Path | None:
        return None if name is None else folder / Path(name).expanduser()

    machines = [
        Machine(
            name=host.name,
            address=host.address,
            user=host.user,
            port=host.port,
            identity_file=located(host.identity_file),
            slots=host.slots,
            gpus=None if host.gpu is None else GpuInfo(host.gpu.kind, host.gpu.count),
            data_interface=host.data_interface,
            data_address=host.data_address or host.address,
            data_rate_mbit=host.data_rate_mbit,
            control_interface=host.control_interface,
            python=host.python,
            sudo=host.sudo,
        )
        for host in checked.hosts
    ]
    head = checked.head
    return Inventory(
        head_address=head.address,
        known_hosts=located(head.known_hosts),
        control_network=head.control_network,
        data_network=head.data_network,
        machines=tuple(machines),
    )
