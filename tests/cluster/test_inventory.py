"""The inventory file: defaults, and mistakes that are told with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.interface import GpuInfo
from cluster.inventory import InventoryError, load_inventory
from cluster.toml_lines import line_of

_GOOD = """\
[head]
address = "10.0.0.9"
known_hosts = "known hosts"

[defaults]
user = "train"
slots = 8
identity_file = "~/keys/id"
gpu = { kind = "H200", count = 8 }
data_interface = "ib0"
data_rate_mbit = 400_000

[[hosts]]
name = "node1"
address = "10.0.0.1"

[[hosts]]
name = "node2"
address = "10.0.0.2"
data_address = "10.1.0.2"
slots = 4
port = 2222
gpu = { kind = "A100", count = 4 }
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "inventory.toml"
    path.write_text(text)
    return path


def test_hosts_take_defaults_and_may_differ(tmp_path: Path) -> None:
    inventory = load_inventory(_write(tmp_path, _GOOD))
    first, second = inventory.machines
    assert (first.name, first.user, first.port, first.slots) == ("node1", "train", 22, 8)
    assert first.gpus == GpuInfo("H200", 8)
    assert first.data_address == "10.0.0.1" and first.data_rate_mbit == 400_000
    assert (second.slots, second.port, second.data_address) == (4, 2222, "10.1.0.2")
    assert second.gpus == GpuInfo("A100", 4)
    assert inventory.head_address == "10.0.0.9"


def test_paths_start_at_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    inventory = load_inventory(_write(tmp_path, _GOOD))
    assert inventory.known_hosts == tmp_path / "known hosts"
    assert inventory.machines[0].identity_file == Path("/home/somebody/keys/id")


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("port = 2222", "prot = 2222", ":22: unknown key 'hosts.1.prot'; valid here: user, port,"),
        ("user =", "usr =", ":6: unknown key 'defaults.usr'"),
        ("known_hosts", "knownhosts", ":3: unknown key 'head.knownhosts'"),
        ("count = 4 }", "counts = 4 }", ":23: unknown key 'hosts.1.gpu.counts'"),
        ("port = 2222", "port = 0", ":22: hosts.1.port is 0"),
        ("slots = 4", 'slots = "4"', ":21: hosts.1.slots is '4'"),
        ('address = "10.0.0.2"\n', "", ":17: 'hosts.1.address' is missing"),
        ('"node2"', '"node1"', ":18: name 'node1' is already that of host 'node1'"),
        ('"10.0.0.1"', '"-oProxyCommand=x"', ":15: hosts.0.address is '-oProxyCommand=x'"),
        ('"train"', '"-x"', ":6: defaults.user is '-x'"),
        ("[head]", "[head", "not valid TOML"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, good: str, bad: str, says: str) -> None:
    assert good in _GOOD
    path = _write(tmp_path, _GOOD.replace(good, bad, 1))
    with pytest.raises(InventoryError) as failure:
        load_inventory(path)
    assert says in str(failure.value)
    assert str(path) in str(failure.value)


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    text = _GOOD.replace("port =", "prot =").replace("user =", "usr =")
    with pytest.raises(InventoryError) as failure:
        load_inventory(_write(tmp_path, text))
    assert len(str(failure.value).splitlines()) == 2


def test_an_absent_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="cannot be read"):
        load_inventory(tmp_path / "none.toml")


def test_lines_are_found_in_subtables_and_quoted_keys() -> None:
    text = 'a = 1\n[[t]]\nx.y = 2\n[t.sub]\n"odd key" = 3\n[[t]]\n[t.sub]\nz = 4\n'
    assert line_of(text, ("t", 0, "x", "y")) == 3
    assert line_of(text, ("t", 0, "sub", "odd key")) == 5
    assert line_of(text, ("t", 1, "sub", "z")) == 8
    assert line_of(text, ("t", 1, "missing")) == 6
    assert line_of(text, ("nothing",)) == 1
