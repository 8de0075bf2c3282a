"""Hard negatives by type: which targets they are, and the same bits over partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader
from graphlearn_dist.sampler import EdgeSamplerInput, NegativeSampling, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches
from graphlearn_dist.utils.coroutines import run_local
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import EDGE_TYPES, make_dataset, typed_graph, with_times
from tests.support.oracle import assert_same, load_partitions, tensors_of, write_partitions

BUYS, REV_BUYS, KNOWS = EDGE_TYPES
GRAPH = typed_graph(60, 40, 200, 4)
AMOUNT = 5
# By direction, the type along which items are sampled for users, and its rows: users, items.
HARD: dict[str, tuple[Any, torch.Tensor]] = {
    "out": (BUYS, GRAPH.edges[BUYS]),
    "in": (REV_BUYS, GRAPH.edges[REV_BUYS].flip(0)),
}


def targets_of(edge_dir: Any, hard: Any, **how: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of each batch the sources, and the negative targets of each, global ids."""
    links = torch.stack([torch.arange(60), torch.arange(60) % 40])
    loader = LinkNeighborLoader(
        make_dataset(GRAPH, edge_dir),
        [2],
        edge_label_index=(BUYS, links),
        neg_sampling=NegativeSampling("triplet", AMOUNT, hard=hard, strict=True),
        batch_size=16,
        shuffle=True,
        prefetch=0,
        **how,
    )
    return [
        (batch["user"].n_id[batch["user"].src_index], batch["item"].n_id[batch["item"].dst_neg_index])
        for _ in range(3)
        for batch in loader
    ]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_the_first_are_neighbors_and_the_others_are_drawn(edge_dir: str) -> None:
    edge_type, (users, items) = HARD[edge_dir]
    seen = {"few": 0, "many": 0, "other draws": 0}
    previous: dict[int, list[int]] = {}
    for (source, found), (_, drawn) in zip(targets_of(edge_dir, edge_type), targets_of(edge_dir, None), strict=True):
        for user, targets, plain in zip(source.tolist(), found.tolist(), drawn.tolist(), strict=True):
            row = sorted(items[users == user].tolist())
            count = min(len(row), AMOUNT)
            assert targets[count:] == plain[count:]
            left = list(row)
            for target in targets[:count]:
                left.remove(target)  # each edge once
            seen["many" if len(row) > AMOUNT else "few"] += 1
            seen["other draws"] += len(row) > AMOUNT and previous.get(user, targets) != targets
            previous[user] = targets
    assert min(seen.values()) > 0


def test_partitions(tmp_path: Path) -> None:
    """Owners are asked once a batch for all hard negatives."""
    edge_type, _ = HARD["out"]
    sampling = NegativeSampling("triplet", AMOUNT, hard=edge_type)
    inputs = EdgeSamplerInput(*GRAPH.edges[BUYS], input_type=BUYS, neg_sampling=sampling)
    config = SamplingConfig(SamplingType.LINK, [0], 50, True, False, True, True, True, False, "out", 7)
    local = LocalBatches(make_dataset(GRAPH, "out"), inputs, config)
    datasets = load_partitions(write_partitions(GRAPH, tmp_path, "random", 3, "out"), 3)
    services = [PartitionService(dataset) for dataset in datasets]
    for dataset, service in zip(datasets, services, strict=True):
        peers = DirectPeers(services)
        batches = PartitionedBatches(dataset, inputs, config, [service], peers)
        for index in range(local.schedule.num_batches):
            made = run_local(batches.make(0, index))
            assert_same(tensors_of(made), tensors_of(local.make(0, index)))
        assert len(peers.asked_as("hop")) == 2 * local.schedule.num_batches


def test_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="hard: expected None in binary mode"):
        NegativeSampling("binary", 1, hard=BUYS)
    for edge_type, error in (
        (REV_BUYS, "hard: expected a type by which 'item' are sampled for 'user'"),
        (KNOWS, "hard: expected a type by which"),
        (("a", "b", "c"), "hard: unknown edge type"),
    ):
        with pytest.raises(InvalidArgumentError, match=error):
            targets_of("out", edge_type)
    links = (BUYS, GRAPH.edges[BUYS])
    timed = {"edge_label_index": links, "edge_label_time": torch.zeros(links[1].size(1), dtype=torch.int64)}
    with pytest.raises(InvalidArgumentError, match="hard: expected None where links have times"):
        LinkNeighborLoader(
            make_dataset(with_times(GRAPH, 3), "out"),
            [2],
            neg_sampling=NegativeSampling("triplet", 2, hard=BUYS),
            **timed,
        )


def test_states_tell_them_apart() -> None:
    data, links = make_dataset(GRAPH, "out"), (BUYS, GRAPH.edges[BUYS])
    states = [
        LinkNeighborLoader(data, [2], edge_label_index=links, neg_sampling=NegativeSampling("triplet", 2, hard=hard))
        for hard in (None, BUYS)
    ]
    assert states[0].state_dict() != states[1].state_dict()
