"""Programs that leave their loaders in some way and end, or fork before.

Run as a module it reads lines from its standard input, each the JSON of (name of a function here, its arguments, file
for its standard error, seconds), and makes a fork for each of them: a process with an interpreter of its own, which
ends as any other does, without the seconds that importing torch takes. It answers with how that ended, as
``subprocess`` says it.
"""

from __future__ import annotations

import atexit
import code
import contextlib
import copy
import gc
import json
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torch_geometric.data  # noqa: F401 what loaders import when they make their first batch

from graphlearn_dist.channel import ShmChannel
from graphlearn_dist.cluster.groups.worker_groups import RayWorkerGroup
from graphlearn_dist.cluster.jobs.backend import LocalBackend
from graphlearn_dist.cluster.jobs.plan import ProcessSpec
from graphlearn_dist.cluster.machines.virtual_cluster import RayVirtualCluster
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistNeighborLoader,
    DistServer,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    get_context,
    init_client,
    init_server,
    request_server,
    shutdown_client,
    shutdown_server,
    wait_and_shutdown_server,
)
from graphlearn_dist.distributed.dist_sampling_producer import DistMpSamplingProducer
from graphlearn_dist.distributed.event_loop import ConcurrentEventLoop, LoopThread
from graphlearn_dist.distributed.rpc import get_endpoint
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import RangePartitioner
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.engine.threads import WorkerThreads
from graphlearn_dist.sampler import NodeSamplerInput
from tests.support.cluster_workers import Worker
from tests.support.jobs import load
from tests.support.waiting import wait_until

MODES = ("local", "prefetch", "collocated", "mp", "remote")
NUM_NODES = 6_000
NUM_BATCHES = 15
DEADLINE_S = 60.0  # only ever reached by a hang


def make_partition(directory: Path) -> Path:
    """A graph of which a batch takes some time to sample: a program that ends meets threads in the middle of one."""
    ids = torch.arange(NUM_NODES)
    edges = torch.cat([torch.stack([(ids * 31 + hop) % NUM_NODES, ids]) for hop in range(20)], dim=1)
    RangePartitioner(
        str(directory), 1, NUM_NODES, edges, node_feat=torch.rand(NUM_NODES, 32), edge_assign_strategy="by_dst"
    ).partition()
    return directory


def make_loader(mode: str, directory: str, port: int, **changes: Any) -> Any:
    """A loader in that mode; in the remote one this process becomes the client of the server at a port."""
    arguments: dict[str, Any] = {
        "num_neighbors": [8, 8], "input_nodes": torch.arange(NUM_NODES), "batch_size": NUM_NODES // NUM_BATCHES,
        "shuffle": True, **changes,
    }  # fmt: skip
    if mode in ("local", "prefetch"):
        prefetch = 2 if mode == "prefetch" else 0
        return NeighborLoader(load(Path(directory)), prefetch=prefetch, num_threads=2, **arguments)
    arguments |= {"edge_dir": "in", "collect_features": True}
    if mode == "remote":
        init_client(1, 1, 0, "127.0.0.1", port, is_dynamic=True)
        return DistNeighborLoader(None, worker_options=RemoteDistSamplingWorkerOptions(0), **arguments)
    options: Any = MpDistSamplingWorkerOptions(2) if mode == "mp" else CollocatedDistSamplingWorkerOptions()
    return DistNeighborLoader(load(Path(directory)), worker_options=options, **arguments)


def epochs(loader: Any, entered: threading.Event) -> None:
    """Iterates as long as it may."""
    while True:
        for _ in loader:
            entered.set()


def left_by_break(loader: Any) -> None:
    for _ in loader:
        break


def left_by_error(loader: Any) -> None:
    for _ in loader:
        raise ValueError("the user's own")


def left_by_exit(loader: Any) -> None:
    for _ in loader:
        sys.exit(3)


def left_by_interrupt(loader: Any) -> None:
    for _ in loader:
        signal.raise_signal(signal.SIGINT)


def held_iterators(loader: Any) -> None:
    global held
    held = loader, iter(loader), iter(loader)
    next(held[2])
    sys.exit(3)


def held_in_a_cycle(loader: Any) -> None:
    iterator = iter(loader)
    next(iterator)
    cycle: list[Any] = [loader, iterator]
    cycle.append(cycle)
    sys.exit(3)


def after_an_epoch(loader: Any) -> None:
    assert len(list(loader)) == NUM_BATCHES
    sys.exit(3)


def daemon_thread(loader: Any) -> None:
    entered = threading.Event()
    threading.Thread(target=epochs, args=(loader, entered), daemon=True).start()
    assert entered.wait(60)
    sys.exit(3)


def thread(loader: Any) -> None:
    """A thread that goes on when the main thread is through, and leaves the loader in the middle."""
    is_over = threading.Event()

    def work() -> None:
        iterator = iter(loader)
        next(iterator)
        is_over.wait()
        assert next(iterator) is not None

    threading.Thread(target=work).start()
    threading.Timer(0.2, is_over.set).start()
    sys.exit(3)


def notebook(loader: Any) -> None:
    """Cells of an interactive interpreter: names stay, and so does the last traceback with its frames."""
    shell = code.InteractiveInterpreter({"loader": loader})
    shell.runsource("batches = iter(loader)", symbol="exec")
    shell.runsource("_ = next(batches)", symbol="exec")
    shell.runsource("for batch in loader: raise ValueError('in a cell')", symbol="exec")
    assert sys.last_traceback is not None
    sys.exit(3)


def in_atexit(loader: Any) -> None:
    """What is registered after the import may use loaders still."""

    def evaluate() -> None:
        print("batches", len(list(loader)), flush=True)

    atexit.register(evaluate)
    sys.exit(3)


def under_pytest(loader: Any) -> None:
    """A test that holds what it iterates over, and one that fails."""
    global held
    held = [loader]
    with tempfile.TemporaryDirectory() as directory:
        tests = Path(directory, "test_held.py")
        tests.write_text(
            "import __main__\n"
            "def test_one(): __main__.held.append(iter(__main__.held[0])); next(__main__.held[1])\n"
            "def test_two():\n    for batch in __main__.held[0]: assert batch is None\n"
        )
        code = pytest.main(["-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--rootdir={directory}", str(tests)])
    sys.exit(int(code) + 2)  # 1: a test has failed


def dropped(loader: Any) -> None:
    """The program ends while what sampled for a loader does, which nobody has any more."""
    next(iter(loader))
    del loader
    sys.exit(3)


ENDINGS = {
    "break": (left_by_break, 0),
    "dropped": (dropped, 3),
    "error": (left_by_error, 1),
    "exit": (left_by_exit, 3),
    "interrupt": (left_by_interrupt, -signal.SIGINT),
    "held": (held_iterators, 3),
    "cycle": (held_in_a_cycle, 3),
    "epoch": (after_an_epoch, 3),
    "daemon": (daemon_thread, 3),
    "thread": (thread, 3),
    "notebook": (notebook, 3),
    "atexit": (in_atexit, 3),
    "pytest": (under_pytest, 3),
}


def summary(batches: Iterable[Any]) -> list[list[Any]]:
    return [[batch.input_id, batch.n_id, batch.edge_index] for batch in batches]


def same(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> bool:
    return len(found) == len(expected) and all(
        torch.equal(one, other) for ours, theirs in zip(found, expected, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )  # fmt: skip


def in_fork(work: Callable[[], Any], *, ends: bool = True) -> Any:
    """What a fork of this process makes, as JSON; ``ends``: in the way of any program, instead of ``os._exit``."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(send, json.dumps(work()).encode())
        if ends:
            sys.exit(7)
        os._exit(7)
    os.close(send)
    readable, _, _ = select.select([receive], [], [], DEADLINE_S)
    if not readable:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("the fork hangs")
    answer = os.read(receive, 1 << 16)
    os.close(receive)
    ended = os.pidfd_open(pid)
    if not select.select([ended], [], [], DEADLINE_S)[0]:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"the fork does not end after {answer!r}")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 7, (code, answer)
    return json.loads(answer)


def told(use: Callable[[], Any]) -> str:
    """Name and message of the error that using something ends in."""
    try:
        use()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def touch(loader: Any, batches: Any) -> list[str]:
    """What a fork gets to hear of what is its parent's, and all that it does to get rid of it."""
    uses = [lambda: iter(loader), lambda: next(batches), lambda: next(loader), lambda: list(loader)]
    if isinstance(loader, DistNeighborLoader):
        with contextlib.suppress(ZeroDivisionError), loader:
            raise ZeroDivisionError
        loader.shutdown()
    answers = [told(use) for use in uses]
    if rpc_is_used():
        answers += [told(use) for use in (get_endpoint, lambda: request_server(0, DistServer.get_dataset_meta))]
        shutdown_client()
    gc.collect()
    return answers


def rpc_is_used() -> bool:
    context = get_context()
    return context is not None and context.is_client()


def forks(mode: str, directory: str, port: int) -> None:
    """Forks in the middle of an epoch that touch everything; the parent goes on as if there had been none."""
    oracle = make_loader("local", directory, port)
    expected = [summary(oracle) for _ in range(3)]
    loader = make_loader(mode, directory, port)
    assert same(summary(loader), expected[0])  # then the memory of a server's is mapped, and batches are lent
    batches = iter(loader)
    seen = summary([next(batches)])
    for ends in (True, False):
        if isinstance(loader, DistNeighborLoader):  # the fork has some that nobody has read, and drops them
            wait_until(lambda: loader._num_ready)
        answers = in_fork(lambda: touch(loader, batches), ends=ends)
        for answer in answers:
            if mode == "local":
                assert answer == "no error", answer
            else:
                assert answer.startswith("ForkedProcessError: "), answer
                assert f"belongs to process {os.getpid()}" in answer, answer
        assert mode == "local" or all(type(loader).__name__ in answer for answer in answers[:4]), answers
        seen += summary([next(batches)])
    in_fork(lambda: gc.collect() and None)
    seen += summary(batches)
    assert same(seen, expected[1])
    assert same(summary(loader), expected[2])
    if mode == "remote":
        assert len(in_fork(lambda: own_client(port))) == 3
    if mode not in ("local", "prefetch"):
        loader.shutdown()
    shutdown_client()


def own_client(port: int) -> list[int]:
    """A fork of a client may be one of its own."""
    init_client(1, 2, 1, "127.0.0.1", port, is_dynamic=True)
    options = RemoteDistSamplingWorkerOptions(0)
    with DistNeighborLoader(None, [2], torch.arange(30), batch_size=10, edge_dir="in", worker_options=options) as own:
        sizes = [batch.num_nodes for batch in own]
    shutdown_client()
    return sizes


async def nothing() -> None:
    """What loops are given to do."""


def objects(directory: str, port: int) -> None:
    """What else has threads, sockets or processes: a fork can neither use nor close it, and the parent can."""
    endpoint, other = Endpoint("server", 0).open(), Endpoint("client", 0).open()
    other.register("double", lambda value: 2 * value)
    assert endpoint.call(other.address, "double", 1) == 2
    thread, loop, workers = LoopThread("a loop"), ConcurrentEventLoop(2), WorkerThreads(1, "some")
    thread.start()
    loop.start_loop()
    init_server(1, 0, 0, load(Path(directory)), "127.0.0.1", 0, is_dynamic=True)
    options = MpDistSamplingWorkerOptions(1)
    config = make_loader("collocated", directory, port)._config
    producer = DistMpSamplingProducer(
        load(Path(directory)), NodeSamplerInput(torch.arange(9)), config, options, ShmChannel()
    )
    producer.init()
    cluster = RayVirtualCluster([1], use_gpus=False, backend="local")
    group = RayWorkerGroup(cluster, Worker)
    process = LocalBackend().start(ProcessSpec("server", 0, "", ["sleep", "600"], {}), Ended())
    uses: dict[str, Callable[[], Any]] = {
        "the endpoint server-0": lambda: endpoint.call(other.address, "double", 2),
        "the endpoint client-0": lambda: other.wait_for_members("server", 1, 1.0),
        "a loop": lambda: thread.run(nothing()),
        "ConcurrentEventLoop": lambda: loop.add_task(nothing()),
        "some": lambda: workers.submit(print),
        "the server": wait_and_shutdown_server,
        "the endpoint _default_server_0": lambda: get_endpoint().stats(),
        "the loader's batches": producer.produce_all,
        "the group of workers": lambda: group.run_all_workers_single_data("pid"),
        "the cluster": cluster.get_placement_groups,
        "server 0": lambda: process.tell("a line"),
    }
    closes = [
        endpoint.close, other.leave, other.close, thread.stop, loop.shutdown_loop, lambda: workers.close(DEADLINE_S),
        shutdown_server, producer.shutdown, group.shutdown, cluster.shutdown, process.stop, process.kill,
    ]  # fmt: skip

    def touch_all() -> dict[str, str]:
        answers = {name: told(use) for name, use in uses.items()}
        for close in closes:
            close()
        return answers

    for ends in (True, False):
        for name, answer in in_fork(touch_all, ends=ends).items():
            assert answer.startswith(f"ForkedProcessError: {name}"), (name, answer)
    assert endpoint.call(other.address, "double", 3) == 6
    thread.run(nothing())
    loop.run_task(nothing())
    assert get_endpoint().is_open()
    get_endpoint().stats()
    producer.produce_all()
    assert len(group.run_all_workers_single_data("pid")) == 1
    assert not ended.is_set()
    for close in closes:
        close()
    assert ended.wait(DEADLINE_S)


ended = threading.Event()


class Ended:
    """Hears of a process of the launcher."""

    def on_line(self, spec: ProcessSpec, line: str) -> None:
        print(line)

    def on_exit(self, spec: ProcessSpec, code: int) -> None:
        ended.set()


class Wrapped(torch.utils.data.IterableDataset[Any]):
    """A loader as somebody puts it below a ``DataLoader``."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)


def data_loader(mode: str, directory: str, port: int) -> None:
    """Workers of torch's ``DataLoader`` are forks, or are sent what they iterate over."""
    loader = make_loader(mode, directory, port)
    number = sum(1 for _ in loader)
    for context, error in (("fork", "ForkedProcessError"), ("spawn", "NotPicklableError")):
        workers = torch.utils.data.DataLoader(
            Wrapped(loader), batch_size=None, num_workers=1, multiprocessing_context=context, timeout=DEADLINE_S
        )
        answer = told(lambda: list(workers))  # noqa: B023 called at once
        if (mode, context) == ("local", "fork"):
            assert answer == "no error", answer
        else:
            assert answer.startswith(error), answer
            assert "num_workers=0" in answer, answer
            assert type(loader).__name__ in answer, answer
    assert sum(1 for _ in loader) == number
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        for what in (loader, iter(loader)):
            answer = told(lambda: copied(what))  # noqa: B023 called at once
            assert answer.startswith("NotPicklableError"), answer
            assert type(loader).__name__ in answer, answer


def leave(mode: str, ending: str, directory: str, port: int) -> None:
    """One program."""
    ENDINGS[ending][0](make_loader(mode, directory, port))


def main() -> Callable[[], None] | None:
    """Answers requests; returns what there is to be done in a fork, and None at the end."""
    for line in sys.stdin:
        function, arguments, errors, limit_s = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.setpgid(0, 0)
            return partial(globals()[function], **arguments)
        descriptor = os.pidfd_open(pid)
        if not select.select([descriptor], [], [], limit_s)[0]:
            os.kill(pid, signal.SIGKILL)
        os.close(descriptor)
        print("\nended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # a collection in a fork would look at all that was imported, and copy it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in its background ignores it
    program = main()
    if program is not None:
        program()
