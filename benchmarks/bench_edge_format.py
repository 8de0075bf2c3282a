"""A training step on batches whose edges are a sparse matrix (``edge_format="adj_t"``), beside ``edge_index``.

Three ways of one loader, in turns: ``edge_index`` as it comes; ``edge_index`` that PyG's ``ToSparseTensor`` makes a
matrix of, as programs do; the matrix that the loader gives. A step is the batch and one forward and backward pass of
``GraphSAGE`` over it; CPU milliseconds of the process, one thread. The loader's two give the same scores, which is
checked; ``ToSparseTensor`` counts several edges of a pair of nodes once.

    python benchmarks/bench_edge_format.py [--turns 5] [--batches 5] [--hidden 64]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from harness import median, power_law_edges, print_table, spread, write_json
from torch_geometric.nn import GraphSAGE
from torch_geometric.transforms import ToSparseTensor

from graphlearn_dist.data import Dataset
from graphlearn_dist.loader import NeighborLoader

WAYS = ("edge_index", "ToSparseTensor", "adj_t")
FANOUTS = {"[15, 10, 5] x 1024": ([15, 10, 5], 1024), "[10, 5] x 256": ([10, 5], 256)}


def edges_of(batch: Any) -> Any:
    """What a model is given."""
    return batch.adj_t if "adj_t" in batch else batch.edge_index


class Way:
    """A loader with one form of edges, and a model of its own; all have the same weights."""

    def __init__(self, name: str, dataset: Dataset, work: tuple[list[int], int], args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        fanout, batch_size = work
        self.model = GraphSAGE(args.features, args.hidden, len(fanout), 16)
        self._loader = NeighborLoader(
            dataset,
            fanout,
            None,
            batch_size=batch_size,
            shuffle=True,
            seed=1,
            prefetch=0,
            transform=ToSparseTensor(layout=torch.sparse_csr) if name == "ToSparseTensor" else None,
            edge_format="adj_t" if name == "adj_t" else "edge_index",
        )
        self._batches: Iterator[Any] = iter(self._loader)
        self.scores = self.step()[2]  # of the first batch; warms up

    def step(self) -> tuple[float, float, torch.Tensor]:
        """CPU seconds of the batch, those of the model, and the scores of the seeds."""
        begun = time.process_time()
        batch = next(self._batches)
        made = time.process_time()
        scores = self.model(batch.x, edges_of(batch))[: batch.batch_size]
        scores.square().mean().backward()
        self.model.zero_grad()
        return made - begun, time.process_time() - made, scores.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=4_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batches", type=int, default=5, help="of each way in a turn")
    parser.add_argument("--quick", action="store_true", help="one turn of small batches")
    args = parser.parse_args()
    if args.quick:
        args.turns, args.batches = 1, 2
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Sparse")
    dataset = Dataset(edge_dir="in")
    dataset.init_graph(torch.from_numpy(power_law_edges(args.nodes, args.edges)), graph_mode="CPU")
    dataset.init_node_features(torch.randn(args.nodes, args.features, generator=torch.Generator().manual_seed(0)))
    rows, results = [], {}
    for label, work in list(FANOUTS.items())[1 if args.quick else 0 :]:
        ways = {name: Way(name, dataset, work, args) for name in WAYS}
        torch.testing.assert_close(ways["adj_t"].scores, ways["edge_index"].scores, rtol=1e-4, atol=1e-4)
        turns: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
        for _ in range(args.turns):
            for name, way in ways.items():
                steps = [way.step()[:2] for _ in range(args.batches)]
                turns[name].append((1000 * median([a for a, _ in steps]), 1000 * median([b for _, b in steps])))
        for name in WAYS:
            ratios = [sum(a) / sum(b) for a, b in zip(turns["edge_index"], turns[name], strict=True)]
            made, trained = ([turn[i] for turn in turns[name]] for i in (0, 1))
            rows.append([label, name, spread(made), spread(trained), f"{median(ratios):.2f}"])
        results[label] = turns
    print_table(
        f"{args.nodes:,} nodes, {args.edges:,} edges, GraphSAGE of {args.hidden}; CPU ms",
        ["batches", "edges", "the batch", "forward and backward", "edge_index / this"],
        rows,
    )
    print(write_json("edge_format", {"arguments": vars(args), "turns_ms": results}))


if __name__ == "__main__":
    main()
