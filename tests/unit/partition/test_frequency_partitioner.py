"""Nodes go where they are hot, sizes stay even, and hot rows of others are cached; partitioners of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.partition import (
    FrequencyPartitioner,
    GLTPartitionBook,
    PartitionerBase,
    RangePartitionBook,
    load_partition,
    load_partition_layout,
    verify,
)

from .graphs import NUM_NODES, hetero_inputs, homo_inputs


def random_probs(count: int, parts: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(count, generator=generator) for _ in range(parts)]


@pytest.mark.parametrize("chunk_size", [1, 7, 10, 1000])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_sizes_are_even_and_the_graph_is_whole(tmp_path: Path, parts: int, chunk_size: int) -> None:
    inputs = homo_inputs()
    FrequencyPartitioner(
        tmp_path / "g", parts, probs=random_probs(53, parts), chunk_size=chunk_size, **inputs
    ).partition()
    verify(tmp_path / "g")
    layout = load_partition_layout(tmp_path / "g")
    sizes = [layout.nodes[None].book.partition_size(p) for p in range(parts)]
    assert sum(sizes) == 53
    assert max(sizes) - min(sizes) <= 1
    for p in range(parts):
        _, _, graph, node_feat, _, node_pb, _ = load_partition(tmp_path / "g", p)
        assert torch.equal(torch.stack(graph.edge_index), inputs["edge_index"][:, graph.eids])
        assert bool((node_pb[graph.edge_index[0]] == p).all())
        assert torch.equal(node_feat.feats, inputs["node_feat"][node_feat.ids])
        assert node_feat.cache_ids is None


def test_nodes_go_where_they_are_hot(tmp_path: Path) -> None:
    hot_in = torch.arange(40) * 3 % 4  # ten nodes for each of four partitions
    probs = [torch.where(hot_in == p, 0.9, 0.01) for p in range(4)]
    inputs = homo_inputs(40, 200)
    FrequencyPartitioner(tmp_path / "g", 4, probs=probs, **inputs).partition()
    book = load_partition_layout(tmp_path / "g").node_book(None, 0)
    assert torch.equal(book[torch.arange(40)], hot_in)


def test_chunks_are_assigned_one_by_one(tmp_path: Path) -> None:
    """Each chunk is shared out evenly: what is hot for one partition in one chunk alone goes elsewhere too."""
    probs = [torch.tensor([4, 3, 2, 1, 0, 0, 0, 0.5]) / 4, torch.zeros(8)]
    FrequencyPartitioner(tmp_path / "g", 2, 8, torch.zeros(2, 0, dtype=torch.int64), probs, chunk_size=4).partition()
    book = load_partition_layout(tmp_path / "g").node_book(None, 0)
    # in the second chunk partition 1 picks first: the nodes that partition 0 wants least
    assert book[torch.arange(8)].tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        ({"cache_ratio": 0.1}, 5),
        ({"cache_memory_budget": 3 * 8 + 7}, 3),
        ({"cache_memory_budget": "31"}, 3),
        ({"cache_memory_budget": 31, "cache_ratio": 0.0}, 0),
        ({"cache_ratio": 0.1, "cache_memory_budget": 16}, 2),
        ({"cache_ratio": 0.02, "cache_memory_budget": 1 << 20}, 1),
        ({"cache_ratio": 1.0}, 100),
    ],
)
def test_the_hottest_rows_of_others_are_cached(tmp_path: Path, limits: dict[str, Any], size: int) -> None:
    inputs, probs = homo_inputs(), random_probs(53, 3, seed=4)
    probs[1][::2] = 0.0
    FrequencyPartitioner(tmp_path / "g", 3, probs=probs, **limits, **inputs).partition()
    verify(tmp_path / "g")
    for p in range(3):
        _, _, _, node_feat, _, node_pb, _ = load_partition(tmp_path / "g", p)
        heat = probs[p].clone()
        heat[node_pb[torch.arange(53)] == p] = 0.0
        expected = [v for v in sorted(range(53), key=lambda v: (-float(heat[v]), v)) if heat[v] > 0][:size]
        assert node_feat.cache_ids.tolist() == expected
        assert torch.equal(node_feat.cache_feats, inputs["node_feat"][node_feat.cache_ids])


def test_typed(tmp_path: Path) -> None:
    probs = {key: random_probs(count, 2, seed=count) for key, count in NUM_NODES.items()}
    FrequencyPartitioner(tmp_path / "g", 2, probs=probs, cache_ratio={"user": 0.2}, **hetero_inputs()).partition()
    verify(tmp_path / "g")
    arrays = load_partition_layout(tmp_path / "g").open_partition(1)
    assert arrays.node_caches.keys() == {"user"}
    assert len(arrays.node_caches["user"].ids) == int(37 * 0.2)
    assert arrays.edge_caches == {}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"probs": torch.zeros(2, 4)}, "probs: expected a list of 2 vectors, got Tensor"),
    ({"probs": [torch.zeros(4)]}, "probs: expected a list of 2 vectors, got 1"),
    ({"probs": [torch.zeros(4), torch.zeros(3)]}, r"probs\[1\]: expected \[4\], got \[3\]"),
    ({"probs": [torch.zeros(4), torch.tensor([0, 0, float("nan"), 0])]}, r"probs\[1\]\[2\]=nan"),
    ({"probs": [torch.zeros(4), torch.tensor([0, -1.0, 0, 0])]}, r"probs\[1\]\[1\]=-1"),
    ({"cache_ratio": 1.5}, "cache_ratio: expected 0 to 1, got 1.5"),
    ({"cache_ratio": {"a": 0.5}}, "cache_ratio: got a dictionary"),
    ({"cache_memory_budget": -1}, "cache_memory_budget: expected 0 to inf, got -1"),
    ({"cache_memory_budget": "much"}, "cache_memory_budget: expected a size such as '64MB' or '1.5GiB', got 'much'"),
    ({"cache_ratio": "0.1"}, "cache_ratio: expected 0 to 1, got '0.1'"),
]


@pytest.mark.parametrize(("wrong", "text"), BAD)
def test_input_is_checked(tmp_path: Path, wrong: dict[str, Any], text: str) -> None:
    arguments = {"probs": [torch.zeros(4), torch.zeros(4)], **wrong}
    with pytest.raises(InvalidArgumentError, match=text):
        FrequencyPartitioner(tmp_path / "g", 2, 4, torch.tensor([[0], [1]]), **arguments)


class ByParity(PartitionerBase):
    """A partitioner of one's own: even ids, odd ids."""

    lists: Any = None
    book: Any = GLTPartitionBook(torch.arange(53) % 2)

    def _partition_node(self, ntype: str | None = None) -> Any:
        return self.lists, self.book


def test_a_partitioner_of_ones_own(tmp_path: Path) -> None:
    inputs = homo_inputs()
    ByParity.lists = [torch.arange(0, 53, 2), torch.arange(1, 53, 2)]
    partitioner = ByParity(tmp_path / "g", 2, **inputs)
    assert torch.equal(torch.stack(partitioner.get_edge_index()), inputs["edge_index"])
    assert torch.equal(partitioner.get_node_feat(), inputs["node_feat"])
    assert torch.equal(partitioner.get_edge_feat(), inputs["edge_feat"])
    partitioner.partition()
    verify(tmp_path / "g")
    assert load_partition(tmp_path / "g", 1)[3].ids.tolist() == list(range(1, 53, 2))
    with pytest.raises(TypeError, match="abstract"):
        PartitionerBase(tmp_path / "h", 2, **inputs)  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("lists", "book", "text"),
    [
        ([torch.arange(27), torch.arange(27, 53)], ByParity.book, "not what the book says"),
        (None, GLTPartitionBook(torch.arange(52) % 2), "expected a book of 53 nodes, got one of 52"),
        (None, GLTPartitionBook(torch.arange(53) % 3), r"owners\[2\]=2: expected 0 <= owner < 2"),
        (None, RangePartitionBook([(0, 53)], 0), "expected 2 partitions, got 1"),
    ],
)
def test_a_wrong_assignment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: Any, book: Any, text: str) -> None:
    monkeypatch.setattr(ByParity, "lists", lists)
    monkeypatch.setattr(ByParity, "book", book)
    with pytest.raises(InvalidArgumentError, match=text):
        ByParity(tmp_path / "g", 2, **homo_inputs()).partition()
    assert not list(tmp_path.iterdir())
