"""What every measured library looks like to the harness.

Peers run in processes of their own, some in another environment: this module needs numpy and torch only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from graphs import TIMES, GraphFiles, open_graph

SAMPLE, FEATURES, LOADER = "sample", "features", "loader"
UNIFORM, WEIGHTED, LABOR, TEMPORAL = "uniform", "weighted", "labor", "temporal"


@dataclass(frozen=True)
class Setting:
    """What is measured, the same for every peer.

    Attributes:
        directories: of the graph; of a typed graph, one per edge type by its name ``"source__name__target"``.
        fanout: neighbors per hop, the seeds' hop first.
        batch_size: seeds of a batch.
        threads: threads a peer may use.
        ids: ``"int32"`` or ``"int64"``, storage of the graph.
        features: width of the float32 rows; 0 where none are looked up.
        draw: how neighbors are drawn, without replacement: ``UNIFORM``, ``WEIGHTED`` (by edge weight), ``LABOR``
            (layer-neighbor, one random number for each node of a hop) or ``TEMPORAL`` (uniform, edges no later than
            the seed's time, one tree per seed; half of all edges are).
    """

    directories: dict[str, str]
    fanout: list[int]
    batch_size: int
    threads: int
    ids: str = "int64"
    features: int = 0
    draw: str = UNIFORM

    @property
    def weighted(self) -> bool:
        return self.draw == WEIGHTED

    @property
    def is_typed(self) -> bool:
        return "" not in self.directories

    @property
    def edge_types(self) -> list[tuple[str, str, str]]:
        """(source, name, target) of each edge type of a typed graph."""
        return [tuple(name.split("__")) for name in self.directories]  # type: ignore[misc]

    def graph(self, edge_type: tuple[str, str, str] | None = None) -> GraphFiles:
        """The files of one edge type; of the only one where none is named."""
        return open_graph(Path(self.directories["" if edge_type is None else "__".join(edge_type)]))

    @property
    def seed_type(self) -> str:
        """The node type whose nodes are seeds: the target of the first edge type."""
        return self.edge_types[0][2]


@dataclass(frozen=True)
class Work:
    """What one batch holds."""

    edges: int
    nodes: int


class Unsupported(Exception):
    """This peer has no such setting or mode; the table says so."""


class Peer(ABC):
    """One library, with a graph loaded as its documentation says.

    Attributes:
        replace: samples with replacement.
        kind: how its work differs from the others' ("" where it does not).
        ids: the id widths it can store.
        hetero: samples typed graphs.
        draws: how it can draw neighbors.
    """

    replace = False
    kind = ""
    ids: tuple[str, ...] = ("int64",)
    hetero = False
    draws: tuple[str, ...] = (UNIFORM,)

    def __init__(self, setting: Setting) -> None:
        """Loads nothing: ``build`` does.

        Raises:
            Unsupported: the setting is beyond this peer.
        """
        for wanted, able, what in (
            (setting.is_typed, self.hetero, "typed graphs"),
            (True, setting.draw in self.draws, f"{setting.draw} draws"),
            (True, setting.ids in self.ids, f"{setting.ids} storage"),
        ):
            if wanted and not able:
                raise Unsupported(f"no {what}")
        self.setting = setting

    @staticmethod
    @abstractmethod
    def version() -> str:
        """The library's version; ImportError or OSError where it cannot be loaded here."""

    @abstractmethod
    def build(self) -> None:
        """Loads the graph, and the features where the setting has any."""

    @abstractmethod
    def sample(self, seeds: torch.Tensor) -> Any:
        """A batch with relabeled edges for int64 ``[batch_size]`` seeds, in the library's own form."""

    @abstractmethod
    def work(self, batch: Any) -> Work:
        """Its edges, and its distinct nodes (seeds among them)."""

    def stored_bytes(self) -> dict[str, int]:
        """Bytes of what was loaded, by name; empty where a peer does not tell."""
        return {}

    def lookup(self, batch: Any) -> torch.Tensor:
        """Feature rows of the batch's nodes as a new tensor."""
        raise Unsupported("features")

    def loader(self, seeds: torch.Tensor) -> Iterator[Any]:
        """Batches with features from the library's own loader, in order."""
        raise Unsupported("loader")

    def loader_work(self, batch: Any) -> Work:
        """As ``work``, of a batch of the loader."""
        return self.work(batch)

    # --- arrays ------------------------------------------------------------------------------------------------

    def arrays(self, edge_type: tuple[str, str, str] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """(indptr int64, indices in the setting's width) of an edge type, in memory of this process."""
        graph = self.setting.graph(edge_type)
        indices = graph.load("indices32" if self.setting.ids == "int32" else "indices")
        return torch.from_numpy(graph.load("indptr")), torch.from_numpy(indices)

    def edge_weights(self) -> torch.Tensor:
        """float32 ``[edges]``."""
        return torch.from_numpy(self.setting.graph().load("weights"))

    def edge_times(self) -> torch.Tensor:
        """int64 ``[edges]``."""
        return torch.from_numpy(self.setting.graph().load("times"))

    def seed_times(self, seeds: torch.Tensor) -> torch.Tensor:
        """int64, one for each seed."""
        return torch.full_like(seeds, TIMES // 2, dtype=torch.int64)

    def feature_rows(self) -> torch.Tensor:
        """float32 ``[nodes, features]``."""
        return torch.from_numpy(self.setting.graph().load(f"features-{self.setting.features}"))


def batch_seeds(setting: Setting, first: int, count: int) -> torch.Tensor:
    """int64: the seeds of ``count`` batches from batch ``first`` on, the same for every peer; the list wraps around."""
    graph = setting.graph(setting.edge_types[0] if setting.is_typed else None)
    order = graph.load("seeds", mapped=True)
    wanted = np.arange(first * setting.batch_size, (first + count) * setting.batch_size) % order.size
    return torch.from_numpy(np.ascontiguousarray(order[wanted]))
