"""How rows of all nodes are computed and stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ..core import available_cores
from ..errors import InvalidArgumentError
from ..typing import NodeType
from ..utils.values import check_seed, is_number, is_whole
from .results import check_format

RESULT_DTYPES = {torch.float32: "float32", torch.float16: "float16"}


@dataclass(frozen=True)
class InferenceOptions:
    """Settings of ``infer``.

    Attributes:
        fanout: neighbors of each node, drawn without replacement as a loader draws them; -1 takes all.
        weights: hand the weights of the edges to layers.
        block_size: nodes of one block, after which ``resume`` goes on. It is computed at once, or in pieces as large as
            an eighth of the memory that is left allows. The rows do not depend on it.
        num_threads: blocks that are computed at once; None: as many as cores. The rows do not depend on it.
        dtype: of the stored rows of every layer, float32 or float16. Layers compute in float32.
        node_types: whose rows are wanted of the last layer; None: all that it gives.
        seed: of the draws of ``fanout``.
        format: of the files of ``out``: ``"npy"``, or ``"parquet"`` with the original ids.
        id_maps: the partition directory with the original ids, for Parquet of data that are not a directory
            themselves; of it META.json and node_map are read.
        file_bytes: a file of ``out`` holds at most so many bytes of rows, and at least one row.
        together: all workers, or all clients, of the job call ``infer`` at once, and each computes the nodes of some
            partitions. The rows do not depend on it.
        resume: go on with the last finished block of an earlier call with the same arguments that was killed.
        reconnect_timeout: how long a server that is gone may take to come back, in seconds; 0 waits for none.
    """

    fanout: int = -1
    weights: bool = False
    block_size: int = 16384
    num_threads: int | None = None
    dtype: torch.dtype = torch.float32
    node_types: tuple[NodeType, ...] | None = None
    seed: int = 0
    format: Literal["npy", "parquet"] = "npy"
    id_maps: str | Path | None = None
    file_bytes: int = 1 << 30
    together: bool = False
    resume: bool = False
    reconnect_timeout: float = 60.0

    def __post_init__(self) -> None:
        if not is_whole(self.fanout) or self.fanout < -1 or self.fanout == 0:
            raise InvalidArgumentError(f"fanout: expected -1 (all neighbors) or more than 0, got {self.fanout!r}")
        for name in ("block_size", "file_bytes"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise InvalidArgumentError(f"{name}: expected an integer of at least 1, got {value!r}")
        if self.num_threads is not None and (not is_whole(self.num_threads) or self.num_threads < 1):
            raise InvalidArgumentError(
                f"num_threads: expected an integer of at least 1, or None, got {self.num_threads!r}"
            )
        if not is_number(self.reconnect_timeout) or not self.reconnect_timeout >= 0:
            raise InvalidArgumentError(
                f"reconnect_timeout: expected at least 0 seconds, got {self.reconnect_timeout!r}"
            )
        check_seed("seed", self.seed)
        if self.dtype not in RESULT_DTYPES:
            raise InvalidArgumentError(f"dtype: expected torch.float32 or torch.float16, got {self.dtype}")
        check_format(self.format)
        if self.weights and self.fanout != -1:
            raise InvalidArgumentError("weights: expected all neighbors (fanout=-1), got a fanout")

    @property
    def threads(self) -> int:
        """How many blocks are computed at once."""
        return available_cores() if self.num_threads is None else self.num_threads
