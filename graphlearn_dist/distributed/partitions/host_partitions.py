"""Partitions that other processes of this host hold: read in place, not asked for.

A process maps the memory and files of a partition that another one serves, and then samples from it as from its own.
A path may mean another file in another container, so what is mapped is compared with what its holder saw: device and
inode number. Where they differ, or a file cannot be opened, the holder is asked over the RPC like one of another host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from ...errors import StorageError
from ...messages import TensorHandle
from ...partition import OwnedEdgesBook, PartitionBook
from ...utils.message_types import register_message
from ..dist_dataset import DistDataset
from .dataset_handle import DatasetHandle
from .partition_service import PartitionService


@register_message
@dataclass(frozen=True)
class SharedPartition:
    """A partition for other processes of the host.

    Attributes:
        dataset: where its arrays lie.
        files: (path, device number, inode number) of every file of them.
    """

    dataset: DatasetHandle
    files: tuple[tuple[str, int, int], ...]


def describe_partition(dataset: DatasetHandle) -> SharedPartition:
    """What others need to map a partition that this process holds; not the graphs of others that it keeps at hand."""
    # Others may see other GPUs, or none, and sample from it on the CPU in any case.
    dataset = replace(dataset, cached_graphs=(), splits=(), graph_mode="CPU", device=None)
    paths = sorted({handle.path for handle in _tensor_handles(dataset) if handle.path})
    return SharedPartition(dataset, tuple(_identify(path) for path in paths))


def open_partitions(shared: dict[int, SharedPartition], own: DistDataset, num_threads: int) -> list[PartitionService]:
    """Services over those of the partitions that this process can map, and whose books say the same as its own."""
    found = (open_partition(partition) for partition in shared.values())
    return [
        PartitionService(dataset, num_threads) for dataset in found if dataset is not None and has_books(dataset, own)
    ]


def has_books(dataset: DistDataset, own: DistDataset) -> bool:
    """Whether its rows lie where this process thinks: in a partition that was put together in memory they may not.

    What all of which is here is asked of nobody.
    """
    theirs = dataset.store_books()
    return all(
        book.partition_size(own.partition_idx) == book.num_ids or same_rows(book, theirs.get(name))
        for name, book in own.store_books().items()
    )


def same_rows(book: PartitionBook, other: PartitionBook | None) -> bool:
    """Whether two books put every id in the same row of the same partition; edges that know their own are no matter."""
    if other is None or isinstance(book, OwnedEdgesBook) or isinstance(other, OwnedEdgesBook):
        return type(book) is type(other)
    return book.to_dict() == other.to_dict() and all(map(torch.equal, book.tables, other.tables))


def open_partition(shared: SharedPartition) -> DistDataset | None:
    """Maps a partition; None where this process does not see the files that its holder sees."""
    try:
        if any(_identify(path) != (path, device, inode) for path, device, inode in shared.files):
            return None
        return DistDataset.from_ipc_handle(shared.dataset)
    except (OSError, StorageError):
        return None


def _identify(path: str) -> tuple[str, int, int]:
    status = os.stat(path)
    return path, status.st_dev, status.st_ino


def _tensor_handles(value: Any) -> Iterator[TensorHandle]:
    """All handles within a tree of dataclasses and tuples."""
    if isinstance(value, TensorHandle):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensor_handles(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensor_handles(getattr(value, field.name))
