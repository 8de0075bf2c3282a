"""The order in which the stretches of a data set take turns."""

from __future__ import annotations


def far_apart(count: int) -> list[int]:
    """The numbers below ``count`` by their bits in reverse: of every few that follow each other, none is near."""
    width = (count - 1).bit_length()
    return sorted(range(count), key=lambda number: f"{number:0{width}b}"[::-1])
