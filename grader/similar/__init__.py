"""Submissions that have much in common: found by their tokens, shown side by side."""
