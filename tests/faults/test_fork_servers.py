"""The process that sampling workers are forked from: what its forks have, and that nothing hangs on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import DistNeighborLoader, MpDistSamplingWorkerOptions
from graphlearn_dist.distributed.workers import fork_server
from graphlearn_dist.distributed.workers.fork_server import ForkedWorker, ForkServer, hold_fork_server
from graphlearn_dist.errors import SamplingWorkerError
from graphlearn_dist.loader import NeighborLoader
from tests.support.jobs import NUM_NODES, children, load, make_partitions, same_batches, wait_ended, workers_of
from tests.support.processes import freeze
from tests.support.waiting import collect, wait_until

pytestmark = pytest.mark.faults

SEEDS = torch.arange(NUM_NODES)
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1)


def open_files() -> list[str]:
    """What this process's descriptors are."""
    collect()  # batches of PyG, and so the memory that they lie in, wait for it
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.append(os.readlink(entry))
    return sorted(found)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    files, processes = Counter(open_files()), set(children(os.getpid()))
    yield
    # What an earlier test had left may have ended meanwhile.
    assert (Counter(open_files()) - files, set(children(os.getpid())) - processes) == (Counter(), set())


def sockets_of(pid: int) -> list[str]:
    """What of a process's descriptors are sockets."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it closes what it has inherited
            found.append(os.readlink(entry))
    return [name for name in found if name.startswith("socket:")]


def make_loader(whole: Path) -> DistNeighborLoader:
    options = MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB")
    return DistNeighborLoader(
        load(whole), [3, 2], SEEDS, 4, True, edge_dir="in", collect_features=True, random_seed=1, worker_options=options
    )


def end(worker: ForkedWorker) -> int | None:
    """Closes a worker's socket, which ends it; its exit code."""
    worker.control.close()
    os.close(worker.pulse)
    try:
        return asyncio.run(asyncio.wait_for(worker.wait(), DEADLINE_S))
    finally:
        worker.close()


def test_one_for_all_who_hold_it() -> None:
    with hold_fork_server() as forks:
        first = forks.fork()
        with hold_fork_server() as same:
            assert same is forks
            second = same.fork()
        (server,) = children(os.getpid())
        assert len(os.listdir(f"/proc/{server}/task")) == 1
        assert workers_of(os.getpid()) == sorted([first.pid, second.pid])
        for pid in (first.pid, second.pid):  # nothing of each other's, and nothing of the fork server's, once it is up
            wait_until(lambda pid=pid: os.readlink(f"/proc/{pid}/fd/0") == "/dev/null")  # type: ignore[misc]
            # Its control; and a pair by which its loop is woken.
            wait_until(lambda pid=pid: len(sockets_of(pid)) <= 3)  # type: ignore[misc]
        assert end(first) == 0
        second.kill()
        assert end(second) == -signal.SIGKILL
        third = forks.fork()
        assert children(os.getpid()) == [server]
        assert end(third) == 0
    assert children(os.getpid()) == []


def test_one_that_is_killed(whole: Path) -> None:
    """Its workers go on; one that dies later is followed by one from another fork server."""
    local = NeighborLoader(load(whole), [3, 2], SEEDS, batch_size=4, shuffle=True, seed=1)
    epochs = [[local.batch(number, index) for index in range(len(local))] for number in range(2)]
    with make_loader(whole) as loader:
        batches, workers, (server,) = iter(loader), workers_of(os.getpid()), children(os.getpid())
        seen = [next(batches)]
        os.kill(server, signal.SIGKILL)
        wait_ended([server], DEADLINE_S)
        same_batches([*seen, *batches], epochs[0])
        os.kill(workers[0], signal.SIGKILL)  # nobody is there to say how it ended
        same_batches(loader, epochs[1])
        (other,) = children(os.getpid())
        assert other != server
        assert len(workers_of(os.getpid())) == 1
    wait_ended(workers, DEADLINE_S)


def test_one_that_freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives no sign of life: how long an answer may take does not matter, nor an exit code."""
    monkeypatch.setattr(fork_server, "_ANSWER_S", 100 * DEADLINE_S)
    monkeypatch.setattr(fork_server, "_MAX_STATUS_S", 100 * DEADLINE_S)
    with hold_fork_server() as forks:
        first, (server,) = forks.fork(), children(os.getpid())
        freeze(server)
        second = forks.fork()
        assert children(os.getpid()) != [server]
        assert end(first) is None
        assert end(second) == 0


SLOW = """
import os, time
from graphlearn_dist.distributed.workers import fork_server_main

fork = fork_server_main.Forks._fork

def fork_late(self, given):
    until = time.monotonic() + 4.5
    while time.monotonic() < until:  # as if many others were forked first
        self._sign.give()
        time.sleep(0.05)
    return fork(self, given)

fork_server_main.Forks._fork = fork_late
os._exit(fork_server_main.main())
"""


def test_one_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives: what it takes longer for than one that has frozen is given is waited for."""
    monkeypatch.setattr(fork_server, "_PROGRAM", SLOW)
    with hold_fork_server() as forks:
        started: list[int] = []
        start_program = fork_server._start_program
        monkeypatch.setattr(fork_server, "_start_program", lambda *args: started.append(1) or start_program(*args))
        assert end(forks.fork()) == 0
        assert started == [1]


@pytest.mark.parametrize(
    ("program", "message"),
    [("raise SystemExit(3)", r"pid \d+\) ended on its way up"), ("import signal; signal.pause()", "was not ready")],
)
def test_one_that_does_not_come_up(monkeypatch: pytest.MonkeyPatch, program: str, message: str) -> None:
    monkeypatch.setattr(fork_server, "_PROGRAM", program)
    monkeypatch.setattr(fork_server, "_START_S", 0.5)
    with hold_fork_server() as forks, pytest.raises(SamplingWorkerError, match=message):
        forks.fork()


def test_an_end_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leaves does not wait for it, and neither does who asked for a worker."""
    monkeypatch.setattr(fork_server, "_PROGRAM", "import signal; signal.pause()")
    forks, failures, started = ForkServer(), [], threading.Event()
    start_program = fork_server._start_program

    def start_and_tell(*arguments: object) -> object:
        popen = start_program(*arguments)  # type: ignore[arg-type]
        started.set()
        return popen

    def ask() -> None:
        try:
            forks.fork()
        except SamplingWorkerError as error:
            failures.append(str(error))

    monkeypatch.setattr(fork_server, "_start_program", start_and_tell)
    asking = threading.Thread(target=ask)
    asking.start()
    assert started.wait(DEADLINE_S)
    forks.close()
    asking.join(DEADLINE_S)
    assert len(failures) == 1
    assert not asking.is_alive()


PRINTING = """
import os
from graphlearn_dist.distributed.workers import fork_server_main, sampling_worker

make = sampling_worker.PartitionedBatches.make_in

async def make_and_print(self, epoch, indices, *more):
    if 0 in indices:
        print("seen", os.environ["GLD_SEEN"], "OPENBLAS_NUM_THREADS" in os.environ, os.getcwd(), flush=True)
    return await make(self, epoch, indices, *more)

sampling_worker.PartitionedBatches.make_in = make_and_print
os._exit(fork_server_main.main())
"""


def test_what_workers_have_of_their_owner(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Environment, directory and output as they are when a worker starts, and not when the fork server did."""
    monkeypatch.setattr(fork_server, "_PROGRAM", PRINTING)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with hold_fork_server():
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)
            monkeypatch.setenv("GLD_SEEN", name)
            with make_loader(whole) as loader:
                assert len(list(loader)) == 30
            assert capfd.readouterr().out == f"seen {name} False {tmp_path / name}\n"
