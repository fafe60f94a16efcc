"""The scan finds the private half wherever it is put, and nothing where there is nothing."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import py_compile
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from grader.release.contents import Checkout, read_checkout
from grader.release.private_half import PrivateHalf
from grader.release.scan import scan

from .conftest import commit_all, run_git
from .test_release import distlab

PROBLEM = "p11_topology_aware"
REFERENCE = f"solutions/{PROBLEM}/solution.py"


@pytest.fixture(scope="module")
def checkout_files(committed: Path) -> Checkout:
    return read_checkout(committed)


@pytest.fixture(scope="module")
def private(checkout_files: Checkout) -> PrivateHalf:
    public = checkout_files.released([PROBLEM, "p03_allreduce_mpi"])
    return PrivateHalf(checkout_files.private(), public)


@pytest.fixture(scope="module")
def reference(checkout_files: Checkout) -> bytes:
    return next(file.content for file in checkout_files.files if file.path == REFERENCE)


def part(reference: bytes) -> bytes:
    """Some of its lines, indented and reflowed as in an answer to a friend."""
    lines = reference.decode().splitlines()[30:60]
    return "\n".join(f"> +   {line}  " for line in lines).encode()


def in_a_zip(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner/notes.txt", content)
    return stream.getvalue()


def in_a_tar(content: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("inner.txt")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def in_a_notebook(content: bytes) -> bytes:
    cell = {"cell_type": "code", "source": content.decode().splitlines(keepends=True)}
    cells = [{"cell_type": "markdown", "source": ["# Here\n"]}, cell]
    return json.dumps({"nbformat": 4, "cells": cells}).encode()


def in_base64(content: bytes) -> bytes:
    return b'<img src="data:text/plain;base64,' + base64.b64encode(content) + b'">'


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "quoted": part,
    "zip": in_a_zip,
    "zip in zip": lambda content: in_a_zip(in_a_zip(part(content))),
    "tar": lambda content: in_a_tar(part(content)),
    "gzip": lambda content: gzip.compress(part(content)),
    "bzip2": lambda content: bz2.compress(part(content)),
    "xz": lambda content: lzma.compress(part(content)),
    "zlib": lambda content: zlib.compress(part(content)),
    "behind a gzip": lambda content: gzip.compress(b"nothing") + part(content),
    "notebook": lambda content: in_a_notebook(part(content)),
    "base64": lambda content: in_base64(part(content)),
    "utf-16": lambda content: part(content).decode().encode("utf-16"),
    "behind a picture": lambda content: b"\x89PNG\r\n\x1a\n\0\0\0" + b"\n" + part(content),
}


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED.keys())
def test_a_reference_is_found_in_any_wrapping(
    tmp_path: Path, private: PrivateHalf, reference: bytes, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "innocent.bin").write_bytes(b"nothing to see here, nothing at all\n" * 40)
    assert scan(tmp_path, private) == []
    (tmp_path / "some file").write_bytes(pack(reference))
    found = scan(tmp_path, private)
    assert found
    assert all(finding.where.startswith("some file") for finding in found)
    assert any(REFERENCE in finding.what for finding in found)


@pytest.mark.parametrize("optimize", [0, 1, 2])
def test_a_reference_is_found_as_byte_code(
    tmp_path: Path, private: PrivateHalf, reference: bytes, optimize: int
) -> None:
    source = tmp_path / "elsewhere" / "model.py"
    source.parent.mkdir()
    source.write_bytes(b"# moved by some lines\n\n\n" + reference)
    cached = tmp_path / "copy" / "__pycache__" / "model.cpython-311.pyc"
    py_compile.compile(str(source), cfile=str(cached), optimize=optimize, doraise=True)
    found = scan(tmp_path / "copy", private)
    assert any(f.what == f"is byte code with a function of {REFERENCE}" for f in found), found
    source.write_text("def plain(x):\n    return [y + 1 for y in range(x) if y % 3 or y % 7]\n")
    py_compile.compile(str(source), cfile=str(cached), optimize=optimize, doraise=True)
    assert scan(tmp_path / "copy", private) == []
    cached.write_bytes(b"\x0a\x0d\r\n" + cached.read_bytes()[4:])
    assert "cannot be read here" in scan(tmp_path / "copy", private)[0].what


def test_a_reference_is_found_in_the_history_of_git(
    tmp_path: Path, private: PrivateHalf, reference: bytes
) -> None:
    run_git(tmp_path, "init", "--quiet")
    (tmp_path / "solution.py").write_bytes(part(reference))
    commit_all(tmp_path)
    (tmp_path / "solution.py").write_text("gone\n")
    commit_all(tmp_path)
    found = scan(tmp_path, private)
    assert [f.where[:9] for f in found if f.where.startswith(".git: git blob")] == [".git: git"]
    run_git(tmp_path, "gc", "--quiet", "--prune=now")
    assert any("git blob" in finding.where for finding in scan(tmp_path, private))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    run_git(tmp_path, "bundle", "create", "--quiet", str(bundle / "all"), "--all")
    assert any("git blob" in finding.where for finding in scan(bundle, private))


def test_a_reference_in_a_stub_is_no_excuse_for_it(
    checkout: Path, tmp_path: Path, reference: bytes
) -> None:
    stub = checkout / "problems" / PROBLEM / "stub.py"
    stub.write_bytes(stub.read_bytes() + b"\n\n" + reference)
    commit_all(checkout)
    done = distlab("release", "--to", str(tmp_path / "to"), checkout=checkout)
    assert done.returncode == 2
    assert re.search(rf"problems/{PROBLEM}/stub.py:\d+ has \d+ lines or more of", done.stdout)


def test_hidden_checks_and_submissions_are_found_by_name_and_by_title(
    tmp_path: Path, private: PrivateHalf
) -> None:
    name, title = next(iter(private.words)), next(iter(private.titles))
    half = len(title.split()) // 2
    words = title.split()
    folded = " ".join(words[:half]) + "\n        " + " ".join(words[half:])
    (tmp_path / "notes.md").write_text(f"one\n\nbeware of {name}\n\n{folded}\n")
    (tmp_path / "wrong_slow_nic.txt").write_text("")
    found = [str(finding) for finding in scan(tmp_path, private)]
    assert found[0].startswith(f"notes.md:3 says {name}, the name of solutions/")
    assert found[1].startswith("notes.md:5 has the title of the hidden check at solutions/")
    assert found[2].startswith("wrong_slow_nic.txt is named like solutions/p11_")
    assert len(found) == 3


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n" + "b3BlbnNzaC1rZXk" * 3, "a private key"),
        ("key = 'AKIA" + "ABCD2345" * 2 + "'", "an access key of AWS"),
        ("ghp_" + "a1B2c3" * 6, "a token of GitHub"),
        ("postgres://teacher:s3cret-word@db.school.example/marks", "a password in a URL"),
    ],
)
def test_what_looks_like_a_secret_is_found(
    tmp_path: Path, private: PrivateHalf, text: str, kind: str
) -> None:
    (tmp_path / "settings").write_text(f"first\n{text}\n")
    assert [str(f) for f in scan(tmp_path, private)] == [f"settings:2 looks like {kind}"]


def test_what_cannot_be_looked_into_is_a_finding(
    tmp_path: Path, private: PrivateHalf, reference: bytes
) -> None:
    (tmp_path / "a.7z").write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(40))
    (tmp_path / "b.gz").write_bytes(gzip.compress(reference)[:-20])
    (tmp_path / "c").symlink_to("/etc")
    os.mkfifo(tmp_path / "d")
    (tmp_path / "e.zip").write_bytes(in_a_zip(reference).replace(b"inner/", b"other/", 1))
    said = {finding.where: finding.what for finding in scan(tmp_path, private)}
    assert "is a 7z archive" in said["a.7z"]
    assert "ends too early" in said["b.gz"]
    assert "leads out of the folder" in said["c"]
    assert "neither a file nor a folder" in said["d"]
    assert "cannot be unpacked" in said["e.zip"]


def test_the_scan_by_itself_ends_with_1_where_it_finds_something(
    committed: Path, tmp_path: Path, reference: bytes
) -> None:
    (tmp_path / "readme").write_text("nothing")
    done = distlab("release", "--scan", str(tmp_path), checkout=committed)
    assert (done.returncode, "nothing of " in done.stdout) == (0, True)
    (tmp_path / "x.zip").write_bytes(in_a_zip(reference))
    done = distlab("release", "--scan", str(tmp_path), checkout=committed)
    assert done.returncode == 1
    assert done.stdout == f"x.zip: inner/notes.txt is {REFERENCE}\n"
