"""The order of a data set in its partition directory: written beside the partitions, and read with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..data.schema import by_type
from ..data.zone_order import ZoneOrder, check_order
from ..errors import InvalidArgumentError
from ..typing import NodeType
from ..utils.paths import to_path
from ..utils.system.disk import disk_errors
from ..utils.values import label_of
from .assembly import write_order
from .layout import array_path, load_partition_layout, read_meta
from .meta_entries import write_meta


def save_node_order(root_dir: str | Path, order: ZoneOrder | Mapping[NodeType, ZoneOrder]) -> None:
    """Adds the order of the nodes to a partition directory, of whatever partitioner.

    It becomes a part of the data set: of loaders with ``locality`` batches depend on it, and not on how the nodes are
    partitioned. Every machine that serves a partition needs it.

    Args:
        root_dir: the directory.
        order: a ``ZoneOrder``, or a dict by node type.

    Raises:
        InvalidArgumentError: an unknown type, no order of as many nodes, or there is one already.
        PartitionFormatError: this is no partition directory, or a damaged one.
        StorageError: the disk is full, or fails; the directory is as it was.
    """
    root, orders = to_path("root_dir", root_dir), by_type(order)
    nodes = load_partition_layout(root).nodes
    if not orders:
        raise InvalidArgumentError("order: expected a ZoneOrder, or one of some node type, got none")
    for node_type, one in orders.items():
        if node_type not in nodes:
            raise InvalidArgumentError(f"order: unknown node type {node_type!r}; expected some of {list(nodes)}")
        check_order(one, nodes[node_type].count, label_of("order", node_type))
        if nodes[node_type].order is not None:
            raise InvalidArgumentError(f"root_dir: expected nodes without an order, got one of {node_type!r} in {root}")
    meta, files = read_meta(root), []
    try:
        with disk_errors(root):
            for entry in meta["nodes"]:
                if (found := orders.get(entry["type"])) is not None:
                    entry["order"] = {"num_groups": found.num_groups}
                    files += write_order(root, entry["type"], found)
            write_meta(root, {**meta, "files": [*meta["files"], *(file.to_dict() for file in files)]})
    except BaseException:
        for key in orders:
            for name in ("place", "bounds"):
                (root / array_path("order", key, name)).unlink(missing_ok=True)
        raise
