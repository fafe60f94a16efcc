"""All that a folder holds, down into repositories, archives, compressed files and notebooks."""

from __future__ import annotations

import base64
import binascii
import bz2
import io
import json
import lzma
import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.release.contents import ReleaseError, read_objects, run_git

_DEEPEST = 6
_MOST_BYTES = 256 << 20
_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{40,}\s{0,3}){4,}[A-Za-z0-9+/]*={0,2}")
_UNREADABLE = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}


@dataclass(frozen=True)
class Piece:
    """Something with contents. where: path below the folder, then what leads inside."""

    where: str
    content: bytes


@dataclass(frozen=True)
class Sealed:
    """Something that cannot be looked into, and why: it may hold anything."""

    where: str
    why: str


class _TooLarge(Exception):
    pass


def pieces(folder: Path) -> Iterator[Piece | Sealed]:
    """Everything below `folder`, in the order of the names."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        here = Path(parent)
        if {"HEAD", "objects", "refs"} <= {*folders, *names}:
            yield from _of_repository(here, str(here.relative_to(folder)))
        linked = [name for name in folders if (here / name).is_symlink()]
        for name in sorted([*names, *linked]):
            path = here / name
            yield from _of_path(path, str(path.relative_to(folder)), folder)


def _of_path(path: Path, where: str, folder: Path) -> Iterator[Piece | Sealed]:
    if path.is_symlink():
        if not path.resolve().is_relative_to(folder.resolve()):
            yield Sealed(where, "is a link that leads out of the folder")
        return
    if not path.is_file():
        yield Sealed(where, "is neither a file nor a folder")
        return
    try:
        if path.stat().st_size > _MOST_BYTES:
            yield Sealed(where, f"is larger than {_MOST_BYTES >> 20} MiB")
            return
        content = path.read_bytes()
    except OSError as error:
        yield Sealed(where, f"cannot be read: {error.strerror}")
        return
    yield from _of_content(where, content)


def _of_content(where: str, content: bytes, depth: int = 0) -> Iterator[Piece | Sealed]:
    yield Piece(where, content)
    if depth == _DEEPEST:
        yield Sealed(where, f"is packed more than {_DEEPEST} times over")
        return
    for magic, name in _UNREADABLE.items():
        if content.startswith(magic):
            yield Sealed(where, f"is a {name} archive; unpack it first")
    try:
        inner = list(_unpacked(where, content))
    except _TooLarge:
        yield Sealed(where, f"holds more than {_MOST_BYTES >> 20} MiB when unpacked")
        return
    except (zipfile.BadZipFile, tarfile.TarError, RuntimeError, NotImplementedError) as error:
        yield Sealed(where, f"is an archive that cannot be unpacked: {error}")
        return
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ReleaseError) as error:
        yield Sealed(where, f"is packed and cannot be unpacked: {error}")
        return
    for name, part in inner:
        yield from _of_content(f"{where}: {name}", part, depth + 1)


def _unpacked(where: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if content.startswith(b"PK") and zipfile.is_zipfile(io.BytesIO(content)):
        yield from _of_zip(content)
    elif content[257:262] == b"ustar":
        yield from _of_tar(content)
    elif content.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00")):
        yield "unpacked", _decompressed(content)
    elif content[:1] == b"\x78" and int.from_bytes(content[:2]) % 31 == 0:
        try:
            yield "unpacked", _decompressed(content)
        except (zlib.error, EOFError):  # two bytes are a weak sign: it may be plain text
            return
    elif content.startswith((b"PACK\0\0\0", b"# v2 git bundle", b"# v3 git bundle")):
        yield from _of_pack(content)
    else:
        if content.lstrip()[:1] in (b"{", b"["):
            yield from _of_json(content)
        for match in _BASE64.finditer(content):
            try:
                decoded = base64.b64decode(b"".join(match[0].split()))
            except binascii.Error:
                continue
            line = content.count(b"\n", 0, match.start()) + 1
            yield f"base64 on line {line}", decoded


def _decompressed(content: bytes) -> bytes:
    engine: Any
    if content.startswith(b"BZh"):
        engine = bz2.BZ2Decompressor()
    elif content.startswith(b"\xfd7zXZ"):
        engine = lzma.LZMADecompressor()
    else:
        engine = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    found: bytes = engine.decompress(content, _MOST_BYTES)
    if not engine.eof:
        if len(found) >= _MOST_BYTES:
            raise _TooLarge
        raise EOFError("it ends too early")
    if isinstance(engine.unused_data, bytes) and engine.unused_data:
        found += engine.unused_data  # what is hung on behind is looked at as it is
    return found


def _of_zip(content: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise _TooLarge
        for entry in archive.infolist():
            if not entry.is_dir():
                yield entry.filename, archive.read(entry)


def _of_tar(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name, stream.read()


def _of_json(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The strings of a JSON file; of a notebook, those of each cell."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return
    cells = value.get("cells") if isinstance(value, dict) else None
    parts = list(enumerate(cells, start=1)) if isinstance(cells, list) else []
    for number, cell in parts:
        yield f"cell {number}", "\n".join(_strings(cell)).encode(errors="replace")
    yield "its strings", "\n".join(_strings(value)).encode(errors="replace")


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        if value and all(isinstance(part, str) for part in value):
            yield "".join(value)  # a notebook's way to write lines
        for part in value:
            yield from _strings(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _strings(part)


def _of_pack(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory(prefix="distlab-scan-") as name:
        place = Path(name)
        run_git(place, "init", "--quiet", "--bare", "--template=", ".")
        pack = content[content.index(b"PACK") :]
        run_git(place, "unpack-objects", "-q", given=pack)
        yield from _objects(place)


def _of_repository(git_folder: Path, where: str) -> Iterator[Piece | Sealed]:
    """Every object of a repository, whether or not anything leads to it."""
    try:
        for name, content in _objects(git_folder):
            yield from _of_content(f"{where}: {name}", content, depth=1)
    except ReleaseError as error:
        yield Sealed(where, f"is a git repository that cannot be read: {error}")


def _objects(git_folder: Path) -> Iterator[tuple[str, bytes]]:
    listed = run_git(
        git_folder,
        "--git-dir=.",
        "cat-file",
        "--batch-all-objects",
        "--batch-check=%(objectname) %(objecttype)",
    )
    pairs = (line.partition(" ") for line in listed.decode().splitlines())
    kinds = {name: kind for name, _, kind in pairs}
    for name, content in read_objects(git_folder, list(kinds), "--git-dir=.").items():
        yield f"git {kinds[name]} {name[:12]}", content
