"""Meaningless changes to material, after which the answer should stay the same."""
