"""``repartition`` in a process that is killed at a chosen one of the places where it writes."""

from __future__ import annotations

import os
from typing import Any

from graphlearn_dist.partition import repartition
from graphlearn_dist.partition.ordering.piles import Piles
from graphlearn_dist.partition.ordering.union_graph import _Writer
from graphlearn_dist.partition.storage import ArrayWriter
from tests.support.dying import Death


def run(root: str, directory: str, at: int | None, by: Any) -> int:
    """How many writes there were."""
    places = [(ArrayWriter, ("append", "finish")), (Piles, ("put", "put_lists")), (_Writer, ("append", "finish"))]
    death = Death([*places, (os, ("replace",))], at)
    repartition(root, directory, num_parts=3, by=by)
    return death.count
