"""Partition directories from graphs as people have them, and a check of what is there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import torch

from .. import _C
from ..core import available_cores, thread_pool
from ..data.sources import GraphSource
from ..errors import InvalidArgumentError, PartitionFormatError
from ..utils.paths import to_path
from ..utils.shown import shown
from ..utils.values import count_not_finite, label_of
from .edge_book import OwnedEdgesBook
from .layout import EdgeKey, NodeKey, PartitionArrays, array_path, load_partition_layout
from .ordering.zone_partitioner import KaMinParPartitioner, LDGPartitioner
from .partitioner import PartitionerBase, RandomPartitioner, RangePartitioner
from .piece_assembler import check_complete
from .storage import ArrayFile, check_checksum

if TYPE_CHECKING:
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

Kind = Literal["random", "range", "kaminpar", "ldg"]
_PARTITIONERS: dict[str, type[PartitionerBase]] = {
    "random": RandomPartitioner,
    "range": RangePartitioner,
    "kaminpar": KaMinParPartitioner,
    "ldg": LDGPartitioner,
}


def partition_source(
    source: GraphSource,
    output_dir: str | Path,
    *,
    num_parts: int,
    kind: Kind = "random",
    edge_dir: Literal["in", "out"] = "in",
    seed: int = 0,
    allow_nonfinite: bool = False,
) -> Path:
    """Writes a partition directory of a whole graph.

    Args:
        source: the graph.
        output_dir: may exist, and have files, but no partitions.
        num_parts: number of partitions.
        kind: ``"random"`` (a keyed permutation of the ids), ``"range"`` (near-equal ranges of them), or ``"kaminpar"``
            or ``"ldg"``: few cut edges, by zones of an order that the directory then has (docs/locality.md).
        edge_dir: keep in- or out-neighbors with each node; loaders must ask for the same.
        seed: of the random assignment, or of the search for an order.
        allow_nonfinite: take features that are infinite or no number as they are.

    Returns:
        The directory.
    """
    if kind not in _PARTITIONERS:
        raise InvalidArgumentError(f"kind: expected one of {sorted(_PARTITIONERS)}, got {shown(kind)}")
    partitioner = _PARTITIONERS[kind](
        output_dir,
        num_parts,
        source.num_nodes,
        source.edge_index,
        node_feat=source.node_features,
        node_feat_dtype=None,
        edge_feat=source.edge_features,
        edge_feat_dtype=None,
        edge_assign_strategy={"in": "by_dst", "out": "by_src"}[edge_dir],
        node_labels=source.node_labels,
        node_split=source.node_split,
        seed=seed,
        num_threads=available_cores(),
        edge_weights=source.edge_weights,
        edge_times=source.edge_times,
        node_times=source.node_times,
        allow_nonfinite=allow_nonfinite,
        node_attrs=source.node_attrs,
        edge_attrs=source.edge_attrs,
        constants=source.constants,
    )
    return partitioner.partition()


def partition_pyg(
    data: Data | HeteroData | tuple[FeatureStore, GraphStore],
    output_dir: str | Path,
    *,
    weight_attr: str | None = None,
    time_attr: str | None = None,
    split_index: int | None = None,
    attrs: Collection[str] | None = None,
    **options: Any,
) -> Path:
    """``partition_source`` of PyG's data (see ``GraphSource.from_pyg``); the same keywords."""
    source = GraphSource.from_pyg(
        data, weight_attr=weight_attr, time_attr=time_attr, split_index=split_index, attrs=attrs
    )
    return partition_source(source, output_dir, **options)


def partition_file(path: str | Path, output_dir: str | Path, **options: Any) -> Path:
    """``partition_source`` of an ``.npz`` file (see ``GraphSource.from_npz``); the same keywords."""
    return partition_source(GraphSource.from_npz(path), output_dir, **options)


def verify(root_dir: str | Path) -> str:
    """Reads every byte of a partition directory and checks sizes, checksums and every index of the graph.

    Features that are infinite or no number are counted, and no error.

    Partitions whose folder is not on this machine are left out, and said so.

    Returns:
        A readable account.

    Raises:
        PartitionFormatError: something is damaged; the message names the file.
    """
    check_complete(to_path("root_dir", root_dir))
    layout = load_partition_layout(root_dir, verify=True)
    lines = [f"{layout.root}: {layout.num_parts} partitions, {layout.edge_dir}-neighbors"]
    for about in layout.columns.get("nodes", {}).values():
        if about.get("id_map") is not None:
            check_checksum(layout.root / about["id_map"], about.get("id_map_crc32"))
    for index in range(layout.num_parts):
        if not (layout.root / f"part{index}").exists():
            lines.append(f"  partition {index}: not on this machine")
            continue
        arrays = layout.open_partition(index, verify=True)
        for edge_type, graph in arrays.graphs.items():
            csr = _C.Csr(graph.indptr, graph.indices, graph.edge_ids, graph.num_cols, graph.times)
            pool = thread_pool(available_cores())
            try:
                csr.validate(pool)
                if graph.weights is not None:
                    _C.sum_weights(graph.indptr, graph.weights, pool)
            except InvalidArgumentError as error:
                raise PartitionFormatError(f"{layout.root}: partition {index}, edges {edge_type}: {error}") from error
        for edge_type in arrays.edge_feats:
            book, graph = layout.edges[edge_type].feature_book, arrays.graphs[edge_type]
            if isinstance(book, OwnedEdgesBook) and not torch.equal(
                book.local_ids(index), graph.edge_ids.sort().values.long()
            ):
                raise PartitionFormatError(
                    f"{layout.root}: partition {index}, edges {edge_type}: the ids beside edge features are not those "
                    "of its edges"
                )
        num_bytes = sum(file.num_bytes for file in layout.partition_files(index))
        num_edges = sum(graph.indices.numel() for graph in arrays.graphs.values())
        lines.append(f"  partition {index}: {num_edges:,} edges, {num_bytes / 2**20:,.1f} MiB, good")
        lines += [f"    {line}" for line in _not_finite(arrays)]
    return "\n".join(lines)


def _not_finite(arrays: PartitionArrays) -> Iterator[str]:
    """What a training may not expect of features, which is allowed all the same."""
    for name, feats in (("node_feat", arrays.node_feats), ("edge_feat", arrays.edge_feats)):
        for key, rows in feats.items():
            if count := count_not_finite(rows):
                yield f"{label_of(name, key)}: {count:,} of {len(rows):,} rows hold numbers that are not finite"


def describe(root_dir: str | Path) -> str:
    """What a partition directory has, readable: types, counts, arrays, and the columns of tables they came from."""
    layout = load_partition_layout(root_dir, verify=False)
    lines = [f"{layout.root}: {layout.num_parts} partitions, {layout.edge_dir}-neighbors"]
    for node_type, nodes in layout.nodes.items():
        about = layout.columns.get("nodes", {}).get(node_type, {})
        splits = ", ".join(f"{len(ids):,} {name}" for name, ids in nodes.split.items())
        lines.append(f"{label_of('nodes', node_type)}: {nodes.count:,}" + (f" ({splits})" if splits else ""))
        lines += _arrays_of(layout.files.values(), "node", node_type) + _columns_of(about)
    for edge_type, edges in layout.edges.items():
        about = layout.columns.get("edges", {}).get(edge_type, {})
        lines.append(f"{label_of('edges', edge_type)}: {edges.count:,}")
        lines += _arrays_of(layout.files.values(), "edge", edge_type) + _columns_of(about)
    return "\n".join(lines)


def _arrays_of(files: Iterable[ArrayFile], kind: str, key: NodeKey | EdgeKey) -> list[str]:
    """The arrays of a type that the first partition has, with the shape of a row."""
    groups = ("graph",) if kind == "edge" else ()
    folders = [
        array_path(group, key, "", 0).removesuffix(".npy")
        for group in (*groups, f"{kind}_feat", f"{kind}_label", f"{kind}_time", f"{kind}_attr")
    ]
    lines = []
    for file in files:
        for folder in folders:
            name = file.path.removeprefix(folder).removesuffix(".npy")
            if file.path.startswith(folder) and "/" not in name and name not in ("indptr", "ids"):
                shape = "".join(f" x {extent}" for extent in file.shape[1:])
                lines.append(f"  {folder.split('/')[1]} {unquote(name)}: {file.dtype}{shape}")
    return lines


def _columns_of(about: Mapping[str, Any]) -> list[str]:
    """What is known of the tables, a line for each thing."""
    lines = []
    if about.get("id_type"):
        where = f", map in {about['id_map']}" if about.get("id_map") else ""
        lines.append(f"  ids: {about['id_type']}, column {about.get('id_column')}{where}")
    for array in about.get("features", []):
        names = array["columns"]
        shown = ", ".join(names[:8]) + (f", ... ({array['width']} in all)" if len(names) > 8 else "")
        lines.append(f"  {array['name']}: {array['width']} columns as {array['dtype']}: {shown}")
    if label := about.get("label"):
        names = label.get("class_names") or []
        shown = ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
        lines.append(f"  label: {label['task']} of column {label['column']}" + (f": {shown}" if names else ""))
    for name in ("weight", "time"):
        if name in about:
            lines.append(f"  {name}: column {about[name]['column']}, {about[name]['type']}")
    for reason, count in about.get("dropped", {}).items():
        lines.append(f"  dropped: {count:,} rows ({reason})")
    return lines
