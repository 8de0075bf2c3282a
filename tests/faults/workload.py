"""What the jobs of the fault harness compute: two epochs over a small graph, told apart by digests of their batches."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from graphlearn_dist.config import feature_memory
from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.distributed import (
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import save_node_order
from tests.support.jobs import load, make_partitions

REMOTE, NEAR, MP = "remote", "near", "mp"  # near: of servers, batches of near seeds, three of one server together
SERVED = REMOTE, NEAR
NUM_SERVERS = 2
NUM_TRAINERS = 2
NUM_EPOCHS = 2
NUM_BATCHES = 30  # of an epoch, of all trainers
NUM_FEATURES = 256  # a batch is some 30 KB: enough to pass through shared memory where there is any
FEATURE_MEMORY = "1000KB"  # of a job whose features are read from disk; a half has 1.2 MB
_NUM_NODES = 2400
_SEEDS = torch.arange(0, _NUM_NODES, 20)
_FANOUT = [3, 2]
_BATCH_SIZE = len(_SEEDS) // NUM_BATCHES
_LOCALITY = {REMOTE: None, NEAR: 3, MP: None}
_DEADLINE_S = 60.0
RECONNECT = "GLD_FAULT_RECONNECT_S"  # how long a loader waits for a server that is gone, unless it is that

Digests = dict[str, list[str]]  # by trainer: those of its batches, epoch by epoch


def prepare(directory: Path) -> dict[str, Digests]:
    """Writes the graph, whole and in halves; by mode, what every trainer has to get: what the local loader makes."""
    size = {"num_features": NUM_FEATURES, "num_nodes": _NUM_NODES}
    order = ZoneOrder(torch.arange(_NUM_NODES), torch.tensor([0, _NUM_NODES]))
    for name, num_parts in (("whole", 1), ("halves", NUM_SERVERS)):
        save_node_order(make_partitions(directory / name, num_parts, **size), order)
    return {mode: _expected(directory / "whole", locality) for mode, locality in _LOCALITY.items()}


def _expected(whole: Path, locality: int | None) -> Digests:
    loader = NeighborLoader(
        load(whole), _FANOUT, _SEEDS, batch_size=_BATCH_SIZE, shuffle=True, seed=1, locality=locality
    )
    expected: Digests = {str(rank): [] for rank in range(NUM_TRAINERS)}
    for epoch in range(NUM_EPOCHS):
        batches = [loader.batch(epoch, index) for index in range(NUM_BATCHES)]
        inputs = torch.cat([batch.input_id for batch in batches])
        if not torch.equal(inputs.sort().values, torch.arange(len(_SEEDS))):
            raise AssertionError("an epoch of the local loader has not every input node once")
        for index, batch in enumerate(batches):
            expected[str(index % NUM_TRAINERS)].append(digest(batch))
    return expected


def open_loader(mode: str, directory: Path, rank: int) -> DistNeighborLoader:
    """One trainer's share of the batches, sampled by the servers of the job or by processes of its own."""
    options: Any
    if mode in SERVED:
        options = RemoteDistSamplingWorkerOptions(
            server_rank=list(range(NUM_SERVERS)),
            rpc_timeout=_DEADLINE_S,
            reconnect_timeout=float(os.environ.get(RECONNECT, _DEADLINE_S)),
            batches_per_message=3 if mode == NEAR else None,
        )
    else:
        options = MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB", rpc_timeout=_DEADLINE_S)
    data = load(directory / "whole") if mode == MP else None
    if data is not None and (limit := feature_memory()) is not None:
        data.limit_feature_memory(limit)
    return DistNeighborLoader(
        data,
        _FANOUT,
        _SEEDS,
        _BATCH_SIZE,
        True,
        edge_dir="in",
        collect_features=True,
        random_seed=1,
        worker_options=options,
        shard=(rank, NUM_TRAINERS),
        locality=_LOCALITY[mode],
    )


def digest(batch: Any) -> str:
    """Of every tensor that a training loop reads, with its shape and type."""
    state = hashlib.blake2b(digest_size=8)
    for name in ("n_id", "edge_index", "x", "y", "input_id"):
        tensor = batch[name]
        state.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        state.update(tensor.contiguous().numpy().tobytes())
    return state.hexdigest()
