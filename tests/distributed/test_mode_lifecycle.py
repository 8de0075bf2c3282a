"""Collocated and multiprocessing loaders over their lives: epochs, several at once, wrong arguments, and deaths."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_rpc,
    init_worker_group,
    shutdown_rpc,
)
from graphlearn_dist.distributed.dist_context import _reset_context
from graphlearn_dist.errors import (
    ChannelClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotInitializedError,
    PeerLostError,
    SamplingWorkerError,
    UnknownIdError,
)
from graphlearn_dist.typing import Split
from graphlearn_dist.utils.device import can_pin
from tests.support.jobs import (
    NUM_NODES,
    children,
    load,
    make_partitions,
    same_batches,
    shared_memory_names,
    wait_ended,
    workers_of,
)
from tests.support.processes import start
from tests.support.waiting import collect, wait_until

HERE = "tests.distributed.test_mode_lifecycle"
DEADLINE_S = 60.0  # only ever reached by a hang
IDS = torch.arange(NUM_NODES)
COLLOCATED = CollocatedDistSamplingWorkerOptions()
MP = MpDistSamplingWorkerOptions(channel_size="16MB")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("one"), 1, splits=True)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture
def worker_context() -> Iterator[None]:
    """Whatever a test makes of this process, it is nobody afterwards."""
    yield
    shutdown_rpc(graceful=False)
    _reset_context()


def make_loader(data: DistDataset | None, options: Any, **changes: Any) -> DistNeighborLoader:
    arguments = {
        "num_neighbors": [3, 2], "input_nodes": IDS, "batch_size": 8, "shuffle": True, "edge_dir": "in",
        "collect_features": True, "random_seed": 1, "worker_options": options,
    }  # fmt: skip
    return DistNeighborLoader(data, **{**arguments, **changes})


# --- epochs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [COLLOCATED, MP], ids=["collocated", "mp"])
def test_epochs_of_several_loaders(whole: Path, options: Any) -> None:
    """Loops left half-way, loaders that take turns, batches that are kept: each epoch is what it is without them."""
    dataset = load(whole)
    with make_loader(dataset, None) as oracle:
        epochs = [list(oracle) for _ in range(3)]
    with (
        make_loader(dataset, options) as train,
        make_loader(dataset, options, input_nodes=Split.valid, shuffle=False) as valid,
    ):
        assert (len(train), len(valid)) == (15, 2)
        kept = list(train)
        same_batches(kept, epochs[0])
        left = iter(train)
        first = next(left)
        same_batches([first], epochs[1][:1])
        seen = []
        for index, batch in enumerate(train):
            seen.append(batch)
            if index in (4, 9):
                assert torch.equal(torch.cat([b.n_id[: b.batch_size] for b in valid]), torch.arange(50, 60))
        same_batches(seen, epochs[2])
        same_batches(kept, epochs[0])  # what came since did not write over them
        with pytest.raises(ChannelClosedError, match="iterator 2 of this loader was left when iterator 3 began"):
            next(left)
        assert list(next(iter(train)).x.shape)[1] == 4
    for loader in (train, valid):
        loader.shutdown()
        with pytest.raises(ChannelClosedError, match="was shut down"):
            iter(loader)
    same_batches(kept, epochs[0])  # they outlive their loader
    assert children(os.getpid()) == []


@pytest.mark.parametrize("options", [COLLOCATED, MP], ids=["collocated", "mp"])
def test_threads_that_shut_down_a_loader_that_another_reads(whole: Path, options: Any) -> None:
    """All return when it has ended, and whoever waits for a batch is told, though what makes it stands still."""
    with make_loader(load(whole), options) as loader, ThreadPoolExecutor(5) as pool:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGSTOP)
        reader = pool.submit(lambda: [list(loader) for _ in itertools.count()])
        wait_until(lambda: loader.epoch > 0 if options is COLLOCATED else loader._producer._awaited is not None)
        for closing in [pool.submit(loader.shutdown) for _ in range(4)]:
            closing.result(DEADLINE_S)
            assert children(os.getpid()) == []
        with pytest.raises(ChannelClosedError, match="the loader was shut down"):
            reader.result(DEADLINE_S)


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("options", [COLLOCATED, MP], ids=["collocated", "mp"])
def test_what_an_interrupt_leaves_of_a_closing(
    whole: Path, options: Any, is_dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one ends it, and so does the drop."""
    before, loader = threading.enumerate(), make_loader(load(whole), options)
    next(iter(loader))
    threads = [thread for thread in threading.enumerate() if thread not in before]
    with monkeypatch.context() as patch:
        patch.setattr(loader._producer, "_release", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            loader.shutdown()
    assert threads
    assert all(thread.is_alive() for thread in threads)
    if is_dropped:
        del loader
        collect()
    else:
        loader.shutdown()
    wait_until(lambda: not (children(os.getpid()) or any(thread.is_alive() for thread in threads)))


def test_arguments_of_a_loader_in_this_process(whole: Path) -> None:
    dataset = load(whole)
    with make_loader(dataset, None, collect_features=False, transform=lambda batch: batch.n_id) as loader:
        assert all(isinstance(nodes, torch.Tensor) for nodes in loader)
    with make_loader(dataset, None, input_nodes=IDS[:0]) as loader:
        assert (len(loader), list(loader)) == (0, [])
    with make_loader(dataset, None, collect_features=False, to_device=torch.device("cpu")) as loader:
        assert all("x" not in batch for batch in loader)
    with make_loader(dataset, COLLOCATED) as plain, make_loader(dataset, COLLOCATED, to_device="cpu") as loader:
        for expected in (list(plain), list(plain)):  # a batch is taken ahead there, and the end of an epoch
            same_batches(list(loader), expected)
        first = iter(loader)
        next(first)
        next(iter(loader))
        with pytest.raises(ChannelClosedError, match="iterator 3 of this loader was left when iterator 4 began"):
            next(first)
    seen: list[int] = []
    for shard in ((0, 2), (1, 2)):
        with make_loader(dataset, None, shard=shard) as loader:
            seen += [node for batch in loader for node in batch.n_id[: batch.batch_size].tolist()]
    assert sorted(seen) == IDS.tolist()


def test_shards_and_a_small_channel_in_subprocesses(whole: Path) -> None:
    """A channel with room for few batches: those that find none are copied, and come all the same."""
    dataset = load(whole)
    small = replace(MP, channel_size="1MB", num_workers=2)
    with make_loader(dataset, None, num_neighbors=[-1] * 4, batch_size=30, shard=(1, 2)) as oracle:
        expected = [list(oracle), list(oracle)]
    with make_loader(dataset, small, num_neighbors=[-1] * 4, batch_size=30, shard=(1, 2)) as loader:
        kept = list(loader)
        same_batches(kept, expected[0])
        same_batches(loader, expected[1])
        same_batches(kept, expected[0])


@pytest.mark.parametrize("options", [COLLOCATED, MP], ids=["collocated", "mp"])
def test_a_loader_that_is_dropped(whole: Path, options: Any) -> None:
    """What samples for it ends, in the middle of an epoch too; its batches stay."""
    before = set(threading.enumerate())
    batches = iter(make_loader(load(whole), options))
    kept = next(batches)
    expected = kept.clone()
    of_loader = {*threading.enumerate()} - before
    workers = workers_of(os.getpid())
    assert of_loader
    assert len(workers) == getattr(options, "num_workers", 0)
    del batches
    collect()
    for thread in of_loader:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), thread.name
    wait_ended(workers, DEADLINE_S)
    same_batches([kept], [expected])


@pytest.mark.parametrize("options", [COLLOCATED, MP], ids=["collocated", "mp"])
def test_threads_share_an_iteration_or_end_it(whole: Path, options: Any) -> None:
    """Each batch of an iterator goes to one of them; of several iterators of a loader the last one has its epoch."""
    num_threads = 3
    together = threading.Barrier(num_threads)

    def read(batches: Any) -> list[int]:
        together.wait(DEADLINE_S)
        found = []
        with contextlib.suppress(ChannelClosedError):
            for batch in batches:
                found.append(int(batch.input_id[0]))
        return found

    with make_loader(load(whole), options, shuffle=False) as loader, ThreadPoolExecutor(num_threads) as pool:
        firsts = [int(batch.input_id[0]) for batch in loader]
        assert sorted(itertools.chain(*pool.map(read, [iter(loader)] * num_threads))) == firsts
        assert firsts in pool.map(read, [loader] * num_threads)


# --- wrong arguments -------------------------------------------------------------------------------------------

BAD_LOADERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input_nodes": torch.tensor([0, 120])}, UnknownIdError, "input_nodes: node id 120 is outside"),
    ({"input_nodes": torch.tensor([-1])}, UnknownIdError, "input_nodes: node id -1 is outside"),
    ({"input_nodes": ("user", IDS)}, InvalidArgumentError, "input_nodes: unknown node type 'user'"),
    ({"input_nodes": torch.tensor([0.5, 1.5, 2.5])}, InvalidArgumentError, "input_nodes: expected dtype int64"),
    ({"input_nodes": [1, 2]}, InvalidArgumentError, "input_nodes: expected a torch.Tensor"),
    ({"num_neighbors": {("a", "to", "b"): [2]}}, InvalidArgumentError, "num_neighbors: unknown edge type"),
    ({"num_neighbors": []}, InvalidArgumentError, "num_neighbors: expected at least one hop"),
    ({"batch_size": 0}, InvalidArgumentError, "batch_size: expected at least 1, got 0"),
    ({"edge_dir": "out"}, InvalidArgumentError, "edge_dir: the data set holds 'in'-neighbors"),
    ({"shard": (2, 2)}, InvalidArgumentError, "shard: expected"),
]


@pytest.mark.parametrize("options", [COLLOCATED, MP], ids=["collocated", "mp"])
@pytest.mark.parametrize(("arguments", "kind", "message"), BAD_LOADERS, ids=lambda value: str(value)[:40])
def test_a_loader_with_wrong_arguments(
    whole: Path, options: Any, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make_loader(load(whole), options, **arguments)
    assert children(os.getpid()) == []  # no subprocess was started


def test_data_and_options_that_contradict_each_other(whole: Path, halves: Path, worker_context: None) -> None:
    with pytest.raises(InvalidArgumentError, match="data: expected a DistDataset unless servers sample"):
        make_loader(None, MP)
    with pytest.raises(InvalidArgumentError, match="data: expected a data set with a graph"):
        make_loader(DistDataset(), None)
    with pytest.raises(InvalidArgumentError, match="worker_options: expected None or"):
        make_loader(load(whole), "mp")
    half = load(halves, 1)
    for options in (None, COLLOCATED, MP):
        with pytest.raises(NotInitializedError, match=r"one of 2 partitions.*call init_worker_group first"):
            make_loader(half, options)
    init_worker_group(1, 0)
    with pytest.raises(InvalidArgumentError, match="a worker for each of 2 partitions, got 1 workers"):
        make_loader(half, MP)
    init_worker_group(2, 1)
    with pytest.raises(InvalidArgumentError, match="worker_options: expected master_addr and master_port"):
        make_loader(half, MP)
    assert children(os.getpid()) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MpDistSamplingWorkerOptions(num_workers=0), "num_workers: expected at least 1, got 0"),
        (lambda: MpDistSamplingWorkerOptions(worker_concurrency=33), "worker_concurrency: expected at most 32"),
        (lambda: MpDistSamplingWorkerOptions(channel_size="much"), "channel_size: expected a size"),
        (lambda: MpDistSamplingWorkerOptions(3, [torch.device("cpu")] * 2), "worker_devices: expected one for each"),
        (lambda: MpDistSamplingWorkerOptions(1, [torch.device("cuda:0")]), "worker_devices: expected CPUs"),
        (lambda: CollocatedDistSamplingWorkerOptions(rpc_timeout=0), "rpc_timeout: expected a positive number"),
        (lambda: CollocatedDistSamplingWorkerOptions(num_rpc_threads=0), "num_rpc_threads: expected at least 1"),
        (lambda: CollocatedDistSamplingWorkerOptions(prefetch_size=-1), "prefetch_size: expected at least 0, got -1"),
    ],
)
def test_options_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_pinned_batches_without_a_gpu(whole: Path) -> None:
    """A warning, once, and the same batches: a script runs where its GPU is missing, as with torch's loaders."""
    can_pin.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = MpDistSamplingWorkerOptions(channel_size="16MB", pin_memory=True)
        MpDistSamplingWorkerOptions(pin_memory=True)
        with make_loader(load(whole, 0), options) as pinned, make_loader(load(whole, 0), MP) as plain:
            for one, other in zip(pinned, plain, strict=True):
                assert torch.equal(one.x, other.x)
                assert one.x.is_pinned() == torch.cuda.is_available()
    said = [warning for warning in caught if str(warning.message).startswith("pin_memory: torch sees no CUDA device")]
    assert len(said) == (0 if torch.cuda.is_available() else 1)


# --- other workers that do not come, or go ---------------------------------------------------------------------


def member(rank: int, port: int, directory: str, partition: int) -> None:
    """Worker ``rank`` of 2, with a loader unless ``partition`` is negative; serves until it is told to end."""
    init_worker_group(2, rank)
    init_rpc("127.0.0.1", port)
    if partition >= 0:
        _ = make_loader(load(Path(directory), partition), COLLOCATED)
    print("ready", flush=True)
    sys.stdin.readline()
    shutdown_rpc()


def misfit(port: int, directory: str) -> None:
    """Worker 1 of 2, which holds what worker 0 does. It lives on, or the other would only find it gone."""
    init_worker_group(2, 1)
    init_rpc("127.0.0.1", port)
    with pytest.raises(InvalidArgumentError, match=r"none of 2 workers holds partitions \[1\]"):
        make_loader(load(Path(directory), 0), COLLOCATED)
    sys.stdin.readline()


def test_a_worker_that_does_not_join(halves: Path, worker_context: None) -> None:
    init_worker_group(2, 0)
    options = replace(COLLOCATED, master_addr="127.0.0.1", master_port=0, rpc_timeout=0.5)
    with pytest.raises(DeadlineExceededError, match=r"worker: ranks \[1\] of 2 did not join"):
        make_loader(load(halves), options)


def test_a_worker_that_opens_no_loader(halves: Path, worker_context: None, port: int) -> None:
    with start(f"{HERE}.member", rank=0, port=port, directory=str(halves), partition=-1) as other:
        assert other.readline() == "ready"
        init_worker_group(2, 1)
        options = replace(COLLOCATED, master_addr="127.0.0.1", master_port=port, rpc_timeout=1.0)
        with pytest.raises(DeadlineExceededError, match="describe_partition"):
            make_loader(load(halves, 1), options)


def test_workers_whose_data_do_not_fit(halves: Path, tmp_path: Path, worker_context: None, port: int) -> None:
    with start(f"{HERE}.misfit", port=port, directory=str(halves)):
        init_worker_group(2, 0)
        options = replace(COLLOCATED, master_addr="127.0.0.1", master_port=port, rpc_timeout=DEADLINE_S)
        thirds = make_partitions(tmp_path, 3)
        with pytest.raises(InvalidArgumentError, match="a worker for each of 3 partitions"):
            make_loader(load(thirds), options)
        with pytest.raises(InvalidArgumentError, match=r"none of 2 workers holds partitions \[1\]"):
            make_loader(load(halves), options)  # both hold the first half


@pytest.mark.parametrize("options", [COLLOCATED, MP], ids=["collocated", "mp"])
def test_a_worker_that_dies(halves: Path, options: Any, worker_context: None, port: int) -> None:
    """The others' iterations end with its name, and so do they, without waiting for it."""
    with start(f"{HERE}.member", rank=1, port=port, directory=str(halves), partition=1) as other:
        init_worker_group(2, 0)
        meeting = {"master_addr": "127.0.0.1", "master_port": port, "rpc_timeout": DEADLINE_S}
        with make_loader(load(halves), replace(options, **meeting), batch_size=1) as loader:
            batches = iter(loader)
            next(batches)
            assert other.readline() == "ready"
            other.send_signal(signal.SIGKILL)
            expected = PeerLostError if options is COLLOCATED else SamplingWorkerError
            with pytest.raises(expected, match="_default_worker_1"):
                list(batches)
        shutdown_rpc()  # graceful: but nobody is left to wait for


# --- subprocesses and the process itself -----------------------------------------------------------------------


def test_a_subprocess_that_dies(whole: Path) -> None:
    with make_loader(load(whole), replace(MP, max_restarts=0), batch_size=1) as loader:
        (pid,) = workers_of(os.getpid())
        batches = iter(loader)
        next(batches)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SamplingWorkerError, match=rf"\(pid {pid}\) ended: killed by SIGKILL"):
            list(batches)
        with pytest.raises(SamplingWorkerError, match="killed by SIGKILL"):
            list(loader)
    assert children(os.getpid()) == []


def test_a_batch_too_large_for_the_channel(whole: Path) -> None:
    tiny = replace(MP, channel_size="1MB", num_workers=1)
    wide = DistDataset.from_dataset(make_wide())
    with (
        make_loader(wide, tiny, num_neighbors=[2], edge_dir="in") as loader,
        pytest.raises(SamplingWorkerError, match=r"MessageTooLargeError.*channel_size"),
    ):
        list(loader)


def make_wide() -> Dataset:
    """A batch of it takes more than a megabyte."""
    dataset = Dataset(edge_dir="in")
    dataset.init_graph(torch.stack([(IDS + 1) % NUM_NODES, IDS]), num_nodes=NUM_NODES)
    dataset.init_node_features(torch.zeros(NUM_NODES, 40_000))
    return dataset


def hold(directory: str) -> None:
    """Iterates for ever over batches of two subprocesses, and says who they are."""
    loader = make_loader(load(Path(directory)), replace(MP, num_workers=2))
    print(*children(os.getpid()), *workers_of(os.getpid()), flush=True)
    while True:
        for _ in loader:
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_process_that_ends(whole: Path, number: int) -> None:
    with start(f"{HERE}.hold", directory=str(whole)) as process:
        pids = [int(pid) for pid in process.readline().split()]
        assert len(pids) == 3  # with their fork server
        process.send_signal(number)
        wait_ended([process.pid, *pids], DEADLINE_S)
        if number == signal.SIGINT:
            assert "KeyboardInterrupt" in process.output()
    assert shared_memory_names() == set()
