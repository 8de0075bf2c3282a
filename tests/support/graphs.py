"""Graphs for tests: analytic ones, random ones with everything that is normal, and hypothesis strategies over them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from hypothesis import strategies as st

from graphlearn_dist.data import Dataset

Direction = Literal["in", "out"]
EDGE_TYPES = (("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user"))
NODE_TYPES = ("item", "user")  # sorted, as a schema has them


@dataclass(frozen=True)
class TestGraph:
    """A graph by type; a homogeneous one has the one type None.

    Attributes:
        num_nodes: by node type.
        edges: by edge type, int64 ``[2, E]``: sources, targets.
        edge_ids: by edge type, distinct ids int64 ``[E]``; no entry where ids are positions.
        weights: by edge type, float ``[E]``; no entry where there are none.
        times: by edge type, int64 ``[E]``; no entry where there are none.
        node_times: by node type, int64 ``[num_nodes]``; no entry where there are none.
    """

    __test__ = False  # not a test class, whatever its name

    num_nodes: dict[Any, int]
    edges: dict[Any, torch.Tensor]
    edge_ids: dict[Any, torch.Tensor]
    weights: dict[Any, torch.Tensor] = field(default_factory=dict)
    times: dict[Any, torch.Tensor] = field(default_factory=dict)
    node_times: dict[Any, torch.Tensor] = field(default_factory=dict)

    @property
    def is_homogeneous(self) -> bool:
        return None in self.num_nodes

    def ids_of(self, edge_type: Any) -> torch.Tensor:
        """The id of each edge, in the order of ``edges``."""
        return self.edge_ids.get(edge_type, torch.arange(self.edges[edge_type].size(1)))

    def weights_of(self, edge_type: Any) -> torch.Tensor:
        """The weight of each edge, in the order of ``edges``; 1 where there are none."""
        return self.weights.get(edge_type, torch.ones(self.edges[edge_type].size(1)))

    def times_of(self, edge_type: Any) -> torch.Tensor:
        """The time of each edge, in the order of ``edges``; 0 where there are none."""
        return self.times.get(edge_type, torch.zeros(self.edges[edge_type].size(1), dtype=torch.int64))

    def num_edge_ids(self, edge_type: Any) -> int:
        """Edge ids are below this."""
        ids = self.ids_of(edge_type)
        return int(ids.max()) + 1 if ids.numel() else 0

    def unwrap(self, by_type: dict[Any, Any]) -> Any:
        """The bare object where the graph is homogeneous."""
        return by_type.get(None) if self.is_homogeneous else by_type

    def node_features(self) -> dict[Any, torch.Tensor]:
        """Node v of a type has the feature [v, v + 0.5]; items of a typed graph have none."""
        counts = {key: count for key, count in self.num_nodes.items() if key != "item"}
        return {key: torch.stack([torch.arange(n).float(), torch.arange(n) + 0.5], dim=1) for key, n in counts.items()}

    def node_labels(self) -> dict[Any, torch.Tensor]:
        """Node v has label v, or for items of a typed graph the multi-label [v odd, v even, v % 3 == 0]."""
        labels = {key: torch.arange(n) for key, n in self.num_nodes.items()}
        if "item" in labels:
            v = labels["item"]
            labels["item"] = torch.stack([v % 2 == 1, v % 2 == 0, v % 3 == 0], dim=1)
        return labels

    def edge_features(self) -> dict[Any, torch.Tensor]:
        """Edge e has the feature [e / 4]; of a typed graph only the first edge type has any."""
        kept = [key for key in self.edges if key in (None, EDGE_TYPES[0]) and self.num_edge_ids(key)]
        return {key: (torch.arange(self.num_edge_ids(key)) / 4)[:, None] for key in kept}


def analytic_edges(num_nodes: int) -> torch.Tensor:
    """Node v has the out-neighbors v + 1 (edge 2v) and v + 2 (edge 2v + 1), modulo ``num_nodes``; int64 ``[2, 2n]``."""
    source = torch.arange(num_nodes).repeat_interleave(2)
    return torch.stack([source, (source + torch.tensor([1, 2]).repeat(num_nodes)) % num_nodes])


def analytic_graph(num_nodes: int) -> TestGraph:
    """The graph of ``analytic_edges``."""
    return TestGraph({None: num_nodes}, {None: analytic_edges(num_nodes)}, {})


def random_edges(num_sources: int, num_targets: int, num_edges: int, seed: int) -> torch.Tensor:
    """int64 ``[2, num_edges]``: the last fifth of the sources has none, a quarter of the edges leaves and another
    enters node 0 (hubs), an eighth repeats others, an eighth are self loops where sources and targets are one type."""
    draw = torch.Generator().manual_seed(seed)
    source = torch.randint(0, max(1, num_sources - num_sources // 5), (num_edges,), generator=draw)
    target = torch.randint(0, num_targets, (num_edges,), generator=draw)
    quarter, eighth = num_edges // 4, num_edges // 8
    source[:quarter] = 0
    target[quarter : 2 * quarter] = 0
    if num_sources == num_targets and eighth:
        target[-eighth:] = source[-eighth:]
    if eighth:
        repeated = slice(num_edges - 2 * eighth, num_edges - eighth)
        source[repeated], target[repeated] = source[:eighth].clone(), target[:eighth].clone()
    return torch.stack([source, target])[:, torch.randperm(num_edges, generator=draw)]


def random_graph(num_nodes: int, num_edges: int, seed: int, *, explicit_edge_ids: bool = False) -> TestGraph:
    """A homogeneous graph of ``random_edges``, with edge ids in another order and with gaps if asked."""
    ids = {None: _scattered_ids(num_edges, seed)} if explicit_edge_ids else {}
    return TestGraph({None: num_nodes}, {None: random_edges(num_nodes, num_nodes, num_edges, seed)}, ids)


def typed_graph(
    num_users: int, num_items: int, num_edges: int, seed: int, *, explicit_edge_ids: bool = False
) -> TestGraph:
    """Users buy items and know users; each edge type has about ``num_edges`` edges."""
    counts = {"user": num_users, "item": num_items}
    edges = {
        edge_type: random_edges(counts[edge_type[0]], counts[edge_type[2]], num_edges + 3 * i, seed + i)
        for i, edge_type in enumerate(EDGE_TYPES)
    }
    ids = {EDGE_TYPES[2]: _scattered_ids(edges[EDGE_TYPES[2]].size(1), seed)} if explicit_edge_ids else {}
    return TestGraph(counts, edges, ids)


WEIGHT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MAX_TIME = 20


def with_weights(graph: TestGraph, seed: int, *, some_zero: bool, dtype: torch.dtype = torch.float32) -> TestGraph:
    """The graph with weights over several powers of two; a third of the edges weighs nothing if asked for."""
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for edge_type, edges in graph.edges.items():
        values = torch.rand(edges.size(1), generator=draw) * 4.0 ** torch.randint(
            -4, 5, edges.shape[1:], generator=draw
        )
        if some_zero:
            values[torch.rand(edges.size(1), generator=draw) < 1 / 3] = 0
        weights[edge_type] = values.to(dtype)
    return replace(graph, weights=weights)


def with_times(graph: TestGraph, seed: int) -> TestGraph:
    """The graph with edge times in [0, MAX_TIME], many of them equal."""
    draw = torch.Generator().manual_seed(seed)
    times = {key: torch.randint(0, MAX_TIME + 1, edges.shape[1:], generator=draw) for key, edges in graph.edges.items()}
    return replace(graph, times=times)


def with_node_times(graph: TestGraph, seed: int) -> TestGraph:
    """The graph with node times in [0, MAX_TIME], many of them equal."""
    draw = torch.Generator().manual_seed(seed)
    times = {key: torch.randint(0, MAX_TIME + 1, (count,), generator=draw) for key, count in graph.num_nodes.items()}
    return replace(graph, node_times=times)


def _scattered_ids(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(2 * count, generator=torch.Generator().manual_seed(seed + 1))[:count]


def make_dataset(graph: TestGraph, edge_dir: Direction = "out", *, edge_features: bool = True) -> Dataset:
    """The graph with its features and labels, held whole."""
    dataset = Dataset(edge_dir=edge_dir)
    dataset.init_graph(
        graph.unwrap(graph.edges),
        graph.unwrap(graph.edge_ids),
        graph.unwrap(graph.weights),
        num_nodes=graph.unwrap(graph.num_nodes),
        edge_times=graph.unwrap(graph.times),
        node_times=graph.unwrap(graph.node_times),
    )
    dataset.init_node_features(graph.unwrap(graph.node_features()))
    dataset.init_node_labels(graph.unwrap(graph.node_labels()))
    if edge_features and graph.edge_features():
        dataset.init_edge_features(graph.unwrap(graph.edge_features()))
    return dataset


@dataclass(frozen=True)
class Case:
    """Everything a loader needs: graph, direction, fan-outs, seeds of one type (duplicates allowed), and settings."""

    graph: TestGraph
    edge_dir: Direction
    fanouts: Any
    seed_type: Any
    seeds: torch.Tensor
    batch_size: int
    seed: int
    replace: bool
    shuffle: bool
    epoch: int

    @property
    def input_nodes(self) -> Any:
        """The seeds as a loader takes them."""
        return self.seeds if self.seed_type is None else (self.seed_type, self.seeds)


def graphs(*, typed: bool | None = None) -> st.SearchStrategy[TestGraph]:
    """Small graphs; ``typed`` None gives both kinds."""
    sizes = {"seed": st.integers(0, 1 << 20), "explicit_edge_ids": st.booleans()}
    homogeneous = st.builds(random_graph, st.integers(1, 40), st.integers(0, 250), **sizes)
    several = st.builds(typed_graph, st.integers(1, 25), st.integers(1, 12), st.integers(0, 80), **sizes)
    return st.one_of(homogeneous, several) if typed is None else several if typed else homogeneous


@st.composite
def cases(draw: st.DrawFn, *, typed: bool | None = None) -> Case:
    """A graph and a way to sample it: fan-outs as a list, by edge type, or by some with a default for the others."""
    graph = draw(graphs(typed=typed))
    hops = draw(st.integers(1, 3))
    fanout_list = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5]), min_size=hops, max_size=hops)
    fanouts: Any = draw(fanout_list)
    if not graph.is_homogeneous and draw(st.booleans()):
        asked = draw(st.lists(st.sampled_from(EDGE_TYPES), min_size=1, unique=True))
        fanouts = {edge_type: draw(fanout_list) for edge_type in asked}
        if len(asked) < len(EDGE_TYPES) or draw(st.booleans()):
            fanouts[None] = draw(fanout_list)
    seed_type = None if graph.is_homogeneous else draw(st.sampled_from(NODE_TYPES))
    count = graph.num_nodes[seed_type]
    seeds = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=12))
    return Case(
        graph,
        draw(st.sampled_from(["in", "out"])),
        fanouts,
        seed_type,
        torch.tensor(seeds),
        batch_size=draw(st.integers(1, 8)),
        seed=draw(st.integers(0, 1 << 40)),
        replace=draw(st.booleans()),
        shuffle=draw(st.booleans()),
        epoch=draw(st.integers(0, 3)),
    )
