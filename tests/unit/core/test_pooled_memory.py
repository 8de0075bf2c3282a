"""Outputs are written into warm memory: once batches have run, no new block is fetched and hardly a page faults."""

from __future__ import annotations

import resource
import subprocess
import sys

import torch

from graphlearn_dist import _C
from graphlearn_dist.core import pooled_empty, stack_pair
from graphlearn_dist.data import Dataset
from graphlearn_dist.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches
from tests.support.graphs import random_edges

PAGE = resource.getpagesize()


def large_batches() -> LocalBatches:
    """Each batch has more than 4 MB of features alone."""
    dataset = Dataset()
    dataset.init_graph(random_edges(20_000, 20_000, 200_000, 0), num_nodes=20_000)
    dataset.init_node_features(torch.zeros(20_000, 200))
    config = SamplingConfig(
        SamplingType.NODE, [10, 10], 800, True, True, True, True, False, False, "out", seed=0, replace=False
    )
    return LocalBatches(dataset, NodeSamplerInput(torch.arange(16_000)), config)


def test_repeated_batches_reuse_their_memory() -> None:
    batches = large_batches()
    smallest = 1 << 62
    for index in range(20):  # batches differ in size: the largest size classes have to be seen once
        batches.make(0, index)
    misses = _C.pool_stats()["misses"]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(50):
        batch = batches.make(number // 20, number % 20)
        features = batch.node_features[0]
        assert features is not None
        smallest = min(smallest, features.numel() * features.element_size())
        del batch, features
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    assert smallest > 4 << 20
    # A new size class may turn up in a later batch; without the pool it would be ten misses and a thousand faults each.
    assert _C.pool_stats()["misses"] - misses <= 10
    assert faults < 50 * (4 << 20) // PAGE // 20


def test_a_block_goes_back_when_the_last_view_dies() -> None:
    _C.trim_pool()
    before = _C.pool_stats()
    tensor = pooled_empty((1000, 100), torch.float32)
    view = tensor[10:20]
    held = _C.pool_stats()["in_use_bytes"] - before["in_use_bytes"]
    assert held >= tensor.numel() * 4
    del tensor
    assert _C.pool_stats()["in_use_bytes"] - before["in_use_bytes"] == held
    del view
    assert _C.pool_stats()["in_use_bytes"] == before["in_use_bytes"]
    assert _C.pool_stats()["idle_bytes"] == held
    hits = _C.pool_stats()["hits"]
    again = pooled_empty((1000, 100), torch.float32)
    assert _C.pool_stats()["hits"] == hits + 1
    again.fill_(1)
    _C.trim_pool()  # gives back what is idle only
    assert bool((again == 1).all())
    assert _C.pool_stats()["idle_bytes"] == 0


def test_as_much_stays_as_was_in_use_at_once() -> None:
    script = """
import torch
from graphlearn_dist import _C
from graphlearn_dist.core import pooled_empty
pieces = [pooled_empty((100 << 20,), torch.uint8) for _ in range(10)]  # untouched: no memory is taken
held = _C.pool_stats()["in_use_bytes"]
assert held > 768 << 20
del pieces
assert _C.pool_stats()["idle_bytes"] == held
misses = _C.pool_stats()["misses"]
pieces = [pooled_empty((100 << 20,), torch.uint8) for _ in range(10)]
assert _C.pool_stats()["misses"] == misses
del pieces
_C.trim_pool()
del (pieces := [pooled_empty((900 << 20,), torch.uint8)])[0]
assert _C.pool_stats()["idle_bytes"] > 900 << 20
_C.set_pool_capacity(1 << 20)
assert _C.pool_stats()["idle_bytes"] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_capacity_of_nothing_keeps_nothing() -> None:
    _C.set_pool_capacity(0)
    try:
        del (tensor := [pooled_empty((10_000,), torch.int64)])[0]
        assert tensor == []
        assert _C.pool_stats()["idle_bytes"] == 0
    finally:
        _C.set_pool_capacity(768 << 20)  # the default, csrc/common/buffer_pool.cpp


def test_a_pair_of_vectors_is_stacked_without_a_copy_where_it_lies_so() -> None:
    pair = torch.arange(10).reshape(2, 5)
    joined = stack_pair(pair[0], pair[1])
    assert torch.equal(joined, pair)
    assert joined.is_contiguous()
    assert joined.data_ptr() == pair.data_ptr()
    none = torch.empty(2, 0, dtype=torch.int64)
    for first, second in [
        (pair[1], pair[0]),
        (pair[0], pair[1].clone()),
        (pair[0, :4], pair[1, :4]),  # a gap between them
        (pair[0, :3], pair[0, 2:]),  # they overlap
        (pair.t()[:, 0], pair.t()[:, 1]),
        (pair[0, ::2], pair[0, 1:4]),
        (none[0], none[1]),
    ]:
        assert torch.equal(stack_pair(first, second), torch.stack([first, second]))
