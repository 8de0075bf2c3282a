"""Batches of every kind, and what they are made from, survive the way over the wire."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch

import graphlearn_dist.distributed  # noqa: F401  registers the messages
from graphlearn_dist.rpc import decode, encode
from graphlearn_dist.sampler import (
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplingConfig,
    SamplingType,
)
from graphlearn_dist.sampler.base import RemoteAllNodesSamplerInput, RemoteNodePathSamplerInput
from graphlearn_dist.sampler.batches import LocalBatches
from tests.support.graphs import EDGE_TYPES, make_dataset, typed_graph, with_times


def travelled(value: Any) -> Any:
    encoded = encode(value)
    return decode(encoded.head, bytearray(b"".join(encoded.payload_parts())))


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif is_dataclass(one):
        for field in fields(one):
            assert_equal(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


LINKS = typed_graph(20, 10, 60, 0).edges[EDGE_TYPES[0]][:, :12]
TIMES = torch.arange(12)
INPUTS: dict[str, tuple[SamplingType, Any]] = {
    "nodes": (SamplingType.NODE, NodeSamplerInput(torch.arange(12), "user")),
    "timed nodes": (SamplingType.NODE, NodeSamplerInput(torch.arange(12), "user", TIMES)),
    "subgraph": (SamplingType.SUBGRAPH, NodeSamplerInput(torch.arange(12), "user")),
    "links": (
        SamplingType.LINK,
        EdgeSamplerInput(*LINKS, TIMES, EDGE_TYPES[0], NegativeSampling("binary", 0.5), TIMES),
    ),
    "triplets": (
        SamplingType.LINK,
        EdgeSamplerInput(*LINKS, None, EDGE_TYPES[0], NegativeSampling("triplet", 2, torch.ones(10), strict=True)),
    ),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_batches_and_inputs(kind: str) -> None:
    sampling_type, inputs = INPUTS[kind]
    dataset = make_dataset(with_times(typed_graph(20, 10, 60, 0), 0))
    config = SamplingConfig(
        sampling_type, {EDGE_TYPES[0]: [2, 1], None: [0, 0]}, 6, False, False, True, True, False, False, "out", 3,
        temporal_strategy=None if inputs.time is None else "uniform",
    )  # fmt: skip
    batch = LocalBatches(dataset, inputs, config).make(1, 1)
    assert_equal(travelled(batch), batch)
    # Made elsewhere from inputs and settings that travelled, it is the same batch.
    assert_equal(travelled(inputs), inputs)
    assert_equal(LocalBatches(dataset, travelled(inputs), travelled(config)).make(1, 1), batch)


def test_inputs_by_name() -> None:
    for named in (RemoteNodePathSamplerInput("ids.npy", "user"), RemoteAllNodesSamplerInput("user")):
        assert travelled(named) == named
