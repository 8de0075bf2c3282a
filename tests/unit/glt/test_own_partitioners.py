"""Partitioners of ``glt``: what tutorials give them, and what a program's own ones read of themselves."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist.distributed import rpc
from graphlearn_dist.errors import InvalidArgumentError, NotInitializedError
from graphlearn_dist.glt.distributed import dist_random_partitioner
from graphlearn_dist.glt.distributed.dist_random_partitioner import DistPartitionManager
from graphlearn_dist.utils import no_effect

RING = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])


class ByRemainder(glt.partition.PartitionerBase):
    """As a program for GraphLearn-for-PyTorch writes its own."""

    def _partition_node(self, ntype: Any = None) -> Any:
        count = self.num_nodes[ntype] if self.data_cls == "hetero" else self.num_nodes
        owners = torch.arange(count) % self.num_parts
        return [torch.where(owners == part)[0] for part in range(self.num_parts)], owners

    def _cache_node(self, ntype: Any = None) -> list[Any]:
        return [None] * self.num_parts


def test_own_partitioner(tmp_path: Path) -> None:
    partitioner = ByRemainder(
        str(tmp_path / "ring"), 2, 5, RING, torch.ones(5, 2).double(), edge_assign_strategy="BY_DST", device="cpu"
    )
    assert (partitioner.node_types, partitioner.edge_types, partitioner.num_edges) == (None, None, 5)
    assert partitioner.edge_assign_strategy == "by_dst"
    assert torch.equal(torch.stack(partitioner.edge_index), RING)
    assert partitioner.edge_weights is None
    assert partitioner.edge_feat is None
    assert partitioner.node_feat.shape == (5, 2)
    partitioner.partition()
    dataset = glt.distributed.DistDataset(edge_dir="in")
    dataset.load(graph_dir=str(tmp_path / "ring"), partition_idx=1, graph_mode="CPU")
    assert dataset.node_pb[torch.arange(5)].tolist() == [0, 1, 0, 1, 0]
    assert dataset.get_node_feature().feature_tensor.dtype == torch.float32


def test_own_partitioner_of_a_typed_graph(tmp_path: Path) -> None:
    edge_type = ("a", "to", "b")
    partitioner = ByRemainder(str(tmp_path / "typed"), 2, {"a": 5, "b": 6}, {edge_type: RING})
    assert partitioner.data_cls == "hetero"
    assert partitioner.node_types == ["a", "b"]
    assert partitioner.edge_types == [edge_type]
    assert partitioner.num_nodes == {"a": 5, "b": 6}
    assert partitioner.num_edges == {edge_type: 5}


def test_hotness_that_was_given(tmp_path: Path) -> None:
    hot = [torch.arange(5).float(), torch.ones(5)]
    partitioner = glt.partition.FrequencyPartitioner(str(tmp_path / "hot"), 2, 5, RING, hot, cache_ratio=0.2)
    assert [rows.tolist() for rows in partitioner.probs] == [rows.tolist() for rows in hot]
    assert (partitioner.cache_ratio, partitioner.cache_memory_budget) == (0.2, None)


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        ({"cache_memory_budget": 0, "cache_ratio": 0.4}, 2),
        ({"cache_memory_budget": "4", "cache_ratio": 0.0}, 1),
        ({"cache_memory_budget": "4", "cache_ratio": 0.4}, 1),
        ({"cache_memory_budget": 0, "cache_ratio": 0.0}, None),
    ],
)
def test_limits_of_caches_that_are_0(tmp_path: Path, limits: dict[str, Any], size: int | None) -> None:
    """GLT takes 0 for a limit that was not given."""
    hot, rows = [torch.arange(1.0, 6.0), torch.ones(5)], torch.ones(5, 1)
    glt.partition.FrequencyPartitioner(str(tmp_path / "hot"), 2, 5, RING, hot, rows, **limits).partition()
    cached = glt.partition.load_partition(str(tmp_path / "hot"), 0)[3].cache_ids
    assert (None if cached is None else len(cached)) == size


def test_a_gpu_to_partition_on_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_effect, "_warned", set())
    with pytest.warns(UserWarning, match="device: it has no effect here: partitioners work in host memory"):
        glt.partition.RandomPartitioner(str(tmp_path / "gpu"), 2, 5, RING, device=torch.device("cuda", 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        glt.partition.RandomPartitioner(str(tmp_path / "host"), 2, 5, RING, device=torch.device("cpu"))


def test_loading_takes_one_name_of_the_directory() -> None:
    with pytest.raises(TypeError, match="graph_dir"):
        glt.distributed.DistDataset().load("here", 0, graph_dir="there")


class Ranks:
    """Managers of all ranks in one process: requests are calls, which one test needs no network for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.rank = 0
        self.callees: list[list[Any]] = [[] for _ in range(count)]
        context = type("Context", (), {"world_size": count, "rank": property(lambda _: self.rank)})()
        monkeypatch.setattr(dist_random_partitioner, "get_context", lambda: context)
        monkeypatch.setattr(rpc, "rpc_is_initialized", lambda: True)
        monkeypatch.setattr(rpc, "get_rpc_current_group_worker_names", lambda: [str(rank) for rank in range(count)])
        monkeypatch.setattr(rpc, "rpc_register", self.register)
        monkeypatch.setattr(rpc, "rpc_request_async", self.request)

    def register(self, callee: Any) -> int:
        self.callees[self.rank].append(callee)
        return len(self.callees[self.rank]) - 1

    def request(self, worker: str, callee: int, args: tuple[Any, ...]) -> torch.futures.Future[Any]:
        answer: torch.futures.Future[Any] = torch.futures.Future()
        thread = threading.Thread(target=lambda: answer.set_result(self.callees[int(worker)][callee].call(*args)))
        thread.start()
        thread.join()
        return answer


def test_partition_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, managers = Ranks(monkeypatch, 2), []
    for ranks.rank in range(2):
        managers.append(DistPartitionManager(4))
    managers[0].process([("own", torch.tensor([0])), ("to 1", torch.tensor([1]))])
    managers[1].process([(None, torch.tensor([2])), ("of 1", torch.tensor([3]))])
    assert [manager.cur_part_val_list for manager in managers] == [["own"], ["to 1", "of 1"]]
    assert all(manager.partition_book.tolist() == [0, 1, 0, 1] for manager in managers)
    managers[0].reset(2, generate_pb=False)
    assert managers[0].partition_book is None
    assert managers[0].cur_part_val_list == []
    with pytest.raises(InvalidArgumentError, match="res_list: expected 2"):
        managers[0].process([])


def test_partition_manager_needs_a_group() -> None:
    with pytest.raises(NotInitializedError, match="init_worker_group"):
        DistPartitionManager()
