"""A build that is killed, or whose disk is full, at a chosen one of the places where it writes."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from graphlearn_dist.errors import GraphLearnError
from graphlearn_dist.partition.storage import ArrayWriter
from graphlearn_dist.tables import ids
from graphlearn_dist.tables.buckets import BucketWriter
from graphlearn_dist.tables.stages import Stages
from tests.support.dying import Death

from .shop import SCARCE, Shop, make


def config_of(folder: str) -> dict[str, Any]:
    return Shop.make().config(Path(folder))


def run(folder: str, directory: str, at: int | None, resume: bool = False, kind: str = "random") -> int:
    """Builds, and kills this process just before or just after the ``at``-th write; how many there were."""
    places = [
        (BucketWriter, ("put", "finish")),
        (ArrayWriter, ("append", "finish")),
        (Stages, ("_write", "run")),
        (ids, ("_write_map",)),
        (os, ("replace",)),
    ]
    death = Death(places, at)
    make(config_of(folder), Path(directory), working=SCARCE, resume=resume, kind=kind)
    return death.count


def run_with_small_files(folder: str, directory: str, file_bytes: int, kind: str = "random") -> str:
    """Builds where no file may be larger, as on a disk that is full then; the error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
    try:
        make(config_of(folder), Path(directory), working=SCARCE, kind=kind)
    except GraphLearnError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return ""
