"""What is dropped while a GPU still reads it: nobody else has the memory before that is done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from graphlearn_dist.core import pooled_empty
from graphlearn_dist.data import Feature
from graphlearn_dist.data.device.device_copies import DeviceCopies
from graphlearn_dist.loader import NeighborLoader
from tests.gpu.test_gpu_loaders import NUM_NODES, SETTINGS, make_data, sampled_on_gpu
from tests.support.gpu import GPU, busy, needs_gpu
from tests.support.waiting import collect

pytestmark = needs_gpu
NUM_ROWS, WIDTH = 1 << 16, 64
ROWS = torch.arange(NUM_ROWS * WIDTH, dtype=torch.float32).view(NUM_ROWS, WIDTH)


def overwrite(nbytes: int) -> list[torch.Tensor]:
    """Takes all memory that is free for the current stream in blocks of a size, and writes to it at once."""
    free = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return [torch.full((nbytes // 4,), -1.0, device=GPU) for _ in range(max(free // nbytes, 1) + 1)]


@pytest.mark.parametrize(
    "settings", [{"split_ratio": 1.0}, {"device_cache": "64MB"}, {}], ids=["hot", "cache", "pinned"]
)
def test_a_feature_dropped_in_mid_gather(settings: dict[str, Any]) -> None:
    """On a stream of its own, behind other work; what it read from was made on the default stream."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    ids = torch.randint(0, NUM_ROWS, (NUM_ROWS,), generator=torch.Generator().manual_seed(1))
    there = ids.to(GPU)
    for _ in range(5):
        feature = Feature(ROWS.clone(), device=0, **settings)
        assert feature._placed is not None
        rows = feature._placed.on(GPU)
        rows.gather(there, torch.float32)  # fills the cache
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            busy(0.05)
            found = rows.gather_or_zeros(there, torch.float32)
        del feature, rows
        collect()
        taken = overwrite(ROWS.nbytes)
        torch.cuda.synchronize()
        assert torch.equal(found.cpu(), ROWS[ids])
        del taken


def test_labels_on_the_gpu_follow_theirs() -> None:
    dataset = sampled_on_gpu()
    loader = NeighborLoader(dataset, [2], torch.arange(NUM_NODES), batch_size=100, prefetch=0)
    assert torch.equal(loader.batch(0, 0).y.cpu(), loader.batch(0, 0).n_id.cpu())
    dataset.node_labels += 5
    assert torch.equal(loader.batch(0, 0).y.cpu(), loader.batch(0, 0).n_id.cpu() + 5)


def test_copies_dropped_in_mid_copy() -> None:
    """The pool has the memory again only when the copy from it is done."""
    numel = 4 << 20
    for number in range(10):
        copies = DeviceCopies(GPU)
        assert copies._stream is not None
        with torch.cuda.stream(copies._stream):
            busy(0.05)
        received = pooled_empty((numel,), torch.float32).fill_(number)
        moved = copies.begin(Data(x=received))
        del received, copies
        collect()
        taken = [pooled_empty((numel,), torch.float32).fill_(-1) for _ in range(4)]
        torch.cuda.synchronize()
        assert torch.equal(moved.batch.x, torch.full((numel,), float(number), device=GPU))
        del taken


@pytest.mark.parametrize("sampled_there", [False, True])
def test_loaders_dropped_in_mid_epoch(sampled_there: bool) -> None:
    """With batches ahead under way, of which nobody hears; those that were handed out stay what they are."""
    nodes = torch.arange(NUM_NODES)
    expected = next(iter(NeighborLoader(make_data(), [5, 3], nodes, **SETTINGS)))
    for number in range(30):
        data = make_data("CUDA", split_ratio=0.3) if sampled_there else make_data()
        loader = NeighborLoader(data, [5, 3], nodes, device=GPU, prefetch=1 + number % 3, **SETTINGS)
        epoch = iter(loader)
        batch = next(epoch)
        del epoch, loader, data
        collect()
        taken = overwrite(1 << 20)
        for key in ("n_id", "edge_index", "x"):
            assert torch.equal(batch[key].cpu(), expected[key]), (number, key)
        del taken
