"""Random partitioning of a graph that no machine holds whole."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from ..data.columns import Columns, check_columns
from ..errors import InvalidArgumentError, NotInitializedError
from ..partition.attributes import constant_inputs
from ..partition.ingest import (
    by_type,
    check_edge_keys,
    check_node_counts,
    id_vector,
    rows_tensor,
    times_tensor,
    weights_tensor,
)
from ..partition.layout import EdgeKey, NodeKey
from ..partition.partition_book import check_partition_idx
from ..partition.partitioner import EDGE_DIRS
from ..partition.storage import new_directory
from ..typing import NodeType
from ..utils.shown import shown
from ..utils.system.disk import disk_errors
from ..utils.values import check_distinct, check_finite, label_of
from . import rpc
from .dist_context import DistContext, get_context, init_worker_group
from .partitioning.partition_exchange import EdgeSlice, RowSlice, Slices, StoreName, agree, step
from .partitioning.partition_run import PartitionRun

_ANY_ID = 1 << 62


class DistRandomPartitioner:
    """Partitions a graph of which each rank of a worker group holds a slice; each ends with one partition on disk.

    The slices may be cut anyhow: an edge is on one rank, a feature row too, not necessarily the one that will own it.
    All ranks construct the partitioner and call ``partition()``. The directory is, array by array, the one that
    ``RandomPartitioner`` writes from the whole graph with the same seed. Owners of nodes are a formula. Edge features
    go where their edges go: while an edge type is sent, each rank keeps the owners of a range of edge ids, and the
    others ask it. A rank's memory holds the edges of one type of its partition, about as many ids with owners, and
    chunks; feature rows are written where they belong as they come.

    Args:
        output_dir: the directory to write; it may exist, and have files, but no partitions. On a file system of all
            ranks it holds all partitions; else each machine has META.json and the partitions of its ranks.
        num_nodes: number of nodes of the whole graph (by node type).
        edge_index: int32 or int64 ``[2, n]``, or a pair: sources and targets of this rank's edges (by edge type).
        edge_ids: int32 or int64 ``[n]``, distinct over all ranks (by edge type).
        node_feat: ``[m, ...]``, this rank's rows of node features (by node type).
        node_feat_ids: int ``[m]``, their nodes (by node type).
        edge_feat: rows of edge features (by edge type). All ranks together have one for each id from 0 on, so that edge
            ids are below their number; rows of ids that no edge has are dropped.
        edge_feat_ids: their edge ids (by edge type); ``edge_ids`` where not given.
        num_parts: must be the number of ranks, which is the default. Without ``init_worker_group`` before it, this and
            ``current_partition_idx`` are needed, and make the group.
        current_partition_idx: the partition that this rank will hold; its rank by default.
        node_feat_dtype, edge_feat_dtype: what features are stored as; None keeps their dtype, as ``Dataset`` does.
        edge_assign_strategy: ``"by_src"``: a partition has the out-edges of its nodes; ``"by_dst"``: the in-edges.
        chunk_size: edges and rows sent at a time.
        master_addr, master_port: where rank 0 hosts the registry, where ``init_rpc`` was not called; by default what
            ``MASTER_ADDR`` and ``MASTER_PORT`` of the environment say. The RPC then stays open until ``shutdown_rpc()``
            or the end of the process, which waits for the other ranks.
        num_rpc_threads: threads that answer requests, in that case.
        edge_weights: ``[n]``, finite and at least 0 (by edge type).
        edge_times: int64 or int32 ``[n]`` (by edge type).
        node_labels: rows of labels, any dtype (by node type).
        node_label_ids: their nodes (by node type); ``node_feat_ids`` where not given.
        node_attrs: attributes that batches carry under their names: by name ``[m, ...]``, this rank's rows (by node
            type).
        node_attr_ids: their nodes (by node type); ``node_feat_ids`` where not given.
        edge_attrs: likewise, of edges (by edge type); all ranks together have as many rows as of ``edge_feat``, or
            without it one for each id up to the greatest.
        edge_attr_ids: their edge ids (by edge type); ``edge_ids`` where not given.
        constants: attributes without rows, the same on all ranks: by type (None: of the graph) and name, tensors, or
            what JSON holds.
        seed: decides the assignment.
        timeout_s: how long a rank waits for the others at each step; the longest step is sending the edges of a type.
        allow_nonfinite: take features that are infinite or no number as they are, without a look at them.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnknownIdError: an id outside the graph, with its position.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_nodes: int | dict[NodeType, int],
        edge_index: Any,
        edge_ids: Any,
        node_feat: Any = None,
        node_feat_ids: Any = None,
        edge_feat: Any = None,
        edge_feat_ids: Any = None,
        num_parts: int | None = None,
        current_partition_idx: int | None = None,
        node_feat_dtype: torch.dtype | None = None,
        edge_feat_dtype: torch.dtype | None = None,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int = 16,
        *,
        edge_weights: Any = None,
        edge_times: Any = None,
        node_labels: Any = None,
        node_label_ids: Any = None,
        node_attrs: Any = None,
        node_attr_ids: Any = None,
        edge_attrs: Any = None,
        edge_attr_ids: Any = None,
        constants: Any = None,
        seed: int = 0,
        timeout_s: float = 3600.0,
        allow_nonfinite: bool = False,
    ) -> None:
        context = get_context() or _own_group(num_parts, current_partition_idx)
        if edge_assign_strategy not in EDGE_DIRS:
            raise InvalidArgumentError(
                f"edge_assign_strategy: expected by_src or by_dst, got {shown(edge_assign_strategy)}"
            )
        if not isinstance(chunk_size, int) or chunk_size < 1:
            raise InvalidArgumentError(f"chunk_size: expected an int >= 1, got {shown(chunk_size)}")
        self.output_dir = new_directory(output_dir)
        self.num_parts = context.world_size if num_parts is None else num_parts
        self.partition_idx = context.rank if current_partition_idx is None else current_partition_idx
        self.edge_dir = EDGE_DIRS[edge_assign_strategy]
        self.chunk_size = chunk_size
        self.seed = seed
        self.timeout_s = timeout_s
        self._master = (master_addr, master_port, num_rpc_threads)
        counts = check_node_counts(num_nodes)
        edges = _edge_slices(counts, edge_index, edge_ids, edge_weights, edge_times)
        own_edge_ids = {key: edge.edge_ids for key, edge in edges.items()}
        label_ids = node_feat_ids if node_label_ids is None else node_label_ids
        attr_ids = node_feat_ids if node_attr_ids is None else node_attr_ids
        node_rows = {key: {"x": rows} for key, rows in by_type("node_feat", node_feat, counts).items()}
        label_rows = {key: {"y": rows} for key, rows in by_type("node_labels", node_labels, counts).items()}
        edge_rows = {key: {"x": rows} for key, rows in by_type("edge_feat", edge_feat, edges).items()}
        unbounded = dict.fromkeys(edges, _ANY_ID)  # until all ranks know how many rows there are
        node_columns = _columns("node_attrs", node_attrs, counts)
        edge_columns = _columns("edge_attrs", edge_attrs, edges)
        self._slices = Slices(
            counts,
            edges,
            {
                **_row_slices("node_feat", node_rows, node_feat_ids, counts, dtype=node_feat_dtype),
                **_row_slices("node_label", label_rows, label_ids, counts),
                **_row_slices("node_attr", node_columns, attr_ids, counts),
                **_row_slices("edge_feat", edge_rows, edge_feat_ids, unbounded, own_edge_ids, dtype=edge_feat_dtype),
                **_row_slices("edge_attr", edge_columns, edge_attr_ids, unbounded, own_edge_ids),
            },
            constant_inputs(constants, {*counts, *edges}),
        )
        if not allow_nonfinite:
            for store, given in self._slices.rows.items():
                if store.group.endswith("_feat"):
                    check_finite(str(store), given.rows)

    def partition(self) -> Path:
        """Partitions; collective. What one rank raises is raised on all, and then nothing is left on disk.

        Returns:
            ``output_dir``.

        Raises:
            InvalidArgumentError: the ranks contradict each other, or an id comes twice.
            DeadlineExceededError: a rank did not come within ``timeout_s``.
            PeerLostError: a rank died.
            StorageError: the disk is full, or fails.
            NotInitializedError: there is no RPC, and no ``master_addr`` and ``master_port`` to open it with.
        """
        if not rpc.rpc_is_initialized():
            self._open_rpc()
        said = step(self._describe, self.timeout_s)
        agreement = agree(said)
        token = next(iter(said.values()))["token"]
        temporary = self.output_dir.absolute().parent / f".{self.output_dir.name}.partial-{token}"
        run = PartitionRun(
            self._slices,
            agreement,
            partition_idx=self.partition_idx,
            edge_dir=self.edge_dir,
            output_dir=self.output_dir,
            temporary=temporary,
            chunk_size=self.chunk_size,
            timeout_s=self.timeout_s,
        )
        try:
            with disk_errors(self.output_dir):
                run.write()
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return self.output_dir

    def _open_rpc(self) -> None:
        address, port, num_threads = self._master
        address, port = address or os.environ.get("MASTER_ADDR"), port or os.environ.get("MASTER_PORT")
        if address is None or port is None:
            raise NotInitializedError(
                "master_addr, master_port: expected both, here or in the environment (MASTER_ADDR, MASTER_PORT), as "
                "init_rpc was not called"
            )
        rpc.init_rpc(address, int(port), num_threads)
        # Not closed here: who opens it again could join the registry of a rank 0 that is about to close it.
        # Rank 0 hosts the registry, so that it must not end before the others have what they wait for.
        atexit.register(rpc.shutdown_rpc)

    def _describe(self) -> dict[str, Any]:
        return {
            **self._slices.describe(),
            "num_parts": self.num_parts,
            "partition_idx": self.partition_idx,
            "seed": self.seed,
            "edge_dir": self.edge_dir,
            "token": f"{os.getpid()}-{secrets.token_hex(4)}",
        }


def _own_group(num_parts: int | None, partition_idx: int | None) -> DistContext:
    """The group of a program that has made none: one rank for each partition."""
    if num_parts is None or partition_idx is None:
        raise NotInitializedError(
            "DistRandomPartitioner: call init_worker_group first, or give num_parts and current_partition_idx"
        )
    check_partition_idx(partition_idx, num_parts)
    init_worker_group(num_parts, partition_idx, "distributed_random_partitioner")
    context = get_context()
    assert context is not None
    return context


def _edge_slices(
    counts: Mapping[NodeKey, int], edge_index: Any, edge_ids: Any, weights: Any, times: Any
) -> dict[EdgeKey, EdgeSlice]:
    pairs = by_type("edge_index", edge_index, check_edge_keys(counts, edge_index))
    ids, times = by_type("edge_ids", edge_ids, pairs), by_type("edge_times", times, pairs)
    weights = by_type("edge_weights", weights, pairs)
    slices = {}
    for key, pair in pairs.items():
        name = label_of("edge_index", key)
        if len(pair) != 2:
            raise InvalidArgumentError(f"{name}: expected [2, num_edges], got a first extent of {len(pair)}")
        ends = (None, None) if key is None else (key[0], key[2])
        sources, targets = (
            id_vector(f"{name}[{i}]", pair[i], counts[end], label_of("nodes", end)) for i, end in enumerate(ends)
        )
        rows_tensor(f"{name}[1]", targets, len(sources), "source")
        id_name = label_of("edge_ids", key)
        own_ids = rows_tensor(id_name, id_vector(id_name, ids.get(key), _ANY_ID, "edges"), len(sources), "edge")
        check_distinct(id_name, own_ids)
        data = {
            "weights": weights_tensor(label_of("edge_weights", key), weights.get(key), len(sources)),
            "times": times_tensor(label_of("edge_times", key), times.get(key), len(sources)),
        }
        given = {name: tensor for name, tensor in data.items() if tensor is not None}
        slices[key] = EdgeSlice(sources, targets, own_ids, given)
    return slices


def _columns(name: str, given: Any, keys: Collection[Any]) -> Columns:
    columns = check_columns(name, given)
    for key in columns:
        if key not in keys:
            raise InvalidArgumentError(f"{name}: unknown type {key!r}; expected some of {list(keys)}")
    return columns


def _row_slices(
    group: str,
    given: Mapping[Any, Mapping[str, Any]],
    given_ids: Any,
    ends: Mapping[Any, int],
    default_ids: Mapping[Any, torch.Tensor] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> dict[StoreName, RowSlice]:
    """Rows by type and column, with their ids, which are below ``ends`` by type."""
    slices = {}
    ids_by_key = {**(default_ids or {}), **by_type(f"{group}_ids", given_ids, ends)}
    for key, columns in given.items():
        name = label_of(f"{group}_ids", key)
        ids = id_vector(name, ids_by_key.get(key), ends[key], "ids")
        check_distinct(name, ids)
        for column, data in columns.items():
            store = StoreName(group, key, column)
            rows = rows_tensor(str(store), data, len(ids), "id")
            slices[store] = RowSlice(ids, rows, dtype or rows.dtype)
    return slices
