"""Classes that libraries over GraphLearn-for-PyTorch derive from its own, with attributes and methods of their own."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass
class WeightedInput(glt.sampler.NodeSamplerInput):
    """Seeds with a field of a program's own."""

    weights: Any = None


class PositiveInput(glt.sampler.NodeSamplerInput):
    """Seeds of a class with a constructor of its own."""

    def __init__(self, node: torch.Tensor, positives: torch.Tensor) -> None:
        super().__init__(node, None)
        self.positives = positives


@pytest.fixture(
    params=[
        lambda: WeightedInput(torch.tensor([4, 1, 5], dtype=torch.int32), weights=torch.ones(2)),
        lambda: PositiveInput(torch.tensor([4, 1, 5]), torch.tensor([[0, 1]])),
    ],
    ids=["dataclass", "constructor"],
)
def own_input(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_inputs_with_fields_of_their_own(own_input: Any) -> None:
    part = own_input[torch.tensor([0, 2])]
    assert (type(part), part.node.tolist(), len(own_input)) == (glt.sampler.NodeSamplerInput, [4, 5], 3)
    moved = own_input.to("cpu").share_memory()
    assert (type(moved), vars(moved).keys()) == (type(own_input), vars(own_input).keys())
    own_input.node = torch.tensor([2])
    assert (len(own_input), len(moved)) == (1, 3)


def test_loaders_of_inputs_with_fields_of_their_own(own_input: Any) -> None:
    dataset = BuiltDataset(0, 1, "out")
    dataset.build(torch.zeros(COUNT, dtype=torch.uint8), torch.arange(COUNT).float().view(-1, 1))
    sampler = glt.sampler.NeighborSampler(dataset.get_graph(), [1])
    assert sampler.sample_from_nodes(own_input, index=0).node.tolist() == [4, 1, 5, 2, 0]
    workers = glt.distributed.MpDistSamplingWorkerOptions(num_workers=1, worker_devices=[torch.device("cpu")])
    config = glt.sampler.SamplingConfig(
        glt.sampler.SamplingType.NODE, [1], 2, False, False, False, False, False, False, "out", 0
    )
    for options in (None, workers):
        loader = glt.distributed.DistLoader(dataset, own_input, config, torch.device("cpu"), options)
        assert [batch.batch.tolist() for batch in loader] == [[4, 1], [5]]
        assert (loader.batch_size, loader.shuffle, loader.drop_last) == (2, False, False)
        assert (loader.num_workers, len(loader.dataset)) == (int(options is workers), 3)
        loader.shutdown()


def test_outputs_with_fields_of_their_own() -> None:
    @dataclass
    class Marked(glt.sampler.SamplerOutput):
        mark: int = 0

    made = Marked(*[torch.arange(2)] * 3, mark=7)
    made.edge = torch.arange(2)
    assert glt.loader.to_data(made).edge.tolist() == [0, 1]


def small_dataset() -> glt.data.Dataset:
    """A ring; node v has the feature [v] and the label 10 v, edge v leads from v to v + 1."""
    dataset = glt.data.Dataset()
    dataset.init_graph(RING, graph_mode="CPU")
    dataset.init_node_features(torch.arange(COUNT).float().view(-1, 1))
    dataset.init_edge_features(torch.arange(COUNT).float().view(-1, 1))
    dataset.init_node_labels(10 * torch.arange(COUNT))
    return dataset


class Collates:
    def _collate_fn(self, sampler_out: Any) -> Any:
        batch = super()._collate_fn(sampler_out)  # type: ignore[misc]
        batch.extra = batch.node * 10
        return batch


class Nexts:
    num_given = 0

    def __next__(self) -> Any:
        batch = super().__next__()  # type: ignore[misc]
        batch.extra = batch.node * 10
        self.num_given += 1
        return batch


@pytest.mark.parametrize("own", [Collates, Nexts])
@pytest.mark.parametrize("name", ["NeighborLoader", "SubGraphLoader", "LinkNeighborLoader", "DistNeighborLoader"])
def test_own_batches(name: str, own: type) -> None:
    """Each loop goes through all batches, by the method that the program brought, whether or not one was left."""
    parts = BuiltDataset(0, 1, "out")
    parts.build(torch.zeros(COUNT, dtype=torch.uint8), torch.arange(COUNT).float().view(-1, 1))
    base, arguments = {
        "NeighborLoader": (glt.loader.NeighborLoader, (small_dataset(), [1], torch.arange(4))),
        "SubGraphLoader": (glt.loader.SubGraphLoader, (small_dataset(), torch.arange(4), [1])),
        "LinkNeighborLoader": (glt.loader.LinkNeighborLoader, (small_dataset(), [1], None, RING[:, :4])),
        "DistNeighborLoader": (glt.distributed.DistNeighborLoader, (parts, [1], torch.arange(4))),
    }[name]
    loader = type("Own", (own, base), {})(*arguments, batch_size=2)
    wanted = list(base(*arguments, batch_size=2))
    for _ in range(2):
        assert next(iter(loader)).extra.tolist() == (wanted[0].node * 10).tolist()
        found = list(loader)
        assert [batch.node.tolist() for batch in found] == [batch.node.tolist() for batch in wanted]
        assert all(torch.equal(batch.extra, batch.node * 10) for batch in found)
    assert loader.epoch == 3
    if own is Nexts:
        assert loader.num_given == 6
