"""A graph that a program may ask about in one call: it is whole, in a directory, or on servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...data.dataset import Dataset
from ...data.pyg.pyg_graphs import graph_of_pyg
from ...data.pyg.store_pairs import is_pyg_data
from ...data.schema import EdgeDirection
from ...errors import InvalidArgumentError
from ...sampler.local_graph import LocalGraph
from ...sampler.plan import SamplingPlan
from ...sampler.tasks import HostGraph
from ..dist_dataset import DistDataset
from .asked_dataset import AskedDataset
from .partition_directory import DirectoryDataset


def graph_for(
    data: Any, edge_dir: EdgeDirection, *, weight_attr: str | None = None, time_attr: str | None = None
) -> Dataset:
    """The data set of what a program gives: one, PyG's data (read now, to be sampled so), or a partition directory.

    Raises:
        InvalidArgumentError: something else, or one partition of several.
    """
    if isinstance(data, (str, Path)):
        data = DirectoryDataset(data)
    if is_pyg_data(data):
        return graph_of_pyg(data, edge_dir, weight_attr=weight_attr, time_attr=time_attr)
    if not isinstance(data, Dataset) or data.graph is None:
        raise InvalidArgumentError(
            f"data: expected PyG's Data, HeteroData or (FeatureStore, GraphStore), a Dataset with a graph, a "
            f"ServedDataset or a partition directory, got {type(data).__name__}"
        )
    if isinstance(data, DistDataset) and not isinstance(data, AskedDataset) and not data.is_whole:
        raise InvalidArgumentError(
            f"data: expected a data set that is whole or on servers, got one of {data.num_partitions} partitions"
        )
    return data


def graph_access(data: Dataset, plan: SamplingPlan, num_threads: int = 1) -> HostGraph:
    """The graph of ``graph_for``'s data set, its neighbors drawn by a plan. It never waits in a coroutine."""
    if isinstance(data, AskedDataset):
        return data.graph_access(plan, num_threads)
    return LocalGraph(data, plan, num_threads)
