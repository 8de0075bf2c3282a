"""A training step with the sampling of its batch in it, captured once as a CUDA graph and replayed for every batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..data.device.own_streams import OwnStream
from ..data.device.stream_uses import capturing, wait_at_drop
from ..errors import InvalidArgumentError
from ..sampler.device.static_batches import ask, new_request
from ..sampler.epochs.fingerprint import Settings
from ..sampler.epochs.schedule import BatchIndices
from ..telemetry import MadeStats
from .epochs import EpochLoader
from .local_loader import LocalLoader
from .resume import Shard

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

Step = Callable[["Data | HeteroData"], Any]


class CapturedStep(EpochLoader):
    """An iterable over what a step gives for each batch of one epoch after the other.

    The first ``warmup`` steps run as they stand, on a stream of their own, as torch asks for before a capture. The next
    one is captured: sampling, lookup of rows, model, backward pass and optimizer. It and all later ones are replays of
    that one CUDA graph, for which the host launches two numbers, the epoch and the index of the batch, and the graph,
    and waits for nothing. No step is made twice: training goes as it would without a capture.

    What the step gives lies in memory of the graph, and the next replay writes over it: clone what is to be kept.
    Between steps nothing else may replace the tensors that the step uses; to change one, write into it.

    Where the host samples, steps run one by one and nothing is captured, so that a program can be tried there.

    Args:
        loader: batches of static shapes. Its settings are those of the epochs here; it keeps an epoch of its own.
        step: takes a batch; what may be captured is said in torch's notes on CUDA graphs: no read of a number on the
            host, no shapes that depend on numbers, ``capturable=True`` for optimizers that have it.
        warmup: steps before the capture, at least 1.

    Raises:
        InvalidArgumentError: the loader has no static shapes, or hands out batches elsewhere than the GPU makes them.
    """

    _graph: torch.cuda.CUDAGraph | None = None

    def __init__(self, loader: LocalLoader, step: Step, *, warmup: int = 3) -> None:
        batches = loader.static_batches
        if batches is None:
            raise InvalidArgumentError("loader: expected one with static shapes; give it static_shapes=True")
        device = loader._copies.device
        if batches.device.type == "cuda" and device not in (None, batches.device):
            raise InvalidArgumentError(
                f"loader: expected one whose batches stay on {batches.device}, which samples them, got one with "
                f"device={str(device)!r}"
            )
        if warmup < 1:
            raise InvalidArgumentError(f"warmup: expected at least 1 step before the capture, got {warmup}")
        super().__init__(Shard())
        self._loader = loader
        self._step = step
        self._warmup = warmup
        self._request = new_request(loader.config.seed, batches.device)
        on_gpu = batches.device.type == "cuda"
        self._side = OwnStream(batches.device, for_captures=True) if on_gpu else None
        self._replays = wait_at_drop(self, batches.device)
        self._outputs: Any = None

    def __del__(self) -> None:
        """What replays that are under way use beside the graph: it may hold this object, so that nothing keeps it."""
        if self._graph is not None and not sys.is_finalizing():
            self._replays.outlive(self._step, self._outputs, self._loader)

    def __call__(self, epoch: int, index: int) -> Any:
        """What the step gives for one batch, without waiting for it."""
        ask(self._request, epoch, self._loader.batches.schedule.check_index(index))
        if self._side is None:
            return self._make()
        if self._warmup > 0:
            self._warmup -= 1
            return self._make_on(self._side.stream)
        if self._graph is None:
            self._graph = self._capture(self._side)
            self._replays.keep(self._graph, self._loader.static_batches, self._request)  # not what may hold this object
        self._replays.note()
        self._graph.replay()
        return self._outputs

    def check(self) -> None:
        """Waits for the steps; at the end of an epoch this is done by itself.

        Raises:
            BatchOverflowError: a batch did not fit. Its step saw one without seeds: all of it was padding.
        """
        self._loader.check()

    def _make(self) -> Any:
        return self._step(self._loader.batch_of(self._request))

    def _make_on(self, stream: torch.cuda.Stream) -> Any:
        caller = torch.cuda.current_stream(stream.device)
        stream.wait_stream(caller)
        with torch.cuda.device(stream.device), torch.cuda.stream(stream):
            outputs = self._make()
        caller.wait_stream(stream)
        return outputs

    def _capture(self, side: OwnStream) -> torch.cuda.CUDAGraph:
        graph, device = torch.cuda.CUDAGraph(), side.stream.device
        try:
            # Torch leaves the stream of a capture that fails the current one.
            with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)), capturing():
                # Other threads, such as those of another loader, may take memory of the device meanwhile.
                with torch.cuda.graph(graph, stream=side.stream, capture_error_mode="thread_local"):
                    self._outputs = self._make()
        except BaseException:
            side.give_up()
            self._side = OwnStream(device, for_captures=True)
            raise
        return graph

    @property
    def _num_batches(self) -> int:
        return self._loader.batches.schedule.num_batches

    def _made(self) -> MadeStats:
        return self._loader._made()

    def _settings(self) -> Settings:
        return self._loader._settings()

    def _start(self, run: int, epoch: int, indices: BatchIndices) -> Iterator[tuple[int, Any]]:
        for index in indices:
            yield index, self(epoch, index)
        self.check()
