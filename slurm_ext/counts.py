"""Whole numbers in Slurm's text, bounded before they are converted."""

from __future__ import annotations

LONGEST = 20  # digits: Slurm's largest numbers have 64 bits


def count_in(text: str) -> int | None:
    """The number, or None for text that is none or is longer than any of Slurm's."""
    digits = len(text) <= LONGEST and text.isascii() and text.isdecimal()
    return int(text) if digits else None
