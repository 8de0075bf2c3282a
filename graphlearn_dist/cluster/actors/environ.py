"""What a worker of any engine gets of its driver's environment."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence

# The environment of an actor can be read by everybody on a cluster, and what a scheduler tells the driver is about the
# driver: no worker of any engine gets these.
WITHHELD = ("RAY_*", "SLURM_*", "PMI*", "*TOKEN*", "*SECRET*", "*PASSWORD*")
# Which GPUs a worker sees is the engine's to say, and the rest is about the driver's place in a job.
NOT_FORWARDED = (
    *WITHHELD,
    "CUDA_VISIBLE_DEVICES",
    "GLD_ROLE",
    "GLD_RANK",
    "GLD_MASTER_*",
    "PYTHONPATH",
)


def forwarded_environ(
    environ: Mapping[str, str] = os.environ, without: Sequence[str] = NOT_FORWARDED
) -> dict[str, str]:
    """The driver's variables that its workers get: all but those whose names match a pattern of ``without``."""
    return {
        name: value
        for name, value in environ.items()
        if not any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in without)
    }
