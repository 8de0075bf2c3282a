"""What a partition directory's cut will cost: read from the directory, whoever partitioned it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..layout import load_partition_layout
from .edge_stream import stream_of_directory


@dataclass(frozen=True)
class PartitionQuality:
    """How a data set lies in its partitions.

    Attributes:
        num_parts: number of partitions.
        cut: the share of edges whose ends lie in different partitions.
        bytes_balance: bytes of the partition that has most of them, in shares: 1 is even.
        seeds_balance: likewise of training seeds; 1 where there are none.
    """

    num_parts: int
    cut: float
    bytes_balance: float
    seeds_balance: float

    def remote_share(self, num_hops: int) -> float:
        """An estimate of the rows of a batch that lie elsewhere, where its seeds are of the own partition: that of a
        walk's end, which crosses a cut edge at each step with the same probability, to any other partition alike."""
        mixed = 1 - 1 / self.num_parts
        return mixed * (1 - (1 - self.cut / mixed) ** num_hops) if mixed else 0.0

    def __str__(self) -> str:
        mixed = 1 - 1 / self.num_parts
        return (
            f"cut {self.cut:.2%} of edges; the largest of {self.num_parts} partitions has {self.bytes_balance:.3f} "
            f"shares of bytes and {self.seeds_balance:.3f} of training seeds\n"
            f"rows that lie elsewhere, about: {self.remote_share(1):.0%} at one hop and {self.remote_share(2):.0%} at "
            f"two of seeds of the own partition, {mixed:.0%} of seeds from everywhere"
        )


def partition_quality(root_dir: str | Path) -> PartitionQuality:
    """Reads the edges of a partition directory once.

    Raises:
        PartitionFormatError: the directory is incomplete or damaged, or some partition is not on this machine.
    """
    layout = load_partition_layout(root_dir, verify=False)
    stream = stream_of_directory(layout)
    num_cut = num_edges = 0
    for chunk in stream.edges():
        rows, cols = layout.nodes[chunk.row_type].book[chunk.rows], layout.nodes[chunk.col_type].book[chunk.cols]
        num_cut += int((rows != cols).sum())
        num_edges += len(rows)
    loads = torch.zeros(2, layout.num_parts, dtype=torch.int64)
    for file in layout.files.values():
        if (part := file.path.partition("/")[0].removeprefix("part")).isdecimal():
            loads[0, int(part)] += file.num_bytes
    for key, node in stream.nodes.items():
        loads[1] += layout.nodes[key].book[node.seeds].bincount(minlength=layout.num_parts)
    most = [int(load.max()) * layout.num_parts / int(load.sum()) if int(load.sum()) else 1.0 for load in loads]
    return PartitionQuality(layout.num_parts, num_cut / max(num_edges, 1), most[0], most[1])
