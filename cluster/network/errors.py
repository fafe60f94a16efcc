"""What can go wrong with an emulated network. Neither is ever the learner's fault."""

from __future__ import annotations


class EngineError(Exception):
    """The switch cannot be started, has died, or refuses an operation."""


class FaultNotApplied(EngineError):
    """A fault was asked for and the network does not show it: the run is unfit."""
