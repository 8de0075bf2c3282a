"""What distributed loaders take as their partition: one, or what makes a single one that holds everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..data.pyg.store_pairs import data_of_stores, is_pyg_data, is_pyg_stores
from ..data.schema import EdgeDirection
from ..data.sources import GraphSource
from ..errors import InvalidArgumentError
from .dist_dataset import DistDataset


def open_partition(
    data: Any, edge_dir: EdgeDirection | None, weight_attr: str | None = None, time_attr: str | None = None
) -> DistDataset | None:
    """The partition that a distributed loader samples; None where servers have it.

    Args:
        data: a ``DistDataset`` or None; PyG's ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)``, of which
            everything is read once; or the directory of a single partition.
        edge_dir: which neighbors are sampled, of PyG's data; in-neighbors unless given.
        weight_attr: of PyG's data, the attribute that holds weights of edges.
        time_attr: of PyG's data, the attribute that holds times of nodes or of edges.

    Raises:
        InvalidArgumentError: there are several partitions in the directory; attributes are named beside something else
            than PyG's data, or are not there; typed data have no types of edges.
    """
    if is_pyg_stores(data):
        data = data_of_stores(*data)
    if is_pyg_data(data):
        if not getattr(data, "edge_types", True):
            raise InvalidArgumentError("data: expected types of edges, with edges or without, got HeteroData with none")
        source = GraphSource.from_pyg(data, weight_attr=weight_attr, time_attr=time_attr)
        return DistDataset.from_dataset(source.to_dataset(edge_dir or "in", allow_nonfinite=True))
    for name, given in (("weight_attr", weight_attr), ("time_attr", time_attr)):
        if given is not None:
            raise InvalidArgumentError(
                f"{name}: expected None unless data are PyG's, got {given!r}: a partition has the weights and times "
                "that it was made with (with_weight=True samples by weight)"
            )
    if not isinstance(data, (str, Path)):
        return data  # type: ignore[no-any-return]
    partition = DistDataset()
    partition.load(data, 0, graph_mode="CPU")
    if partition.num_partitions != 1:
        raise InvalidArgumentError(
            f"data: expected the directory of one partition, got {partition.num_partitions} in {data}; give each "
            "process its DistDataset"
        )
    return partition
