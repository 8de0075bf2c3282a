"""Loops of ``graphlearn_dist.glt.distributed``: what is under way when they end, and who is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist.errors import InvalidArgumentError, NotInitializedError

COUNT = 8
RING = torch.stack([torch.arange(COUNT), (torch.arange(COUNT) + 1) % COUNT])


async def soon(value: int) -> int:
    for _ in range(200):
        await asyncio.sleep(0)
    return value


async def fail() -> None:
    raise ValueError("what a task says")


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_loop_ends_with_its_tasks() -> None:
    loop, found = glt.distributed.ConcurrentEventLoop(4), []
    loop.shutdown_loop()  # nothing has begun
    loop.start_loop()
    for value in range(4):
        loop.add_task(soon(value), found.append)
    loop.shutdown_loop()
    assert sorted(found) == [0, 1, 2, 3]
    loop.shutdown_loop()


def test_a_loop_tells_of_what_failed() -> None:
    loop = glt.distributed.ConcurrentEventLoop(2)
    loop.start_loop()
    loop.add_task(fail())
    with pytest.raises(ValueError, match="what a task says"):
        loop.shutdown_loop()
    assert not loop._thread.is_running
    loop.shutdown_loop()


def test_tasks_that_callbacks_add_are_waited_for() -> None:
    loop, found = glt.distributed.ConcurrentEventLoop(2), []

    def go_on(value: int) -> None:
        found.append(value)
        if value < 3:
            loop.add_task(soon(value + 1), go_on)

    loop.start_loop()
    loop.add_task(soon(0), go_on)
    loop.shutdown_loop()
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("method", ["shutdown_loop", "wait_all"])
def test_a_callback_cannot_wait_for_itself(method: str) -> None:
    """It is told at once, and the loop goes on."""
    loop = glt.distributed.ConcurrentEventLoop(2)
    loop.start_loop()
    loop.add_task(soon(0), lambda _: getattr(loop, method)())
    with pytest.raises(RuntimeError, match=f"{method}: called in the thread of the loop"):
        loop.wait_all(60.0)
    found: list[int] = []
    loop.add_task(soon(7), found.append)
    loop.shutdown_loop()
    assert found == [7]


def test_a_loop_does_not_wait_for_ever() -> None:
    loop = glt.distributed.ConcurrentEventLoop(2)
    loop.shutdown_timeout_s = 0.1
    loop.start_loop()
    loop.add_task(wait_for_ever())
    with pytest.raises(TimeoutError, match=r"still in flight after 0\.1 s"):
        loop.shutdown_loop()
    with pytest.raises(NotInitializedError):
        loop.add_task(soon(1))


def one_partition() -> glt.distributed.DistDataset:
    graph = glt.data.Graph(glt.data.Topology(RING), "CPU")
    return glt.distributed.DistDataset(graph_partition=graph, node_pb=torch.zeros(COUNT, dtype=torch.int64))


@pytest.mark.parametrize("method", ["sample_from_nodes", "sample_from_edges", "subgraph"])
def test_a_sampler_ends_with_its_batches(method: str) -> None:
    channel, told = glt.channel.ShmChannel(capacity=16, shm_size="1MB"), []
    sampler = glt.distributed.DistNeighborSampler(one_partition(), [1], channel=channel, concurrency=4)
    assert isinstance(sampler, glt.distributed.ConcurrentEventLoop)
    assert sampler.shutdown_timeout_s == 180
    sampler.start_loop()
    ids = torch.tensor([1, 2])
    links = glt.sampler.EdgeSamplerInput(ids, ids + 1)
    seeds: Any = links if method == "sample_from_edges" else glt.sampler.NodeSamplerInput(ids)
    for _ in range(12):
        assert getattr(sampler, method)(seeds, callback=told.append) is None
    sampler.shutdown_loop()
    assert told == [None] * 12
    wanted = [1, 2, 3, 4] if method == "sample_from_edges" else [1, 2, 3]
    assert [sorted(channel.recv(timeout_ms=1)["ids"].tolist()) for _ in range(12)] == [wanted] * 12
    assert channel.empty()


def test_keywords_of_samplers() -> None:
    sampler = glt.distributed.DistNeighborSampler(one_partition(), [1])
    sampler.start_loop()
    try:
        with pytest.raises(InvalidArgumentError, match=r"keywords epoch, index and callback, got \['no_such'\]"):
            sampler.sample_from_nodes(torch.tensor([1]), no_such=1)
        with pytest.raises(InvalidArgumentError, match="callback"):
            sampler.subgraph(torch.tensor([1]), callback=1)
    finally:
        sampler.shutdown_loop()
