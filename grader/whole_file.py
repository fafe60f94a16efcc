"""Files that others see whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write `text`, its line ends as they are, and put the file into place at once.

    Raises OSError; then `path` is as it was, and nothing is left beside it.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding=encoding, newline="")
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
