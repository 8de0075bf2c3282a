"""Classes that libraries over GraphLearn-for-PyTorch derive from its own, with attributes and methods of their own."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist.glt.distributed.dist_random_partitioner import DistPartitionManager
from tests.unit.glt.test_own_partitioners import Ranks

COUNT = 6
RING = torch.stack([torch.arange(COUNT), (torch.arange(COUNT) + 1) % COUNT])


class BuiltDataset(glt.distributed.DistDataset):
    """A partition that is built from tensors; its attributes are properties over fields of its own."""

    def __init__(
        self, rank: int, world_size: int, edge_dir: Any, graph: Any = None, feature: Any = None, book: Any = None
    ) -> None:
        self._rank, self._world_size, self._edge_dir = rank, world_size, edge_dir
        super().__init__(
            num_partitions=world_size,
            partition_idx=rank,
            graph_partition=graph,
            node_feature_partition=feature,
            node_pb=book,
            edge_dir=edge_dir,
        )

    @property
    def partition_idx(self) -> int:
        return self._rank

    @partition_idx.setter
    def partition_idx(self, value: int) -> None:
        self._rank = value

    @property
    def num_partitions(self) -> int:
        return self._world_size

    @num_partitions.setter
    def num_partitions(self, value: int) -> None:
        self._world_size = value

    @property
    def edge_dir(self) -> Any:
        return self._edge_dir

    @edge_dir.setter
    def edge_dir(self, value: Any) -> None:
        self._edge_dir = value

    @property
    def graph(self) -> Any:
        return self._graph

    @graph.setter
    def graph(self, value: Any) -> None:
        self._graph = value

    @property
    def node_features(self) -> Any:
        return self._node_features

    @node_features.setter
    def node_features(self, value: Any) -> None:
        self._node_features = value

    @property
    def node_pb(self) -> Any:
        return self._node_partition_book

    @node_pb.setter
    def node_pb(self, value: Any) -> None:
        self._node_partition_book = value

    def build(self, book: torch.Tensor, rows: torch.Tensor) -> None:
        self._node_partition_book = book
        own = torch.where(book == self._rank)[0]
        edge_ids = torch.where(book[RING[0]] == self._rank)[0]
        self.init_graph(edge_index=RING[:, edge_ids], edge_ids=edge_ids, graph_mode="CPU", directed=True)
        self.init_node_features(node_feature_data=rows[own], id2idx=glt.utils.id2idx(own), with_gpu=False)

    def share_ipc(self) -> Any:
        return self._rank, self._world_size, self._edge_dir, self._graph, self._node_features, self._node_partition_book


def rebuild(handle: Any) -> BuiltDataset:
    return BuiltDataset(*handle)


ForkingPickler.register(BuiltDataset, lambda dataset: (rebuild, (dataset.share_ipc(),)))


class OwnLoader(glt.distributed.DistLoader):
    """A loader whose batches carry something more."""

    def __init__(self, data: Any, seeds: torch.Tensor, options: Any = None) -> None:
        self._shutdowned = True
        config = glt.sampler.SamplingConfig(
            sampling_type=glt.sampler.SamplingType.NODE,
            num_neighbors=[1],
            batch_size=2,
            shuffle=False,
            drop_last=False,
            with_edge=True,
            collect_features=True,
            with_neg=False,
            with_weight=False,
            edge_dir=data.edge_dir,
            seed=None,
        )
        super().__init__(data, glt.sampler.NodeSamplerInput(seeds, None), config, torch.device("cpu"), options)

    def _collate_fn(self, msg: Any) -> Any:
        batch = super()._collate_fn(msg)
        batch.extra = batch.node * 10
        return batch


def test_a_data_set_that_is_built() -> None:
    rows = torch.arange(COUNT).float().view(-1, 1)
    dataset = BuiltDataset(0, 1, "out")
    dataset.build(torch.zeros(COUNT, dtype=torch.uint8), rows)
    sent = ForkingPickler.loads(ForkingPickler.dumps(dataset))
    workers = glt.distributed.MpDistSamplingWorkerOptions(num_workers=1, worker_devices=[torch.device("cpu")])
    for one, options in ((dataset, None), (sent, None), (dataset, workers)):
        loader = OwnLoader(one, torch.tensor([4, 1, 5]), options)
        first, second = loader
        assert (first.node.tolist(), second.node.tolist()) == ([4, 1, 5, 2], [5, 0])
        assert torch.equal(first.x, rows[first.node])
        assert first.extra.tolist() == [40, 10, 50, 20]
        assert first.batch.tolist() == [4, 1]
        loader.shutdown()


class SmallBooks(DistPartitionManager):
    """Books of one byte for each id."""

    def reset(self, total_val_size: int, generate_pb: bool = True) -> None:
        with self._lock:
            self.generate_pb = generate_pb
            self.cur_part_val_list = []
            self.partition_book = torch.zeros(total_val_size, dtype=torch.uint8) if generate_pb else None


def test_a_manager_with_other_books(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, managers = Ranks(monkeypatch, 2), []
    for ranks.rank in range(2):
        managers.append(SmallBooks(2))
    managers[0].process([(None, torch.tensor([0])), (torch.tensor([7]), torch.tensor([1]))])
    assert [manager.partition_book.tolist() for manager in managers] == [[0, 1], [0, 1]]
    assert managers[1].partition_book.dtype == torch.uint8
    assert [value.tolist() for value in managers[1].cur_part_val_list] == [[7]]
