"""How a command ends when its user can put something right."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

from grader.outcome import EXIT_USER_MISTAKE

_errors = Console(stderr=True)


def stop(sentence: str, code: int = EXIT_USER_MISTAKE) -> NoReturn:
    """End with one sentence for the user."""
    _errors.print(f"distlab: {sentence}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
