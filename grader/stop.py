"""End a command with one sentence for the user."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

from grader.outcome import EXIT_USER_MISTAKE


def stop(sentence: str, code: int = EXIT_USER_MISTAKE) -> NoReturn:
    """Print the sentence on stderr and leave with `code`."""
    errors = Console(stderr=True)
    errors.print(f"distlab: {sentence}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
