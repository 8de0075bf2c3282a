"""Every kernel once, on little: what ``make gpu`` runs under compute-sanitizer too."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist.data.device.device_cache import DeviceCache
from graphlearn_dist.data.device.device_rows import DeviceRows
from graphlearn_dist.data.device.row_placement import place_rows
from graphlearn_dist.data.unified_tensor import view_rows
from graphlearn_dist.errors import BatchOverflowError, UnknownIdError
from graphlearn_dist.loader import StaticShapes
from graphlearn_dist.loader.transform import padded_to_pyg
from graphlearn_dist.sampler import NodeSamplerInput, SamplingType
from graphlearn_dist.sampler.batches import make_plan
from graphlearn_dist.sampler.device.static_batches import ask, new_request
from graphlearn_dist.sampler.local_graph import LocalGraph
from graphlearn_dist.utils.coroutines import run_local
from tests.support.device_batches import (
    LINK_WAYS,
    WAYS,
    assert_same,
    assert_same_batches,
    config_for,
    graph_for,
    link_graph,
    links_for,
    long_rows_for,
    on_device,
    sample,
    seeds_for,
)
from tests.support.gpu import GPU, needs_gpu
from tests.support.graphs import make_dataset
from tests.support.static_batches import assert_same_data, batches_of_kernels, loader_for

pytestmark = needs_gpu
KINDS = ["homogeneous", "typed"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_sampling(kind: str, way: str) -> None:
    graph = graph_for(kind, WAYS[way])
    dataset, seeds = make_dataset(graph), seeds_for(graph, WAYS[way])
    for fanouts in ([4, 3], [-1]):
        config = config_for(fanouts, WAYS[way])
        local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU)
        assert_same(sample(device, seeds, 1), sample(local, seeds, 1))


@pytest.mark.parametrize("way", WAYS)
def test_long_rows(way: str) -> None:
    dataset, seeds = make_dataset(long_rows_for(WAYS[way])), seeds_for(long_rows_for(WAYS[way]), WAYS[way])
    for fanouts in ([4, 3], [8, 200]):
        config = config_for(fanouts, WAYS[way])
        local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU)
        assert_same(sample(device, seeds, 1), sample(local, seeds, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_padding(kind: str) -> None:
    loader = loader_for(kind, "uniform", (4, 3), static_shapes=True)
    kernels, request = batches_of_kernels(loader, StaticShapes(), GPU), new_request(loader.config.seed, GPU)
    for index in (0, loader.batches.schedule.num_batches - 1):  # the last one is short
        ask(request, 1, index)
        made = padded_to_pyg(kernels.sample(request), loader.data.schema)
        assert_same_data(made, loader.batch(1, index))
    kernels.check()


@pytest.mark.parametrize("shapes", [StaticShapes(max_nodes=18), StaticShapes(max_edges=20)])
def test_padded_batches_that_do_not_fit(shapes: StaticShapes) -> None:
    loader = loader_for("homogeneous", "disjoint", static_shapes=True)
    kernels, request = batches_of_kernels(loader, shapes, GPU), new_request(loader.config.seed, GPU)
    ask(request, 1, 0)
    assert not kernels.sample(request).seed_mask.any()
    with pytest.raises(BatchOverflowError, match="batch 0 of epoch 1"):
        kernels.check()


@pytest.mark.parametrize("kind", KINDS)
def test_induced_subgraphs(kind: str) -> None:
    dataset = make_dataset(graph_for(kind, {}))
    config = config_for([3], {}, SamplingType.SUBGRAPH)
    local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU)
    inputs = NodeSamplerInput(torch.arange(40), None if kind == "homogeneous" else "user")
    assert_same_batches(local, device, dataset, inputs, config)


@pytest.mark.parametrize("way", ["plain", "times"])
@pytest.mark.parametrize("negatives", ["binary-strict", "binary-weighted", "triplet", "triplet-strict"])
@pytest.mark.parametrize("kind", KINDS)
def test_negatives(kind: str, negatives: str, way: str) -> None:
    graph = link_graph(kind, LINK_WAYS[way])
    dataset, inputs = make_dataset(graph), links_for(graph, negatives, LINK_WAYS[way], count=30)
    config = config_for([3], {**LINK_WAYS[way], "with_neg": True}, SamplingType.LINK)
    local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU)
    assert_same_batches(local, device, dataset, inputs, config)
    pairs = dataset.schema.edge_types.index(inputs.input_type), inputs.row.repeat(2), inputs.col.roll(1).repeat(2)
    assert torch.equal(run_local(device.has_edges(*pairs)), run_local(local.has_edges(*pairs)))


@pytest.mark.parametrize("width", [1, 8, 33])
@pytest.mark.parametrize("wanted", [torch.uint8, torch.float32])
@pytest.mark.parametrize("num_slots", [1, 20])
def test_gathering_by_way_of_a_cache(width: int, wanted: torch.dtype, num_slots: int) -> None:
    """Many threads look for the same slots, some for the same row."""
    rows = torch.randint(0, 200, (300, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    cache = DeviceCache(rows, 0, 8 * len(rows) + num_slots * (width + 8), GPU)
    cached = DeviceRows([rows], GPU, cache=cache)
    for seed in range(10):
        ids = torch.randint(0, 300, (400,), generator=torch.Generator().manual_seed(seed)) // (1 + seed % 3)
        assert torch.equal(cached.gather(ids, wanted).cpu(), view_rows(rows).gather(ids, dtype=wanted))
    held = [row for row in cache._slot_rows.tolist() if row >= 0]
    assert len(held) == len(set(held))
    assert held
    assert (cache._rows[cache._slot_rows >= 0].cpu() == rows[held]).all()
    counts = cache.counts
    assert counts.hits + counts.misses == 10 * 400


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 33])
@pytest.mark.parametrize("wanted", [torch.uint8, torch.float16, torch.float32])
def test_gathering(width: int, wanted: torch.dtype) -> None:
    """Rows of all widths of words, copied and cast, in a piece on the GPU, a piece on the host, and by a table."""
    rows = torch.randint(0, 200, (100, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    ids = torch.randint(0, 100, (300,), generator=torch.Generator().manual_seed(2))
    plan = place_rows(100, 0.4, torch.arange(100))
    parts = [rows[plan.share(0, 1)].to(GPU), rows]
    found = DeviceRows(parts, GPU, plan.row_of_id(1))
    assert torch.equal(found.gather(ids, wanted).cpu(), view_rows(rows).gather(ids, dtype=wanted))
    places, out = torch.randperm(300), torch.zeros(300, width, dtype=wanted, device=GPU)
    found.gather_into(out, places, ids)
    assert torch.equal(out.cpu()[places], rows[ids].to(wanted))
    with pytest.raises(UnknownIdError):
        found.gather(torch.tensor([0, 100]), wanted)
