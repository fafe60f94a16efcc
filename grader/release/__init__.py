"""A learner's copy of this repository, without its private half, and the proof that it is."""
