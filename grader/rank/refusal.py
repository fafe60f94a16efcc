"""The error that a submission gets for calling what its problem forbids."""

from __future__ import annotations

from typing import NoReturn


class RefusedCall(Exception):
    """The submission called what its problem forbids."""


def refusal(name: str, where: str = "") -> RefusedCall:
    """The error for a call of `name`. where: line of the learner's file, if it is known."""
    at = f" (called at {where})" if where else ""
    return RefusedCall(
        f"{name} is refused in this problem{at}: it is what you are asked to write yourself"
    )


def refuse(name: str) -> NoReturn:
    """Raise RefusedCall for a call of `name`."""
    raise refusal(name)
