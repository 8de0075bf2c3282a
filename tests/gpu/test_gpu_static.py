"""Batches of fixed shapes on a GPU: the host's bit by bit, and a thousand of them from one captured graph."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

from graphlearn_dist.data.device.own_streams import OwnStream
from graphlearn_dist.errors import BatchOverflowError
from graphlearn_dist.loader import CapturedStep, NeighborLoader, StaticShapes
from graphlearn_dist.loader.transform import padded_to_pyg
from graphlearn_dist.sampler.device.static_batches import ask, new_request
from tests.support.device_batches import WAYS
from tests.support.gpu import GPU, busy, needs_gpu
from tests.support.graphs import make_dataset, random_graph
from tests.support.profiles import events_within, waits_in
from tests.support.static_batches import assert_same_data, batches_of_kernels, loader_for

pytestmark = needs_gpu
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0  # only ever reached by a hang


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_batches_are_those_of_the_host(kind: str, way: str) -> None:
    loader = loader_for(kind, way, (4, 3, 2), static_shapes=True)
    kernels, request = batches_of_kernels(loader, StaticShapes(), GPU), new_request(loader.config.seed, GPU)
    for epoch, index in ((0, 0), (0, 2), (3, 1)):
        ask(request, epoch, index)
        made = padded_to_pyg(kernels.sample(request), loader.data.schema)
        assert_same_data(made, loader.batch(epoch, index))
    kernels.check()


GRAPH = random_graph(5000, 300_000, 3)  # ids of neighbors are locked in place: they take more than a megabyte


def loader_on(
    device: torch.device | None,
    shapes: StaticShapes | bool = True,
    *,
    graph_mode: Literal["CUDA", "ZERO_COPY"] = "CUDA",
    **changes: Any,
) -> NeighborLoader:
    dataset = make_dataset(GRAPH)
    if device is not None:
        place: dict[str, Any] = {"graph_mode": graph_mode, "device": 0}
        dataset.init_graph(GRAPH.unwrap(GRAPH.edges), num_nodes=GRAPH.unwrap(GRAPH.num_nodes), **place)
        dataset.init_node_features(GRAPH.unwrap(GRAPH.node_features()), split_ratio=0.4)
    settings = {"batch_size": 64, "shuffle": True, "seed": 2, "prefetch": 0, "static_shapes": shapes, **changes}
    return NeighborLoader(dataset, [5, 3], torch.arange(4000), device=device, **settings)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_loaders_give_the_batches_of_the_host(prefetch: int) -> None:
    for expected, found in zip(loader_on(None), loader_on(GPU, prefetch=prefetch), strict=True):
        assert found.x.device == found.edge_index.device == GPU
        assert_same_data(found, expected)


def test_what_does_not_fit_is_told_at_the_end() -> None:
    steps = CapturedStep(loader_on(GPU, StaticShapes(max_nodes=100)), lambda batch: batch.seed_mask.sum())
    for index in range(6):
        assert int(steps(4, index)) == 0
    with pytest.raises(BatchOverflowError, match="batch 0 of epoch 4 has more than the 99 nodes"):
        steps.check()


def digest(batch: Any) -> torch.Tensor:
    """Numbers that change with every node, edge and row of a batch, int64 ``[4]``."""
    places = torch.arange(1, batch.num_nodes + 1, device=batch.n_id.device)
    sources, targets = batch.edge_index
    nodes = (batch.n_id * batch.node_mask * places).sum()
    edges = ((sources * 31 + targets * 17) * batch.edge_mask).sum()
    rows = (batch.x[:, 0].long() * places * batch.node_mask).sum()
    return torch.stack([nodes, edges, rows, batch.seed_mask.sum()])


def test_a_thousand_batches_of_one_captured_graph_without_a_wait() -> None:
    loader = loader_on(GPU)
    found = torch.zeros((1000, 4), dtype=torch.int64, device=GPU)
    place = torch.zeros(1, dtype=torch.int64, device=GPU)

    def step(batch: Any) -> None:
        found.index_copy_(0, place, digest(batch)[None])
        place.add_(1)

    steps, names = CapturedStep(loader, step), [divmod(number, len(loader)) for number in range(1000)]
    for epoch, index in names[:4]:  # three as they stand, one that is captured
        steps(epoch, index)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile, torch.profiler.record_function("replays"):
        for epoch, index in names[4:]:
            steps(epoch, index)
    steps.check()
    assert events_within(profile, "replays").count("cudaGraphLaunch") == len(names) - 4
    assert waits_in(profile, "replays") == []
    host = loader_on(None)
    expected = torch.stack([digest(host.batch(epoch, index)) for epoch, index in names])
    assert torch.equal(found.cpu(), expected)


def test_ten_thousand_replays_of_which_some_overflow() -> None:
    """Each is the batch of its name, or padding alone where that does not fit: the flag of one is not another's."""
    host = loader_on(None)
    names = [divmod(number, len(host)) for number in range(10_000)]
    batches = ((int(made.node_mask.sum()), digest(made)) for made in (host.batch(*name) for name in names))
    sizes, digests = zip(*batches, strict=True)
    num_nodes = torch.tensor(sizes)
    most = int(num_nodes.float().quantile(0.9))
    fits = num_nodes <= most
    assert 0 < int((~fits).sum()) < 2000
    expected = torch.stack(digests) * fits[:, None]
    found = torch.zeros((len(names), 4), dtype=torch.int64, device=GPU)
    place = torch.zeros(1, dtype=torch.int64, device=GPU)

    def step(batch: Any) -> None:
        found.index_copy_(0, place, digest(batch)[None])
        place.add_(1)

    steps = CapturedStep(loader_on(GPU, StaticShapes(max_nodes=most + 1)), step)  # one is padding
    for epoch, index in names:
        steps(epoch, index)
    epoch, index = names[int((~fits).nonzero()[0])]
    with pytest.raises(BatchOverflowError, match=f"batch {index} of epoch {epoch} has more than the {most} nodes"):
        steps.check()
    steps.check()  # told once
    assert torch.equal(found.cpu(), expected)


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(2, 16), SAGEConv(16, 4)

    def forward(self, data: Any) -> torch.Tensor:
        hidden = F.normalize(self.first(F.normalize(data.x), data.edge_index).relu())
        out: torch.Tensor = self.second(hidden, data.edge_index)[: data.batch_size]
        return out


def losses(loader: NeighborLoader, model: torch.nn.Module, *, captured: bool) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        each = F.cross_entropy(model(batch), batch.y[: batch.batch_size] % 4, reduction="none")
        loss = (each * batch.seed_mask).sum() / batch.seed_mask.sum().clamp(min=1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    given = CapturedStep(loader, step) if captured else map(step, loader)
    return [float(loss) for loss in given]


def test_a_captured_step_trains_as_the_same_step_does_uncaptured() -> None:
    torch.manual_seed(0)
    model = TwoLayers().to(GPU)
    expected = losses(loader_on(GPU), copy.deepcopy(model), captured=False)
    found = losses(loader_on(GPU), model, captured=True)
    # Sums over edges are made in any order on a GPU.
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("shapes", [False, True])
def test_batches_that_another_thread_reads_beside_captures(shapes: bool) -> None:
    """Torch forgets what it is told of uses of memory while it captures, which must not be that of a batch. At the end
    of an epoch of static shapes all of the GPU is waited for, which would fail the capture."""
    settings: dict[str, Any] = {"shapes": shapes, "prefetch": 2, "batch_size": 20}
    other, ended = loader_on(GPU, **settings), threading.Event()
    expected = [int(batch.n_id.sum()) for batch in loader_on(None, **settings)]

    def read() -> list[list[int]]:
        passes = []
        while not (passes and ended.is_set()):
            other.set_epoch(0)
            passes.append([])
            for batch in other:
                busy(0.001)
                passes[-1].append(int(batch.n_id.sum()))
        return passes

    with ThreadPoolExecutor(1) as reader:
        passes = reader.submit(read)
        try:
            for _ in range(20):
                list(CapturedStep(loader_on(GPU), digest, warmup=1))
        finally:
            ended.set()
        assert all(found == expected for found in passes.result())


def test_what_a_step_drops_and_collects_while_it_is_captured() -> None:
    """Other captured steps, and rows in page-locked memory, whose end waits for streams."""
    busy_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    expected = [digest(batch) for batch in loader_on(None)]
    for _ in range(3):
        dropped: list[Any] = []
        for cycle in (False, True):
            steps = CapturedStep(loader_on(GPU), digest, warmup=1)
            with torch.cuda.stream(busy_stream):
                busy(0.05)
                for index in range(3):
                    steps(0, index)
            dropped.append([steps])
            if cycle:
                dropped[-1].append(dropped[-1])
        del steps

        def step(batch: Any, dropped: list[Any] = dropped) -> torch.Tensor:
            if torch.cuda.is_current_stream_capturing():
                dropped.clear()
                gc.collect()
            return digest(batch)

        made = [found.clone() for found in CapturedStep(loader_on(GPU), step, warmup=1)]
        assert not dropped
        assert torch.equal(torch.stack(made).cpu(), torch.stack(expected))


def test_a_capture_that_fails_leaves_others_as_they_were() -> None:
    """Torch forgets uses of memory that it is told of in a capture: it must know that this one is over."""
    steps = CapturedStep(loader_on(GPU), lambda batch: batch.x.sum().item(), warmup=1)
    steps(0, 0)
    with pytest.raises(RuntimeError):
        steps(0, 1)  # reads a number on the host
    loader, stream = loader_on(GPU, shapes=False, prefetch=2), torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def read_epoch() -> int:
        with torch.cuda.stream(stream):
            for batch in loader:
                digest(batch)
        del batch
        torch.cuda.synchronize()
        torch.empty(1, device=GPU)  # where torch looks for what streams are done with
        return torch.cuda.memory_allocated()

    read_epoch()
    held = read_epoch()
    for _ in range(5):
        assert read_epoch() <= held + (1 << 20)
    expected = torch.stack([digest(batch) for batch in loader_on(None)])
    assert torch.equal(torch.stack([found.clone() for found in CapturedStep(loader_on(GPU), digest)]).cpu(), expected)


def test_streams_are_none_of_those_that_torch_deals_out() -> None:
    own = [OwnStream(GPU) for _ in range(40)]
    handles = {one.stream.cuda_stream for one in own}
    assert len(handles) == len(own)
    assert not handles & {torch.cuda.Stream(GPU).cuda_stream for _ in range(40)}  # type: ignore[no-untyped-call]


PROGRAM = """
import sys
import torch
from graphlearn_dist.loader import CapturedStep
from tests.gpu.test_gpu_static import GPU, digest, loader_on

def epoch():
    found = [CapturedStep(loader_on(GPU), digest, warmup=1)]
    found.append(found)
    list(found[0])
    return found

if "dropped" in sys.argv:
    epoch()
else:
    mode = "CUDA" if "kept" in sys.argv else "ZERO_COPY"
    loader, steps = loader_on(GPU, shapes=False, prefetch=2, graph_mode=mode), epoch()
    batches = iter(loader)
    batch = next(batches)
print("done")
"""


@pytest.mark.parametrize("argument", ["kept", "page-locked", "dropped"])
def test_programs_end(argument: str) -> None:
    """With captured steps and batches ahead that are still there, from pages that a GPU may still read too, and with
    such as the garbage collector finds then."""
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, argument],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_captured_steps_hold_as_much_memory_after_many_batches() -> None:
    steps = CapturedStep(loader_on(GPU), digest)
    for index in range(5):
        steps(0, index)
    held = torch.cuda.memory_allocated()
    for index in range(200):
        steps(1, index % len(steps))
    assert torch.cuda.memory_allocated() == held
